//! The progress of members that a leader reports.

use super::*;

#[test]
fn a_member_that_is_behind_is_reported_with_what_it_lacks() {
    let mut ring = open(&storages());
    let file = create_file(&mut ring);
    ring.rest();
    let leader = ring.leader(file.id.position());
    let number = leader.partition.0 as usize;
    let slow =
        ring.views[number].members.iter().map(|member| member.brick).find(|brick| *brick != leader.brick).unwrap();
    let progress = |ring: &TestRing| {
        let progress = ring.partitions[&leader].progress().unwrap();
        let lag = progress.lags.iter().find(|(brick, _)| *brick == slow).unwrap().1;
        (lag, progress.last.0 - progress.settled.0, progress.settled >= progress.stable)
    };
    assert_eq!(progress(&ring), (Some(0), 0, true));
    ring.held_back = Some((Address { brick: slow, ..leader }, Vec::new()));
    for (count, mode) in [(1, 0o600), (2, 0o640)] {
        let changes = AttrChanges { mode: Some(mode), ..Default::default() };
        let op = Op::Inode { op: InodeOp::SetAttr { inode: file.id, changes } };
        let ask = Ask { op_id: OpId(count), ..ring.ask() };
        ring.tell(leader, Event::Request { token: Token(count), ask, op });
        assert_eq!(progress(&ring), (Some(count), count, true), "the member has not acknowledged them");
    }
    let (_, held) = ring.held_back.take().unwrap();
    ring.queue.extend(held);
    ring.deliver();
    assert_eq!(progress(&ring), (Some(0), 0, true));
    assert!(ring.answers.contains_key(&Token(2)));
}
