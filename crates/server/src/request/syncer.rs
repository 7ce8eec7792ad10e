//! Syncs of several bricks in parallel: the asking thread syncs one brick itself, the threads of the others sync the
//! rest.
//!
//! A brick's thread serves all requests that arrived during its last sync with the next one
//! (`docs/adr/0003-runtime.md`).

use hekate_brick::{Brick, Lsn};
use hekate_proto::{BrickId, Error, Result, ShardId};
use hekate_threads::{Condvar, JoinHandle, Mutex, spawn_joined};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What has to be on stable storage of one brick.
#[derive(Default)]
pub struct Need {
    /// The journal up to here.
    pub upto: Lsn,
    /// Shards whose data files are synced.
    pub shards: Vec<ShardId>,
}

/// What has to be on stable storage, by brick.
#[derive(Default)]
pub struct Needs(BTreeMap<BrickId, NeedOf>);

struct NeedOf {
    brick: Arc<Brick>,
    need: Need,
}

impl Needs {
    /// Adds a brick's journal up to a position.
    pub fn journal(&mut self, brick: &Arc<Brick>, upto: Lsn) {
        let need = self.of(brick);
        need.upto = need.upto.max(upto);
    }

    /// Adds data files of a brick's shards.
    pub fn shards(&mut self, brick: &Arc<Brick>, shards: &[ShardId]) {
        self.of(brick).shards.extend_from_slice(shards);
    }

    fn of(&mut self, brick: &Arc<Brick>) -> &mut Need {
        let new = || NeedOf { brick: brick.clone(), need: Need::default() };
        &mut self.0.entry(brick.id()).or_insert_with(new).need
    }
}

fn sync(brick: &Brick, need: &Need) -> Result<()> {
    hekate_threads::use_disk();
    let upto = if need.shards.is_empty() { need.upto } else { need.upto.max(brick.sync_shards(&need.shards)?) };
    brick.sync(upto)
}

/// How long a brick's thread waits when it can serve no request yet. A checkpoint, which is tried every 500 ms, frees
/// room on a full disk.
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// A thread for each brick.
pub struct Syncers {
    queues: BTreeMap<BrickId, Arc<Queue>>,
    threads: Vec<JoinHandle>,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: Vec<Job>,
    /// The server ends: the thread serves the requests that wait, and returns.
    ended: bool,
}

/// A request for a sync.
struct Job {
    need: Need,
    then: Then,
}

/// Called with the outcome of a sync, on the brick's thread.
pub type Then = Box<dyn FnOnce(Result<()>) + Send>;
/// The outcome of each brick's sync.
pub type Outcomes = BTreeMap<BrickId, Result<()>>;

/// Collects the outcomes of bricks that sync on other threads.
struct Latch {
    state: Mutex<LatchState>,
    done: Condvar,
}

struct LatchState {
    /// Bricks without an outcome.
    left: usize,
    outcomes: Outcomes,
}

impl Latch {
    fn new(bricks: usize) -> Self {
        Self { state: Mutex::new(LatchState { left: bricks, outcomes: Outcomes::new() }), done: Condvar::new() }
    }

    fn count_down(&self, brick: BrickId, outcome: Result<()>) {
        let mut state = self.state.lock();
        assert!(state.left > 0, "a brick has one outcome for each sync");
        state.left -= 1;
        state.outcomes.insert(brick, outcome);
        if state.left == 0 {
            self.done.notify_one();
        }
    }

    fn wait(&self) -> Outcomes {
        let mut state = self.state.lock();
        while state.left > 0 {
            self.done.wait(&mut state);
        }
        std::mem::take(&mut state.outcomes)
    }
}

impl Syncers {
    /// Starts a thread for each brick.
    ///
    /// # Errors
    ///
    /// `Io` if the machine does not give a thread.
    pub fn start<'a>(bricks: impl Iterator<Item = &'a Arc<Brick>>) -> Result<Self> {
        let (mut queues, mut threads) = (BTreeMap::new(), Vec::new());
        for brick in bricks {
            let queue = Arc::new(Queue::default());
            let (serving, brick_served) = (queue.clone(), brick.clone());
            let thread = spawn_joined("hekate-sync", move || serving.serve(&brick_served))
                .map_err(|e| Error::io("start a thread", e))?;
            threads.push(thread);
            queues.insert(brick.id(), queue);
        }
        Ok(Self { queues, threads })
    }

    /// Syncs what each brick needs, and returns the outcome of each brick once all syncs have ended.
    pub fn sync(&self, needs: Needs) -> Outcomes {
        let mut needs: Vec<NeedOf> = needs.0.into_values().collect();
        let Some(own) = needs.pop() else { return Outcomes::new() };
        let latch = Arc::new(Latch::new(needs.len()));
        for NeedOf { brick, need } in needs {
            let (latch, id) = (latch.clone(), brick.id());
            self.later(&brick, need, Box::new(move |outcome| latch.count_down(id, outcome)));
        }
        let own_outcome = sync(&own.brick, &own.need);
        let mut outcomes = latch.wait();
        outcomes.insert(own.brick.id(), own_outcome);
        outcomes
    }

    /// Leaves a sync to the brick's thread, which calls `then` with the outcome.
    pub fn later(&self, brick: &Brick, need: Need, then: Then) {
        match self.queues.get(&brick.id()) {
            Some(queue) => queue.push(Job { need, then }),
            None => then(sync(brick, &need)),
        }
    }
}

impl Drop for Syncers {
    fn drop(&mut self) {
        for queue in self.queues.values() {
            queue.jobs.lock().ended = true;
            queue.arrived.notify_one();
        }
        // A thread holds its brick open until it ends.
        self.threads.drain(..).for_each(JoinHandle::join);
    }
}

impl Queue {
    fn push(&self, job: Job) {
        let mut jobs = self.jobs.lock();
        jobs.waiting.push(job);
        if jobs.waiting.len() == 1 {
            self.arrived.notify_one();
        }
    }

    /// Queues the jobs again that cannot be synced yet. If the server is stopping, they end with `Unavailable`.
    fn put_back(&self, later: Vec<Job>, brick: &Brick) {
        let mut jobs = self.jobs.lock();
        if !jobs.ended {
            return jobs.waiting.extend(later);
        }
        drop(jobs);
        let what = format!(
            "brick {} has no room for the checkpoint that must follow a power cut; make room on its disk",
            brick.id().text()
        );
        later.into_iter().for_each(|job| (job.then)(Err(Error::Unavailable { what: what.clone() })));
    }

    fn serve(&self, brick: &Brick) {
        while let Some(batch) = self.next() {
            // After a power cut on a full disk data files are not synced before there is room; journals are.
            let (batch, later): (Vec<Job>, Vec<Job>) =
                batch.into_iter().partition(|job| brick.may_sync(&job.need.shards).unwrap_or(true));
            let waits = batch.is_empty();
            self.put_back(later, brick);
            if waits {
                hekate_threads::sleep(ROOM_PAUSE);
                continue;
            }
            let mut all = Need::default();
            for Job { need, .. } in &batch {
                all.upto = all.upto.max(need.upto);
                all.shards.extend_from_slice(&need.shards);
            }
            let outcome = sync(brick, &all);
            batch.into_iter().for_each(|job| (job.then)(outcome.clone()));
        }
    }

    /// Waits for requests, and takes all of them; `None` when the server ends and none is left.
    fn next(&self) -> Option<Vec<Job>> {
        let mut jobs = self.jobs.lock();
        while jobs.waiting.is_empty() {
            if jobs.ended {
                return None;
            }
            self.arrived.wait(&mut jobs);
        }
        Some(std::mem::take(&mut jobs.waiting))
    }
}
