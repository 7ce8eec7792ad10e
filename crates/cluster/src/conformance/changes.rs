//! What a coordinator says of changes since a reading, and mirrors that are kept by it.

use super::tasks::Tasks;
use super::{LONG, ROUNDS, THREADS, put, revision, transact};
use crate::coordinator::{Changed, Coordinator, Known, Mirror, Outcome, Revision};
use hekate_threads::sleep;
use std::sync::Arc;
use std::time::Duration;

const A: &str = "/suite/mirror/a/";
const B: &str = "/suite/mirror/b/";

/// Runs the part of the suite on changes since a reading. `late` is that of [`super::conforms`].
///
/// # Panics
/// If the coordinator does not conform.
pub fn tells_changes(coordinator: &Arc<dyn Coordinator>, late: Duration) {
    tells_what_has_changed(&**coordinator);
    follows_every_kind_of_change(&**coordinator, late);
    shows_what_was_acknowledged(&**coordinator, &**coordinator);
    mirrors_while_others_write(coordinator);
}

fn changes(coordinator: &dyn Coordinator, prefix: &str, after: Option<Revision>, count: usize) -> Changed {
    let mut parts = coordinator.changes(&[Known { prefix, after, count }]).unwrap();
    assert_eq!(parts.len(), 1, "one part for each prefix");
    parts.remove(0)
}

fn pair(key: &str, value: &str) -> (String, Option<String>) {
    (key.into(), Some(value.into()))
}

/// Changes are told apart from all keys, and no other keys are read.
fn tells_what_has_changed(coordinator: &dyn Coordinator) {
    let (x, y, z, other) =
        ("/suite/changes/x", "/suite/changes/y", "/suite/changes/z", "/suite/changes-of-another-prefix");
    let prefix = "/suite/changes/";
    assert!(transact(coordinator, &[], &[(x, Some("1")), (y, Some("1")), (other, Some("1"))]));
    let all = changes(coordinator, prefix, None, 0);
    assert_eq!((&all.pairs[..], all.is_partial), (&[pair(x, "1"), pair(y, "1")][..], false));
    let none = changes(coordinator, prefix, Some(all.revision), 2);
    assert_eq!((none.pairs.len(), none.is_partial), (0, true), "nothing has changed");
    assert!(none.revision >= all.revision);
    assert!(transact(coordinator, &[], &[(y, Some("2")), (z, Some("1")), (other, Some("2"))]));
    let two = changes(coordinator, prefix, Some(none.revision), 2);
    assert_eq!((&two.pairs[..], two.is_partial), (&[pair(y, "2"), pair(z, "1")][..], true));
    assert!(two.revision > none.revision);
    let known = [(prefix, all.revision), ("/suite/changes-of", two.revision), ("/suite/none/", all.revision)];
    let known =
        known.map(|(prefix, after)| Known { prefix, after: Some(after), count: usize::from(prefix == known[1].0) });
    let parts = coordinator.changes(&[Known { count: 2, ..known[0] }, known[1], known[2]]).unwrap();
    assert_eq!(parts.iter().map(|part| part.pairs.len()).collect::<Vec<_>>(), [2, 0, 0], "each since its own revision");
    put(coordinator, x, None);
    let removed = changes(coordinator, prefix, Some(two.revision), 3);
    let expected = if removed.is_partial { vec![(x.into(), None)] } else { vec![pair(y, "2"), pair(z, "1")] };
    assert_eq!(removed.pairs, expected);
    let later = Revision(removed.revision.0 + 1_000_000);
    let of_another = changes(coordinator, prefix, Some(later), 2);
    assert_eq!((of_another.pairs.len(), of_another.is_partial), (2, false), "no such revision: all keys");
}

/// True if a mirror has what a listing has. Both are read again if a change has come between them.
fn is_equal(coordinator: &dyn Coordinator, mirror: &mut Mirror) -> bool {
    loop {
        mirror.refresh(coordinator).unwrap();
        let listed = [A, B].map(|prefix| coordinator.list(prefix).unwrap().pairs);
        if mirror.refresh(coordinator).unwrap().is_empty() {
            return [A, B].iter().zip(&listed).all(|(prefix, listed)| {
                let listed = listed.iter().map(|(key, value)| (&key[..], &value[..]));
                mirror.pairs(prefix).eq(listed)
            });
        }
    }
}

fn follows_every_kind_of_change(coordinator: &dyn Coordinator, late: Duration) {
    let mut mirror = Mirror::new(&[A, B], LONG);
    let keys = ["/suite/mirror/a/1", "/suite/mirror/a/2", "/suite/mirror/b/1", "/suite/mirror/b/2"];
    let mut step = |what: &str, writes: &[(&str, Option<&str>)], expected: &[&str]| {
        assert!(writes.is_empty() || transact(coordinator, &[], writes));
        assert_eq!(mirror.refresh(coordinator).unwrap(), expected, "{what}");
        assert!(is_equal(coordinator, &mut mirror), "{what}");
    };
    let [a1, a2, b1, b2] = keys;
    step("made", &[(a1, Some("1")), (b1, Some("1"))], &[a1, b1]);
    step("nothing", &[], &[]);
    step("changed", &[(b1, Some("2"))], &[b1]);
    step("one for another, so that there are as many", &[(a1, None), (a2, Some("1"))], &[a1, a2]);
    put(coordinator, a2, None);
    step("removed and made again", &[(a2, Some("2"))], &[a2]);
    put(coordinator, a2, None);
    step("removed and made again with the same value", &[(a2, Some("2"))], &[]);
    put(coordinator, b2, Some("1"));
    step("made and removed", &[(b2, None)], &[]);
    step("removed", &[(a2, None), (b1, None)], &[a2, b1]);
    let lifetime = Duration::from_millis(300);
    assert_eq!(coordinator.keep(a1, "1", LONG).unwrap(), Outcome::Written);
    step("kept", &[], &[a1]);
    assert_eq!(coordinator.keep(a1, "1", LONG).unwrap(), Outcome::Written);
    step("renewed", &[], &[]);
    assert_eq!(coordinator.keep(a1, "2", LONG).unwrap(), Outcome::Written);
    step("kept with another value", &[], &[a1]);
    assert_eq!(coordinator.release(a1).unwrap(), Outcome::Written);
    step("released", &[], &[a1]);
    assert_eq!(coordinator.keep(b1, "1", lifetime).unwrap(), Outcome::Written);
    step("kept for a short time", &[], &[b1]);
    sleep(lifetime + late);
    step("expired", &[], &[b1]);
}

/// A change that was acknowledged to one process is shown to any process that reads afterwards.
///
/// # Panics
/// If it is not.
pub fn shows_what_was_acknowledged(writer: &dyn Coordinator, reader: &dyn Coordinator) {
    let (key, mut mirror) = ("/suite/mirror/a/fresh", Mirror::new(&[A, B], LONG));
    for round in 0..ROUNDS {
        let value = round.to_string();
        match round % 5 {
            4 => put(writer, key, None),
            _ => put(writer, key, Some(&value)),
        }
        mirror.refresh(reader).unwrap();
        let found = mirror.pairs(key).next().map(|(_, value)| value);
        assert_eq!(found, (round % 5 != 4).then_some(&value[..]), "round {round}");
    }
    put(writer, key, None);
}

/// Threads make, change and remove keys; mirrors are equal to listings meanwhile and in the end.
fn mirrors_while_others_write(coordinator: &Arc<dyn Coordinator>) {
    let (writers, readers) = (Tasks::default(), Tasks::default());
    for thread in 0..THREADS {
        let coordinator = coordinator.clone();
        writers.spawn(move || {
            for round in 0..ROUNDS {
                let (number, value) = ((thread * 7 + round * 5) % 11, (thread * ROUNDS + round).to_string());
                let (one, two) = (format!("{A}{number:02}"), format!("{B}{:02}", (number + round) % 11));
                let second = (round % 3 != 0).then_some(&value[..]);
                assert!(transact(&*coordinator, &[], &[(&one, None), (&two, Some(&value))]));
                assert!(transact(&*coordinator, &[], &[(&one, second), (&two, None)]));
            }
        });
    }
    for _ in 0..2 {
        let coordinator = coordinator.clone();
        readers.spawn(move || {
            let mut mirror = Mirror::new(&[A, B], LONG);
            let end = format!("{A}end");
            while mirror.pairs(&end).next().is_none() {
                mirror.refresh(&*coordinator).unwrap();
                let revision = revision(&*coordinator);
                assert!(mirror.revision(A) <= Some(revision), "a revision that is not there yet");
            }
            assert!(is_equal(&*coordinator, &mut mirror));
        });
    }
    writers.join();
    put(&**coordinator, &format!("{A}end"), Some("1"));
    readers.join();
}
