//! Decides which replicas are in a partition's next view: a pure function of what the coordinator and the leaders
//! know.
//!
//! `docs/fast-lane.md` has the rules; the code names them by number. The server that acts on a decision writes the
//! view in one compare-and-swap with the record that was decided on.

#[cfg(test)]
mod tests;

use crate::records::RingInfo;
use hekate_proto::map::{Member, View};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Divisor of the allowed drift between two clocks: a twentieth, 0.15 s in 3 s.
const DRIFT: u32 = 20;

/// How long a server serves after it has renewed its lease, by its own clock. This time must end by the server's clock
/// before the lease ends by the coordinator's.
pub fn serves_for(lease: Duration) -> Duration {
    if is_planted(Bug::LeaseTooLong) { lease * 2 } else { lease - lease / DRIFT }
}

/// How long a server waits, by its own clock, for the end of another server's lease if the coordinator cannot say when
/// that lease ends.
pub fn waits_for(lease: Duration) -> Duration {
    lease + lease / DRIFT
}

/// State of a brick, as its server reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrickSeen {
    pub server: ServerId,
    pub incarnation: Incarnation,
    /// True if the server lives and the brick has not stopped.
    pub serves: bool,
}

/// The state of servers and bricks, as the server that decides the next view has read and observed it.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub bricks: BTreeMap<BrickId, BrickSeen>,
    /// Members that a leader of this server could not reach for too long, or that failed.
    pub lost: BTreeSet<(PartitionNumber, BrickId)>,
    /// Members that lack records which a leader of this server cannot provide. They must become learners.
    pub unfed: BTreeSet<(PartitionNumber, BrickId)>,
    /// Replicas that must lead instead of a leader of this server, because it lacks records that they have.
    pub heirs: BTreeMap<PartitionNumber, BrickId>,
    /// Partitions whose forgetful view must have its leader as the only member, as that leader reports.
    pub alone: BTreeSet<PartitionNumber>,
    /// Learners that have everything, as a leader of this server reports.
    pub whole: BTreeSet<(PartitionNumber, BrickId)>,
}

/// A view that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    pub view: View,
    /// Servers that may record the view: the first one at once, each later one if those before it have not done so in
    /// their time.
    pub servers: Vec<ServerId>,
}

/// Result of the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// No other view is due.
    Fine,
    /// This view must be formed.
    Due(Due),
    /// No replica that may lead is available. The decision waits for these bricks.
    Waits(Vec<BrickId>),
}

impl Seen {
    /// True if the brick can be in a view. A leader's report that it cannot reach a member does not count for an
    /// incarnation that its view does not name, since the leader rejects messages of that incarnation.
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

    /// True if the brick has the data that it had as this member: its incarnation is the same.
    fn remembers(&self, member: &Member) -> bool {
        self.incarnation(member.brick) == member.incarnation || is_planted(Bug::IncarnationIgnored)
    }

    /// True if the leader of the view may still hold a lease in it: its incarnation is the same.
    pub fn remembers_leader(&self, view: &View) -> bool {
        view.members
            .iter()
            .any(|member| member.brick == view.leader && self.incarnation(view.leader) == member.incarnation)
    }

    fn member(&self, brick: BrickId) -> Member {
        Member { brick, incarnation: self.incarnation(brick) }
    }
}

/// Decides the next view of a partition.
pub fn outlook(ring: &RingInfo, partition: PartitionNumber, seen: &Seen) -> Outlook {
    let (Some(now), Some(opened)) = (ring.view(partition), ring.opened(partition)) else { return Outlook::Fine };
    let opened = if is_planted(Bug::UnopenedViewEntitles) { now } else { opened };
    let views = Views { now, opened };
    let placed = ring.placed(partition);
    let serves = |brick: BrickId| seen.serves(partition, now, brick);
    // F15 and F17: members of the last view that has begun, with their memory.
    let entitled = opened.members.iter().filter(|member| seen.remembers(member)).map(|member| member.brick);
    let entitled: Vec<BrickId> =
        if is_planted(Bug::ExcludedReplicaLeads) { placed.clone() } else { entitled.collect() };
    let mut members: Vec<BrickId> = entitled.iter().copied().filter(|brick| serves(*brick)).collect();
    exclude_left_out(&mut members, views, ring.members_min(), partition, seen);
    // F18: if no member has its memory, the next view is forgetful, and all members must be available.
    let forgetful = entitled.is_empty();
    if forgetful && opened.members.iter().all(|member| serves(member.brick)) {
        members = opened.members.iter().map(|member| member.brick).collect();
    }
    let alone = forgetful && continues_alone(&mut members, views, partition, seen);
    if !forgetful {
        exclude_unfed(&mut members, views, partition, seen);
    }
    if members.is_empty() {
        let missing = |member: &&Member| !serves(member.brick) && (forgetful || entitled.contains(&member.brick));
        return Outlook::Waits(opened.members.iter().filter(missing).map(|member| member.brick).collect());
    }
    let sources = members.clone();
    // A learner of members that have lost their memory since may have records that they and their journals lack: it
    // learns again.
    let joining = if forgetful { Vec::new() } else { joining_replicas(views, &members, partition, seen) };
    members.extend(&joining);
    let rank = |brick: &BrickId| placed.iter().position(|known| known == brick).unwrap_or(placed.len());
    members.sort_by_key(rank);
    members.dedup();
    let heir =
        seen.heirs.get(&partition).copied().filter(|heir| sources.contains(heir) && !is_planted(Bug::UnfedLeaderStays));
    let leader = heir.unwrap_or_else(|| choose_leader(&members, &joining, now, &placed));
    drop_replaced(&mut members, &placed, ring.copies as usize, [leader, now.leader]);
    // Until a view with a single member has begun, all replicas may be needed again, including those being replaced.
    let before = opened.members.iter().map(|member| member.brick).filter(|brick| alone && !placed.contains(brick));
    let others = placed.iter().copied().chain(before);
    let learners: Vec<BrickId> = others.filter(|brick| serves(*brick) && !members.contains(brick)).collect();
    // With too few members the view can only heal learners. Without any learner no view is formed, so that
    // unavailable members keep their right to lead.
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
        // F19.
        losses: opened.losses + u32::from(forgetful && !is_planted(Bug::LossNotCounted)),
        whole,
    };
    if is_same(now, &view) {
        return Outlook::Fine;
    }
    Outlook::Due(Due { view, servers: recording_order(now.leader, &sources, seen) })
}

/// The two views of a partition that decide the next one.
#[derive(Clone, Copy)]
struct Views<'a> {
    /// The last one that was formed.
    now: &'a View,
    /// The last one that has begun.
    opened: &'a View,
}

/// The replicas that become members, or that became members of a view that has not begun.
fn joining_replicas(views: Views<'_>, members: &[BrickId], partition: PartitionNumber, seen: &Seen) -> Vec<BrickId> {
    let now = views.now;
    // A learner that has everything joins only in the view that is led now.
    let has_learnt = |learner: &&Member| {
        now.opened
            && (seen.whole.contains(&(partition, learner.brick)) || is_planted(Bug::LearnerPromotedEarly))
            && seen.serves(partition, now, learner.brick)
            && seen.remembers(learner)
            && members.contains(&now.leader)
    };
    let learnt = now.learners.iter().filter(has_learnt);
    let joined = now.members.iter().filter(|member| has_joined(member, views, partition, seen));
    learnt.chain(joined).map(|one| one.brick).collect()
}

/// True if the member joined with a view that has not begun, and stays. A member that leads a forced view did not join.
/// A member that cannot be sent the latest records, or cannot provide the records that it alone has, does not stay.
fn has_joined(member: &Member, views: Views<'_>, partition: PartitionNumber, seen: &Seen) -> bool {
    let Views { now, opened } = views;
    let follows = !now.opened && now.members.iter().any(|member| opened.has_member(member.brick));
    let is_even = !seen.is_unfed(partition, member.brick) && seen.heirs.get(&partition) != Some(&member.brick);
    let is_there = seen.serves(partition, now, member.brick) && seen.remembers(member);
    follows && !opened.has_member(member.brick) && is_there && is_even
}

/// True if the leader of the last formed view is entitled to be a member, or joined with that view and another of its
/// members, which is entitled, stays.
fn leader_stays(members: &[BrickId], views: Views<'_>, partition: PartitionNumber, seen: &Seen) -> bool {
    let now = views.now;
    let mut joined = now.members.iter().filter(|member| has_joined(member, views, partition, seen));
    members.contains(&now.leader)
        || members.iter().any(|brick| now.has_member(*brick)) && joined.any(|member| member.brick == now.leader)
}

/// Removes members that the last formed view left out, while it has not begun. Its leader could not reach them; other
/// servers do not have that report. Those that are entitled come back as learners, once the view has begun. A view that
/// cannot begin leaves out no member.
fn exclude_left_out(
    members: &mut Vec<BrickId>,
    views: Views<'_>,
    members_min: usize,
    partition: PartitionNumber,
    seen: &Seen,
) {
    let now = views.now;
    let joined = now.members.iter().filter(|member| has_joined(member, views, partition, seen)).count();
    let stay = members.iter().filter(|brick| now.has_member(**brick)).count() + joined;
    if !now.opened && leader_stays(members, views, partition, seen) && stay >= members_min {
        members.retain(|brick| now.has_member(*brick));
    }
}

/// Removes members that lack records which the leader cannot provide: they learn (R18 of docs/replication.md). If too
/// few members remain, such a replica stays a learner until that view has begun, although it is entitled to be a
/// member: otherwise the leader would report it again, and views would be formed without end.
fn exclude_unfed(members: &mut Vec<BrickId>, views: Views<'_>, partition: PartitionNumber, seen: &Seen) {
    let now = views.now;
    members.retain(|brick| !seen.is_unfed(partition, *brick));
    let begins_with_few = !now.opened && now.too_few && leader_stays(members, views, partition, seen);
    if begins_with_few && !is_planted(Bug::UnfedReplicaReturns) {
        members.retain(|brick| !now.has_learner(*brick));
    }
}

/// L20: replicas that lost their memory may differ in changes that no log has. The leader that found such a difference
/// becomes the only member, and the others learn from it. Until its view has begun all of them are needed, in case it
/// loses its memory again. (A forced view lacks some of them.) It also becomes the only member if another member cannot
/// be sent the records that it lacks.
fn continues_alone(members: &mut Vec<BrickId>, views: Views<'_>, partition: PartitionNumber, seen: &Seen) -> bool {
    let Views { now, opened } = views;
    let is_in = |member: &Member| now.has_member(member.brick) || now.has_learner(member.brick);
    let is_alone = now.members.len() == 1 && opened.members.iter().all(is_in);
    let cannot_feed =
        members.iter().any(|brick| seen.is_unfed(partition, *brick)) && !is_planted(Bug::UnfedReplicaReturns);
    let is_wanted = now.forgetful && !now.opened && (is_alone || seen.alone.contains(&partition) || cannot_feed);
    let leader_remembers = || now.members.iter().any(|member| member.brick == now.leader && seen.remembers(member));
    let alone = is_wanted && members.contains(&now.leader) && leader_remembers();
    if alone {
        *members = vec![now.leader];
    }
    alone
}

/// The current leader stays, unless a joining replica is preferred, or the leader was replaced.
fn choose_leader(members: &[BrickId], joining: &[BrickId], now: &View, placed: &[BrickId]) -> BrickId {
    let is_replaced = !placed.contains(&now.leader) && placed.contains(&members[0]);
    let is_due = now.opened && (joining.contains(&members[0]) || is_replaced);
    if members.contains(&now.leader) && !is_due { now.leader } else { members[0] }
}

/// Removes replaced members while there are more members than copies. A leader stays, because the next view would wait
/// for its lease.
fn drop_replaced(members: &mut Vec<BrickId>, placed: &[BrickId], copies: usize, leaders: [BrickId; 2]) {
    while members.len() > copies {
        let goes = |brick: &BrickId| !placed.contains(brick) && !leaders.contains(brick);
        let Some(last) = members.iter().rposition(goes) else { break };
        members.remove(last);
    }
}

/// The view that an operator forces, against F15 and F18, if the entitled replicas are lost for good: this brick
/// leads, alone at first, and what it lacks is lost. An entitled replica that comes back before the view has begun
/// takes precedence.
///
/// # Errors
/// `Invalid` if the partition does not exist, waits for no brick, or is not served by this brick.
pub fn forced(ring: &RingInfo, partition: PartitionNumber, brick: BrickId, seen: &Seen) -> Result<View> {
    let name = format!("partition {}/{partition}", ring.ring);
    let (Some(now), Some(opened)) = (ring.view(partition), ring.opened(partition)) else {
        return Err(Error::invalid(format!("there is no {name}")));
    };
    let Outlook::Waits(_) = outlook(ring, partition, seen) else {
        return Err(Error::invalid(format!("{name} waits for no missing brick; there is nothing to force")));
    };
    let placed = ring.placed(partition);
    if !placed.contains(&brick) || !seen.serves(partition, now, brick) {
        return Err(Error::invalid(format!("brick {} does not serve {name}; name one that does", brick.text())));
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

/// True if two views differ only by their epochs and by whether they have begun.
fn is_same(one: &View, other: &View) -> bool {
    let sorted = |all: &[Member]| all.iter().map(|one| (one.brick, one.incarnation)).collect::<BTreeSet<_>>();
    one.leader == other.leader
        && sorted(&one.members) == sorted(&other.members)
        && sorted(&one.learners) == sorted(&other.learners)
}

/// The servers that may record the view: those of replicas with all acknowledged records, the leader's first. The
/// server of a leader without them comes last; it alone knows what that leader found.
fn recording_order(leader: BrickId, sources: &[BrickId], seen: &Seen) -> Vec<ServerId> {
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
    /// Makes `view` the last formed one. The last view that has begun is kept beside it until it begins.
    pub fn form(&mut self, partition: PartitionNumber, view: View) {
        let Some(now) = self.views.get_mut(partition.0 as usize) else { return };
        let before = std::mem::replace(now, view);
        if before.opened {
            self.opened.insert(partition.0, before);
        }
    }

    /// Notes that the view has begun, unless another one was formed. True if it was noted.
    pub fn open(&mut self, partition: PartitionNumber, epoch: Epoch) -> bool {
        let now = self.views.get_mut(partition.0 as usize);
        let Some(view) = now.filter(|view| view.epoch == epoch && !view.opened) else { return false };
        view.opened = true;
        self.opened.remove(&partition.0);
        true
    }
}
