//! Renames between partitions, and moves of directories.

use super::ops::*;
use super::stage::{Stage, leg_of};
use hekate_proto::*;
use hekate_replica::Message;

/// A move of a directory checks the parents above its target. With an outdated parent two directories could end up
/// inside each other.
#[test]
fn a_directory_is_not_moved_before_its_last_move_has_set_its_parent() {
    let mut stage = Stage::new(&[&[0], &[1], &[2], &[3]]);
    let (ann, bob) = (stage.client(), stage.client());
    let one = inode_in(stage.does(ann, directory(ROOT, "one", 1, 4)));
    let other = inode_in(stage.does(ann, directory(ROOT, "other", 2, 4)));
    let moved = stage.ask(ann, rename((ROOT, "one"), (other, "one")));
    stage.catch("the leg", |sent| matches!(leg_of(sent), Some(Leg::SetParent { .. })));
    let back = stage.ask(bob, rename((ROOT, "other"), (one, "other")));
    stage.pass(200_000);
    stage.release();
    assert_eq!(stage.answer(back), Err(Error::Loop));
    assert_eq!(stage.answer(moved), Ok(Reply::Done));
    stage.whole_and_judged();
}

/// A leg that is executed before its intent is on stable storage may never be undone.
#[test]
fn a_leg_is_sent_when_its_intent_is_stable_even_if_an_earlier_one_was_to_be_sent_again() {
    let mut stage = Stage::new(&[&[0], &[1, 2]]);
    let (ann, bob) = (stage.client(), stage.client());
    let dir = inode_in(stage.does(ann, directory(ROOT, "d", 1, 2)));
    stage.does(ann, directory(ROOT, "moved", 0, 2));
    stage.does(ann, directory(ROOT, "other", 0, 2));
    stage.does(ann, fsync(ROOT));
    // The first leg's answer takes so long that the leg is due to be sent again once a later record is stable.
    stage.ask(ann, rename((ROOT, "moved"), (dir, "moved")));
    stage.catch("the first leg's answer", |sent| matches!(sent.message, Message::LegEnded { .. }));
    stage.does(bob, file(dir, "f"));
    stage.catch("a member's sync", |sent| matches!(sent.message, Message::Synced { .. }));
    stage.pass(20_000);
    stage.release();
    // The second leg follows, with an intent that a slow disk does not have yet.
    stage.hold_syncs(&[1, 2]);
    stage.pass(20_000);
    stage.cut_power(&[1, 2]);
    stage.release();
    stage.come_back(&[1, 2]);
    stage.does(bob, rename((ROOT, "other"), (dir, "other")));
    stage.whole_and_judged();
}
