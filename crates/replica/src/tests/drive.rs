//! Ops over several partitions, with events between their steps.

use super::heal::{form, heal, set_view};
use super::*;
use hekate_brick::LogEntry;

/// Delivers messages and what follows from them, except for those that are kept back, which it returns.
pub(super) fn deliver_but(ring: &mut TestRing, mut is_kept: impl FnMut(&Envelope) -> bool) -> Vec<Envelope> {
    let mut kept = Vec::new();
    while let Some(envelope) = ring.queue.pop_front() {
        match is_kept(&envelope) {
            true => kept.push(envelope),
            false => ring.handle(envelope.to, Event::Message(envelope)),
        }
    }
    kept
}

/// Begins an op in a slot of its own.
pub(super) fn begin(ring: &mut TestRing, token: u64, op: Op) -> Address {
    let (at, ask) = (ring.place(&op), Ask { op_id: OpId(token), ..ring.ask() });
    ring.handle(at, Event::Request { token: Token(token), ask, op });
    at
}

/// A partition on other bricks than this one.
pub(super) fn elsewhere(ring: &TestRing, at: Address) -> Address {
    let bricks = |number: u32| -> BTreeSet<BrickId> {
        ring.views[number as usize].members.iter().map(|member| member.brick).collect()
    };
    let number = (0..COUNT).find(|number| bricks(*number) != bricks(at.partition.0)).unwrap();
    ring.leader(PartitionNumber(number).first_position(COUNT))
}

/// The seed of a directory whose inode is in the partition.
pub(super) fn seed_of(partition: PartitionNumber) -> u64 {
    u64::from(partition.first_position(COUNT).0) << 32
}

/// All replicas of the partition lose their memory, and the leader begins.
pub(super) fn begin_anew(ring: &mut TestRing, leader: Address) {
    let number = leader.partition.0;
    let view = ring.views[number as usize].clone();
    ring.partitions.retain(|address, _| address.partition != leader.partition);
    set_view(ring, number, View { epoch: Epoch(view.epoch.0 + 1), ..view });
    let replicas: Vec<Address> = ring.partitions.keys().copied().filter(|one| one.partition.0 == number).collect();
    let all: Vec<BrickId> = (0..BRICKS).map(|brick| BrickId(u128::from(brick))).collect();
    replicas.iter().for_each(|address| ring.handle(*address, Event::Start));
    replicas.iter().for_each(|address| ring.handle(*address, Event::Up { bricks: all.clone() }));
}

fn is_leg(envelope: &Envelope) -> bool {
    matches!(envelope.message, Message::Leg { .. })
}

fn lookup(text: &[u8]) -> Op {
    Op::Name { op: NameOp::Lookup { dir: ROOT, name: name(text) } }
}

fn leads_to(answer: Option<&Result<Reply>>) -> InodeId {
    match answer {
        Some(Ok(Reply::Node { attr: Attr { id, .. }, .. } | Reply::Elsewhere { inode: id, .. })) => *id,
        other => panic!("{other:?}"),
    }
}

/// A power cut of all machines must leave a name and its inode, or neither: what one partition relies on is on stable
/// storage in the other.
#[test]
fn each_step_of_an_op_waits_for_stable_storage_of_the_one_before() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    let steps = |ring: &mut TestRing, token: u64, op: Op| {
        begin(ring, token, op);
        let (mut said, mut answered) = (Vec::new(), None);
        for round in 0..12 {
            let mut steps = String::new();
            let synced = deliver_but(ring, |envelope| {
                steps += match &envelope.message {
                    Message::Leg { .. } => "leg ",
                    Message::LegEnded { outcome: Outcome::Taken { .. }, .. } => "taken ",
                    Message::Forget { .. } => "forget ",
                    _ => "",
                };
                matches!(envelope.message, Message::Synced { .. })
            });
            if answered.is_none() && ring.answers.contains_key(&Token(token)) {
                answered = Some(round);
            }
            said.push(steps);
            if synced.is_empty() {
                ring.clock += 1_000_000_000;
                ring.handle(root, Event::Tick);
            }
            synced.into_iter().for_each(|envelope| ring.handle(envelope.to, Event::Message(envelope)));
        }
        said.retain(|steps| !steps.is_empty());
        (said, answered)
    };
    let (said, answered) = steps(&mut ring, 1, make_directory(ROOT, b"d", seed_of(there.partition)));
    assert_eq!((said, answered), (vec!["leg ".into(), "taken ".into(), "forget ".into()], Some(3)));
    let remove = Op::Name { op: NameOp::Rmdir { dir: ROOT, name: name(b"d") } };
    let (said, answered) = steps(&mut ring, 2, remove);
    let closed_and_dropped = ["leg ", "taken ", "leg ", "taken ", "forget "].map(String::from).to_vec();
    assert_eq!((said, answered), (closed_and_dropped, Some(4)));
    ring.rest();
    ring.check();
}

/// A power cut could still remove the name, and the intent then the directory with all that was made in it.
#[test]
fn a_name_is_shown_once_no_power_cut_can_take_it() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    begin(&mut ring, 1, make_directory(ROOT, b"d", seed_of(there.partition)));
    let mut is_taken = false;
    let synced = deliver_but(&mut ring, |envelope| {
        is_taken |= matches!(envelope.message, Message::LegEnded { .. });
        is_taken && envelope.to == root && matches!(envelope.message, Message::Synced { .. })
    });
    assert!(is_taken && !synced.is_empty());
    let list = Op::Name { op: NameOp::List { dir: ROOT, after: None, limit: 100, attributes: false, touch: false } };
    let around = TestRing::around(&ring.bricks, &ring.views, root, 0);
    for op in [lookup(b"d"), list.clone()] {
        assert_eq!(ring.partitions[&root].read(&around, &ring.ask(), &op), None, "{op:?}");
    }
    begin(&mut ring, 2, lookup(b"d"));
    begin(&mut ring, 3, list);
    begin(&mut ring, 4, make_directory(ROOT, b"d", 0));
    begin(&mut ring, 5, make_directory(ROOT, b"e", 0));
    begin(&mut ring, 6, lookup(b"x"));
    deliver_but(&mut ring, |_| false);
    assert_eq!(ring.answers.keys().copied().collect::<Vec<_>>(), [Token(6)], "the list comes before new names");
    ring.queue.extend(synced);
    (0..5).for_each(|_| ring.tick());
    assert_eq!(leads_to(ring.answers.get(&Token(1))), leads_to(ring.answers.get(&Token(2))));
    let Some(Ok(Reply::List { entries, .. })) = ring.answers.get(&Token(3)) else { panic!("{:?}", ring.answers) };
    assert!(entries.iter().any(|entry| entry.name == name(b"d")));
    assert_eq!(ring.answers.get(&Token(4)), Some(&Err(Error::Exists)));
    assert!(ring.answers[&Token(5)].is_ok());
    ring.rest();
    ring.check();
}

/// The leg was sent, and the receiving leader had a member away, so it neither took nor answered the leg.
#[test]
fn a_leg_that_nobody_took_is_sent_again() {
    let mut ring = open(&storages());
    let there = elsewhere(&ring, ring.leader(ROOT.position()));
    let member = ring.views[there.partition.0 as usize].members.iter().find(|one| one.brick != there.brick).unwrap();
    let member = member.brick;
    ring.handle(there, Event::Down { bricks: vec![member] });
    begin(&mut ring, 1, make_directory(ROOT, b"d", seed_of(there.partition)));
    let mut sent = 0;
    let positions = deliver_but(&mut ring, |envelope| {
        sent += u32::from(is_leg(envelope));
        let is_append = matches!(envelope.message, Message::Append { .. });
        assert!(envelope.from != there || !is_append, "the leader must not take the leg");
        envelope.to == there && matches!(envelope.message, Message::Position { .. })
    });
    assert!((sent, positions.len(), ring.answers.len()) == (1, 0, 0), "{:?}", ring.answers);
    ring.tell(there, Event::Up { bricks: vec![member] });
    (0..20).for_each(|_| ring.tick());
    assert!(ring.answers[&Token(1)].is_ok());
    ring.rest();
    ring.check();
}

/// A client sends an op again when its connection is lost while the op is in flight.
#[test]
fn a_retry_of_an_op_on_its_way_gets_the_same_answer() {
    let storages = storages();
    let mut ring = open(&storages);
    let there = elsewhere(&ring, ring.leader(ROOT.position()));
    let op = make_directory(ROOT, b"d", seed_of(there.partition));
    let (at, ask) = (ring.place(&op), Ask { op_id: OpId(1), ..ring.ask() });
    let request =
        |token, op_id| Event::Request { token: Token(token), ask: Ask { op_id: OpId(op_id), ..ask }, op: op.clone() };
    ring.handle(at, request(1, 1));
    ring.handle(at, request(2, 1));
    ring.handle(at, request(3, 2));
    ring.handle(at, Event::Request { token: Token(4), ask: Ask { session: SessionId(2), ..ask }, op: op.clone() });
    ring.deliver();
    (0..5).for_each(|_| ring.tick());
    let made = ring.answers[&Token(1)].clone();
    assert!(made.is_ok());
    assert_eq!(ring.answers[&Token(2)], made);
    assert_eq!(ring.answers[&Token(3)], Err(Error::Exists), "another op");
    assert_eq!(ring.answers[&Token(4)], Err(Error::Exists), "another session's");
    ring.tell(at, request(5, 1));
    assert_eq!(ring.answers[&Token(5)], made, "from memory");
    drop(ring);
    let mut ring = self::open(&storages);
    ring.tell(at, request(6, 1));
    assert_eq!(ring.answers[&Token(6)], made, "from the log");
    ring.rest();
    ring.check();
}

/// The mark of a leg is what lets it be undone once. It must stay while the op could still be undone, even if the
/// partition asks whether it may be removed.
#[test]
fn a_leg_is_undone_however_long_its_op_was_on_its_way() {
    let mut ring = open(&storages());
    ring.spread = 8;
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    let made = ring.execute(make_directory(ROOT, b"p", 0));
    let parent = leads_to(Some(&made));
    ring.spreads.insert(parent, 8);
    ring.rest();
    let at = begin(&mut ring, 1, make_directory(parent, b"d", seed_of(there.partition)));
    let ended = deliver_but(&mut ring, |envelope| matches!(envelope.message, Message::LegEnded { .. }));
    assert!(!ended.is_empty(), "one leg is taken");
    let mut asked = 0;
    for _ in 0..10 {
        let addresses: Vec<Address> = ring.partitions.keys().copied().filter(|one| *one != at).collect();
        addresses.into_iter().for_each(|address| ring.handle(address, Event::Tick));
        asked += ring.queue.iter().filter(|one| matches!(one.message, Message::IsGone { .. })).count();
        ring.deliver();
    }
    assert!(asked > 0, "the partition that took the leg asks");
    let changes = AttrChanges { mode: Some(0o2755), gid: Some(7), ..Default::default() };
    let sets = Op::Inode { op: InodeOp::SetAttr { inode: parent, changes } };
    begin(&mut ring, 2, sets);
    ring.deliver();
    ring.queue.extend(ended);
    ring.deliver();
    (0..20).for_each(|_| ring.tick());
    assert!(ring.answers[&Token(1)].is_ok() && ring.answers[&Token(2)].is_ok(), "{:?}", ring.answers);
    ring.rest();
    ring.check();
}

/// A partition is notified once that a directory stays. Until it knows, a leader that begins must assume that the directory
/// may be removed, and makes nothing in it.
#[test]
fn a_directory_is_used_though_nobody_heard_that_it_stays() {
    let mut ring = open(&storages());
    let there = elsewhere(&ring, ring.leader(ROOT.position()));
    begin(&mut ring, 1, make_directory(ROOT, b"d", seed_of(there.partition)));
    let lost = deliver_but(&mut ring, |envelope| matches!(envelope.message, Message::Forget { .. }));
    assert_eq!(lost.len(), 1);
    let dir = leads_to(ring.answers.get(&Token(1)));
    begin_anew(&mut ring, there);
    deliver_but(&mut ring, |envelope| matches!(envelope.message, Message::IsGone { .. }));
    assert!(ring.partitions[&there].serves());
    begin(&mut ring, 2, make_directory(dir, b"e", seed_of(there.partition)));
    let list = NameOp::List { dir, after: None, limit: 100, attributes: false, touch: false };
    begin(&mut ring, 3, Op::Name { op: list });
    let hold = Leg::HoldName { dir, name: name(b"x") };
    let ways = (ring.leader(ROOT.position()), there);
    assert_eq!(super::legs::leg(&mut ring, ways, 0, hold), [Outcome::Busy]);
    assert!(
        !ring.answers.contains_key(&Token(2)) && !ring.answers.contains_key(&Token(3)),
        "the directory may be removed again"
    );
    (0..20).for_each(|_| ring.tick());
    assert!(ring.answers[&Token(2)].is_ok() && ring.answers[&Token(3)].is_ok(), "{:?}", ring.answers);
    ring.rest();
    ring.check();
}

/// Fills all journals. No room is made from then on.
pub(super) fn fill_journals(ring: &mut TestRing) {
    ring.messages_left = u64::MAX - 1;
    ring.bricks.iter().for_each(|brick| fill_journal(brick, Brick::takes_now));
}

/// Fills the room that new records may take of a journal, and not the rest.
pub(super) fn fill_for_new(brick: &Brick) {
    fill_journal(brick, |brick, _| brick.has_room_for_new());
}

fn fill_journal(brick: &Brick, has_room: impl Fn(&Brick, &LogEntry) -> bool) {
    let (nobody, partition, sequence) = (RingId(99), PartitionNumber(0), Sequence(0));
    for bytes in [10_000, 100, 1] {
        let key = Key::session(nobody, Position(0), SessionId(77), 1);
        let changes = vec![Change::Put { key, value: vec![7; bytes].into() }];
        let (epoch, session, op_id) = (Epoch(1), SYSTEM_SESSION, OpId(0));
        let entry = LogEntry::new(Record { ring: nobody, partition, epoch, sequence, session, op_id, changes });
        while has_room(brick, &entry) {
            brick.append(&entry).unwrap();
        }
    }
}

/// A ring with directories `a` and `b`. `b` is in another partition than the root, and contains `c`. Returns `a`.
fn two_directories(ring: &mut TestRing, there: Address) -> InodeId {
    let made = ring.execute(make_directory(ROOT, b"a", seed_of(PartitionNumber(1))));
    let to = ring.execute(make_directory(ROOT, b"b", seed_of(there.partition)));
    ring.execute(make_directory(leads_to(Some(&to)), b"c", 0)).unwrap();
    ring.rest();
    leads_to(Some(&made))
}

/// Any of the op's records may find the journal full, those that undo it too.
#[test]
fn an_op_goes_on_when_journals_have_room_again() {
    let (mode, open_here) = (RenameMode::Replace, None);
    let rename = |name_: &[u8], to_dir, to: &[u8]| {
        let (dir, name, to_name) = (ROOT, name(name_), name(to));
        Op::Name { op: NameOp::Rename { dir, name, to_dir, to_name, mode, open_here } }
    };
    for kind in 0..4 {
        for messages in (0..).step_by(2) {
            let mut ring = open(&storages());
            let there = elsewhere(&ring, ring.leader(ROOT.position()));
            let a = two_directories(&mut ring, there);
            let op = match kind {
                0 => make_directory(ROOT, b"d", seed_of(there.partition)),
                1 => Op::Name { op: NameOp::Rmdir { dir: ROOT, name: name(b"a") } },
                2 => rename(b"b", a, b"b"),
                _ => rename(b"a", ROOT, b"b"),
            };
            begin(&mut ring, 1, op);
            let mut left = messages;
            while left > 0 {
                let Some(envelope) = ring.queue.pop_front() else { break };
                left -= 1;
                ring.handle(envelope.to, Event::Message(envelope));
            }
            fill_journals(&mut ring);
            for _ in 0..3 {
                deliver_but(&mut ring, |_| false);
                let addresses: Vec<Address> = ring.partitions.keys().copied().collect();
                addresses.into_iter().for_each(|address| ring.handle(address, Event::Tick));
            }
            ring.messages_left = u64::MAX;
            (0..20).for_each(|_| ring.tick());
            let answer = ring.answers.get(&Token(1)).unwrap_or_else(|| panic!("{kind} after {messages}"));
            match kind {
                3 => assert_eq!(*answer, Err(Error::NotEmpty)),
                _ => assert!(answer.is_ok(), "{answer:?}"),
            }
            ring.rest();
            ring.check();
            if left > 0 {
                break;
            }
        }
    }
}

/// Otherwise a power cut could restore the intent, and legs would be taken again: a file would lose a link that it has.
#[test]
fn that_an_op_is_over_is_said_once_no_power_cut_can_take_that() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    let is_forget = |envelope: &Envelope| matches!(envelope.message, Message::Forget { .. });
    let is_synced = |envelope: &Envelope| matches!(envelope.message, Message::Synced { .. }) && envelope.to == root;
    ring.execute(make_directory(ROOT, b"d", seed_of(there.partition))).unwrap();
    ring.rest();
    // A leader that begins finds the intent and finishes it, or finds none and is asked.
    for (token, finds) in [(1, true), (2, false)] {
        begin(&mut ring, token, Op::Name { op: NameOp::Rmdir { dir: ROOT, name: name(b"d") } });
        for _ in 0..2 {
            deliver_but(&mut ring, |envelope| match &envelope.message {
                Message::Leg { leg: Leg::DropDirectory { .. }, .. } => finds,
                _ => is_forget(envelope),
            });
            ring.clock += 1_000_000_000;
            ring.handle(root, Event::Tick);
        }
        ring.queue.clear();
        begin_anew(&mut ring, root);
        let (mut said, mut is_held, mut synced) = (false, !finds, Vec::new());
        for _ in 0..20 {
            synced.extend(deliver_but(&mut ring, |envelope| {
                said |= is_forget(envelope);
                is_held |= matches!(envelope.message, Message::LegEnded { .. });
                is_held && is_synced(envelope)
            }));
            ring.clock += 100_000_000;
            [there, root].into_iter().for_each(|address| ring.handle(address, Event::Tick));
        }
        assert!(is_held && !said, "{finds}");
        synced.into_iter().for_each(|envelope| ring.handle(envelope.to, Event::Message(envelope)));
        ring.rest();
        ring.check();
        ring.execute(make_directory(ROOT, b"d", seed_of(there.partition))).unwrap();
        ring.rest();
    }
}

/// Otherwise a name is shown that is removed again, or is missing and comes back.
#[test]
fn a_leader_serves_once_what_a_crash_cut_short_is_over() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    ring.execute(make_directory(ROOT, b"d", seed_of(there.partition))).unwrap();
    ring.rest();
    begin(&mut ring, 1, Op::Name { op: NameOp::Rmdir { dir: ROOT, name: name(b"d") } });
    assert_eq!(deliver_but(&mut ring, is_leg).len(), 1, "its intent is in the log");
    begin_anew(&mut ring, root);
    let is_over = |envelope: &Envelope| matches!(envelope.message, Message::LegEnded { .. });
    let mut ended = deliver_but(&mut ring, is_over);
    for _ in 0..3 {
        ring.handle(root, Event::Tick);
        ended.extend(deliver_but(&mut ring, is_over));
    }
    assert!(!ended.is_empty() && !ring.partitions[&root].serves());
    ring.queue.extend(ended);
    (0..5).for_each(|_| ring.tick());
    assert!(ring.partitions[&root].serves());
    ring.rest();
    ring.check();
}

/// Each op holds what the other needs. Each that meets a hold releases its own, so both end.
#[test]
fn two_renames_that_want_each_others_names_both_end() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    let made = ring.execute(make_directory(ROOT, b"d", seed_of(there.partition)));
    let dir = leads_to(Some(&made));
    create_file(&mut ring);
    ring.rest();
    let rename = |dir, from: &[u8], to_dir, to: &[u8]| {
        let (name, to_name, mode, open_here) = (name(from), name(to), RenameMode::Replace, None);
        Op::Name { op: NameOp::Rename { dir, name, to_dir, to_name, mode, open_here } }
    };
    let (first, second) = (rename(ROOT, b"f", dir, b"g"), rename(dir, b"g", ROOT, b"f"));
    assert_eq!((begin(&mut ring, 1, first), begin(&mut ring, 2, second)), (there, root));
    (0..100).for_each(|_| ring.tick());
    assert!(ring.answers.contains_key(&Token(1)) && ring.answers.contains_key(&Token(2)), "{:?}", ring.answers);
    assert!(ring.answers.values().any(|answer| *answer == Ok(Reply::Done)));
    ring.rest();
    ring.check();
}

/// A replica comes back and the same leader begins a view with it. Ops that were in flight are answered too.
#[test]
fn an_op_on_its_way_is_answered_in_the_next_view_of_its_leader() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    begin(&mut ring, 1, make_directory(ROOT, b"d", seed_of(there.partition)));
    let ended = deliver_but(&mut ring, |envelope| matches!(envelope.message, Message::LegEnded { .. }));
    assert!(!ended.is_empty());
    let number = root.partition.0;
    let members: Vec<u128> = ring.views[number as usize].members.iter().map(|member| member.brick.0).collect();
    form(&mut ring, number, root.brick.0, &members, &[]);
    (0..20).for_each(|_| ring.tick());
    assert!(ring.answers.get(&Token(1)).is_some_and(|answer| answer.is_ok()), "{:?}", ring.answers);
    ring.rest();
    ring.check();
}

/// Otherwise a client that asked for O_SYNC could lose the op in a power cut of all machines, even if it asked twice.
#[test]
fn an_op_over_partitions_that_is_to_be_durable_is_answered_once_it_is() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let number = root.partition.0;
    // The partition is on the same bricks, so none of the op's steps waits for stable storage.
    let beside = (0..COUNT).find(|beside| *beside != number && beside % BRICKS == number % BRICKS).unwrap();
    let mut synced = Vec::new();
    for (token, slot, text, durable) in [(1, 1, b"a", false), (2, 2, b"b", true), (3, 2, b"b", true)] {
        let op = make_directory(ROOT, text, seed_of(PartitionNumber(beside)));
        let ask = Ask { op_id: OpId(slot), durable, ..ring.ask() };
        ring.handle(root, Event::Request { token: Token(token), ask, op });
        synced.extend(deliver_but(&mut ring, |sent| matches!(sent.message, Message::Synced { .. })));
        assert_eq!(ring.answers.keys().copied().collect::<Vec<_>>(), [Token(1)], "{token}");
    }
    ring.queue.extend(synced);
    ring.deliver();
    assert!(ring.answers[&Token(2)].is_ok());
    assert_eq!(ring.answers[&Token(2)], ring.answers[&Token(3)]);
    ring.rest();
    ring.check();
}

/// A learner that was whole lacks the last records when it leads the next view. If it said that the intent is gone, the
/// mark would be removed and its op could remain.
#[test]
fn a_leader_that_lacks_records_says_of_no_intent_that_it_is_gone() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    let number = root.partition.0 as usize;
    let member = *ring.views[number].members.iter().find(|one| one.brick != root.brick).unwrap();
    let next = Address { brick: member.brick, ..root };
    form(&mut ring, root.partition.0, root.brick.0, &[root.brick.0], &[next.brick.0]);
    heal(&mut ring, root.partition.0);
    begin(&mut ring, 1, make_directory(ROOT, b"d", seed_of(there.partition)));
    let is_ended = |sent: &Envelope| matches!(sent.message, Message::LegEnded { .. });
    let lost = deliver_but(&mut ring, |sent| sent.to == next || is_ended(sent));
    assert!(lost.iter().any(is_ended) && lost.iter().any(|sent| sent.to == next));
    let members = [ring.views[number].members.clone(), vec![member]].concat();
    let epoch = Epoch(ring.views[number].epoch.0 + 1);
    ring.views[number] = View { opened: false, ..View::new(epoch, next.brick, members) };
    let (mut asked, mut kept) = (0, Vec::new());
    let mut tick_but = |ring: &mut TestRing, is_kept: &dyn Fn(&Envelope) -> bool| {
        for _ in 0..10 {
            kept.extend(deliver_but(ring, |sent| {
                asked += u32::from(matches!(sent.message, Message::IsGone { .. }));
                is_kept(sent)
            }));
            ring.clock += 100_000_000;
            [root, next].into_iter().for_each(|at| ring.handle(at, Event::View));
            [root, next, there].into_iter().for_each(|at| ring.handle(at, Event::Tick));
        }
        std::mem::take(&mut kept)
    };
    let positions = tick_but(&mut ring, &|sent| sent.to == next && matches!(sent.message, Message::Position { .. }));
    ring.queue.extend(positions);
    tick_but(&mut ring, &is_leg);
    assert!(ring.opens.contains(&(root.partition, epoch)));
    ring.views[number].opened = true;
    let legs = tick_but(&mut ring, &is_leg);
    assert!(asked > 0 && !legs.is_empty());
    ring.queue.extend(legs);
    ring.rest();
    ring.check();
}

/// The record says that the op is done. If the leg were given up, half of the op would be missing, and the client would
/// be answered that none of it is done.
#[test]
fn a_leg_behind_the_commit_point_that_meets_damage_is_sent_until_that_is_mended() {
    let mut ring = open(&storages());
    let there = elsewhere(&ring, ring.leader(ROOT.position()));
    let made = ring.execute(make_directory(ROOT, b"d", seed_of(there.partition)));
    let (dir, to_dir) = (ROOT, leads_to(Some(&made)));
    create_file(&mut ring);
    ring.rest();
    let (name, to_name, mode, open_here) = (name(b"f"), name(b"g"), RenameMode::Replace, None);
    begin(&mut ring, 1, Op::Name { op: NameOp::Rename { dir, name, to_dir, to_name, mode, open_here } });
    let is_last = |sent: &Envelope| matches!(sent.message, Message::Leg { leg: Leg::ReplaceName { .. }, .. });
    let legs = deliver_but(&mut ring, is_last);
    let [Envelope { from, to, message: Message::Leg { intent, number, .. }, .. }] = legs[..] else {
        panic!("{legs:?}")
    };
    let outcome = Outcome::Refused { error: Error::Damaged { what: "a block of the index".into() } };
    let (message, epoch) = (Message::LegEnded { intent, number, outcome }, ring.views[to.partition.0 as usize].epoch);
    ring.queue.push_back(Envelope { ring: RING, from: to, to: from, epoch, message });
    deliver_but(&mut ring, is_last);
    assert_eq!(ring.answers.get(&Token(1)), None);
    (0..10).for_each(|_| ring.tick());
    assert_eq!(ring.answers.get(&Token(1)), Some(&Ok(Reply::Done)));
    ring.rest();
    ring.check();
}

/// The client sends the op again with the same id until another replica leads that partition: an answer that is kept
/// would be given for ever.
#[test]
fn an_op_whose_leg_met_a_stopped_brick_is_executed_when_it_is_sent_again() {
    let mut ring = open(&storages());
    let there = elsewhere(&ring, ring.leader(ROOT.position()));
    let make = make_directory(ROOT, b"d", seed_of(there.partition));
    begin(&mut ring, 1, make.clone());
    let is_leg = |sent: &Envelope| matches!(sent.message, Message::Leg { leg: Leg::MakeDirectory { .. }, .. });
    let legs = deliver_but(&mut ring, is_leg);
    let [Envelope { from, to, message: Message::Leg { intent, number, .. }, .. }] = legs[..] else {
        panic!("{legs:?}")
    };
    let outcome = Outcome::Refused { error: Error::Poisoned { what: "a sync of the journal".into() } };
    let (message, epoch) = (Message::LegEnded { intent, number, outcome }, ring.views[to.partition.0 as usize].epoch);
    ring.queue.push_back(Envelope { ring: RING, from: to, to: from, epoch, message });
    deliver_but(&mut ring, is_leg);
    (0..20).for_each(|_| ring.tick());
    assert!(matches!(ring.answers.remove(&Token(1)), Some(Err(Error::Poisoned { .. }))), "{:?}", ring.answers);
    let (at, ask) = (ring.place(&make), Ask { op_id: OpId(1), ..ring.ask() });
    ring.tell(at, Event::Request { token: Token(2), ask, op: make });
    (0..20).for_each(|_| ring.tick());
    assert!(matches!(ring.answers.get(&Token(2)), Some(Ok(Reply::Node { .. }))), "{:?}", ring.answers);
    ring.rest();
    ring.check();
}

/// What is made in a directory that is removed afterwards would be lost.
#[test]
fn a_directory_is_used_no_earlier_because_another_one_is_taken_back() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    let mut made = Vec::new();
    for (token, text) in [(1, b"a"), (2, b"b")] {
        begin(&mut ring, token, make_directory(ROOT, text, seed_of(there.partition)));
        deliver_but(&mut ring, |sent| {
            if let Message::Leg { leg: Leg::MakeDirectory { inode, .. }, .. } = &sent.message {
                made.push(*inode);
            }
            matches!(sent.message, Message::LegEnded { .. })
        });
    }
    let [_, second] = made[..] else { panic!("{made:?}") };
    begin_anew(&mut ring, there);
    deliver_but(&mut ring, |_| false);
    begin_anew(&mut ring, root);
    let mut undone = 0;
    let kept = deliver_but(&mut ring, |sent| match &sent.message {
        Message::Leg { leg: Leg::UnmakeDirectory { inode }, .. } => {
            undone += 1;
            *inode == second
        }
        _ => false,
    });
    assert_eq!((undone, kept.len(), ring.partitions[&there].serves()), (2, 1, true));
    begin(&mut ring, 3, make_directory(second, b"x", seed_of(there.partition)));
    deliver_but(&mut ring, |_| false);
    assert!(!ring.answers.contains_key(&Token(3)), "the directory may be removed again");
    ring.queue.extend(kept);
    (0..20).for_each(|_| ring.tick());
    assert!(ring.answers[&Token(3)].is_err());
    ring.rest();
    ring.check();
}
