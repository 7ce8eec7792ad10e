//! What a session remembers of the bytes of files in shards.

use super::support::*;
use crate::pledges::cache::Cache;
use crate::pledges::shards::{NOT_PLEDGED, ShardRead};
use crate::pledges::touched::touched_by;
use bytes::Bytes;
use hekate_proto::*;
use std::time::Duration;

const PARTITION: PartitionNumber = PartitionNumber(0);
const TERM: u64 = 9;
const FILE: InodeId = inode(0, 6);
const DATA: DataId = DataId(0x55);
const START: Duration = Duration::from_secs(100);

fn layout(version: u32) -> Layout {
    Layout { version, pieces: vec![Piece { data: DATA, length: u64::MAX }] }
}

fn file(size: u64, version: u32) -> Attr {
    Attr { size, layout: layout(version), ..attr(FILE, NodeKind::File) }
}

fn about(index: u64) -> Pledged {
    Pledged::Shard { data: DATA, index }
}

fn given(number: u64, given_for: GivenFor) -> GivenPledges {
    GivenPledges { partition: PARTITION, term: TERM, number, given_for }
}

/// A cache in which the attributes of the file are pledged.
fn with_file(attr: &Attr) -> Cache {
    let mut cache = Cache::default();
    cache.renew(START, START, &[(PARTITION, TERM)]);
    take_attributes(&mut cache, attr);
    cache
}

fn take_attributes(cache: &mut Cache, attr: &Attr) {
    let get = Op::Inode { op: InodeOp::GetAttr { inode: FILE } };
    let asked = cache.ask(&get).unwrap();
    let found = Found::Node { attr: Box::new(attr.clone()) };
    cache.take(asked, &get, &found, &[given(1, GivenFor::Attributes)], START);
}

/// Takes what was read of a shard from its beginning.
fn take(cache: &mut Cache, asked: u64, (index, number): (u64, u64), bytes: &[u8], version: u32) -> u64 {
    let (layout, bytes) = (layout(version), Bytes::copy_from_slice(bytes));
    let shard = (DATA, index);
    let read = ShardRead { volume: VolumeId(1), inode: FILE, layout: &layout, shard, offset: 0, bytes: Some(&bytes) };
    cache.take_shard(asked, &read, &given(number, GivenFor::Shard), START)
}

fn read(cache: &mut Cache, offset: u64, length: u32) -> Option<Bytes> {
    let op = Op::Data { op: DataOp::Read { inode: FILE, offset, length, touch: false } };
    match cache.answer(&op, START)? {
        Ok(Reply::FileData { bytes, .. }) => Some(bytes),
        other => panic!("{other:?}"),
    }
}

fn recall(cache: &mut Cache, index: u64, number: u64) -> Vec<InodeId> {
    cache.drop_recalled(PARTITION, &[Pledge { about: about(index), number }]).contents
}

#[test]
fn bytes_are_answered_while_shards_and_attributes_are_pledged() {
    let attr = file(SHARD_BYTES + 3, 1);
    let mut cache = with_file(&attr);
    let asked = cache.ask_shard(FILE, &about(0)).unwrap();
    let number = take(&mut cache, asked, (0, 5), &[7; SHARD_BYTES as usize], 1);
    assert_eq!(read(&mut cache, 10, 4).unwrap(), [7; 4][..]);
    assert_eq!(read(&mut cache, SHARD_BYTES - 1, 2), None, "the second shard is not known");
    assert_eq!(take(&mut cache, asked, (1, 6), b"end", 1), number);
    assert_eq!(read(&mut cache, SHARD_BYTES - 1, 100).unwrap(), b"\x07end"[..], "to the end of the file");
    assert_eq!(read(&mut cache, SHARD_BYTES + 3, 100).unwrap(), b""[..]);
    assert_eq!(cache.content_number(&attr, START), Some(number));
    assert_eq!(cache.content_number(&attr, START + PLEDGE_LEASE), None, "the lease is over");
    assert_eq!(recall(&mut cache, 1, 6), [FILE]);
    assert_eq!(read(&mut cache, 10, 4), None, "another number stands for the rest");
    assert_eq!(cache.content_number(&attr, START), None);
    let asked = cache.ask_shard(FILE, &about(0)).unwrap();
    assert_ne!(take(&mut cache, asked, (0, 8), &[7; 9], 1), number, "it has changed since");
    assert_eq!(recall(&mut cache, 0, 5), [], "a later pledge is about it");
    assert_eq!(read(&mut cache, 0, 4).unwrap(), [7; 4][..]);
}

#[test]
fn what_is_recalled_on_its_way_is_not_remembered() {
    let attr = file(100, 1);
    let mut cache = with_file(&attr);
    let asked = cache.ask_shard(FILE, &about(0)).unwrap();
    assert_eq!(recall(&mut cache, 0, 5), []);
    assert_eq!(take(&mut cache, asked, (0, 5), &[7; 100], 1), NOT_PLEDGED);
    assert_eq!(read(&mut cache, 0, 4), None);
}

#[test]
fn nothing_is_remembered_of_a_file_that_an_own_op_is_changing() {
    let attr = file(100, 1);
    let mut cache = with_file(&attr);
    let asked = cache.ask_shard(FILE, &about(0)).unwrap();
    take(&mut cache, asked, (0, 5), &[7; 100], 1);
    let write = Op::Data { op: DataOp::Write { inode: FILE, offset: 0, data: Bytes::new(), drop_set_id: false } };
    let touched = touched_by(&write, |_| None).unwrap();
    let (change, _) = cache.begin_change(&touched, START);
    assert_eq!(cache.ask_shard(FILE, &about(0)), None);
    assert_eq!(take(&mut cache, asked, (0, 6), &[7; 100], 1), NOT_PLEDGED, "asked before, answered meanwhile");
    cache.end_change(change, true, &[], START);
    assert_eq!(take(&mut cache, asked, (0, 6), &[7; 100], 1), NOT_PLEDGED, "asked before, answered after");
    take_attributes(&mut cache, &attr);
    assert_eq!(read(&mut cache, 0, 4), None);
    let asked = cache.ask_shard(FILE, &about(0)).unwrap();
    take(&mut cache, asked, (0, 6), &[8; 100], 1);
    assert_eq!(read(&mut cache, 0, 4).unwrap(), [8; 4][..]);
    let owner = AttrChanges { uid: Some(1), ..AttrChanges::default() };
    let chown = Op::Inode { op: InodeOp::SetAttr { inode: FILE, changes: owner } };
    let (change, _) = cache.begin_change(&touched_by(&chown, |_| None).unwrap(), START);
    cache.end_change(change, true, &[], START);
    take_attributes(&mut cache, &attr);
    assert_eq!(read(&mut cache, 0, 4).unwrap(), [8; 4][..], "its bytes are the same");
}

#[test]
fn bytes_of_another_layout_are_not_answered() {
    let mut cache = with_file(&file(100, 1));
    let asked = cache.ask_shard(FILE, &about(0)).unwrap();
    take(&mut cache, asked, (0, 5), &[7; 100], 1);
    take_attributes(&mut cache, &file(100, 2));
    assert_eq!(read(&mut cache, 0, 4), None, "a truncate has removed them perhaps");
    take(&mut cache, asked, (0, 6), &[8; 100], 2);
    assert_eq!(read(&mut cache, 0, 4).unwrap(), [8; 4][..]);
}

#[test]
fn a_leader_that_begins_anew_ends_what_it_pledged() {
    let attr = file(100, 1);
    let mut cache = with_file(&attr);
    let asked = cache.ask_shard(FILE, &about(0)).unwrap();
    take(&mut cache, asked, (0, 5), &[7; 100], 1);
    cache.renew(START, START, &[(PARTITION, TERM + 1)]);
    assert_eq!(take(&mut cache, asked, (0, 5), &[7; 100], 1), NOT_PLEDGED, "of the term before");
    take_attributes(&mut cache, &attr);
    assert_eq!(read(&mut cache, 0, 4), None);
}

#[test]
fn what_is_forgotten_for_want_of_room_is_named_to_doors() {
    let mut cache = with_file(&file(100, 1));
    let large = vec![7; SHARD_BYTES as usize];
    let asked = cache.ask_shard(FILE, &about(0)).unwrap();
    take(&mut cache, asked, (0, 5), &large, 1);
    let mut evicted = Vec::new();
    for number in 10..20 {
        let (inode, layout, bytes) = (inode(0, number), layout(1), Bytes::from(large.clone()));
        let (shard, bytes) = ((DataId(number.into()), 0), Some(&bytes));
        let read = ShardRead { volume: VolumeId(1), inode, layout: &layout, shard, offset: 0, bytes };
        cache.take_shard(asked, &read, &given(number, GivenFor::Shard), START);
        evicted.extend(cache.take_evicted());
    }
    assert!(evicted.contains(&FILE) && evicted.len() < 10, "{evicted:?}");
    assert_eq!(read(&mut cache, 0, 4), None);
}

#[test]
fn one_file_takes_no_more_room_than_all_may() {
    let attr = file(100 * SHARD_BYTES, 1);
    let mut cache = with_file(&attr);
    let large = vec![7; SHARD_BYTES as usize];
    let asked = cache.ask_shard(FILE, &about(0)).unwrap();
    let numbers: Vec<u64> = (0..10).map(|index| take(&mut cache, asked, (index, 5 + index), &large, 1)).collect();
    assert_eq!((numbers[3], numbers[2]), (NOT_PLEDGED, numbers[0]), "{numbers:?}");
    assert!(numbers[4] > numbers[0], "it begins anew");
    assert_eq!(cache.take_evicted(), [FILE, FILE]);
    assert_eq!(read(&mut cache, 0, 4), None);
}
