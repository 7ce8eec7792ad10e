//! Late messages: retries of fast writes, and legs of a leader that was left out.

use super::ops::*;
use super::stage::{Stage, leg_of};
use hekate_proto::*;
use hekate_replica::{Envelope, Message};

/// A file of six blocks, for which its first client has permission for fast writes.
fn opened(stage: &mut Stage, ann: u32, bob: u32) -> InodeId {
    let inode = inode_in(stage.does(ann, file(ROOT, "f")));
    stage.does_durably(ann, write(inode, 0, 24_576, 1));
    stage.does_durably(ann, write(inode, 0, 4096, 2));
    stage.does(bob, attributes(inode));
    inode
}

fn first_byte(stage: &mut Stage, client: u32, inode: InodeId) -> u8 {
    bytes_in(stage.does(client, read(inode, 0, 4096)))[0]
}

/// Rule 10a. The writer got no answer, and another client has read and overwritten the bytes since: the write is not
/// executed again.
#[test]
fn a_reconciled_fast_write_is_not_executed_again_by_the_leader() {
    let mut stage = Stage::new(&[&[0, 1]]);
    let (ann, bob) = (stage.client(), stage.client());
    let inode = opened(&mut stage, ann, bob);
    stage.lose_answers(ann);
    let written = stage.ask_durably(ann, write(inode, 0, 4096, 3));
    stage.pass(20_000);
    assert_eq!(first_byte(&mut stage, bob, inode), 3);
    stage.does_durably(bob, write(inode, 0, 4096, 4));
    stage.release();
    stage.cut_connection(ann);
    assert_eq!(stage.answer(written), Ok(Reply::Done));
    assert_eq!(first_byte(&mut stage, bob, inode), 4);
    stage.whole_and_judged();
}

/// A leader that answered for times is left out of the next view. `noted`: the other members have the marker that the
/// file is being written.
fn times_go_on(noted: bool) {
    let mut stage = Stage::new(&[&[0, 1]]);
    let (ann, bob) = (stage.client(), stage.client());
    let inode = opened(&mut stage, ann, bob);
    // What else changes the file removes the marker.
    if noted {
        stage.does_durably(ann, write(inode, 0, 4096, 3));
    } else {
        stage.does(bob, chmod(inode));
    }
    let before = attr_in(stage.does(bob, attributes(inode)));
    let is_record = |sent: &Envelope| sent.from.brick.0 == 1 && matches!(sent.message, Message::Append { .. });
    stage.hold(is_record);
    let written = stage.ask_durably(ann, write(inode, 0, 4096, 4));
    stage.pass(20_000);
    assert_eq!(stage.is_answered(written), noted);
    stage.cut_off(0);
    stage.until_led_by(0, 1);
    if noted {
        let after = attr_in(stage.does(bob, attributes(inode)));
        assert!(after.change > before.change && after.mtime > before.mtime);
    }
    stage.release();
    assert_eq!(stage.answer(written), Ok(Reply::Done));
    stage.whole_and_judged();
}

/// Rule 27: the next leader renews the times of files that were being written.
#[test]
fn times_that_only_an_excluded_leader_had_are_renewed() {
    times_go_on(true);
}

/// Rule 27: times are not answered before all members have the marker that the file is being written.
#[test]
fn times_are_not_answered_before_all_members_have_the_marker() {
    times_go_on(false);
}

/// Rule 13. A view without the driver has undone the op: a directory that its leg made would have no name.
#[test]
fn a_leg_of_a_driver_that_was_left_out_is_not_executed() {
    let mut stage = Stage::new(&[&[0, 1], &[2]]);
    let ann = stage.client();
    stage.ask(ann, directory(ROOT, "d", 1, 2));
    stage.catch("its leg", |sent| sent.from.brick.0 == 1 && leg_of(sent).is_some());
    stage.dies(ann);
    stage.cut_off(0);
    stage.until_led_by(0, 1);
    stage.pass(500_000);
    stage.release();
    stage.pass(100_000);
    stage.whole_and_judged();
}

/// Rule R20. The driver has a lease, but knows the view before only: the leader of that one lacks the new name.
#[test]
fn a_leader_that_was_left_out_refuses_no_leg() {
    let mut stage = Stage::new(&[&[0], &[1, 2]]);
    let (ann, bob) = (stage.client(), stage.client());
    let dir = inode_in(stage.does(ann, directory(ROOT, "d", 1, 2)));
    stage.cut_off(1);
    stage.until_formed(1, &[2]);
    // The driver has not read the new view, and keeps its lease for 2.1 s at least.
    stage.cut_off(0);
    stage.maps_from(2);
    stage.until_led_by(1, 2);
    stage.does(bob, file(dir, "f"));
    let moved = stage.ask(ann, rename((dir, "f"), (ROOT, "g")));
    stage.catch("a leg for the former leader", |sent| sent.to.brick.0 == 2 && leg_of(sent).is_some());
    stage.release();
    stage.pass(100_000);
    stage.join_again();
    assert_eq!(stage.answer(moved), Ok(Reply::Done));
    stage.whole_and_judged();
}
