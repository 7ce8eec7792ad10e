//! Work for etcd while it fails, and the check of what was promised: threads that count, one that keeps a key, one that
//! reads this key.

use crate::support::Etcd;
use hekate_cluster::coordinator::LEASE;
use hekate_cluster::{Coordinator, Outcome};
use hekate_etcd::EtcdCoordinator;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// The kept key.
pub const KEPT: &str = "/load/kept";
/// The counter, and what it was at each count.
const COUNTER: &str = "/load/counter";
const COUNTS: &str = "/load/counts/";
const COUNTERS: usize = 3;
/// Time between two renewals, as a server renews its lease.
const RENEWAL: Duration = Duration::from_millis(750);
/// For this long after a renewal was sent the key must be there. A server stops serving earlier.
const KEPT_FOR: Duration = Duration::from_millis(2800);

/// A renewal that was acknowledged: when it was sent and answered.
#[derive(Clone, Copy)]
struct Renewal {
    sent: Instant,
    answered: Instant,
}

/// A transaction's value, and whether it was written; `None` if that is unknown.
type Counted = (String, Option<bool>);

/// The threads.
pub struct Load {
    stop: Arc<AtomicBool>,
    renewals: Arc<Mutex<Vec<Renewal>>>,
    counters: Vec<JoinHandle<Vec<Counted>>>,
    keeper: JoinHandle<()>,
    reader: JoinHandle<Vec<String>>,
}

/// What the threads have found.
#[derive(Debug)]
#[allow(dead_code, reason = "some fields are only printed")]
pub struct Report {
    /// Transactions that were written, refused, and of an unknown outcome.
    pub written: usize,
    pub refused: usize,
    pub unknown: usize,
    /// The longest time without an acknowledged renewal.
    pub pause: Duration,
}

impl Load {
    /// Returns when the key is kept.
    pub fn start(etcd: &Etcd) -> Self {
        Self::of(|| etcd.connect())
    }

    /// With coordinators that `connect` makes. Returns when the key is kept.
    pub fn of(connect: impl Fn() -> EtcdCoordinator) -> Self {
        let (stop, renewals) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let counter = |number: usize| {
            let (coordinator, stop) = (connect(), stop.clone());
            spawn(move || count(&coordinator, number, &stop))
        };
        let counters = (0..COUNTERS).map(counter).collect();
        let keeper = {
            let (coordinator, stop, renewals) = (connect(), stop.clone(), renewals.clone());
            spawn(move || keep(&coordinator, &stop, &renewals))
        };
        let reader = {
            let (coordinator, stop, renewals) = (connect(), stop.clone(), renewals.clone());
            spawn(move || look(&coordinator, &stop, &renewals))
        };
        let load = Self { stop, renewals, counters, keeper, reader };
        crate::support::eventually("a renewal", Duration::from_secs(10), || load.renewals() > 0);
        load
    }

    /// Renewals that were acknowledged.
    pub fn renewals(&self) -> usize {
        self.renewals.lock().unwrap().len()
    }

    /// Ends the threads and checks what they have found. etcd has to be available.
    pub fn end(self, coordinator: &EtcdCoordinator) -> Report {
        let ended = Instant::now();
        self.stop.store(true, Ordering::Relaxed);
        let counted: Vec<_> = self.counters.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        self.keeper.join().unwrap();
        let missing = self.reader.join().unwrap();
        assert!(missing.is_empty(), "{missing:?}");
        check(coordinator, &counted);
        let renewals = self.renewals.lock().unwrap();
        let answers: Vec<_> = renewals.iter().map(|renewal| renewal.answered).chain([ended]).collect();
        let pauses = answers.windows(2).map(|two| two[1].saturating_duration_since(two[0]));
        let of = |outcome| counted.iter().filter(|(_, it)| *it == outcome).count();
        Report {
            written: of(Some(true)),
            refused: of(Some(false)),
            unknown: of(None),
            pause: pauses.max().unwrap_or_default(),
        }
    }
}

/// Counts by compare-and-swap, with a value for each attempt that never repeats.
fn count(coordinator: &EtcdCoordinator, number: usize, stop: &AtomicBool) -> Vec<Counted> {
    let mut counted = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let Ok(before) = coordinator.get(COUNTER) else { continue };
        let last = before.as_ref().map_or(0, |value| value.split_once(' ').unwrap().0.parse::<u64>().unwrap());
        let value = format!("{} {number}.{}", last + 1, counted.len());
        let entry = format!("{COUNTS}{:08}", last + 1);
        let writes = [(COUNTER, Some(&value[..])), (&entry[..], Some(&value[..]))];
        match coordinator.transact(&[(COUNTER, before.as_deref())], &writes) {
            Ok(Outcome::Written) => counted.push((value, Some(true))),
            Ok(Outcome::Unknown { .. }) => counted.push((value, None)),
            Ok(Outcome::Refused) | Err(_) => counted.push((value, Some(false))),
            Ok(other) => panic!("{other:?}"),
        }
        sleep(Duration::from_millis(5));
    }
    counted
}

fn keep(coordinator: &EtcdCoordinator, stop: &AtomicBool, renewals: &Mutex<Vec<Renewal>>) {
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        if matches!(coordinator.keep(KEPT, "1", LEASE), Ok(Outcome::Written)) {
            renewals.lock().unwrap().push(Renewal { sent, answered: Instant::now() });
        }
        sleep(RENEWAL.saturating_sub(sent.elapsed()));
    }
}

/// Reads the key. Returns how it was missing although it was renewed.
fn look(coordinator: &EtcdCoordinator, stop: &AtomicBool, renewals: &Mutex<Vec<Renewal>>) -> Vec<String> {
    let mut missing = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        // Renewals that were answered before the read was sent.
        let last = renewals.lock().unwrap().last().copied();
        if let (Ok(None), Some(last)) = (coordinator.get(KEPT), last)
            && last.sent.elapsed() < KEPT_FOR
        {
            missing.push(format!("missing {:?} after its renewal was sent", last.sent.elapsed()));
        }
        sleep(Duration::from_millis(20));
    }
    missing
}

/// Each count was made by one transaction, which its thread knows as written or unknown; what was answered with success
/// is there, and what was refused is not.
fn check(coordinator: &EtcdCoordinator, counted: &[Counted]) {
    let counts: Vec<String> = coordinator.list(COUNTS).unwrap().pairs.into_iter().map(|(_, value)| value).collect();
    let outcomes: BTreeMap<&str, Option<bool>> = counted.iter().map(|(value, it)| (&value[..], *it)).collect();
    assert_eq!(outcomes.len(), counted.len(), "the values do not repeat");
    for (at, value) in counts.iter().enumerate() {
        assert_eq!(value.split_once(' ').unwrap().0, (at + 1).to_string(), "a count is missing");
        assert_ne!(outcomes[&value[..]], Some(false), "{value} was refused, and is there");
    }
    for (value, _) in counted.iter().filter(|(_, outcome)| *outcome == Some(true)) {
        assert!(counts.contains(value), "{value} was written, and is lost");
    }
    assert_eq!(coordinator.get(COUNTER).unwrap().as_ref(), counts.last());
}
