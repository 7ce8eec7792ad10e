//! The block door's protocol, and the records and logs of vDisks.

use crate::allocation::bounded;
use bytes::Bytes;
use hekate_gateway_nbd::fuzz::conversation as converse;
use hekate_gateway_nbd::protocol::*;
use hekate_vdisk::format::append::{Entry, Header};
use hekate_vdisk::format::{BLOCK_BYTES, DiskId, LayerId, LayerState, Record, SegmentUse};
use hekate_vdisk::orders::{Answer, Order};
use hekate_vdisk::{DiskKind, DiskRecord, Durability, Health, SnapshotRecord};

/// What a server says before it has heard anything.
const HELLO_BYTES: usize = 18;

pub fn conversation(bytes: &[u8]) {
    let answered = converse(bytes).expect("a pair of sockets");
    assert!(answered.len() >= HELLO_BYTES, "a server says what it is");
    assert_eq!(answered[..8], INIT_MAGIC.to_be_bytes());
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let head = [&OPTION_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes()];
    [&head.concat()[..], data].concat()
}

fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), rest].concat()
}

fn request(flags: u16, command: u16, offset: u64, length: u32, data: &[u8]) -> Vec<u8> {
    let head = [&REQUEST_MAGIC.to_be_bytes()[..], &flags.to_be_bytes(), &command.to_be_bytes(), &7u64.to_be_bytes()];
    [&head.concat()[..], &offset.to_be_bytes(), &length.to_be_bytes(), data].concat()
}

pub fn conversation_seeds() -> Vec<Vec<u8>> {
    let flags = 3u32.to_be_bytes().to_vec();
    let go = option(option::GO, &named("d", &[0, 1, 0, 3]));
    let contexts = named("d", &[&1u32.to_be_bytes()[..], &named("base:allocation", &[])].concat());
    let structured = option(option::STRUCTURED_REPLY, &[]);
    let allocation = option(option::SET_META_CONTEXT, &contexts);
    let work = [
        request(1, 1, 512, 1024, &[7; 1024]),
        request(0, 0, 0, 4096, &[]),
        request(0, 4, 4096, 8192, &[]),
        request(2, 6, 0, 4096, &[]),
        request(8, 7, 0, 65536, &[]),
        request(0, 3, 0, 0, &[]),
        request(0, 5, 0, 4096, &[]),
        request(0, 2, 0, 0, &[]),
    ]
    .concat();
    vec![
        [&flags[..], &option(option::LIST, &[]), &option(option::ABORT, &[])].concat(),
        [&flags[..], &option(option::INFO, &named("", &[0, 0])), &option(option::STARTTLS, &[])].concat(),
        [&flags[..], &option(option::EXPORT_NAME, b"d"), &work].concat(),
        [&flags[..], &structured, &allocation, &go, &work].concat(),
        [&flags[..], &option(option::LIST_META_CONTEXT, &contexts), &go, &request(0, 1, 0, u32::MAX, &[])].concat(),
    ]
}

/// Where the checksum of a header is.
const SUM: std::ops::Range<usize> = 52..56;

/// The header of an append, whose checksum is made right. Whatever is read is the same after it was written.
pub fn append(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    block.resize(BLOCK_BYTES as usize, 0);
    block[SUM].fill(0);
    let sum = crc32c::crc32c(&block);
    block[SUM].copy_from_slice(&sum.to_le_bytes());
    let Some(header) = Header::unseal(&block) else { return };
    let data = vec![Bytes::from(vec![0; BLOCK_BYTES as usize]); header.data_blocks() as usize];
    // What fields and entries leave of the block says nothing.
    let sealed = header.seal(&data);
    assert_eq!(Header::unseal(&sealed[..BLOCK_BYTES as usize]), Some(header), "a header is read as it was written");
}

pub fn append_seeds() -> Vec<Vec<u8>> {
    let entries = [
        vec![],
        vec![Entry::Data { block: 5, checksum: 9 }, Entry::Zeros { block: 7, count: 100 }],
        vec![Entry::Freed { segment: 2, count: 3 }],
    ];
    let header = |entries: Vec<Entry>| Header {
        layer: LayerId(3),
        opening: 1,
        sequence: 4,
        stable: 2,
        segment: 6,
        block: 0,
        entries,
    };
    let block = [Bytes::from(vec![0; BLOCK_BYTES as usize])];
    let seal = |header: Header| {
        let sealed = header.seal(&block[..header.data_blocks() as usize]);
        let used = sealed[..BLOCK_BYTES as usize].iter().rposition(|byte| *byte != 0).unwrap_or(0);
        sealed[..=used].to_vec()
    };
    entries.map(header).map(seal).to_vec()
}

/// Bytes before and behind a record's value.
const HEAD_BYTES: usize = 10;
const SUM_BYTES: usize = 4;

/// The value of a record of a vDisk; the first byte chooses its type. Whatever is read is written the same way.
pub fn record(bytes: &[u8]) {
    fn check<R: Record>(value: &[u8]) {
        let head = [&b"HKVR"[..], &[1, R::KIND], &(value.len() as u32).to_le_bytes(), value].concat();
        let file = Bytes::from([&head[..], &crc32c::crc32c(&head).to_le_bytes()].concat());
        if let Ok(record) = bounded(file.len(), 1 << 16, || R::unseal(&file)) {
            assert_eq!(record.seal(), file, "a record has one encoding");
        }
        // Without its head it is no record.
        assert!(R::unseal(&Bytes::copy_from_slice(value)).is_err() || value.starts_with(b"HKVR"));
    }
    let [kind, bytes @ ..] = bytes else { return };
    match kind % 5 {
        0 => check::<DiskRecord>(bytes),
        1 => check::<SnapshotRecord>(bytes),
        2 => check::<LayerState>(bytes),
        3 => check::<Order>(bytes),
        _ => check::<Answer>(bytes),
    }
}

pub fn record_seeds() -> Vec<Vec<u8>> {
    let labels = vec![("why".to_string(), "test".to_string())];
    let disk = DiskRecord {
        id: DiskId(1),
        size: 1 << 30,
        head: LayerId(2),
        kind: DiskKind::Disk,
        durability: Durability::Async,
        health: Health::Lost { since: 3 },
        created: 4,
        labels: labels.clone(),
    };
    let snapshot = SnapshotRecord { layer: LayerId(2), size: 1 << 30, created: 5, labels: labels.clone() };
    let state = LayerState {
        segments: vec![SegmentUse { number: 0, live: 5, written: 9 }],
        ..LayerState::empty(LayerId(2), Some(LayerId(1)), 4096, 8)
    };
    let orders = [
        Order::Snapshot { name: "s".into(), labels },
        Order::RollBack { snapshot: "s".into() },
        Order::MakeTemplate,
        Order::Resize { size: 1 << 20 },
        Order::Scrub { bytes_per_second: 1 },
        Order::Resume,
    ];
    let answer = Answer { error: Some(hekate_proto::Error::NotFound), moved: 1, merged: 2, removed: 3 };
    let sealed = |kind: u8, file: Bytes| [&[kind][..], &file[HEAD_BYTES..file.len() - SUM_BYTES]].concat();
    let mut seeds = vec![sealed(0, disk.seal()), sealed(1, snapshot.seal()), sealed(2, state.seal())];
    seeds.extend(orders.iter().map(|order| sealed(3, order.seal())));
    seeds.push(sealed(4, answer.seal()));
    seeds
}
