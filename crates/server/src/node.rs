//! A server process: what it opens when it starts, and the service that connections use.

use crate::control;
use crate::housekeeping::Housekeeping;
use crate::level;
use crate::locked::Chores;
use crate::membership;
use crate::partition::HostedRing;
use crate::scrub::Scrubs;
use crate::sessions::Sessions;
use crate::stats::OpCounters;
use crate::syncer::Syncers;
use hekate_brick::{Brick, LostBlock, RecoveryReport};
use hekate_cluster::{Registry, RingInfo, VolumeInfo};
use hekate_proto::*;
use hekate_transport::{Peer, Secret, Service};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Where a server keeps its state.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Directory of the coordinator's file and the secret.
    pub state: PathBuf,
}

/// A server.
pub struct Node {
    pub(crate) registry: Registry,
    pub(crate) secret: Option<Secret>,
    pub(crate) cluster: String,
    pub(crate) bricks: HashMap<BrickId, Arc<Brick>>,
    pub(crate) recoveries: HashMap<BrickId, RecoveryReport>,
    pub(crate) rings: RwLock<HashMap<RingId, Arc<HostedRing>>>,
    pub(crate) volumes: RwLock<HashMap<VolumeId, Arc<VolumeInfo>>>,
    pub(crate) maps: Mutex<HashMap<VolumeId, map::VolumeMap>>,
    pub(crate) sessions: Sessions,
    pub(crate) syncers: Syncers,
    pub(crate) chores: Mutex<Chores>,
    pub(crate) counters: OpCounters,
    pub(crate) scrubs: Scrubs,
    pub(crate) started: Instant,
    pub(crate) stop_asked: AtomicBool,
    /// One volume is made at a time: two would host a new ring twice.
    pub(crate) making_volume: Mutex<()>,
    housekeeping: Mutex<Option<Housekeeping>>,
}

impl Node {
    /// Opens everything, levels the replicas, finishes or undoes what a crash left; `progress` says what it is at.
    pub fn start(settings: &NodeSettings, progress: &dyn Fn(&str)) -> Result<Arc<Self>> {
        let secret = membership::secret(&settings.state)?;
        let registry = membership::open_registry(&settings.state, secret.as_ref())?;
        let cluster = registry.cluster()?;
        let mut bricks = HashMap::new();
        let mut recoveries = HashMap::new();
        for info in registry.own_bricks()? {
            progress(&format!("opening brick {}", info.directory));
            let (brick, report) = Brick::open(std::path::Path::new(&info.directory), &cluster)?;
            if brick.id() != info.brick {
                return Err(Error::Denied {
                    what: format!("{} holds brick {}, not {}", info.directory, brick.id().text(), info.brick.text()),
                });
            }
            if let Some(why) = &report.stopped {
                progress(&format!(
                    "brick {} had stopped itself: {why}; only what it had synced is trusted",
                    info.directory
                ));
            }
            if let Some(torn) = &report.torn {
                let (path, offset, why) = (&torn.path, torn.offset, torn.why);
                progress(&format!(
                    "cut a torn tail off the journal, {path} at offset {offset}: {why}; nothing synced is lost"
                ));
            }
            registry.opened(info.brick, brick.incarnation())?;
            recoveries.insert(info.brick, report);
            bricks.insert(info.brick, Arc::new(brick));
        }
        let syncers = Syncers::start(bricks.values())?;
        let node = Arc::new(Self {
            sessions: Sessions::new(registry.server()),
            registry,
            secret,
            cluster,
            bricks,
            recoveries,
            rings: RwLock::default(),
            volumes: RwLock::default(),
            maps: Mutex::default(),
            syncers,
            chores: Mutex::default(),
            counters: OpCounters::default(),
            scrubs: Scrubs::default(),
            started: Instant::now(),
            stop_asked: AtomicBool::new(false),
            making_volume: Mutex::new(()),
            housekeeping: Mutex::new(None),
        });
        node.load(progress)?;
        *node.housekeeping.lock() = Some(Housekeeping::start(&node)?);
        Ok(node)
    }

    fn load(&self, progress: &dyn Fn(&str)) -> Result<()> {
        let rings = self.registry.rings()?;
        // Kept by the coordinator until all replicas agree on them: a checkpoint forgets what its brick has lost.
        let mut lost: BTreeSet<LostBlock> = level::read_lost(&self.registry)?;
        lost.extend(self.recoveries.values().flat_map(|report| report.lost.iter().copied()));
        if !lost.is_empty() {
            level::record_lost(&self.registry, &lost)?;
        }
        progress("making the replicas even");
        level::level(&rings, &self.bricks)?;
        // Room in every journal for what recovery appends.
        self.checkpoint_all()?;
        for ring in rings {
            let renew = |ring: &mut RingInfo| level::renew_incarnations(ring, &self.bricks);
            self.host(&self.registry.update_ring(ring.ring, renew)?)?;
        }
        for volume in self.registry.volumes()? {
            self.volumes.write().insert(volume.volume, Arc::new(volume));
        }
        self.sessions.load(&self.registry)?;
        let rings: Vec<_> = self.rings.read().values().cloned().collect();
        level::settle_lost(self, &lost)?;
        for ring in rings {
            level::recover(self, &ring)?;
        }
        self.make_missing_roots()?;
        self.checkpoint_all()?;
        if !lost.is_empty() {
            level::record_lost(&self.registry, &BTreeSet::new())?;
        }
        self.bricks.values().try_for_each(|brick| brick.settle_life())
    }

    /// Serves a ring's partitions from now on.
    pub(crate) fn host(&self, info: &RingInfo) -> Result<Arc<HostedRing>> {
        let servers = self.registry.bricks()?.into_iter().map(|info| (info.brick, info.server)).collect();
        let ring = Arc::new(HostedRing::new(info, &self.bricks, &servers)?);
        self.rings.write().insert(info.ring, ring.clone());
        Ok(ring)
    }

    pub(crate) fn ring(&self, ring: RingId) -> Result<Arc<HostedRing>> {
        let found = self.rings.read().get(&ring).cloned();
        found.ok_or_else(|| Error::Protocol { what: format!("ring {ring} is not served here") })
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> Result<Arc<VolumeInfo>> {
        self.volumes.read().get(&volume).cloned().ok_or(Error::SessionEnded)
    }

    /// A volume that can be used; another server may have made it a moment ago.
    fn volume_called(&self, name: &str) -> Result<Arc<VolumeInfo>> {
        let known = || self.volumes.read().values().find(|volume| volume.name == name && !volume.deleting).cloned();
        if let Some(volume) = known() {
            return Ok(volume);
        }
        self.learn()?;
        let none = || {
            let mut names: Vec<_> = self.volumes.read().values().map(|volume| volume.name.clone()).collect();
            names.sort();
            Error::invalid(format!("there is no volume called {name:?}; there are: {}", names.join(", ")))
        };
        known().ok_or_else(none)
    }

    /// Says where this server listens from now on.
    pub fn announce(&self, endpoints: &[String]) -> Result<()> {
        self.registry.announce(endpoints)
    }

    pub(crate) fn clock() -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }

    /// Ends a session and what it left in the partitions.
    pub(crate) fn end_session(&self, id: SessionId) -> Result<()> {
        let volume = self.sessions.get(id)?.volume;
        self.sessions.end(&self.registry, id)?;
        let ring = self.ring(self.volume(volume)?.ring)?;
        level::forget_session(self, &ring, id)
    }

    /// Whether the control interface was asked to stop the server.
    pub fn stop_asked(&self) -> bool {
        self.stop_asked.load(Ordering::Relaxed)
    }

    /// Ends the housekeeping and writes everything home, so that the next start is short.
    pub fn shut_down(&self) -> Result<()> {
        self.stop_housekeeping();
        self.checkpoint_all()
    }

    /// Ends the housekeeping's threads.
    pub fn stop_housekeeping(&self) {
        if let Some(housekeeping) = self.housekeeping.lock().take() {
            housekeeping.stop();
        }
    }

    /// A checkpoint if some brick waits for one: for those who append while no housekeeping runs.
    pub(crate) fn checkpoint_if_wanted(&self) -> Result<()> {
        if self.bricks.values().any(|brick| brick.wants_checkpoint()) { self.checkpoint_all() } else { Ok(()) }
    }

    /// Whether something was deleted whose space a checkpoint would give back.
    pub(crate) fn could_free_space(&self) -> bool {
        !self.chores.lock().garbage.is_empty() || self.bricks.values().any(|brick| brick.could_free_space())
    }

    /// A checkpoint of every brick, after all of them have synced their journals: so a journal is given back only up to
    /// what every replica has on stable storage, and a replica that lost its tail finds it in another's journal.
    /// A brick that has stopped does not keep the others from it.
    pub fn checkpoint_all(&self) -> Result<()> {
        self.checkpoint_all_paced(&mut || false)
    }

    /// The same, with pauses as long as the checkpoint is ahead of the journal.
    pub fn checkpoint_all_paced(&self, pause: &mut dyn FnMut() -> bool) -> Result<()> {
        let begun: Vec<_> = self.bricks.values().map(|brick| brick.begin_checkpoint()).collect();
        let synced: Vec<Result<()>> = self.bricks.values().map(|brick| brick.sync(brick.end())).collect();
        // A brick that stopped lacks what it had not synced: the others' journals are where the next start finds it.
        let keep = synced.iter().any(|outcome| outcome.is_err());
        self.bricks.values().for_each(|brick| brick.keep_journal(keep));
        let finished: Vec<Result<()>> = begun.into_iter().map(|checkpoint| checkpoint.finish(pause)).collect();
        synced.into_iter().chain(finished).collect()
    }

    fn may_use(&self, peer: Peer, volume: &VolumeInfo) -> Result<()> {
        let Peer::Local { uid, .. } = peer else { return Ok(()) };
        let own = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == own || uid == volume.owner_uid || volume.allowed_uids.contains(&uid) {
            return Ok(());
        }
        Err(Error::Denied {
            what: format!(
                "user {uid} may not use volume {}; its owner is {}, and `hekate volume create --allow-uid` names others",
                volume.name, volume.owner_uid
            ),
        })
    }
}

impl Service for Node {
    fn open(&self, peer: Peer, name: &str, resume: Option<SessionId>) -> Result<(VolumeId, SessionId, String)> {
        let volume = &self.volume_called(name)?;
        self.may_use(peer, volume)?;
        let uid = match peer {
            Peer::Local { uid, .. } => Some(uid),
            Peer::Secret => None,
        };
        let session = match resume {
            Some(id) => self.sessions.find(&self.registry, id)?,
            None => self.sessions.begin(&self.registry, volume.volume, uid)?,
        };
        if session.uid != uid {
            return Err(Error::Denied { what: "the session is another user's".into() });
        }
        if session.volume != volume.volume {
            return Err(Error::Denied { what: "the session is on another volume".into() });
        }
        let map = self.map(volume)?;
        let map = serde_json::to_string(&map).map_err(|e| Error::bug(e.to_string()))?;
        session.connected();
        Ok((volume.volume, session.id, map))
    }

    fn call(&self, session: SessionId, requests: Vec<Request>) -> Vec<Result<Reply>> {
        self.batch(session, &requests)
    }

    fn disconnected(&self, session: SessionId) {
        if let Ok(session) = self.sessions.get(session) {
            session.disconnected();
        }
    }

    fn control(&self, peer: Peer, request: &str) -> String {
        control::answer(self, peer, request)
    }
}
