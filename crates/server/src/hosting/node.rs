//! A server process: its parts, and how it starts and stops.

use crate::control::doors::DoorState;
use crate::hosting::cluster_access::ClusterAccess;
use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::keys::Keys;
use crate::hosting::own_bricks::{self, OwnBricks};
use crate::hosting::peer_inbox::Links;
use crate::hosting::rings::Rings;
use crate::hosting::surroundings::{Machine, Surroundings};
use crate::hosting::views::Views;
use crate::hosting::volumes::Volumes;
use crate::maintenance::Maintenance;
use crate::maintenance::housekeeping::forget_session;
use crate::reports::{Statistics, metrics};
use crate::request::orphans::Orphans;
use crate::request::raw::RawLocks;
use crate::request::sessions::Sessions;
use crate::request::syncer::Syncers;
use crate::request::tickets::Tickets;
use crate::request::turn::Turn;
use hekate_cluster::VolumeInfo;
use hekate_metrics::{NbdCounters, S3Counters};
use hekate_proto::*;
use hekate_replica::{Address, Event};
use hekate_threads::{Mutex, time_of_day};
use hekate_transport::{Peer, Traffic};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};

/// What a server is started with.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Directory of the coordinator's file and of the keys.
    pub state: PathBuf,
    /// Directories of bricks that the server starts without.
    pub without: Vec<String>,
}

/// A server: the state that its connections, its housekeeping and its links share.
///
/// Each part keeps its fields and its locks to itself; the file that defines the part documents it. A thread that holds
/// several locks takes them in this order: the volumes' lock for changes, the views' state, the links that are up, the
/// rings, a replica, the orphans, the sessions. The locks of `tickets`, `housekeeping` and of a mailbox are taken last,
/// and nothing is waited for under them.
pub struct Node {
    pub(crate) surroundings: Arc<dyn Surroundings>,
    pub(crate) cluster: ClusterAccess,
    pub(crate) bricks: OwnBricks,
    pub(crate) rings: Rings,
    pub(crate) volumes: Volumes,
    pub(crate) views: Views,
    pub(crate) links: Links,
    pub(crate) sessions: Sessions,
    pub(crate) orphans: Orphans,
    pub(crate) raw_locks: RawLocks,
    pub(crate) tickets: Tickets,
    pub(crate) syncers: Syncers,
    pub(crate) maintenance: Maintenance,
    pub(crate) statistics: Statistics,
    /// How the doors stand here, by the prefix of their records and the volume's number.
    pub(crate) doors: Mutex<BTreeMap<(&'static str, u32), DoorState>>,
    /// What the doors of volumes have counted, as of the last second.
    pub(crate) s3_counters: Mutex<BTreeMap<u32, S3Counters>>,
    pub(crate) nbd_counters: Mutex<BTreeMap<u32, NbdCounters>>,
    stop_asked: AtomicBool,
    /// This server, for work that continues on another thread.
    pub(crate) own: Weak<Node>,
}

/// Most pauses, and the length of each, for which a stopping server waits until its replicas have collected the garbage
/// of finished ops: 2 s in all.
const REST_ROUNDS: u32 = 20;
const REST_PAUSE: Duration = Duration::from_millis(100);

impl Node {
    /// Opens the bricks, reconciles the replicas, undoes or finishes ops that a crash interrupted, and begins to serve.
    /// `progress` is called with a line for the operator at each stage.
    ///
    /// # Errors
    ///
    /// `Invalid` or `Denied` if the state directory or a brick is not this server's, `Damaged` or `Io` if a brick that
    /// has replicas cannot be opened, and the first replica's failure if replicas cannot be reconciled.
    pub fn start(settings: &NodeSettings, progress: &dyn Fn(&str)) -> Result<Arc<Self>> {
        let cluster = ClusterAccess::open(&settings.state)?;
        Self::start_in(Arc::new(Machine), cluster, &settings.without, progress)
    }

    /// As [`Node::start`], in these surroundings.
    ///
    /// # Errors
    ///
    /// Those of [`Node::start`].
    pub fn start_in(
        surroundings: Arc<dyn Surroundings>,
        cluster: ClusterAccess,
        without: &[String],
        progress: &dyn Fn(&str),
    ) -> Result<Arc<Self>> {
        let bricks = own_bricks::open_all(&*surroundings, &cluster, without, progress)?;
        let syncers = Syncers::start(bricks.values())?;
        let maintenance = Maintenance::new(&bricks)?;
        let views = Views::new()?;
        let node = Arc::new_cyclic(|own| Self {
            sessions: Sessions::new(cluster.server()),
            cluster,
            bricks,
            rings: Rings::default(),
            volumes: Volumes::default(),
            views,
            links: Links::default(),
            surroundings,
            orphans: Orphans::default(),
            raw_locks: RawLocks::default(),
            tickets: Tickets::default(),
            syncers,
            maintenance,
            statistics: Statistics::default(),
            doors: Mutex::default(),
            s3_counters: Mutex::default(),
            nbd_counters: Mutex::default(),
            stop_asked: AtomicBool::new(false),
            own: own.clone(),
        });
        node.load(progress)?;
        node.maintenance.housekeeping().start(&node)?;
        Ok(node)
    }

    /// Delivers a tick, at which replicas retry the work that they have postponed.
    pub(crate) fn tick(&self, ring: &Arc<HostedRing>) {
        self.deliver_to_all(ring, || Event::Tick);
    }

    /// Delivers an event to all replicas of a ring here, and carries out what follows.
    pub(crate) fn deliver_to_all(&self, ring: &Arc<HostedRing>, event: impl Fn() -> Event) {
        self.deliver_to(ring, ring.replicas().map(|(address, _)| *address).collect(), event);
    }

    /// Begins a proof of each partition that is led here: the leader compares what its members hold. `run` is the
    /// number of the run on all servers; a partition whose last proof is of this run is left out.
    pub(crate) fn begin_proofs(&self, run: u64) {
        for ring in self.rings.all() {
            let run_of = |address| Some(ring.replica(address)?.partition.read().proof()?.run);
            let wanted = ring.leaders().into_iter().filter(|address| run_of(*address) != Some(run)).collect();
            self.deliver_to(&ring, wanted, || Event::Prove { run });
        }
    }

    fn deliver_to(&self, ring: &Arc<HostedRing>, addresses: Vec<Address>, event: impl Fn() -> Event) {
        let mut turn = Turn::new(self, ring);
        addresses.into_iter().for_each(|address| turn.deliver(address, event()));
        turn.run();
    }

    /// A ring that is hosted here.
    ///
    /// # Errors
    ///
    /// `Protocol` if this server has no replica of the ring.
    pub(crate) fn ring(&self, ring: RingId) -> Result<Arc<HostedRing>> {
        self.rings.get(ring)
    }

    /// A volume by its number.
    ///
    /// # Errors
    ///
    /// `SessionEnded` if the volume is not known: its sessions have ended with it.
    pub(crate) fn volume(&self, volume: VolumeId) -> Result<Arc<VolumeInfo>> {
        self.volumes.get(volume)
    }

    /// From now on each new session of a process of this machine has a lock file beside `socket`, the path of the
    /// server's socket. Such a session ends as soon as its process has ended, also if no server ran at that time.
    pub fn lock_sessions_beside(&self, socket: &Path) {
        if let Err(error) = self.sessions.lock_beside(socket) {
            log::warn!("sessions of killed mounts expire only after 60 s of silence: {error}");
        }
    }

    /// Records with the coordinator the addresses at which this server answers, and the network of each one over TCP.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn announce(&self, endpoints: &[String], networks: &BTreeMap<String, String>) -> Result<()> {
        self.cluster.registry().announce(endpoints, networks)?;
        self.cluster.access.refresh(self.cluster.registry())
    }

    /// The keys of this server's state directory.
    pub fn keys(&self) -> Option<&Keys> {
        self.cluster.keys()
    }

    /// Sets what tells the traffic of this server's networks.
    pub fn set_traffic(&self, traffic: impl Fn() -> Vec<Traffic> + Send + Sync + 'static) {
        self.statistics.set_traffic(traffic);
    }

    /// True if the peer is a client that may not do anything any more.
    pub fn is_revoked(&self, peer: &Peer) -> bool {
        self.cluster.access.is_revoked(peer)
    }

    pub(crate) fn clock() -> Time {
        let since = time_of_day().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }

    /// Ends a session, releases its locks and deletes its slots in the partitions that are led here.
    ///
    /// # Errors
    ///
    /// `SessionEnded` if it has ended; those of the coordinator and of the partitions.
    pub(crate) fn end_session(&self, id: SessionId) -> Result<()> {
        let volume = self.sessions.get(id)?.volume;
        self.sessions.end(self.cluster.registry(), id)?;
        let ring = self.ring(self.volume(volume)?.ring)?;
        forget_session(self, &ring, id)
    }

    /// Sets the duration from which on an op is kept and logged as slow; zero: no op is slow.
    pub fn set_slow_limit(&self, limit: Duration) {
        self.statistics.ops().set_slow_limit(limit);
    }

    /// Serves the page for Prometheus at this address until the process ends.
    ///
    /// # Errors
    ///
    /// `Io` if the machine does not give a thread.
    pub fn serve_metrics(&self, listener: TcpListener) -> Result<()> {
        let own = self.own.clone();
        let page = move || Some(metrics::page(&*own.upgrade()?));
        hekate_metrics::listen(listener, page).map_err(|e| Error::io("start the threads for metrics", e))
    }

    pub(crate) fn ask_to_stop(&self) {
        self.stop_asked.store(true, Ordering::Relaxed);
    }

    /// True if the control interface was asked to stop the server.
    pub fn stop_asked(&self) -> bool {
        self.stop_asked.load(Ordering::Relaxed)
    }

    /// Gives up the lease, ends the housekeeping and completes a checkpoint of every brick, so that the next start has
    /// no journal to replay.
    ///
    /// # Errors
    ///
    /// Those of a checkpoint; the next start then replays the journals.
    pub fn shut_down(&self) -> Result<()> {
        self.leave();
        self.stop_housekeeping();
        // Collects the garbage of finished ops, so that nothing changes at the next start. With other servers alive
        // their leaders collect it.
        for _ in 0..REST_ROUNDS {
            if self.work_left() == 0 || !self.is_alone() {
                break;
            }
            hekate_threads::sleep(REST_PAUSE);
            self.rings.all().iter().for_each(|ring| self.tick(ring));
            self.checkpoint_if_wanted()?;
        }
        self.checkpoint_all()
    }

    /// Ends the housekeeping's threads, and returns when they have ended.
    pub fn stop_housekeeping(&self) {
        self.maintenance.housekeeping().stop(|| self.cluster.registry().coordinator().end_watches());
    }

    /// True if a checkpoint, after collecting, would free space of deleted files.
    pub(crate) fn could_free_space(&self) -> bool {
        self.work_left() > 0 || self.bricks.could_free_space()
    }

    /// Data ids that wait to be collected and ops in progress, of all replicas here.
    pub(crate) fn work_left(&self) -> usize {
        self.rings.work_left()
    }

    /// Has the housekeeping check at once whether a brick needs a checkpoint: a replica waits for room in its journal.
    pub(crate) fn wake_checkpoints(&self) {
        self.maintenance.housekeeping().wake_checkpoints();
    }

    /// Has the housekeeping read the records at once.
    pub(crate) fn wake_records(&self) {
        self.maintenance.housekeeping().wake_records();
    }

    /// Has the housekeeping read the sessions at once if a leader here waits for them.
    pub(crate) fn wake_sessions(&self) {
        self.maintenance.housekeeping().wake_sessions();
    }

    /// Wakes the thread that renews the lease and forms views.
    pub(crate) fn wake_views(&self) {
        self.maintenance.housekeeping().wake_views();
    }
}
