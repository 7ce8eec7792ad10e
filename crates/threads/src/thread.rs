//! Threads that can be joined, and sleeps that another thread can end.

use crate::condvar::Condvar;
use crate::lock::Mutex;
use crate::scheduler::current;
use std::sync::Arc;
use std::time::Duration;

/// A thread that can be waited for.
pub struct JoinHandle(Joined);

enum Joined {
    Machine(std::thread::JoinHandle<()>),
    Simulated(Arc<Ended>),
}

#[derive(Default)]
struct Ended {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl JoinHandle {
    /// Returns when the thread has ended, also by a panic.
    pub fn join(self) {
        match self.0 {
            Joined::Machine(thread) => drop(thread.join()),
            Joined::Simulated(thread) => {
                let mut ended = thread.ended.lock();
                // The threads of a process that is being ended do not run any more, and none runs while the caller is no
                // thread of the simulator.
                while !*ended && current().is_some_and(|scheduler| !scheduler.is_ending()) {
                    thread.changed.wait(&mut ended);
                }
            }
        }
    }
}

/// Starts a thread that can be waited for.
///
/// # Errors
///
/// The operating system gives no thread.
pub fn spawn_joined(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle> {
    let Some(scheduler) = current() else {
        return Ok(JoinHandle(Joined::Machine(std::thread::Builder::new().name(name.into()).spawn(body)?)));
    };
    let ended = Arc::new(Ended::default());
    let ends = ended.clone();
    scheduler.spawn(
        name,
        Box::new(move || {
            body();
            *ends.ended.lock() = true;
            ends.changed.notify_all();
        }),
    );
    Ok(JoinHandle(Joined::Simulated(ended)))
}

/// A sleep that another thread can end early.
#[derive(Default)]
pub struct Alarm {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Alarm {
    /// Ends the current sleep; without one, the next sleep returns at once.
    pub fn ring(&self) {
        *self.rung.lock() = true;
        self.changed.notify_all();
    }

    /// Sleeps for at most `time`, or until [`Alarm::ring`].
    pub fn sleep(&self, time: Duration) {
        let mut rung = self.rung.lock();
        if !*rung {
            self.changed.wait_for(&mut rung, time);
        }
        *rung = false;
    }
}

/// A thread that sleeps until another one wakes it: cheaper than a condition variable for each.
pub struct Sleeper(Sleeping);

enum Sleeping {
    Machine(std::thread::Thread),
    /// Its address is the key of the simulator.
    Simulated,
}

impl Sleeper {
    /// This thread, which alone may sleep.
    pub fn this_thread() -> Self {
        match current() {
            Some(_) => Self(Sleeping::Simulated),
            None => Self(Sleeping::Machine(std::thread::current())),
        }
    }

    /// Sleeps until [`Sleeper::wake`], which may have been called before. It may also return without a reason.
    pub fn sleep(&self) {
        match &self.0 {
            Sleeping::Machine(_) => std::thread::park(),
            Sleeping::Simulated => _ = current().map(|scheduler| scheduler.wait(self.key(), Some(SLEEP_MAX))),
        }
    }

    /// Ends the sleep.
    pub fn wake(&self) {
        match &self.0 {
            Sleeping::Machine(thread) => thread.unpark(),
            Sleeping::Simulated => current().into_iter().for_each(|scheduler| scheduler.notify(self.key(), true)),
        }
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// A simulated sleeper that was woken before it slept looks again after this time.
const SLEEP_MAX: Duration = Duration::from_millis(1);
