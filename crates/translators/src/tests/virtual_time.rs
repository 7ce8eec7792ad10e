//! A clock for tests on one thread: a pause advances it and takes no time.

use hekate_threads::{Scheduler, run_simulated};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Virtual time after which a test fails: the code waits without an end.
const TEST_LIMIT: Duration = Duration::from_secs(3600);

/// Runs a test whose pauses take no time.
///
/// # Panics
/// If the code waits for another thread, or starts one: there is none. If it waits longer than the limit.
pub fn in_virtual_time<T>(test: impl FnOnce() -> T) -> T {
    let clock = VirtualTime { begun: hekate_threads::now(), passed: AtomicU64::new(0), random: AtomicU64::new(1) };
    run_simulated(Box::leak(Box::new(clock)), test)
}

struct VirtualTime {
    begun: Instant,
    /// In ns.
    passed: AtomicU64,
    random: AtomicU64,
}

impl Scheduler for VirtualTime {
    fn now(&self) -> Instant {
        self.begun + Duration::from_nanos(self.passed.load(Ordering::Relaxed))
    }

    fn boot_time(&self) -> Duration {
        Duration::from_nanos(self.passed.load(Ordering::Relaxed))
    }

    fn time_of_day(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn sleep(&self, time: Duration) {
        let passed = self.passed.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        assert!(passed < TEST_LIMIT.as_nanos() as u64, "the code waits without an end");
    }

    fn wait(&self, _: usize, limit: Option<Duration>) -> bool {
        self.sleep(limit.expect("the code waits for a thread that does not exist"));
        false
    }

    fn notify(&self, _: usize, _: bool) {}

    fn use_disk(&self) {}

    fn before_lock(&self) {}

    fn contended(&self) {
        panic!("the code waits for a lock that it holds");
    }

    fn spawn(&self, name: &str, _: Box<dyn FnOnce() + Send>) {
        panic!("the test runs on one thread, and the code starts {name}");
    }

    fn random(&self) -> u64 {
        self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    fn is_ending(&self) -> bool {
        false
    }
}
