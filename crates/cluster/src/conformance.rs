//! One test suite for every coordinator.

#![allow(clippy::unwrap_used)]

use crate::coordinator::Coordinator;
use std::time::{Duration, Instant};

/// Runs the suite on a coordinator without keys below `/suite/`.
pub fn conforms(coordinator: &dyn Coordinator) {
    let (a, b, c) = ("/suite/a", "/suite/b", "/suite/c");
    assert_eq!(coordinator.get(a).unwrap(), None);
    assert!(coordinator.transact(&[(a, None)], &[(a, Some("1")), (b, Some("2"))]).unwrap());
    assert!(!coordinator.transact(&[(a, None)], &[(a, Some("x"))]).unwrap(), "the key exists by now");
    assert!(!coordinator.transact(&[(a, Some("1")), (b, Some("?"))], &[(a, Some("x"))]).unwrap());
    assert_eq!(coordinator.get(a).unwrap().unwrap(), "1", "a refused transaction writes nothing");
    assert!(coordinator.transact(&[(a, Some("1"))], &[(a, None), (c, Some("3"))]).unwrap());
    let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
    assert_eq!(coordinator.list("/suite/").unwrap(), [pair(b, "2"), pair(c, "3")]);
    assert_eq!(coordinator.list(b).unwrap().len(), 1);
    assert!(coordinator.list("/suite/none").unwrap().is_empty());
    keeps(coordinator);
    let odd = "\"quotes\", a \\ and\na line, \u{fc}";
    assert!(coordinator.transact(&[], &[(c, Some(odd))]).unwrap());
    assert_eq!(coordinator.get(c).unwrap().unwrap(), odd);
}

/// Keys with a lifetime.
fn keeps(coordinator: &dyn Coordinator) {
    let (d, e, short) = ("/suite/d", "/suite/e", Duration::from_millis(500));
    let known = |key: &str| coordinator.get(key).unwrap();
    coordinator.keep(e, "2", short * 100).unwrap();
    assert_eq!(known(e), Some("2".into()));
    // For twice its lifetime the key is renewed in time. If this thread was delayed for too long, nothing is checked.
    let begun = Instant::now();
    while begun.elapsed() < short * 2 {
        let kept = Instant::now();
        coordinator.keep(d, "3", short).unwrap();
        let (value, listed) = (known(d), coordinator.list("/suite/").unwrap());
        if kept.elapsed() < short {
            assert_eq!(value.unwrap(), "3");
            assert!(listed.contains(&(d.into(), "3".into())) && listed.contains(&(e.into(), "2".into())), "{listed:?}");
        }
        std::thread::sleep(short / 20);
    }
    std::thread::sleep(short + short / 4);
    assert_eq!((known(d), known(e)), (None, Some("2".into())), "the key was not renewed");
    assert!(coordinator.list(d).unwrap().is_empty());
    coordinator.keep(e, "", Duration::ZERO).unwrap();
    assert_eq!(known(e), None, "the key was removed");
}
