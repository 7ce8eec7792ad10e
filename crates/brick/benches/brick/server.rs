//! What a server does beside its requests, as far as a brick notices it.

use hekate_brick::Brick;
use hekate_proto::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a server looks whether a checkpoint is due (`server::housekeeping`).
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(25);

/// The thread that a server has for checkpoints.
pub struct Checkpoints {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl Checkpoints {
    /// Starts it.
    pub fn start(brick: &Arc<Brick>) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let (brick, stop) = (brick.clone(), stopping.clone());
        let thread = std::thread::spawn(move || {
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(CHECKPOINT_PAUSE);
                if brick.wants_checkpoint() {
                    brick.checkpoint()?;
                    done += 1;
                }
            }
            Ok(done)
        });
        Self { stopping, thread }
    }

    /// -> how many it made.
    pub fn stop(self) -> Result<u64> {
        self.stopping.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_else(|_| Err(Error::bug("the checkpoint thread panicked")))
    }
}
