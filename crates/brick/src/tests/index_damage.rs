//! Damage to the blocks of an index's files: reads are right or fail, and no entry is missing. Wider damage than a bit is
//! tried in a sample of the blocks, and in each with `HEKATE_ALL=1`.

use crate::index::backend::{FILE, Reading};
use crate::index::sums::{self, BLOCK_BYTES, SECTOR_BYTES, Sums};
use crate::index::{Index, IndexChange, RedbIndex};
use crate::storage::{MemoryStorage, Storage};
use crate::tests::histories::sample_every;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Makes the sums those of the blocks as they are now, as if memory had been damaged before the sums were computed.
pub fn take_for_right(storage: &dyn Storage) {
    let (file, sums_file) = (storage.open(FILE, false).unwrap(), storage.open(sums::FILE, false).unwrap());
    let mut sums = Sums::read(&*sums_file, file.length().unwrap()).unwrap();
    let mut bytes = vec![0; BLOCK_BYTES];
    for block in 0..file.length().unwrap() / BLOCK_BYTES as u64 {
        file.read_at(&mut bytes, block * BLOCK_BYTES as u64).unwrap();
        if sums.of(block).is_some() {
            sums.put(block, &bytes);
        }
    }
    for (offset, run) in sums.take_changed() {
        sums_file.write_at(&[&run], offset).unwrap();
    }
}

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// An index of several levels, with values of several blocks and many commits; its entries, and its file before the
/// last commit.
fn index() -> (MemoryStorage, Entries, Vec<u8>) {
    let (storage, mut entries, mut random) = (MemoryStorage::new(), Entries::new(), Random(1));
    RedbIndex::create(&storage).unwrap();
    let index = RedbIndex::open(Arc::new(storage.clone()), 1 << 20, Reading::Strict).unwrap();
    let mut before = Vec::new();
    for round in 0..8 {
        before = bytes_of(&storage, FILE);
        let mut changes: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        for _ in 0..300 {
            let key = format!("a key of a name {:04}", random.below(2000)).into_bytes();
            let length = if random.below(40) == 0 { 9000 } else { 20 + random.below(200) };
            changes.insert(key, (random.below(5) > 0).then(|| vec![round; length]));
        }
        let mut each = changes.iter().map(|(key, value)| -> IndexChange { (key, value.as_deref()) });
        index.commit(&mut each, b"meta").unwrap();
        for (key, value) in changes {
            match value {
                Some(value) => entries.insert(key, value),
                None => entries.remove(&key),
            };
        }
    }
    drop(index);
    (storage, entries, before)
}

fn bytes_of(storage: &MemoryStorage, path: &str) -> Vec<u8> {
    let file = storage.open(path, false).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Reads all entries, by key and by a scan; none may be wrong or missing. Returns true if all could be read; `None`:
/// the index does not open.
fn reads_right(storage: &MemoryStorage, entries: &Entries, what: &str) -> Option<bool> {
    let index = RedbIndex::open(Arc::new(storage.clone()), 1 << 20, Reading::Strict).ok()?;
    let mut is_all = true;
    for number in 0..2000 {
        let key = format!("a key of a name {number:04}").into_bytes();
        match index.get(&key) {
            Ok(found) => assert_eq!(found.as_deref(), entries.get(&key).map(Vec::as_slice), "{what}: {number}"),
            Err(_) => is_all = false,
        }
    }
    let mut found = Entries::new();
    let mut visit = |key: &[u8], value: Bytes| found.insert(key.to_vec(), value.to_vec()).is_none();
    match index.scan(&[0], &[255], &mut visit) {
        Ok(()) => assert_eq!(found, *entries, "{what}: all"),
        Err(_) => is_all = false,
    }
    match index.meta() {
        Ok(meta) => assert_eq!(meta.unwrap(), "meta", "{what}"),
        Err(_) => is_all = false,
    }
    assert_eq!(index.broken().is_some(), !is_all, "{what}: {:?}", index.broken());
    Some(is_all)
}

fn with(storage: &MemoryStorage, path: &str, damage: impl FnOnce(&mut [u8])) -> MemoryStorage {
    let (copy, mut bytes) = (storage.copy(), bytes_of(storage, path));
    damage(&mut bytes);
    copy.open(path, false).unwrap().write_at(&[&bytes], 0).unwrap();
    copy
}

#[test]
fn a_flipped_bit_in_any_block_is_put_right() {
    let (storage, entries, _) = index();
    let (blocks, mut random) = (bytes_of(&storage, FILE).len() / BLOCK_BYTES, Random(2));
    let mut mended = 0;
    for block in 0..blocks {
        let at = block * BLOCK_BYTES + random.below(if block == 0 { SECTOR_BYTES } else { BLOCK_BYTES });
        let rotten = with(&storage, FILE, |bytes| bytes[at] ^= 1 << random.below(8));
        assert_eq!(reads_right(&rotten, &entries, &format!("byte {at}")), Some(true), "byte {at}");
        let was_read = bytes_of(&rotten, FILE)[at] == bytes_of(&storage, FILE)[at];
        mended += usize::from(was_read);
        // In block 0 this is the header.
        assert!(was_read || block > 0);
    }
    assert!(mended > 50, "{mended} of {blocks} blocks are read");
}

/// One of so many blocks is damaged more widely.
const SAMPLED: u64 = 4;

#[test]
fn wider_damage_to_any_block_is_an_error_and_never_a_missing_entry() {
    let (storage, entries, before) = index();
    let sound = bytes_of(&storage, FILE);
    let (blocks, mut random) = (sound.len() / BLOCK_BYTES, Random(3));
    let mut noticed = [0; 5];
    for block in (1..blocks).step_by(sample_every(SAMPLED) as usize) {
        let at = block * BLOCK_BYTES;
        let (place, other) = (at + random.below(BLOCK_BYTES - 40), (1 + random.below(blocks - 1)) * BLOCK_BYTES);
        let sector = at + random.below(8) * SECTOR_BYTES;
        for (kind, noticed) in noticed.iter_mut().enumerate() {
            let damaged = with(&storage, FILE, |bytes| match kind {
                0 => bytes[place..place + 40].iter_mut().for_each(|byte| *byte ^= 0x55),
                1 => bytes[sector..sector + SECTOR_BYTES].fill(0),
                2 => bytes[at..at + BLOCK_BYTES].copy_from_slice(&sound[other..other + BLOCK_BYTES]),
                // The last write of the block, or of one of its sectors, did not reach the disk.
                3 => bytes[at..at + BLOCK_BYTES].copy_from_slice(&before[at..at + BLOCK_BYTES]),
                _ => bytes[sector..sector + SECTOR_BYTES].copy_from_slice(&before[sector..sector + SECTOR_BYTES]),
            });
            let is_right = reads_right(&damaged, &entries, &format!("block {block}, damage {kind}"));
            *noticed += usize::from(is_right != Some(true));
        }
    }
    assert!(noticed.iter().all(|count| *count > 5), "{noticed:?} of {blocks} blocks");
}

#[test]
fn the_header_has_a_copy_and_without_both_the_index_does_not_open() {
    let (storage, entries, before) = index();
    for half in 0..2 {
        let from = half * SECTOR_BYTES;
        let damaged = with(&storage, FILE, |bytes| bytes[from..from + SECTOR_BYTES].fill(0x33));
        assert_eq!(reads_right(&damaged, &entries, "one half"), Some(true));
    }
    // One bit of redb's header chooses the slot, so a flip of it would make an older commit the last one.
    let older = with(&storage, FILE, |bytes| bytes[..320].copy_from_slice(&before[..320]));
    assert_eq!(reads_right(&older, &entries, "an older header under a newer check"), Some(true));
    let damaged = with(&storage, FILE, |bytes| bytes[..2 * SECTOR_BYTES].fill(0x33));
    let refused = RedbIndex::open(Arc::new(damaged.clone()), 1 << 20, Reading::Strict).err().unwrap();
    assert!(refused.to_string().contains("block 0 of index/index.redb"), "{refused}");
}

#[test]
fn without_its_sums_an_index_is_refused_or_not_believed() {
    let (storage, entries, _) = index();
    for (from, length) in [(0, 1024), (1024, 1024), (2048, 5000)] {
        let damaged = with(&storage, sums::FILE, |bytes| {
            let end = bytes.len().min(from + length);
            bytes[from.min(end)..end].fill(0);
        });
        let is_right = reads_right(&damaged, &entries, "sums that are lost");
        assert!(is_right != Some(true) || from > 1024, "{from}");
    }
    storage.remove(sums::FILE).unwrap();
    let refused = RedbIndex::open(Arc::new(storage.clone()), 1 << 20, Reading::Strict).err().unwrap();
    assert!(refused.to_string().contains("index/index.sums"), "{refused}");
}

#[test]
fn a_salvage_reads_on_and_tells_which_blocks_are_damaged() {
    let (storage, entries, _) = index();
    let sound = bytes_of(&storage, FILE);
    // The place of one entry's value.
    let key = entries.keys().nth(77).unwrap();
    let at = sound.windows(key.len()).rposition(|window| window == key).unwrap();
    let damaged = with(&storage, FILE, |bytes| bytes[at] ^= 0x55);
    let pages = RedbIndex::check_pages(&damaged.copy(), 1 << 20).unwrap();
    if pages.wrong.is_empty() {
        // An older page that no commit refers to.
        return assert!(pages.tree.unwrap());
    }
    assert_eq!(pages.wrong, [at as u64 / BLOCK_BYTES as u64]);
    assert!(!matches!(pages.tree, Ok(true)));
    let index = RedbIndex::open(Arc::new(damaged.clone()), 1 << 20, Reading::Salvage).unwrap();
    let mut seen = 0;
    let mut visit = |_: &[u8], value: hekate_proto::Result<Bytes>| {
        seen += usize::from(value.is_ok());
        true
    };
    index.scan_all(&[0], &[255], &mut visit).unwrap();
    assert_eq!(seen, entries.len() - 1);
    assert_eq!(index.broken(), None);
}
