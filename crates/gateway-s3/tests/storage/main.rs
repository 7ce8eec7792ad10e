//! The storage against a real server in this process.

#![allow(clippy::unwrap_used, reason = "tests")]

include!("../../../client/tests/support/scratch.rs");

mod directories;
mod keys;
mod listing;
mod mixed;
mod multipart;
mod objects;
mod races;

use bytes::Bytes;
use hekate_client::{OpenOptions, Volume};
use hekate_gateway_s3::storage::*;
use md5::{Digest, Md5};

/// A store over a volume, with the bucket `bucket`.
struct Fixture {
    store: Store,
    volume: Arc<Volume>,
    _scratch: Scratch,
}

const ACTOR: Actor = Actor { uid: 1000, gid: 1001 };
const BUCKET: &str = "bucket";

impl Fixture {
    fn new(name: &str) -> Self {
        Self::with(name, 1, Limits::default())
    }

    fn with(name: &str, spread: u32, limits: Limits) -> Self {
        let scratch = Scratch::wide(&format!("s3-{name}"), spread);
        let volume = Arc::new(Volume::open(scratch.endpoint(), "v1", &OpenOptions::default()).unwrap());
        let store = Store::with_limits(volume.clone(), limits);
        store.create_bucket(BUCKET, &ACTOR, &BucketSettings::default()).unwrap();
        Self { store, volume, _scratch: scratch }
    }

    fn put(&self, key: &str, content: &[u8]) -> ObjectInfo {
        self.put_if(key, content, Condition::Always).unwrap()
    }

    fn put_if(&self, key: &str, content: &[u8], condition: Condition) -> Result<ObjectInfo> {
        let upload = self.store.begin(BUCKET, key, &ACTOR, Some(content.len() as u64))?;
        send(upload, content, Metadata::default(), condition)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        let object = self.store.open(BUCKET, key)?;
        Ok(object.read(0, object.info().size as usize + 1)?.to_vec())
    }

    fn delete(&self, key: &str) {
        self.store.delete(BUCKET, key, Condition::Always).unwrap();
    }

    /// All keys, in one page after the other.
    fn keys(&self) -> Vec<String> {
        self.list(&ListQuery { max: 1000, ..ListQuery::default() }).0
    }

    /// All keys and prefixes of a query, in pages of its size.
    fn list(&self, query: &ListQuery) -> (Vec<String>, Vec<String>) {
        let (mut query, mut keys, mut prefixes) = (query.clone(), Vec::new(), Vec::new());
        loop {
            let page = self.store.list(BUCKET, &query).unwrap();
            assert!(page.objects.len() + page.prefixes.len() <= query.max);
            keys.extend(page.objects.into_iter().map(|object| object.key));
            prefixes.extend(page.prefixes);
            match page.next {
                Some(next) => query.after = next,
                None => return (keys, prefixes),
            }
        }
    }

    /// The names in the bucket's directory.
    fn names(&self) -> Vec<String> {
        let entries = self.volume.read_directory(BUCKET).unwrap();
        entries.iter().map(|entry| String::from_utf8_lossy(entry.name.as_bytes()).into_owned()).collect()
    }
}

/// Sends content in pieces of odd sizes.
fn send(mut upload: Upload, content: &[u8], metadata: Metadata, condition: Condition) -> Result<ObjectInfo> {
    let mut rest = content;
    for size in [1, 5000, 100_000, 3 << 20].into_iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, behind) = rest.split_at(rest.len().min(size));
        upload.write(Bytes::copy_from_slice(piece))?;
        rest = behind;
    }
    upload.finish(Md5::digest(content).into(), metadata, condition)
}

fn md5_of(content: &[u8]) -> String {
    Md5::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that differ by position and seed.
fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 7919) >> 13) as u8).collect()
}
