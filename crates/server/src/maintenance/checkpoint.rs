//! Checkpoints of all bricks, and how much of their journals they free: only what every member has on stable storage,
//! so that a member that lost the end of its journal finds those records in another's.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::hosting::own_bricks::OwnBricks;
use crate::hosting::rings::Rings;
use crate::request::turn::Turn;
use hekate_brick::Brick;
use hekate_proto::*;
use hekate_replica::{Address, Event, Retention};
use hekate_threads::{HashMap, Mutex, elapsed, now};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait of a checkpoint until the other members have on stable storage what it wrote home, and the pause
/// between two checks. Records that a member lacks after that stay in the journal, and housekeeping asks the member
/// again.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);
const LOOK_PAUSE: Duration = Duration::from_micros(200);

/// How much of each brick's journal is kept for other members, and which bricks are stalled.
pub struct Journals {
    retained: HashMap<BrickId, Mutex<Retention>>,
    /// Stalled bricks that the log has named: one line when a brick stalls, and one when it continues.
    stalled: Mutex<BTreeSet<BrickId>>,
}

impl Journals {
    /// For bricks that have just been opened: nothing of their journals may be freed yet.
    ///
    /// # Errors
    ///
    /// `Damaged` or `Io` if a journal cannot be read.
    pub fn new<'a>(bricks: impl Iterator<Item = &'a Arc<Brick>>) -> Result<Self> {
        let retained = |brick: &'a Arc<Brick>| Ok((brick.id(), Mutex::new(Retention::of(brick)?)));
        Ok(Self { retained: bricks.map(retained).collect::<Result<_>>()?, stalled: Mutex::default() })
    }

    fn of<'a>(&'a self, bricks: &'a OwnBricks) -> impl Iterator<Item = (&'a Arc<Brick>, &'a Mutex<Retention>)> {
        self.retained.iter().filter_map(|(id, retention)| Some((bricks.get(id)?, retention)))
    }

    /// Marks the end of every journal. What is before a mark may be freed once every member has it on stable storage.
    fn mark_ends(&self, bricks: &OwnBricks) {
        self.of(bricks).for_each(|(brick, retention)| retention.lock().mark_end(brick));
    }

    /// Marks the journals that have grown since their last mark. With a mark at its end only, a full journal would wait
    /// for others that are full as well.
    fn mark_grown(&self, bricks: &OwnBricks) {
        self.of(bricks).for_each(|(brick, retention)| retention.lock().look(brick));
    }

    /// Frees what every member has on stable storage. True if something that is marked is still kept.
    fn free(&self, bricks: &OwnBricks, rings: &Rings) -> bool {
        let mut waiting = false;
        for (brick, retention) in self.of(bricks) {
            let mut retention = retention.lock();
            if let Some(upto) = retention.advance(stable(rings, brick.id())) {
                brick.retain_from(upto);
            }
            waiting |= retention.is_waiting();
        }
        waiting
    }

    /// The replicas that some journal is kept for, by ring.
    fn behind(&self, bricks: &OwnBricks, rings: &Rings) -> HashMap<RingId, BTreeSet<Address>> {
        let mut behind: HashMap<RingId, BTreeSet<Address>> = HashMap::default();
        for (brick, retention) in self.of(bricks) {
            for (ring, partition) in retention.lock().behind(stable(rings, brick.id())) {
                behind.entry(ring).or_default().insert(Address { partition, brick: brick.id() });
            }
        }
        behind
    }

    fn log_stalled(&self, now: &BTreeMap<BrickId, String>) {
        let mut known = self.stalled.lock();
        for (brick, why) in now.iter().filter(|(brick, _)| !known.contains(brick)) {
            log::warn!(
                "brick {} cannot write home: {why}; it serves reads and deletes, and continues when its disk has room",
                brick.text()
            );
        }
        for brick in known.iter().filter(|brick| !now.contains_key(brick)) {
            log::info!("brick {} has room again and has written home", brick.text());
        }
        *known = now.keys().copied().collect();
    }
}

/// The last record that all members of a brick's replica are known to have on stable storage.
fn stable(rings: &Rings, brick: BrickId) -> impl Fn(RingId, PartitionNumber) -> Option<Sequence> {
    move |ring, partition| {
        let ring = rings.get(ring).ok()?;
        Some(ring.replica(Address { partition, brick })?.partition.read().stable())
    }
}

impl Node {
    /// A checkpoint if some brick needs one, for a thread that appends while no housekeeping runs.
    ///
    /// # Errors
    ///
    /// Those of `checkpoint_all`.
    pub(crate) fn checkpoint_if_wanted(&self) -> Result<()> {
        if self.bricks.want_checkpoint() { self.checkpoint_all() } else { Ok(()) }
    }

    /// A checkpoint of every brick. A stopped brick does not keep the others from it. A brick that is stalled for want
    /// of room is no error: [`OwnBricks::stalled`] has it, and housekeeping tries again.
    ///
    /// # Errors
    ///
    /// The error of the first brick that has stopped, once all others have ended.
    pub fn checkpoint_all(&self) -> Result<()> {
        self.checkpoint_all_paced(&mut || false)
    }

    /// Like `checkpoint_all`, and pauses between two writes as long as `pause` returns true: the checkpoint is ahead of
    /// the journal.
    ///
    /// # Errors
    ///
    /// Those of `checkpoint_all`.
    pub fn checkpoint_all_paced(&self, pause: &mut dyn FnMut() -> bool) -> Result<()> {
        self.checkpoint_those(|_| true, pause)
    }

    /// Tries the stalled checkpoints again. Other bricks have theirs when their journals need it.
    ///
    /// # Errors
    ///
    /// Those of `checkpoint_all`.
    pub(crate) fn checkpoint_stalled(&self) -> Result<()> {
        match self.bricks.stalled().is_empty() {
            true => Ok(()),
            false => self.checkpoint_those(|brick| brick.stalled().is_some(), &mut || false),
        }
    }

    fn checkpoint_those(&self, is_due: impl Fn(&Brick) -> bool, pause: &mut dyn FnMut() -> bool) -> Result<()> {
        let due = self.bricks.values().filter(|brick| is_due(brick));
        let begun: Vec<_> = due.map(|brick| brick.begin_checkpoint()).collect();
        self.maintenance.journals.mark_ends(&self.bricks);
        self.stabilize();
        let finished: Vec<Result<()>> = begun.into_iter().map(|checkpoint| checkpoint.finish(pause)).collect();
        let waiting_since = now();
        while self.free_journals() && elapsed(waiting_since) < ANSWER_LIMIT {
            hekate_threads::sleep(LOOK_PAUSE);
        }
        self.deliver_room();
        self.maintenance.journals.log_stalled(&self.bricks.stalled());
        let is_shortage = |error: &Error| matches!(error, Error::NoSpace { .. } | Error::Unavailable { .. });
        finished.into_iter().filter(|outcome| !outcome.as_ref().is_err_and(is_shortage)).collect()
    }

    /// Between checkpoints: marks the journals that have grown, and frees what every member has on stable storage by
    /// now.
    pub(crate) fn look_after_journals(&self) {
        self.maintenance.journals.mark_grown(&self.bricks);
        if self.free_journals() {
            self.stabilize();
            self.free_journals();
        }
        if self.bricks.values().filter(|brick| brick.take_passed_turn()).count() > 0 {
            self.deliver_room();
        }
    }

    fn deliver_room(&self) {
        self.rings.all().iter().for_each(|ring| self.deliver_to_all(ring, || Event::Room));
    }

    fn free_journals(&self) -> bool {
        self.maintenance.journals.free(&self.bricks, &self.rings)
    }

    /// Asks the members to put what is marked on stable storage. Other servers answer later.
    fn stabilize(&self) {
        for (ring, addresses) in self.maintenance.journals.behind(&self.bricks, &self.rings) {
            let Ok(ring) = self.ring(ring) else { continue };
            self.deliver_stabilize(&ring, addresses);
        }
    }

    fn deliver_stabilize(&self, ring: &Arc<HostedRing>, addresses: BTreeSet<Address>) {
        let mut turn = Turn::new(self, ring);
        addresses.into_iter().for_each(|address| turn.deliver(address, Event::Stabilize));
        turn.run();
    }
}
