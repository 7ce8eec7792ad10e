//! Kept keys: keys that expire unless they are renewed.
//!
//! etcd's leases are not used for them. A leader of etcd that was replaced can revoke a lease which was renewed with
//! its successor (<https://github.com/etcd-io/etcd/issues/15247>), so a key would be gone while its server still serves.
//! Here a renewal is a write to a second key, and each process that keeps a key removes the keys of others: those whose
//! renewals have not changed for their lifetime, measured by its own clock between two reads of its own. The removal
//! expects the last renewal, so a renewal is either before it, and prevents it, or after it, and makes the key anew.
//!
//! Invariants: a key is removed only if no renewal was executed for its lifetime, in real time. Time in which etcd takes
//! no writes does not count: owners cannot renew their keys then, and would all be taken for dead once it takes writes.

use crate::gateway::Gateway;
use crate::messages::{Range, Transacted, changed_at, decoded, delete, has, key_range, put, range_of};
use crate::store::{RANGE, TXN};
use hekate_cluster::CLOSED;
use hekate_proto::{Error, Result};
use hekate_threads::{Condvar, Mutex, elapsed, now};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Prefix of the keys of renewals. It is outside of the keys of the trait, so that renewals wake no watch.
const RENEWALS: &str = "~";
/// A key that each removal writes. Without space etcd executes transactions that only delete, and renewals fail.
const LAST_REMOVED: &str = "!removed";
/// Time between two reads of the renewals by one of the first `REMOVERS` processes, in the order of their keys, and by
/// the others.
const PAUSE: Duration = Duration::from_millis(300);
const LONG_PAUSE: Duration = Duration::from_secs(3);
const REMOVERS: usize = 3;
/// A read that is later than planned by more than this begins anew: etcd was away, and owners could not renew their
/// keys.
const GAP_MAX: Duration = Duration::from_millis(1500);
/// Time for which etcd retains the history of keys.
const HISTORY: Duration = Duration::from_secs(300);

/// The key of the renewals of a key.
pub fn renewals_of(key: &str) -> String {
    format!("{RENEWALS}{key}")
}

/// A transaction that renews a key. If the key has its value already, watches of it learn nothing.
pub fn renewal(key: &str, value: &str, lifetime: Duration) -> Value {
    let renewals = renewals_of(key);
    let renewed = put(&renewals, &lifetime.as_millis().to_string());
    let made = json!({
        "compare": [has(CLOSED, None)],
        "success": [put(key, value), renewed.clone()],
        "failure": [range_of(CLOSED)],
    });
    json!({
        "compare": [has(CLOSED, None), has(key, Some(value))],
        "success": [renewed],
        "failure": [{ "request_txn": made }],
    })
}

/// True if a renewal was executed, also in the branch for a key without the value.
pub fn is_renewed(done: &Transacted) -> bool {
    let inner = done.responses.iter().filter_map(|response| response.response_txn.as_ref());
    done.succeeded || inner.into_iter().any(|inner| inner.succeeded)
}

/// The keys that this process keeps, and the thread that removes those of others.
pub struct Kept(Arc<Shared>);

struct Shared {
    gateway: Arc<Gateway>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    own: BTreeSet<String>,
    is_running: bool,
    has_ended: bool,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.state.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Kept {
    pub fn new(gateway: Arc<Gateway>) -> Self {
        Self(Arc::new(Shared { gateway, state: Mutex::new(State::default()), changed: Condvar::new() }))
    }

    /// Called before this process keeps a key.
    ///
    /// # Errors
    /// `Io` if the machine gives no thread.
    pub fn start(&self, key: &str) -> Result<()> {
        self.0.state.lock().own.insert(renewals_of(key));
        self.watch()
    }

    /// Starts the thread, if it does not run.
    ///
    /// # Errors
    /// `Io` if the machine gives no thread.
    pub fn watch(&self) -> Result<()> {
        let mut state = self.0.state.lock();
        if state.is_running {
            return Ok(());
        }
        let shared = Arc::downgrade(&self.0);
        hekate_threads::spawn("etcd-kept", move || run(&shared)).map_err(|e| Error::io("start a thread", e))?;
        state.is_running = true;
        Ok(())
    }

    pub fn released(&self, key: &str) {
        self.0.state.lock().own.remove(&renewals_of(key));
    }
}

fn run(shared: &Weak<Shared>) {
    let mut seen = Seen::default();
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let pause = seen.look(&shared).unwrap_or(PAUSE);
        let mut state = shared.state.lock();
        let end = now() + pause;
        while !state.has_ended && now() < end {
            let _ = shared.changed.wait_until(&mut state, end);
        }
        if state.has_ended {
            return;
        }
    }
}

/// The renewals that one process has seen.
#[derive(Default)]
struct Seen {
    /// For each key of renewals the revision of the last one, and when it was first seen.
    renewals: BTreeMap<String, (u64, Instant)>,
    last_read: Option<Instant>,
    /// Time until the next read, as the last one has decided.
    pause: Duration,
    /// A revision, and when it was read: history before it is discarded later.
    marked: Option<(u64, Instant)>,
    /// A removal has failed: it is not known whether etcd takes writes.
    has_failed: bool,
}

/// A renewal as it was read.
struct Renewal {
    key: String,
    lifetime: Duration,
    revision: u64,
}

impl Seen {
    /// Reads the renewals and removes the keys that have expired. Returns the time until the next read.
    fn look(&mut self, shared: &Shared) -> Result<Duration> {
        let found: Range = shared.gateway.read(RANGE, &key_range(RENEWALS))?;
        let renewals: Vec<Renewal> = found
            .kvs
            .iter()
            .map(|pair| {
                let lifetime = decoded(&pair.value)?.parse().map(Duration::from_millis).unwrap_or_default();
                Ok(Renewal { key: decoded(&pair.key)?, lifetime, revision: pair.mod_revision })
            })
            .collect::<Result<_>>()?;
        let expired = self.note(&renewals);
        if !expired.is_empty() {
            self.remove(shared, &expired);
        }
        let rank = {
            let own = &shared.state.lock().own;
            renewals.iter().position(|renewal| own.contains(&renewal.key))
        };
        if rank == Some(0) {
            self.discard_history(shared, found.header.revision);
        }
        self.pause = if rank.is_none_or(|rank| rank < REMOVERS) { PAUSE } else { LONG_PAUSE };
        Ok(self.pause)
    }

    /// Takes note of renewals that were read just now. Returns those that have expired.
    fn note<'a>(&mut self, renewals: &'a [Renewal]) -> Vec<&'a Renewal> {
        let read = now();
        if self.last_read.is_none_or(|last| read.saturating_duration_since(last) > self.pause + GAP_MAX) {
            self.renewals.clear();
        }
        self.last_read = Some(read);
        self.renewals.retain(|key, _| renewals.iter().any(|renewal| renewal.key == *key));
        let mut expired = Vec::new();
        for renewal in renewals {
            let seen = self.renewals.entry(renewal.key.clone()).or_insert((renewal.revision, read));
            if seen.0 != renewal.revision {
                *seen = (renewal.revision, read);
            } else if elapsed(seen.1) >= renewal.lifetime {
                expired.push(renewal);
            }
        }
        expired
    }

    /// Removes keys that have expired, unless they were renewed meanwhile. After a removal that has failed, lifetimes
    /// count anew from a write that etcd has taken.
    fn remove(&mut self, shared: &Shared, expired: &[&Renewal]) {
        let requests = match self.has_failed {
            true => vec![json!({ "success": [put(LAST_REMOVED, "")] })],
            false => expired.iter().filter_map(|renewal| removal(renewal)).collect(),
        };
        let execute = |request| match shared.gateway.write::<Transacted>(TXN, request, None) {
            Ok(Ok(_)) => true,
            Ok(Err(why)) => {
                log::debug!("keys that have expired cannot be removed: {why}");
                false
            }
            Err(error) => {
                log::debug!("keys that have expired cannot be removed: {error}");
                false
            }
        };
        let is_done = requests.iter().all(execute);
        if self.has_failed || !is_done {
            self.renewals.clear();
        }
        self.has_failed = !is_done;
    }

    /// Has etcd discard the history of keys from time to time: each renewal adds to it.
    fn discard_history(&mut self, shared: &Shared, revision: u64) {
        match self.marked {
            None => self.marked = Some((revision, now())),
            Some((before, since)) if elapsed(since) >= HISTORY => {
                let request = json!({ "revision": before.to_string() });
                let done = shared.gateway.write::<Value>("/v3/kv/compaction", &request, None);
                if let Err(error) = done {
                    log::debug!("etcd discards no history: {error}");
                }
                self.marked = Some((revision, now()));
            }
            Some(_) => {}
        }
    }
}

/// The transaction that removes a key which has expired.
fn removal(expired: &Renewal) -> Option<Value> {
    let key = expired.key.strip_prefix(RENEWALS)?;
    Some(json!({
        "compare": [changed_at(&expired.key, expired.revision)],
        "success": [delete(key), delete(&expired.key), put(LAST_REMOVED, key)],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renewal(key: &str, milliseconds: u64, revision: u64) -> Renewal {
        Renewal { key: key.into(), lifetime: Duration::from_millis(milliseconds), revision }
    }

    fn keys(expired: &[&Renewal]) -> Vec<String> {
        expired.iter().map(|renewal| renewal.key.clone()).collect()
    }

    #[test]
    fn a_key_expires_if_its_renewals_do_not_change_for_its_lifetime() {
        let mut seen = Seen::default();
        let pause = Duration::from_millis(30);
        assert!(seen.note(&[renewal("~a", 50, 7), renewal("~b", 50, 8)]).is_empty());
        hekate_threads::sleep(pause);
        assert!(seen.note(&[renewal("~a", 50, 7), renewal("~b", 50, 9)]).is_empty());
        hekate_threads::sleep(pause);
        assert_eq!(keys(&seen.note(&[renewal("~a", 50, 7), renewal("~b", 50, 9)])), ["~a"]);
        hekate_threads::sleep(pause);
        assert_eq!(keys(&seen.note(&[renewal("~a", 50, 10), renewal("~b", 50, 9)])), ["~b"], "a was renewed after all");
    }

    #[test]
    fn time_in_which_etcd_was_away_does_not_count() {
        let mut seen = Seen::default();
        seen.note(&[renewal("~a", 50, 7)]);
        seen.last_read = now().checked_sub(GAP_MAX * 2);
        hekate_threads::sleep(Duration::from_millis(60));
        assert!(seen.note(&[renewal("~a", 50, 7)]).is_empty(), "its owner could not renew it");
        hekate_threads::sleep(Duration::from_millis(60));
        assert_eq!(keys(&seen.note(&[renewal("~a", 50, 7)])), ["~a"]);
    }
}
