//! Threads that execute reads of all connections side by side.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Job = Box<dyn FnOnce() + Send>;

/// A fixed number of threads.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<(VecDeque<Job>, bool)>,
    changed: Condvar,
}

impl Pool {
    /// # Errors
    /// If no thread can be started.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        for number in 0..threads {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("nbd-read-{number}")).spawn(move || shared.work())?;
        }
        Ok(Self(shared))
    }

    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.0.queue.lock().0.push_back(Box::new(job));
        self.0.changed.notify_one();
    }

    /// Ends the threads once they have nothing to do.
    pub fn stop(&self) {
        self.0.queue.lock().1 = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            while queue.0.is_empty() && !queue.1 {
                self.changed.wait(&mut queue);
            }
            let Some(job) = queue.0.pop_front() else { return };
            drop(queue);
            // A job that panics has said so on the log: the thread goes on.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }
}
