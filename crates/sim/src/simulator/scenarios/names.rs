//! Visibility of names whose inodes are on another partition.

use super::ops::*;
use super::stage::{Asked, Stage, leg_of};
use hekate_proto::*;
use hekate_replica::Message;

/// A client makes the directory `d`: the other partition has executed its leg, and answers with the next event.
fn half_made(stage: &mut Stage, client: u32) -> Asked {
    let made = stage.ask(client, directory(ROOT, "d", 1, 2));
    stage.catch("the leg's answer", |sent| matches!(sent.message, Message::LegEnded { .. }));
    made
}

/// A client that got an answer makes a file in the new directory, which must not be lost. Returns true if it got one.
fn makes_a_file_if_answered(stage: &mut Stage, client: u32, asked: Asked) -> bool {
    let was_answered = stage.is_answered(asked);
    if was_answered {
        let dir = inode_in(stage.answer(asked).unwrap());
        stage.does_durably(client, file(dir, "f"));
    }
    was_answered
}

/// A power cut takes the name, and recovery of its intent the directory: a file made in it meanwhile would be
/// unreachable.
#[test]
fn a_directory_on_other_bricks_is_not_shown_before_its_name_is_on_stable_storage() {
    let mut stage = Stage::new(&[&[0, 1], &[2, 3]]);
    let (ann, bob) = (stage.client(), stage.client());
    half_made(&mut stage, ann);
    stage.release();
    stage.hold_syncs(&[0, 1]);
    let shown = stage.ask(bob, lookup(ROOT, "d"));
    stage.pass(100_000);
    let was_shown = makes_a_file_if_answered(&mut stage, bob, shown);
    stage.cut_power(&[0, 1]);
    stage.whole_and_judged();
    assert!(!was_shown);
}

/// A leader that takes over while a name is in its memory only does not show the name before it is stable.
#[test]
fn a_leader_that_begins_shows_nothing_that_a_power_cut_could_take() {
    let mut stage = Stage::new(&[&[0, 1], &[2, 3]]);
    let (ann, bob) = (stage.client(), stage.client());
    half_made(&mut stage, ann);
    stage.release();
    stage.hold_syncs(&[0, 1]);
    stage.pass(20_000);
    stage.cut_power(&[0]);
    let shown = stage.ask(bob, lookup(ROOT, "d"));
    stage.until_formed(0, &[1]);
    stage.pass(5_000_000);
    let was_shown = makes_a_file_if_answered(&mut stage, bob, shown);
    stage.cut_power(&[1]);
    stage.whole_and_judged();
    assert!(!was_shown);
}

/// The record of an op has its answer before the op is over.
#[test]
fn a_retry_is_not_answered_before_the_op_that_it_repeats_is_over() {
    let mut stage = Stage::new(&[&[0, 1], &[2, 3]]);
    let ann = stage.client();
    let made = half_made(&mut stage, ann);
    stage.release();
    stage.hold_syncs(&[0, 1]);
    stage.pass(20_000);
    stage.cut_connection(ann);
    // The repeated op begins once the first attempt has given up, after 2 s.
    stage.pass(4_000_000);
    let was_answered = makes_a_file_if_answered(&mut stage, ann, made);
    stage.cut_power(&[0, 1]);
    stage.whole_and_judged();
    assert!(!was_answered);
}

/// The file's other name may be removed between a link's count and its undoing.
#[test]
fn a_file_whose_last_link_is_undone_is_removed() {
    let mut stage = Stage::new(&[&[0], &[1]]);
    let (ann, bob) = (stage.client(), stage.client());
    let dir = inode_in(stage.does(ann, directory(ROOT, "d", 1, 2)));
    let inode = inode_in(stage.does(ann, file(ROOT, "f")));
    let linked = stage.ask(ann, Op::Name { op: NameOp::Link { dir, name: name("g"), inode } });
    stage.catch("the leg's answer", |sent| matches!(sent.message, Message::LegEnded { .. }));
    stage.does(bob, Op::Name { op: NameOp::Unlink { dir: ROOT, name: name("f"), open_here: None } });
    stage.restart(&[1]);
    stage.release();
    assert!(stage.answer(linked).is_err());
    stage.whole_and_judged();
}

/// On the same bricks no op waits for stable storage; so after a power cut the directory's leader first asks for the
/// outcome of the name.
#[test]
fn nothing_is_made_in_a_directory_whose_name_a_power_cut_took() {
    let mut stage = Stage::new(&[&[0, 1], &[1, 0]]);
    let (ann, bob) = (stage.client(), stage.client());
    let made = half_made(&mut stage, ann);
    stage.sync(&[0, 1]);
    stage.release();
    let dir = inode_in(stage.answer(made).unwrap());
    stage.cut_power(&[0, 1]);
    // The directory's leader serves before the name's leader undoes the name.
    stage.hold(|sent| leg_of(sent).is_some() || matches!(sent.message, Message::IsGone { .. }));
    stage.come_back(&[0, 1]);
    stage.until_serving(1);
    let inside = stage.ask(bob, file(dir, "f"));
    stage.pass(3_000_000);
    stage.release();
    assert_eq!(stage.answer(inside), Err(Error::NotFound));
    stage.whole_and_judged();
}

/// A client that saw that a name is gone must not see its directory afterwards.
#[test]
fn a_directory_that_is_being_removed_is_not_shown_once_its_name_is_gone() {
    let mut stage = Stage::new(&[&[0], &[1]]);
    let (ann, bob) = (stage.client(), stage.client());
    let dir = inode_in(stage.does(ann, directory(ROOT, "d", 1, 2)));
    let removed = stage.ask(ann, Op::Name { op: NameOp::Rmdir { dir: ROOT, name: name("d") } });
    stage.catch("its last leg", |sent| matches!(leg_of(sent), Some(Leg::DropDirectory { .. })));
    let looked = stage.ask(bob, lookup(ROOT, "d"));
    assert_eq!(stage.answer(looked), Err(Error::NotFound));
    let shown = stage.ask(bob, attributes(dir));
    stage.pass(100_000);
    stage.release();
    assert_eq!(stage.answer(shown), Err(Error::Stale));
    let listed = stage.ask(bob, list(dir));
    assert_eq!(stage.answer(listed), Err(Error::NotFound));
    assert_eq!(stage.answer(removed), Ok(Reply::Done));
    stage.whole_and_judged();
}

/// A name that moves to another partition is in both until it is removed from the old one.
#[test]
fn a_name_seen_in_its_new_directory_is_not_listed_in_the_old_one() {
    let mut stage = Stage::new(&[&[0], &[1]]);
    let (ann, bob) = (stage.client(), stage.client());
    let dir = inode_in(stage.does(ann, directory(ROOT, "d", 1, 2)));
    stage.does(ann, file(ROOT, "f"));
    stage.ask(ann, rename((ROOT, "f"), (dir, "f")));
    stage.catch("its last leg", |sent| matches!(leg_of(sent), Some(Leg::ReplaceName { .. })));
    stage.does(bob, lookup(dir, "f"));
    let listed = stage.ask(bob, list(ROOT));
    stage.pass(100_000);
    stage.release();
    assert_eq!(names_in(stage.answer(listed).unwrap()), [name("d")]);
    stage.whole_and_judged();
}
