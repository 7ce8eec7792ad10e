//! `distribute`: copy_file_range.

use super::files::FileClient;
use super::support::*;
use hekate_proto::*;

const FROM: InodeId = inode(3, 1);
const TO: InodeId = inode(2, 2);
const MIB: u64 = 1 << 20;

fn copy_between(client: &FileClient, from: (InodeId, u64), to: (InodeId, u64), length: u64) -> Result<u64> {
    let ((from, from_offset), (to, to_offset)) = (from, to);
    let (drop_set_id, touch) = (false, false);
    match client.data(DataOp::Copy { from, from_offset, to, to_offset, length, drop_set_id, touch })? {
        Reply::Copied { bytes } => Ok(bytes),
        other => panic!("{other:?}"),
    }
}

fn copy(client: &FileClient, from: u64, to: u64, length: u64) -> Result<u64> {
    copy_between(client, (FROM, from), (TO, to), length)
}

/// Bytes without a zero.
fn pattern(length: u64) -> Vec<u8> {
    let round: Vec<u8> = (1..=251).collect();
    let mut bytes = round.repeat(length.div_ceil(251) as usize);
    bytes.truncate(length as usize);
    bytes
}

/// A client with a source of these bytes in shards, and an empty destination in shards.
fn with_source(bytes: &[u8]) -> FileClient {
    let client = FileClient::new();
    client.file_in_shards(FROM, 1);
    client.files.lock().write(FROM, 0, bytes);
    client.file_in_shards(TO, 0);
    client
}

fn count(sent: &[&str], label: &str) -> usize {
    sent.iter().filter(|sent| **sent == label).count()
}

#[test]
fn shards_copy_from_shards() {
    let bytes = pattern(2 * SHARD_BYTES);
    let client = with_source(&bytes);
    let (copied, sent) = client.sent_by(|| copy(&client, 5, SHARD_BYTES - 7, 2 * MIB));
    assert_eq!(copied, Ok(2 * MIB));
    assert_eq!((count(&sent, "copy-shard"), count(&sent, "read-shard"), count(&sent, "wrote")), (3, 0, 1));
    assert_eq!(client.content(TO)[SHARD_BYTES as usize - 7..], bytes[5..][..2 * MIB as usize]);
    let copied = copy(&client, SHARD_BYTES - 3, 0, 10);
    assert_eq!((copied, &client.content(TO)[..10]), (Ok(10), &bytes[SHARD_BYTES as usize - 3..][..10]));
}

#[test]
fn a_copy_ends_with_its_source_and_has_at_most_16_mib_at_once() {
    let client = with_source(&pattern(100));
    assert_eq!(copy(&client, 40, 0, 1000), Ok(60));
    assert_eq!(client.size(TO), 60);
    let (copied, sent) = client.sent_by(|| copy(&client, 100, 0, 1));
    assert_eq!((copied, sent), (Ok(0), vec!["getattr"]));
    client.files.lock().write(FROM, 0, &pattern(17 * MIB));
    assert_eq!(copy(&client, 0, 0, 17 * MIB), Ok(16 * MIB));
    assert_eq!(client.content(TO), pattern(16 * MIB));
}

#[test]
fn a_long_hole_is_copied_as_a_hole() {
    let client = with_source(&pattern(3));
    client.files.lock().write(FROM, 100 * SHARD_BYTES, b"end");
    client.files.lock().write(TO, 0, &pattern(100));
    let (copied, sent) = client.sent_by(|| copy(&client, 3, 3, 1 << 40));
    assert_eq!(copied, Ok(100 * SHARD_BYTES - 3), "up to the next shard with data");
    assert_eq!(count(&sent, "copy-shard"), 0);
    let mut expected = pattern(3);
    expected.resize(100, 0);
    assert_eq!((client.read(TO, 0, 100), client.size(TO)), (expected, 100 * SHARD_BYTES));
    // A hole shorter than 1 MiB is copied with what follows it.
    let at = 100 * SHARD_BYTES - MIB + 1;
    let (copied, sent) = client.sent_by(|| copy(&client, at, at, MIB + 2));
    assert_eq!((copied, count(&sent, "copy-shard") > 0), (Ok(MIB + 2), true));
    assert_eq!(client.read(TO, 100 * SHARD_BYTES - 1, 10), b"\0end");
}

#[test]
fn a_long_hole_is_copied_to_a_file_of_several_pieces() {
    let client = with_source(&pattern(3));
    client.files.lock().write(FROM, 100 * SHARD_BYTES, b"end");
    let [first, second] = [data_in(1), data_in(2)];
    let pieces = vec![Piece { data: first, length: 40 * SHARD_BYTES }, Piece { data: second, length: u64::MAX }];
    client.file_of_pieces(TO, 80 * SHARD_BYTES, pieces);
    client.call(get_attr(TO)).unwrap();
    let places = [0, 39, 40, 79].map(|index| index * SHARD_BYTES);
    places.iter().for_each(|at| client.files.lock().write(TO, *at, b"abcdefgh"));
    assert_eq!(copy(&client, 3, 3, 1 << 40), Ok(100 * SHARD_BYTES - 3));
    let seen = places.map(|at| client.read(TO, at, 8));
    assert_eq!(seen, [&b"abc\0\0\0\0\0"[..], &[0; 8], &[0; 8], &[0; 8]]);
}

#[test]
fn bytes_beside_an_inode_go_through_the_client() {
    let client = FileClient::new();
    client.file(FROM);
    client.file(TO);
    client.write(FROM, 0, b"abcdef").unwrap();
    let (copied, sent) = client.sent_by(|| copy(&client, 2, 1, 100));
    assert_eq!((copied, sent), (Ok(4), vec!["getattr", "read", "write"]));
    assert_eq!(client.content(TO), b"\0cdef");
    // From shards to a small file, of which the client knows nothing.
    client.file_in_shards(FROM, 10);
    client.files.lock().write(FROM, 0, b"ghijklmnop");
    assert_eq!(copy(&client, 0, 0, 3), Ok(3));
    assert_eq!(client.content(TO), b"ghief");
}

#[test]
fn ranges_of_one_file_that_overlap_are_refused() {
    let client = with_source(&pattern(100));
    let outcome = copy_between(&client, (FROM, 0), (FROM, 49), 50);
    assert!(matches!(outcome, Err(Error::Invalid { .. })));
    assert_eq!(copy_between(&client, (FROM, 0), (FROM, 50), 50), Ok(50));
    assert_eq!(client.content(FROM)[50..], pattern(50));
}

#[test]
fn a_copy_whose_source_was_truncated_meanwhile_is_repeated() {
    let client = with_source(&pattern(100));
    client.before("wrote", |files| {
        files.truncate(FROM, 10);
        files.write(FROM, 0, b"ABCDEFGHIJ");
        None
    });
    assert_eq!(copy(&client, 0, 0, 100), Ok(10));
    assert_eq!(client.content(TO)[..10], *b"ABCDEFGHIJ");
    client.before("seek-shard", |files| {
        files.truncate(FROM, 5);
        files.write(FROM, 0, b"abcde");
        None
    });
    assert_eq!(copy(&client, 0, 0, 100), Ok(5));
    assert_eq!(client.content(TO)[..10], *b"abcdeFGHIJ");
}

#[test]
fn a_copy_whose_destination_was_truncated_meanwhile_is_repeated() {
    let client = with_source(b"abcdef");
    client.files.lock().write(TO, 0, b"ABCDEFGHIJ");
    client.before("wrote", |files| {
        files.truncate(TO, 8);
        None
    });
    let (copied, sent) = client.sent_by(|| copy(&client, 0, 4, 6));
    assert_eq!((copied, count(&sent, "copy-shard")), (Ok(6), 2));
    assert_eq!(client.content(TO), b"ABCDabcdef");
}

#[test]
fn damaged_bytes_are_read_by_the_client_which_repairs_them() {
    let client = with_source(b"abcdef");
    client.before("copy-shard", |_| Some(Err(Error::Damaged { what: "scripted".into() })));
    let (copied, sent) = client.sent_by(|| copy(&client, 0, 0, 6));
    assert_eq!((copied, count(&sent, "read-shard"), count(&sent, "write-shard")), (Ok(6), 1, 1));
    assert_eq!(client.content(TO), b"abcdef");
    client.before("copy-shard", |_| Some(Err(Error::NoSpace { what: "scripted".into() })));
    assert!(matches!(copy(&client, 0, 0, 6), Err(Error::NoSpace { .. })));
}

#[test]
fn a_copy_beyond_the_longest_file_is_refused() {
    let client = with_source(b"abcdef");
    assert_eq!(copy(&client, 0, FILE_BYTES_MAX - 3, 6), Err(Error::TooLarge));
    assert_eq!(copy(&client, 0, u64::MAX, 6), Err(Error::TooLarge));
}

#[test]
fn the_time_of_access_is_that_of_the_source() {
    let client = with_source(b"abcdef");
    let op = |from, to, to_offset| {
        let (from_offset, length, drop_set_id, touch) = (0, 3, false, true);
        DataOp::Copy { from, from_offset, to, to_offset, length, drop_set_id, touch }
    };
    let (_, sent) = client.sent_by(|| client.data(op(FROM, TO, 0)).unwrap());
    assert_eq!(sent.last(), Some(&"accessed"));
    let (_, sent) = client.sent_by(|| client.data(op(FROM, FROM, 3)).unwrap());
    let place = |label| sent.iter().position(|sent| *sent == label);
    assert_eq!(count(&sent, "accessed"), 1);
    assert!(place("accessed") < place("copy-shard"), "it depends on the times before the write");
}
