//! What a leader answers and when: nothing that some member lacks, and nothing that another op holds.

use super::drive::{begin, begin_anew, deliver_but, elsewhere, seed_of};
use super::heal::{form, set_view, write};
use super::legs::{is_taken, leg};
use super::*;

fn get_attr(inode: InodeId) -> Op {
    Op::Inode { op: InodeOp::GetAttr { inode } }
}

fn lookup(text: &[u8]) -> Op {
    Op::Name { op: NameOp::Lookup { dir: ROOT, name: name(text) } }
}

fn made(ring: &mut TestRing, dir: InodeId, seed: u64) -> InodeId {
    let Ok(Reply::Node { attr, .. }) = ring.execute(make_directory(dir, b"d", seed)) else { panic!("not made") };
    ring.rest();
    attr.id
}

fn fetch(inode: InodeId) -> Op {
    Op::Inode { op: InodeOp::Fetch { inode, attribute: Bytes::new(), content: false } }
}

fn unlink(text: &[u8]) -> Op {
    Op::Name { op: NameOp::Unlink { dir: ROOT, name: name(text), open_here: None } }
}

fn list() -> Op {
    Op::Name { op: NameOp::List { dir: ROOT, after: None, limit: 100, attributes: false, touch: false } }
}

fn chmod(inode: InodeId, mode: u16) -> Op {
    Op::Inode { op: InodeOp::SetAttr { inode, changes: AttrChanges { mode: Some(mode), ..Default::default() } } }
}

fn file_op(text: &[u8]) -> Op {
    let (name, node, mode) = (name(text), NewNode::File, 0o644);
    Op::Name { op: NameOp::Create { dir: ROOT, name, node, mode, uid: 1, gid: 1, umask: 0, exclusive: true, seed: 7 } }
}

/// open(2) with O_CREAT, of a file that exists.
fn open_op(text: &[u8]) -> Op {
    let Op::Name { op: NameOp::Create { dir, name, node, mode, uid, gid, umask, seed, .. } } = file_op(text) else {
        panic!()
    };
    Op::Name { op: NameOp::Create { dir, name, node, mode, uid, gid, umask, exclusive: false, seed } }
}

fn file(ring: &mut TestRing, text: &[u8]) -> InodeId {
    let Ok(Reply::Node { attr, .. }) = ring.execute(file_op(text)) else { panic!("no file") };
    attr.id
}

/// What a leader answers at once.
fn read_now(ring: &TestRing, at: Address, op: &Op) -> Option<Result<Reply>> {
    let around = TestRing::around(&ring.bricks, &ring.views, at, ring.clock);
    ring.partitions[&at].read(&around, &ring.ask(), op)
}

/// If the member that lacks a record leads next, a client has seen what never happened.
#[test]
fn what_some_member_lacks_is_shown_to_nobody() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let (one, other) = (file(&mut ring, b"f"), file(&mut ring, b"g"));
    let position = |data: u128| ShardId { volume: VOLUME, data: DataId(data), index: 0 }.position();
    let here: Vec<u128> = (1..).filter(|data| position(*data).partition(COUNT) == root.partition).take(2).collect();
    here.iter().for_each(|data| drop(write(&mut ring, *data, 0, vec![1; 100]).unwrap()));
    let write_shard = |data| {
        let (data, bytes) = (DataId(data), Bytes::from_static(b"new"));
        Op::Data { op: DataOp::WriteShard { data, index: 0, offset: 0, bytes, follow: None, fast: false } }
    };
    let read_shard = |data| Op::Data { op: DataOp::ReadShard { data: DataId(data), index: 0, offset: 0, length: 100 } };
    let write = |inode| Op::Data {
        op: DataOp::Write { inode, offset: 0, data: Bytes::from_static(b"new"), drop_set_id: false },
    };
    let read = |inode| Op::Data { op: DataOp::Read { inode, offset: 0, length: 100, touch: false } };
    let all = [
        (chmod(one, 0o600), vec![get_attr(one), lookup(b"f"), read(one), list()], vec![get_attr(other), lookup(b"g")]),
        (write(one), vec![read(one), get_attr(one), lookup(b"f")], vec![read(other)]),
        (write_shard(here[0]), vec![read_shard(here[0])], vec![read_shard(here[1]), get_attr(other)]),
        (file_op(b"h"), vec![lookup(b"h"), lookup(b"x"), get_attr(ROOT), list()], vec![get_attr(other)]),
        (unlink(b"f"), vec![lookup(b"f"), get_attr(one), list()], vec![get_attr(other), read(other)]),
    ];
    for (token, (change, shown, others)) in (1..).zip(all) {
        begin(&mut ring, token, change.clone());
        for op in &shown {
            assert_eq!(read_now(&ring, root, op), None, "{op:?} after {change:?}");
        }
        assert!(others.iter().all(|op| read_now(&ring, root, op).is_some()), "after {change:?}");
        begin(&mut ring, 100 + token, shown[0].clone());
        assert!(ring.answers.is_empty(), "{change:?}: {:?}", ring.answers);
        ring.deliver();
        let answers = std::mem::take(&mut ring.answers);
        assert!(answers[&Token(token)].is_ok() && answers.contains_key(&Token(100 + token)));
        assert!(shown.iter().all(|op| read_now(&ring, root, op).is_some()));
    }
}

/// The change would be on fewer replicas than the volume demands.
#[test]
fn a_partition_with_too_few_members_answers_nobody() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let number = root.partition.0;
    let view = ring.views[number as usize].clone();
    set_view(&mut ring, number, View { epoch: Epoch(2), too_few: true, ..view.clone() });
    (0..10).for_each(|_| ring.tick());
    assert!(ring.partitions[&root].serves());
    assert_eq!(read_now(&ring, root, &get_attr(ROOT)), None);
    for (token, op) in (1..).zip([get_attr(ROOT), chmod(ROOT, 0o700)]) {
        begin(&mut ring, token, op);
    }
    (0..10).for_each(|_| ring.tick());
    assert!(ring.answers.is_empty(), "{:?}", ring.answers);
    // Damage is repaired all the same: no client sees that, and a learner may need it.
    let (token, commit) = (Token(3), Box::default());
    ring.tell(root, Event::ChangeNow { token, commit });
    (0..10).for_each(|_| ring.tick());
    assert!(matches!(ring.answers.get(&token), Some(Ok(_))), "{:?}", ring.answers);
    set_view(&mut ring, number, View { epoch: Epoch(3), ..view });
    (0..10).for_each(|_| ring.tick());
    let Some(Ok(Reply::Node { attr, .. })) = ring.answers.get(&Token(2)) else { panic!("{:?}", ring.answers) };
    assert_eq!((attr.mode, ring.answers[&Token(1)].is_ok()), (0o700, true));
}

/// A session that has gone must not remove what its successor makes.
#[test]
fn what_waits_and_was_taken_back_is_not_done() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let ways = (elsewhere(&ring, root), root);
    file(&mut ring, b"f");
    assert!(is_taken(&leg(&mut ring, ways, 0, Leg::HoldName { dir: ROOT, name: name(b"f") })));
    begin(&mut ring, 1, lookup(b"f"));
    begin(&mut ring, 2, unlink(b"f"));
    begin(&mut ring, 3, lookup(b"f"));
    ring.tell(root, Event::Abandon { token: Token(2) });
    assert_eq!(ring.answers.keys().copied().collect::<Vec<_>>(), [Token(2)]);
    assert!(matches!(ring.answers[&Token(2)], Err(Error::Unavailable { .. })));
    leg(&mut ring, ways, crate::transactions::legs::UNDOING, Leg::ReleaseName { dir: ROOT, name: name(b"f") });
    (0..10).for_each(|_| ring.tick());
    assert!(ring.answers[&Token(1)].is_ok() && ring.answers[&Token(3)].is_ok(), "{:?}", ring.answers);
}

/// Otherwise two ops would move it, so that it has two names, or a client finds it under neither.
#[test]
fn a_name_that_another_partition_renames_is_neither_shown_nor_changed() {
    for moves in [false, true] {
        let mut ring = open(&storages());
        let root = ring.leader(ROOT.position());
        let ways = (elsewhere(&ring, root), root);
        let inode = file(&mut ring, b"f");
        file(&mut ring, b"g");
        let (dir, held) = (ROOT, name(b"f"));
        assert!(is_taken(&leg(&mut ring, ways, 0, Leg::HoldName { dir, name: held.clone() })));
        let waiting = [lookup(b"f"), list(), get_attr(ROOT), unlink(b"f")];
        assert!(waiting[..3].iter().all(|op| read_now(&ring, root, op).is_none()));
        assert!(read_now(&ring, root, &lookup(b"g")).is_some_and(|found| found.is_ok()));
        assert!(read_now(&ring, root, &get_attr(inode)).is_some_and(|found| found.is_ok()), "the file itself");
        for (token, op) in (1..).zip(waiting) {
            begin(&mut ring, token, op);
        }
        begin(&mut ring, 5, unlink(b"g"));
        (0..10).for_each(|_| ring.tick());
        assert_eq!(ring.answers.keys().copied().collect::<Vec<_>>(), [Token(5)]);
        let (number, ends) = match moves {
            true => (1, Leg::ReplaceName { dir, name: held, new: None }),
            false => (crate::transactions::legs::UNDOING, Leg::ReleaseName { dir, name: held }),
        };
        assert!(is_taken(&leg(&mut ring, ways, number, ends)));
        (0..10).for_each(|_| ring.tick());
        assert_eq!(ring.answers[&Token(1)].is_ok(), !moves, "{:?}", ring.answers);
        assert_eq!(ring.answers[&Token(4)].is_ok(), !moves, "{:?}", ring.answers);
        assert!(ring.answers[&Token(2)].is_ok() && ring.answers[&Token(3)].is_ok());
    }
}

/// Otherwise a client that has found a moved directory under its new name would find one link too many at the old parent.
#[test]
fn links_of_a_directory_are_not_shown_while_another_partition_renames_a_name_in_it() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let ways = (elsewhere(&ring, root), root);
    let dir = made(&mut ring, ROOT, seed_of(root.partition));
    let below = made(&mut ring, dir, seed_of(root.partition));
    let parent = Op::Inode { op: InodeOp::Parent { inode: below } };
    let list = Op::Name { op: NameOp::List { dir: ROOT, after: None, limit: 9, attributes: true, touch: false } };
    let links = |ring: &TestRing| -> Vec<Option<u32>> {
        let of = |op: &Op| match read_now(ring, root, op) {
            Some(Ok(Reply::Node { attr, .. })) => Some(attr.nlink),
            Some(Ok(Reply::Elsewhere { inode, kind: NodeKind::Directory })) if inode == dir => None,
            Some(Ok(Reply::List { entries, .. })) => entries[0].attr.as_ref().map(|attr| attr.nlink),
            other => panic!("{other:?}"),
        };
        [&lookup(b"d"), &parent, &list].map(of).into()
    };
    assert_eq!(links(&ring), [Some(3); 3]);
    let held = name(b"d");
    assert!(is_taken(&leg(&mut ring, ways, 0, Leg::HoldName { dir, name: held.clone() })));
    assert_eq!(links(&ring), [None; 3]);
    for (token, op) in (1..).zip([lookup(b"d"), list.clone(), get_attr(dir), fetch(dir)]) {
        begin(&mut ring, token, op);
    }
    assert!(matches!(ring.answers[&Token(1)], Ok(Reply::Elsewhere { .. })), "{:?}", ring.answers);
    assert_eq!(ring.answers.len(), 2, "who asks for the attributes waits");
    assert!(is_taken(&leg(&mut ring, ways, 1, Leg::ReplaceName { dir, name: held, new: None })));
    (0..10).for_each(|_| ring.tick());
    assert_eq!((links(&ring), ring.answers.len()), (vec![Some(2); 3], 4));
}

/// The log has the hold.
#[test]
fn a_name_that_another_partition_renames_is_held_by_the_next_leader_too() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let ways = (elsewhere(&ring, root), root);
    file(&mut ring, b"f");
    let (dir, held) = (ROOT, name(b"f"));
    assert!(is_taken(&leg(&mut ring, ways, 0, Leg::HoldName { dir, name: held.clone() })));
    let is_asked = |envelope: &Envelope| matches!(envelope.message, Message::IsGone { .. });
    begin_anew(&mut ring, root);
    deliver_but(&mut ring, is_asked);
    assert!(ring.partitions[&root].serves());
    let waiting = [lookup(b"f"), list(), get_attr(ROOT), unlink(b"f")];
    assert!(waiting[..3].iter().all(|op| read_now(&ring, root, op).is_none()));
    for (token, op) in (1..).zip(waiting) {
        begin(&mut ring, token, op);
    }
    deliver_but(&mut ring, is_asked);
    assert!(ring.answers.is_empty(), "{:?}", ring.answers);
    assert!(is_taken(&leg(&mut ring, ways, 1, Leg::ReplaceName { dir, name: held, new: None })));
    (0..10).for_each(|_| ring.tick());
    assert!(ring.answers[&Token(1)].is_err() && ring.answers[&Token(4)].is_err(), "{:?}", ring.answers);
    assert!(ring.answers[&Token(2)].is_ok() && ring.answers[&Token(3)].is_ok());
}

/// Otherwise a directory in which names are renamed all the time could not be listed.
#[test]
fn who_counts_a_directory_comes_before_the_next_rename_out_of_it() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let ways = (elsewhere(&ring, root), root);
    file(&mut ring, b"f");
    file(&mut ring, b"g");
    assert!(is_taken(&leg(&mut ring, ways, 0, Leg::HoldName { dir: ROOT, name: name(b"f") })));
    begin(&mut ring, 1, list());
    assert_eq!(leg(&mut ring, ways, 1, Leg::HoldName { dir: ROOT, name: name(b"g") }), [Outcome::Busy]);
    assert!(is_taken(&leg(&mut ring, ways, 0, Leg::HoldName { dir: ROOT, name: name(b"f") })), "sent once more");
    leg(&mut ring, ways, crate::transactions::legs::UNDOING, Leg::ReleaseName { dir: ROOT, name: name(b"f") });
    assert!(ring.answers[&Token(1)].is_ok());
    assert!(is_taken(&leg(&mut ring, ways, 1, Leg::HoldName { dir: ROOT, name: name(b"g") })));
}

/// A directory that two ops move at the same time would have two names.
#[test]
fn a_name_of_an_op_on_its_way_is_held_for_nobody_else() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    let ways = (there, root);
    ring.execute(make_directory(ROOT, b"d", seed_of(there.partition))).unwrap();
    ring.rest();
    begin(&mut ring, 1, Op::Name { op: NameOp::Rmdir { dir: ROOT, name: name(b"d") } });
    let sent = deliver_but(&mut ring, |envelope| matches!(envelope.message, Message::Leg { .. }));
    assert!(!sent.is_empty(), "the op is in flight");
    assert_eq!(leg(&mut ring, ways, 0, Leg::HoldName { dir: ROOT, name: name(b"d") }), [Outcome::Busy]);
    begin(&mut ring, 2, make_directory(ROOT, b"d", 0));
    ring.deliver();
    assert_eq!(ring.answers.get(&Token(2)), None, "the name is not given again");
    ring.queue.extend(sent);
    (0..10).for_each(|_| ring.tick());
    assert!(ring.answers[&Token(1)].is_ok() && ring.answers[&Token(2)].is_ok(), "{:?}", ring.answers);
    ring.rest();
    ring.check();
}

/// A client that knew the new layout could write to the shard that is yet to be cut, and lose that.
#[test]
fn a_file_that_is_being_cut_is_shown_and_linked_once_its_shards_are_cut() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let inode = file(&mut ring, b"f");
    let small = DataOp::Write { inode, offset: 0, data: vec![1; 100].into(), drop_set_id: false };
    ring.execute(Op::Data { op: small }).unwrap();
    let spilt = ring.execute(Op::Data { op: DataOp::Spill { inode } });
    let Ok(Reply::Node { attr, .. }) = spilt else { panic!("{spilt:?}") };
    let (data, layout_version) = (attr.layout.pieces[0].data, attr.layout.version);
    let shard = |index| ShardId { volume: VOLUME, data, index };
    let far = (1..).find(|index| ring.leader(shard(*index).position()).partition != root.partition).unwrap();
    let bytes = Bytes::from(vec![2; 100]);
    let op = DataOp::WriteShard { data, index: far, offset: 0, bytes, follow: None, fast: false };
    ring.execute(Op::Data { op }).unwrap();
    let end = far * SHARD_BYTES + 100;
    let wrote = DataOp::Wrote { inode, layout_version, end, reach: end, drop_set_id: false, fast: false, age: 0 };
    ring.execute(Op::Data { op: wrote }).unwrap();
    ring.rest();
    let size = Some(far * SHARD_BYTES + 10);
    let cuts = Op::Inode { op: InodeOp::SetAttr { inode, changes: AttrChanges { size, ..Default::default() } } };
    begin(&mut ring, 1, cuts);
    let sent = deliver_but(&mut ring, |envelope| matches!(envelope.message, Message::Leg { .. }));
    assert!(!sent.is_empty());
    let ways = (elsewhere(&ring, root), root);
    assert_eq!(leg(&mut ring, ways, 0, Leg::AddLink { inode }), [Outcome::Busy]);
    let links = Op::Name { op: NameOp::Link { dir: ROOT, name: name(b"g"), inode } };
    let shown = [get_attr(inode), lookup(b"f"), chmod(inode, 0o600), links, open_op(b"f")];
    assert!(shown[..2].iter().all(|op| read_now(&ring, root, op).is_none()));
    for (token, op) in (2..).zip(shown) {
        begin(&mut ring, token, op);
    }
    begin(&mut ring, 7, get_attr(ROOT));
    deliver_but(&mut ring, |_| false);
    assert_eq!(ring.answers.keys().copied().collect::<Vec<_>>(), [Token(7)], "{:?}", ring.answers);
    ring.queue.extend(sent);
    (0..10).for_each(|_| ring.tick());
    let answered = |token| ring.answers.get(&Token(token)).is_some_and(|reply| reply.is_ok());
    assert!((1..=6).all(answered), "{:?}", ring.answers);
    let read = DataOp::ReadShard { data, index: far, offset: 0, length: 100 };
    assert_eq!(ring.read(Op::Data { op: read }), Ok(Reply::Data { bytes: vec![2; 10].into() }));
    assert!(is_taken(&leg(&mut ring, ways, 0, Leg::AddLink { inode })));
}

/// Otherwise an acknowledged write would stay beside the inode and be lost.
#[test]
fn a_small_file_whose_bytes_move_into_a_shard_is_changed_afterwards() {
    let mut ring = open(&storages());
    let (drop_set_id, data) = (false, Bytes::from_static(b"new"));
    let old = Bytes::from_static(b"0123456789");
    // A file whose shard is in another partition.
    let moving = (b'a'..=b'z').find_map(|text| {
        let inode = file(&mut ring, &[text]);
        let write = DataOp::Write { inode, offset: 0, data: old.clone(), drop_set_id };
        ring.execute(Op::Data { op: write }).unwrap();
        begin(&mut ring, u64::from(text), Op::Data { op: DataOp::Spill { inode } });
        let legs = deliver_but(&mut ring, |envelope| matches!(envelope.message, Message::Leg { .. }));
        (!legs.is_empty()).then_some((inode, legs))
    });
    let (inode, legs) = moving.unwrap();
    ring.answers.clear();
    let ops = [
        DataOp::Write { inode, offset: 0, data: data.clone(), drop_set_id },
        DataOp::Append { inode, data, drop_set_id },
        DataOp::Allocate { inode, offset: 0, length: 5, mode: Allocate::Punch, drop_set_id },
        DataOp::Spill { inode },
    ];
    for (token, op) in (1..).zip(ops) {
        begin(&mut ring, token, Op::Data { op });
    }
    deliver_but(&mut ring, |_| false);
    assert!(ring.answers.is_empty(), "{:?}", ring.answers);
    ring.queue.extend(legs);
    (0..10).for_each(|_| ring.tick());
    let Ok(Reply::Node { attr, .. }) = ring.read(get_attr(inode)) else { panic!("no file") };
    let shard = DataOp::ReadShard { data: attr.layout.pieces[0].data, index: 0, offset: 0, length: 100 };
    assert_eq!(ring.read(Op::Data { op: shard }), Ok(Reply::Data { bytes: old }));
    for token in 1..=4 {
        let answer = &ring.answers[&Token(token)];
        assert!(matches!(answer, Ok(Reply::Node { attr: now, .. }) if now.layout == attr.layout), "{answer:?}");
    }
}

/// The file has more shards than one record drops. A client that knows the old layout must not make one of them again,
/// as it would never be dropped.
#[test]
fn nothing_is_left_of_a_great_file_that_was_removed() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let inode = file(&mut ring, b"f");
    let spilt = ring.execute(Op::Data { op: DataOp::Spill { inode } });
    let Ok(Reply::Node { attr, .. }) = spilt else { panic!("{spilt:?}") };
    let (data, layout_version) = (attr.layout.pieces[0].data, attr.layout.version);
    let partition = |index| ShardId { volume: VOLUME, data, index }.position().partition(COUNT);
    let indices: Vec<u64> = (0..).filter(|index| partition(*index) == root.partition).take(1100).collect();
    let write = |ring: &mut TestRing, index| {
        let bytes = Bytes::from_static(b"x");
        ring.execute(Op::Data { op: DataOp::WriteShard { data, index, offset: 0, bytes, follow: None, fast: false } })
    };
    for index in &indices {
        write(&mut ring, *index).unwrap();
    }
    let end = (indices.last().unwrap() + 1) * SHARD_BYTES;
    let wrote = DataOp::Wrote { inode, layout_version, end, reach: end, drop_set_id: false, fast: false, age: 0 };
    ring.execute(Op::Data { op: wrote }).unwrap();
    ring.execute(unlink(b"f")).unwrap();
    ring.rest();
    ring.check();
    for view in ring.views.iter().take(root.partition.0 as usize + 1).skip(root.partition.0 as usize) {
        for member in &view.members {
            let brick = &ring.bricks[member.brick.0 as usize];
            assert!(brick.shards(RING, root.partition, COUNT).unwrap().is_empty(), "{:?}", member.brick);
        }
    }
    assert!(!ring.entries().iter().any(|(key, _)| key.kind() == Some(Kind::Garbage)));
    // Once the drop is in a checkpoint bricks do not report it any more.
    (0..2).for_each(|_| ring.write_home());
    assert_eq!(write(&mut ring, indices[0]), Err(Error::LayoutChanged));
    // The bricks have forgotten it by then.
    (0..2).for_each(|_| ring.write_home());
    assert_eq!(write(&mut ring, indices[0]), Err(Error::LayoutChanged));
}

/// The file is sparse, and has too many indexes to look them up one by one.
#[test]
fn the_longest_file_is_removed_as_fast_as_others() {
    let mut ring = open(&storages());
    let inode = file(&mut ring, b"f");
    let spilt = ring.execute(Op::Data { op: DataOp::Spill { inode } });
    let Ok(Reply::Node { attr, .. }) = spilt else { panic!("{spilt:?}") };
    let (layout_version, end) = (attr.layout.version, FILE_BYTES_MAX);
    let wrote = DataOp::Wrote { inode, layout_version, end, reach: end, drop_set_id: false, fast: false, age: 0 };
    ring.execute(Op::Data { op: wrote }).unwrap();
    ring.execute(unlink(b"f")).unwrap();
    ring.rest();
    assert!(!ring.entries().iter().any(|(key, _)| key.kind() == Some(Kind::Garbage)));
}

/// A shutdown waits for it, and so do clients that free space.
#[test]
fn work_is_counted_until_it_is_done() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let there = elsewhere(&ring, root);
    let left = |ring: &TestRing| [root, there].map(|at| ring.partitions[&at].work_left());
    ring.rest();
    begin(&mut ring, 1, make_directory(ROOT, b"d", seed_of(there.partition)));
    let ended = deliver_but(&mut ring, |sent| matches!(sent.message, Message::LegEnded { .. }));
    assert_eq!(left(&ring), [1, 1], "an op, and the mark of its leg");
    ring.queue.extend(ended);
    ring.deliver();
    assert_eq!(left(&ring), [0, 1], "the mark is to be removed");
    ring.rest();
    assert_eq!(left(&ring), [0, 0]);
    let inode = file(&mut ring, b"f");
    ring.execute(Op::Data { op: DataOp::Spill { inode } }).unwrap();
    begin(&mut ring, 2, unlink(b"f"));
    ring.deliver();
    assert_eq!(left(&ring), [1, 0], "the shards are to be dropped");
    ring.rest();
    assert_eq!(left(&ring), [0, 0]);
}

/// A repair must not be reported as failed when it succeeded.
#[test]
fn a_change_of_what_was_just_looked_at_is_answered_once() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    ring.handle(root, Event::ChangeNow { token: Token(1), commit: Box::default() });
    assert!(ring.answers.is_empty(), "{:?}", ring.answers);
    ring.deliver();
    assert_eq!(ring.answers.remove(&Token(1)), Some(Ok(Reply::Done)));
}

/// relatime, mount(8).
#[test]
fn a_file_that_was_read_says_when() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let inode = file(&mut ring, b"f");
    ring.clock += 1_000_000_000;
    let now = Time(ring.clock);
    ring.tell(root, Event::Accessed { token: Token(0), volume: VOLUME, inode, session: SessionId(1) });
    let Ok(Reply::Node { attr, .. }) = ring.read(get_attr(inode)) else { panic!("no file") };
    assert_eq!(attr.atime, now);
    ring.check();
}

/// A member appends only records that follow what it has, and what it has is unknown here. An access time is not worth
/// that readers' requests pile up.
#[test]
fn nothing_changes_while_a_member_is_away() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let inode = file(&mut ring, b"f");
    let member = ring.views[root.partition.0 as usize].members.iter().find(|one| one.brick != root.brick).unwrap();
    let member = member.brick;
    let before = ring.read(get_attr(inode)).unwrap();
    ring.clock += 1_000_000_000;
    ring.handle(root, Event::Down { bricks: vec![member] });
    ring.handle(root, Event::Accessed { token: Token(0), volume: VOLUME, inode, session: SessionId(1) });
    begin(&mut ring, 1, chmod(inode, 0o600));
    assert!(ring.queue.iter().all(|envelope| !matches!(envelope.message, Message::Append { .. })));
    assert_eq!(read_now(&ring, root, &get_attr(inode)), Some(Ok(before.clone())));
    ring.queue.clear();
    ring.tell(root, Event::Up { bricks: vec![member] });
    (0..10).for_each(|_| ring.tick());
    let (Reply::Node { attr: before, .. }, Some(Ok(Reply::Node { attr, .. }))) = (before, ring.answers.get(&Token(1)))
    else {
        panic!("{:?}", ring.answers)
    };
    assert_eq!((attr.mode, attr.atime), (0o600, before.atime));
}

/// Otherwise it waits for ever: the replica that it asked does not lead any more.
#[test]
fn a_request_that_waits_is_answered_when_another_replica_leads() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    let ways = (elsewhere(&ring, root), root);
    file(&mut ring, b"f");
    assert!(is_taken(&leg(&mut ring, ways, 0, Leg::HoldName { dir: ROOT, name: name(b"f") })));
    begin(&mut ring, 1, lookup(b"f"));
    begin(&mut ring, 2, unlink(b"f"));
    ring.deliver();
    assert!(ring.answers.is_empty());
    let members: Vec<u128> =
        ring.views[root.partition.0 as usize].members.iter().map(|member| member.brick.0).collect();
    let next = members.iter().copied().find(|brick| *brick != root.brick.0).unwrap();
    form(&mut ring, root.partition.0, next, &members, &[]);
    for token in [1, 2] {
        assert!(matches!(ring.answers[&Token(token)], Err(Error::StaleView { .. })), "{:?}", ring.answers);
    }
}

/// A power cut could have the number handed out again, and two files would have one number (rule 13).
#[test]
fn no_number_is_handed_out_before_its_reservation_is_on_stable_storage() {
    let mut ring = open(&storages());
    let root = ring.leader(ROOT.position());
    // The op draws a number and fails.
    let node = NewNode::Symlink { target: Bytes::new() };
    let (dir, name, mode, exclusive, seed) = (ROOT, name(b"l"), 0o777, true, 7);
    let draws = Op::Name { op: NameOp::Create { dir, name, node, mode, uid: 1, gid: 1, umask: 0, exclusive, seed } };
    for token in 1..=8300 {
        begin(&mut ring, token, draws.clone());
    }
    begin(&mut ring, 8301, file_op(b"f"));
    let is_synced = |envelope: &Envelope| matches!(envelope.message, Message::Synced { .. }) && envelope.to == root;
    let synced = deliver_but(&mut ring, is_synced);
    assert!(!synced.is_empty() && ring.answers[&Token(8301)].is_ok(), "more are reserved with it");
    let last = 8301 + 7300;
    for token in 8302..=last {
        begin(&mut ring, token, draws.clone());
    }
    assert!(ring.answers.contains_key(&Token(8302)) && !ring.answers.contains_key(&Token(last)));
    ring.queue.extend(synced);
    ring.deliver();
    assert!(ring.answers.contains_key(&Token(last)));
}
