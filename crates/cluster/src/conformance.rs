//! One suite for every coordinator.

#![allow(clippy::unwrap_used)]

use crate::coordinator::Coordinator;

/// Of a coordinator that has nothing below `/suite/`.
pub fn conforms(coordinator: &dyn Coordinator) {
    let (a, b, c) = ("/suite/a", "/suite/b", "/suite/c");
    assert_eq!(coordinator.get(a).unwrap(), None);
    assert!(coordinator.transact(&[(a, None)], &[(a, Some("1")), (b, Some("2"))]).unwrap());
    assert!(!coordinator.transact(&[(a, None)], &[(a, Some("x"))]).unwrap(), "it is there by now");
    assert!(!coordinator.transact(&[(a, Some("1")), (b, Some("?"))], &[(a, Some("x"))]).unwrap());
    assert_eq!(coordinator.get(a).unwrap().unwrap(), "1", "a refused transaction writes nothing");
    assert!(coordinator.transact(&[(a, Some("1"))], &[(a, None), (c, Some("3"))]).unwrap());
    let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
    assert_eq!(coordinator.list("/suite/").unwrap(), [pair(b, "2"), pair(c, "3")]);
    assert_eq!(coordinator.list(b).unwrap().len(), 1);
    assert!(coordinator.list("/suite/none").unwrap().is_empty());
    let odd = "\"quotes\", a \\ and\na line, \u{fc}";
    assert!(coordinator.transact(&[], &[(c, Some(odd))]).unwrap());
    assert_eq!(coordinator.get(c).unwrap().unwrap(), odd);
}
