//! What clients are shown of names whose inodes rest elsewhere.

use super::ops::*;
use super::stage::{Asked, Stage, leg_of};
use hekate_proto::*;
use hekate_replica::Message;

/// A client makes the directory `d`: the other partition has taken its leg, and says so with the next event.
fn half_made(stage: &mut Stage, client: u32) -> Asked {
    let made = stage.ask(client, directory(ROOT, "d", 1, 2));
    stage.catch("the leg's answer", |sent| matches!(sent.message, Message::LegEnded { .. }));
    made
}

/// Who is told of a directory makes a file in it, which is not to be lost. -> whether it was told.
fn makes_something_if_told(stage: &mut Stage, client: u32, told: Asked) -> bool {
    let was_told = stage.is_answered(told);
    if was_told {
        let dir = inode_in(stage.answer(told).unwrap());
        stage.does_durably(client, file(dir, "f"));
    }
    was_told
}

/// 54d1984. A power cut takes the name, its intent the directory, and what was made in it meanwhile would lie nowhere.
#[test]
fn a_directory_on_other_bricks_is_shown_to_nobody_before_its_name_is_on_stable_storage() {
    let mut stage = Stage::new(&[&[0, 1], &[2, 3]]);
    let (ann, bob) = (stage.client(), stage.client());
    half_made(&mut stage, ann);
    stage.release();
    stage.hold_syncs(&[0, 1]);
    let shown = stage.ask(bob, lookup(ROOT, "d"));
    stage.pass(100_000);
    let was_shown = makes_something_if_told(&mut stage, bob, shown);
    stage.cut_power(&[0, 1]);
    stage.whole_and_judged();
    assert!(!was_shown);
}

/// 54d1984, 998459c. Nor by a leader that got the name from a member that has it in memory only.
#[test]
fn a_leader_that_begins_shows_nothing_that_a_power_cut_could_take() {
    let mut stage = Stage::new(&[&[0, 1], &[2, 3]]);
    let (ann, bob) = (stage.client(), stage.client());
    half_made(&mut stage, ann);
    stage.release();
    stage.hold_syncs(&[0, 1]);
    stage.pass(1_000);
    stage.cut_power(&[0]);
    stage.come_back(&[0]);
    let shown = stage.ask(bob, lookup(ROOT, "d"));
    stage.pass(500_000);
    let was_shown = makes_something_if_told(&mut stage, bob, shown);
    stage.cut_power(&[0, 1]);
    stage.whole_and_judged();
    assert!(!was_shown);
}

/// 54d1984. The record of an op has its answer, but the op may not be over.
#[test]
fn who_asks_again_is_not_answered_before_what_it_repeats_is_over() {
    let mut stage = Stage::new(&[&[0, 1], &[2, 3]]);
    let ann = stage.client();
    let made = half_made(&mut stage, ann);
    stage.release();
    stage.hold_syncs(&[0, 1]);
    stage.pass(1_000);
    stage.cut_connection(ann);
    stage.pass(100_000);
    let was_told = makes_something_if_told(&mut stage, ann, made);
    stage.cut_power(&[0, 1]);
    stage.whole_and_judged();
    assert!(!was_told);
}

/// 54d1984. While a link was made, and before that is taken back, the file's other name may go.
#[test]
fn a_file_whose_last_link_is_taken_back_goes() {
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

/// 2708e35. On the same bricks nothing waits for stable storage; so after a power cut it is asked first what became of the
/// name.
#[test]
fn nothing_is_made_in_a_directory_whose_name_a_power_cut_took() {
    let mut stage = Stage::new(&[&[0, 1], &[1, 0]]);
    let (ann, bob) = (stage.client(), stage.client());
    let made = half_made(&mut stage, ann);
    stage.sync(&[0, 1]);
    stage.release();
    let dir = inode_in(stage.answer(made).unwrap());
    stage.cut_power(&[0, 1]);
    // The directory's leader serves before the name's leader takes it back.
    stage.hold(|sent| leg_of(sent).is_some() || matches!(sent.message, Message::IsGone { .. }));
    stage.come_back(&[0, 1]);
    stage.until_serving(1);
    let inside = stage.ask(bob, file(dir, "f"));
    stage.pass(100_000);
    stage.release();
    assert_eq!(stage.answer(inside), Err(Error::NotFound));
    stage.whole_and_judged();
}

/// 409b1a0. Who was told that a name is gone is not shown afterwards what it led to.
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

/// 5a41347. A name that moves to another partition is in both until it is taken out of the old one.
#[test]
fn who_has_seen_a_name_under_its_new_directory_does_not_find_it_in_the_listing_of_the_old_one() {
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
