//! Syncing several bricks at once: the asking thread syncs one itself, a thread of each other brick the rest.
//!
//! A brick's thread takes everything that was asked of it meanwhile as one sync (`docs/adr/0003-runtime.md`).

use hekate_brick::{Brick, Lsn};
use hekate_proto::{BrickId, Error, Result, ShardId};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// What must be on stable storage of one brick.
#[derive(Default)]
pub struct Need {
    /// The journal up to here.
    pub upto: Lsn,
    /// Data files of these shards.
    pub shards: Vec<ShardId>,
}

/// What must be on stable storage before a batch is answered.
#[derive(Default)]
pub struct Needs(BTreeMap<BrickId, (Option<Arc<Brick>>, Need)>);

impl Needs {
    /// Everything up to a position of a brick's journal.
    pub fn journal(&mut self, brick: &Arc<Brick>, upto: Lsn) {
        let (slot, need) = self.0.entry(brick.id()).or_default();
        slot.get_or_insert_with(|| brick.clone());
        need.upto = need.upto.max(upto);
    }

    /// Data files of shards as well.
    pub fn shards(&mut self, brick: &Arc<Brick>, shards: &[ShardId]) {
        let (slot, need) = self.0.entry(brick.id()).or_default();
        slot.get_or_insert_with(|| brick.clone());
        need.shards.extend_from_slice(shards);
    }
}

fn sync(brick: &Brick, need: &Need) -> Result<()> {
    let upto = if need.shards.is_empty() { need.upto } else { need.upto.max(brick.sync_shards(&need.shards)?) };
    brick.sync(upto)
}

/// How long a brick's thread waits when no need can be served yet.
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// A thread for each brick.
pub struct Syncers {
    queues: BTreeMap<BrickId, Arc<Queue>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: Vec<(Need, Then)>,
    ended: bool,
}

/// What follows a sync.
pub type Then = Box<dyn FnOnce(Result<()>) + Send>;
/// What came of syncs, by brick.
pub type Outcomes = BTreeMap<BrickId, Result<()>>;

/// Counts down as bricks answer.
struct Latch {
    state: Mutex<(usize, Outcomes)>,
    done: Condvar,
}

impl Latch {
    fn count_down(&self, brick: BrickId, outcome: Result<()>) {
        let mut state = self.state.lock();
        state.0 -= 1;
        state.1.insert(brick, outcome);
        if state.0 == 0 {
            self.done.notify_one();
        }
    }

    fn wait(&self) -> Outcomes {
        let mut state = self.state.lock();
        while state.0 > 0 {
            self.done.wait(&mut state);
        }
        std::mem::take(&mut state.1)
    }
}

impl Syncers {
    /// Starts the threads.
    pub fn start<'a>(bricks: impl Iterator<Item = &'a Arc<Brick>>) -> Result<Self> {
        let (mut queues, mut threads) = (BTreeMap::new(), Vec::new());
        for brick in bricks {
            let queue = Arc::new(Queue::default());
            let (serving, brick_served) = (queue.clone(), brick.clone());
            let thread = std::thread::Builder::new()
                .name("hekate-sync".into())
                .spawn(move || serving.serve(&brick_served))
                .map_err(|e| Error::io("start a thread", e))?;
            threads.push(thread);
            queues.insert(brick.id(), queue);
        }
        Ok(Self { queues, threads })
    }

    /// Returns once everything needed is on stable storage, or could not be put there: by brick.
    pub fn sync(&self, needs: Needs) -> Outcomes {
        let mut needs: Vec<(Arc<Brick>, Need)> =
            needs.0.into_values().filter_map(|(brick, need)| Some((brick?, need))).collect();
        let Some((own_brick, own)) = needs.pop() else { return Outcomes::new() };
        let latch = Arc::new(Latch { state: Mutex::new((needs.len(), Outcomes::new())), done: Condvar::new() });
        for (brick, need) in needs {
            let (latch, id) = (latch.clone(), brick.id());
            self.later(&brick, need, Box::new(move |outcome| latch.count_down(id, outcome)));
        }
        let own_outcome = sync(&own_brick, &own);
        let mut outcomes = latch.wait();
        outcomes.insert(own_brick.id(), own_outcome);
        outcomes
    }

    /// Leaves it to the brick's thread, which says what came of it.
    pub fn later(&self, brick: &Brick, need: Need, then: Then) {
        match self.queues.get(&brick.id()) {
            Some(queue) => queue.push(need, then),
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
        // Their bricks are let go when this returns.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Queue {
    fn push(&self, need: Need, then: Then) {
        let mut jobs = self.jobs.lock();
        jobs.waiting.push((need, then));
        if jobs.waiting.len() == 1 {
            self.arrived.notify_one();
        }
    }

    /// Needs that cannot be served yet; at the end, never.
    fn put_back(&self, needs: Vec<(Need, Then)>, brick: &Brick) {
        let mut jobs = self.jobs.lock();
        if !jobs.ended {
            return jobs.waiting.extend(needs);
        }
        drop(jobs);
        let what = format!("brick {} waits for room to write home what a power cut left", brick.id().text());
        needs.into_iter().for_each(|(_, then)| then(Err(Error::Unavailable { what: what.clone() })));
    }

    fn serve(&self, brick: &Brick) {
        loop {
            let batch = {
                let mut jobs = self.jobs.lock();
                while jobs.waiting.is_empty() {
                    if jobs.ended {
                        return;
                    }
                    self.arrived.wait(&mut jobs);
                }
                std::mem::take(&mut jobs.waiting)
            };
            // After a power cut on a full disk data files are not synced before there is room; journals are.
            let (batch, later): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|(need, _)| brick.may_sync(&need.shards).unwrap_or(true));
            let waits = batch.is_empty();
            self.put_back(later, brick);
            if waits {
                std::thread::sleep(ROOM_PAUSE);
                continue;
            }
            let mut all = Need::default();
            for (need, _) in &batch {
                all.upto = all.upto.max(need.upto);
                all.shards.extend_from_slice(&need.shards);
            }
            let outcome = sync(brick, &all);
            batch.into_iter().for_each(|(_, then)| then(outcome.clone()));
        }
    }
}
