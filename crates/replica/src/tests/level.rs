//! Members that come back to a leader, and a leader that comes back to its members.

use super::*;

fn set_owner(ring: &mut TestRing, leader: Address, uid: u32) -> Token {
    ring.op_id += 256;
    let changes = AttrChanges { uid: Some(uid), ..Default::default() };
    let (token, op) = (Token(ring.op_id), Op::Inode { op: InodeOp::SetAttr { inode: ROOT, changes } });
    let ask = ring.ask();
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

/// Both ends are linked anew before either has noticed that they were not.
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
