//! Members that come back to a leader, and a leader that comes back to its members.

use super::closing::fill_journal;
use super::drive::deliver_but;
use super::fast::{FIRST, Lane, bytes};
use super::heal::{form, heal, set_view};
use super::*;

fn set_owner(ring: &mut TestRing, leader: Address, uid: u32) -> Token {
    set_owner_as(ring, leader, uid, false)
}

fn set_owner_as(ring: &mut TestRing, leader: Address, uid: u32, early: bool) -> Token {
    ring.op_id += 256;
    let changes = AttrChanges { uid: Some(uid), ..Default::default() };
    let (token, op) = (Token(ring.op_id), Op::Inode { op: InodeOp::SetAttr { inode: ROOT, changes } });
    let ask = Ask { early, ..ring.ask() };
    ring.tell(leader, Event::Request { token, ask, op });
    token
}

/// The leader of the root's partition, and its member.
fn two(ring: &TestRing) -> (Address, Address) {
    let partition = ROOT.position().partition(COUNT);
    let view = &ring.views[partition.0 as usize];
    let member = view.members.iter().map(|member| member.brick).find(|brick| *brick != view.leader).unwrap();
    (Address { partition, brick: view.leader }, Address { partition, brick: member })
}

fn other_than(bricks: &[BrickId]) -> BrickId {
    (0..u128::from(BRICKS)).map(BrickId).find(|brick| !bricks.contains(brick)).unwrap()
}

/// Delivers what was held back.
fn let_go(ring: &mut TestRing) {
    let (_, held) = ring.held_back.take().unwrap();
    ring.queue.extend(held);
    ring.deliver();
}

/// Handles an event and the messages that follow. Returns the syncs, which are not done.
fn but_syncs(ring: &mut TestRing, at: Address, event: Event) -> Vec<SyncJob> {
    let around = TestRing::around(&ring.bricks, &ring.views, at, ring.clock);
    let mut out = Out::default();
    ring.partitions.get_mut(&at).unwrap().handle(event, &around, &mut out);
    ring.queue.extend(out.sends);
    ring.answers.extend(out.answers);
    out.syncs
}

/// A sync that the leader asks of its member, and that the member does not do.
fn kept_sync(ring: &mut TestRing, (leader, member): (Address, Address), token: Token) -> SyncJob {
    ring.held_back = Some((member, Vec::new()));
    ring.tell(leader, Event::Sync { token, shards: Vec::new(), own: false });
    let (_, held) = ring.held_back.take().unwrap();
    let mut jobs = held.into_iter().flat_map(|sent| but_syncs(ring, member, Event::Message(sent)));
    jobs.next().unwrap()
}

/// The brick keeps what was synced, and its server comes back before another view was formed.
fn lose_power(ring: &mut TestRing, storages: &[MemoryStorage], brick: BrickId) {
    let (journal_segments, segment_bytes, index_cache_bytes, reserve_bytes) = (4, 512 << 10, 1 << 20, 0);
    let settings = BrickSettings { journal_segments, segment_bytes, index_cache_bytes, reserve_bytes };
    let cut = Arc::new(storages[brick.0 as usize].after_power_cut());
    let opened = Brick::open_on(cut, &Identity::new(brick, "c", settings), Incarnation(2), true);
    ring.bricks[brick.0 as usize] = opened.unwrap().0;
    ring.partitions.retain(|at, _| at.brick != brick);
    ring.host_all();
    let all: Vec<Address> = ring.partitions.keys().copied().collect();
    all.iter().filter(|at| at.brick == brick).for_each(|at| ring.tell(*at, Event::Start));
    all.iter().filter(|at| at.brick != brick).for_each(|at| ring.tell(*at, Event::Up { bricks: vec![brick] }));
    (0..10).for_each(|_| ring.tick());
}

/// Both ends are connected again before either has noticed the loss of the connection.
#[test]
fn what_is_lost_with_a_connection_is_sent_again_on_the_next() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    ring.held_back = Some((member, Vec::new()));
    let token = set_owner(&mut ring, leader, 7);
    ring.held_back = None;
    assert!(!ring.answers.contains_key(&token));
    ring.tell(member, Event::Up { bricks: vec![leader.brick] });
    ring.tell(leader, Event::Up { bricks: vec![member.brick] });
    ring.rest();
    assert!(matches!(ring.answers.remove(&token), Some(Ok(_))));
    ring.check();
}

/// Otherwise an fsync is never answered.
#[test]
fn a_sync_is_asked_again_of_who_comes_back_and_not_of_who_is_left_out() {
    for comes_back in [true, false] {
        let mut ring = open(&storages());
        let (leader, member) = two(&ring);
        ring.held_back = Some((member, Vec::new()));
        ring.tell(leader, Event::Sync { token: Token(3), shards: Vec::new(), own: false });
        assert!(!ring.answers.contains_key(&Token(3)), "a member has not synced it");
        ring.tell(leader, Event::Sync { token: Token(4), shards: Vec::new(), own: true });
        assert_eq!(
            ring.answers.remove(&Token(4)),
            Some(Ok(Reply::Done)),
            "a sync of the leader alone waits for no member"
        );
        ring.held_back = None;
        if comes_back {
            ring.tell(member, Event::Up { bricks: vec![leader.brick] });
            ring.tell(leader, Event::Up { bricks: vec![member.brick] });
        } else {
            form(&mut ring, leader.partition.0, leader.brick.0, &[leader.brick.0], &[]);
        }
        (0..3).for_each(|_| ring.tick());
        assert_eq!(ring.answers.remove(&Token(3)), Some(Ok(Reply::Done)), "comes back: {comes_back}");
    }
}

/// Two leaders made different records with one sequence. Whichever is kept, a client may have got the answer of the other.
#[test]
fn logs_of_which_none_is_the_beginning_of_the_other_are_not_served() {
    for leaders in [1, 2] {
        let mut ring = open(&storages());
        ring.rest();
        let (leader, member) = two(&ring);
        for (at, epoch, count) in [(leader, Epoch(1), leaders), (member, Epoch(2), 1)] {
            for _ in 0..count {
                let brick = &ring.bricks[at.brick.0 as usize];
                let (ring, partition, session, op_id) = (RING, at.partition, SYSTEM_SESSION, OpId(0));
                let sequence = Sequence(brick.position(ring, partition).sequence.0 + 1);
                let changes = Vec::new();
                let record = Record { ring, partition, epoch, sequence, session, op_id, changes };
                brick.append(&hekate_brick::LogEntry::new(record)).unwrap();
            }
        }
        ring.views.iter_mut().for_each(|view| view.epoch.0 += 2);
        ring.start_all();
        let failure = ring.partitions[&leader].failure().map(ToString::to_string).unwrap_or_default();
        assert!(failure.contains("differ between bricks"), "{leaders}: {failure}");
    }
}

/// Otherwise the partition is never served. What the leader had room for must be counted once.
#[test]
fn a_leader_without_room_for_what_it_fetches_goes_on_when_there_is_some() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    let (number, first, second) = (leader.partition.0, leader.brick.0, follower.brick.0);
    form(&mut lane.ring, number, second, &[second], &[]);
    lane.leader = follower;
    for turn in 2..5 {
        assert!(lane.slow(FIRST, turn * 256, 0, bytes(turn as u8, BLOCK_BYTES)).is_ok());
    }
    lane.leader = leader;
    lane.ring.write_home();
    fill_journal(&mut lane, leader);
    let before = lane.ring.views[number as usize].clone();
    let member = |brick| Member { brick: BrickId(brick), incarnation: Incarnation(1) };
    let members = vec![member(first), member(second)];
    set_view(&mut lane.ring, number, View::new(Epoch(before.epoch.0 + 1), leader.brick, members));
    (0..5).for_each(|_| lane.ring.tick());
    assert!(lane.ring.branches.contains("levelling: no room for what is fetched"));
    assert!(!lane.ring.partitions[&leader].serves());
    lane.ring.messages_left = u64::MAX;
    (0..5).for_each(|_| lane.ring.tick());
    assert!(lane.ring.partitions[&leader].serves());
    lane.check_even([4, 1, 1, 1]);
}

/// The leader does not send again what it has sent.
#[test]
fn a_member_forgets_nothing_of_its_leader_for_the_connection_of_another_brick() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    let other = other_than(&[leader.brick, member.brick]);
    ring.held_back = Some((member, Vec::new()));
    let token = set_owner(&mut ring, leader, 7);
    let syncs = [Token(3), Token(4)];
    syncs.iter().for_each(|token| ring.tell(leader, Event::Sync { token: *token, shards: Vec::new(), own: false }));
    let (_, held) = ring.held_back.take().unwrap();
    let (asked, records): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|sent| matches!(sent.message, Message::Sync { .. }));
    assert!(asked.len() == 2 && !records.is_empty());
    asked.into_iter().for_each(|sync| ring.handle(member, Event::Message(sync)));
    ring.tell(member, Event::Up { bricks: vec![other] });
    ring.queue.extend(records);
    ring.deliver();
    assert!(matches!(ring.answers.remove(&token), Some(Ok(_))));
    syncs.iter().for_each(|token| assert_eq!(ring.answers.remove(token), Some(Ok(Reply::Done))));
}

/// Its brick discards journal up to there. Otherwise the journal fills up and the member appends no more records.
#[test]
fn a_member_gets_what_it_has_made_stable_everywhere() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    let token = set_owner(&mut ring, leader, 7);
    assert!(matches!(ring.answers.remove(&token), Some(Ok(_))));
    let last = ring.bricks[member.brick.0 as usize].position(RING, member.partition).sequence;
    assert!(ring.partitions[&member].stable() < last);
    ring.tell(member, Event::Stabilize);
    ring.tell(member, Event::Stabilize);
    assert_eq!(ring.partitions[&member].stable(), last);
    assert_eq!(ring.partitions[&leader].stable(), last);
}

/// A leader that was started again numbers its syncs from the beginning: the end of an earlier leader's sync would be
/// taken for the end of one of its own.
#[test]
fn a_member_answers_no_sync_that_an_earlier_life_of_its_leader_asked_for() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    let last = ring.bricks[member.brick.0 as usize].position(RING, leader.partition).sequence;
    let (ticket, epoch) = (1 << 30, ring.views[leader.partition.0 as usize].epoch);
    let message = Message::Sync { ticket, sequence: Sequence(last.0 + 1), shards: Vec::new() };
    ring.handle(member, Event::Message(Envelope { ring: RING, from: leader, to: member, epoch, message }));
    ring.tell(member, Event::Up { bricks: vec![leader.brick] });
    ring.held_back = Some((leader, Vec::new()));
    set_owner(&mut ring, leader, 7);
    let (_, held) = ring.held_back.take().unwrap();
    assert!(held.iter().any(|sent| matches!(sent.message, Message::Held { .. })), "it has the record");
    assert!(!held.iter().any(|sent| matches!(sent.message, Message::Synced { .. })), "{held:?}");
}

/// A client that asks the wrong replica must not wait for ever.
#[test]
fn a_member_that_does_not_lead_answers_that() {
    let mut ring = open(&storages());
    let (_, member) = two(&ring);
    let changes = AttrChanges { uid: Some(7), ..Default::default() };
    let op = Op::Inode { op: InodeOp::SetAttr { inode: ROOT, changes } };
    let ask = ring.ask();
    ring.tell(member, Event::Request { token: Token(1), ask, op });
    ring.tell(member, Event::Change { token: Token(2), commit: Box::default() });
    ring.tell(member, Event::ChangeNow { token: Token(3), commit: Box::default() });
    ring.tell(member, Event::Sync { token: Token(4), shards: Vec::new(), own: false });
    for token in 1..=4 {
        assert!(matches!(ring.answers.remove(&Token(token)), Some(Err(Error::StaleView { .. }))), "{token}");
    }
}

/// The coordinator may not have received it, and no client is answered until it has recorded the view.
#[test]
fn that_a_view_may_begin_is_reported_until_it_has() {
    let mut ring = open(&storages());
    let (leader, _) = two(&ring);
    let number = leader.partition.0;
    let view = View { epoch: Epoch(2), opened: false, ..ring.views[number as usize].clone() };
    set_view(&mut ring, number, view.clone());
    for _ in 0..3 {
        (0..10).for_each(|_| ring.tick());
        assert!(std::mem::take(&mut ring.opens).contains(&(leader.partition, Epoch(2))));
    }
    set_view(&mut ring, number, View { opened: true, ..view });
    ring.opens.clear();
    (0..10).for_each(|_| ring.tick());
    assert!(ring.opens.is_empty() && ring.partitions[&leader].serves());
}

/// The leader, which knows that the view has begun, may ask the member before.
#[test]
fn a_member_that_hears_late_that_its_view_has_begun_forgets_nothing() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    let number = leader.partition.0;
    let view = View { epoch: Epoch(2), opened: false, ..ring.views[number as usize].clone() };
    set_view(&mut ring, number, view);
    (0..10).for_each(|_| ring.tick());
    assert!(ring.opens.contains(&(leader.partition, Epoch(2))));
    ring.views[number as usize].opened = true;
    ring.tell(leader, Event::View);
    let job = kept_sync(&mut ring, (leader, member), Token(3));
    ring.tell(member, Event::View);
    assert!(!ring.answers.contains_key(&Token(3)));
    ring.tell(member, Event::Synced { ticket: job.ticket, outcome: Ok(()) });
    assert_eq!(ring.answers.remove(&Token(3)), Some(Ok(Reply::Done)));
}

/// The members of the earlier view have answered. A member of this view that has not answered may lack all records
/// (rule 15).
#[test]
fn that_an_earlier_view_may_begin_says_nothing_of_the_next() {
    let mut ring = open(&storages());
    let (leader, gone) = two(&ring);
    let third = Address { brick: other_than(&[leader.brick, gone.brick]), ..leader };
    let number = leader.partition.0;
    form(&mut ring, number, leader.brick.0, &[leader.brick.0, gone.brick.0], &[third.brick.0]);
    heal(&mut ring, number);
    ring.opens.clear();
    let begin = |ring: &mut TestRing, members: &[Address]| {
        let epoch = Epoch(ring.views[number as usize].epoch.0 + 1);
        let member = |at: &Address| Member { brick: at.brick, incarnation: Incarnation(1) };
        let view = View::new(epoch, leader.brick, members.iter().map(member).collect());
        ring.views[number as usize] = View { opened: false, ..view };
        [leader, gone, third].into_iter().for_each(|at| ring.handle(at, Event::View));
        epoch
    };
    let tick_but = |ring: &mut TestRing, is_kept: &dyn Fn(&Envelope) -> bool| {
        let mut kept = Vec::new();
        for _ in 0..5 {
            ring.handle(leader, Event::Tick);
            kept.extend(deliver_but(ring, is_kept));
        }
        kept
    };
    begin(&mut ring, &[leader, gone, third]);
    let is_synced = |sent: &Envelope| sent.from == gone && matches!(sent.message, Message::Synced { .. });
    assert!(!tick_but(&mut ring, &is_synced).is_empty());
    let epoch = begin(&mut ring, &[leader, third]);
    let is_position = |sent: &Envelope| sent.from == third && matches!(sent.message, Message::Position { .. });
    let positions = tick_but(&mut ring, &is_position);
    assert!(!positions.is_empty() && ring.opens.is_empty(), "{:?}", ring.opens);
    ring.queue.extend(positions);
    tick_but(&mut ring, &|_| false);
    assert_eq!(ring.opens, BTreeSet::from([(leader.partition, epoch)]));
}

/// A view names one incarnation of a brick. Another incarnation may lack what was acknowledged.
#[test]
fn who_has_lost_its_power_neither_leads_nor_follows_until_it_is_healed() {
    for leads in [true, false] {
        let storages = storages();
        let mut ring = open(&storages);
        let (leader, member) = two(&ring);
        let (gone, stays) = if leads { (leader, member) } else { (member, leader) };
        lose_power(&mut ring, &storages, gone.brick);
        let token = set_owner(&mut ring, leader, 7);
        (0..10).for_each(|_| ring.tick());
        assert!(!matches!(ring.answers.remove(&token), Some(Ok(_))), "it leads: {leads}");
        let (number, first, second) = (leader.partition.0, stays.brick.0, gone.brick.0);
        form(&mut ring, number, first, &[first], &[second]);
        heal(&mut ring, number);
        form(&mut ring, number, first, &[first, second], &[]);
        let token = set_owner(&mut ring, stays, 8);
        assert!(matches!(ring.answers.remove(&token), Some(Ok(_))));
        assert_eq!(ring.held(leader.brick, leader.partition), ring.held(member.brick, leader.partition));
    }
}

/// Otherwise the end of one sync is taken for that of another, which is answered too early or never.
#[test]
fn no_two_syncs_have_one_ticket() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    ring.held_back = Some((member, Vec::new()));
    for (token, own) in [(3, false), (4, true), (5, false)] {
        ring.tell(leader, Event::Sync { token: Token(token), shards: Vec::new(), own });
    }
    assert_eq!(ring.answers.keys().copied().collect::<Vec<_>>(), [Token(4)]);
    let_go(&mut ring);
    assert!([3, 5].iter().all(|token| ring.answers[&Token(*token)] == Ok(Reply::Done)));
}

/// The host has not ended that sync yet.
#[test]
fn a_sync_of_the_view_before_ends_none_of_this_one() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    for token in 3..23 {
        ring.tell(leader, Event::Sync { token: Token(token), shards: Vec::new(), own: false });
    }
    let earlier = kept_sync(&mut ring, (leader, member), Token(23));
    form(&mut ring, leader.partition.0, member.brick.0, &[member.brick.0], &[]);
    ring.answers.clear();
    let asked = (100..150).map(|token| Event::Sync { token: Token(token), shards: Vec::new(), own: false });
    let jobs: Vec<SyncJob> = asked.flat_map(|event| but_syncs(&mut ring, member, event)).collect();
    ring.tell(member, Event::Synced { ticket: earlier.ticket, outcome: Ok(()) });
    assert!(ring.answers.is_empty(), "{:?}", ring.answers);
    jobs.iter().for_each(|job| ring.tell(member, Event::Synced { ticket: job.ticket, outcome: Ok(()) }));
    assert_eq!(ring.answers.len(), 50);
}

/// What it has acknowledged is lost with its brick (modes `async` and `bypass`).
#[test]
fn a_leader_that_answers_alone_is_not_far_ahead() {
    let mut ring = open(&storages());
    let (leader, member) = two(&ring);
    ring.held_back = Some((member, Vec::new()));
    for uid in 0..140 {
        set_owner_as(&mut ring, leader, uid, true);
    }
    assert!((100..=128).contains(&ring.answers.len()), "{}", ring.answers.len());
    let_go(&mut ring);
    (0..5).for_each(|_| ring.tick());
    assert_eq!(ring.answers.len(), 140);
    ring.check();
}
