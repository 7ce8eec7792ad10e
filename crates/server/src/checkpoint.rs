//! Checkpoints of all bricks: a journal is given back only up to what every replica has on stable storage, so that one
//! that lost its tail finds it in another's journal.

use crate::node::Node;
use crate::partition::HostedRing;
use crate::turn::Turn;
use hekate_brick::Brick;
use hekate_proto::*;
use hekate_replica::{Address, Event};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long records that are on their way are waited for; then their brick keeps its journal this once.
const ARRIVAL_LIMIT: Duration = Duration::from_millis(200);
/// How long other servers are waited for; if they do not answer, the bricks concerned keep their journals this once.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);
const LOOK_PAUSE: Duration = Duration::from_micros(200);

/// Where a partition's log ended on each of its bricks.
type Ends = HashMap<(RingId, PartitionNumber), HashMap<BrickId, Sequence>>;

impl Node {
    /// A checkpoint if some brick waits for one: for those who append while no housekeeping runs.
    pub(crate) fn checkpoint_if_wanted(&self) -> Result<()> {
        if self.bricks.values().any(|brick| brick.wants_checkpoint()) { self.checkpoint_all() } else { Ok(()) }
    }

    /// A checkpoint of every brick. One that has stopped does not keep the others from it.
    pub fn checkpoint_all(&self) -> Result<()> {
        self.checkpoint_all_paced(&mut || false)
    }

    /// The same, with pauses as long as the checkpoint is ahead of the journal.
    pub fn checkpoint_all_paced(&self, pause: &mut dyn FnMut() -> bool) -> Result<()> {
        let begun: Vec<_> = self.bricks.values().map(|brick| (brick, brick.begin_checkpoint())).collect();
        let ends = self.ends();
        self.await_arrival(&ends);
        let held = self.ends();
        let synced: Vec<Result<()>> = self.bricks.values().map(|brick| brick.sync(brick.end())).collect();
        // A brick that stopped lacks what it had not synced: the others' journals are where the next start finds it.
        let stopped = synced.iter().any(|outcome| outcome.is_err());
        let unknown = self.not_stable_elsewhere(&ends);
        let finished: Vec<Result<()>> = begun
            .into_iter()
            .map(|(brick, checkpoint)| {
                brick.keep_journal(stopped || !all_have(brick, &ends, &held) || unknown.contains(&brick.id()));
                checkpoint.finish(pause)
            })
            .collect();
        let rings: Vec<_> = self.rings.read().values().cloned().collect();
        rings.iter().for_each(|ring| self.tell_all(ring, || Event::Room));
        synced.into_iter().chain(finished).collect()
    }

    /// Bricks with records that replicas on other servers are not known to have on stable storage; they are asked.
    fn not_stable_elsewhere(&self, ends: &Ends) -> BTreeSet<BrickId> {
        let rings: Vec<_> = self.rings.read().values().filter(|ring| !ring.is_whole()).cloned().collect();
        let shared = |ring: &Arc<HostedRing>| -> Vec<Address> {
            ring.replicas().map(|(to, _)| *to).filter(|to| !ring.is_all_here(to.partition)).collect()
        };
        for ring in &rings {
            let mut turn = Turn::new(self, ring);
            shared(ring).into_iter().for_each(|to| turn.tell(to, Event::Stabilize));
            turn.run_without_syncs();
        }
        let begun = Instant::now();
        loop {
            let mut unknown = BTreeSet::new();
            for ring in &rings {
                for to in shared(ring) {
                    let end = ends.get(&(ring.ring, to.partition)).and_then(|on| on.get(&to.brick));
                    let stable = ring.replica(to).map(|hosted| hosted.partition.read().stable());
                    if stable < end.copied() {
                        unknown.insert(to.brick);
                    }
                }
            }
            if unknown.is_empty() || begun.elapsed() > ANSWER_LIMIT {
                return unknown;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    fn ends(&self) -> Ends {
        let mut ends = Ends::new();
        for ring in self.rings.read().values() {
            for (address, hosted) in ring.replicas() {
                let end = hosted.brick.position(ring.ring, address.partition).sequence;
                ends.entry((ring.ring, address.partition)).or_default().insert(address.brick, end);
            }
        }
        ends
    }

    /// Until every member has what some member has.
    fn await_arrival(&self, ends: &Ends) {
        let begun = Instant::now();
        while begun.elapsed() < ARRIVAL_LIMIT && !self.bricks.values().all(|brick| all_have(brick, ends, &self.ends()))
        {
            std::thread::sleep(LOOK_PAUSE);
        }
    }
}

/// Whether all members of its partitions hold what a brick had.
fn all_have(brick: &Arc<Brick>, had: &Ends, held: &Ends) -> bool {
    had.iter()
        .filter_map(|(partition, on)| Some((partition, on.get(&brick.id())?)))
        .all(|(partition, end)| held.get(partition).is_some_and(|members| members.values().all(|held| held >= end)))
}
