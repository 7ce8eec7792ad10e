//! What clients are shown of names whose inodes rest elsewhere.

use super::ops::*;
use super::stage::{Stage, leg_of};
use hekate_proto::*;
use hekate_replica::Message;

/// 54d1984. A power cut takes the name, its intent the directory, and what was made in it meanwhile would lie nowhere.
#[test]
fn a_directory_on_other_bricks_is_shown_to_nobody_before_its_name_is_on_stable_storage() {
    let mut stage = Stage::new(&[&[0, 1], &[2, 3]]);
    let (ann, bob) = (stage.client(), stage.client());
    stage.hold(|sent| matches!(sent.message, Message::LegEnded { .. }));
    stage.ask(ann, directory(ROOT, "d", 1, 2));
    stage.until("the directory's leg", |stage| stage.holds(|message| matches!(message, Message::LegEnded { .. })));
    stage.release();
    stage.hold_syncs(0);
    stage.hold_syncs(1);
    let shown = stage.ask(bob, lookup(ROOT, "d"));
    stage.pass(100_000);
    let was_shown = stage.is_answered(shown);
    if was_shown {
        let dir = inode_in(stage.answer(shown).unwrap());
        stage.does_durably(bob, file(dir, "f"));
    }
    stage.cut_power(&[0, 1]);
    stage.whole_and_judged();
    assert!(!was_shown);
}

/// 2708e35. On the same bricks nothing waits for stable storage; so after a power cut it is asked first what became of the
/// name.
#[test]
fn nothing_is_made_in_a_directory_whose_name_a_power_cut_took() {
    let mut stage = Stage::new(&[&[0, 1], &[1, 0]]);
    let (ann, bob) = (stage.client(), stage.client());
    stage.hold(|sent| matches!(sent.message, Message::LegEnded { .. }));
    let made = stage.ask(ann, directory(ROOT, "d", 1, 2));
    stage.until("the directory's leg", |stage| stage.holds(|message| matches!(message, Message::LegEnded { .. })));
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
    stage.hold(|sent| matches!(leg_of(sent), Some(Leg::DropDirectory { .. })));
    let removed = stage.ask(ann, Op::Name { op: NameOp::Rmdir { dir: ROOT, name: name("d") } });
    stage.until("a leg", |stage| stage.holds(|message| matches!(message, Message::Leg { .. })));
    let looked = stage.ask(bob, lookup(ROOT, "d"));
    assert_eq!(stage.answer(looked), Err(Error::NotFound));
    let shown = stage.ask(bob, attributes(dir));
    stage.pass(100_000);
    stage.release();
    assert_eq!(stage.answer(shown), Err(Error::Stale));
    let listed = stage.ask(bob, list(dir));
    assert_eq!(stage.answer(listed), Err(Error::NotDirectory));
    assert_eq!(stage.answer(removed), Ok(Reply::Done));
    stage.whole_and_judged();
}
