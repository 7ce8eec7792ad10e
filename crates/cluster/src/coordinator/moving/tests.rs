//! A move that ends at any step, with answers that are lost, leaves one of the two stores in charge.

use super::*;
use crate::coordinator::{Changes, Expect, Listing, Revision, Watched, names_closed};
use hekate_threads::Mutex;
use std::time::Duration;

/// A store in memory. The outcome of some of its writes is unknown: those are executed at once, later or never.
#[derive(Default)]
struct Store(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    keys: BTreeMap<String, String>,
    /// What becomes of the next writes: 0 executed, 1 executed and unknown, 2 executed before the next call, 3 never.
    fates: Vec<u8>,
    late: Vec<(Vec<Pair>, Vec<Pair>)>,
}

type Pair = (String, Option<String>);

fn owned(pairs: &[(&str, Option<&str>)]) -> Vec<Pair> {
    pairs.iter().map(|(key, value)| ((*key).into(), value.map(Into::into))).collect()
}

impl Inner {
    fn execute(&mut self, expect: &[Pair], writes: &[Pair]) -> Outcome {
        let names = [expect, writes].concat().iter().any(|(key, _)| key == CLOSED);
        if let Some(by) = self.keys.get(CLOSED).filter(|_| !names) {
            return Outcome::Closed { by: by.clone() };
        }
        if expect.iter().any(|(key, value)| self.keys.get(key) != value.as_ref()) {
            return Outcome::Refused;
        }
        for (key, value) in writes.iter().cloned() {
            match value {
                Some(value) => _ = self.keys.insert(key, value),
                None => _ = self.keys.remove(&key),
            }
        }
        Outcome::Written
    }

    fn catch_up(&mut self) {
        for (expect, writes) in std::mem::take(&mut self.late) {
            self.execute(&expect, &writes);
        }
    }
}

impl Coordinator for Store {
    fn get(&self, key: &str) -> Result<Option<String>> {
        self.0.lock().catch_up();
        Ok(self.0.lock().keys.get(key).cloned())
    }

    fn list(&self, prefix: &str) -> Result<Listing> {
        let inner = self.0.lock();
        let pairs = inner.keys.iter().filter(|(key, _)| key.starts_with(prefix));
        Ok(Listing { pairs: pairs.map(|(key, value)| (key.clone(), value.clone())).collect(), ..Listing::default() })
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        assert!(expect.len() <= KEYS_MAX && writes.len() <= KEYS_MAX);
        let mut inner = self.0.lock();
        inner.catch_up();
        let (expected, written) = (owned(expect), owned(writes));
        match inner.fates.pop().unwrap_or(0) {
            0 => return Ok(inner.execute(&expected, &written)),
            1 => _ = inner.execute(&expected, &written),
            2 => inner.late.push((expected, written)),
            _ => {}
        }
        assert!(!names_closed(expect, &[]) || !writes.is_empty());
        Ok(Outcome::Unknown { why: "lost".into() })
    }

    fn keep(&self, _: &str, _: &str, _: Duration) -> Result<Outcome> {
        Err(Error::bug("a move keeps no key"))
    }

    fn release(&self, _: &str) -> Result<Outcome> {
        Err(Error::bug("a move releases no key"))
    }

    fn watch(&self, _: &[&str], _: Revision, _: Duration) -> Result<Watched> {
        Ok(Watched::Unchanged { revision: Changes::new(Revision(0)).last() })
    }

    fn end_watches(&self) {}
}

fn source() -> Store {
    let store = Store::default();
    let mut keys: BTreeMap<String, String> = (0..130).map(|number| (format!("/k/{number:03}"), "v".into())).collect();
    keys.insert(CLUSTER.into(), "\"c\"".into());
    keys.insert("/alive/1/1".into(), "{}".into());
    store.0.lock().keys = keys;
    store
}

fn move_of<'a>(source: &'a Store, target: &'a Store, id: &'a str) -> Move<'a> {
    Move { id, source, source_place: "own", target, target_place: "etcd:x" }
}

/// The records, without those of moves.
fn records(store: &Store) -> BTreeMap<String, String> {
    let mut keys = store.0.lock().keys.clone();
    keys.retain(|key, _| !key.starts_with(KEPT) && key != CLOSED);
    keys
}

fn takes_writes(store: &Store) -> bool {
    store.get(CLUSTER).unwrap().is_some() && store.transact(&[], &[("/probe", None)]).unwrap() == Outcome::Written
}

/// What a server does that finds a store closed, until it has one that takes writes.
fn follow<'a>(source: &'a Store, target: &'a Store, begin: &'a Store) -> &'a Store {
    let mut store = begin;
    for _ in 0..6 {
        let Some(value) = store.get(CLOSED).unwrap() else { return store };
        let closing = parse_closing(&value).unwrap();
        match closing.role {
            Role::Source => _ = settle(&closing.id, store).unwrap(),
            Role::Moved => {
                store = target;
                open_target(&closing.id, store).unwrap();
            }
            Role::Target => store = source,
        }
    }
    panic!("the stores refer to each other");
}

#[test]
fn a_whole_move_leaves_the_target_in_charge() {
    let (source, target) = (source(), Store::default());
    move_of(&source, &target, "1").run(&mut |_| Ok(())).unwrap();
    assert_eq!(records(&source), records(&target));
    assert_eq!(target.get("/alive/1/1").unwrap(), None, "leases are not copied");
    assert!(takes_writes(&target) && !takes_writes(&source));
    let closing = parse_closing(&source.get(CLOSED).unwrap().unwrap()).unwrap();
    assert_eq!((closing.role, &closing.other[..]), (Role::Moved, "etcd:x"));
    assert_eq!(settle("1", &source).unwrap(), Decision::Moved, "whoever comes later finds the same");
    let again = move_of(&source, &target, "2").run(&mut |_| Ok(())).unwrap_err();
    assert!(again.to_string().contains("in use"), "{again}");
    target.transact(&[], &[("/k/000", None), ("/new", Some("1"))]).unwrap();
    let back = Move { id: "3", source: &target, source_place: "etcd:x", target: &source, target_place: "own" };
    back.run(&mut |_| Ok(())).unwrap();
    assert_eq!(records(&source), records(&target), "what was removed meanwhile is removed there too");
    assert!(takes_writes(&source) && !takes_writes(&target));
    open_target("1", &target).unwrap();
    assert!(!takes_writes(&target), "who follows the first move late opens nothing");
}

#[test]
fn batches_fit_a_transaction() {
    let large = "x".repeat(300 << 10);
    let changes: Vec<Write<'_>> = (0..5).map(|_| ("/k", Some(&large[..]))).collect();
    assert_eq!(batches(&changes).iter().map(|part| part.len()).collect::<Vec<_>>(), [1; 5]);
    let changes: Vec<Write<'_>> = (0..KEYS_MAX * 2 + 1).map(|_| ("/k", None)).collect();
    assert_eq!(batches(&changes).iter().map(|part| part.len()).collect::<Vec<_>>(), [KEYS_MAX, KEYS_MAX, 1]);
    assert!(batches(&[]).is_empty());
}

#[test]
fn a_move_to_the_records_of_another_cluster_is_refused() {
    let (source, other) = (source(), Store::default());
    other.0.lock().keys.insert(CLUSTER.into(), "\"d\"".into());
    let refused = move_of(&source, &other, "1").run(&mut |_| Ok(())).unwrap_err();
    assert!(refused.to_string().contains("another cluster"), "{refused}");
    assert!(takes_writes(&source));
}

#[test]
fn after_a_crash_at_any_step_and_lost_answers_one_store_is_in_charge() {
    use Step::*;
    let steps = [None, Some(SourceClosed), Some(TargetClosed), Some(Copied), Some(Decided), Some(Opened)];
    // Two bits for each of two writes at the source, and of four at the target.
    for (number, crash) in (0..4096u32).flat_map(|number| steps.map(|step| (number, step))) {
        let (source, target) = (source(), Store::default());
        let fates =
            |first: u32, count: u32| (first..first + count).map(|write| (number >> (2 * write) & 3) as u8).collect();
        source.0.lock().fates = fates(0, 2);
        target.0.lock().fates = fates(2, 4);
        let whole = records(&source);
        let crashes = &mut |step| match crash {
            Some(at) if at == step => Err(Error::bug("a crash")),
            _ => Ok(()),
        };
        let _ = move_of(&source, &target, "1").run(crashes);
        assert!(!(takes_writes(&source) && takes_writes(&target)), "{number} {crash:?}");
        (source.0.lock().fates, target.0.lock().fates) = (Vec::new(), Vec::new());
        let one = follow(&source, &target, &source);
        let other = if target.get(CLUSTER).unwrap().is_some() { follow(&source, &target, &target) } else { one };
        assert!(std::ptr::eq(one, other), "{number} {crash:?}: servers with either address find the same store");
        assert!(takes_writes(&source) != takes_writes(&target), "{number} {crash:?}");
        assert!(takes_writes(one));
        assert_eq!(records(one), whole, "{number} {crash:?}");
        // A second attempt works.
        if takes_writes(&source) {
            move_of(&source, &target, "2").run(&mut |_| Ok(())).unwrap();
            assert!(takes_writes(&target) && !takes_writes(&source));
            assert_eq!(records(&target), whole);
        }
    }
}

#[test]
fn a_mover_that_was_taken_for_dead_does_not_take_charge() {
    let (source, target) = (source(), Store::default());
    let interrupted = &mut |step| {
        if step == Step::Copied {
            assert_eq!(settle("1", &source)?, Decision::Abandoned);
        }
        Ok(())
    };
    let ended = move_of(&source, &target, "1").run(interrupted).unwrap_err();
    assert!(ended.to_string().contains("ended the move"), "{ended}");
    assert!(takes_writes(&source) && !takes_writes(&target));
}
