//! Finished ops leave nothing behind, and failed replicas serve again.

use super::ops::*;
use super::stage::Stage;
use hekate_proto::*;
use hekate_replica::Message;

/// A partition goes on without a member whose disk failed, and with it once it is back, without a restart of any other
/// server.
#[test]
fn a_partition_that_failed_with_a_members_disk_serves_again_when_that_one_is_back() {
    let mut stage = Stage::new(&[&[0, 1]]);
    let ann = stage.client();
    stage.fail_sync(1);
    let made = stage.ask_durably(ann, file(ROOT, "f"));
    stage.until("a brick that has stopped", |stage| stage.has_stopped(1));
    stage.answer(made).expect("the other member goes on");
    stage.restart(&[1]);
    stage.until_all_are_members(0);
    stage.does_durably(ann, file(ROOT, "g"));
    stage.whole_and_judged();
}

/// A brick that has stopped cannot read its directory. The answer is an error, never "not found".
#[test]
fn a_directory_on_a_failed_disk_is_not_listed_as_missing() {
    let mut stage = Stage::new(&[&[0], &[0]]);
    let (ann, bob) = (stage.client(), stage.client());
    let dir = inode_in(stage.does_durably(ann, directory(ROOT, "d", 1, 2)));
    stage.fail_sync(0);
    stage.ask_durably(ann, file(ROOT, "f"));
    stage.until("a brick that has stopped", |stage| stage.has_stopped(0));
    let listed = stage.ask(bob, list(dir));
    let answer = stage.answer(listed);
    assert!(matches!(answer, Err(Error::Poisoned { .. })), "{answer:?}");
    stage.restart(&[0]);
    stage.does(bob, list(dir));
    stage.whole_and_judged();
}

/// The driver sends "op is over" once to each partition that executed legs. If that message is lost, the marks of the
/// legs must still be removed.
#[test]
fn the_marks_of_an_op_go_though_the_word_that_it_is_over_is_lost() {
    let mut stage = Stage::new(&[&[0], &[1]]);
    let ann = stage.client();
    stage.lose(|sent| matches!(sent.message, Message::Forget { .. }));
    stage.does(ann, directory(ROOT, "d", 1, 2));
    stage.pass(50_000);
    assert_eq!(stage.marks(1), 1);
    stage.release();
    stage.until("a partition without marks", |stage| stage.marks(1) == 0);
    stage.whole_and_judged();
}

/// An opening is counted only after the check that the brick is not an older copy. Otherwise failed openings, or starts
/// after a refusal, would raise an older copy's count to the one that the cluster knows.
#[test]
fn an_older_copy_is_refused_though_its_openings_fail() {
    for syncs in 0..8 {
        let mut stage = Stage::new(&[&[0]]);
        let ann = stage.client();
        stage.does_durably(ann, file(ROOT, "f"));
        stage.copy_disk(0);
        stage.restart(&[0]);
        stage.does_durably(ann, file(ROOT, "g"));
        stage.put_copy_back(0);
        stage.fail_sync_after(0, syncs);
        stage.whole_and_judged();
    }
}

/// The commit of an opening may fail and be in a copy of the disk, though the disk itself loses it. The next opening of the
/// disk has another number. Otherwise the copy would open with a number that the cluster has not seen.
#[test]
fn a_copy_that_counts_a_lost_opening_is_refused() {
    for syncs in 0..8 {
        let mut stage = Stage::new(&[&[0]]);
        let ann = stage.client();
        stage.does_durably(ann, file(ROOT, "f"));
        stage.kill(&[0]);
        stage.fail_sync_after(0, syncs);
        stage.try_to_start(0);
        stage.copy_cached_disk(0);
        stage.cut_power(&[0]);
        stage.come_back(&[0]);
        stage.does_durably(ann, file(ROOT, "g"));
        stage.put_copy_back(0);
        stage.whole_and_judged();
    }
}

/// The coordinator executes an order to replace a brick after the operator was told that it does not answer. The disk of
/// the new brick is still there, and the server is started again to open it: also if it has been started since the order.
#[test]
fn a_brick_that_is_recorded_late_is_opened() {
    for is_restarted in [false, true] {
        let mut stage = Stage::new(&[&[0, 1, 2]]);
        // Servers that have just started leave no other one out.
        stage.pass(5_000_000);
        stage.lose_disk(2);
        // The order that is given now fails after 2 s.
        stage.cut_off(2);
        let new = stage.make_brick(2);
        stage.pass(3_000_000);
        if is_restarted {
            stage.join_again();
            stage.kill(&[2]);
            stage.try_to_start(2);
        }
        stage.record_new_brick(2, &new);
        stage.join_again();
        stage.until("a new brick that is open", |stage| stage.has_opened(2, new.brick));
        stage.whole_and_judged();
    }
}

/// An op that a crash interrupted is undone before its partition serves. What undoes it waits until clients have forgotten
/// pledges of the leader before, and these cannot connect before the server has started.
#[test]
fn a_server_that_is_alone_starts_though_what_it_undoes_waits_for_clients() {
    let mut waited = 0;
    for call in 0..12 {
        let mut stage = Stage::new(&[&[0], &[0]]);
        let ann = stage.client();
        stage.kill_at_call(0, call);
        let made = stage.ask(ann, directory(ROOT, "d", 1, 2));
        stage.until("the end of the process, or of the call", |stage| !stage.runs(0) || stage.is_answered(made));
        stage.come_back(&[0]);
        let started = stage.world.now;
        let _ = stage.answer(made);
        let took = stage.world.now - started;
        assert!(took < 4_000_000, "the client is there, and its lease was waited for: {took} µs");
        waited += stage.world.report.of("branch: a change waits for pledges");
        stage.whole_and_judged();
    }
    assert!(waited > 0, "no undoing had to wait");
}
