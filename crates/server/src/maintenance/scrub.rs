//! Scrubbing the bricks while they serve: a pass a week, or when somebody asks; what it finds is mended.

use crate::control::prove_here;
use crate::hosting::node::Node;
use crate::maintenance::damage;
use crate::maintenance::repair::{Mended, mend};
use hekate_brick::{Brick, Finding, ScrubCursor, data_file_path};
use hekate_proto::*;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a round comes, and what it reads at most of a brick: 32 MiB/s, or 8 while clients ask for something.
pub const ROUND_PAUSE: Duration = Duration::from_millis(100);
const ROUND_BYTES: u64 = 3 << 20;
const BUSY_BYTES: u64 = ROUND_BYTES / 4;
/// From the start of the server to the first pass, and from the end of a pass to the next.
const FIRST_PASS_AFTER: Duration = Duration::from_secs(15 * 60);
const NEXT_PASS_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// Between two looks for the same damage that nobody could mend: each goes through a partition's entries.
const IN_VAIN_PAUSE: Duration = Duration::from_secs(10);
/// Damaged things that are named.
const NAMED_MAX: usize = 100;

/// What is known of each brick's passes.
#[derive(Default)]
pub struct Scrubs {
    bricks: Mutex<HashMap<BrickId, Passes>>,
    /// Ops that clients had asked for when the last round began.
    ops: AtomicU64,
    /// When a partition's entries were gone through for who met a damaged one, and nothing could be mended.
    in_vain: Mutex<HashMap<(RingId, PartitionNumber), Instant>>,
}

#[derive(Default)]
struct Passes {
    /// A pass is to begin: over a volume, or all.
    asked: Option<Option<VolumeId>>,
    running: Option<Pass>,
    last: Option<(Instant, Pass)>,
    /// When the last pass over all of the brick ended.
    whole: Option<Instant>,
    /// What was mended since the server started, by passes and by reads.
    mended: u64,
    /// Why the last pass did not come to its end.
    error: Option<Error>,
}

/// A pass over a brick.
#[derive(Clone)]
struct Pass {
    volume: Option<VolumeId>,
    begun: Instant,
    /// Of the brick's entries this share is behind it.
    done: f64,
    cursor: ScrubCursor,
    /// A checkpoint has written home what was acknowledged before the pass began: it reads the index, and what that
    /// refers to.
    is_home: bool,
    /// Why that was not all.
    left_out: Option<String>,
    bytes: u64,
    strays: u64,
    mended: u64,
    /// Items that it found and no replica could mend.
    unmended: u64,
    named: BTreeSet<String>,
}

impl Scrubs {
    /// A pass over this brick, of one volume or all, begins now, or when the one that is running has ended.
    pub fn ask(&self, brick: BrickId, volume: Option<VolumeId>) {
        let mut all = self.bricks.lock();
        let passes = all.entry(brick).or_default();
        // All has the volume as well.
        let wanted = if passes.asked == Some(None) { None } else { volume };
        (passes.asked, passes.error) = (Some(wanted), None);
    }

    /// Mends a partition's entries for who has met a damaged one, unless that was in vain a moment ago. -> whether any was.
    pub fn may_look_through(
        &self,
        ring: RingId,
        partition: PartitionNumber,
        mend: impl FnOnce() -> Result<bool>,
    ) -> bool {
        // Whoever comes meanwhile waits for the first.
        let mut in_vain = self.in_vain.lock();
        let at = (ring, partition);
        if in_vain.get(&at).is_some_and(|at| at.elapsed() < IN_VAIN_PAUSE) {
            return false;
        }
        in_vain.remove(&at);
        let is_mended = mend().unwrap_or(false);
        if !is_mended {
            in_vain.insert(at, Instant::now());
        }
        is_mended
    }

    /// Something on this brick is right again.
    pub fn note_mended(&self, brick: BrickId) {
        self.bricks.lock().entry(brick).or_default().mended += 1;
    }

    /// How the running pass and the last one went.
    pub fn show(&self, brick: BrickId) -> Value {
        let all = self.bricks.lock();
        let none = Passes::default();
        let passes = all.get(&brick).unwrap_or(&none);
        let state = if passes.running.is_some() || passes.asked.is_some() { "runs" } else { "waits" };
        let last = passes.last.as_ref().map(|(ended, pass)| {
            let mut shown = pass.show();
            shown["ended_seconds_ago"] = ended.elapsed().as_secs().into();
            shown
        });
        let now = passes.running.as_ref().map(|pass| {
            let (mut shown, took) = (pass.show(), pass.begun.elapsed().as_secs_f64());
            shown["done"] = pass.done.into();
            let left = took * (1.0 - pass.done) / pass.done;
            shown["seconds_left"] = left.is_finite().then_some(left.ceil()).into();
            shown
        });
        json!({ "state": state, "now": now, "last": last, "mended_since_start": passes.mended,
            "error": passes.error.as_ref().map(ToString::to_string) })
    }
}

impl Passes {
    /// A pass has come to its end.
    fn end(&mut self, pass: Pass) {
        if pass.volume.is_none() {
            self.whole = Some(Instant::now());
        }
        self.last = Some((Instant::now(), pass));
    }
}

impl Pass {
    fn new(volume: Option<VolumeId>) -> Self {
        let cursor = volume.map_or_else(ScrubCursor::default, ScrubCursor::of_volume);
        let (bytes, strays, mended, unmended, named) = Default::default();
        let (is_home, left_out) = (false, None);
        Self {
            volume,
            begun: Instant::now(),
            done: 0.0,
            cursor,
            is_home,
            left_out,
            bytes,
            strays,
            mended,
            unmended,
            named,
        }
    }

    fn show(&self) -> Value {
        json!({
            "volume": self.volume,
            "seconds": self.begun.elapsed().as_secs(),
            "left_out": self.left_out,
            "bytes_checked": self.bytes,
            "mended": self.mended,
            "damaged": self.unmended,
            "stray_files_removed": self.strays,
            "damage": self.named,
        })
    }

    fn note(&mut self, finding: &Finding, outcome: Mended) {
        match (finding, outcome) {
            (Finding::Stray { .. }, _) => self.strays += 1,
            (_, Mended::Yes) => self.mended += 1,
            (_, Mended::NotNeeded) => {}
            (_, Mended::No | Mended::KeyLost) => {
                self.unmended += 1;
                if self.named.len() < NAMED_MAX {
                    self.named.insert(describe(finding));
                }
            }
        }
    }
}

/// A finding for people: a block with its data file, or an entry.
pub fn describe(finding: &Finding) -> String {
    match finding {
        Finding::Block { shard, block, .. } => format!("block {block} of {}", data_file_path(*shard)),
        Finding::Entry { key } => format!("entry {key:?}"),
        Finding::Stray { path } => format!("file {path}"),
    }
}

/// Whose it is; 0: no volume's.
pub fn volume_of(finding: &Finding) -> VolumeId {
    match finding {
        Finding::Block { shard, .. } => shard.volume,
        Finding::Entry { key } => key.prefix().map_or(VolumeId(0), |place| place.volume),
        Finding::Stray { .. } => VolumeId(0),
    }
}

/// A piece of every brick whose pass is due.
pub fn round(node: &Node) -> Result<()> {
    let ops = node.counters.sum();
    let is_busy = node.scrubs.ops.swap(ops, Ordering::Relaxed) != ops;
    let bytes = if is_busy { BUSY_BYTES } else { ROUND_BYTES };
    damage::round(node);
    for brick in node.bricks.values() {
        note_index_blocks(node, brick);
        if brick.stopped().is_none() {
            round_of(node, brick, bytes)?;
        }
    }
    Ok(())
}

/// Whoever reads a block of the index puts a flipped bit right.
fn note_index_blocks(node: &Node, brick: &Brick) {
    for block in brick.take_mended_index_blocks() {
        log::warn!(
            "block {block} of the index of brick {}: a bit had flipped, it is right again",
            node.bricks.name(brick.id())
        );
        node.scrubs.note_mended(brick.id());
    }
}

fn round_of(node: &Node, brick: &Arc<Brick>, bytes: u64) -> Result<()> {
    let Some(mut pass) = begin(node, brick.id()) else { return Ok(()) };
    let until = pass.bytes + bytes;
    let outcome = (|| {
        if !pass.is_home {
            // Another brick that has stopped is no reason to leave this one out.
            node.checkpoint_all().or_else(|error| brick.stopped().map_or(Ok(()), |_| Err(error)))?;
            pass.left_out = brick.stalled().map(|why| format!("what was written since the last checkpoint: {why}"));
            pass.is_home = true;
        }
        while !pass.cursor.is_done() && pass.bytes < until {
            let step = brick.scrub(&mut pass.cursor)?;
            // Directories without files cost nothing and end the round as well.
            pass.bytes += step.bytes.max(4096);
            for finding in &step.findings {
                if let Finding::Stray { .. } = finding {
                    log::warn!(
                        "{} on brick {}: no shard knows it, it is removed",
                        describe(finding),
                        node.bricks.name(brick.id())
                    );
                }
                // Whatever keeps it from being mended, it is damaged.
                let outcome = mend(node, brick, finding).unwrap_or(Mended::No);
                pass.note(finding, outcome);
            }
        }
        Ok(())
    })();
    pass.done = pass.cursor.key().map_or(1.0, |key| share_before(node, brick.id(), key));
    let mut all = node.scrubs.bricks.lock();
    let passes = all.entry(brick.id()).or_default();
    passes.running = None;
    passes.error = outcome.as_ref().err().cloned();
    if pass.cursor.is_done() {
        passes.end(pass);
        drop(all);
        // What each has is sound by now; whether it is the same is asked once nothing is damaged any more.
        prove_here(node, getrandom::u64().map_err(|e| Error::bug(format!("getrandom: {e}")))?)?;
    } else if outcome.is_ok() {
        passes.running = Some(pass);
    }
    outcome
}

/// Of a brick's replicas, which are about as large as each other, so much comes before a key: entries are in the order of
/// their places on the ring.
fn share_before(node: &Node, brick: BrickId, key: &Key) -> f64 {
    let Some(place) = key.prefix() else { return 0.0 };
    let (mut all, mut behind) = (0.0, 0.0);
    for ring in node.rings.all() {
        let own = ring.replicas().map(|(address, _)| *address).filter(|address| address.brick == brick);
        for address in own {
            let (from, to) = Key::object_range(ring.ring, address.partition, ring.count());
            all += 1.0;
            behind += match () {
                () if *key >= to => 1.0,
                () if *key < from => 0.0,
                () => {
                    let first = f64::from(address.partition.first_position(ring.count()).0);
                    (f64::from(place.position.0) - first) * f64::from(ring.count()) / 2f64.powi(32)
                }
            };
        }
    }
    if all == 0.0 { 1.0 } else { behind / all }
}

/// The running pass, or a new one if it is time.
fn begin(node: &Node, brick: BrickId) -> Option<Pass> {
    let mut all = node.scrubs.bricks.lock();
    let passes = all.entry(brick).or_default();
    if let Some(running) = &passes.running {
        return Some(running.clone());
    }
    let is_due = match passes.whole {
        Some(ended) => ended.elapsed() > NEXT_PASS_AFTER,
        None => node.started.elapsed() > FIRST_PASS_AFTER,
    };
    if let Some(volume) = passes.asked.take().or(is_due.then_some(None)) {
        passes.running = Some(Pass::new(volume));
        passes.error = None;
    }
    passes.running.clone()
}
