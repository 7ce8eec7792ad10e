//! The threads that work beside requests: checkpoints, ticks, the lease, expired sessions, orphans and deleted volumes.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::hosting::start;
use crate::hosting::watch::{self, Watch};
use crate::maintenance::scrub;
use crate::request::orphans::Orphan;
use crate::request::turn::Turn;
use hekate_proto::*;
use hekate_replica::{Commit, Event};
use hekate_threads::{Alarm, JoinHandle, Mutex, spawn_joined};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two checks whether a journal needs a checkpoint. A disk of 1 GB/s writes 25 MB in this time.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(25);
/// Pause between two writes of a checkpoint that is ahead of the journal, and the most pauses of a checkpoint: 1 s in
/// all.
const WRITE_PAUSE: Duration = Duration::from_millis(2);
const WRITE_PAUSES_MAX: u32 = 500;
/// Time between two reads of the records, besides those after a change that `hosting/watch.rs` has seen.
const RECORDS_PAUSE: Duration = Duration::from_secs(5);
/// Longest time until the lease is renewed again after that has failed.
const VIEWS_RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Time until the records are read again after that has failed.
const RECORDS_RETRY_PAUSE: Duration = Duration::from_secs(1);
const CHORES_PAUSE: Duration = Duration::from_millis(250);
/// Time between two checks whether a leader waits for the sessions, besides those after a change of views.
const SESSIONS_PAUSE: Duration = Duration::from_millis(250);
/// Time until the sessions are read again after that has failed.
const SESSIONS_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time between two checkpoints that only free the space of deleted files.
const SPACE_PAUSE: Duration = Duration::from_secs(3);
/// Time between two attempts of a checkpoint that found no room.
const STALLED_PAUSE: Duration = Duration::from_millis(500);
/// Time between two ticks of leaders whose ops wait for another op or for a member.
const TICK_PAUSE: Duration = Duration::from_millis(10);
/// Orphans that one round collects.
const COLLECT_AT_ONCE: usize = 1024;
/// Most rounds of collecting garbage before a checkpoint that frees the space of deleted files.
const COLLECT_ROUNDS: u32 = 200;

/// The threads of the housekeeping, from the end of the server's start until it stops.
#[derive(Default)]
pub struct Housekeeping(Mutex<Option<Threads>>);

impl Housekeeping {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// `Io` if the machine does not give a thread.
    pub fn start(&self, node: &Arc<Node>) -> Result<()> {
        let threads = Threads::start(node)?;
        let earlier = self.0.lock().replace(threads);
        assert!(earlier.is_none(), "a server starts its housekeeping once");
        Ok(())
    }

    /// Wakes the thread of the checkpoints.
    pub fn wake_checkpoints(&self) {
        if let Some(threads) = &*self.0.lock() {
            threads.checkpoints.ring();
        }
    }

    /// Wakes the thread of the lease and the views.
    pub fn wake_views(&self) {
        if let Some(threads) = &*self.0.lock() {
            threads.views.ring();
        }
    }

    /// Wakes the thread that reads the records.
    pub fn wake_records(&self) {
        if let Some(threads) = &*self.0.lock() {
            threads.records.ring();
        }
    }

    /// Wakes the thread that reads the sessions for new leaders.
    pub fn wake_sessions(&self) {
        if let Some(threads) = &*self.0.lock() {
            threads.sessions.ring();
        }
    }

    /// Ends the threads, and returns when they have ended. `end_watches` ends waits for the coordinator.
    pub fn stop(&self, end_watches: impl FnOnce()) {
        // The lock is released first: a thread may call `wake_checkpoints` before it ends.
        let threads = self.0.lock().take();
        if let Some(threads) = threads {
            threads.stop(end_watches);
        }
    }
}

struct Threads {
    stopping: Arc<AtomicBool>,
    checkpoints: Arc<Alarm>,
    views: Arc<Alarm>,
    records: Arc<Alarm>,
    sessions: Arc<Alarm>,
    all: Vec<Keeper>,
}

impl Threads {
    fn start(node: &Arc<Node>) -> Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let checkpoints = spawn(node, &stopping, CHECKPOINT_PAUSE, |node| {
            node.look_after_journals();
            if node.bricks.want_checkpoint() {
                let mut pauses = 0;
                node.checkpoint_all_paced(&mut || {
                    hekate_threads::sleep(WRITE_PAUSE);
                    pauses += 1;
                    pauses < WRITE_PAUSES_MAX
                })?;
            }
            Ok(())
        })?;
        let chores = spawn(node, &stopping, CHORES_PAUSE, chores)?;
        let space = spawn(node, &stopping, SPACE_PAUSE, |node| {
            if node.bricks.could_free_space() {
                node.checkpoint_all()?;
            }
            Ok(())
        })?;
        let stalled = spawn(node, &stopping, STALLED_PAUSE, Node::checkpoint_stalled)?;
        let ticks = spawn(node, &stopping, TICK_PAUSE, tick_waiting_leaders)?;
        let scrub = spawn(node, &stopping, scrub::ROUND_PAUSE, scrub::round)?;
        let comparison = spawn(node, &stopping, start::COMPARISON_LINE_PAUSE, |node| {
            node.log_comparison();
            Ok(())
        })?;
        let records_pause = |_: &Node, failed| if failed { RECORDS_RETRY_PAUSE } else { RECORDS_PAUSE };
        let records = spawn_paced(node, &stopping, records_pause, Node::read_records)?;
        let views_pause =
            |node: &Node, failed| if failed { node.views_pause().min(VIEWS_RETRY_PAUSE) } else { node.views_pause() };
        let views = spawn_paced(node, &stopping, views_pause, Node::keep_views)?;
        // A thread of its own: a slow coordinator must not hold up the lease, nor the other chores.
        let sessions_pause = |_: &Node, failed| if failed { SESSIONS_RETRY_PAUSE } else { SESSIONS_PAUSE };
        let sessions = spawn_paced(node, &stopping, sessions_pause, Node::send_sessions)?;
        let mut watch = Watch::default();
        let watch_pause = |_: &Node, failed| if failed { watch::RETRY_PAUSE } else { watch::PAUSE };
        let watch = spawn_paced(node, &stopping, watch_pause, move |node| watch.wait(node))?;
        let alarm = |keeper: &Keeper| keeper.alarm.clone();
        Ok(Self {
            stopping,
            checkpoints: alarm(&checkpoints),
            views: alarm(&views),
            records: alarm(&records),
            sessions: alarm(&sessions),
            all: vec![checkpoints, chores, space, stalled, ticks, scrub, comparison, records, views, sessions, watch],
        })
    }

    fn stop(self, end_watches: impl FnOnce()) {
        self.stopping.store(true, Ordering::Relaxed);
        end_watches();
        for keeper in self.all {
            keeper.alarm.ring();
            keeper.thread.join();
        }
    }
}

/// A thread that runs a task periodically, and the alarm that wakes it early.
struct Keeper {
    alarm: Arc<Alarm>,
    thread: JoinHandle,
}

fn spawn(
    node: &Arc<Node>,
    stopping: &Arc<AtomicBool>,
    pause: Duration,
    act: fn(&Node) -> Result<()>,
) -> Result<Keeper> {
    spawn_paced(node, stopping, move |_, _| pause, act)
}

/// Like `spawn`, with a pause that is asked for before each round; the argument is true after a round that failed.
fn spawn_paced(
    node: &Arc<Node>,
    stopping: &Arc<AtomicBool>,
    pause: impl Fn(&Node, bool) -> Duration + Send + 'static,
    mut act: impl FnMut(&Node) -> Result<()> + Send + 'static,
) -> Result<Keeper> {
    let alarm = Arc::new(Alarm::default());
    let rung = alarm.clone();
    let (node, stopping): (Weak<Node>, _) = (Arc::downgrade(node), stopping.clone());
    let run = move || {
        let mut last_error = None;
        while !stopping.load(Ordering::Relaxed) {
            let Some(wait) = node.upgrade().map(|node| pause(&node, last_error.is_some())) else { return };
            rung.sleep(wait);
            let Some(node) = node.upgrade() else { return };
            let error = act(&node).err();
            let is_new = error != last_error && !stopping.load(Ordering::Relaxed);
            if let Some(error) = error.as_ref().filter(|_| is_new) {
                log::error!("housekeeping: {error}");
            }
            last_error = error;
        }
    };
    let thread = spawn_joined("hekate-keep", run).map_err(|e| Error::io("start a thread", e))?;
    Ok(Keeper { alarm, thread })
}

/// Frees the space of deleted files, and measures the free space of each disk.
///
/// # Errors
///
/// Those of a checkpoint, and `Io` if a disk cannot be measured.
pub fn free_space(node: &Node) -> Result<()> {
    if node.could_free_space() {
        for _ in 0..COLLECT_ROUNDS {
            tick_all(node);
            if node.rings.work_left() == 0 {
                break;
            }
            node.checkpoint_if_wanted()?;
        }
        node.checkpoint_all()?;
    } else if node.bricks.values().any(|brick| brick.could_free_promises()) {
        node.checkpoint_all()?;
    }
    node.bricks.values().try_for_each(|brick| brick.refresh_room())?;
    // Members report their room to their leaders.
    tick_all(node);
    Ok(())
}

fn tick_all(node: &Node) {
    node.rings.all().iter().for_each(|ring| node.tick(ring));
}

/// Delivers a tick to leaders with ops that wait for another op or for a member.
fn tick_waiting_leaders(node: &Node) -> Result<()> {
    let all = node.rings.all();
    node.maintenance.heal_rate.share(node.statistics.ops().answered(), &all);
    for ring in all {
        for address in ring.leaders() {
            let waits = ring.replica(address).is_some_and(|hosted| hosted.partition.read().wants_tick());
            if waits {
                let mut turn = Turn::new(node, &ring);
                turn.deliver(address, Event::Tick);
                turn.run();
            }
        }
    }
    Ok(())
}

fn chores(node: &Node) -> Result<()> {
    // An error of a disk is returned at the end, so that sessions expire in spite of it.
    let measured: Vec<Result<()>> = node.bricks.values().map(|brick| brick.refresh_room()).collect();
    for session in node.sessions.expired(|home, volume| node.ends_sessions_of(home, volume)) {
        node.end_session(session)?;
    }
    tick_all(node);
    node.settle_lives()?;
    for ring in node.rings.all() {
        node.send_doubts(&ring);
    }
    collect_orphans(node)?;
    crate::hosting::volumes::go_on_deleting(node)?;
    measured.into_iter().collect()
}

/// Collects inodes without names that no session has open.
fn collect_orphans(node: &Node) -> Result<()> {
    let is_released = |orphan: &Orphan, found| {
        node.sessions.are_read_since(found) && node.sessions.all_released(orphan.volume, orphan.inode)
    };
    for orphan in node.orphans.choose(COLLECT_AT_ONCE, is_released) {
        let Orphan { ring, volume, inode } = orphan;
        let ring = node.ring(ring)?;
        if let Ok((to, _)) = ring.leader(inode.position().partition(ring.count())) {
            let mut turn = Turn::new(node, &ring);
            turn.deliver(to, Event::Collect { volume, inode });
            turn.run();
        }
        node.orphans.remove(&orphan);
        node.sessions.forget(volume, inode);
    }
    Ok(())
}

/// Releases the locks of a session that has ended, and deletes its slots, which are the results that its retries would
/// have got, and the list of mapping rights that it had lost.
///
/// # Errors
///
/// Those of the partitions.
pub fn forget_session(node: &Node, ring: &Arc<HostedRing>, session: SessionId) -> Result<()> {
    // Releasing cannot fail, and other sessions wait for the locks.
    node.session_ended(ring, session);
    for to in ring.leaders() {
        let Some(hosted) = ring.replica(to) else { continue };
        let position = to.partition.first_position(ring.count());
        let slots = Key::session_prefix(ring.ring, position, session);
        for prefix in [slots, Key::passed_on_prefix(ring.ring, position, session)] {
            loop {
                let entries = hosted.brick.scan(&prefix, &prefix.prefix_end(), SESSION_SLOTS)?;
                if entries.is_empty() {
                    break;
                }
                let mut commit = Commit::default();
                entries.into_iter().for_each(|(key, _)| commit.delete(key));
                node.change(ring, to.partition, commit)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
