//! Legs that arrive after what they are about was removed or changed.

use super::drive::{begin, begin_anew, deliver_but, elsewhere, seed_of};
use super::*;
use crate::ops::tree::Tree;
use crate::transactions::legs::UNDOING;

/// Sends a leg as the leader of another partition, and returns the outcomes. The driver is not asked whether the op has
/// ended.
pub(super) fn leg(ring: &mut TestRing, ways: (Address, Address), number: u16, leg: Leg) -> Vec<Outcome> {
    leg_of(ring, ways, 1 << 90, number, leg)
}

fn leg_of(ring: &mut TestRing, (from, to): (Address, Address), intent: u128, number: u16, leg: Leg) -> Vec<Outcome> {
    let (intent, volume, session, op_id) = (IntentId(intent), VOLUME, SYSTEM_SESSION, OpId(0));
    let view = ring.views[to.partition.0 as usize].epoch;
    let message = Message::Leg { intent, number, volume, session, op_id, leg, view };
    let epoch = ring.views[from.partition.0 as usize].epoch;
    ring.handle(to, Event::Message(Envelope { ring: RING, from, to, epoch, message }));
    let ended = deliver_but(ring, |envelope| matches!(envelope.message, Message::LegEnded { .. }));
    let outcome = |envelope: Envelope| match envelope.message {
        Message::LegEnded { outcome, .. } => outcome,
        other => panic!("{other:?}"),
    };
    ended.into_iter().map(outcome).collect()
}

pub(super) fn is_taken(outcomes: &[Outcome]) -> bool {
    matches!(outcomes, [Outcome::Taken { .. }])
}

/// The directory is moved, and removed at its new place before the leg arrives. If the leg were refused the driver
/// would repeat it for ever, and all moves of directories in the volume would wait.
#[test]
fn the_parent_of_a_directory_that_is_gone_is_set_to_nothing() {
    let ring = open(&storages());
    let (ask, leader) = (ring.ask(), ring.leader(ROOT.position()));
    let tree = Tree::new(&ring.bricks[leader.brick.0 as usize], &ask, leader.partition);
    let gone = InodeId::new(ROOT.position().0, 5, 1 << 40);
    let mut commit = Commit::default();
    assert!(crate::transactions::legs::set_parent(&tree, &mut commit, gone, ROOT, Time(1)).is_ok());
    assert!(commit.changes.is_empty());
    crate::transactions::legs::set_parent(&tree, &mut commit, ROOT, ROOT, Time(1)).unwrap();
    assert_eq!(commit.changes.len(), 1, "a directory that exists");
}

/// A chmod of a directory that an rmdir in another partition has closed must wait: the rmdir may still be undone.
#[test]
fn attributes_of_a_directory_that_may_be_removed_are_set_once_that_is_known() {
    let mut ring = open(&storages());
    ring.spread = 8;
    let made = ring.execute(make_directory(ROOT, b"d", 1));
    let Ok(Reply::Node { attr: Attr { id: inode, .. }, .. }) = made else { panic!("{made:?}") };
    ring.rest();
    let to = ring.leader(inode.position());
    let from = ring.leader(PartitionNumber((to.partition.0 + 1) % COUNT).first_position(COUNT));
    let epoch = ring.views[to.partition.0 as usize].epoch;
    let leg = |number, leg| {
        let (intent, volume, session, op_id) = (IntentId(1 << 90), VOLUME, SYSTEM_SESSION, OpId(0));
        let message = Message::Leg { intent, number, volume, session, op_id, leg, view: epoch };
        Event::Message(Envelope { ring: RING, from, to, epoch, message })
    };
    ring.tell(to, leg(0, Leg::CloseDirectory { inode, implied: false }));
    let changes = AttrChanges { mode: Some(0o700), ..Default::default() };
    let (ask, op) = (Ask { op_id: OpId(1), ..ring.ask() }, Op::Inode { op: InodeOp::SetAttr { inode, changes } });
    ring.tell(to, Event::Request { token: Token(1), ask, op });
    (0..3).for_each(|_| ring.tick());
    assert_eq!(ring.answers.get(&Token(1)), None, "the end of the rmdir is not known yet");
    ring.tell(to, leg(crate::transactions::legs::UNDOING, Leg::ReopenDirectory { inode }));
    (0..20).for_each(|_| ring.tick());
    let Some(Ok(Reply::Node { attr, .. })) = ring.answers.get(&Token(1)) else { panic!("{:?}", ring.answers) };
    assert_eq!((attr.mode, attr.nlink), (0o700, 2));
}

/// The inode counts a link in flight, so it outlives its last name. A lookup of the new name waits: otherwise a file
/// would be gone and come back.
#[test]
fn a_name_that_is_being_linked_is_waited_for() {
    for spread in [1, 8] {
        let mut ring = open(&storages());
        let file = create_file(&mut ring);
        ring.spread = spread;
        let made = ring.execute(make_directory(ROOT, b"d", 3 << 61));
        let Ok(Reply::Node { attr: Attr { id: dir, .. }, .. }) = made else { panic!("{made:?}") };
        ring.spreads.insert(dir, spread);
        ring.rest();
        let op = Op::Name { op: NameOp::Link { dir, name: name(b"b"), inode: file.id } };
        let (at, ask) = (ring.place(&op), Ask { op_id: OpId(1), ..ring.ask() });
        assert_ne!(at.partition, file.id.position().partition(COUNT), "over partitions");
        ring.handle(at, Event::Request { token: Token(1), ask, op });
        let mut ended = None;
        while let Some(envelope) = ring.queue.pop_front() {
            match envelope.message {
                Message::LegEnded { .. } if ended.is_none() => ended = Some(envelope),
                _ => ring.handle(envelope.to, Event::Message(envelope)),
            }
        }
        let ended = ended.expect("a leg counts the link");
        ring.name_op(NameOp::Unlink { dir: ROOT, name: name(b"f"), open_here: None }).unwrap();
        let looks = Op::Name { op: NameOp::Lookup { dir, name: name(b"b") } };
        let around = TestRing::around(&ring.bricks, &ring.views, at, 0);
        let part = NameOp::ListPart { dir, spread, after: None, limit: 100, attributes: false };
        let list = NameOp::List { dir, after: None, limit: 100, attributes: false, touch: false };
        for op in [looks.clone(), Op::Name { op: part }, Op::Name { op: list }] {
            assert_eq!(ring.partitions[&at].read(&around, &ring.ask(), &op), None, "{op:?}");
        }
        ring.tell(at, Event::Request { token: Token(2), ask: ring.ask(), op: looks });
        assert_eq!(ring.answers.get(&Token(2)), None, "the end of the link is not known yet");
        ring.tell(ended.to, Event::Message(ended));
        (0..20).for_each(|_| ring.tick());
        assert!(matches!(ring.answers[&Token(1)], Ok(Reply::Node { .. })), "{:?}", ring.answers);
        let found = ring.answers[&Token(2)].clone();
        assert!(matches!(found, Ok(Reply::Elsewhere { inode, .. }) if inode == file.id), "{found:?}");
        ring.rest();
        ring.check();
    }
}

/// Otherwise a session that was pledged that the name is missing would say so, though the inode has outlived its last name
/// by this one.
#[test]
fn a_link_over_partitions_begins_once_nobody_has_a_pledge_on_its_name_or_directory() {
    let mut ring = open(&storages());
    let file = create_file(&mut ring);
    let made = ring.execute(make_directory(ROOT, b"d", 3 << 61));
    let Ok(Reply::Node { attr: Attr { id: dir, .. }, .. }) = made else { panic!("{made:?}") };
    ring.rest();
    let link = Op::Name { op: NameOp::Link { dir, name: name(b"b"), inode: file.id } };
    let at = ring.place(&link);
    let other = Ask { session: SessionId(77), pledge: true, ..ring.ask() };
    let lookup = Op::Name { op: NameOp::Lookup { dir, name: name(b"b") } };
    let get_attr = Op::Inode { op: InodeOp::GetAttr { inode: dir } };
    let mut given = Vec::new();
    for (op, about) in [
        (lookup.clone(), Pledged::Name { dir, name: name(b"b") }),
        (get_attr.clone(), Pledged::Attributes { inode: dir }),
    ] {
        let Ok(Reply::Pledged { pledges, .. }) = ring.read_as(&other, at, op) else { panic!("no pledge") };
        given.push((pledges[0].term, Pledge { about, number: pledges[0].number }));
    }
    let ask = Ask { op_id: OpId(1), ..ring.ask() };
    ring.handle(at, Event::Request { token: Token(1), ask, op: link });
    let is_leg = |envelope: &Envelope| matches!(envelope.message, Message::Leg { .. });
    for (term, pledge) in given {
        assert!(!ring.queue.iter().any(is_leg) && !ring.answers.contains_key(&Token(1)), "{pledge:?}");
        let (session, volume, pledges, reports) = (other.session, VOLUME, vec![pledge], Vec::new());
        ring.handle(at, Event::Returned { session, volume, term, pledges, reports });
    }
    assert!(ring.queue.iter().any(|envelope| !is_leg(envelope)), "the op has begun");
    let around = TestRing::around(&ring.bricks, &ring.views, at, 0);
    let shown = ring.partitions[&at].read(&around, &other, &get_attr);
    assert!(!matches!(shown, Some(Ok(Reply::Pledged { .. }))), "nothing is pledged meanwhile: {shown:?}");
    assert_eq!(ring.partitions[&at].read(&around, &other, &lookup), None);
    (0..20).for_each(|_| ring.tick());
    assert!(matches!(ring.answers[&Token(1)], Ok(Reply::Node { .. })), "{:?}", ring.answers);
    ring.rest();
    ring.check();
}

/// The answer was lost with a connection, and the driver sends the leg again.
#[test]
fn a_leg_that_comes_twice_is_answered_as_at_first() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let ways = (elsewhere(&ring, root), root);
    let inode = create_file(&mut ring).id;
    let made = ring.execute(make_directory(ROOT, b"d", 1));
    let Ok(Reply::Node { attr: Attr { id: dir, .. }, .. }) = made else { panic!("{made:?}") };
    let make = |inode: InodeId| {
        let (access_acl, default_acl, implied) = Default::default();
        Leg::MakeDirectory {
            inode,
            parent: ROOT,
            mode: 0o755,
            uid: 1,
            gid: 1,
            spread: 8,
            access_acl,
            default_acl,
            implied,
        }
    };
    let (home, far) = (InodeId::new(0, 9, 1 << 30), InodeId::new(u32::MAX, 9, 1 << 30));
    let held = name(b"f");
    let legs = [
        make(home),
        make(far),
        Leg::AddLink { inode },
        Leg::HoldName { dir: ROOT, name: held.clone() },
        Leg::CloseDirectory { inode: dir, implied: false },
        Leg::HoldStub { dir: home },
        Leg::HoldMoves,
    ];
    // Whether the inode was made just now does not matter here.
    let answer = |outcomes: Vec<Outcome>| match &outcomes[..] {
        [Outcome::Taken { reply: Reply::Node { attr, .. } }] => Reply::Node { attr: attr.clone(), created: false },
        [Outcome::Taken { reply }] => reply.clone(),
        other => panic!("{other:?}"),
    };
    for (number, leg_twice) in (0..).zip(legs) {
        let first = answer(leg(&mut ring, ways, number, leg_twice.clone()));
        assert_eq!(answer(leg(&mut ring, ways, number, leg_twice)), first);
    }
    let getattr = Op::Inode { op: InodeOp::GetAttr { inode } };
    let undo = Leg::TakeBackLink { inode };
    (0..2).for_each(|_| assert!(is_taken(&leg(&mut ring, ways, UNDOING | 2, undo.clone()))));
    let Ok(Reply::Node { attr, .. }) = ring.execute_at(root, getattr) else { panic!("no file") };
    assert_eq!(attr.nlink, 1, "undone once");
}

/// A rename that other clients see already may move a directory to a held name, and each is a link of its parent.
#[test]
fn links_of_a_directory_are_not_shown_while_a_name_in_it_is_held() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let ways = (elsewhere(&ring, root), root);
    create_file(&mut ring);
    ring.answers.clear();
    assert!(is_taken(&leg(&mut ring, ways, 0, Leg::HoldName { dir: ROOT, name: name(b"f") })));
    let changes = AttrChanges { mode: Some(0o711), ..AttrChanges::default() };
    let ops = [InodeOp::GetAttr { inode: ROOT }, InodeOp::SetAttr { inode: ROOT, changes }];
    for (token, op) in (1..).zip(ops.clone()) {
        begin(&mut ring, token, Op::Inode { op });
    }
    deliver_but(&mut ring, |_| false);
    assert!(ring.answers.is_empty(), "{:?}", ring.answers);
    assert!(is_taken(&leg(&mut ring, ways, UNDOING, Leg::ReleaseName { dir: ROOT, name: name(b"f") })));
    (0..20).for_each(|_| ring.tick());
    for (token, op) in (1..).zip(ops) {
        assert!(matches!(ring.answers.get(&Token(token)), Some(Ok(Reply::Node { .. }))), "{op:?} {:?}", ring.answers);
    }
}

/// Two concurrent moves could put each directory below the other, where no path leads.
#[test]
fn directories_are_moved_by_one_op_of_the_volume_at_a_time() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let ways = (elsewhere(&ring, root), root);
    assert!(is_taken(&leg_of(&mut ring, ways, 1 << 90, 0, Leg::HoldMoves)));
    assert_eq!(leg_of(&mut ring, ways, 2 << 90, 0, Leg::HoldMoves), [Outcome::Busy]);
    assert!(is_taken(&leg_of(&mut ring, ways, 1 << 90, 1, Leg::ReleaseMoves)));
    assert!(is_taken(&leg_of(&mut ring, ways, 2 << 90, 0, Leg::HoldMoves)));
}

/// Other moves read parents to find out whether a directory would be moved below itself.
#[test]
fn directories_move_again_once_the_parent_of_the_last_one_is_set() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    for (text, seed) in [(b"a", 0), (b"b", seed_of(there.partition))] {
        ring.execute(make_directory(ROOT, text, seed)).unwrap();
    }
    let lookup = Op::Name { op: NameOp::Lookup { dir: ROOT, name: name(b"a") } };
    let Ok(Reply::Node { attr: Attr { id: to_dir, .. }, .. }) = ring.read(lookup) else { panic!("no directory") };
    ring.rest();
    let (dir, mode, open_here) = (ROOT, RenameMode::Replace, None);
    let moves = NameOp::Rename { dir, name: name(b"b"), to_dir, to_name: name(b"b"), mode, open_here };
    begin(&mut ring, 1, Op::Name { op: moves });
    let is_release = |envelope: &Envelope| matches!(&envelope.message, Message::Leg { leg: Leg::ReleaseMoves, .. });
    let mut released = false;
    let sets = deliver_but(&mut ring, |envelope| {
        released |= is_release(envelope);
        matches!(&envelope.message, Message::Leg { leg: Leg::SetParent { .. }, .. })
    });
    assert!(!sets.is_empty() && !released, "{sets:?}");
    (0..12).for_each(|_| ring.clock += 100_000_000);
    ring.queue.extend(sets);
    deliver_but(&mut ring, |envelope| {
        released |= is_release(envelope);
        false
    });
    assert!(released);
    assert!(ring.answers[&Token(1)].is_ok());
    ring.rest();
    ring.check();
}

/// Clients that cache a file or its attributes rely on the change count and times.
#[test]
fn what_is_renamed_or_linked_over_partitions_has_changed() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    let inode = create_file(&mut ring).id;
    let made = ring.execute(make_directory(ROOT, b"d", seed_of(there.partition)));
    let Ok(Reply::Node { attr: Attr { id: dir, .. }, .. }) = made else { panic!("{made:?}") };
    let attr = |ring: &mut TestRing| {
        ring.rest();
        let Ok(Reply::Node { attr, .. }) = ring.read(Op::Inode { op: InodeOp::GetAttr { inode } }) else { panic!() };
        (attr.change, attr.ctime, attr.nlink)
    };
    let mut before = attr(&mut ring);
    let (mode, open_here) = (RenameMode::Replace, None);
    let steps = [
        (NameOp::Link { dir, name: name(b"g"), inode }, 2),
        (NameOp::Rename { dir: ROOT, name: name(b"f"), to_dir: dir, to_name: name(b"f"), mode, open_here }, 2),
        (NameOp::Unlink { dir, name: name(b"g"), open_here: None }, 1),
        (NameOp::Rename { dir, name: name(b"f"), to_dir: ROOT, to_name: name(b"f"), mode, open_here }, 1),
    ];
    for (op, links) in steps {
        ring.name_op(op.clone()).unwrap();
        let after = attr(&mut ring);
        assert!(after.0 > before.0 && after.1 > before.1, "{op:?}: {before:?} {after:?}");
        assert_eq!(after.2, links, "{op:?}");
        before = after;
    }
    ring.check();
}

/// A link delivers late what it could not deliver while the leader of the leg's partition changed and changed back.
#[test]
fn a_copy_of_a_leg_that_arrives_in_a_later_view_is_not_taken_again() {
    let mut ring = open(&storages());
    let there = elsewhere(&ring, ring.leader(ROOT.position()));
    begin(&mut ring, 1, make_directory(ROOT, b"d", seed_of(there.partition)));
    let is_leg = |sent: &Envelope| matches!(sent.message, Message::Leg { leg: Leg::MakeDirectory { .. }, .. });
    let legs = deliver_but(&mut ring, is_leg);
    let [Envelope { message: Message::Leg { leg: Leg::MakeDirectory { inode, .. }, .. }, .. }] = legs[..] else {
        panic!("{legs:?}")
    };
    ring.queue.extend(legs.clone());
    ring.rest();
    let changes = AttrChanges { mode: Some(0o700), ..Default::default() };
    ring.execute(Op::Inode { op: InodeOp::SetAttr { inode, changes } }).unwrap();
    begin_anew(&mut ring, there);
    ring.rest();
    ring.queue.extend(legs);
    ring.rest();
    let attr = ring.execute(Op::Inode { op: InodeOp::GetAttr { inode } });
    assert!(matches!(&attr, Ok(Reply::Node { attr, .. }) if attr.mode == 0o700), "{attr:?}");
    ring.check();
}

fn rename((dir, from): (InodeId, &[u8]), (to_dir, to): (InodeId, &[u8])) -> Op {
    let (name, to_name, mode) = (name(from), name(to), RenameMode::Replace);
    Op::Name { op: NameOp::Rename { dir, name, to_dir, to_name, mode, open_here: None } }
}

/// Each of two renames holds the name that the other one waits for. All leaders tick at the same time: if both renames
/// began again with the same tick, they would meet for ever.
#[test]
fn renames_that_hold_what_the_other_wants_both_end() {
    let mut ring = open(&storages());
    let mut dirs = Vec::new();
    for (text, partition) in [(b"c", 1), (b"d", COUNT - 1)] {
        let position = PartitionNumber(partition).first_position(COUNT);
        let made = ring.execute(make_directory(ROOT, text, u64::from(position.0) << 32));
        let Ok(Reply::Node { attr: Attr { id: dir, .. }, .. }) = made else { panic!("{made:?}") };
        let (name, node, mode) = (name(b"f"), NewNode::File, 0o644);
        let file = NameOp::Create { dir, name, node, mode, uid: 1, gid: 1, umask: 0, exclusive: true, seed: 7 };
        ring.name_op(file).unwrap();
        dirs.push(dir);
    }
    ring.rest();
    let [one, other] = dirs[..] else { panic!("{dirs:?}") };
    let renames = [rename((one, b"f"), (other, b"f")), rename((other, b"f"), (one, b"f"))];
    let tokens = [Token(1), Token(2)];
    for (token, op) in tokens.into_iter().zip(renames) {
        let (at, ask) = (ring.place(&op), Ask { op_id: OpId(token.0), ..ring.ask() });
        ring.handle(at, Event::Request { token, ask, op });
    }
    ring.deliver();
    let addresses: Vec<Address> = ring.partitions.keys().copied().collect();
    for _ in 0..1000 {
        ring.clock += 10_000_000;
        addresses.iter().for_each(|address| ring.handle(*address, Event::Tick));
        ring.deliver();
    }
    let ended = tokens.map(|token| ring.answers.get(&token));
    assert!(ended.iter().all(Option::is_some), "{ended:?}");
    assert!(ended.iter().flatten().any(|answer| answer.is_ok()), "one of them finds its file: {ended:?}");
    assert!(ring.branches.contains("an op is undone and begins again"), "they met: {:?}", ring.branches);
    ring.rest();
    ring.check();
}
