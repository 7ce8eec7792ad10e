//! Scrub: gives back the space of blocks that were overwritten, and merges layers that nothing else leads to.
//!
//! The layer that is written is cleaned by the process that has the vDisk open. A sealed layer is rewritten by whoever
//! scrubs: new segments and a new map are written beside the old ones, then the layer's state is replaced, which is one
//! atomic change. Whoever reads the old ones finds them gone, and reads the state again.

mod plan;
mod rewrite;

use crate::catalogue::Catalogue;
use crate::disk::Disk;
use crate::format::LayerId;
use hekate_proto::{Error, Result};
use hekate_threads::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Segments are cleaned of which less than this share of a hundred is in use.
pub const FILL_PERCENT: u32 = 60;

/// Longest sleep of a scrub that may be told to end.
const SLEEP: Duration = Duration::from_millis(100);

/// A limit for the bytes that a scrub copies in a second.
pub struct Throttle {
    bytes_per_second: u64,
    next: Mutex<Option<Instant>>,
    stops: Arc<AtomicBool>,
}

impl Throttle {
    /// 0: no limit.
    pub fn new(bytes_per_second: u64) -> Self {
        Self::until(bytes_per_second, Arc::default())
    }

    /// A limit for a scrub that ends once `stops` is true.
    pub fn until(bytes_per_second: u64, stops: Arc<AtomicBool>) -> Self {
        Self { bytes_per_second, next: Mutex::new(None), stops }
    }

    /// Waits until so many bytes may be copied.
    ///
    /// # Errors
    /// `Unavailable` if the scrub is to end.
    pub(crate) fn wait_for(&self, bytes: u64) -> Result<()> {
        self.check()?;
        if self.bytes_per_second == 0 {
            return Ok(());
        }
        let now = hekate_threads::now();
        let pause = {
            let mut next = self.next.lock();
            let begin = next.filter(|next| *next > now).unwrap_or(now);
            *next = Some(begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64));
            begin - now
        };
        let end = now + pause;
        loop {
            let left = end.saturating_duration_since(hekate_threads::now());
            if left.is_zero() {
                return Ok(());
            }
            hekate_threads::sleep(left.min(SLEEP));
            self.check()?;
        }
    }

    fn check(&self) -> Result<()> {
        if self.stops.load(Ordering::Acquire) {
            return Err(Error::Unavailable { what: "the scrub was ended early; a later one goes on".into() });
        }
        Ok(())
    }
}

/// What a scrub has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes that were copied.
    pub moved: u64,
    /// Layers that were merged into others.
    pub merged: u64,
    /// Layers that were removed.
    pub removed: u64,
}

/// Scrubs a vDisk that this session has open, and the layers below it.
///
/// # Errors
/// Those of reading and writing; nothing is lost, and a second call goes on.
pub fn scrub(catalogue: &Catalogue, disk: &Disk, throttle: &Throttle) -> Result<Scrubbed> {
    let mut done = Scrubbed::default();
    if !disk.is_read_only() {
        done.moved += disk.clean(FILL_PERCENT, throttle)?;
    }
    while !disk.is_read_only() && catalogue.merges_into(disk.record().head)?.is_some() {
        done.moved += disk.absorb_parent(throttle)?;
        done.merged += 1;
    }
    for layer in disk.sealed_layers() {
        done += scrub_layer(catalogue, layer, throttle)?;
    }
    if !disk.is_read_only() {
        disk.restack()?;
    }
    done.removed += catalogue.collect()?;
    Ok(done)
}

/// Scrubs the sealed layer of a snapshot or a template.
pub(crate) fn scrub_layer(catalogue: &Catalogue, layer: LayerId, throttle: &Throttle) -> Result<Scrubbed> {
    let mut done = Scrubbed::default();
    loop {
        let parent = catalogue.merges_into(layer)?;
        let Some(moved) = rewrite::rewrite(catalogue.store(), layer, parent, FILL_PERCENT, throttle)? else {
            return Ok(done);
        };
        done.moved += moved;
        if parent.is_none() {
            return Ok(done);
        }
        done.merged += 1;
    }
}

impl std::ops::AddAssign for Scrubbed {
    fn add_assign(&mut self, other: Self) {
        self.moved += other.moved;
        self.merged += other.merged;
        self.removed += other.removed;
    }
}
