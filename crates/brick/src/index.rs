//! The index: an ordered key-value store whose durable state changes only in `commit`.
//!
//! [`Index`] has two implementations: [`RedbIndex`] on a brick's storage, and [`MemoryIndex`] in memory.
//! `docs/adr/0002-index.md` says why redb. A value is stored with the CRC32C of key and value behind it, which is
//! checked whenever the value is read. Below redb each block of its file has a sum, which is checked before redb sees
//! the block (`docs/adr/0025-index-pages.md`), since redb checks none.

pub(crate) mod backend;
mod memory;
pub mod meta;
mod redb;
pub(crate) mod sums;

pub use self::backend::{FILE, Found, Reading};
pub use self::memory::MemoryIndex;
pub use self::redb::{Pages, RedbIndex};
pub use self::sums::{BLOCK_BYTES as INDEX_BLOCK_BYTES, FILE as SUMS_FILE};

use bytes::Bytes;
use hekate_proto::{Error, Result};

/// A change of the index: a key, and its value; `None` deletes it.
pub type IndexChange<'a> = (&'a [u8], Option<&'a [u8]>);

/// An ordered key-value store.
///
/// # Errors
/// `Damaged`: a value does not match its checksum, or a block its sum. `Unavailable`: a commit found no room, and the
/// file cannot be opened again before there is some. `Io`: the disk failed.
pub trait Index: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// Visits the entries of `from..to` in key order until `visit` returns false. The value of a damaged entry is the
    /// error.
    fn scan_all(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], Result<Bytes>) -> bool) -> Result<()>;

    /// As [`Index::scan_all`], until the first damaged value, which is the error.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], Bytes) -> bool) -> Result<()> {
        let mut damaged = Ok(());
        self.scan_all(from, to, &mut |key, value| match value {
            Ok(value) => visit(key, value),
            Err(error) => {
                damaged = Err(error);
                false
            }
        })?;
        damaged
    }

    /// The first entry of `from..to` that a lookup of its key does not find, or whose key is not behind the one before
    /// it.
    fn lost(&self, _from: &[u8], _to: &[u8]) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// Applies all changes and `meta` in one durable step. Keys may come in any order; of a key that comes twice the
    /// later change holds. Long ascending runs cost least.
    ///
    /// # Errors
    /// `NoSpace`: nothing has changed, and the commit may be tried again. `Io`: the disk failed.
    fn commit(&self, changes: &mut dyn Iterator<Item = IndexChange<'_>>, meta: &[u8]) -> Result<()>;

    /// The `meta` of the last commit.
    fn meta(&self) -> Result<Option<Bytes>>;

    /// Why the index can no longer be read, if it cannot. Values that it has returned are right.
    fn broken(&self) -> Option<String> {
        None
    }

    /// Blocks of the file that do not match their sums and were read all the same ([`Reading::Salvage`]): entries may
    /// be missing.
    fn wrong_blocks(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Blocks of the file in which one flipped bit was repaired since the last call.
    fn take_mended(&self) -> Vec<u64> {
        Vec::new()
    }
}

/// Writes a value and its checksum into `out`.
fn seal(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(value);
    out.extend_from_slice(&crc32c::crc32c_append(crc32c::crc32c(key), value).to_le_bytes());
}

/// The value, if its checksum is right (index invariant 3).
fn unseal(key: &[u8], sealed: &[u8]) -> Result<Bytes> {
    let damaged = || Error::Damaged {
        what: format!("the index entry {:?}", hekate_proto::Key::from_bytes(Bytes::copy_from_slice(key))),
    };
    let (value, sum) = sealed.split_last_chunk::<4>().ok_or_else(damaged)?;
    if crc32c::crc32c_append(crc32c::crc32c(key), value).to_le_bytes() != *sum {
        return Err(damaged());
    }
    Ok(Bytes::copy_from_slice(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;
    use std::sync::Arc;

    /// One suite for every implementation.
    fn conforms(index: &dyn Index) {
        assert_eq!(index.get(b"a").unwrap(), None);
        assert_eq!(index.meta().unwrap(), None);
        let first: [IndexChange; 3] = [(b"a", Some(b"1")), (b"b", Some(b"2")), (b"c", Some(b""))];
        index.commit(&mut first.into_iter(), b"m1").unwrap();
        assert_eq!(index.get(b"b").unwrap().unwrap(), "2");
        assert_eq!(index.get(b"c").unwrap().unwrap(), "");
        assert_eq!(index.meta().unwrap().unwrap(), "m1");
        let second: [IndexChange; 3] = [(b"a", None), (b"b", Some(b"3")), (b"zz", None)];
        index.commit(&mut second.into_iter(), b"m2").unwrap();
        let mut seen = Vec::new();
        let mut visit = |key: &[u8], value: Bytes| {
            seen.push((key.to_vec(), value));
            true
        };
        index.scan(b"a", b"z", &mut visit).unwrap();
        assert_eq!(seen, [(b"b".to_vec(), Bytes::from("3")), (b"c".to_vec(), Bytes::new())]);
        let mut count = 0;
        index
            .scan(b"b", b"c", &mut |_, _| {
                count += 1;
                true
            })
            .unwrap();
        assert_eq!(count, 1, "the end is exclusive");
        let mut count = 0;
        index
            .scan(b"a", b"z", &mut |_, _| {
                count += 1;
                false
            })
            .unwrap();
        assert_eq!(count, 1, "the visitor can stop");
    }

    #[test]
    fn the_memory_index_conforms() {
        conforms(&MemoryIndex::default());
    }

    #[test]
    fn the_redb_index_conforms() {
        let storage = MemoryStorage::new();
        RedbIndex::create(&storage).unwrap();
        conforms(&RedbIndex::open(Arc::new(storage.clone()), 1 << 20, Reading::Strict).unwrap());
    }

    #[test]
    fn a_commit_of_the_redb_index_survives_a_power_cut() {
        let storage = MemoryStorage::new();
        RedbIndex::create(&storage).unwrap();
        let index = RedbIndex::open(Arc::new(storage.clone()), 1 << 20, Reading::Strict).unwrap();
        let changes: [IndexChange; 1] = [(b"key", Some(b"value"))];
        index.commit(&mut changes.into_iter(), b"meta").unwrap();
        let after = RedbIndex::open(Arc::new(storage.after_power_cut()), 1 << 20, Reading::Strict).unwrap();
        assert_eq!(after.get(b"key").unwrap().unwrap(), "value");
    }

    /// Runs long enough for a splice, single keys between them, overwrites and deletes in one commit.
    #[test]
    fn runs_of_new_keys_and_other_changes_leave_what_a_memory_index_has() {
        let storage = MemoryStorage::new();
        RedbIndex::create(&storage).unwrap();
        let (index, twin) =
            (RedbIndex::open(Arc::new(storage.clone()), 1 << 20, Reading::Strict).unwrap(), MemoryIndex::default());
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..30 {
            let mut changes = std::collections::BTreeMap::new();
            for _ in 0..random(20) {
                let (from, long, deletes) = (random(3000), random(3) == 0, random(4) == 0);
                let length = if long { 100 + random(200) } else { 1 + random(3) };
                for number in from..from + length {
                    let value = vec![round; 20 + random(300) as usize];
                    changes.insert(number.to_be_bytes(), (!deletes).then_some(value));
                }
            }
            let changes = || changes.iter().map(|(key, value)| -> IndexChange { (key, value.as_deref()) });
            index.commit(&mut changes(), b"meta").unwrap();
            twin.commit(&mut changes(), b"meta").unwrap();
            let all = |index: &dyn Index| {
                let mut found = Vec::new();
                let mut visit = |key: &[u8], value: Bytes| {
                    found.push((key.to_vec(), value));
                    true
                };
                index.scan(&[0], &[255], &mut visit).unwrap();
                found
            };
            assert_eq!(all(&index), all(&twin), "after commit {round}");
        }
    }

    /// A checkpoint's entries and its shards' lie among each other, and come one after the other.
    #[test]
    fn ascending_runs_with_interleaved_keys_are_all_applied() {
        let storage = MemoryStorage::new();
        RedbIndex::create(&storage).unwrap();
        let (index, twin) =
            (RedbIndex::open(Arc::new(storage.clone()), 1 << 20, Reading::Strict).unwrap(), MemoryIndex::default());
        let value = |number: u64| vec![number as u8; 200];
        let keys: Vec<u64> =
            (0..300).step_by(2).chain((1..300).step_by(2)).chain(50..150).chain(std::iter::once(7)).collect();
        let entries: Vec<_> = keys.iter().enumerate().map(|(n, key)| (key.to_be_bytes(), value(n as u64))).collect();
        let changes = || entries.iter().map(|(key, value)| -> IndexChange { (key, Some(value)) });
        index.commit(&mut changes(), b"meta").unwrap();
        twin.commit(&mut changes(), b"meta").unwrap();
        for key in 0u64..300 {
            assert_eq!(index.get(&key.to_be_bytes()).unwrap(), twin.get(&key.to_be_bytes()).unwrap(), "key {key}");
        }
    }

    #[test]
    fn a_changed_value_is_noticed() {
        let mut sealed = Vec::new();
        seal(b"k", b"value", &mut sealed);
        assert_eq!(unseal(b"k", &sealed).unwrap(), "value");
        assert!(unseal(b"j", &sealed).is_err(), "a value under another key");
        sealed[0] ^= 1;
        assert!(unseal(b"k", &sealed).is_err());
        assert!(unseal(b"k", b"abc").is_err());
    }
}
