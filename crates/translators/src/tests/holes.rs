//! `distribute`: FALLOC_FL_PUNCH_HOLE.

use super::files::FileClient;
use super::support::*;
use hekate_graph::{Context, Translator};
use hekate_proto::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const FILE: InodeId = inode(3, 1);

fn punch(offset: u64, length: u64) -> Op {
    Op::Data { op: DataOp::Allocate { inode: FILE, offset, length, mode: Allocate::Punch, drop_set_id: false } }
}

/// A file of 50 shards, each with some bytes at its beginning and its end.
fn file_with_data() -> FileClient {
    let client = FileClient::new();
    client.file_in_shards(FILE, 50 * SHARD_BYTES);
    let mut files = client.files.lock();
    let data = files.attr(FILE).layout.pieces[0].data;
    for index in 0..50 {
        files.shards.insert((data, index), b"abcdefgh".to_vec());
    }
    drop(files);
    client
}

/// The bytes at the beginning of a shard.
fn shard(client: &FileClient, index: u64) -> Vec<u8> {
    client.read(FILE, index * SHARD_BYTES, 8)
}

#[test]
fn a_short_hole_is_punched_shard_by_shard() {
    let client = file_with_data();
    let (_, sent) = client.sent_by(|| client.call(punch(SHARD_BYTES + 4, SHARD_BYTES)).unwrap());
    assert_eq!(sent, ["getattr", "allocate-shard", "allocate-shard", "wrote"]);
    let seen = [0, 1, 2, 3].map(|index| shard(&client, index));
    assert_eq!(seen, [&b"abcdefgh"[..], b"abcd\0\0\0\0", b"\0\0\0\0efgh", b"abcdefgh"]);
    assert_eq!(client.size(FILE), 50 * SHARD_BYTES);
}

#[test]
fn a_long_hole_is_punched_by_partitions_until_no_shard_is_left() {
    let client = file_with_data();
    let (from, to) = (SHARD_BYTES + 4, 45 * SHARD_BYTES + 4);
    let (_, sent) = client.sent_by(|| client.call(punch(from, to - from)).unwrap());
    assert_eq!(sent[..4], ["getattr", "allocate-shard", "allocate-shard", "empty-shards"]);
    assert!(sent.iter().filter(|label| **label == "empty-shards").count() >= 43, "one shard for each request");
    assert_eq!(sent.iter().filter(|label| **label == "allocate-shard").count(), 2, "the edges once");
    for index in 0..50 {
        let expected: &[u8] = match index {
            0 | 46.. => b"abcdefgh",
            1 => b"abcd\0\0\0\0",
            2..45 => &[0; 8],
            45 => b"\0\0\0\0efgh",
        };
        assert_eq!(shard(&client, index), expected, "{index}");
    }
}

#[test]
fn a_hole_ends_at_the_end_of_the_file() {
    let client = file_with_data();
    client.call(punch(49 * SHARD_BYTES, 1 << 50)).unwrap();
    assert_eq!(client.servers.count("empty-shards"), 0, "one shard is left of it");
    assert_eq!(client.size(FILE), 50 * SHARD_BYTES);
    client.call(punch(60 * SHARD_BYTES, 10)).unwrap();
    assert_eq!(client.size(FILE), 50 * SHARD_BYTES);
}

#[test]
fn a_hole_that_met_a_truncate_is_punched_again() {
    for length in [10, 45 * SHARD_BYTES] {
        let client = file_with_data();
        client.before("wrote", |files| {
            files.truncate(FILE, 8);
            files.write(FILE, 0, b"ABCDEFGH");
            None
        });
        client.call(punch(0, length)).unwrap();
        assert_eq!(shard(&client, 0), [0; 8]);
    }
}

#[test]
fn a_caller_gives_up_between_two_rounds() {
    let client = file_with_data();
    let interrupt = Arc::new(AtomicBool::new(false));
    let context = Context { interrupt: Some(&interrupt), ..Context::default() };
    let set = interrupt.clone();
    client.before("empty-shards", move |_| {
        set.store(true, Ordering::Relaxed);
        None
    });
    assert!(is_unavailable(&client.top.handle(&context, punch(0, 45 * SHARD_BYTES))));
    assert_eq!(client.servers.count("wrote"), 1);
}

#[test]
fn a_hole_in_a_file_of_several_pieces_is_punched_in_parts() {
    let client = FileClient::new();
    let [first, second] = [data_in(1), data_in(2)];
    let pieces = vec![Piece { data: first, length: 40 * SHARD_BYTES }, Piece { data: second, length: u64::MAX }];
    client.file_of_pieces(FILE, 80 * SHARD_BYTES, pieces);
    for index in [0, 39, 40, 79] {
        client.files.lock().write(FILE, index * SHARD_BYTES, b"abcdefgh");
    }
    client.call(get_attr(FILE)).unwrap();
    let (_, sent) = client.sent_by(|| client.call(punch(4, 79 * SHARD_BYTES)).unwrap());
    let count = |label| sent.iter().filter(|sent| **sent == label).count();
    assert_eq!((count("allocate-shard"), count("empty-shards"), count("wrote")), (80, 0, 3));
    let seen = [0, 39, 40, 79].map(|index| shard(&client, index));
    assert_eq!(seen, [&b"abcd\0\0\0\0"[..], &[0; 8], &[0; 8], b"\0\0\0\0efgh"]);
}

#[test]
fn a_hole_in_a_small_file_is_one_request() {
    let client = FileClient::new();
    client.file(FILE);
    let (_, sent) = client.sent_by(|| client.call(punch(0, 10)).unwrap());
    assert_eq!(sent, ["allocate"]);
}
