//! What a power cut must not do to bytes and numbers.

use super::ops::*;
use super::stage::Stage;
use hekate_proto::*;

/// 998459c. Data ids are made of numbers: one that is handed out twice shows a file what an earlier layout of its left.
#[test]
fn numbers_handed_out_before_a_power_cut_are_not_handed_out_again() {
    let mut stage = Stage::new(&[&[0, 1], &[2, 3]]);
    let (ann, bob) = (stage.client(), stage.client());
    let inode = inode_in(stage.does(ann, file(ROOT, "f")));
    stage.does(ann, fsync(inode));
    // A leader that begins reserves numbers of its own.
    stage.restart(&[0]);
    stage.until_serving(0);
    let layout = attr_in(stage.does(ann, truncate(inode, SHARD_BYTES))).layout;
    let offset = offset_in(&layout, 1, 2);
    stage.does(ann, write(inode, offset, 5000, 9));
    stage.cut_power(&[0, 1]);
    stage.come_back(&[0, 1]);
    // The file has no shards any more, but on servers that kept their power there is one.
    stage.does(bob, truncate(inode, 0));
    stage.does(bob, truncate(inode, offset + SHARD_BYTES));
    assert_eq!(bytes_in(stage.does(bob, read(inode, offset, 5000))), vec![0; 5000]);
    stage.whole_and_judged();
}

/// 1cfce50. A power cut may leave the record of a write, which has its answer, and take its bytes.
#[test]
fn a_write_whose_bytes_a_power_cut_took_is_done_again_when_it_is_repeated() {
    let mut stage = Stage::new(&[&[0, 1]]);
    let (ann, bob) = (stage.client(), stage.client());
    let inode = inode_in(stage.does(ann, file(ROOT, "f")));
    stage.does(ann, truncate(inode, SHARD_BYTES));
    stage.does(ann, fsync(inode));
    stage.lose_answers(ann);
    // So many bytes go straight home, and only their record through the journal.
    let written = stage.ask(ann, write(inode, 0, 40_000, 9));
    stage.pass(1_000);
    stage.does_durably(bob, file(ROOT, "g"));
    stage.cut_power(&[0, 1]);
    stage.release();
    stage.come_back(&[0, 1]);
    assert_eq!(stage.answer(written), Ok(Reply::Done));
    assert_eq!(bytes_in(stage.does(bob, read(inode, 0, 40_000))), vec![9; 40_000]);
    stage.whole_and_judged();
}

/// 5498426. What a client was told of a file may be what a power cut took: the next truncate is another one.
#[test]
fn a_write_under_a_layout_that_a_power_cut_took_is_not_taken_for_one_under_the_next() {
    let mut stage = Stage::new(&[&[0, 1], &[2, 3]]);
    let (ann, bob) = (stage.client(), stage.client());
    let inode = inode_in(stage.does(ann, file(ROOT, "f")));
    let layout = attr_in(stage.does(ann, truncate(inode, 64 * SHARD_BYTES))).layout;
    let offset = offset_in(&layout, 1, 2);
    stage.does(ann, write(inode, offset, 9000, 1));
    stage.does(ann, fsync(inode));
    // Bob writes under the layout of a truncate that is lost, and has yet to tell the file's leader of it.
    stage.does(bob, truncate(inode, offset + 8000));
    stage.hold_requests(bob, |op| matches!(op, Op::Data { op: DataOp::Wrote { .. } }));
    let written = stage.ask(bob, write(inode, offset, 6000, 2));
    stage.until("the write's last step", |stage| stage.holds_request(bob));
    stage.cut_power(&[0, 1]);
    stage.come_back(&[0, 1]);
    stage.does(ann, truncate(inode, offset + 3000));
    stage.release();
    assert_eq!(stage.answer(written), Ok(Reply::Done));
    assert_eq!(bytes_in(stage.does(ann, read(inode, offset, 6000))), vec![2; 6000]);
    stage.whole_and_judged();
}
