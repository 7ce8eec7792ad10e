//! Does the IO that the machine asks for: the one place that writes to a brick's files while it is open.

pub mod home;
pub mod reserve;

use crate::index::meta::Meta;
use crate::index::{Index, IndexChange};
use crate::journal::{Geometry, Segments};
use crate::machine::{Io, Overlay, PartialGroup, ShardOverlay};
use crate::storage::Storage;
use bytes::Bytes;
use hekate_proto::*;
use home::Home;
use reserve::Reserve;
use std::sync::Arc;

/// The files of a brick: the journal's segments, the index, the data files and the reserve.
pub struct Disk {
    pub storage: Arc<dyn Storage>,
    pub segments: Segments,
    pub index: Box<dyn Index>,
    pub home: Home,
    pub reserve: Reserve,
}

impl Disk {
    pub fn new(storage: Arc<dyn Storage>, geometry: Geometry, index: Box<dyn Index>, reserve_bytes: u64) -> Self {
        let home = Home::new(storage.clone());
        let reserve = Reserve::new(storage.clone(), reserve_bytes);
        Self { storage, segments: Segments::new(geometry), index, home, reserve }
    }

    /// Does an IO. `fresh`: the bytes of an [`Io::WriteFresh`].
    ///
    /// # Errors
    /// `NoSpace`, `Unavailable`: no room or no file descriptor; nothing that the index refers to has changed.
    /// `Poisoned`: a sync failed. `Io`: the disk failed.
    pub fn perform(&self, io: &Io, fresh: &[&[u8]]) -> Result<()> {
        let storage = &*self.storage;
        match io {
            Io::BeginSegment { number } => self.segments.begin(storage, *number),
            Io::WriteJournal { number, offset, header, body } => {
                self.segments.write(storage, *number, [header, body], *offset)
            }
            Io::SyncJournal { numbers } => self.segments.sync(storage, numbers),
            Io::WriteFresh { shard, first } => self.home.write(*shard, *first, fresh),
            Io::ReserveHome { shard, first, count } => self.home.allocate(*shard, *first, *count),
            Io::WriteHome { shard, first, blocks } => {
                let parts: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
                self.home.write(*shard, *first, &parts)
            }
            Io::PunchHome { shard, from, to } => self.home.punch(*shard, *from, *to),
            Io::SyncHome { shard } => self.home.sync(*shard),
            Io::CommitIndex { overlay, meta } => self.commit(overlay, meta),
            Io::RemoveHome { shard } => self.home.remove(*shard),
        }
    }

    fn commit(&self, overlay: &Overlay, meta: &Meta) -> Result<()> {
        let mut changes: Vec<(Key, Option<Bytes>)> = Vec::new();
        for (shard, changed) in &overlay.shards {
            self.shard_changes(*shard, changed, &mut changes)?;
        }
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        let mut shards = changes.iter().map(|(key, value)| (key, value)).peekable();
        let mut entries = overlay.entries.iter().peekable();
        // Both are in key order, so that the index is walked through once.
        let mut merged = std::iter::from_fn(|| match (entries.peek(), shards.peek()) {
            (Some((a, _)), Some((b, _))) if a <= b => entries.next(),
            (Some(_), None) => entries.next(),
            _ => shards.next(),
        })
        .map(|(key, value)| -> IndexChange { (key.as_bytes(), value.as_deref()) });
        self.index.commit(&mut merged, &meta.to_bytes())
    }

    fn shard_changes(
        &self,
        shard: ShardId,
        changed: &ShardOverlay,
        changes: &mut Vec<(Key, Option<Bytes>)>,
    ) -> Result<()> {
        let key = Key::shard(changed.ring, shard);
        let Some(record) = changed.record else {
            let groups = changed.before.map_or(0, |before| before.home_blocks.div_ceil(crate::CRC_BLOCKS));
            changes.push((key, None));
            changes.extend((0..groups).map(|group| (Key::checksums(changed.ring, shard, group as u16), None)));
            return Ok(());
        };
        changes.push((key, Some(record.to_bytes())));
        for (number, group) in &changed.checksums {
            let key = Key::checksums(changed.ring, shard, *number);
            let mut group = group.clone();
            if !group.is_whole()
                && let Some(before) = PartialGroup::from_index(self.index.get(key.as_bytes()))?
            {
                group.fill_from(&before);
            }
            changes.push((key, Some(group.encode())));
        }
        Ok(())
    }
}
