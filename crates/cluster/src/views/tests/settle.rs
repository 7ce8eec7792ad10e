//! Changes of views end: whatever records members lack or cannot provide, some view begins, and then no other one is
//! due.

use super::*;
use proptest::test_runner::TestCaseError;

/// Number of the last acknowledged record, which all members have.
const ACKNOWLEDGED: u64 = 10;
const VIEWS_MAX: usize = 60;
const CHECKS_MIN: u32 = 3;

/// The state of replicas that views depend on.
struct Replicas {
    ring: RingInfo,
    seen: Seen,
    /// Number of each replica's last record.
    last: BTreeMap<BrickId, u64>,
    /// Number of the last record that each replica cannot read from its journal; it can read later ones.
    hidden: BTreeMap<BrickId, u64>,
    /// Number of checks of this view so far: before it begins, a lease must be over.
    checks: (Epoch, u32),
}

impl Replicas {
    fn can_give(&self, from: BrickId, to: BrickId) -> bool {
        self.last[&to] >= self.hidden[&from]
    }

    fn is_heard(&self, member: &Member) -> bool {
        self.seen.bricks[&member.brick].serves && self.seen.remembers(member)
    }

    /// Lets the leader of the current view do what it can, and returns what it reports.
    fn led(&mut self) -> Seen {
        let (now, mut seen) = (self.ring.views[0].clone(), self.seen.clone());
        if !now.members.iter().all(|member| self.is_heard(member)) {
            return seen;
        }
        let others = || now.members.iter().map(|member| member.brick).filter(|brick| *brick != now.leader);
        let gives = others().filter(|brick| self.can_give(*brick, now.leader)).map(|brick| self.last[&brick]).max();
        let own = self.last[&now.leader].max(gives.unwrap_or_default());
        self.last.insert(now.leader, own);
        if let Some(best) = others().max_by_key(|brick| (self.last[brick], *brick)).filter(|best| self.last[best] > own)
        {
            seen.heirs.insert(AT, best);
            return seen;
        }
        let lack: Vec<BrickId> = others().filter(|brick| self.last[brick] < own).collect();
        let unfed: Vec<BrickId> = lack.iter().copied().filter(|brick| !self.can_give(now.leader, *brick)).collect();
        if !unfed.is_empty() {
            seen.unfed.extend(unfed.into_iter().map(|brick| (AT, brick)));
            return seen;
        }
        self.last.extend(lack.into_iter().map(|brick| (brick, own)));
        if self.checks.0 != now.epoch {
            self.checks = (now.epoch, 0);
        }
        self.checks.1 += 1;
        if !now.opened && self.checks.1 < CHECKS_MIN {
            return seen;
        } else if self.ring.open(AT, now.epoch) {
            assert!(now.losses > 0 || own >= ACKNOWLEDGED, "{now:?} begins without what was acknowledged");
        } else {
            // Learners that are healed lack the records that were made since.
            let heard = now.learners.iter().filter(|learner| self.is_heard(learner)).map(|learner| learner.brick);
            let learnt: Vec<BrickId> = heard.collect();
            seen.whole.extend(learnt.iter().map(|brick| (AT, *brick)));
            self.last.extend(learnt.into_iter().map(|brick| (brick, own)));
            self.last.insert(now.leader, own + 1);
        }
        seen
    }
}

#[derive(Debug, Clone)]
struct Replica {
    last: u64,
    hides: bool,
    is_dead: bool,
    forgets: bool,
}

fn replica() -> impl Strategy<Value = Replica> {
    let rarely = || prop::sample::select(vec![true, false, false, false]);
    let last = ACKNOWLEDGED..ACKNOWLEDGED + 4;
    (last, any::<bool>(), rarely(), rarely()).prop_map(|(last, hides, is_dead, forgets)| Replica {
        last,
        hides,
        is_dead,
        forgets,
    })
}

/// Follows the views until no other one is due. `rots` and `deaths` have the number of a look, and the replica that
/// cannot read its journal, or is dead, from then on.
///
/// # Errors
///
/// Why that is not so, or a server that cannot know a report acts on it.
fn settle(
    all: &[Replica],
    members_min: u32,
    forgotten: u64,
    rots: &[(usize, u32)],
    deaths: &[(usize, u32)],
) -> std::result::Result<(), TestCaseError> {
    let (mut ring, mut seen) = ring(all.len() as u32);
    ring.min_replicas = Some(members_min.min(all.len() as u32));
    let (mut last, mut hidden) = (BTreeMap::new(), BTreeMap::new());
    for (number, replica) in (0..).zip(all) {
        let one = seen.bricks.get_mut(&brick(number)).unwrap();
        one.serves = !replica.is_dead;
        one.incarnation.0 += u64::from(replica.forgets);
        let end = if replica.forgets { forgotten } else { replica.last };
        last.insert(brick(number), end);
        hidden.insert(brick(number), if replica.hides { end } else { 0 });
    }
    let mut replicas = Replicas { ring, seen, last, hidden, checks: (Epoch(0), 0) };
    for look in 0..VIEWS_MAX {
        for (_, number) in rots.iter().filter(|(at, _)| *at == look) {
            let last = replicas.last.clone();
            replicas.hidden.extend(last.get_key_value(&brick(*number)));
        }
        for (_, number) in deaths.iter().filter(|(at, _)| *at == look) {
            replicas.seen.bricks.entry(brick(*number)).and_modify(|one| one.serves = false);
        }
        let was_open = replicas.ring.views[0].opened;
        let reported = replicas.led();
        match outlook(&replicas.ring, AT, &reported) {
            Outlook::Due(due) => {
                let servers: Vec<ServerId> = due.servers;
                let reports = reported.unfed.len() + reported.heirs.len() + reported.whole.len();
                let own = replicas.seen.bricks[&replicas.ring.views[0].leader].server;
                prop_assert!(reports == 0 || servers.contains(&own), "only the leader's server knows");
                replicas.ring.form(AT, due.view);
            }
            Outlook::Fine if look > 20 && was_open && replicas.ring.views[0].opened => return Ok(()),
            Outlook::Fine => {}
            Outlook::Waits(missing) => {
                let dead = missing.iter().filter(|brick| !replicas.seen.bricks[*brick].serves).count();
                let (now, opened) = (&replicas.ring.views[0], replicas.ring.opened(AT));
                prop_assert!(dead > 0, "waits for {missing:?}: {now:?} {opened:?}");
                let may_lead = |member: &&Member| replicas.seen.remembers(member) && replicas.is_heard(member);
                let leaders = opened.map_or(0, |view| view.members.iter().filter(may_lead).count());
                let alive = replicas.seen.bricks.values().filter(|one| one.serves).count();
                let is_enough = leaders > 0 && alive >= replicas.ring.members_min();
                prop_assert!(!is_enough, "waits, though {leaders} of {alive} may lead: {now:?} {opened:?}");
                return Ok(());
            }
        }
    }
    prop_assert!(false, "views without end: {:?}", replicas.ring.views[0]);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn changes_of_views_end(
        all in prop::collection::vec(replica(), 1..6),
        members_min in 1u32..6,
        forgotten in 0u64..12,
        rots in prop::collection::vec((0usize..20, 0u32..5), 0..6),
        deaths in prop::collection::vec((0usize..20, 0u32..5), 0..3),
    ) {
        settle(&all, members_min, forgotten, &rots, &deaths)?;
    }
}

/// The first replica joins and leads, and cannot read the record that the last one lacks.
#[test]
fn a_leader_that_has_joined_leaves_out_a_member() {
    let replica = |forgets| Replica { last: ACKNOWLEDGED, hides: false, is_dead: false, forgets };
    let all = [replica(true), replica(false), replica(false)];
    for members_min in 1..=3 {
        settle(&all, members_min, ACKNOWLEDGED + 1, &[(0, 0)], &[]).unwrap();
    }
}
