//! What a brick must keep of its journal: a record may go only once every member of its partition has it on stable
//! storage, so that a member that a power cut robbed of its tail finds that tail in another's journal.
//!
//! One for each brick, asked and told by its host, which
//!
//! - says [`Brick::retain_from`](hekate_brick::Brick::retain_from) 0 when it opens the brick;
//! - with each checkpoint begins a round: where the journal ends and up to which record of each partition;
//! - asks the hosts of the other members for [`Retention::asks`], now and again while the round lasts. A host that is
//!   asked syncs its brick's journal (no data files: a block that a power cut takes is found here) once it holds the
//!   record, and answers;
//! - retains from [`Retention::free_to`] on when that moves.

use hekate_brick::{LogPosition, Lsn};
use hekate_proto::map::View;
use hekate_proto::*;
use std::collections::BTreeMap;

wire_struct! {
    /// A brick is to have (or has) a partition's records up to this one on stable storage.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct Need {
        /// Ring.
        pub ring: RingId,
        /// Partition of it.
        pub partition: PartitionNumber,
        /// Whose journal.
        pub brick: BrickId,
        /// The last record.
        pub sequence: Sequence,
    }
}

/// Where a brick's journal ends, and what it says.
pub type Known = (Lsn, Vec<(RingId, PartitionNumber, LogPosition)>);

/// See the module.
#[derive(Debug, Default)]
pub struct Retention {
    stable: BTreeMap<(RingId, PartitionNumber, BrickId), Sequence>,
    round: Option<Round>,
    free_to: Lsn,
}

#[derive(Debug)]
struct Round {
    upto: Lsn,
    needs: Vec<Need>,
}

impl Retention {
    /// Whether a round is under way.
    pub fn is_waiting(&self) -> bool {
        self.round.is_some()
    }

    /// Begins a round, unless one is under way. `view`: of a partition, if it is known.
    pub fn begin<'a>(&mut self, own: BrickId, ends: Known, view: impl Fn(RingId, PartitionNumber) -> Option<&'a View>) {
        if self.round.is_some() {
            return;
        }
        let mut needs = Vec::new();
        for (ring, partition, LogPosition { sequence, .. }) in ends.1 {
            let members = view(ring, partition).map(|view| view.members.as_slice()).unwrap_or_default();
            let others = members.iter().filter(|member| member.brick != own);
            needs.extend(others.map(|member| Need { ring, partition, brick: member.brick, sequence }));
        }
        self.round = Some(Round { upto: ends.0, needs });
        self.go_on();
    }

    /// What is still to be heard, for each brick.
    pub fn asks(&self) -> BTreeMap<BrickId, Vec<Need>> {
        let mut asks: BTreeMap<BrickId, Vec<Need>> = BTreeMap::new();
        for need in self.round.iter().flat_map(|round| &round.needs) {
            asks.entry(need.brick).or_default().push(*need);
        }
        asks
    }

    /// A host says what a brick of its has on stable storage.
    pub fn heard(&mut self, stable: &[Need]) {
        for Need { ring, partition, brick, sequence } in stable {
            let known = self.stable.entry((*ring, *partition, *brick)).or_default();
            *known = (*known).max(*sequence);
        }
        self.go_on();
    }

    /// Everything before this may go, once a checkpoint has covered it.
    pub fn free_to(&self) -> Lsn {
        self.free_to
    }

    fn go_on(&mut self) {
        let Some(round) = &mut self.round else { return };
        let stable = &self.stable;
        let known = |need: &Need| stable.get(&(need.ring, need.partition, need.brick)).copied().unwrap_or_default();
        round.needs.retain(|need| known(need) < need.sequence);
        if round.needs.is_empty() {
            self.free_to = self.free_to.max(round.upto);
            self.round = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::map::Member;

    const OWN: BrickId = BrickId(1);
    const OTHER: BrickId = BrickId(2);

    #[test]
    fn a_journal_goes_only_up_to_what_every_member_has_stable() {
        let member = |brick| Member { brick, incarnation: Incarnation(1) };
        let view = View { epoch: Epoch(1), leader: OWN, members: vec![member(OWN), member(OTHER)] };
        let (ring, partition) = (RingId(1), PartitionNumber(0));
        let position = LogPosition { epoch: Epoch(1), sequence: Sequence(5) };
        let mut retention = Retention::default();
        retention.begin(OWN, (Lsn(100), vec![(ring, partition, position)]), |_, _| Some(&view));
        let need = |sequence| Need { ring, partition, brick: OTHER, sequence: Sequence(sequence) };
        assert_eq!(retention.asks(), BTreeMap::from([(OTHER, vec![need(5)])]));
        retention.heard(&[need(4)]);
        assert_eq!((retention.free_to(), retention.is_waiting()), (Lsn(0), true));
        retention.heard(&[need(6)]);
        assert_eq!((retention.free_to(), retention.is_waiting()), (Lsn(100), false));
        retention.begin(OWN, (Lsn(200), vec![(ring, partition, position)]), |_, _| Some(&view));
        assert_eq!(retention.free_to(), Lsn(200), "what is known to be stable is not asked for again");
    }
}
