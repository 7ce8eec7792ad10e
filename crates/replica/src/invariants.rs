//! Assertions of the protocol's rules, in release builds too.
//!
//! A rule that does not hold is a fault of this program: neither input, nor another server's message, nor a disk can
//! make one fail. The replica that finds it stops, with the rule in its error, and nothing that the event has produced
//! is sent or acknowledged. The server, its other partitions and the other members go on, and the coordinator forms a
//! view without the replica's brick. The rules are those of `docs/replication.md` (R) and `docs/fast-lane.md` (F, L).

use hekate_proto::{Error, Result};

/// Stops this replica if a rule does not hold.
///
/// # Errors
///
/// `Error::Bug` with the rule and `what`, if `holds` is false.
pub(crate) fn require(holds: bool, rule: &str, what: impl FnOnce() -> String) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::bug(format!("rule {rule} does not hold: {}", what()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_does_not_hold_is_named() {
        assert!(require(true, "R2", || unreachable!("not formatted")).is_ok());
        let error = require(false, "R2", || "record 7 of 5".into()).unwrap_err();
        assert!(error.to_string().contains("rule R2 does not hold: record 7 of 5"), "{error}");
    }
}
