//! Who is to be in a partition's next view: a pure decision over what the coordinator says.
//!
//! `docs/fast-lane.md` has the rules; their numbers are in the code. Whoever acts on it writes the view in one
//! compare-and-swap with the record that it was decided on.

#[cfg(test)]
mod tests;

use crate::records::RingInfo;
use hekate_proto::map::{Member, View};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Clocks may run apart by a twentieth: 0.15 s in 3 s.
const DRIFT: u32 = 20;

/// How long a server serves after it has said that it lives, by its own clock: when by the coordinator's the lease is over, it must be
/// by the server's.
pub fn serves_for(lease: Duration) -> Duration {
    if is_planted(Bug::LeaseTooLong) { lease * 2 } else { lease - lease / DRIFT }
}

/// How long by its own clock one waits for another's lease to end that the coordinator does not know to be over.
pub fn waits_for(lease: Duration) -> Duration {
    lease + lease / DRIFT
}

/// A brick, as its server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrickSeen {
    /// Its server.
    pub server: ServerId,
    /// In which life it is.
    pub incarnation: Incarnation,
    /// Its server lives, and the brick has not stopped.
    pub serves: bool,
}

/// What is known when it is decided.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// All bricks.
    pub bricks: BTreeMap<BrickId, BrickSeen>,
    /// Members that a leader here has not reached for too long, or that have failed.
    pub lost: BTreeSet<(PartitionNumber, BrickId)>,
    /// Members that a leader here cannot give what they lack: they are to learn.
    pub unfed: BTreeSet<(PartitionNumber, BrickId)>,
    /// Who is to lead instead of a leader here, that lacks what it has.
    pub heirs: BTreeMap<PartitionNumber, BrickId>,
    /// Partitions whose view without memory is to have its leader for its only member, as that says.
    pub alone: BTreeSet<PartitionNumber>,
    /// Learners that have everything, as a leader here says.
    pub whole: BTreeSet<(PartitionNumber, BrickId)>,
}

/// A view that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// It.
    pub view: View,
    /// Servers that may record it, the first at once, each other one when those before it have had their time.
    pub servers: Vec<ServerId>,
}

/// Why there is none though one is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// The view is as it should be.
    Fine,
    /// This one is to come.
    Due(Due),
    /// None of those who may lead serves; these are waited for.
    Waits(Vec<BrickId>),
}

impl Seen {
    /// That a leader cannot reach it says nothing of a life that its view does not name: there it would not be heard.
    fn serves(&self, partition: PartitionNumber, now: &View, brick: BrickId) -> bool {
        let is_named = || now.all().any(|member| member.brick == brick && self.remembers(member));
        let is_lost = self.lost.contains(&(partition, brick)) && is_named();
        self.bricks.get(&brick).is_some_and(|seen| seen.serves) && !is_lost
    }

    fn is_unfed(&self, partition: PartitionNumber, brick: BrickId) -> bool {
        self.unfed.contains(&(partition, brick))
    }

    fn incarnation(&self, brick: BrickId) -> Incarnation {
        self.bricks.get(&brick).map_or(Incarnation(0), |seen| seen.incarnation)
    }

    /// Whether it has what it had then.
    fn remembers(&self, member: &Member) -> bool {
        self.incarnation(member.brick) == member.incarnation || is_planted(Bug::IncarnationIgnored)
    }

    /// Whether its leader may have a lease in it still: in another life it has not.
    pub fn remembers_leader(&self, view: &View) -> bool {
        view.members
            .iter()
            .any(|member| member.brick == view.leader && self.incarnation(view.leader) == member.incarnation)
    }

    fn member(&self, brick: BrickId) -> Member {
        Member { brick, incarnation: self.incarnation(brick) }
    }
}

/// See the module.
pub fn outlook(ring: &RingInfo, partition: PartitionNumber, seen: &Seen) -> Outlook {
    let (Some(now), Some(opened)) = (ring.view(partition), ring.opened(partition)) else { return Outlook::Fine };
    let opened = if is_planted(Bug::UnopenedViewEntitles) { now } else { opened };
    let placed = ring.placed(partition);
    let serves = |brick: BrickId| seen.serves(partition, now, brick);
    // Rules 15 and 17: of the view that began last, with memory.
    let entitled = opened.members.iter().filter(|member| seen.remembers(member)).map(|member| member.brick);
    let entitled: Vec<BrickId> =
        if is_planted(Bug::ExcludedReplicaLeads) { placed.clone() } else { entitled.collect() };
    let mut members: Vec<BrickId> = entitled.iter().copied().filter(|brick| serves(*brick)).collect();
    keep_left_out(&mut members, (now, opened), ring.members_min(), partition, seen);
    // Rule 18: without any, all of them must be there.
    let forgetful = entitled.is_empty();
    if forgetful && opened.members.iter().all(|member| serves(member.brick)) {
        members = opened.members.iter().map(|member| member.brick).collect();
    }
    let alone = forgetful && goes_on_alone(&mut members, (now, opened), partition, seen);
    if !forgetful {
        keep_unfed(&mut members, now, partition, seen);
    }
    if members.is_empty() {
        let missing = |member: &&Member| !serves(member.brick) && (forgetful || entitled.contains(&member.brick));
        return Outlook::Waits(opened.members.iter().filter(missing).map(|member| member.brick).collect());
    }
    let sources = members.clone();
    // Who learnt from those who have lost their memory since may have records that they lack, and in no journal: it learns anew.
    let joining = if forgetful { Vec::new() } else { who_join((now, opened), &members, partition, seen) };
    members.extend(&joining);
    let rank = |brick: &BrickId| placed.iter().position(|known| known == brick).unwrap_or(placed.len());
    members.sort_by_key(rank);
    members.dedup();
    let heir =
        seen.heirs.get(&partition).copied().filter(|heir| sources.contains(heir) && !is_planted(Bug::UnfedLeaderStays));
    let leader = heir.unwrap_or_else(|| choose_leader(&members, &joining, now, &placed));
    leave_replaced(&mut members, &placed, ring.copies as usize, [leader, now.leader]);
    // Until a view of one has begun all may be needed again, also who is being replaced.
    let before = opened.members.iter().map(|member| member.brick).filter(|brick| alone && !placed.contains(brick));
    let others = placed.iter().copied().chain(before);
    let learners: Vec<BrickId> = others.filter(|brick| serves(*brick) && !members.contains(brick)).collect();
    // With too few it can only heal somebody; as long as nobody is there, those who are away keep their right.
    let too_few = members.len() < ring.members_min();
    if too_few && learners.is_empty() {
        let all: BTreeSet<BrickId> = opened.members.iter().map(|member| member.brick).chain(placed).collect();
        return Outlook::Waits(all.into_iter().filter(|brick| !members.contains(brick)).collect());
    }
    let whole = is_planted(Bug::FastWritesInPartialView)
        || learners.is_empty() && placed.iter().all(|brick| members.contains(brick));
    let view = View {
        epoch: Epoch(now.epoch.0 + 1),
        leader,
        members: members.iter().map(|brick| seen.member(*brick)).collect(),
        learners: learners.into_iter().map(|brick| seen.member(brick)).collect(),
        too_few,
        opened: false,
        forgetful,
        // Rule 19.
        losses: opened.losses + u32::from(forgetful && !is_planted(Bug::LossNotCounted)),
        whole,
    };
    if is_same(now, &view) {
        return Outlook::Fine;
    }
    Outlook::Due(Due { view, servers: in_turn(now.leader, &sources, seen) })
}

/// Who has learnt everything.
fn who_join(
    (now, opened): (&View, &View),
    members: &[BrickId],
    partition: PartitionNumber,
    seen: &Seen,
) -> Vec<BrickId> {
    // Rule 22: in the view that is led now.
    let has_learnt = |learner: &&Member| {
        now.opened
            && (seen.whole.contains(&(partition, learner.brick)) || is_planted(Bug::LearnerPromotedEarly))
            && seen.serves(partition, now, learner.brick)
            && seen.remembers(learner)
            && members.contains(&now.leader)
    };
    let learnt = now.learners.iter().filter(has_learnt);
    let joined = now.members.iter().filter(|member| has_joined(member, (now, opened), partition, seen));
    learnt.chain(joined).map(|one| one.brick).collect()
}

/// Who had learnt everything when the view was formed stays, until that has begun; whoever leads a forced one had not. Not who cannot be
/// given what came last, or cannot give what it got.
fn has_joined(member: &Member, (now, opened): (&View, &View), partition: PartitionNumber, seen: &Seen) -> bool {
    let follows = !now.opened && now.members.iter().any(|member| opened.has_member(member.brick));
    let is_even = !seen.is_unfed(partition, member.brick) && seen.heirs.get(&partition) != Some(&member.brick);
    let is_there = seen.serves(partition, now, member.brick) && seen.remembers(member);
    follows && !opened.has_member(member.brick) && is_there && is_even
}

/// Whom a leader did not reach it left out, and nobody else knows why: who may come back by right does so as a learner, once that
/// view has begun. If it cannot begin, nobody is left out by it.
fn keep_left_out(
    members: &mut Vec<BrickId>,
    (now, opened): (&View, &View),
    members_min: usize,
    partition: PartitionNumber,
    seen: &Seen,
) {
    let joined = now.members.iter().filter(|member| has_joined(member, (now, opened), partition, seen)).count();
    let stay = members.iter().filter(|brick| now.has_member(**brick)).count() + joined;
    if !now.opened && members.contains(&now.leader) && stay >= members_min {
        members.retain(|brick| now.has_member(*brick));
    }
}

/// Who cannot be given what it lacks learns (rule 18 of replication.md); with too few without it, it is one of the learners until that
/// view has begun, though it might come back by right: it would be found again, and views formed without end.
fn keep_unfed(members: &mut Vec<BrickId>, now: &View, partition: PartitionNumber, seen: &Seen) {
    members.retain(|brick| !seen.is_unfed(partition, *brick));
    if !now.opened && now.too_few && members.contains(&now.leader) && !is_planted(Bug::UnfedReplicaReturns) {
        members.retain(|brick| !now.has_learner(*brick));
    }
}

/// Rule L20: replicas that lost their memory may differ in what no log has. The leader that found so decides, and the others learn
/// from it; until its view has begun all of them are needed, if it loses its memory again. (A forced view lacks some of them.) So it is
/// where one of them cannot be given what it lacks.
fn goes_on_alone(
    members: &mut Vec<BrickId>,
    (now, opened): (&View, &View),
    partition: PartitionNumber,
    seen: &Seen,
) -> bool {
    let is_in = |member: &Member| now.has_member(member.brick) || now.has_learner(member.brick);
    let is_alone = now.members.len() == 1 && opened.members.iter().all(is_in);
    let cannot_feed =
        members.iter().any(|brick| seen.is_unfed(partition, *brick)) && !is_planted(Bug::UnfedReplicaReturns);
    let is_wanted = now.forgetful && !now.opened && (is_alone || seen.alone.contains(&partition) || cannot_feed);
    let is_meant = || now.members.iter().any(|member| member.brick == now.leader && seen.remembers(member));
    let alone = is_wanted && members.contains(&now.leader) && is_meant();
    if alone {
        *members = vec![now.leader];
    }
    alone
}

/// Who leads stays, but for one who joins and is to lead if it can, or if another has taken its place.
fn choose_leader(members: &[BrickId], joining: &[BrickId], now: &View, placed: &[BrickId]) -> BrickId {
    let is_replaced = !placed.contains(&now.leader) && placed.contains(&members[0]);
    let is_due = now.opened && (joining.contains(&members[0]) || is_replaced);
    if members.contains(&now.leader) && !is_due { now.leader } else { members[0] }
}

/// Who was replaced goes when the one that takes its place has come. While it leads it stays: its lease would be waited for.
fn leave_replaced(members: &mut Vec<BrickId>, placed: &[BrickId], copies: usize, leaders: [BrickId; 2]) {
    while members.len() > copies {
        let goes = |brick: &BrickId| !placed.contains(brick) && !leaders.contains(brick);
        let Some(last) = members.iter().rposition(goes) else { break };
        members.remove(last);
    }
}

/// The operator's way around rules 15 and 18 where those who are entitled are gone for good: this brick leads, alone at first, and
/// what it lacks is lost. Whoever is entitled and comes before the view has begun takes precedence.
pub fn forced(ring: &RingInfo, partition: PartitionNumber, brick: BrickId, seen: &Seen) -> Result<View> {
    let name = format!("partition {}/{partition}", ring.ring);
    let (Some(now), Some(opened)) = (ring.view(partition), ring.opened(partition)) else {
        return Err(Error::invalid(format!("there is no {name}")));
    };
    let Outlook::Waits(_) = outlook(ring, partition, seen) else {
        return Err(Error::invalid(format!("{name} waits for nobody who is gone; there is nothing to force")));
    };
    let placed = ring.placed(partition);
    if !placed.contains(&brick) || !seen.serves(partition, now, brick) {
        return Err(Error::invalid(format!("brick {} does not serve {name}", brick.text())));
    }
    let learners = placed.into_iter().filter(|other| *other != brick && seen.serves(partition, now, *other));
    Ok(View {
        epoch: Epoch(now.epoch.0 + 1),
        leader: brick,
        members: vec![seen.member(brick)],
        learners: learners.map(|other| seen.member(other)).collect(),
        too_few: ring.members_min() > 1,
        opened: false,
        forgetful: true,
        losses: opened.losses + 1,
        whole: false,
    })
}

/// Whether two views differ by their epochs only, and by whether they have begun.
fn is_same(one: &View, other: &View) -> bool {
    let sorted = |all: &[Member]| all.iter().map(|one| (one.brick, one.incarnation)).collect::<BTreeSet<_>>();
    one.leader == other.leader
        && sorted(&one.members) == sorted(&other.members)
        && sorted(&one.learners) == sorted(&other.learners)
}

/// The servers of those who have what was acknowledged, the leader's first; last that of a leader who has not, since it alone knows what
/// that has found.
fn in_turn(leader: BrickId, sources: &[BrickId], seen: &Seen) -> Vec<ServerId> {
    let mut servers: Vec<ServerId> = Vec::new();
    let first = std::iter::once(leader).filter(|brick| sources.contains(brick));
    let last = std::iter::once(leader).filter(|brick| seen.bricks.get(brick).is_some_and(|seen| seen.serves));
    for brick in first.chain(sources.iter().copied()).chain(last) {
        let server = seen.bricks.get(&brick).map(|seen| seen.server);
        if let Some(server) = server.filter(|server| !servers.contains(server)) {
            servers.push(server);
        }
    }
    servers
}

impl RingInfo {
    /// The view is the next one; the one that began last stays beside it until it has begun.
    pub fn form(&mut self, partition: PartitionNumber, view: View) {
        let Some(now) = self.views.get_mut(partition.0 as usize) else { return };
        let before = std::mem::replace(now, view);
        if before.opened {
            self.opened.insert(partition.0, before);
        }
    }

    /// The view has begun, if nobody formed another one. -> whether it has.
    pub fn open(&mut self, partition: PartitionNumber, epoch: Epoch) -> bool {
        let now = self.views.get_mut(partition.0 as usize);
        let Some(view) = now.filter(|view| view.epoch == epoch && !view.opened) else { return false };
        view.opened = true;
        self.opened.remove(&partition.0);
        true
    }
}
