//! Sequences of views under failures of servers and losses of memory.

mod settle;

use super::*;
use crate::records::Domain;
use proptest::prelude::*;

const AT: PartitionNumber = PartitionNumber(0);

fn brick(number: u32) -> BrickId {
    BrickId(u128::from(number))
}

/// One partition on `count` bricks, each on a server of its own.
fn ring(count: u32) -> (RingInfo, Seen) {
    let member = |number| Member { brick: brick(number), incarnation: Incarnation(1) };
    let view = View::new(Epoch(1), brick(0), (0..count).map(member).collect());
    let seen = |number| {
        let seen = BrickSeen { server: ServerId(number + 1), incarnation: Incarnation(1), serves: true };
        (brick(number), seen)
    };
    let bricks = (0..count).map(seen).collect();
    (RingInfo::new(RingId(1), "p", count, Domain::Server, vec![view]), Seen { bricks, ..Seen::default() })
}

fn due(ring: &RingInfo, seen: &Seen) -> Due {
    match outlook(ring, AT, seen) {
        Outlook::Due(due) => due,
        other => panic!("{other:?}"),
    }
}

fn bricks(of: &[Member]) -> Vec<BrickId> {
    of.iter().map(|member| member.brick).collect()
}

fn form(ring: &mut RingInfo, seen: &Seen) -> View {
    let view = due(ring, seen).view;
    ring.form(AT, view.clone());
    view
}

fn open(ring: &mut RingInfo) {
    let epoch = ring.views[0].epoch;
    assert!(ring.open(AT, epoch));
    assert!(!ring.open(AT, epoch), "once");
}

#[test]
fn what_all_have_lost_is_counted_once_it_is_led_again() {
    let (mut ring, mut seen) = ring(2);
    for number in 0..2 {
        seen.bricks.get_mut(&brick(number)).unwrap().incarnation = Incarnation(2);
    }
    // The first view that is formed does not begin: that is still one loss.
    assert_eq!(form(&mut ring, &seen).losses, 1);
    seen.bricks.get_mut(&brick(1)).unwrap().incarnation = Incarnation(3);
    let view = form(&mut ring, &seen);
    assert_eq!((view.losses, view.forgetful), (1, true));
    open(&mut ring);
    // A view with a member that has its memory has no loss.
    seen.bricks.get_mut(&brick(0)).unwrap().incarnation = Incarnation(3);
    let view = form(&mut ring, &seen);
    assert_eq!((view.losses, view.forgetful), (1, false));
}

/// The leader found that others may lack changes that no log has.
#[test]
fn if_all_lost_their_memory_the_leader_can_become_the_only_member() {
    let (mut ring, mut seen) = ring(3);
    for number in 0..3 {
        seen.bricks.get_mut(&brick(number)).unwrap().incarnation = Incarnation(2);
    }
    let others = seen.clone();
    assert_eq!(form(&mut ring, &seen).members.len(), 3);
    seen.alone.insert(AT);
    let view = form(&mut ring, &seen);
    assert_eq!((bricks(&view.members), bricks(&view.learners)), (vec![brick(0)], vec![brick(1), brick(2)]));
    assert_eq!((view.forgetful, view.losses, view.too_few), (true, 1, true));
    assert_eq!(outlook(&ring, AT, &others), Outlook::Fine, "though no other server was notified");
    // The leader fails first: all are needed again. If it loses its memory, the decision starts over.
    let mut without = others.clone();
    without.bricks.get_mut(&brick(0)).unwrap().serves = false;
    assert_eq!(outlook(&ring, AT, &without), Outlook::Waits(vec![brick(0)]));
    let mut anew = others.clone();
    anew.bricks.get_mut(&brick(0)).unwrap().incarnation = Incarnation(3);
    assert_eq!(due(&ring, &anew).view.members.len(), 3);
    open(&mut ring);
    assert_eq!(outlook(&ring, AT, &others), Outlook::Fine, "until they have everything");
    let mut healed = others.clone();
    healed.whole.extend([(AT, brick(1)), (AT, brick(2))]);
    let view = due(&ring, &healed).view;
    assert_eq!((view.members.len(), view.forgetful, view.losses), (3, false, 1));
}

fn members_and_learners(view: &View) -> (Vec<BrickId>, Vec<BrickId>) {
    (bricks(&view.members), bricks(&view.learners))
}

#[test]
fn a_member_that_cannot_be_fed_learns() {
    let (mut ring, seen) = ring(3);
    let mut reported = seen.clone();
    reported.unfed.insert((AT, brick(2)));
    let view = form(&mut ring, &reported);
    assert_eq!(members_and_learners(&view), (vec![brick(0), brick(1)], vec![brick(2)]));
    // The leader of that view has yet to find it again.
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
    open(&mut ring);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
    // After it has joined again it lacks the latest records, and those cannot be read either.
    let mut healed = seen.clone();
    healed.whole.insert((AT, brick(2)));
    assert_eq!(form(&mut ring, &healed).members.len(), 3);
    let view = form(&mut ring, &reported);
    assert_eq!(members_and_learners(&view), (vec![brick(0), brick(1)], vec![brick(2)]));
}

/// Two replicas that alternate would form views without end.
#[test]
fn if_too_few_members_can_be_fed_all_others_learn_from_one() {
    let (mut ring, seen) = ring(3);
    let mut reported = seen.clone();
    reported.unfed.extend([(AT, brick(1)), (AT, brick(2))]);
    let alone = (vec![brick(0)], vec![brick(1), brick(2)]);
    let view = form(&mut ring, &reported);
    assert_eq!((members_and_learners(&view), view.too_few, view.losses), (alone.clone(), true, 0));
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine, "though both are entitled to be members");
    // Until that view has begun both are still entitled.
    let mut without = seen.clone();
    without.bricks.get_mut(&brick(0)).unwrap().serves = false;
    assert_eq!(bricks(&due(&ring, &without).view.members), [brick(1), brick(2)]);
    open(&mut ring);
    assert_eq!(outlook(&ring, AT, &without), Outlook::Waits(vec![brick(0)]));
    let mut healed = seen.clone();
    healed.whole.insert((AT, brick(1)));
    assert_eq!(form(&mut ring, &healed).members.len(), 2);
    let view = form(&mut ring, &reported);
    assert_eq!(members_and_learners(&view), alone, "a replica that had joined does not stay either");
}

/// A dead member cannot be asked to learn.
#[test]
fn a_member_that_cannot_be_fed_learns_although_another_one_is_dead() {
    let (mut ring, mut seen) = ring(3);
    seen.bricks.get_mut(&brick(2)).unwrap().serves = false;
    assert_eq!(form(&mut ring, &seen).members.len(), 2);
    let mut reported = seen.clone();
    reported.unfed.insert((AT, brick(1)));
    let view = form(&mut ring, &reported);
    assert_eq!((members_and_learners(&view), view.too_few), ((vec![brick(0)], vec![brick(1)]), true));
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
    // The dead member is back: with it there are enough.
    seen.bricks.get_mut(&brick(2)).unwrap().serves = true;
    assert_eq!(members_and_learners(&form(&mut ring, &seen)), (vec![brick(0), brick(2)], vec![brick(1)]));
}

/// A replica that has just joined counts as a member.
#[test]
fn a_member_that_joined_stays_when_another_one_cannot_be_fed() {
    let (mut ring, mut seen) = ring(3);
    seen.bricks.get_mut(&brick(2)).unwrap().serves = false;
    form(&mut ring, &seen);
    open(&mut ring);
    seen.bricks.get_mut(&brick(2)).unwrap().serves = true;
    form(&mut ring, &seen);
    open(&mut ring);
    let mut healed = seen.clone();
    healed.whole.insert((AT, brick(2)));
    assert_eq!(form(&mut ring, &healed).members.len(), 3);
    let mut reported = seen.clone();
    reported.unfed.insert((AT, brick(1)));
    let view = form(&mut ring, &reported);
    assert_eq!((members_and_learners(&view), view.too_few), ((vec![brick(0), brick(2)], vec![brick(1)]), false));
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
}

/// Members that can be fed stay, although they are too few.
/// A member that was left out is needed once the other one is gone, though a replica that has joined leads.
#[test]
fn a_member_that_was_left_out_returns_when_no_other_one_is_entitled() {
    for members_min in 1..=2 {
        let (mut ring, mut seen) = ring(3);
        ring.min_replicas = Some(members_min);
        seen.bricks.get_mut(&brick(0)).unwrap().incarnation = Incarnation(2);
        form(&mut ring, &seen);
        open(&mut ring);
        seen.whole.insert((AT, brick(0)));
        assert_eq!(form(&mut ring, &seen).leader, brick(0), "it joins and leads");
        seen.whole.clear();
        seen.unfed.insert((AT, brick(2)));
        assert_eq!(members_and_learners(&form(&mut ring, &seen)), (vec![brick(0), brick(1)], vec![brick(2)]));
        seen.unfed.clear();
        assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
        seen.bricks.get_mut(&brick(1)).unwrap().serves = false;
        assert!(bricks(&due(&ring, &seen).view.members).contains(&brick(2)), "{members_min}");
    }
}

#[test]
fn of_five_members_those_that_can_be_fed_stay() {
    let (mut ring, seen) = ring(5);
    let mut reported = seen.clone();
    reported.unfed.extend([(AT, brick(3)), (AT, brick(4))]);
    let view = form(&mut ring, &reported);
    assert_eq!((view.members.len(), view.learners.len(), view.too_few), (3, 2, true));
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
}

/// A replica that joins as the leader may lack the latest records, or have records that the others lack.
#[test]
fn a_joining_replica_that_cannot_be_reconciled_learns_again() {
    let (mut ring, mut seen) = ring(2);
    seen.bricks.get_mut(&brick(0)).unwrap().incarnation = Incarnation(2);
    assert_eq!(form(&mut ring, &seen).leader, brick(1));
    open(&mut ring);
    let mut healed = seen.clone();
    healed.whole.insert((AT, brick(0)));
    assert_eq!(form(&mut ring, &healed).leader, brick(0), "it joins, and is the first");
    let again = (vec![brick(1)], vec![brick(0)]);
    // It lacks records that the other one cannot provide.
    let (mut yields, mut early) = (ring.clone(), seen.clone());
    early.heirs.insert(AT, brick(1));
    let found = due(&yields, &early);
    assert_eq!((found.view.leader, found.view.members.len()), (brick(1), 2));
    assert!(found.servers.contains(&ServerId(1)), "only the server of the leader has the report");
    yields.form(AT, found.view);
    assert_eq!(outlook(&yields, AT, &seen), Outlook::Fine, "nor does it lead before that has begun");
    early = seen.clone();
    early.unfed.insert((AT, brick(0)));
    assert_eq!(members_and_learners(&form(&mut yields, &early)), again);
    // The other one lacks records that this one cannot provide, and no other server knows.
    ring.views[0].leader = brick(1);
    early = seen.clone();
    early.heirs.insert(AT, brick(0));
    assert_eq!(members_and_learners(&form(&mut ring, &early)), again);
}

#[test]
fn without_any_memory_all_others_learn_from_a_leader_that_cannot_feed_them() {
    let (mut ring, mut seen) = ring(3);
    for number in 0..3 {
        seen.bricks.get_mut(&brick(number)).unwrap().incarnation = Incarnation(2);
    }
    form(&mut ring, &seen);
    let mut reported = seen.clone();
    reported.unfed.insert((AT, brick(2)));
    let view = form(&mut ring, &reported);
    assert_eq!(members_and_learners(&view), (vec![brick(0)], vec![brick(1), brick(2)]));
    assert_eq!((view.forgetful, view.losses), (true, 1));
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
    // A report of a leader that has lost its memory since is ignored.
    let mut anew = reported.clone();
    anew.bricks.get_mut(&brick(0)).unwrap().incarnation = Incarnation(3);
    assert_eq!(due(&ring, &anew).view.members.len(), 3);
}

#[test]
fn a_leader_that_lacks_records_yields_to_the_replica_that_has_them() {
    let (mut ring, seen) = ring(3);
    let mut reported = seen.clone();
    reported.heirs.insert(AT, brick(2));
    let found = due(&ring, &reported);
    assert_eq!((found.view.leader, found.view.members.len(), found.servers[0]), (brick(2), 3, ServerId(1)));
    ring.form(AT, found.view);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine, "the view that was formed stays");
    open(&mut ring);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
    reported.heirs.insert(AT, brick(1));
    reported.bricks.get_mut(&brick(1)).unwrap().serves = false;
    assert_eq!(due(&ring, &reported).view.leader, brick(2), "a replica that does not serve cannot lead");
}

#[test]
fn a_replica_that_is_not_entitled_leads_only_if_it_is_forced() {
    let (mut ring, mut seen) = ring(2);
    let serves = |seen: &mut Seen, number, is_there| seen.bricks.get_mut(&brick(number)).unwrap().serves = is_there;
    let refused = |ring: &RingInfo, seen: &Seen| forced(ring, AT, brick(1), seen).unwrap_err().to_string();
    assert!(refused(&ring, &seen).contains("nothing to force"));
    serves(&mut seen, 1, false);
    form(&mut ring, &seen);
    open(&mut ring);
    serves(&mut seen, 0, false);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Waits(vec![brick(0)]));
    assert!(refused(&ring, &seen).contains("does not serve"));
    serves(&mut seen, 1, true);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Waits(vec![brick(0)]), "by itself it leads nothing");
    let view = forced(&ring, AT, brick(1), &seen).unwrap();
    assert_eq!((view.epoch, bricks(&view.members), view.losses), (Epoch(3), vec![brick(1)], 1));
    ring.form(AT, view);
    // A replica with all records comes back before the view has begun: it leads, and nothing is lost.
    let mut early = (ring.clone(), seen.clone());
    serves(&mut early.1, 0, true);
    let view = form(&mut early.0, &early.1);
    assert_eq!((bricks(&view.members), bricks(&view.learners)), (vec![brick(0)], vec![brick(1)]));
    open(&mut ring);
    serves(&mut seen, 0, true);
    let view = form(&mut ring, &seen);
    assert_eq!((bricks(&view.members), bricks(&view.learners)), (vec![brick(1)], vec![brick(0)]));
}

#[test]
fn a_member_lost_in_an_earlier_incarnation_is_healed_in_its_next() {
    let (mut ring, mut seen) = ring(3);
    for number in 1..3 {
        // Its machine restarted, and the leader waits for its previous incarnation.
        seen.bricks.get_mut(&brick(number)).unwrap().incarnation = Incarnation(2);
        seen.lost.insert((AT, brick(number)));
    }
    let view = form(&mut ring, &seen);
    assert_eq!((bricks(&view.members), bricks(&view.learners)), (vec![brick(0)], vec![brick(1), brick(2)]));
    assert!(view.too_few && !view.forgetful);
}

/// One server cannot reach another one; to all others both are available.
#[test]
fn a_member_that_was_not_reached_is_left_out_until_the_view_without_it_begins() {
    let (mut ring, mut seen) = ring(3);
    let others = seen.clone();
    seen.lost.insert((AT, brick(2)));
    let view = form(&mut ring, &seen);
    assert_eq!((bricks(&view.members), view.opened), (vec![brick(0), brick(1)], false));
    let view = form(&mut ring, &others);
    assert_eq!((bricks(&view.members), bricks(&view.learners)), (vec![brick(0), brick(1)], vec![brick(2)]));
    assert_eq!(outlook(&ring, AT, &others), Outlook::Fine);
    // The leader fails before its view begins: the replica that was left out may be needed.
    let mut without = others.clone();
    without.bricks.get_mut(&brick(0)).unwrap().serves = false;
    assert_eq!(bricks(&due(&ring, &without).view.members), [brick(1), brick(2)]);
    // Without the other member there would be too few.
    let mut without = others.clone();
    without.bricks.get_mut(&brick(1)).unwrap().serves = false;
    assert_eq!(bricks(&due(&ring, &without).view.members), [brick(0), brick(2)]);
    open(&mut ring);
    assert_eq!(outlook(&ring, AT, &others), Outlook::Fine, "until it has everything");
}

#[test]
fn a_server_with_a_slow_clock_serves_no_longer_than_its_lease() {
    let (lease, twentieth) = (Duration::from_secs(3), 1.05);
    assert!(serves_for(lease).mul_f64(twentieth) <= lease, "its clock is slow");
    assert!(waits_for(lease).div_f64(twentieth) >= lease, "the clock of the waiting server is fast");
}

#[test]
fn a_replaced_brick_is_removed_once_the_new_one_has_everything_and_another_one_leads() {
    let (mut ring, mut seen) = ring(3);
    ring.copies = 2;
    ring.views[0].members.pop();
    ring.placed[0].pop();
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
    assert_eq!(ring.replace(brick(0), brick(2)), 1);
    assert_eq!((ring.placed(AT), ring.holders(AT)), (vec![brick(2), brick(1)], vec![brick(2), brick(1), brick(0)]));
    // It is the preferred leader, but leads only once it has everything.
    let view = form(&mut ring, &seen);
    assert_eq!((view.leader, bricks(&view.learners)), (brick(1), vec![brick(2)]));
    assert_eq!(bricks(&view.members), [brick(1), brick(0)]);
    open(&mut ring);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
    seen.whole.insert((AT, brick(2)));
    let view = form(&mut ring, &seen);
    assert_eq!((view.leader, bricks(&view.members)), (brick(2), vec![brick(2), brick(1)]));
    open(&mut ring);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
    assert!(!ring.has(brick(0)));
    // A dead brick is removed before that.
    seen.whole.clear();
    ring.replace(brick(1), brick(0));
    seen.bricks.get_mut(&brick(1)).unwrap().serves = false;
    let view = form(&mut ring, &seen);
    assert_eq!((bricks(&view.members), bricks(&view.learners)), (vec![brick(2)], vec![brick(0)]));
}

#[test]
fn a_dead_member_is_left_out_and_comes_back_as_a_learner() {
    let (mut ring, mut seen) = ring(2);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
    seen.bricks.get_mut(&brick(0)).unwrap().serves = false;
    let next = due(&ring, &seen);
    assert_eq!(next.servers, [ServerId(2)]);
    let view = form(&mut ring, &seen);
    assert_eq!((view.epoch, view.leader, bricks(&view.members)), (Epoch(2), brick(1), vec![brick(1)]));
    assert!(!view.opened && !view.forgetful && view.learners.is_empty());
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine, "it has only to begin");
    open(&mut ring);
    seen.bricks.get_mut(&brick(0)).unwrap().serves = true;
    let view = form(&mut ring, &seen);
    assert_eq!(
        (view.leader, bricks(&view.members), bricks(&view.learners)),
        (brick(1), vec![brick(1)], vec![brick(0)])
    );
    open(&mut ring);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine, "it has to learn");
    seen.whole.insert((AT, brick(0)));
    let view = form(&mut ring, &seen);
    assert_eq!((view.leader, bricks(&view.members)), (brick(0), vec![brick(0), brick(1)]), "it leads again");
    assert!(view.learners.is_empty());
    seen.whole.clear();
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine, "it has only to begin");
    open(&mut ring);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
}

#[test]
fn a_view_that_did_not_begin_entitles_nobody() {
    let (mut ring, mut seen) = ring(2);
    seen.bricks.get_mut(&brick(0)).unwrap().serves = false;
    form(&mut ring, &seen);
    // Before the view has begun, the other member comes back and this one fails.
    seen.bricks.get_mut(&brick(0)).unwrap().serves = true;
    seen.bricks.get_mut(&brick(1)).unwrap().serves = false;
    let view = form(&mut ring, &seen);
    assert_eq!((view.epoch, bricks(&view.members)), (Epoch(3), vec![brick(0)]));
    open(&mut ring);
    // From now on only the first one may lead.
    seen.bricks.get_mut(&brick(0)).unwrap().serves = false;
    seen.bricks.get_mut(&brick(1)).unwrap().serves = true;
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Waits(vec![brick(0)]));
}

#[test]
fn a_member_that_lost_its_memory_learns() {
    let (mut ring, mut seen) = ring(2);
    seen.bricks.get_mut(&brick(0)).unwrap().incarnation = Incarnation(2);
    let view = form(&mut ring, &seen);
    assert_eq!(
        (view.leader, bricks(&view.members), bricks(&view.learners)),
        (brick(1), vec![brick(1)], vec![brick(0)])
    );
    assert!(!view.forgetful);
}

#[test]
fn without_any_memory_all_members_must_be_available() {
    let (mut ring, mut seen) = ring(2);
    for number in 0..2 {
        seen.bricks.get_mut(&brick(number)).unwrap().incarnation = Incarnation(2);
    }
    seen.bricks.get_mut(&brick(1)).unwrap().serves = false;
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Waits(vec![brick(1)]));
    seen.bricks.get_mut(&brick(1)).unwrap().serves = true;
    let view = form(&mut ring, &seen);
    assert!(view.forgetful && bricks(&view.members) == vec![brick(0), brick(1)]);
    assert_eq!(view.members[0].incarnation, Incarnation(2));
    // The view did not begin when one of them lost power again.
    seen.bricks.get_mut(&brick(0)).unwrap().incarnation = Incarnation(3);
    let view = form(&mut ring, &seen);
    assert!(view.forgetful && view.members[0].incarnation == Incarnation(3));
    open(&mut ring);
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine);
}

/// The leader lost records whose effects the learner has, and no journal has these records.
#[test]
fn a_learner_of_a_member_that_lost_its_memory_learns_again() {
    let (mut ring, mut seen) = ring(2);
    seen.bricks.get_mut(&brick(1)).unwrap().incarnation = Incarnation(2);
    assert_eq!(bricks(&form(&mut ring, &seen).learners), vec![brick(1)]);
    open(&mut ring);
    seen.whole.insert((AT, brick(1)));
    assert_eq!(bricks(&form(&mut ring, &seen).members), vec![brick(0), brick(1)]);
    seen.whole.clear();
    seen.bricks.get_mut(&brick(0)).unwrap().incarnation = Incarnation(2);
    let view = form(&mut ring, &seen);
    assert!(view.forgetful && view.losses == 1);
    assert_eq!((bricks(&view.members), bricks(&view.learners)), (vec![brick(0)], vec![brick(1)]));
}

#[test]
fn with_three_copies_one_may_be_missing_and_not_two() {
    let (mut ring, mut seen) = ring(3);
    seen.bricks.get_mut(&brick(2)).unwrap().serves = false;
    let view = form(&mut ring, &seen);
    assert_eq!((view.leader, bricks(&view.members)), (brick(0), vec![brick(0), brick(1)]));
    open(&mut ring);
    seen.bricks.get_mut(&brick(1)).unwrap().serves = false;
    assert_eq!(outlook(&ring, AT, &seen), Outlook::Waits(vec![brick(1), brick(2)]));
    // It comes back without its memory: it is healed, and until then no request is served.
    *seen.bricks.get_mut(&brick(1)).unwrap() =
        BrickSeen { server: ServerId(2), incarnation: Incarnation(2), serves: true };
    let view = form(&mut ring, &seen);
    assert_eq!((view.too_few, bricks(&view.members), bricks(&view.learners)), (true, vec![brick(0)], vec![brick(1)]));
    open(&mut ring);
    seen.whole.insert((AT, brick(1)));
    let view = form(&mut ring, &seen);
    assert_eq!((view.too_few, bricks(&view.members)), (false, vec![brick(0), brick(1)]));
}

#[derive(Debug, Clone)]
enum Happens {
    Stops(u32),
    Serves(u32),
    LosesMemory(u32),
    Learns,
    Form,
    Open,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        2 => (0u32..3).prop_map(Happens::Stops),
        3 => (0u32..3).prop_map(Happens::Serves),
        1 => (0u32..3).prop_map(Happens::LosesMemory),
        2 => Just(Happens::Learns),
        5 => Just(Happens::Form),
        4 => Just(Happens::Open),
    ]
}

proptest! {
    /// A view that begins has a member that has its memory of the last begun view. Otherwise it is forgetful and has
    /// all members of that view. A replica that was left out comes back only as a learner.
    #[test]
    fn views_follow_each_other(copies in 1u32..4, all in prop::collection::vec(happens(), 1..60)) {
        let (mut ring, mut seen) = ring(copies);
        for one in all {
            match one {
                Happens::Stops(number) => seen.bricks.entry(brick(number)).and_modify(|brick| brick.serves = false).or_insert(BrickSeen { server: ServerId(9), incarnation: Incarnation(1), serves: false }).serves = false,
                Happens::Serves(number) => drop(seen.bricks.entry(brick(number)).and_modify(|brick| brick.serves = true)),
                Happens::LosesMemory(number) => drop(seen.bricks.entry(brick(number)).and_modify(|brick| brick.incarnation.0 += 1)),
                Happens::Learns => seen.whole = ring.views[0].learners.iter().map(|learner| (AT, learner.brick)).collect(),
                Happens::Form => {
                    if let Outlook::Due(Due { view, servers }) = outlook(&ring, AT, &seen) {
                        let before = ring.opened(AT).unwrap().clone();
                        prop_assert!(view.has_member(view.leader) && !servers.is_empty() && !view.opened);
                        prop_assert!(view.epoch > ring.views[0].epoch && view.too_few == (view.members.len() < ring.members_min()));
                        let with_memory = before.members.iter().filter(|member| view.members.contains(member)).count();
                        if view.forgetful && with_memory == 0 {
                            prop_assert!(before.members.iter().all(|member| view.has_member(member.brick)));
                        } else {
                            prop_assert!(with_memory > 0);
                        }
                        for member in view.members.iter().filter(|member| !before.has_member(member.brick)) {
                            let has_joined = !ring.views[0].opened && ring.views[0].members.contains(member);
                            prop_assert!(has_joined || seen.whole.contains(&(AT, member.brick)), "{member:?} has not learnt");
                        }
                        ring.form(AT, view);
                        // Learners start over in each view.
                        seen.whole.clear();
                    }
                }
                Happens::Open => {
                    let epoch = ring.views[0].epoch;
                    ring.open(AT, epoch);
                }
            }
            ring.clone().checked().unwrap();
        }
    }
}

/// One of the members that lost their memory is being replaced by another brick.
#[test]
fn the_leader_can_become_the_only_member_although_another_one_is_being_replaced() {
    for with_new in [true, false] {
        let (mut ring, mut seen) = ring(3);
        ring.copies = 2;
        ring.views[0].members.pop();
        ring.placed[0].pop();
        ring.replace(brick(0), brick(2));
        form(&mut ring, &seen);
        open(&mut ring);
        for number in 0..3 {
            seen.bricks.get_mut(&brick(number)).unwrap().incarnation = Incarnation(2);
        }
        seen.bricks.get_mut(&brick(2)).unwrap().serves = with_new;
        let view = form(&mut ring, &seen);
        assert!(view.forgetful);
        // Its leader finds that the members may differ.
        let mut alone = seen.clone();
        alone.alone.insert(AT);
        let view = form(&mut ring, &alone);
        assert_eq!(bricks(&view.members), [brick(1)]);
        assert_eq!(outlook(&ring, AT, &seen), Outlook::Fine, "it may begin");
    }
}
