//! Legs that come when what they are about is gone.

use super::*;
use crate::tree::Tree;

/// It is moved, and removed at its new place before the leg comes: refused, the leg would be sent for ever, under the volume's hold on
/// moves.
#[test]
fn the_parent_of_a_directory_that_is_gone_is_set_to_nothing() {
    let ring = open(&storages());
    let (ask, leader) = (ring.ask(), ring.leader(ROOT.position()));
    let tree = Tree::new(&ring.bricks[leader.brick.0 as usize], &ask, leader.partition);
    let gone = InodeId::new(ROOT.position().0, 5, 1 << 40);
    let mut commit = Commit::default();
    assert!(crate::legs::set_parent(&tree, &mut commit, gone, ROOT, Time(1)).is_ok());
    assert!(commit.changes.is_empty());
    crate::legs::set_parent(&tree, &mut commit, ROOT, ROOT, Time(1)).unwrap();
    assert_eq!(commit.changes.len(), 1, "one that is there");
}

/// The simulator found it (seed 753 of `legs`): a chmod of a directory that an rmdir of another partition had closed showed it removed,
/// and then the rmdir was undone.
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
        let message = Message::Leg { intent, number, volume, session, op_id, leg };
        Event::Message(Envelope { ring: RING, from, to, epoch, message })
    };
    ring.tell(to, leg(0, Leg::CloseDirectory { inode }));
    let changes = AttrChanges { mode: Some(0o700), ..Default::default() };
    let (ask, op) = (Ask { op_id: OpId(1), ..ring.ask() }, Op::Inode { op: InodeOp::SetAttr { inode, changes } });
    ring.tell(to, Event::Request { token: Token(1), ask, op });
    (0..3).for_each(|_| ring.tick());
    assert_eq!(ring.answers.get(&Token(1)), None, "nobody knows yet");
    ring.tell(to, leg(crate::legs::UNDOING, Leg::ReopenDirectory { inode }));
    (0..20).for_each(|_| ring.tick());
    let Some(Ok(Reply::Node { attr, .. })) = ring.answers.get(&Token(1)) else { panic!("{:?}", ring.answers) };
    assert_eq!((attr.mode, attr.nlink), (0o700, 2));
}

/// The simulator found it (seed 7881 of `legs`): the inode counts a link that is on its way, so it outlives its last name; who looks
/// for the new one meanwhile waits, or a file would come back from nowhere.
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
        assert_eq!(ring.partitions[&at].read(&around, &ring.ask(), &looks), None);
        ring.tell(at, Event::Request { token: Token(2), ask: ring.ask(), op: looks });
        assert_eq!(ring.answers.get(&Token(2)), None, "nobody knows yet");
        ring.tell(ended.to, Event::Message(ended));
        (0..20).for_each(|_| ring.tick());
        assert!(matches!(ring.answers[&Token(1)], Ok(Reply::Node { .. })), "{:?}", ring.answers);
        let found = ring.answers[&Token(2)].clone();
        assert!(matches!(found, Ok(Reply::Elsewhere { inode, .. }) if inode == file.id), "{found:?}");
        ring.rest();
        ring.check();
    }
}
