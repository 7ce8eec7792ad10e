//! Threads, locks, time and random numbers for code that the simulator runs as it is.
//!
//! On a thread of the operating system these are those of `std`, `parking_lot` and `getrandom`. On a thread of the
//! simulator the calls go to its [`Scheduler`]: a simulated thread runs until it blocks (on a lock, a condition
//! variable, a sleep, or a wait of the simulator's own), so one seed gives one order of all threads.
//!
//! Code that runs in the simulator reads no other clock, starts no other thread, has no other random source, and
//! iterates over no hash map of another kind (`cargo xtask tidy` checks).

mod condvar;
mod hash;
mod lock;
mod scheduler;
mod thread;
mod time;

pub use condvar::Condvar;
pub use hash::{HashMap, HashSet, Hashing};
pub use lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use scheduler::{Scheduler, random, run_simulated, spawn, use_disk};
pub use thread::{Alarm, JoinHandle, Sleeper, spawn_joined};
pub use time::{boot_time, elapsed, now, sleep, time_of_day};
