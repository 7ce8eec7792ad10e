//! Reads during writes.

use super::ops::*;
use super::stage::Stage;
use hekate_proto::*;

/// Shards are read before the size that decides how many of their bytes count.
#[test]
fn a_read_that_learns_of_a_longer_file_reads_its_bytes_again() {
    let mut stage = Stage::new(&[&[0], &[1]]);
    let (ann, bob) = (stage.client(), stage.client());
    let inode = inode_in(stage.does(ann, file(ROOT, "f")));
    stage.does(ann, truncate(inode, 200_000));
    stage.does(ann, truncate(inode, 1000));
    stage.does(bob, attributes(inode));
    let asked = stage.ask(bob, read(inode, 0, 5000));
    stage.catch_request(bob, |op| matches!(op, Op::Inode { op: InodeOp::GetAttr { .. } }));
    stage.does(ann, write(inode, 1000, 4000, 9));
    stage.release();
    let bytes = bytes_in(stage.answer(asked).unwrap());
    assert!(bytes[..1000].iter().all(|byte| *byte == 0) && bytes[1000..].iter().all(|byte| *byte == 9));
    stage.whole_and_judged();
}
