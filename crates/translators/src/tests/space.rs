//! `distribute`: fallocate, SEEK_DATA and SEEK_HOLE.

use super::files::FileClient;
use super::scripted_servers::Sent;
use super::support::*;
use hekate_graph::{Context, Translator};
use hekate_proto::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const FILE: InodeId = inode(3, 1);
const RESERVE: Allocate = Allocate::Reserve { keep_size: false };

fn allocate(client: &FileClient, offset: u64, length: u64, mode: Allocate) -> Result<Reply> {
    client.data(DataOp::Allocate { inode: FILE, offset, length, mode, drop_set_id: false })
}

fn seek(client: &FileClient, offset: u64, hole: bool) -> Result<Option<u64>> {
    match client.data(DataOp::Seek { inode: FILE, offset, hole })? {
        Reply::Found { at } => Ok(at),
        other => panic!("{other:?}"),
    }
}

/// End and reach of what the inode's leader learns.
fn wrote(sent: &[Sent]) -> Vec<(u64, u64)> {
    let ends = |request: &Request| match request.op {
        Op::Data { op: DataOp::Wrote { end, reach, .. } } => Some((end, reach)),
        _ => None,
    };
    sent.iter().filter_map(|sent| ends(&sent.request)).collect()
}

#[test]
fn space_of_a_small_file_is_allocated_with_one_request() {
    let client = FileClient::new();
    client.file(FILE);
    let (_, sent) = client.sent_by(|| allocate(&client, 0, INLINE_MAX, RESERVE).unwrap());
    assert_eq!(sent, ["allocate"]);
    let (_, sent) = client.sent_by(|| allocate(&client, 0, INLINE_MAX + 1, RESERVE).unwrap());
    assert_eq!(sent, ["allocate", "spill", "allocate-shard", "wrote"]);
}

#[test]
fn space_is_allocated_in_batches_of_32_shards() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 5);
    let (offset, end) = (SHARD_BYTES - 1, 40 * SHARD_BYTES + 7);
    client.servers.take_sent();
    allocate(&client, offset, end - offset, RESERVE).unwrap();
    let sent = client.servers.take_sent();
    let first = 32 * SHARD_BYTES;
    assert_eq!(wrote(&sent), [(first, first), (end, end)]);
    assert_eq!(sent.iter().filter(|sent| sent.label() == "allocate-shard").count(), 41);
    assert_eq!(client.size(FILE), end);
    let op = DataOp::AllocateShard {
        data: data_in(0),
        index: 0,
        offset: SHARD_BYTES as u32 - 1,
        length: 1,
        fill: Fill::Holes,
    };
    assert_eq!(sent[0].request.op, Op::Data { op });
}

#[test]
fn an_allocation_may_keep_the_size_and_zero_the_bytes() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 5);
    client.write(FILE, 0, b"abcde").unwrap();
    client.servers.take_sent();
    allocate(&client, 1, 10, Allocate::Reserve { keep_size: true }).unwrap();
    let sent = client.servers.take_sent();
    assert_eq!(wrote(&sent), [(0, 11), (0, 11)], "before the shards too: no session moves the end from then on");
    assert!(matches!(sent[0].request.op, Op::Data { op: DataOp::Wrote { .. } }));
    assert_eq!(client.content(FILE), b"abcde");
    allocate(&client, 1, 10, Allocate::Zero { keep_size: true }).unwrap();
    assert_eq!(client.content(FILE), b"a\0\0\0\0");
}

#[test]
fn an_allocation_that_met_a_truncate_is_repeated() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 5);
    client.before("wrote", |files| {
        files.truncate(FILE, 1);
        None
    });
    let (_, sent) = client.sent_by(|| allocate(&client, 0, 10, RESERVE).unwrap());
    assert_eq!(sent, ["allocate-shard", "wrote", "getattr", "allocate-shard", "wrote"]);
    assert_eq!(client.size(FILE), 10);
}

#[test]
fn a_caller_gives_up_between_two_batches() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 5);
    let interrupt = Arc::new(AtomicBool::new(false));
    let context = Context { interrupt: Some(&interrupt), ..Context::default() };
    let set = interrupt.clone();
    client.before("wrote", move |_| {
        set.store(true, Ordering::Relaxed);
        None
    });
    let op = DataOp::Allocate { inode: FILE, offset: 0, length: 40 * SHARD_BYTES, mode: RESERVE, drop_set_id: false };
    assert!(is_unavailable(&client.top.handle(&context, Op::Data { op })));
    assert_eq!(client.servers.count("wrote"), 1);
    assert_eq!(client.size(FILE), 32 * SHARD_BYTES);
}

#[test]
fn a_range_without_bytes_or_beyond_the_longest_file_is_refused() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 5);
    assert!(matches!(allocate(&client, 1, 0, RESERVE), Err(Error::Invalid { .. })));
    assert_eq!(allocate(&client, FILE_BYTES_MAX, 1, RESERVE), Err(Error::TooLarge));
    assert_eq!(allocate(&client, 1, u64::MAX, RESERVE), Err(Error::TooLarge));
}

#[test]
fn data_and_holes_are_found_in_shards() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 100 * SHARD_BYTES);
    client.write(FILE, 10, b"abc").unwrap();
    // Further away than one batch reaches.
    let far = 70 * SHARD_BYTES + 5;
    client.write(FILE, far, b"abc").unwrap();
    assert_eq!(seek(&client, 0, false), Ok(Some(10)));
    assert_eq!(seek(&client, 11, false), Ok(Some(11)));
    assert_eq!(seek(&client, 10, true), Ok(Some(13)));
    assert_eq!(seek(&client, 0, true), Ok(Some(0)));
    let (found, sent) = client.sent_by(|| seek(&client, 13, false));
    assert_eq!(found, Ok(Some(far)));
    // Of the shards that several partitions find, the first one is next.
    let data = client.files.lock().attr(FILE).layout.pieces[0].data;
    let place = |index| partition_of(ShardId { volume: VOLUME, data, index });
    let later = (71..100).find(|index| place(*index) != place(70)).unwrap();
    client.files.lock().write(FILE, later * SHARD_BYTES, b"abc");
    assert_eq!(seek(&client, 13, false), Ok(Some(far)));
    client.files.lock().write(FILE, later * SHARD_BYTES, b"\0\0\0");
    let batches = sent.iter().filter(|label| **label == "getattr").count();
    assert_eq!(batches, 1 + 2, "the hole is skipped in one step");
    assert_eq!(seek(&client, far + 3, false), Err(Error::NoData));
    assert_eq!(seek(&client, 100 * SHARD_BYTES, false), Err(Error::NoData));
    assert_eq!(seek(&client, 100 * SHARD_BYTES, true), Err(Error::NoData));
}

#[test]
fn the_end_of_a_file_is_a_hole() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 3);
    client.write(FILE, 0, b"abc").unwrap();
    assert_eq!(seek(&client, 1, true), Ok(Some(3)));
    // The shard has more bytes than the file.
    client.files.lock().shards.values_mut().for_each(|shard| shard.extend(b"more"));
    assert_eq!(seek(&client, 1, true), Ok(Some(3)));
    client.files.lock().write(FILE, 0, b"\0\0\0");
    assert_eq!(seek(&client, 1, false), Err(Error::NoData));
}

#[test]
fn a_search_that_met_a_truncate_is_repeated() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 100);
    client.before("seek-shard", |files| {
        files.write(FILE, 7, b"a");
        files.truncate(FILE, 50);
        files.write(FILE, 20, b"a");
        files.write(FILE, 7, b"\0");
        None
    });
    assert_eq!(seek(&client, 0, false), Ok(Some(20)));
    client.before("seek-shard", |files| {
        files.truncate(FILE, 0);
        None
    });
    assert_eq!(seek(&client, 0, false), Err(Error::NoData), "the file is empty now");
}

#[test]
fn a_search_in_a_small_file_is_one_request() {
    let client = FileClient::new();
    client.file(FILE);
    client.write(FILE, 0, b"abc").unwrap();
    let (found, sent) = client.sent_by(|| seek(&client, 1, true));
    assert_eq!((found, sent), (Ok(Some(3)), vec!["seek"]));
}

#[test]
fn data_is_found_in_a_file_of_several_pieces() {
    let client = FileClient::new();
    let [first, second] = [data_in(1), data_in(2)];
    let pieces = vec![Piece { data: first, length: 100 * SHARD_BYTES }, Piece { data: second, length: u64::MAX }];
    client.file_of_pieces(FILE, 120 * SHARD_BYTES, pieces);
    let at = 110 * SHARD_BYTES + 9;
    client.files.lock().write(FILE, at, b"abc");
    assert_eq!(client.read(FILE, at - 1, 5), b"\0abc\0");
    assert_eq!(seek(&client, 0, false), Ok(Some(at)));
    assert_eq!(seek(&client, at, true), Ok(Some(at + 3)));
}
