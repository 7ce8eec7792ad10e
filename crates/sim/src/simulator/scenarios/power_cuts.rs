//! Bytes and numbers that a power cut must not damage.

use super::ops::*;
use super::stage::Stage;
use hekate_proto::*;

/// Data ids are made of numbers: a number that is handed out twice would show a file the bytes of an earlier layout.
#[test]
fn numbers_handed_out_before_a_power_cut_are_not_handed_out_again() {
    const SHARDS: u64 = 8;
    let mut stage = Stage::new(&[&[0, 1], &[2, 3]]);
    let (ann, bob) = (stage.client(), stage.client());
    let inode = inode_in(stage.does(ann, file(ROOT, "f")));
    stage.does(ann, fsync(inode));
    // The next leader reserves numbers of its own.
    stage.hold_syncs(&[1]);
    stage.cut_power(&[0]);
    stage.until_formed(0, &[1]);
    let writes = (0..SHARDS).map(|index| write(inode, index * SHARD_BYTES, 5000, 9));
    stage.ask_all(ann, std::iter::once(truncate(inode, SHARDS * SHARD_BYTES)).chain(writes));
    stage.pass(10_000_000);
    stage.dies(ann);
    stage.cut_power(&[1]);
    stage.release();
    stage.come_back(&[1]);
    // The file has no shards, whatever servers that kept their power may have of it.
    stage.does(bob, truncate(inode, 0));
    stage.does(bob, truncate(inode, SHARDS * SHARD_BYTES));
    for index in 0..SHARDS {
        let bytes = bytes_in(stage.does(bob, read(inode, index * SHARD_BYTES, 5000)));
        assert!(bytes.iter().all(|byte| *byte == 0), "shard {index} has bytes of a file that never was");
    }
    stage.whole_and_judged();
}

/// A power cut may leave the record of a write, which has its answer, and take its bytes.
#[test]
fn a_write_whose_bytes_a_power_cut_took_is_done_again_when_it_is_repeated() {
    let mut stage = Stage::new(&[&[0, 1]]);
    let (ann, bob) = (stage.client(), stage.client());
    let inode = inode_in(stage.does(ann, file(ROOT, "f")));
    stage.does(ann, truncate(inode, SHARD_BYTES));
    stage.does(ann, fsync(inode));
    stage.lose_answers(ann);
    // Writes of this size bypass the journal; only their record goes through it.
    let written = stage.ask(ann, write(inode, 0, 40_000, 9));
    stage.pass(20_000);
    stage.does_durably(bob, file(ROOT, "g"));
    stage.cut_power(&[0, 1]);
    stage.release();
    stage.come_back(&[0, 1]);
    assert_eq!(stage.answer(written), Ok(Reply::Done));
    let bytes = bytes_in(stage.does(bob, read(inode, 0, 40_000)));
    assert!(bytes.iter().all(|byte| *byte == 9), "what was acknowledged is gone");
    stage.whole_and_judged();
}

/// A power cut may take the layout that a client knows; the next layout gets another version.
#[test]
fn a_write_under_a_layout_that_a_power_cut_took_does_not_count_under_the_next() {
    let mut stage = Stage::new(&[&[0, 1]]);
    let (ann, bob) = (stage.client(), stage.client());
    let inode = inode_in(stage.does(ann, file(ROOT, "f")));
    stage.does(ann, fsync(inode));
    // Bob has given the file shards, has written to them, and has yet to send the end to the file's leader.
    let written = stage.ask(bob, write(inode, 0, 100_000, 9));
    stage.catch_request(bob, |op| matches!(op, Op::Data { op: DataOp::Wrote { .. } }));
    stage.cut_power(&[0, 1]);
    stage.come_back(&[0, 1]);
    stage.does(ann, truncate(inode, SHARD_BYTES));
    stage.release();
    assert_eq!(stage.answer(written), Ok(Reply::Done));
    let bytes = bytes_in(stage.does(ann, read(inode, 0, 100_000)));
    assert!(bytes.iter().all(|byte| *byte == 9), "what was acknowledged is gone");
    stage.whole_and_judged();
}

/// A leader learns late that a member has lost its power, and serves meanwhile.
#[test]
fn a_member_that_has_lost_its_power_is_no_memory_of_its_partition() {
    let mut stage = Stage::new(&[&[0, 1]]);
    let ann = stage.client();
    stage.does(ann, file(ROOT, "f"));
    stage.pass(100_000);
    stage.cut_power(&[1]);
    assert!(stage.world.history.power_cuts().is_empty(), "the leader has everything");
    // The servers are looked at.
    stage.pass(200_000);
    stage.cut_power(&[0]);
    assert_eq!(stage.world.history.power_cuts().len(), 1);
    stage.come_back(&[0, 1]);
    stage.whole_and_judged();
}
