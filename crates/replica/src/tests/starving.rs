//! Members that wait for room in their journals.

use super::*;

/// A member fails for good while it waits. Other partitions on its brick must not wait for it.
#[test]
fn a_member_that_fails_waits_for_room_no_more() {
    let mut ring = open(&storages());
    let number = ROOT.position().partition(COUNT);
    let (leader, member) = {
        let view = &ring.views[number.0 as usize];
        let at = |brick| Address { partition: number, brick };
        (at(view.leader), at(view.members[1].brick))
    };
    let brick = member.brick.0 as usize;
    let other = PartitionNumber(COUNT);
    ring.bricks[brick].note_starving(RING, other, true);

    let op =
        Op::Inode { op: InodeOp::SetAttr { inode: ROOT, changes: AttrChanges { uid: Some(1), ..Default::default() } } };
    ring.handle(leader, Event::Request { token: Token(1), ask: ring.ask(), op });
    let entry = ring.queue.pop_front().expect("the leader tells its member");
    assert_eq!(entry.to, member);
    tell_only(&mut ring, member, Event::Message(entry));
    ring.bricks[brick].note_starving(RING, other, false);
    let behind = PartitionNumber(COUNT + 1);
    ring.bricks[brick].note_starving(RING, behind, true);
    assert!(!ring.bricks[brick].is_next(RING, behind), "it waits for its turn");

    let outcome = Err(Error::io("fdatasync", std::io::ErrorKind::StorageFull.into()));
    tell_only(&mut ring, member, Event::Synced { ticket: 1, outcome });
    assert!(ring.partitions[&member].failure().is_some());
    assert!(ring.bricks[brick].is_next(RING, behind));
    assert!(ring.bricks[brick].take_passed_turn(), "the next replica is notified");
}

/// Handles an event. No room is made, and the messages are not sent.
fn tell_only(ring: &mut TestRing, address: Address, event: Event) {
    let around = TestRing::around(&ring.bricks, &ring.views, address, ring.clock);
    ring.partitions.get_mut(&address).unwrap().handle(event, &around, &mut Out::default());
}
