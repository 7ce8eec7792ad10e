//! Volumes: made, mapped, learned from other servers, and deleted.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::maintenance::housekeeping::forget_session;
use hekate_brick::Brick;
use hekate_brick::storage::Space;
use hekate_cluster::registry::check_name;
use hekate_cluster::{BrickInfo, RingWish, VolumeInfo};
use hekate_proto::map::{READ_ONLY, VolumeMap};
use hekate_proto::*;
use hekate_replica::{Ask, Commit, Event, root_directory};
use hekate_threads::{HashMap, Mutex, MutexGuard, RwLock};
use hekate_transport::Peer;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Entries that one record deletes.
const DELETE_AT_ONCE: usize = 512;

/// The volumes of the cluster as this server knows them.
#[derive(Default)]
pub struct Volumes {
    known: RwLock<HashMap<VolumeId, Arc<VolumeInfo>>>,
    /// The last map of each volume: clients get it while the coordinator does not answer.
    maps: Mutex<HashMap<VolumeId, VolumeMap>>,
    /// Volumes whose root directory a leader here has made or found.
    made: Mutex<BTreeSet<VolumeId>>,
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

    /// True if the volume's graph has the translator `read-only`, which runs here.
    pub fn is_read_only(&self, volume: VolumeId) -> bool {
        let known = self.known.read();
        known.get(&volume).is_some_and(|info| info.graph.layers.iter().any(|layer| layer.name == READ_ONLY))
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

    /// Adds a volume, or replaces what was known of it.
    pub fn put(&self, volume: VolumeInfo) {
        self.known.write().insert(volume.volume, Arc::new(volume));
    }

    fn forget(&self, volume: VolumeId) {
        self.known.write().remove(&volume);
        self.made.lock().remove(&volume);
    }

    /// Forgets the volumes that are not among those of the coordinator.
    fn keep_only(&self, recorded: &[VolumeInfo]) {
        let is_recorded = |number: &VolumeId| recorded.iter().any(|volume| volume.volume == *number);
        self.maps.lock().retain(|number, _| is_recorded(number));
        self.made.lock().retain(is_recorded);
        self.known.write().retain(|number, _| is_recorded(number));
    }

    fn note_made(&self, volume: VolumeId) {
        self.made.lock().insert(volume);
    }

    /// Volumes whose root directory a leader here has made or found.
    pub fn made(&self) -> Vec<VolumeId> {
        self.made.lock().iter().copied().collect()
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
    /// Makes a volume whose root directory belongs to the volume's owner and to `gid`. If another server leads the root
    /// directory's partition, that server makes the root once it has read the volume.
    ///
    /// # Errors
    ///
    /// `Invalid` if the name, the pool, the copies or the spread cannot be; those of the coordinator and of the
    /// partition.
    pub(crate) fn create_volume(&self, wanted: VolumeInfo, wish: RingWish, gid: u32) -> Result<VolumeInfo> {
        let _alone = self.volumes.change();
        check_name("volume", &wanted.name)?;
        check_name("pool", &wanted.pool)?;
        if self.cluster.registry().volume(&wanted.name)?.is_some() {
            return Err(Error::invalid(format!("there is a volume called {} already", wanted.name)));
        }
        let ring = self.cluster.registry().ring_for(&wanted.pool, wanted.copies, wish)?;
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
        let volume = self.cluster.registry().create_volume(VolumeInfo { ring: ring.ring, ..wanted })?;
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
        synced.unwrap_or_else(|| Err(self.away(ring, at)))?;
        self.volumes.note_made(volume.volume);
        Ok(())
    }

    /// Makes a record of the server's own, and returns when every member has it.
    ///
    /// # Errors
    ///
    /// `OtherServer` if the partition is not led here, `Unavailable` if it does not answer in time; those of the
    /// record.
    pub(crate) fn change(&self, ring: &Arc<HostedRing>, at: PartitionNumber, commit: Commit) -> Result<()> {
        let (to, _) = ring.leader(at)?;
        let changed = self.ask(ring, to, |token| Event::Change { token, commit: Box::new(commit) });
        changed.unwrap_or_else(|| Err(self.away(ring, at))).map(|_| ())
    }

    fn away(&self, ring: &HostedRing, at: PartitionNumber) -> Error {
        Error::Unavailable { what: format!("partition {at} of ring {} does not answer", ring.ring) }
    }

    /// Makes the root of each volume that was recorded and has none: its server ended in between.
    ///
    /// # Errors
    ///
    /// Those of reading the leader's brick and of the root's record.
    pub(crate) fn make_missing_roots(&self) -> Result<()> {
        let volumes = self.volumes.all();
        volumes.iter().filter(|volume| !volume.deleting).try_for_each(|volume| self.make_missing_root(volume))
    }

    /// Makes the volume's root if it is missing, and its leader is here and serves.
    fn make_missing_root(&self, volume: &VolumeInfo) -> Result<()> {
        let ring = self.ring(volume.ring)?;
        let Ok((_, leader)) = ring.leader(ROOT.position().partition(ring.count())) else { return Ok(()) };
        let key = Key::inode(volume.ring, volume.volume, ROOT, Kind::Inode);
        if !leader.partition.read().serves() {
            return Ok(());
        }
        if leader.brick.get(&key)?.is_none() {
            return self.make_root(&ring, volume, volume.owner_uid);
        }
        self.volumes.note_made(volume.volume);
        Ok(())
    }

    /// The volume's map. While the coordinator does not answer the map cannot change, so the last one is returned.
    ///
    /// # Errors
    ///
    /// Those of the coordinator if no map is known.
    pub(crate) fn map(&self, volume: &VolumeInfo) -> Result<VolumeMap> {
        match self.cluster.registry().map(volume) {
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

    /// The map for a peer, with the endpoints that it can use.
    ///
    /// # Errors
    ///
    /// As of [`Node::map`].
    pub(crate) fn map_for(&self, peer: &Peer, volume: &VolumeInfo) -> Result<VolumeMap> {
        let mut map = self.map(volume)?;
        let own = map.server;
        self.cluster.access.keep_usable(peer, own, &mut map.servers);
        Ok(map)
    }

    /// Reads what other servers have recorded: addresses, rings, volumes, and sessions. Hosts new rings, makes roots
    /// that are missing, and ends sessions that were ended elsewhere.
    ///
    /// # Errors
    ///
    /// Those of the coordinator and of the partitions; the next call continues.
    pub(crate) fn read_records(&self) -> Result<()> {
        let _alone = self.volumes.change();
        self.cluster.refresh_access()?;
        self.read_addresses()?;
        let server_of = |info: &BrickInfo| (info.brick, info.server);
        let (rings, servers) = self.with_records(|records| {
            (records.rings().cloned().collect::<Vec<_>>(), records.bricks().iter().map(server_of).collect())
        })?;
        for info in rings {
            match self.ring(info.ring) {
                Ok(ring) => ring.set_servers(&servers),
                Err(_) => drop(self.host(&info)?),
            }
        }
        let recorded = self.cluster.registry().volumes()?;
        for volume in &recorded {
            self.volumes.put(volume.clone());
            if !volume.deleting {
                self.make_missing_root(volume)?;
            }
        }
        self.volumes.keep_only(&recorded);
        for session in self.sessions.owned_by(|owner| self.cluster.access.is_owner_revoked(owner)) {
            log::warn!("session {session} ends: its client has been revoked");
            self.sessions.end(self.cluster.registry(), session)?;
            self.rings.all().iter().for_each(|ring| self.session_ended(ring, session));
            self.rings.all().iter().try_for_each(|ring| forget_session(self, ring, session))?;
        }
        let ended = self.sessions.refresh(self.cluster.registry())?;
        let rings = self.rings.all();
        for session in &ended {
            rings.iter().for_each(|ring| self.session_ended(ring, *session));
        }
        for ended in ended {
            rings.iter().try_for_each(|ring| forget_session(self, ring, ended))?;
        }
        Ok(())
    }

    /// Marks a volume as being deleted: no client can open it any more, and housekeeping deletes its data.
    ///
    /// # Errors
    ///
    /// `Unavailable` if a session uses it, `Invalid` if no volume has the name; those of the coordinator.
    pub(crate) fn delete_volume(&self, name: &str) -> Result<()> {
        let _alone = self.volumes.change();
        let Some(volume) = self.cluster.registry().volume(name)? else {
            return Err(self.no_volume(name));
        };
        let users = self.cluster.registry().session_count(volume.volume)?;
        if users > 0 {
            return Err(Error::Unavailable {
                what: format!("volume {name} is in use by {users} session(s); unmount it first (`hekate umount DIR`)"),
            });
        }
        let deleting = self.cluster.registry().begin_deletion(&volume)?.ok_or_else(|| self.no_volume(name))?;
        self.volumes.put(deleting);
        Ok(())
    }

    /// A volume's space on the bricks here, divided by its copies.
    ///
    /// # Errors
    ///
    /// `Io` if a brick's file system cannot be asked.
    pub(crate) fn volume_space(&self, volume: VolumeId) -> Result<VolumeSpace> {
        let volume = self.volume(volume)?;
        let mut sum = VolumeSpace::default();
        for brick in self.ring(volume.ring)?.bricks() {
            let Space { total, free, available, files, files_available } = brick.status()?.space;
            // A file system that counts no inodes (0) adds none.
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

/// Deletes more of the volumes that are being deleted: first shards, then entries, in every partition that is led here.
///
/// # Errors
///
/// Those of the partitions; the next call continues.
pub fn go_on_deleting(node: &Node) -> Result<()> {
    for volume in node.volumes.all().into_iter().filter(|volume| volume.deleting) {
        let ring = node.ring(volume.ring)?;
        for leader in ring.leaders() {
            let part = Deletion { node, ring: &ring, volume: volume.volume, partition: leader.partition };
            part.delete_shards()?;
            for range in [Key::object_range, Key::work_range] {
                let (from, to) = range(ring.ring, leader.partition, ring.count());
                part.delete_entries(from, &to)?;
            }
        }
        // Other servers delete what they lead; the record stays until nothing is left anywhere.
        if ring.is_whole() {
            let _alone = node.volumes.change();
            node.cluster.registry().forget_volume(&volume)?;
            node.volumes.forget(volume.volume);
        }
    }
    Ok(())
}

/// A volume that is being deleted, in one partition.
struct Deletion<'a> {
    node: &'a Node,
    ring: &'a Arc<HostedRing>,
    volume: VolumeId,
    partition: PartitionNumber,
}

impl Deletion<'_> {
    fn leader(&self) -> Result<&Arc<Brick>> {
        Ok(&self.ring.leader(self.partition)?.1.brick)
    }

    fn delete_shards(&self) -> Result<()> {
        let shards = self.leader()?.shards(self.ring.ring, self.partition, self.ring.count())?;
        let own = shards.into_iter().filter(|shard| shard.volume == self.volume);
        self.change(own.map(|shard| Change::DropShard { shard }))
    }

    /// Deletes the volume's entries of a range. Records and checksums of shards go with their shards.
    fn delete_entries(&self, mut from: Key, to: &Key) -> Result<()> {
        let is_entry = |key: &Key| !matches!(key.kind(), Some(Kind::Shard | Kind::Checksums));
        let is_own = |key: &Key| key.prefix().is_some_and(|place| place.volume == self.volume);
        loop {
            let found = self.leader()?.scan(&from, to, DELETE_AT_ONCE)?;
            let Some((last, _)) = found.last() else { return Ok(()) };
            from = last.successor();
            let keys = found.into_iter().map(|(key, _)| key).filter(|key| is_own(key) && is_entry(key));
            self.change(keys.map(|key| Change::Delete { key }))?;
        }
    }

    fn change(&self, changes: impl Iterator<Item = Change>) -> Result<()> {
        let changes: Vec<Change> = changes.collect();
        for some in changes.chunks(DELETE_AT_ONCE) {
            self.node.change(self.ring, self.partition, Commit { changes: some.to_vec(), ..Commit::default() })?;
        }
        Ok(())
    }
}
