//! Threads for libraries that block.

use hekate_proto::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

type Job = Box<dyn FnOnce() + Send>;

/// A number of threads that run jobs in the order in which they came.
pub struct Pool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    is_over: bool,
}

impl Pool {
    /// # Errors
    /// `Io` if a thread cannot be started.
    pub fn new(name: &str, threads: usize) -> Result<Self> {
        let pool = Self(Arc::default());
        for _ in 0..threads {
            let shared = pool.0.clone();
            let thread = std::thread::Builder::new().name(format!("hekate-{name}"));
            thread.spawn(move || shared.work()).map_err(|error| Error::io("start a thread", error))?;
        }
        Ok(pool)
    }

    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.0.jobs.lock().waiting.push_back(Box::new(job));
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn work(&self) {
        let mut jobs = self.jobs.lock();
        loop {
            match jobs.waiting.pop_front() {
                Some(job) => {
                    drop(jobs);
                    job();
                    jobs = self.jobs.lock();
                }
                None if jobs.is_over => return,
                None => self.changed.wait(&mut jobs),
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.jobs.lock().is_over = true;
        self.0.changed.notify_all();
    }
}
