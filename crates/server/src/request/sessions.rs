//! Sessions: which clients use which volume, when a session expires, and which orphans each session has released.

use hekate_cluster::{Registry, SessionInfo, SessionOwner};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_threads::{HashMap, HashSet, Mutex, RwLock, elapsed, now};
use hekate_transport::{NotificationSink, SessionLocks, SessionProcess};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Silence after which a session without a connection expires.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Silence after which the process of a session without a connection has probably ended: a mount connects again within
/// 250 ms and sends a heartbeat every second.
const DOUBTFUL_AFTER: Duration = Duration::from_secs(3);
/// Time within which the process of a new session holds its lock file: the client locks the file before it sends its
/// first request. A session without a lock after this time is checked again only when its connections are closed.
const LOCKED_WITHIN: Duration = Duration::from_secs(10);
/// Orphans that the answer to one heartbeat asks about.
const ORPHANS_AT_ONCE: usize = 1024;

/// One client's use of one volume.
pub struct Session {
    pub id: SessionId,
    pub volume: VolumeId,
    pub owner: SessionOwner,
    /// The server that opened the session, and expires it. While that server has no lease, another one does
    /// (`Node::ends_sessions_of`).
    pub home: ServerId,
    /// Ops hold it shared. A retried op takes it exclusively first, so that it begins after its first attempt has
    /// ended.
    pub gate: RwLock<()>,
    connections: AtomicUsize,
    known_since: Instant,
    /// The session's process has been seen to hold its lock file.
    is_locked: AtomicBool,
    /// The session has sent a request.
    has_asked: AtomicBool,
    /// The change of the volume's graph that the client uses, as it said last.
    pub graph: AtomicU64,
    /// Connections on which the client is notified.
    listeners: Mutex<Vec<Arc<dyn NotificationSink>>>,
    /// When the client last sent something.
    heard: Mutex<Instant>,
    /// Orphans that the client does not have open.
    released: Mutex<HashSet<InodeId>>,
}

/// All sessions of the cluster's volumes, of every server.
pub struct Sessions {
    server: ServerId,
    all: RwLock<HashMap<SessionId, Arc<Session>>>,
    /// Held by a thread from its read of the records until `all` agrees with them: a session that ends in between would
    /// be added again.
    changing: Mutex<()>,
    /// Reads of the records that have begun, and the number of the last one that succeeded. They follow each other.
    reads_begun: AtomicU64,
    read: AtomicU64,
    /// The lock files that show whether a session's process has ended; without them a session expires only after
    /// silence.
    locks: OnceLock<SessionLocks>,
}

/// A moment, as the number of reads of the sessions' records that had begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadsBegun(u64);

impl Sessions {
    pub fn new(server: ServerId) -> Self {
        let (all, changing, reads_begun, read, locks) = Default::default();
        Self { server, all, changing, reads_begun, read, locks }
    }

    /// From now on makes a lock file beside the socket for each new session of a process of this machine.
    ///
    /// # Errors
    ///
    /// `Io` if the directory of the lock files cannot be made.
    pub fn lock_beside(&self, socket: &Path) -> Result<()> {
        let locks = SessionLocks::beside(socket)?;
        locks.keep_only(|session| self.get(session).is_ok());
        // A server has one socket, so a second call changes nothing.
        let _ = self.locks.set(locks);
        Ok(())
    }

    /// Reads the sessions that had not ended when the last server process did. Each gets the full time to connect
    /// again.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn load(&self, registry: &Registry) -> Result<()> {
        self.refresh(registry).map(|_| ())
    }

    /// Reads which sessions other servers have opened and ended. Returns those that have ended.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn refresh(&self, registry: &Registry) -> Result<Vec<SessionId>> {
        let _alone = self.changing.lock();
        // Every session that is known has been recorded. So one that is known before the records are read and is not
        // among them has ended.
        let known: Vec<SessionId> = self.all.read().keys().copied().collect();
        let living: HashSet<SessionId> = self.add_recorded(registry)?.iter().map(|info| info.session).collect();
        let ended: Vec<SessionId> = known.into_iter().filter(|id| !living.contains(id)).collect();
        let mut all = self.all.write();
        ended.iter().for_each(|id| _ = all.remove(id));
        drop(all);
        self.locks.get().into_iter().for_each(|locks| ended.iter().for_each(|id| locks.end(*id)));
        Ok(ended)
    }

    /// Reads the sessions that have not ended, and adds those that are not known yet.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn read(&self, registry: &Registry) -> Result<Vec<SessionInfo>> {
        let _alone = self.changing.lock();
        self.add_recorded(registry)
    }

    /// The sessions that are known here, without a reading of the records.
    pub fn known(&self) -> Vec<SessionInfo> {
        let info = |one: &Arc<Session>| {
            let (session, volume, owner, server) = (one.id, one.volume, one.owner.clone(), one.home);
            SessionInfo { session, volume, owner, server }
        };
        self.all.read().values().map(info).collect()
    }

    /// Requires `changing`.
    fn add_recorded(&self, registry: &Registry) -> Result<Vec<SessionInfo>> {
        let number = self.reads_begun.fetch_add(1, Ordering::Relaxed) + 1;
        let recorded = registry.sessions()?;
        recorded.iter().for_each(|info| _ = self.insert(info));
        self.read.store(number, Ordering::Release);
        Ok(recorded)
    }

    /// This moment, for [`Sessions::are_read_since`].
    pub fn moment(&self) -> ReadsBegun {
        ReadsBegun(self.reads_begun.load(Ordering::Acquire))
    }

    /// True if the records have been read since: every session that had begun at that moment is known.
    pub fn are_read_since(&self, moment: ReadsBegun) -> bool {
        self.read.load(Ordering::Acquire) > moment.0
    }

    /// Adds a session, unless it is known already.
    fn insert(&self, info: &SessionInfo) -> Arc<Session> {
        let new = || {
            Arc::new(Session {
                id: info.session,
                volume: info.volume,
                owner: info.owner.clone(),
                home: info.server,
                gate: RwLock::new(()),
                connections: AtomicUsize::new(0),
                known_since: now(),
                is_locked: AtomicBool::new(false),
                has_asked: AtomicBool::new(false),
                graph: AtomicU64::new(0),
                listeners: Mutex::default(),
                heard: Mutex::new(now()),
                released: Mutex::default(),
            })
        };
        self.all.write().entry(info.session).or_insert_with(new).clone()
    }

    /// Opens a session and records it with the coordinator.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn begin(&self, registry: &Registry, volume: VolumeId, owner: SessionOwner) -> Result<Arc<Session>> {
        let session = registry.begin_session(volume, &owner)?;
        if let (Some(locks), SessionOwner::Uid(uid)) = (self.locks.get(), &owner)
            && let Err(error) = locks.begin(session, *uid)
        {
            log::warn!("session {session} expires only after 60 s of silence: {error}");
        }
        Ok(self.insert(&SessionInfo { session, volume, owner, server: self.server }))
    }

    /// A session that has not ended.
    ///
    /// # Errors
    ///
    /// `SessionEnded`, also for a session of another server that this one has not read yet.
    pub fn get(&self, id: SessionId) -> Result<Arc<Session>> {
        self.all.read().get(&id).cloned().ok_or(Error::SessionEnded)
    }

    /// Like `get`, but also finds a session that another server has opened a moment ago.
    ///
    /// # Errors
    ///
    /// `SessionEnded` if it has ended; those of the coordinator.
    pub fn find(&self, registry: &Registry, id: SessionId) -> Result<Arc<Session>> {
        if let Ok(session) = self.get(id) {
            return Ok(session);
        }
        let _alone = self.changing.lock();
        Ok(self.insert(&registry.session(id)?.ok_or(Error::SessionEnded)?))
    }

    /// Ends a session for good.
    ///
    /// # Errors
    ///
    /// Those of the coordinator; the session then stays.
    pub fn end(&self, registry: &Registry, id: SessionId) -> Result<()> {
        let _alone = self.changing.lock();
        registry.end_session(id)?;
        self.all.write().remove(&id);
        self.locks.get().into_iter().for_each(|locks| locks.end(id));
        Ok(())
    }

    /// Sessions whose owners `is_of` accepts.
    pub fn owned_by(&self, is_of: impl Fn(&SessionOwner) -> bool) -> Vec<SessionId> {
        self.all.read().values().filter(|session| is_of(&session.owner)).map(|session| session.id).collect()
    }

    /// The number of a volume's sessions that use this change of its graph.
    pub fn on_graph(&self, volume: VolumeId, change: u64) -> usize {
        let all = self.all.read();
        let is_on =
            |session: &&Arc<Session>| session.volume == volume && session.graph.load(Ordering::Relaxed) == change;
        all.values().filter(is_on).count()
    }

    /// The number of a volume's sessions.
    pub fn count(&self, volume: VolumeId) -> usize {
        self.all.read().values().filter(|session| session.volume == volume).count()
    }

    /// Sessions that expire now. `is_home` says which servers' sessions of a volume this server expires: those that
    /// were silent for 60 s, and of its own also those whose process has ended.
    pub fn expired(&self, is_home: impl Fn(ServerId, VolumeId) -> bool) -> Vec<SessionId> {
        let all: Vec<Arc<Session>> = self.all.read().values().cloned().collect();
        let is_over = |session: &&Arc<Session>| {
            let has_ended = self.has_ended(session) || is_planted(Bug::SessionExpiresAtOnce);
            let silence = if has_ended { Duration::ZERO } else { SILENCE_MAX };
            session.is_silent_for(silence) && is_home(session.home, session.volume)
        };
        all.iter().filter(is_over).map(|session| session.id).collect()
    }

    /// True if the session's process is known to have ended. Called again and again while the session lives, so that
    /// its lock file is seen locked once.
    fn has_ended(&self, session: &Session) -> bool {
        let is_settled = session.is_locked.load(Ordering::Relaxed) || elapsed(session.known_since) > LOCKED_WITHIN;
        if is_settled && session.connections.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let locks =
            self.locks.get().filter(|_| session.home == self.server && matches!(session.owner, SessionOwner::Uid(_)));
        let found = locks.map_or(SessionProcess::Unknown, |locks| locks.look(session.id));
        session.is_locked.fetch_or(found == SessionProcess::Lives, Ordering::Relaxed);
        found == SessionProcess::Ended
    }

    /// Looks at the lock file before the session's first request is carried out: the process holds it by now, and may
    /// end together with this server before the next look.
    pub fn note_request(&self, session: &Session) {
        if !session.has_asked.load(Ordering::Relaxed) {
            self.has_ended(session);
            session.has_asked.store(true, Ordering::Relaxed);
        }
    }

    /// True if each of these sessions has no connection and has been silent for 3 s.
    pub fn are_doubtful(&self, sessions: &[SessionId]) -> bool {
        sessions.iter().all(|id| self.get(*id).is_ok_and(|session| session.is_silent_for(DOUBTFUL_AFTER)))
    }

    /// True if every session of the volume has reported that it does not have the inode open.
    pub fn all_released(&self, volume: VolumeId, inode: InodeId) -> bool {
        let all = self.all.read();
        let mut users = all.values().filter(|session| session.volume == volume);
        users.all(|session| session.released.lock().contains(&inode))
    }

    /// Forgets an orphan that was collected.
    pub fn forget(&self, volume: VolumeId, inode: InodeId) {
        for session in self.all.read().values().filter(|session| session.volume == volume) {
            session.released.lock().remove(&inode);
        }
    }
}

impl Session {
    /// True if the session has no connection and has sent nothing for longer than `time`.
    fn is_silent_for(&self, time: Duration) -> bool {
        self.connections.load(Ordering::Relaxed) == 0 && elapsed(*self.heard.lock()) > time
    }

    pub fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        *self.heard.lock() = now();
    }

    pub fn disconnected(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        *self.heard.lock() = now();
    }

    /// Adds a connection that takes notifications.
    pub fn add_listener(&self, listener: Arc<dyn NotificationSink>) {
        self.listeners.lock().push(listener);
    }

    /// Removes a connection that takes notifications.
    pub fn remove_listener(&self, listener: &Arc<dyn NotificationSink>) {
        self.listeners.lock().retain(|known| !Arc::ptr_eq(known, listener));
    }

    /// Sends the client a notification.
    pub fn notify(&self, notification: &Notification) {
        self.listeners.lock().iter().for_each(|listener| listener.tell(notification));
    }

    /// True if the client can be notified.
    pub fn is_listening(&self) -> bool {
        !self.listeners.lock().is_empty()
    }

    /// Takes a heartbeat: `unused` are inodes that the client does not have open. Returns orphans that the client has
    /// not released yet.
    pub fn heartbeat(&self, unused: &[InodeId], orphans: impl Iterator<Item = InodeId>) -> Vec<InodeId> {
        *self.heard.lock() = now();
        let orphans: HashSet<InodeId> = orphans.collect();
        let mut released = self.released.lock();
        // Only orphans are kept, so that a client cannot fill the server's memory.
        released.extend(unused.iter().filter(|inode| orphans.contains(inode)));
        orphans.into_iter().filter(|inode| !released.contains(inode)).take(ORPHANS_AT_ONCE).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_cluster::coordinator::{Expect, Write};
    use hekate_cluster::{Coordinator, EmbeddedCoordinator, Listing, Outcome, Revision, Watched};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A coordinator that stops after it has read a session, until the test lets it return.
    struct Slow {
        inner: EmbeddedCoordinator,
        has_read: Sender<()>,
        may_return: Mutex<Receiver<()>>,
    }

    impl Coordinator for Slow {
        fn get(&self, key: &str) -> Result<Option<String>> {
            let found = self.inner.get(key);
            if key.starts_with("/sessions/") {
                let _ = self.has_read.send(());
                let _ = self.may_return.lock().recv();
            }
            found
        }

        fn list(&self, prefix: &str) -> Result<Listing> {
            self.inner.list(prefix)
        }

        fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
            self.inner.transact(expect, writes)
        }

        fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<Outcome> {
            self.inner.keep(key, value, lifetime)
        }

        fn release(&self, key: &str) -> Result<Outcome> {
            self.inner.release(key)
        }

        fn watch(&self, prefixes: &[&str], after: Revision, limit: Duration) -> Result<Watched> {
            self.inner.watch(prefixes, after, limit)
        }

        fn end_watches(&self) {
            self.inner.end_watches();
        }
    }

    #[test]
    fn a_session_that_ends_while_it_is_looked_up_stays_ended() {
        let path = std::env::temp_dir().join(format!("hekate-sessions-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let ((has_read, reads), (returns, may_return)) = (channel(), channel());
        let inner = EmbeddedCoordinator::create(&path).unwrap();
        let registry = Registry::new(Arc::new(Slow { inner, has_read, may_return: Mutex::new(may_return) }));
        let id = registry.begin_session(VolumeId(1), &SessionOwner::Uid(0)).unwrap();
        let sessions = Sessions::new(registry.server());
        std::thread::scope(|scope| {
            let found = scope.spawn(|| sessions.find(&registry, id).map(|_| ()));
            reads.recv().unwrap();
            let ended = scope.spawn(|| sessions.end(&registry, id));
            // Time for a thread that is not kept from ending the session.
            hekate_threads::sleep(Duration::from_millis(100));
            // One for the look-up, one for the end, which reads the record too.
            (0..2).for_each(|_| returns.send(()).unwrap());
            found.join().unwrap().unwrap();
            ended.join().unwrap().unwrap();
        });
        assert!(matches!(sessions.get(id), Err(Error::SessionEnded)));
        std::fs::remove_file(&path).unwrap();
    }
}
