//! `distribute`: reads and writes of files, and truncates that run meanwhile.

use super::files::FileClient;
use super::support::*;
use super::virtual_time::in_virtual_time;
use hekate_proto::*;

const FILE: InodeId = inode(3, 1);
const MIB: u64 = 1 << 20;

#[test]
fn a_small_file_is_read_and_written_with_one_request() {
    let client = FileClient::new();
    client.file(FILE);
    let (_, sent) = client.sent_by(|| client.write(FILE, 2, b"abc").unwrap());
    assert_eq!(sent, ["write"]);
    let (bytes, sent) = client.sent_by(|| client.read(FILE, 1, 10));
    assert_eq!((&bytes[..], sent), (&b"\0abc"[..], vec!["read"]));
}

#[test]
fn a_write_beyond_the_limit_of_small_files_moves_their_bytes_to_shards() {
    let client = FileClient::new();
    client.file(FILE);
    client.write(FILE, 0, b"abc").unwrap();
    let (_, sent) = client.sent_by(|| client.write(FILE, INLINE_MAX - 1, b"de").unwrap());
    assert_eq!(sent, ["spill", "write-shard", "wrote"]);
    assert_eq!(client.content(FILE)[..4], *b"abc\0");
    assert_eq!(client.read(FILE, INLINE_MAX - 2, 5), b"\0de");
}

#[test]
fn a_write_that_the_leader_finds_in_shards_is_written_there() {
    let client = FileClient::new();
    client.new_in_shards(FILE, 5);
    let (_, sent) = client.sent_by(|| client.write(FILE, 0, b"abc").unwrap());
    assert_eq!(sent, ["write", "write-shard", "wrote"]);
    assert_eq!(client.content(FILE), b"abc\0\0");
}

#[test]
fn a_read_takes_the_shards_in_file_order_and_then_the_attributes() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 3 * SHARD_BYTES);
    client.write(FILE, SHARD_BYTES - 2, b"abcd").unwrap();
    let (bytes, sent) = client.sent_by(|| client.read(FILE, SHARD_BYTES - 4, 8));
    assert_eq!((&bytes[..], sent), (&b"\0\0abcd\0\0"[..], vec!["read-shard", "read-shard", "getattr"]));
    assert_eq!(client.read(FILE, 3 * SHARD_BYTES - 2, 8), b"\0\0", "the file ends there");
    client.data(DataOp::Read { inode: FILE, offset: 0, length: 1, touch: true }).unwrap();
    assert_eq!(client.servers.labels().last(), Some(&"accessed"));
}

#[test]
fn a_write_over_several_shards_ends_at_the_inodes_leader() {
    let client = FileClient::new();
    client.file_in_shards(FILE, SHARD_BYTES);
    client.servers.take_sent();
    client.write(FILE, SHARD_BYTES - 2, b"abcd").unwrap();
    let sent = client.servers.take_sent();
    let end = SHARD_BYTES + 2;
    let wrote =
        DataOp::Wrote { inode: FILE, layout_version: 1, end, reach: end, drop_set_id: false, fast: false, age: 0 };
    assert_eq!(sent.last().unwrap().request.op, Op::Data { op: wrote });
    assert_eq!((sent.len(), client.size(FILE)), (3, end));
    assert_eq!(client.content(FILE)[SHARD_BYTES as usize - 2..], *b"abcd");
}

#[test]
fn a_read_that_met_a_truncate_is_repeated_under_the_new_layout() {
    let client = FileClient::new();
    client.file_in_shards(FILE, MIB);
    client.write(FILE, 0, b"abcdef").unwrap();
    client.before("getattr", |files| {
        files.truncate(FILE, 4);
        files.write(FILE, 4, b"XY");
        None
    });
    let (bytes, sent) = client.sent_by(|| client.read(FILE, 0, 10));
    assert_eq!(&bytes[..], b"abcdXY");
    assert_eq!(sent, ["read-shard", "getattr"].repeat(2));
}

#[test]
fn a_read_of_a_file_that_became_small_meanwhile_is_repeated_at_the_inode() {
    let client = FileClient::new();
    client.file_in_shards(FILE, MIB);
    client.write(FILE, 0, b"abcdef").unwrap();
    client.before("getattr", |files| {
        files.truncate(FILE, 0);
        None
    });
    let (bytes, sent) = client.sent_by(|| client.read(FILE, 0, 10));
    assert_eq!((&bytes[..], sent), (&b""[..], vec!["read-shard", "getattr", "read"]));
    // And if it has grown again before the second request.
    client.file_in_shards(FILE, MIB);
    client.before("getattr", |files| {
        files.truncate(FILE, 0);
        None
    });
    client.before("read", |files| {
        files.truncate(FILE, 3);
        files.write(FILE, 0, b"new");
        None
    });
    assert_eq!(client.read(FILE, 0, 10), b"new");
}

#[test]
fn a_read_that_met_an_extending_write_is_repeated() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 4);
    client.before("getattr", |files| {
        files.write(FILE, 2, b"abcd");
        None
    });
    let (bytes, sent) = client.sent_by(|| client.read(FILE, 0, 10));
    assert_eq!(bytes, b"\0\0abcd", "not the zeros that the shard had before the write");
    assert_eq!(sent, ["read-shard", "getattr"].repeat(2));
    // Bytes within the known size are valid, whatever the file has grown to.
    client.before("getattr", |files| {
        files.write(FILE, 6, b"more");
        None
    });
    let (_, sent) = client.sent_by(|| client.read(FILE, 0, 6));
    assert_eq!(sent, ["read-shard", "getattr"]);
}

#[test]
fn a_mount_reads_its_own_extending_writes_with_one_batch() {
    let client = FileClient::new();
    client.file_in_shards(FILE, 4);
    client.write(FILE, 4, b"abcd").unwrap();
    let (bytes, sent) = client.sent_by(|| client.read(FILE, 0, 8));
    assert_eq!((&bytes[..], sent), (&b"\0\0\0\0abcd"[..], vec!["read-shard", "getattr"]));
}

#[test]
fn a_write_under_an_old_layout_is_repeated_under_the_new_one() {
    let client = FileClient::new();
    client.file_in_shards(FILE, MIB);
    client.write(FILE, 0, b"abcdef").unwrap();
    client.before("wrote", |files| {
        files.truncate(FILE, 3);
        None
    });
    let (_, sent) = client.sent_by(|| client.write(FILE, 3, b"XY").unwrap());
    assert_eq!(sent, ["write-shard", "wrote", "getattr", "write-shard", "wrote"]);
    assert_eq!(client.content(FILE), b"abcXY");
}

#[test]
fn a_write_to_a_file_that_became_small_meanwhile_is_repeated_at_the_inode() {
    let client = FileClient::new();
    client.file_in_shards(FILE, MIB);
    client.before("wrote", |files| {
        files.truncate(FILE, 0);
        None
    });
    let (_, sent) = client.sent_by(|| client.write(FILE, 1, b"XY").unwrap());
    assert_eq!(sent, ["write-shard", "wrote", "getattr", "write"]);
    assert_eq!(client.content(FILE), b"\0XY");
}

#[test]
fn the_reply_to_a_write_may_name_a_newer_layout() {
    let client = FileClient::new();
    client.file_in_shards(FILE, MIB);
    client.before("wrote", |files| {
        files.truncate(FILE, MIB);
        Some(node(files.attr(FILE)))
    });
    client.write(FILE, 0, b"ab").unwrap();
    let (_, sent) = client.sent_by(|| client.write(FILE, 0, b"cd").unwrap());
    assert_eq!(sent, ["write-shard", "wrote"]);
    assert_eq!(client.content(FILE)[..3], *b"cd\0");
}

#[test]
fn an_error_of_one_shard_fails_the_write() {
    in_virtual_time(|| {
        let client = FileClient::new();
        client.file_in_shards(FILE, MIB);
        client.before("write-shard", |_| Some(Err(Error::NoSpace { what: "scripted".into() })));
        assert!(matches!(client.write(FILE, 0, b"ab"), Err(Error::NoSpace { .. })));
        assert_eq!(client.servers.count("wrote"), 1, "sent in the same batch, and skipped");
    });
}

#[test]
fn bytes_beyond_the_longest_file_are_refused() {
    let client = FileClient::new();
    client.file_in_shards(FILE, MIB);
    let (outcome, sent) = client.sent_by(|| client.write(FILE, FILE_BYTES_MAX, b"a"));
    assert_eq!((outcome, sent), (Err(Error::TooLarge), vec![]));
    assert_eq!(client.write(FILE, u64::MAX, b"a"), Err(Error::TooLarge));
}
