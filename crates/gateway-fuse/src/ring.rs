//! FUSE over io_uring (Linux 6.14): requests come through memory that the kernel and the mount share, and one system
//! call sends a reply and waits for the next request (linux/Documentation/filesystems/fuse-io-uring.rst).
//!
//! The kernel has a queue for each possible CPU, and a request joins the queue of the CPU that its caller runs on. An
//! entry of a queue carries one request at a time. Each entry has a thread, which is bound to the queue's CPU: caller
//! and thread then take turns on one CPU, and no other one has to be woken. For a long request the thread may run on any
//! CPU: the data takes longer than to wake one, and requests of one caller may be in flight at once. FORGET and INTERRUPT
//! still come over /dev/fuse, and notifications are sent there.
//!
//! Invariants: a queue always has an entry for the next request, or a thread is being started for one, unless as many
//! requests of the queue are in execution as may be at once; a lock that waits keeps its entry, but does not count.
//! An entry is never given up while the connection lasts, since the kernel may be passing a request to it.

mod entry;
mod late;
mod permits;
mod queue;

pub(crate) use entry::{Entry, Fetched};
pub(crate) use late::LateReplies;
pub(crate) use permits::Permits;
pub(crate) use queue::{Nudge, Queue};

use crate::device::Device;
use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bit of the numbers that [`Rings::new_unique`] returns. The kernel counts its own requests from 0.
const OWN_UNIQUE: u64 = 1 << 63;

/// Limit of queues. A machine with more possible CPUs uses /dev/fuse: a thread for each would cost more than it saves.
const QUEUES_MAX: usize = 256;

/// The rings of a mount.
pub(crate) struct Rings {
    /// Entries that the kernel will get, one for each queue: made before the reply to INIT.
    prepared: Mutex<Vec<Entry>>,
    /// CPUs that the process may use.
    cpus: CpuSet,
    /// Requests in execution.
    pub(crate) permits: Permits,
    pub(crate) late: Arc<LateReplies>,
    /// Longest payload, in bytes.
    pub(crate) payload_bytes: usize,
    threads: Mutex<usize>,
    ended: Condvar,
    uniques: AtomicU64,
}

impl Rings {
    /// At most `busy_max` requests are executed at once.
    pub(crate) fn new(busy_max: usize, payload_bytes: usize) -> Self {
        Self {
            prepared: Mutex::default(),
            cpus: sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new()),
            permits: Permits::new(busy_max),
            late: Arc::default(),
            payload_bytes,
            threads: Mutex::new(0),
            ended: Condvar::new(),
            uniques: AtomicU64::new(0),
        }
    }

    /// Makes an entry for each queue.
    ///
    /// # Errors
    /// In words: why requests cannot come over io_uring.
    pub(crate) fn prepare(&self, device: &Arc<Device>) -> Result<(), String> {
        let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").map_err(|error| error.to_string())?;
        let queues = queue_count(&text)?;
        let entry = |queue| Entry::new(device.clone(), queue, self.payload_bytes);
        let entries = (0..queues).map(entry).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        *self.prepared.lock() = entries;
        Ok(())
    }

    /// The prepared entries, in the order of the queues. None if requests come over /dev/fuse.
    pub(crate) fn take_prepared(&self) -> Vec<Entry> {
        std::mem::take(&mut self.prepared.lock())
    }

    /// Lets this thread run on all CPUs that the process may use.
    pub(crate) fn unbind(&self) {
        let _ = sched_setaffinity(None, &self.cpus);
    }

    /// Binds this thread to the CPU of a queue, if the process may use it.
    pub(crate) fn bind(&self, queue: u16) {
        let cpu = usize::from(queue);
        if cpu < CpuSet::MAX_CPU && self.cpus.is_set(cpu) {
            let mut only = CpuSet::new();
            only.set(cpu);
            // Fails if the CPU is offline. The thread then runs where it may, which is slower and no error.
            let _ = sched_setaffinity(None, &only);
        }
    }

    /// A number for a request that the kernel is made to send.
    pub(crate) fn new_unique(&self) -> u64 {
        // Even: an odd number is that of an INTERRUPT.
        OWN_UNIQUE | self.uniques.fetch_add(2, Ordering::Relaxed)
    }

    pub(crate) fn thread_count(&self) -> usize {
        *self.threads.lock()
    }

    /// Counts a thread that is about to start.
    pub(crate) fn join(&self) {
        *self.threads.lock() += 1;
    }

    /// A counted thread has ended, or could not be started.
    pub(crate) fn leave(&self) {
        *self.threads.lock() -= 1;
        self.ended.notify_all();
    }

    /// Waits until all threads have ended.
    pub(crate) fn wait(&self) {
        let mut threads = self.threads.lock();
        while *threads > 0 {
            self.ended.wait(&mut threads);
        }
    }
}

/// Number of queues, by the list of possible CPUs (`0-7`).
fn queue_count(possible: &str) -> Result<u16, String> {
    let text = possible.trim();
    let last = match text.strip_prefix("0-") {
        Some(last) => last.parse::<usize>().map_err(|_| format!("the possible CPUs are {text:?}"))?,
        None if text == "0" => 0,
        None => return Err(format!("the possible CPUs are {text:?}")),
    };
    match last < QUEUES_MAX {
        true => Ok(last as u16 + 1),
        false => Err(format!("{text} are more than {QUEUES_MAX} possible CPUs")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_cpus_are_queues_if_they_are_few_and_without_gaps() {
        assert_eq!(queue_count("0-1\n"), Ok(2));
        assert_eq!(queue_count("0\n"), Ok(1));
        assert_eq!(queue_count("0-255"), Ok(256));
        for wrong in ["0-256", "1-3", "0-3,8-11", "", "0-", "x"] {
            assert!(queue_count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn own_numbers_are_even_and_not_the_kernels() {
        let rings = Rings::new(4, 4096);
        let (one, two) = (rings.new_unique(), rings.new_unique());
        assert_ne!(one, two);
        assert!([one, two].iter().all(|unique| unique % 2 == 0 && unique & OWN_UNIQUE != 0));
    }
}
