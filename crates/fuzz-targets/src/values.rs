//! Values of the wire, the journal and the index.

use crate::allocation::bounded;
use crate::generate::{Source, one_of_each};
use bytes::Bytes;
use hekate_brick::LogEntry;
use hekate_proto::*;
use hekate_replica::{Address, Envelope, Fresh, Message};
use std::fmt::Debug;
use std::sync::OnceLock;

/// Memory that a decoder may take besides its input, in bytes: a list is allocated with room for 1,024 elements before
/// its count is checked against the input.
pub const FIXED_BYTES: usize = 1 << 20;

/// Bytes that decode are the encoding of their value.
pub fn value<T: Wire + Debug + PartialEq>(bytes: &[u8]) -> Option<T> {
    let input = Bytes::copy_from_slice(bytes);
    let value = bounded(bytes.len(), FIXED_BYTES, || T::from_bytes(input)).ok()?;
    let again = value.to_bytes();
    assert!(again == bytes, "{bytes:02x?} decode to {value:?}, which is encoded as {again:02x?}");
    Some(value)
}

pub fn op(bytes: &[u8]) {
    let _ = value::<Op>(bytes).map(|op| (op.label(), op.is_read()));
}

pub fn op_seeds() -> Vec<Vec<u8>> {
    encoded(one_of_each::<Op>(2))
}

pub fn request(bytes: &[u8]) {
    value::<Request>(bytes);
}

/// One op of each family, made once.
pub fn requests() -> &'static Vec<Request> {
    static MADE: OnceLock<Vec<Request>> = OnceLock::new();
    MADE.get_or_init(make_requests)
}

fn make_requests() -> Vec<Request> {
    let ops = one_of_each::<Op>(1);
    let targets = one_of_each::<Target>(1);
    let request = |(number, op): (usize, Op)| Request {
        volume: VolumeId(1),
        target: targets[number % targets.len()],
        session: SessionId(2),
        op_id: OpId(0x103),
        durable: number % 2 == 0,
        retry: false,
        pledge: false,
        op,
    };
    ops.into_iter().enumerate().map(request).collect()
}

pub fn request_seeds() -> Vec<Vec<u8>> {
    encoded(make_requests())
}

pub fn reply(bytes: &[u8]) {
    value::<Result<Reply>>(bytes);
}

/// One reply of each kind, and an error.
pub fn replies() -> Vec<Result<Reply>> {
    one_of_each::<Reply>(1).into_iter().map(Ok).chain([Err(Error::NotFound)]).collect()
}

pub fn reply_seeds() -> Vec<Vec<u8>> {
    encoded(replies())
}

pub fn notification(bytes: &[u8]) {
    value::<Notification>(bytes);
}

pub fn notification_seeds() -> Vec<Vec<u8>> {
    encoded(one_of_each::<Notification>(1))
}

pub fn error(bytes: &[u8]) {
    if let Some(error) = value::<Error>(bytes) {
        let _ = (error.entry(), error.to_string());
    }
}

pub fn error_seeds() -> Vec<Vec<u8>> {
    encoded(one_of_each::<Error>(1))
}

pub fn record(bytes: &[u8]) {
    value::<Record>(bytes);
}

pub fn record_seeds() -> Vec<Vec<u8>> {
    let source = |n: u8| -> Vec<u8> { (0..200).map(|at: u8| at.wrapping_mul(n).wrapping_add(n)).collect() };
    encoded((1..5).map(|n| Source::new(&source(n)).record(true)))
}

pub fn envelope(bytes: &[u8]) {
    if let Some(Envelope { message: Message::Append { entry, .. }, .. }) = value::<Envelope>(bytes) {
        let _ = (entry.need(), entry.encoded_bytes());
    }
}

pub fn envelope_seeds() -> Vec<Vec<u8>> {
    let replica = |brick| Address { partition: PartitionNumber(3), brick: BrickId(brick) };
    let shard = ShardId { volume: VolumeId(2), data: DataId(7), index: 8 };
    let fresh = vec![Fresh { shard, first_block: 0, bytes: vec![6; 64].into() }];
    let entry = LogEntry::new(Source::new(&[9; 200]).record(true));
    let append = Message::Append { entry, fresh, copied: true };
    let envelope = |message| Envelope { ring: RingId(1), from: replica(1), to: replica(2), epoch: Epoch(4), message };
    encoded(one_of_each::<Message>(1).into_iter().chain([append]).map(envelope))
}

pub fn change(bytes: &[u8]) {
    if let Some(Change::Put { key, .. } | Change::Delete { key }) = value::<Change>(bytes) {
        look_at(&key);
    }
}

pub fn change_seeds() -> Vec<Vec<u8>> {
    encoded(one_of_each::<Change>(1))
}

/// Any bytes are a key; reading its parts must not fail, and its ranges must be in order.
pub fn key(bytes: &[u8]) {
    look_at(&Key::from_bytes(Bytes::copy_from_slice(bytes)));
}

fn look_at(key: &Key) {
    let _ = (key.prefix(), key.id(), format!("{key:?}"));
    assert!(*key < key.successor() && key.as_bytes().len() >= key.rest().len());
    let end = key.prefix_end();
    assert!(key.as_bytes().iter().all(|byte| *byte == u8::MAX) || *key < end, "{key:?} is not before {end:?}");
    if let (Some(shard), Some(place)) = (key.as_shard(), key.prefix()) {
        assert_eq!(key.rest(), Key::shard(place.ring, shard).rest());
    }
}

pub fn key_seeds() -> Vec<Vec<u8>> {
    let (ring, volume, dir) = (RingId(1), VolumeId(2), InodeId::new(3, 4, 5));
    let place = KeyPrefix { ring, position: Position(3), volume };
    let shard = ShardId { volume, data: DataId(7), index: 8 };
    let keys = [
        Key::inode(ring, volume, dir, Kind::Inode),
        Key::stub(place, dir),
        Key::name(place, dir, b"name"),
        Key::xattr(ring, volume, dir, b"user.x"),
        Key::shard(ring, shard),
        Key::checksums(ring, shard, 3),
        Key::partition(ring, Position(0)),
        Key::intent(ring, Position(0), IntentId(9)),
        Key::leg_done(ring, Position(0), IntentId(9), 1),
        Key::session(ring, Position(0), SessionId(2), 3),
        Key::orphan(ring, volume, dir),
        Key::garbage(ring, volume, Position(3), DataId(7)),
    ];
    keys.iter().map(|key| key.as_bytes().to_vec()).collect()
}

pub fn index_value(bytes: &[u8]) {
    let Some((number, bytes)) = bytes.split_first() else { return };
    match number % 8 {
        0 => drop(value::<InodeRecord>(bytes)),
        1 => drop(value::<StubRecord>(bytes)),
        2 => drop(value::<NameRecord>(bytes)),
        3 => drop(value::<ShardRecord>(bytes)),
        4 => drop(value::<PartitionRecord>(bytes)),
        5 => drop(value::<IntentRecord>(bytes)),
        6 => drop(value::<SessionRecord>(bytes).map(|record| value::<Reply>(&record.reply))),
        _ => drop(value::<GarbageRecord>(bytes)),
    }
}

pub fn index_value_seeds() -> Vec<Vec<u8>> {
    let first = |number: u8, value: Vec<u8>| [&[number][..], &value].concat();
    let legs = one_of_each::<Leg>(1).into_iter().zip(1..);
    let leg = |(leg, number)| IntentLeg { position: Position(5), number, leg };
    let intent = IntentRecord { what: "rename".into(), volume: VolumeId(1), legs: legs.map(leg).collect() };
    let session = SessionRecord { op_id: OpId(0x103), reply: Reply::Done.to_bytes() };
    vec![
        first(0, encoded(one_of_each::<InodeRecord>(0)).remove(0)),
        first(1, encoded(one_of_each::<StubRecord>(0)).remove(0)),
        first(2, encoded(one_of_each::<NameRecord>(0)).remove(0)),
        first(3, encoded(one_of_each::<ShardRecord>(0)).remove(0)),
        first(4, PartitionRecord { numbers_reserved: 4096 }.to_bytes().to_vec()),
        first(5, intent.to_bytes().to_vec()),
        first(6, session.to_bytes().to_vec()),
        first(7, GarbageRecord { shards: 3 }.to_bytes().to_vec()),
    ]
}

/// The encodings.
pub fn encoded<T: Wire>(values: impl IntoIterator<Item = T>) -> Vec<Vec<u8>> {
    values.into_iter().map(|value| value.to_bytes().to_vec()).collect()
}
