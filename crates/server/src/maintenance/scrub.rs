//! Scrubs the bricks while they serve: a pass over every brick once a week, or when an operator asks. What a pass finds
//! damaged is repaired.

use crate::hosting::node::Node;
use crate::hosting::rings::Rings;
use crate::maintenance::repair::repair;
use hekate_brick::{Brick, Finding, ScrubCursor, data_file_path};
use hekate_control::brick::{ScrubEnded, ScrubPass, ScrubRunning, ScrubState, ScrubStatus};
use hekate_control::peer::Repaired;
use hekate_proto::*;
use hekate_threads::{HashMap, Mutex, elapsed, now};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two rounds, and the most bytes that a round reads of a brick, the second while clients are active:
/// 30 MiB/s and 7.5 MiB/s.
pub const ROUND_PAUSE: Duration = Duration::from_millis(100);
const ROUND_BYTES: u64 = 3 << 20;
const BUSY_BYTES: u64 = ROUND_BYTES / 4;
/// Time from the start of the server to the first pass, and from the end of a pass to the next.
const FIRST_PASS_AFTER: Duration = Duration::from_secs(15 * 60);
const NEXT_PASS_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time between two attempts to repair the same partition's entries: each reads all of them.
const IN_VAIN_PAUSE: Duration = Duration::from_secs(10);
/// Damaged items that a pass lists.
const NAMED_MAX: usize = 100;

/// The passes of each brick.
#[derive(Default)]
pub struct Scrubs {
    bricks: Mutex<HashMap<BrickId, Passes>>,
    /// Ops that clients had asked for when the last round began.
    ops: AtomicU64,
    /// When the entries of a partition were last read for a request that had found a damaged one, and none could be
    /// repaired.
    in_vain: Mutex<HashMap<(RingId, PartitionNumber), Instant>>,
}

#[derive(Default)]
struct Passes {
    /// The operator has asked for a pass: over one volume, or over all.
    asked: Option<Option<VolumeId>>,
    running: Option<Pass>,
    last: Option<(Instant, Pass)>,
    /// When the last pass over all volumes ended.
    whole: Option<Instant>,
    /// Items repaired since the server started, by passes and by reads.
    mended: u64,
    /// Why the last pass ended early.
    error: Option<Error>,
}

/// A pass over a brick: where it is, and what it has found.
#[derive(Clone)]
struct Pass {
    volume: Option<VolumeId>,
    begun: Instant,
    /// The share of the brick's entries that the pass has read, from 0 to 1.
    done: f64,
    cursor: ScrubCursor,
    /// A checkpoint has written home what was acknowledged before the pass began: the pass reads the index, and the
    /// data files that the index refers to.
    is_home: bool,
    /// What the checkpoint could not write home, so that the pass does not read it.
    left_out: Option<String>,
    bytes: u64,
    strays: u64,
    mended: u64,
    /// Damaged items that no replica could repair.
    unmended: u64,
    named: BTreeSet<String>,
}

impl Scrubs {
    /// Asks for a pass over a brick, of one volume or of all. It begins with the next round, or when the running pass
    /// has ended.
    pub fn ask(&self, brick: BrickId, volume: Option<VolumeId>) {
        let mut all = self.bricks.lock();
        let passes = all.entry(brick).or_default();
        // A pass over all volumes includes this one.
        let wanted = if passes.asked == Some(None) { None } else { volume };
        (passes.asked, passes.error) = (Some(wanted), None);
    }

    /// Repairs the entries of a partition for a request that has found a damaged one, unless an attempt failed less
    /// than 10 s ago. True if an entry was repaired.
    pub fn try_repairing_entries(
        &self,
        ring: RingId,
        partition: PartitionNumber,
        repair: impl FnOnce() -> Result<bool>,
    ) -> bool {
        // Other requests wait for the first one's attempt.
        let mut in_vain = self.in_vain.lock();
        let at = (ring, partition);
        if in_vain.get(&at).is_some_and(|at| elapsed(*at) < IN_VAIN_PAUSE) {
            return false;
        }
        in_vain.remove(&at);
        let is_repaired = repair().unwrap_or(false);
        if !is_repaired {
            in_vain.insert(at, now());
        }
        is_repaired
    }

    /// The running pass, or a new one if it was asked for or is due; `uptime` is the time since the server started.
    fn begin(&self, uptime: Duration, brick: BrickId) -> Option<Pass> {
        let mut all = self.bricks.lock();
        let passes = all.entry(brick).or_default();
        if let Some(running) = &passes.running {
            return Some(running.clone());
        }
        let is_due = match passes.whole {
            Some(ended) => elapsed(ended) > NEXT_PASS_AFTER,
            None => uptime > FIRST_PASS_AFTER,
        };
        if let Some(volume) = passes.asked.take().or(is_due.then_some(None)) {
            passes.running = Some(Pass::new(volume));
            passes.error = None;
        }
        passes.running.clone()
    }

    /// Counts an item that was repaired on this brick.
    pub fn note_repaired(&self, brick: BrickId) {
        self.bricks.lock().entry(brick).or_default().mended += 1;
    }

    /// The running pass and the last one.
    pub fn show(&self, brick: BrickId) -> ScrubStatus {
        let all = self.bricks.lock();
        let none = Passes::default();
        let passes = all.get(&brick).unwrap_or(&none);
        let is_running = passes.running.is_some() || passes.asked.is_some();
        let last = passes
            .last
            .as_ref()
            .map(|(ended, pass)| ScrubEnded { pass: pass.show(), ended_seconds_ago: elapsed(*ended).as_secs() });
        let now = passes.running.as_ref().map(|pass| {
            let left = elapsed(pass.begun).as_secs_f64() * (1.0 - pass.done) / pass.done;
            let seconds_left = left.is_finite().then_some(left.ceil());
            ScrubRunning { pass: pass.show(), done: pass.done, seconds_left }
        });
        ScrubStatus {
            state: if is_running { ScrubState::Runs } else { ScrubState::Waits },
            now,
            last,
            mended_since_start: passes.mended,
            error: passes.error.as_ref().map(ToString::to_string),
        }
    }
}

impl Passes {
    fn end(&mut self, pass: Pass) {
        if pass.volume.is_none() {
            self.whole = Some(now());
        }
        self.last = Some((now(), pass));
    }
}

impl Pass {
    fn new(volume: Option<VolumeId>) -> Self {
        let cursor = volume.map_or_else(ScrubCursor::default, ScrubCursor::of_volume);
        let (bytes, strays, mended, unmended, named) = Default::default();
        let (is_home, left_out) = (false, None);
        Self { volume, begun: now(), done: 0.0, cursor, is_home, left_out, bytes, strays, mended, unmended, named }
    }

    fn show(&self) -> ScrubPass {
        ScrubPass {
            volume: self.volume,
            seconds: elapsed(self.begun).as_secs(),
            left_out: self.left_out.clone(),
            bytes_checked: self.bytes,
            mended: self.mended,
            damaged: self.unmended,
            stray_files_removed: self.strays,
            damage: self.named.clone(),
        }
    }

    fn note(&mut self, finding: &Finding, outcome: Repaired) {
        match (finding, outcome) {
            (Finding::Stray { .. }, _) => self.strays += 1,
            (_, Repaired::Yes) => self.mended += 1,
            (_, Repaired::NotNeeded) => {}
            (_, Repaired::No | Repaired::KeyLost) => {
                self.unmended += 1;
                if self.named.len() < NAMED_MAX {
                    self.named.insert(describe(finding));
                }
            }
        }
    }
}

/// A finding for people: a block with its data file, an entry, or a file.
pub fn describe(finding: &Finding) -> String {
    match finding {
        Finding::Block { shard, block, .. } => format!("block {block} of {}", data_file_path(*shard)),
        Finding::Entry { key } => format!("entry {key:?}"),
        Finding::Stray { path } => format!("file {path}"),
    }
}

/// The volume of a finding; 0 if it belongs to none.
pub fn volume_of(finding: &Finding) -> VolumeId {
    match finding {
        Finding::Block { shard, .. } => shard.volume,
        Finding::Entry { key } => key.prefix().map_or(VolumeId(0), |place| place.volume),
        Finding::Stray { .. } => VolumeId(0),
    }
}

/// One round: reads a part of every brick whose pass is due.
///
/// # Errors
///
/// The error of the first brick whose pass failed; it is also in the brick's report.
pub fn round(node: &Node) -> Result<()> {
    let ops = node.statistics.ops().answered();
    let is_busy = node.maintenance.scrubs.ops.swap(ops, Ordering::Relaxed) != ops;
    let bytes = if is_busy { BUSY_BYTES } else { ROUND_BYTES };
    node.maintenance.damages.round(&node.bricks);
    for brick in node.bricks.values() {
        note_index_blocks(node, brick);
        if brick.stopped().is_none() {
            round_of(node, brick, bytes)?;
        }
    }
    Ok(())
}

/// Logs blocks of the index in which a bit had flipped; the brick corrects such a block when it reads it.
fn note_index_blocks(node: &Node, brick: &Brick) {
    for block in brick.take_mended_index_blocks() {
        log::warn!(
            "block {block} of the index of brick {}: a bit had flipped; the brick has corrected it",
            node.bricks.name(brick.id())
        );
        node.maintenance.scrubs.note_repaired(brick.id());
    }
}

fn round_of(node: &Node, brick: &Arc<Brick>, bytes: u64) -> Result<()> {
    let Some(mut pass) = node.maintenance.scrubs.begin(node.statistics.ops().uptime(), brick.id()) else {
        return Ok(());
    };
    let until = pass.bytes + bytes;
    let outcome = (|| {
        if !pass.is_home {
            // Another brick that has stopped does not end this brick's pass.
            node.checkpoint_all().or_else(|error| brick.stopped().map_or(Ok(()), |_| Err(error)))?;
            pass.left_out = brick.stalled().map(|why| format!("what was written since the last checkpoint: {why}"));
            pass.is_home = true;
        }
        while !pass.cursor.is_done() && pass.bytes < until {
            let step = brick.scrub(&mut pass.cursor)?;
            // Directories without files read no bytes, and end the round as well.
            pass.bytes += step.bytes.max(4096);
            for finding in &step.findings {
                if let Finding::Stray { .. } = finding {
                    log::warn!(
                        "{} on brick {} belongs to no shard and is removed",
                        describe(finding),
                        node.bricks.name(brick.id())
                    );
                }
                // Whatever prevents the repair, the item is damaged.
                let outcome = repair(node, brick, finding).unwrap_or(Repaired::No);
                pass.note(finding, outcome);
            }
        }
        Ok(())
    })();
    pass.done = pass.cursor.key().map_or(1.0, |key| share_before(&node.rings, brick.id(), key));
    let mut all = node.maintenance.scrubs.bricks.lock();
    let passes = all.entry(brick.id()).or_default();
    passes.running = None;
    passes.error = outcome.as_ref().err().cloned();
    if pass.cursor.is_done() {
        passes.end(pass);
        drop(all);
        // The pass has checked each replica by itself. A proof compares the replicas with each other.
        node.begin_proofs(hekate_threads::random().map_err(|e| Error::bug(format!("getrandom: {e}")))?);
    } else if outcome.is_ok() {
        passes.running = Some(pass);
    }
    outcome
}

/// The share of a brick's entries before a key, from 0 to 1. Entries are in the order of their positions on the ring,
/// and the brick's replicas are taken to be of the same size.
fn share_before(rings: &Rings, brick: BrickId, key: &Key) -> f64 {
    let Some(place) = key.prefix() else { return 0.0 };
    let (mut all, mut behind) = (0.0, 0.0);
    for ring in rings.all() {
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
