//! A brick that has lost records which other journals have discarded. It does not lead, and the other members' data
//! stays.

use super::heal::{form, heal, outgrow_journals, set_view, write};
use super::*;
use hekate_proto::map::Member;

const DATA: std::ops::Range<u128> = 10..18;

/// The brick that has lost records. It is not brick 0, which a default value would name.
const OLDER: u32 = 1;

const SEGMENT_BYTES: u64 = 512 << 10;

/// A ring in which brick `OLDER` is a copy from before the last records. `forgetful`: the views are forgetful.
fn ring_with_an_older_brick(forgetful: bool) -> TestRing {
    let mut storages = storages();
    let mut ring = open(&storages);
    let older = storages[OLDER as usize].copy();
    outgrow_journals(&mut ring);
    DATA.for_each(|data| drop(write(&mut ring, data, 0, vec![7; 100]).unwrap()));
    ring.rest();
    ring.write_home();
    let op_id = ring.op_id;
    drop(ring);
    storages[OLDER as usize] = older;
    start_again(&storages, op_id, forgetful)
}

/// Opens the ring again and makes changes as its clients.
fn start_again(storages: &[MemoryStorage], op_id: u64, forgetful: bool) -> TestRing {
    let mut ring = unstarted(bricks_on(storages, SEGMENT_BYTES));
    ring.views.iter_mut().for_each(|view| view.forgetful = forgetful);
    ring.op_id = op_id;
    ring.start_all();
    ring
}

fn partition(ring: &TestRing, number: u32) -> &Partition {
    let (partition, brick) = (PartitionNumber(number), ring.views[number as usize].leader);
    &ring.partitions[&Address { partition, brick }]
}

fn placed(number: u32) -> [u128; 2] {
    [number, number + 1].map(|brick| u128::from(brick % BRICKS))
}

/// The members without the older brick.
fn stays(number: u32) -> Vec<u128> {
    placed(number).into_iter().filter(|brick| *brick != u128::from(OLDER)).collect()
}

/// True if the older brick lacks records of the partition.
fn lacks(ring: &TestRing, number: u32) -> bool {
    let position = |member: &Member| ring.bricks[member.brick.0 as usize].position(RING, PartitionNumber(number));
    let positions: Vec<_> = ring.views[number as usize].members.iter().map(position).collect();
    positions[0] != positions[1]
}

/// A leader that is older lets the member with more records lead, and a member that cannot be sent its records is
/// reported.
fn check_that_the_older_one_is_left_out(ring: &mut TestRing, why: &str) {
    let older = BrickId(u128::from(OLDER));
    for number in 0..COUNT {
        let mut view = ring.views[number as usize].clone();
        if !lacks(ring, number) {
            assert!(partition(ring, number).serves());
            continue;
        }
        if view.leader == older {
            let heir = partition(ring, number).yields_to().unwrap();
            assert!(!partition(ring, number).serves() && view.has_member(heir), "partition {number}");
            view = View { epoch: Epoch(view.epoch.0 + 1), leader: heir, opened: false, ..view };
            set_view(ring, number, view);
            (0..20).for_each(|_| ring.tick());
        }
        assert_eq!((partition(ring, number).unfed_members(), partition(ring, number).yields_to()), (vec![older], None));
        assert!(!partition(ring, number).serves());
    }
    assert!(ring.notes.iter().any(|note| note.contains(why)), "{:?}", ring.notes);
}

/// Forms the views that servers would form: one without the older brick, and one with it as a learner until it has
/// healed.
fn check_that_the_older_one_is_healed(ring: &mut TestRing) {
    for number in 0..COUNT {
        let (placed, stays) = (placed(number), stays(number));
        form(ring, number, stays[0], &stays, &[]);
        if stays.len() < placed.len() {
            form(ring, number, stays[0], &stays, &[u128::from(OLDER)]);
            heal(ring, number);
            // The older replica may be sent the records that were made since.
            let is_here = |data: &u128| {
                let shard = ShardId { volume: VOLUME, data: DataId(*data), index: 0 };
                shard.position().partition(COUNT) == PartitionNumber(number)
            };
            DATA.filter(is_here).for_each(|data| drop(write(ring, data, 4096, vec![8; 100]).unwrap()));
            form(ring, number, stays[0], &placed, &[]);
        }
        assert!(partition(ring, number).serves());
    }
    ring.rest();
    check_that_all_is_there(ring);
}

fn check_that_all_is_there(ring: &mut TestRing) {
    for data in DATA {
        let op = DataOp::ReadShard { data: DataId(data), index: 0, offset: 0, length: 100 };
        assert_eq!(ring.read(Op::Data { op }), Ok(Reply::Data { bytes: vec![7; 100].into() }));
    }
}

#[test]
fn who_has_lost_records_neither_leads_nor_stays_though_the_others_no_longer_have_them() {
    let mut ring = ring_with_an_older_brick(false);
    assert!(ring.branches.contains("levelling: a member has lost records"));
    let older = BrickId(u128::from(OLDER));
    for number in 0..COUNT {
        let (view, replica) = (ring.views[number as usize].clone(), partition(&ring, number));
        let at = PartitionNumber(number);
        match view.leader {
            // The older brick has stopped with an error that names it.
            leader if leader == older => {
                assert!(!replica.serves() && replica.failure().is_some(), "partition {number}")
            }
            leader if view.has_member(older) => {
                assert_eq!([replica.failed_members(), replica.unfed_members()].concat(), [older], "partition {number}");
                let position = |brick: BrickId| ring.bricks[brick.0 as usize].position(RING, at);
                assert!(position(leader) >= position(older));
            }
            _ => assert!(replica.serves()),
        }
    }
    assert!(ring.notes.iter().any(|note| note.contains("lacks records of partition")), "{:?}", ring.notes);
    assert!(ring.bricks[OLDER as usize].sync(ring.bricks[OLDER as usize].end()).is_err(), "the brick has stopped");
    // The views that servers would form.
    for number in 0..COUNT {
        form(&mut ring, number, stays(number)[0], &stays(number), &[]);
    }
    check_that_all_is_there(&mut ring);
}

/// A ring in which brick `OLDER` lacks the last records. Those are damaged in the other journals, with what follows
/// them in their segments; the bricks' data is intact.
fn ring_with_rotten_journals() -> TestRing {
    let mut storages = storages();
    let mut ring = open(&storages);
    DATA.for_each(|data| drop(write(&mut ring, data, 0, vec![6; 100]).unwrap()));
    ring.rest();
    let older = storages[OLDER as usize].copy();
    let begins: Vec<u64> = ring.bricks.iter().map(|brick| brick.end().0).collect();
    DATA.for_each(|data| drop(write(&mut ring, data, 0, vec![7; 100]).unwrap()));
    ring.rest();
    ring.write_home();
    let ends: Vec<u64> = ring.bricks.iter().map(|brick| brick.end().0).collect();
    let op_id = ring.op_id;
    drop(ring);
    for ((storage, begin), end) in storages.iter().zip(begins).zip(ends) {
        // The damage may hit any record there.
        (begin + 9..end)
            .step_by(40)
            .for_each(|at| storage.flip_bit("journal/segment-001", (at % SEGMENT_BYTES) as usize));
    }
    storages[OLDER as usize] = older;
    start_again(&storages, op_id, false)
}

/// A forgetful view continues with one member, the one with most records. A leader with fewer records yields to that
/// one, and does not stop its brick, as it would stop again at each opening.
#[test]
fn who_has_lost_records_lets_another_lead_a_view_without_memory() {
    let mut ring = ring_with_an_older_brick(true);
    check_that_the_older_one_is_left_out(&mut ring, "lacks records of partition");
    check_that_the_older_one_is_healed(&mut ring);
}

/// The coordinator may execute the call that makes a learner a member long after it was sent.
#[test]
fn a_learner_that_becomes_a_member_late_lets_another_lead_and_goes_on() {
    let mut ring = open(&storages());
    let (number, older) = (OLDER, u128::from(OLDER));
    let (placed, heir) = (placed(number), stays(number)[0]);
    form(&mut ring, number, heir, &[heir], &[]);
    outgrow_journals(&mut ring);
    DATA.for_each(|data| drop(write(&mut ring, data, 0, vec![7; 100]).unwrap()));
    ring.rest();
    let epoch = Epoch(ring.views[number as usize].epoch.0 + 1);
    let members =
        placed.map(|brick| Member { brick: BrickId(brick), incarnation: ring.bricks[brick as usize].incarnation() });
    let view = View { opened: false, ..View::new(epoch, BrickId(older), members.to_vec()) };
    set_view(&mut ring, number, view);
    (0..20).for_each(|_| ring.tick());
    let replica = partition(&ring, number);
    assert_eq!((replica.yields_to(), replica.failure().is_none()), (Some(BrickId(heir)), true));
    let brick = &ring.bricks[OLDER as usize];
    assert!(brick.sync(brick.end()).is_ok(), "the brick goes on");
    // The views that servers would form.
    form(&mut ring, number, heir, &[heir], &[older]);
    heal(&mut ring, number);
    form(&mut ring, number, heir, &placed, &[]);
    assert!(partition(&ring, number).serves());
    ring.rest();
    check_that_all_is_there(&mut ring);
}

#[test]
fn whom_a_rotten_journal_cannot_feed_is_compared() {
    let mut ring = ring_with_rotten_journals();
    assert!(ring.branches.contains("levelling: a journal that has rotted hides records"));
    assert!(ring.branches.contains("levelling: another one is to lead"));
    assert!(!ring.branches.contains("levelling: a member has lost records"), "no member has lost records");
    check_that_the_older_one_is_left_out(&mut ring, "journal/segment-001 at offset");
    check_that_the_older_one_is_healed(&mut ring);
}

/// The brick has stopped for another reason.
#[test]
fn a_member_whose_brick_has_stopped_is_reported_by_its_leaders() {
    let mut ring = open(&storages());
    let stopped = BrickId(u128::from(OLDER));
    ring.bricks[OLDER as usize].poison(&Error::Poisoned { what: "a test".into() });
    DATA.for_each(|data| drop(write(&mut ring, data, 0, vec![7; 100])));
    let mut failures = 0;
    for number in 0..COUNT {
        let view = ring.views[number as usize].clone();
        let leader = partition(&ring, number);
        let failed = leader.failed_members();
        failures += failed.len();
        let may_fail = view.leader != stopped && view.has_member(stopped);
        assert!(failed.is_empty() || may_fail && failed == [stopped], "partition {number}: {failed:?}");
        assert_eq!((leader.waits_for(), leader.unfed_members()), (failed, vec![]));
    }
    assert!(failures > 0);
    let name = stopped.text();
    assert!(
        ring.notes.iter().any(|note| note.contains(&format!("brick {name} appends no more records"))),
        "{:?}",
        ring.notes
    );
}

/// A session may answer by what it was pledged before, so nobody else may see that it is gone.
#[test]
fn reads_after_a_loss_wait_until_sessions_have_forgotten() {
    let (session, get_root) = (SessionId(1), Op::Inode { op: InodeOp::GetAttr { inode: ROOT } });
    for (is_loss, forgets) in [(false, true), (true, true), (true, false)] {
        let storages = storages();
        open(&storages).rest();
        let mut ring = unstarted(bricks_on(&storages, SEGMENT_BYTES));
        ring.views.iter_mut().for_each(|view| view.forgetful = is_loss);
        ring.sessions.push(session);
        ring.start_all();
        let (root, token) = (ring.leader(ROOT.position()), Token(1));
        let around = TestRing::around(&ring.bricks, &ring.views, root, ring.clock);
        let at_once = ring.partitions[&root].read(&around, &ring.ask(), &get_root);
        assert_eq!(at_once.is_some(), !is_loss, "only a loss changes what was there");
        if !is_loss {
            continue;
        }
        ring.handle(root, Event::Request { token, ask: ring.ask(), op: get_root.clone() });
        ring.tick();
        assert_eq!(ring.answers.remove(&token), None, "a client may show what was lost");
        if forgets {
            let term = ring.partitions[&root].pledge_term(session, Duration::ZERO).unwrap();
            ring.handle(root, Event::Forgot { session, volume: VOLUME, term, mapped: Vec::new() });
        } else {
            ring.clock += 6_000_000_000;
        }
        ring.tick();
        assert!(matches!(ring.answers.remove(&token), Some(Ok(_))), "forgets: {forgets}");
    }
}
