//! This server's lease: until when its leaders may answer. `views.rs` renews it with the coordinator.
//!
//! A lease counts from a moment before the server renewed it with the coordinator, on a clock that runs while the
//! machine sleeps (CLOCK_BOOTTIME), and only once the views that were read after that moment hold here (rule 14b of
//! `docs/fast-lane.md`).

use hekate_cluster::LEASE;
use hekate_cluster::views::serves_for;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// This server's lease.
#[derive(Default)]
pub struct Lease {
    /// End of the lease, in ns of CLOCK_BOOTTIME; 0: the server has none yet, or has given it up.
    until: AtomicU64,
    /// The server has given up its lease, because it stops.
    has_left: AtomicBool,
}

/// CLOCK_BOOTTIME, in ns.
pub fn boot_clock() -> u64 {
    hekate_threads::boot_time().as_nanos() as u64
}

impl Lease {
    /// The end of the lease, in ns of CLOCK_BOOTTIME. An answer that is found under this lease is checked against it
    /// once more before it is sent, with [`Self::holds`].
    ///
    /// # Errors
    ///
    /// `Unavailable` if the lease has expired.
    pub fn check(&self) -> Result<u64> {
        let until = self.until.load(Ordering::Acquire);
        self.holds(until).map(|()| until)
    }

    /// Checks that the lease which ends at `until` has not expired, even if a later one is held: a thread that was
    /// suspended between the two leases may have read data that another leader has changed since.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the lease has expired or was given up.
    pub fn holds(&self, until: u64) -> Result<()> {
        let none = || Error::Unavailable { what: "this server cannot reach the coordinator, and has no lease".into() };
        let has_left = self.until.load(Ordering::Acquire) == 0;
        let is_valid = boot_clock() < until || is_planted(Bug::LeaseIgnored);
        if !has_left && is_valid { Ok(()) } else { Err(none()) }
    }

    /// Renews the lease. It counts from `from`, a moment before the request to the coordinator, in ns of
    /// CLOCK_BOOTTIME. Not called concurrently with `give_up`.
    pub fn renew(&self, from: u64) {
        assert!(!self.has_left.load(Ordering::Relaxed), "a server that has left renews no lease");
        assert!(from <= boot_clock(), "a lease counts from a moment before its renewal was requested");
        self.until.fetch_max(from + serves_for(LEASE).as_nanos() as u64, Ordering::Release);
    }

    /// Ends the lease for good, because the server stops.
    pub fn give_up(&self) {
        self.has_left.store(true, Ordering::Relaxed);
        self.until.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_before_a_sleep_is_not_answered_under_the_next_lease() {
        let lease = Lease::default();
        assert!(lease.check().is_err(), "no lease was requested yet");
        lease.renew(boot_clock());
        let found_under = lease.check().unwrap();
        lease.holds(found_under).unwrap();
        // The first lease has expired, and the server has renewed it before the answer is sent.
        let over = boot_clock();
        lease.renew(boot_clock());
        lease.check().unwrap();
        assert!(matches!(lease.holds(over), Err(Error::Unavailable { .. })));
    }

    #[test]
    fn a_server_that_has_left_sends_no_answer_that_it_found_before() {
        let lease = Lease::default();
        lease.renew(boot_clock());
        let found_under = lease.check().unwrap();
        lease.give_up();
        assert!(matches!(lease.holds(found_under), Err(Error::Unavailable { .. })));
    }

    #[test]
    #[should_panic(expected = "a server that has left renews no lease")]
    fn a_lease_that_was_given_up_is_not_renewed() {
        let lease = Lease::default();
        lease.give_up();
        lease.renew(boot_clock());
    }

    #[test]
    #[should_panic(expected = "a lease counts from a moment before its renewal was requested")]
    fn a_lease_does_not_begin_in_the_future() {
        Lease::default().renew(boot_clock() + 1_000_000_000);
    }
}
