//! Threads that block for asynchronous tasks. Their number is bounded; further work waits.

use std::sync::Arc;
use tokio::sync::Semaphore;

/// A bounded pool of blocking threads. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Pool(Arc<Semaphore>);

/// The work panicked, or the runtime is being stopped.
#[derive(Debug)]
pub(crate) struct Lost;

impl Pool {
    pub(crate) fn new(threads: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads)))
    }

    /// Runs `work` on a thread of the pool, as soon as one is free. Work that has begun ends also if the caller is
    /// dropped.
    ///
    /// # Errors
    /// `Lost` if `work` panicked.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Lost> {
        let permit = self.0.clone().acquire_owned().await.map_err(|_| Lost)?;
        let task = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(permit);
            result
        });
        task.await.map_err(|_| Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[tokio::test]
    async fn no_more_work_than_threads_runs_at_once() {
        let (pool, running, most) = (Pool::new(3), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let (pool, running, most) = (pool.clone(), running.clone(), most.clone());
                tokio::spawn(async move {
                    let work = move || {
                        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(2));
                        running.fetch_sub(1, Ordering::SeqCst);
                    };
                    pool.run(work).await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    #[allow(clippy::panic, reason = "the work that fails")]
    async fn work_that_panics_gives_its_thread_back() {
        let pool = Pool::new(1);
        assert!(pool.run(|| panic!("a bug")).await.is_err());
        assert_eq!(pool.run(|| 7).await.unwrap(), 7);
    }
}
