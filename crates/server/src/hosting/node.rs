//! A server process: its parts, and how it starts and stops.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::lease::Lease;
use crate::hosting::own_bricks::{self, Opened, OwnBricks};
use crate::hosting::peer_inbox::Links;
use crate::hosting::rings::Rings;
use crate::hosting::state_directory;
use crate::hosting::views::Views;
use crate::hosting::volumes::Volumes;
use crate::maintenance::checkpoint::Journals;
use crate::maintenance::damage::Damages;
use crate::maintenance::healing;
use crate::maintenance::housekeeping::{Housekeeping, forget_session};
use crate::maintenance::scrub::Scrubs;
use crate::reports::heal_files::Leavings;
use crate::reports::mapping::Mappings;
use crate::reports::metrics;
use crate::reports::op_statistics::{AtWork, OpCounters, SlowOps};
use crate::request::orphans::Orphans;
use crate::request::raw::RawLocks;
use crate::request::sessions::Sessions;
use crate::request::syncer::Syncers;
use crate::request::tickets::Tickets;
use crate::request::turn::Turn;
use hekate_brick::RecoveryReport;
use hekate_cluster::{Registry, VolumeInfo};
use hekate_proto::*;
use hekate_replica::{Address, Event};
use hekate_transport::Secret;
use std::collections::{BTreeSet, HashMap};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a server is started with.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Directory of the coordinator's file and of the secret.
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
    pub(crate) registry: Registry,
    /// Where the coordinator answers; `None` if this server holds it.
    pub(crate) coordinator_address: Option<String>,
    pub(crate) secret: Option<Secret>,
    /// The cluster's id: 32 hex digits.
    pub(crate) cluster: String,
    pub(crate) bricks: OwnBricks,
    /// Bricks of this server that are not open.
    pub(crate) absent: BTreeSet<BrickId>,
    /// What recovery found when each brick was opened.
    pub(crate) recoveries: HashMap<BrickId, RecoveryReport>,
    pub(crate) rings: Rings,
    pub(crate) volumes: Volumes,
    pub(crate) lease: Lease,
    pub(crate) views: Views,
    pub(crate) links: Links,
    pub(crate) sessions: Sessions,
    pub(crate) orphans: Orphans,
    pub(crate) raw_locks: RawLocks,
    pub(crate) tickets: Tickets,
    pub(crate) syncers: Syncers,
    pub(crate) housekeeping: Housekeeping,
    pub(crate) journals: Journals,
    pub(crate) scrubs: Scrubs,
    pub(crate) damages: Damages,
    pub(crate) heal_rate: healing::Rate,
    /// Since when each replica that is no member of its view lacks records.
    pub(crate) leavings: Leavings,
    pub(crate) mappings: Mappings,
    pub(crate) counters: OpCounters,
    pub(crate) at_work: AtWork,
    pub(crate) slow_ops: SlowOps,
    pub(crate) started: Instant,
    pub(crate) stop_asked: AtomicBool,
    /// This server, for work that continues on another thread.
    pub(crate) own: Weak<Node>,
}

/// How often, and how long each time, a server that ends waits for its replicas to collect what ops left behind.
const REST_ROUNDS: u32 = 20;
const REST_PAUSE: Duration = Duration::from_millis(100);

impl Node {
    /// Opens the bricks, brings the replicas into step, undoes or finishes what a crash interrupted, and begins to
    /// serve. `progress` is called with a line for the operator at each stage.
    ///
    /// # Errors
    ///
    /// `Invalid` or `Denied` if the state directory or a brick is not this server's, `Damaged` or `Io` if a brick that
    /// has replicas cannot be opened, and the first replica's failure if replicas cannot be brought into step.
    pub fn start(settings: &NodeSettings, progress: &dyn Fn(&str)) -> Result<Arc<Self>> {
        let secret = state_directory::secret(&settings.state)?;
        let (registry, coordinator_address) = state_directory::open_registry(&settings.state, secret.as_ref())?;
        registry.check_version()?;
        let cluster = registry.cluster()?;
        let Opened { bricks, recoveries, absent } =
            own_bricks::open_all(&registry, &cluster, &settings.without, progress)?;
        let syncers = Syncers::start(bricks.values())?;
        let journals = Journals::new(bricks.values())?;
        let node = Arc::new_cyclic(|own| Self {
            sessions: Sessions::new(registry.server()),
            registry,
            coordinator_address,
            secret,
            cluster,
            bricks,
            absent,
            recoveries,
            rings: Rings::default(),
            volumes: Volumes::default(),
            lease: Lease::default(),
            views: Views::default(),
            links: Links::default(),
            orphans: Orphans::default(),
            raw_locks: RawLocks::default(),
            tickets: Tickets::default(),
            syncers,
            housekeeping: Housekeeping::default(),
            journals,
            scrubs: Scrubs::default(),
            damages: Damages::default(),
            heal_rate: healing::Rate::default(),
            leavings: Leavings::default(),
            mappings: Mappings::default(),
            counters: OpCounters::default(),
            at_work: AtWork::default(),
            slow_ops: SlowOps::default(),
            started: Instant::now(),
            stop_asked: AtomicBool::new(false),
            own: own.clone(),
        });
        node.load(progress)?;
        node.housekeeping.start(&node)?;
        Ok(node)
    }

    /// Delivers a tick, on which replicas try again what they have put off.
    pub(crate) fn tick(&self, ring: &Arc<HostedRing>) {
        self.tell_all(ring, || Event::Tick);
    }

    /// Delivers an event to all replicas of a ring here.
    pub(crate) fn tell_all(&self, ring: &Arc<HostedRing>, event: impl Fn() -> Event) {
        self.tell(ring, ring.replicas().map(|(address, _)| *address).collect(), event);
    }

    /// Delivers an event to these replicas, and carries out what follows.
    pub(crate) fn tell(&self, ring: &Arc<HostedRing>, addresses: Vec<Address>, event: impl Fn() -> Event) {
        let mut turn = Turn::new(self, ring);
        addresses.into_iter().for_each(|address| turn.deliver(address, event()));
        turn.run();
    }

    pub(crate) fn ring(&self, ring: RingId) -> Result<Arc<HostedRing>> {
        self.rings.get(ring)
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> Result<Arc<VolumeInfo>> {
        self.volumes.get(volume)
    }

    /// Has the sessions that processes of this machine open from now on end as soon as their process has ended, also if
    /// it ends while no server runs. `socket` is the path of the server's socket; the lock files are beside it.
    pub fn lock_sessions_beside(&self, socket: &Path) {
        if let Err(error) = self.sessions.lock_beside(socket) {
            log::warn!("sessions of killed mounts expire only after 60 s of silence: {error}");
        }
    }

    /// Records with the coordinator where this server add_listener.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn announce(&self, endpoints: &[String]) -> Result<()> {
        self.registry.announce(endpoints)
    }

    pub(crate) fn clock() -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }

    /// Ends a session, releases its locks and deletes its slots in the partitions that are led here.
    ///
    /// # Errors
    ///
    /// `SessionEnded` if it has ended; those of the coordinator and of the partitions.
    pub(crate) fn end_session(&self, id: SessionId) -> Result<()> {
        let volume = self.sessions.get(id)?.volume;
        self.sessions.end(&self.registry, id)?;
        let ring = self.ring(self.volume(volume)?.ring)?;
        forget_session(self, &ring, id)
    }

    /// Sets the duration from which on an op is kept and logged as slow; zero: no op is slow.
    pub fn set_slow_limit(&self, limit: Duration) {
        self.slow_ops.set_limit(limit);
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

    /// True if the control interface was asked to stop the server.
    pub fn stop_asked(&self) -> bool {
        self.stop_asked.load(Ordering::Relaxed)
    }

    /// Gives up the lease, ends the housekeeping and writes everything home, so that the next start is short.
    ///
    /// # Errors
    ///
    /// Those of a checkpoint; the next start recovers from the journals.
    pub fn shut_down(&self) -> Result<()> {
        self.leave();
        self.stop_housekeeping();
        // Collects what ops left behind, so that nothing changes at the next start. Other servers collect it if they
        // are there.
        for _ in 0..REST_ROUNDS {
            if self.work_left() == 0 || !self.is_alone() {
                break;
            }
            std::thread::sleep(REST_PAUSE);
            self.rings.all().iter().for_each(|ring| self.tick(ring));
            self.checkpoint_if_wanted()?;
        }
        self.checkpoint_all()
    }

    /// Ends the housekeeping's threads, and returns when they have ended.
    pub fn stop_housekeeping(&self) {
        self.housekeeping.stop();
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
        self.housekeeping.wake_checkpoints();
    }

    /// Has the housekeeping look at the views at once.
    pub(crate) fn wake_views(&self) {
        self.housekeeping.wake_views();
    }
}
