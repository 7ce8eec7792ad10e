//! What a read returns: the journal and the index as one, blocks from the journal, from home, and holes.

use super::support::*;
use crate::*;
use hekate_proto::*;

#[test]
fn reads_and_scans_see_journal_and_index_as_one() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    for name in ["b", "d", "f"] {
        put(&brick, name, "1");
    }
    brick.checkpoint().unwrap();
    put(&brick, "a", "2");
    put(&brick, "d", "2");
    append(&brick, vec![Change::Delete { key: key("f") }]);
    put(&brick, "g", "2");
    assert_eq!(names(&brick, 100), ["a", "b", "d", "g"]);
    assert_eq!(names(&brick, 2), ["a", "b"]);
    assert_eq!(brick.get(&key("d")).unwrap().unwrap(), "2");
    assert_eq!(brick.get(&key("f")).unwrap(), None);
    brick.checkpoint().unwrap();
    assert_eq!(names(&brick, 100), ["a", "b", "d", "g"]);
}

#[test]
fn blocks_come_from_the_journal_from_home_and_as_holes() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_fresh(&brick, 0, 1, 2, 1);
    write_blocks(&brick, 3, 2, 1, 2);
    let expect = |brick: &Brick, fills: [u8; 4]| {
        let bytes = brick.read_shard(RING, shard(0), 0, 1 << 22).unwrap();
        let got: Vec<u8> = bytes.chunks(BLOCK_BYTES).map(|block| block[100]).collect();
        assert_eq!(got, fills);
    };
    expect(&brick, [1, 1, 0, 2]);
    brick.checkpoint().unwrap();
    expect(&brick, [1, 1, 0, 2]);
    write_blocks(&brick, 1, 9, 3, 3);
    expect(&brick, [1, 9, 9, 9]);
    assert_eq!(brick.read_shard(RING, shard(0), 4000, 200).unwrap()[95..97], [1, 9]);
    assert_eq!(brick.read_shard(RING, shard(0), 16384, 10).unwrap().len(), 0);
}

#[test]
fn cut_blocks_are_holes_when_the_shard_grows_again() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write_blocks(&brick, 0, 5, 8, 1);
    brick.checkpoint().unwrap();
    let stamp = Stamp { count: 2, session: SessionId(1), op: OpId(2) };
    let record = ShardRecord { stamp, length: 2 * BLOCK_BYTES as u32, home_blocks: 8, reserved_blocks: 0 };
    append(&brick, vec![Change::CutShard { shard: shard(0), record }]);
    write_blocks(&brick, 7, 6, 1, 3);
    let fills = |brick: &Brick| -> Vec<u8> {
        brick.read_shard(RING, shard(0), 0, 1 << 22).unwrap().chunks(BLOCK_BYTES).map(|b| b[0]).collect()
    };
    assert_eq!(fills(&brick), [5, 5, 0, 0, 0, 0, 0, 6]);
    brick.checkpoint().unwrap();
    assert_eq!(fills(&brick), [5, 5, 0, 0, 0, 0, 0, 6]);
    drop(brick);
    assert_eq!(fills(&open(&storage, true).0), [5, 5, 0, 0, 0, 0, 0, 6]);
}

#[test]
fn a_shard_cut_to_nothing_and_written_again_has_holes() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    write(&brick, 0, 1, 5);
    brick.checkpoint().unwrap();
    cut(&brick, 0);
    write(&brick, 4, 2, 1);
    assert_eq!(fills(&brick).unwrap(), [0, 0, 0, 0, 2]);
    brick.checkpoint().unwrap();
    assert_eq!(fills(&brick).unwrap(), [0, 0, 0, 0, 2]);
}
