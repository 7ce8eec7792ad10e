//! Sessions: who uses which volume, and what each has said about orphans.

use hekate_cluster::{Registry, SessionInfo};
use hekate_proto::*;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A session that says nothing for so long has ended.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Orphans that one heartbeat asks about.
const ORPHANS_AT_ONCE: usize = 1024;

/// One session.
pub struct Session {
    /// Its number.
    pub id: SessionId,
    /// Its volume.
    pub volume: VolumeId,
    /// Whose it is, as the kernel said; none: who knows the secret.
    pub uid: Option<u32>,
    /// Ops hold it shared; a retry takes it alone, so that it begins when what it repeats has ended.
    pub gate: RwLock<()>,
    connections: AtomicUsize,
    heard: Mutex<Instant>,
    /// Orphans that it does not have open.
    released: Mutex<HashSet<InodeId>>,
}

/// All sessions of the server's volumes.
#[derive(Default)]
pub struct Sessions {
    all: RwLock<HashMap<SessionId, Arc<Session>>>,
}

impl Sessions {
    /// Those that had not ended when the last server did get their time to come back.
    pub fn load(&self, registry: &Registry) -> Result<()> {
        for SessionInfo { session, volume, uid } in registry.sessions()? {
            self.insert(session, volume, uid);
        }
        Ok(())
    }

    fn insert(&self, id: SessionId, volume: VolumeId, uid: Option<u32>) -> Arc<Session> {
        let session = Arc::new(Session {
            id,
            volume,
            uid,
            gate: RwLock::new(()),
            connections: AtomicUsize::new(0),
            heard: Mutex::new(Instant::now()),
            released: Mutex::default(),
        });
        self.all.write().insert(id, session.clone());
        session
    }

    /// A new session.
    pub fn begin(&self, registry: &Registry, volume: VolumeId, uid: Option<u32>) -> Result<Arc<Session>> {
        Ok(self.insert(registry.begin_session(volume, uid)?, volume, uid))
    }

    /// A session, if it has not ended.
    pub fn get(&self, id: SessionId) -> Result<Arc<Session>> {
        self.all.read().get(&id).cloned().ok_or(Error::SessionEnded)
    }

    /// Ends a session for ever.
    pub fn end(&self, registry: &Registry, id: SessionId) -> Result<()> {
        registry.end_session(id)?;
        self.all.write().remove(&id);
        Ok(())
    }

    /// Sessions on a volume.
    pub fn count(&self, volume: VolumeId) -> usize {
        self.all.read().values().filter(|session| session.volume == volume).count()
    }

    /// Those that have been silent for too long.
    pub fn silent(&self) -> Vec<SessionId> {
        let all = self.all.read();
        let silent = |session: &&Arc<Session>| {
            session.connections.load(Ordering::Relaxed) == 0 && session.heard.lock().elapsed() > SILENCE_MAX
        };
        all.values().filter(silent).map(|session| session.id).collect()
    }

    /// Whether every session of the volume has said that it does not have the inode open.
    pub fn all_released(&self, volume: VolumeId, inode: InodeId) -> bool {
        let all = self.all.read();
        let mut users = all.values().filter(|session| session.volume == volume);
        users.all(|session| session.released.lock().contains(&inode))
    }

    /// The orphan was collected.
    pub fn forget(&self, volume: VolumeId, inode: InodeId) {
        for session in self.all.read().values().filter(|session| session.volume == volume) {
            session.released.lock().remove(&inode);
        }
    }
}

impl Session {
    /// A connection more.
    pub fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        *self.heard.lock() = Instant::now();
    }

    /// A connection less.
    pub fn disconnected(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        *self.heard.lock() = Instant::now();
    }

    /// A heartbeat: what it does not have open, and of which orphans it has not spoken yet.
    pub fn heartbeat(&self, unused: &[InodeId], orphans: impl Iterator<Item = InodeId>) -> Vec<InodeId> {
        *self.heard.lock() = Instant::now();
        let orphans: HashSet<InodeId> = orphans.collect();
        let mut released = self.released.lock();
        // Only what is an orphan: a client cannot make the server remember anything else.
        released.extend(unused.iter().filter(|inode| orphans.contains(inode)));
        orphans.into_iter().filter(|inode| !released.contains(inode)).take(ORPHANS_AT_ONCE).collect()
    }
}
