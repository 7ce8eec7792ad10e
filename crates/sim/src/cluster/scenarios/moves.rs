//! Renames between partitions, and moves of directories.

use super::ops::*;
use super::stage::{Stage, leg_of};
use hekate_proto::*;
use hekate_replica::Message;

/// 8462ba1. Who moves a directory goes by parents: with an old one two directories come to lie in each other.
#[test]
fn nobody_moves_a_directory_before_the_move_before_it_has_set_its_parent() {
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

/// 77d3138. A leg that is taken before the intent that undoes it is on stable storage may never be undone.
#[test]
fn a_leg_is_sent_when_its_intent_is_stable_even_if_an_earlier_one_was_to_be_sent_again() {
    let mut stage = Stage::new(&[&[0], &[1, 2]]);
    let (ann, bob) = (stage.client(), stage.client());
    let dir = inode_in(stage.does(ann, directory(ROOT, "d", 1, 2)));
    stage.does(ann, directory(ROOT, "moved", 0, 2));
    stage.does(ann, directory(ROOT, "other", 0, 2));
    stage.does(ann, fsync(ROOT));
    // The first leg's answer takes so long that it is to be sent again, as soon as all that there is is stable.
    stage.ask(ann, rename((ROOT, "moved"), (dir, "moved")));
    stage.catch("the first leg's answer", |sent| matches!(sent.message, Message::LegEnded { .. }));
    stage.catch("a member's sync", |sent| matches!(sent.message, Message::Synced { .. }));
    stage.release();
    // Now comes the second leg, with an intent that a slow disk does not have yet.
    stage.hold_syncs(&[1, 2]);
    stage.pass(1_000);
    stage.cut_power(&[1, 2]);
    stage.release();
    stage.come_back(&[1, 2]);
    stage.does(bob, rename((ROOT, "other"), (dir, "other")));
    stage.whole_and_judged();
}

/// 0e20b64. Each of two renames holds the name that the other one wants: they must not come back in step for ever.
#[test]
fn renames_that_hold_what_the_other_wants_both_end() {
    let brick: &[u32] = &[0];
    let mut stage = Stage::new(&[brick; 8]);
    let (ann, bob) = (stage.client(), stage.client());
    let one = inode_in(stage.does(ann, directory(ROOT, "one", 1, 8)));
    let other = inode_in(stage.does(ann, directory(ROOT, "other", 5, 8)));
    stage.does(ann, file(one, "f"));
    stage.does(ann, file(other, "f"));
    let there = stage.ask(ann, rename((one, "f"), (other, "f")));
    let back = stage.ask(bob, rename((other, "f"), (one, "f")));
    let mut ended = [stage.answer(there).is_ok(), stage.answer(back).is_ok()];
    ended.sort_unstable();
    assert!(ended[1], "one of them finds its file");
    stage.whole_and_judged();
}
