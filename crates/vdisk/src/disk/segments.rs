//! Segments that appends go to: the next one is made beside the writes.

use super::{Core, Log};
use crate::format::BLOCK_BYTES;
use crate::layer::segment_name;
use crate::store::OpenFile;
use hekate_proto::{Error, Result};
use hekate_threads::{JoinHandle, Mutex, spawn_joined};
use std::sync::Arc;

/// Blocks of an append, on average, up to which segments are filled before they are used: then each append is an
/// overwrite, for which the fast lane takes one round trip instead of two. For longer ones the zeros, which have to be
/// written too, cost more than that.
const SHORT_APPEND: u32 = 8;

/// A segment's number and its file.
type Segment = (u32, Arc<OpenFile>);

/// A segment that a thread makes, to be the next one of the layer that is written.
pub(super) struct Spare {
    made: Arc<Mutex<Option<Segment>>>,
    thread: JoinHandle,
}

impl Core {
    /// Goes on in the next segment.
    pub(super) fn begin_segment(&self, log: &mut Log) -> Result<()> {
        let spare = log.spare.take().and_then(|spare| {
            spare.thread.join();
            spare.made.lock().take()
        });
        let (number, file) = match spare {
            Some(spare) => spare,
            None => self.make_segment(log.next_segment, log.segment_blocks, false)?,
        };
        assert!(number >= log.next_segment, "the log goes on in segments of greater numbers");
        log.next_segment = number + 1;
        log.segment = Some(file);
        (log.position.segment, log.position.block, log.segment_appends) = (number, 0, 0);
        Ok(())
    }

    /// Makes a segment's file with its space: by written zeros if it is to be `filled`, and that makes overwrites faster.
    /// Its number is the first from `number` on that no file has: what an earlier opening has made may still be written
    /// by it.
    fn make_segment(&self, number: u32, blocks: u32, filled: bool) -> Result<Segment> {
        let stack = self.stack();
        let mut number = number;
        let file = loop {
            match self.store.make_file(stack.head().directory, &segment_name(number)) {
                Err(Error::Exists) => number += 1,
                made => break made?,
            }
        };
        let made = stack.head().add_segment(&self.store, number, file);
        let bytes = u64::from(blocks) * BLOCK_BYTES;
        if filled {
            self.store.fill(file, bytes)?
        } else {
            self.store.allocate(file, bytes)?
        }
        Ok((number, made))
    }

    /// Makes the next segment ready beside the writes.
    pub(super) fn prepare_segment(self: &Arc<Self>, log: &mut Log) {
        if !self.settings.background || log.spare.is_some() {
            return;
        }
        let (core, number, blocks) = (self.clone(), log.next_segment, log.segment_blocks);
        let is_short = log.position.block / log.segment_appends.max(1) <= SHORT_APPEND;
        let made = Arc::new(Mutex::new(None));
        let slot = made.clone();
        let make = move || match core.make_segment(number, blocks, is_short) {
            Ok(made) => *slot.lock() = Some(made),
            Err(error) => log::warn!("vDisk {}: the next segment was not made ready: {error}", core.name),
        };
        match spawn_joined("vdisk-segment", make) {
            Ok(thread) => log.spare = Some(Spare { made, thread }),
            Err(error) => log::warn!("no thread makes the next segment ready: {error}"),
        }
    }
}
