//! Moves a cluster's records from one store to another while servers use them.
//!
//! The source is closed, its keys are copied to the target, which is closed too, and one transaction at the source decides
//! that they have moved. A process that takes the mover for dead decides the opposite there; each of the two expects the
//! value that the other one changes. Then the target is opened, by whoever comes first. So after a crash at any step at
//! most one store takes writes, and the source, on which all depend before the move, is all that is needed to decide.
//!
//! Kept keys are not copied. A server that changes over to the target therefore takes every server for alive until the
//! leases that the source gave have expired.

use super::{CLOSED, Coordinator, KEYS_MAX, Outcome, Write};
use hekate_proto::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Prefix of the kept keys.
pub const KEPT: &str = "/alive/";
/// The other store of a move, where a backup is restored.
pub const BACKUP: &str = "backup";
const CLUSTER: &str = "/cluster";
/// Bytes of keys and values that are copied in one transaction: etcd takes 1.5 MiB, with base64 and framing.
const BATCH_BYTES: usize = 512 << 10;
/// Attempts of one write whose outcome is unknown.
const ATTEMPTS: u32 = 5;

/// The value of [`CLOSED`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Closing {
    /// Random number of the move.
    pub id: String,
    /// The role of the store that is closed.
    pub role: Role,
    /// Where the other store of the move is.
    pub other: String,
}

/// The role of a store in a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The records move from here to the other store.
    Source,
    /// The records have moved from here to the other store.
    Moved,
    /// The records are being copied to here, or the copy was abandoned: the source decides.
    Target,
}

/// What was decided on a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Moved,
    Abandoned,
}

/// A move of records.
pub struct Move<'a> {
    pub id: &'a str,
    pub source: &'a dyn Coordinator,
    /// Where others find the source.
    pub source_place: &'a str,
    pub target: &'a dyn Coordinator,
    /// Where others find the target.
    pub target_place: &'a str,
}

/// Steps of a move, in order. The one that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    SourceClosed,
    TargetClosed,
    Copied,
    Decided,
    Opened,
}

impl Move<'_> {
    /// Moves the records. `ended` is called after each step, and an error of it ends the move there, as a crash does.
    ///
    /// # Errors
    /// `Invalid` if the target holds other records, or the source is closed. After any other error [`settle`] decides.
    pub fn run(&self, ended: &mut dyn FnMut(Step) -> Result<()>) -> Result<()> {
        let before = self.check()?;
        let closing = self.closing(Role::Source)?;
        write(self.source, &[(CLOSED, None)], &[(CLOSED, Some(&closing))])?;
        ended(Step::SourceClosed)?;
        let copying = self.closing(Role::Target)?;
        write(self.target, &[(CLOSED, before.as_deref())], &[(CLOSED, Some(&copying))])?;
        ended(Step::TargetClosed)?;
        self.copy(&copying)?;
        ended(Step::Copied)?;
        let moved = self.closing(Role::Moved)?;
        write(self.source, &[(CLOSED, Some(&closing))], &[(CLOSED, Some(&moved))])?;
        ended(Step::Decided)?;
        open_target(self.id, self.target)?;
        ended(Step::Opened)
    }

    /// Checks both stores. Returns the target's value of [`CLOSED`].
    fn check(&self) -> Result<Option<String>> {
        let (cluster, there, closed) = (self.source.get(CLUSTER)?, self.target.get(CLUSTER)?, self.target.get(CLOSED)?);
        if there.is_some() && there != cluster {
            return Err(Error::invalid(format!("{} holds the records of another cluster", self.target_place)));
        }
        if is_in_charge(self.target)? {
            return Err(Error::invalid(format!("{} holds records of this cluster that are in use", self.target_place)));
        }
        match self.source.get(CLOSED)? {
            None => Ok(closed),
            Some(_) => Err(Error::invalid(format!("{} is closed: another move runs, or has ended", self.source_place))),
        }
    }

    fn closing(&self, role: Role) -> Result<String> {
        let other = match role {
            Role::Source | Role::Moved => self.target_place,
            Role::Target => self.source_place,
        };
        text(&Closing { id: self.id.into(), role, other: other.into() })
    }

    fn copy(&self, copying: &str) -> Result<()> {
        let expect = [(CLOSED, Some(copying))];
        let is_copied = |key: &String| !key.starts_with(KEPT) && key != CLOSED;
        let wanted: BTreeMap<_, _> =
            self.source.list("/")?.pairs.into_iter().filter(|(key, _)| is_copied(key)).collect();
        let there: BTreeMap<_, _> =
            self.target.list("/")?.pairs.into_iter().filter(|(key, _)| is_copied(key)).collect();
        let removed = there.keys().filter(|key| !wanted.contains_key(*key)).map(|key| (&key[..], None));
        let changed = wanted.iter().filter(|(key, value)| there.get(*key) != Some(value));
        let changes: Vec<_> = removed.chain(changed.map(|(key, value)| (&key[..], Some(&value[..])))).collect();
        for batch in batches(&changes) {
            // A batch that is executed twice writes the same.
            let mut outcome = Outcome::Refused;
            for _ in 0..ATTEMPTS {
                outcome = self.target.transact(&expect, batch)?;
                if !matches!(outcome, Outcome::Unknown { .. }) {
                    break;
                }
            }
            check_written(outcome)?;
        }
        Ok(())
    }
}

/// True if a store has the records of a cluster and is not closed.
///
/// # Errors
/// Those of the store.
pub fn is_in_charge(store: &dyn Coordinator) -> Result<bool> {
    Ok(store.get(CLUSTER)?.is_some() && store.get(CLOSED)?.is_none())
}

/// Parts of the changes that fit a transaction.
fn batches<'a, 'b>(changes: &'b [Write<'a>]) -> Vec<&'b [Write<'a>]> {
    let (mut parts, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (number, (key, value)) in changes.iter().enumerate() {
        let more = key.len() + value.map_or(0, str::len);
        if number > begin && (number - begin == KEYS_MAX || bytes + more > BATCH_BYTES) {
            parts.push(&changes[begin..number]);
            (begin, bytes) = (number, 0);
        }
        bytes += more;
    }
    parts.extend((begin < changes.len()).then(|| &changes[begin..]));
    parts
}

/// Parses the value of [`CLOSED`].
///
/// # Errors
/// `Damaged` if it is not one.
pub fn parse_closing(value: &str) -> Result<Closing> {
    parse(CLOSED, value)
}

/// Decides on a move whose mover has ended: unless it was decided before, the move is abandoned, and the source takes
/// writes again.
///
/// # Errors
/// Those of the source; repeated calls decide the same.
pub fn settle(id: &str, source: &dyn Coordinator) -> Result<Decision> {
    for _ in 0..ATTEMPTS {
        let Some(value) = source.get(CLOSED)? else { return Ok(Decision::Abandoned) };
        let closing = parse_closing(&value)?;
        match closing.role {
            Role::Moved if closing.id == id => return Ok(Decision::Moved),
            Role::Source if closing.id == id => {}
            // A later move, which began after this one was abandoned.
            _ => return Ok(Decision::Abandoned),
        }
        if source.transact(&[(CLOSED, Some(&value))], &[(CLOSED, None)])? == Outcome::Written {
            return Ok(Decision::Abandoned);
        }
    }
    Err(Error::Unavailable { what: "the store does not say whether the move of the records was abandoned".into() })
}

/// Opens the target of a move that was decided. A target that is open, or was closed by another move, stays as it is.
///
/// # Errors
/// Those of the target.
pub fn open_target(id: &str, target: &dyn Coordinator) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let Some(value) = target.get(CLOSED)? else { return Ok(()) };
        let closing = parse_closing(&value)?;
        if closing.id != id || closing.role != Role::Target {
            return Ok(());
        }
        if target.transact(&[(CLOSED, Some(&value))], &[(CLOSED, None)])? == Outcome::Written {
            return Ok(());
        }
    }
    Err(Error::Unavailable { what: "the store does not say whether it is open".into() })
}

/// Executes a transaction on [`CLOSED`] that no one else executes, and finds out after an unknown outcome whether it was
/// executed: no other write has this value.
fn write(store: &dyn Coordinator, expect: &[(&str, Option<&str>)], writes: &[(&str, Option<&str>)]) -> Result<()> {
    let new = writes.first().and_then(|(_, value)| *value);
    let mut is_unsure = false;
    for _ in 0..ATTEMPTS {
        match store.transact(expect, writes)? {
            Outcome::Unknown { .. } => is_unsure = true,
            Outcome::Refused if is_unsure && store.get(CLOSED)?.as_deref() == new => return Ok(()),
            outcome => return check_written(outcome),
        }
    }
    Err(Error::Unavailable { what: "the store does not say whether it has executed a step of the move".into() })
}

fn check_written(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Written => Ok(()),
        Outcome::Refused | Outcome::Closed { .. } => {
            Err(Error::Unavailable { what: "another process has ended the move of the records".into() })
        }
        Outcome::Unknown { why } => Err(Error::Unavailable { what: why }),
    }
}

fn text<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::bug(e.to_string()))
}

fn parse<T: serde::de::DeserializeOwned>(key: &str, value: &str) -> Result<T> {
    serde_json::from_str(value).map_err(|e| Error::Damaged { what: format!("the coordinator's {key}: {e}") })
}

#[cfg(test)]
mod tests;
