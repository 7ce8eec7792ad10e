//! One test suite for every coordinator. It takes threads and time from `hekate_threads`, so the simulator can run it.

#![allow(clippy::unwrap_used, clippy::panic)]

mod changes;
pub(crate) mod tasks;

pub use changes::{shows_what_was_acknowledged, tells_changes};

use crate::coordinator::{CLOSED, Coordinator, Expect, Outcome, Revision, Watched, Write};
use hekate_threads::{elapsed, now, sleep};
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;

/// Threads of a concurrent test.
const THREADS: u64 = 4;
/// Steps of each thread.
const ROUNDS: u64 = 25;
/// A limit that no watch reaches, unless it misses a change.
const LONG: Duration = Duration::from_secs(30);
/// A limit that ends a watch.
const SHORT: Duration = Duration::from_millis(100);

/// Time after the end of its lifetime within which the embedded coordinator lets a kept key expire.
pub const LATE: Duration = Duration::from_millis(125);

/// Runs the suite on a coordinator without faults and without keys below `/suite/`. `late`: the longest time after the
/// end of its lifetime at which a kept key expires.
///
/// # Panics
/// If the coordinator does not conform.
pub fn conforms(coordinator: &Arc<dyn Coordinator>, late: Duration) {
    compares_and_writes(&**coordinator);
    keeps(&**coordinator, late);
    watches(&**coordinator);
    watches_kept_keys(&**coordinator);
    closes(&**coordinator);
    tells_changes(coordinator, late);
    loses_no_update(coordinator);
    writes_all_or_nothing(coordinator);
    wakes_a_watch(coordinator);
    misses_no_change(coordinator);
}

/// A transaction whose outcome is known. True if it was written.
fn transact(coordinator: &dyn Coordinator, expect: &[Expect<'_>], writes: &[Write<'_>]) -> bool {
    match coordinator.transact(expect, writes).unwrap() {
        Outcome::Written => true,
        Outcome::Refused => false,
        Outcome::Closed { by } => panic!("closed by {by}"),
        Outcome::Unknown { why } => panic!("no answer: {why}"),
    }
}

fn put(coordinator: &dyn Coordinator, key: &str, value: Option<&str>) {
    assert!(transact(coordinator, &[], &[(key, value)]));
}

fn revision(coordinator: &dyn Coordinator) -> Revision {
    coordinator.list("/suite/").unwrap().revision
}

/// The keys that a watch reports, and its revision. `None` for [`Watched::ReadAgain`].
fn changed(coordinator: &dyn Coordinator, prefixes: &[&str], after: Revision) -> Option<(Vec<String>, Revision)> {
    match coordinator.watch(prefixes, after, LONG).unwrap() {
        Watched::Changed { keys, revision } => Some((keys, revision)),
        Watched::ReadAgain => None,
        Watched::Unchanged { .. } => panic!("a change under {prefixes:?} after {after:?} was missed"),
    }
}

fn compares_and_writes(coordinator: &dyn Coordinator) {
    let (a, b, c) = ("/suite/a", "/suite/b", "/suite/c");
    assert_eq!(coordinator.get(a).unwrap(), None);
    assert!(transact(coordinator, &[(a, None)], &[(a, Some("1")), (b, Some("2"))]));
    assert!(!transact(coordinator, &[(a, None)], &[(a, Some("x"))]), "the key exists by now");
    assert!(!transact(coordinator, &[(a, Some("1")), (b, Some("?"))], &[(a, Some("x"))]));
    assert_eq!(coordinator.get(a).unwrap().unwrap(), "1", "a refused transaction writes nothing");
    assert!(transact(coordinator, &[(a, Some("1"))], &[(a, None), (c, Some("3"))]));
    let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
    let listed = |prefix: &str| coordinator.list(prefix).unwrap().pairs;
    assert_eq!(listed("/suite/"), [pair(b, "2"), pair(c, "3")]);
    assert_eq!(listed(b).len(), 1);
    assert!(listed("/suite/none").is_empty());
    let odd = "\"quotes\", a \\ and\na line, \u{fc}";
    put(coordinator, c, Some(odd));
    assert_eq!(coordinator.get(c).unwrap().unwrap(), odd);
}

/// Keys with a lifetime.
fn keeps(coordinator: &dyn Coordinator, late: Duration) {
    let (d, e, short) = ("/suite/d", "/suite/e", Duration::from_millis(500));
    let known = |key: &str| coordinator.get(key).unwrap();
    assert_eq!(coordinator.keep(e, "2", short * 100).unwrap(), Outcome::Written);
    assert_eq!(known(e), Some("2".into()));
    // For twice its lifetime the key is renewed in time. If this thread was delayed for too long, nothing is checked.
    let begun = now();
    while elapsed(begun) < short * 2 {
        let kept = now();
        coordinator.keep(d, "3", short).unwrap();
        let (value, listed) = (known(d), coordinator.list("/suite/").unwrap().pairs);
        if elapsed(kept) < short {
            assert_eq!(value.unwrap(), "3");
            assert!(listed.contains(&(d.into(), "3".into())) && listed.contains(&(e.into(), "2".into())), "{listed:?}");
        }
        sleep(short / 20);
    }
    sleep(short + late);
    assert_eq!((known(d), known(e)), (None, Some("2".into())), "the key was not renewed");
    assert!(coordinator.list(d).unwrap().pairs.is_empty());
    for _ in 0..2 {
        assert_eq!(coordinator.release(e).unwrap(), Outcome::Written);
        assert_eq!(known(e), None, "the key was removed");
    }
}

fn watches(coordinator: &dyn Coordinator) {
    let (a, b) = ("/suite/watch/a", "/suite/watched");
    let begin = revision(coordinator);
    let unchanged = coordinator.watch(&["/suite/"], begin, SHORT).unwrap();
    assert_eq!(unchanged, Watched::Unchanged { revision: begin }, "a limit ends the watch");
    put(coordinator, a, Some("1"));
    put(coordinator, b, Some("1"));
    let (keys, first) = changed(coordinator, &["/suite/watch/"], begin).unwrap();
    assert_eq!(keys, [a], "what changed before the watch began counts, other prefixes do not");
    let unchanged = coordinator.watch(&["/suite/watch/", "/suite/none"], first, SHORT).unwrap();
    let Watched::Unchanged { revision: second } = unchanged else { panic!("{unchanged:?}") };
    assert!(second >= first && first > begin);
    put(coordinator, a, None);
    let (keys, third) = changed(coordinator, &["/suite/none", "/suite/watch/"], second).unwrap();
    assert_eq!(keys, [a], "a removal is a change");
    assert!(!transact(coordinator, &[(a, Some("1"))], &[(b, Some("2"))]));
    let unchanged = coordinator.watch(&["/suite/"], third, SHORT).unwrap();
    assert!(matches!(unchanged, Watched::Unchanged { .. }), "a refused transaction changes nothing: {unchanged:?}");
    let later = Revision(third.0 + 1_000_000);
    assert_eq!(coordinator.watch(&["/suite/"], later, LONG).unwrap(), Watched::ReadAgain, "no such revision");
}

fn watches_kept_keys(coordinator: &dyn Coordinator) {
    let (key, lifetime) = ("/suite/kept/a", Duration::from_millis(500));
    let begin = revision(coordinator);
    coordinator.keep(key, "1", lifetime).unwrap();
    let (keys, first) = changed(coordinator, &["/suite/kept/"], begin).unwrap();
    assert_eq!(keys, [key], "a kept key has appeared");
    let renewed = now();
    coordinator.keep(key, "1", lifetime).unwrap();
    let unchanged = coordinator.watch(&["/suite/kept/"], first, SHORT).unwrap();
    if elapsed(renewed) < lifetime {
        assert!(matches!(unchanged, Watched::Unchanged { .. }), "a renewal is no change: {unchanged:?}");
    }
    coordinator.keep(key, "2", lifetime).unwrap();
    let (keys, second) = changed(coordinator, &["/suite/kept/"], first).unwrap();
    assert_eq!(keys, [key], "its value has changed");
    let (keys, third) = changed(coordinator, &["/suite/kept/"], second).unwrap();
    assert_eq!(keys, [key], "it has expired, although no call has read it");
    assert_eq!(coordinator.get(key).unwrap(), None);
    coordinator.keep(key, "3", LONG).unwrap();
    let (_, fourth) = changed(coordinator, &["/suite/kept/"], third).unwrap();
    coordinator.release(key).unwrap();
    assert!(changed(coordinator, &["/suite/kept/"], fourth).is_some(), "it was removed");
}

/// A store that is closed takes no writes until it is opened, and answers reads.
fn closes(coordinator: &dyn Coordinator) {
    let (a, kept, closed) = ("/suite/closed/a", "/suite/closed/kept", Outcome::Closed { by: "why".into() });
    put(coordinator, a, Some("1"));
    assert!(transact(coordinator, &[(CLOSED, None)], &[(CLOSED, Some("why"))]));
    assert_eq!(coordinator.transact(&[(a, Some("1"))], &[(a, Some("2"))]).unwrap(), closed);
    assert_eq!(coordinator.transact(&[(a, Some("?"))], &[(a, Some("2"))]).unwrap(), closed, "refused or not");
    assert_eq!(coordinator.keep(kept, "1", LONG).unwrap(), closed);
    assert_eq!((coordinator.get(a).unwrap().unwrap(), coordinator.get(kept).unwrap()), ("1".into(), None));
    assert!(transact(coordinator, &[(CLOSED, Some("why"))], &[(a, Some("3"))]), "a transaction that names the key");
    assert!(!transact(coordinator, &[(CLOSED, Some("other"))], &[(CLOSED, None)]));
    assert!(transact(coordinator, &[(CLOSED, Some("why"))], &[(CLOSED, None)]));
    assert!(transact(coordinator, &[(a, Some("3"))], &[(a, None)]));
    assert_eq!(coordinator.keep(kept, "1", LONG).unwrap(), Outcome::Written);
    coordinator.release(kept).unwrap();
}

fn number(coordinator: &dyn Coordinator, key: &str) -> u64 {
    coordinator.get(key).unwrap().map_or(0, |text| text.parse().unwrap())
}

/// Threads count one key up: each step counts exactly once.
fn loses_no_update(coordinator: &Arc<dyn Coordinator>) {
    let tasks = Tasks::default();
    for _ in 0..THREADS {
        let coordinator = coordinator.clone();
        tasks.spawn(move || {
            for _ in 0..ROUNDS {
                loop {
                    let before = coordinator.get("/suite/count").unwrap();
                    let next = before.as_deref().map_or(0, |text| text.parse::<u64>().unwrap()) + 1;
                    let expect = [("/suite/count", before.as_deref())];
                    if transact(&*coordinator, &expect, &[("/suite/count", Some(&next.to_string()))]) {
                        break;
                    }
                }
            }
        });
    }
    tasks.join();
    assert_eq!(number(&**coordinator, "/suite/count"), THREADS * ROUNDS, "an update was lost, or made twice");
}

/// Threads move units between accounts, each transaction over two of three keys: the sum stays, in every listing.
fn writes_all_or_nothing(coordinator: &Arc<dyn Coordinator>) {
    const UNITS: u64 = 30;
    let accounts = ["/suite/sum/0", "/suite/sum/1", "/suite/sum/2"];
    let start = (UNITS / 3).to_string();
    assert!(transact(&**coordinator, &[], &accounts.map(|key| (key, Some(&start[..])))));
    let tasks = Tasks::default();
    for thread in 0..THREADS {
        let coordinator = coordinator.clone();
        tasks.spawn(move || {
            for round in 0..ROUNDS {
                let turn = (thread + round) as usize;
                let (from, to) = (accounts[turn % 3], accounts[(turn + 1) % 3]);
                let listed = coordinator.list("/suite/sum/").unwrap().pairs;
                let sum: u64 = listed.iter().map(|(_, value)| value.parse::<u64>().unwrap()).sum();
                assert_eq!(sum, UNITS, "a listing shows half of a transaction: {listed:?}");
                let value = |key: &str| listed.iter().find(|(known, _)| known == key).unwrap().1.clone();
                let (have, gets) = (value(from), value(to));
                let Some(less) = have.parse::<u64>().unwrap().checked_sub(1) else { continue };
                let (less, more) = (less.to_string(), (gets.parse::<u64>().unwrap() + 1).to_string());
                let expect = [(from, Some(&have[..])), (to, Some(&gets[..]))];
                transact(&*coordinator, &expect, &[(from, Some(&less)), (to, Some(&more))]);
            }
        });
    }
    tasks.join();
    let sum: u64 = accounts.iter().map(|key| number(&**coordinator, key)).sum();
    assert_eq!(sum, UNITS);
}

/// A change ends a watch that waits, long before its limit.
fn wakes_a_watch(coordinator: &Arc<dyn Coordinator>) {
    let (tasks, after) = (Tasks::default(), revision(&**coordinator));
    let watching = coordinator.clone();
    tasks.spawn(move || {
        let begun = now();
        let (keys, _) = changed(&*watching, &["/suite/wake/"], after).unwrap();
        assert_eq!(keys, ["/suite/wake/a"]);
        assert!(elapsed(begun) < LONG / 2, "the watch ended after {:?}", elapsed(begun));
    });
    sleep(SHORT);
    put(&**coordinator, "/suite/wake/a", Some("1"));
    tasks.join();
}

/// One thread writes continuously, others list once and then watch: each sees every key, and the last value.
fn misses_no_change(coordinator: &Arc<dyn Coordinator>) {
    let (tasks, last) = (Tasks::default(), THREADS * ROUNDS);
    let key = |number: u64| format!("/suite/stream/{number:05}");
    for _ in 0..2 {
        let coordinator = coordinator.clone();
        tasks.spawn(move || {
            let mut listing = coordinator.list("/suite/stream/").unwrap();
            let mut seen: Vec<String> = listing.pairs.drain(..).map(|(key, _)| key).collect();
            while (seen.len() as u64) < last {
                match changed(&*coordinator, &["/suite/stream/"], listing.revision) {
                    Some((keys, revision)) => {
                        assert!(revision > listing.revision);
                        listing.revision = revision;
                        seen.extend(keys);
                    }
                    None => {
                        listing = coordinator.list("/suite/stream/").unwrap();
                        seen = listing.pairs.drain(..).map(|(key, _)| key).collect();
                    }
                }
                seen.sort_unstable();
                seen.dedup();
            }
            assert_eq!(seen.len() as u64, last);
        });
    }
    for number in 0..last {
        // Other keys change as well, which does not end the watches.
        let other = format!("/suite/aside/{}", number % 7);
        assert!(transact(&**coordinator, &[], &[(&key(number), Some("1")), (&other, Some(&number.to_string()))]));
    }
    tasks.join();
}
