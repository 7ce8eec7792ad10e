//! Volumes: making, space, deleting.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::maintenance::housekeeping::forget_session;
use hekate_brick::storage::Space;
use hekate_cluster::registry::check_name;
use hekate_cluster::{RingWish, VolumeInfo};
use hekate_proto::map::VolumeMap;
use hekate_proto::*;
use hekate_replica::{Ask, Commit, Event, root_directory};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// Entries that deleting a volume takes at a time.
const DELETE_AT_ONCE: usize = 512;

/// The volumes of the cluster as this server knows them.
#[derive(Default)]
pub struct Volumes {
    known: RwLock<HashMap<VolumeId, Arc<VolumeInfo>>>,
    /// The last map of each volume: clients get it while the coordinator does not answer.
    maps: Mutex<HashMap<VolumeId, VolumeMap>>,
    /// Held by the thread that makes, learns or deletes volumes: two threads would host a new ring twice.
    changing: Mutex<()>,
}

impl Volumes {
    /// A volume by its number.
    ///
    /// # Errors
    ///
    /// `SessionEnded` if the volume is not known: its sessions have ended with it.
    pub fn get(&self, volume: VolumeId) -> Result<Arc<VolumeInfo>> {
        self.known.read().get(&volume).cloned().ok_or(Error::SessionEnded)
    }

    /// A volume by its name, unless it is being deleted.
    pub fn called(&self, name: &str) -> Option<Arc<VolumeInfo>> {
        self.known.read().values().find(|volume| volume.name == name && !volume.deleting).cloned()
    }

    /// The volume's name, also while it is being deleted.
    pub fn name(&self, volume: VolumeId) -> Option<String> {
        self.known.read().get(&volume).map(|info| info.name.clone())
    }

    /// All volumes at this moment.
    pub fn all(&self) -> Vec<Arc<VolumeInfo>> {
        self.known.read().values().cloned().collect()
    }

    /// All volumes, under the lock: for a caller that does not wait meanwhile.
    pub fn read(&self) -> RwLockReadGuard<'_, HashMap<VolumeId, Arc<VolumeInfo>>> {
        self.known.read()
    }

    /// Adds a volume, or replaces what was known of it.
    pub fn put(&self, volume: VolumeInfo) {
        self.known.write().insert(volume.volume, Arc::new(volume));
    }

    fn forget(&self, volume: VolumeId) {
        self.known.write().remove(&volume);
    }

    /// Forgets the volumes that are not among those of the coordinator.
    fn keep_only(&self, recorded: &[VolumeInfo]) {
        let is_recorded = |number: &VolumeId| recorded.iter().any(|volume| volume.volume == *number);
        self.maps.lock().retain(|number, _| is_recorded(number));
        self.known.write().retain(|number, _| is_recorded(number));
    }

    /// Keeps other threads from making, learning or deleting volumes until the guard is dropped.
    fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// The error for a name that no volume has.
    fn unknown(&self, name: &str) -> Error {
        let known = self.known.read();
        let mut names: Vec<&str> =
            known.values().filter(|volume| !volume.deleting).map(|volume| volume.name.as_str()).collect();
        names.sort_unstable();
        let known = if names.is_empty() { "there is none".into() } else { format!("there are: {}", names.join(", ")) };
        Error::invalid(format!("there is no volume called {name}; {known}"))
    }
}

impl Node {
    /// Makes a volume whose root directory belongs to `uid`. If another server leads the root directory's partition it is
    /// made there, as soon as that server learns of the volume.
    pub(crate) fn create_volume(&self, wanted: VolumeInfo, wish: RingWish, gid: u32) -> Result<VolumeInfo> {
        let _alone = self.volumes.change();
        check_name("volume", &wanted.name)?;
        check_name("pool", &wanted.pool)?;
        if self.registry.volume(&wanted.name)?.is_some() {
            return Err(Error::invalid(format!("there is a volume called {} already", wanted.name)));
        }
        let ring = self.registry.ring_for(&wanted.pool, wanted.copies, wish)?;
        let hosted = match self.ring(ring.ring) {
            Ok(hosted) => hosted,
            Err(_) => self.host(&ring)?,
        };
        if !is_spread(wanted.spread, hosted.count()) {
            let (spread, count) = (wanted.spread, hosted.count());
            let what =
                format!("a spread of {spread}: say a power of two from 1 to {count}, the partitions of its ring");
            return Err(Error::invalid(what));
        }
        let volume = self.registry.create_volume(VolumeInfo { ring: ring.ring, ..wanted })?;
        let at = ROOT.position().partition(hosted.count());
        if hosted.is_all_here(at) {
            self.make_root(&hosted, &volume, gid)?;
        }
        self.volumes.put(volume.clone());
        Ok(volume)
    }

    /// The error for a name that no volume has.
    pub(crate) fn no_volume(&self, name: &str) -> Error {
        self.volumes.unknown(name)
    }

    fn make_root(&self, ring: &Arc<HostedRing>, volume: &VolumeInfo, gid: u32) -> Result<()> {
        let at = ROOT.position().partition(ring.count());
        let ask = Ask::new(ring.ring, ring.count(), volume.volume, (SYSTEM_SESSION, OpId(0)), Self::clock());
        let changes = root_directory(&ask, volume.owner_uid, gid);
        self.change(ring, at, Commit { changes, ..Commit::default() })?;
        let (to, _) = ring.leader(at)?;
        let synced = self.ask(ring, to, |token| Event::Sync { token, shards: Vec::new(), own: false });
        synced.unwrap_or_else(|| Err(self.away(ring, at))).map(|_| ())
    }

    /// A record of the server's own, on every member when this returns.
    pub(crate) fn change(&self, ring: &Arc<HostedRing>, at: PartitionNumber, commit: Commit) -> Result<()> {
        let (to, _) = ring.leader(at)?;
        let changed = self.ask(ring, to, |token| Event::Change { token, commit: Box::new(commit) });
        changed.unwrap_or_else(|| Err(self.away(ring, at))).map(|_| ())
    }

    fn away(&self, ring: &HostedRing, at: PartitionNumber) -> Error {
        Error::Unavailable { what: format!("partition {at} of ring {} does not answer", ring.ring) }
    }

    /// Volumes that were recorded when the server died and have no root yet.
    pub(crate) fn make_missing_roots(&self) -> Result<()> {
        let volumes = self.volumes.all();
        volumes.iter().filter(|volume| !volume.deleting).try_for_each(|volume| self.make_missing_root(volume))
    }

    /// Where the root's leader is here, and serves.
    fn make_missing_root(&self, volume: &VolumeInfo) -> Result<()> {
        let ring = self.ring(volume.ring)?;
        let Ok((_, leader)) = ring.leader(ROOT.position().partition(ring.count())) else { return Ok(()) };
        let serves = leader.partition.read().serves();
        let key = Key::inode(volume.ring, volume.volume, ROOT, Kind::Inode);
        if serves && leader.brick.get(&key)?.is_none() {
            return self.make_root(&ring, volume, volume.owner_uid);
        }
        Ok(())
    }

    /// The map as it is now. While the coordinator is away nobody can change it, so the last one stands.
    pub(crate) fn map(&self, volume: &VolumeInfo) -> Result<VolumeMap> {
        match self.registry.map(volume) {
            Ok(map) => {
                self.volumes.maps.lock().insert(volume.volume, map.clone());
                Ok(map)
            }
            Err(error @ Error::Unavailable { .. }) => {
                self.volumes.maps.lock().get(&volume.volume).cloned().ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes over what other servers have recorded since: where they are, rings, volumes, sessions.
    pub(crate) fn learn(&self) -> Result<()> {
        let _alone = self.volumes.change();
        self.learn_servers()?;
        let servers = self.registry.bricks()?.into_iter().map(|info| (info.brick, info.server)).collect();
        for info in self.registry.rings()? {
            match self.ring(info.ring) {
                Ok(ring) => ring.set_servers(&servers),
                Err(_) => drop(self.host(&info)?),
            }
        }
        let recorded = self.registry.volumes()?;
        for volume in &recorded {
            self.volumes.put(volume.clone());
            if !volume.deleting {
                self.make_missing_root(volume)?;
            }
        }
        self.volumes.keep_only(&recorded);
        let ended = self.sessions.refresh(&self.registry)?;
        let rings = self.rings.all();
        for session in &ended {
            rings.iter().for_each(|ring| self.session_ended(ring, *session));
        }
        for ended in ended {
            rings.iter().try_for_each(|ring| forget_session(self, ring, ended))?;
        }
        Ok(())
    }

    /// Takes a volume from its users; its data goes in the background.
    pub(crate) fn delete_volume(&self, name: &str) -> Result<()> {
        let _alone = self.volumes.change();
        let Some(volume) = self.registry.volume(name)? else {
            return Err(self.no_volume(name));
        };
        let users = self.registry.session_count(volume.volume)?;
        if users > 0 {
            return Err(Error::Unavailable {
                what: format!("volume {name} is in use by {users} session(s); unmount it first (`hekate umount DIR`)"),
            });
        }
        let volume = VolumeInfo { deleting: true, ..volume };
        self.registry.put_volume(&volume)?;
        self.volumes.put(volume);
        Ok(())
    }

    /// Space as the volume's users count it, of the bricks here.
    pub(crate) fn volume_space(&self, volume: VolumeId) -> Result<VolumeSpace> {
        let volume = self.volume(volume)?;
        let mut sum = VolumeSpace::default();
        for brick in self.ring(volume.ring)?.bricks() {
            let Space { total, free, available, files, files_available } = brick.status()?.space;
            // Those that are not counted are in no sum.
            let files_available = if files == 0 { 0 } else { files_available };
            sum = sum.plus(&VolumeSpace { total, free, available, files, files_available });
        }
        let own = |all: u64| all / u64::from(volume.copies.max(1));
        Ok(VolumeSpace {
            total: own(sum.total),
            free: own(sum.free),
            available: own(sum.available),
            files: own(sum.files),
            files_available: own(sum.files_available),
        })
    }
}

/// Deletes volumes that are to be deleted: shards, then entries, a few hundred of a partition at a time.
pub fn go_on_deleting(node: &Node) -> Result<()> {
    for volume in node.volumes.all().into_iter().filter(|volume| volume.deleting) {
        let ring = node.ring(volume.ring)?;
        for number in ring.leaders().into_iter().map(|leader| leader.partition) {
            let (_, leader) = ring.leader(number)?;
            let shards = leader.brick.shards(ring.ring, number, ring.count())?;
            let own = shards.into_iter().filter(|shard| shard.volume == volume.volume);
            delete(node, &ring, number, own.map(|shard| Change::DropShard { shard }))?;
            for range in [Key::object_range, Key::work_range] {
                delete_entries(node, &ring, &volume, number, range(ring.ring, number, ring.count()))?;
            }
        }
        // What other servers hold of it is for them to delete; the record stays until there is nothing left anywhere.
        if ring.is_whole() {
            let _alone = node.volumes.change();
            node.registry.forget_volume(&volume.name)?;
            node.volumes.forget(volume.volume);
        }
    }
    Ok(())
}

fn delete_entries(
    node: &Node,
    ring: &Arc<HostedRing>,
    volume: &VolumeInfo,
    number: PartitionNumber,
    (mut from, to): (Key, Key),
) -> Result<()> {
    // Shards and their checksums go by `DropShard`.
    let entry = |key: &Key| !matches!(key.kind(), Some(Kind::Shard | Kind::Checksums));
    let own = |key: &Key| key.prefix().is_some_and(|place| place.volume == volume.volume);
    loop {
        let found = ring.leader(number)?.1.brick.scan(&from, &to, DELETE_AT_ONCE)?;
        let Some((last, _)) = found.last() else { return Ok(()) };
        from = last.successor();
        let keys = found.into_iter().map(|(key, _)| key).filter(|key| own(key) && entry(key));
        delete(node, ring, number, keys.map(|key| Change::Delete { key }))?;
    }
}

fn delete(
    node: &Node,
    ring: &Arc<HostedRing>,
    number: PartitionNumber,
    changes: impl Iterator<Item = Change>,
) -> Result<()> {
    let changes: Vec<Change> = changes.collect();
    for some in changes.chunks(DELETE_AT_ONCE) {
        node.change(ring, number, Commit { changes: some.to_vec(), ..Commit::default() })?;
    }
    Ok(())
}
