//! Sessions: who uses which volume, and what each has said about orphans.

use hekate_cluster::{Registry, SessionInfo};
use hekate_proto::*;
use hekate_transport::{Listener, SessionLocks, SessionProcess};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A session that says nothing for so long has ended.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A session without a connection that has said nothing for so long may be gone: a mount that lives connects anew within 250 ms, and
/// sends a heartbeat each second.
const DOUBTFUL_AFTER: Duration = Duration::from_secs(3);
/// A session that opens has its lock before it sends its first request. One that has none so long after that is not looked at
/// again before its connections are gone.
const LOCKED_WITHIN: Duration = Duration::from_secs(10);
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
    /// Where it was opened: only this server ends it after a silence.
    home: ServerId,
    /// Ops hold it shared; a retry takes it alone, so that it begins when what it repeats has ended.
    pub gate: RwLock<()>,
    connections: AtomicUsize,
    /// When this server began to know of it.
    known_since: Instant,
    /// Its process was seen to hold its lock.
    is_locked: AtomicBool,
    /// Connections on which it is told of ops that waited.
    listeners: Mutex<Vec<Arc<Listener>>>,
    heard: Mutex<Instant>,
    /// Orphans that it does not have open.
    released: Mutex<HashSet<InodeId>>,
}

/// All sessions of the server's volumes, wherever they were opened.
pub struct Sessions {
    server: ServerId,
    all: RwLock<HashMap<SessionId, Arc<Session>>>,
    /// By which it is known whose process has ended; without them sessions end after a silence only.
    locks: OnceLock<SessionLocks>,
}

impl Sessions {
    /// None yet, on this server.
    pub fn new(server: ServerId) -> Self {
        Self { server, all: RwLock::default(), locks: OnceLock::new() }
    }

    /// From now on processes of this machine that open a session keep a file beside the socket locked.
    pub fn lock_beside(&self, socket: &Path) -> Result<()> {
        let locks = SessionLocks::beside(socket)?;
        locks.keep_only(|session| self.get(session).is_ok());
        // A server has one socket.
        let _ = self.locks.set(locks);
        Ok(())
    }

    /// Those that had not ended when the last server did get their time to come back.
    pub fn load(&self, registry: &Registry) -> Result<()> {
        self.refresh(registry).map(|_| ())
    }

    /// Learns which sessions other servers have opened and ended since. -> those that ended.
    pub fn refresh(&self, registry: &Registry) -> Result<Vec<SessionId>> {
        // What is known has a record, so what is known before they are read and has none then has ended.
        let known: Vec<SessionId> = self.all.read().keys().copied().collect();
        let recorded = registry.sessions()?;
        let living: HashSet<SessionId> = recorded.iter().map(|info| info.session).collect();
        recorded.iter().for_each(|info| _ = self.insert(info));
        let ended: Vec<SessionId> = known.into_iter().filter(|id| !living.contains(id)).collect();
        let mut all = self.all.write();
        ended.iter().for_each(|id| _ = all.remove(id));
        drop(all);
        self.locks.get().into_iter().for_each(|locks| ended.iter().for_each(|id| locks.end(*id)));
        Ok(ended)
    }

    /// The session, which may be known already.
    fn insert(&self, info: &SessionInfo) -> Arc<Session> {
        let new = || {
            Arc::new(Session {
                id: info.session,
                volume: info.volume,
                uid: info.uid,
                home: info.server,
                gate: RwLock::new(()),
                connections: AtomicUsize::new(0),
                known_since: Instant::now(),
                is_locked: AtomicBool::new(false),
                listeners: Mutex::default(),
                heard: Mutex::new(Instant::now()),
                released: Mutex::default(),
            })
        };
        self.all.write().entry(info.session).or_insert_with(new).clone()
    }

    /// A new session.
    pub fn begin(&self, registry: &Registry, volume: VolumeId, uid: Option<u32>) -> Result<Arc<Session>> {
        let session = registry.begin_session(volume, uid)?;
        if let (Some(locks), Some(uid)) = (self.locks.get(), uid)
            && let Err(error) = locks.begin(session, uid)
        {
            log::warn!("session {session} will end after a silence only: {error}");
        }
        Ok(self.insert(&SessionInfo { session, volume, uid, server: self.server }))
    }

    /// A session, if it has not ended.
    pub fn get(&self, id: SessionId) -> Result<Arc<Session>> {
        self.all.read().get(&id).cloned().ok_or(Error::SessionEnded)
    }

    /// A session, if it has not ended, wherever it was opened.
    pub fn find(&self, registry: &Registry, id: SessionId) -> Result<Arc<Session>> {
        if let Ok(session) = self.get(id) {
            return Ok(session);
        }
        Ok(self.insert(&registry.session(id)?.ok_or(Error::SessionEnded)?))
    }

    /// Ends a session for ever.
    pub fn end(&self, registry: &Registry, id: SessionId) -> Result<()> {
        registry.end_session(id)?;
        self.all.write().remove(&id);
        self.locks.get().into_iter().for_each(|locks| locks.end(id));
        Ok(())
    }

    /// Those on the volumes that `is_of` knows.
    pub fn on(&self, is_of: impl Fn(VolumeId) -> bool) -> Vec<SessionId> {
        self.all.read().values().filter(|session| is_of(session.volume)).map(|session| session.id).collect()
    }

    /// Sessions on a volume.
    pub fn count(&self, volume: VolumeId) -> usize {
        self.all.read().values().filter(|session| session.volume == volume).count()
    }

    /// Those that are to end: of the servers that this one ends sessions for those that have been silent for too long, and of its own
    /// those whose process has ended for sure.
    pub fn over(&self, is_home: impl Fn(ServerId) -> bool) -> Vec<SessionId> {
        let all: Vec<Arc<Session>> = self.all.read().values().cloned().collect();
        let is_over = |session: &&Arc<Session>| {
            let has_ended = self.has_ended(session);
            is_home(session.home) && session.is_silent_for(if has_ended { Duration::ZERO } else { SILENCE_MAX })
        };
        all.iter().filter(is_over).map(|session| session.id).collect()
    }

    /// True if the session's process has ended for sure. Asked of each session again and again: its lock must have been seen before.
    fn has_ended(&self, session: &Session) -> bool {
        let is_settled = session.is_locked.load(Ordering::Relaxed) || session.known_since.elapsed() > LOCKED_WITHIN;
        if is_settled && session.connections.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let locks = self.locks.get().filter(|_| session.home == self.server && session.uid.is_some());
        let found = locks.map_or(SessionProcess::Unknown, |locks| locks.look(session.id));
        session.is_locked.fetch_or(found == SessionProcess::Lives, Ordering::Relaxed);
        found == SessionProcess::Ended
    }

    /// Whether none of these can be expected to say something soon.
    pub fn are_doubtful(&self, sessions: &[SessionId]) -> bool {
        sessions.iter().all(|id| self.get(*id).is_ok_and(|session| session.is_silent_for(DOUBTFUL_AFTER)))
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
    /// Whether it has no connection, and has said nothing for longer than that.
    fn is_silent_for(&self, time: Duration) -> bool {
        self.connections.load(Ordering::Relaxed) == 0 && self.heard.lock().elapsed() > time
    }

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

    /// It listens there.
    pub fn listens(&self, listener: Arc<Listener>) {
        self.listeners.lock().push(listener);
    }

    /// It does no more.
    pub fn is_deaf(&self, listener: &Arc<Listener>) {
        self.listeners.lock().retain(|known| !Arc::ptr_eq(known, listener));
    }

    /// Ops of its that waited have their answers.
    pub fn tell(&self, op_ids: &[OpId]) {
        self.listeners.lock().iter().for_each(|listener| listener.tell(op_ids));
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
