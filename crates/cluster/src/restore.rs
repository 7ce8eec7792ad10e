//! Records from a backup, made fit to be used again.
//!
//! What was recorded since the backup is lost, and bricks may know of it: numbers that were assigned since, views that
//! were formed, openings that were counted. So numbers, epochs and counts of a restored store go on far above: no number
//! is assigned twice, and no session of the time before goes on.

use crate::coordinator::{Coordinator, Expect, Listing, Outcome, Revision, Watched, Write};
use crate::records::{BrickInfo, ViewRecord};
use hekate_proto::{Epoch, Error, Result};
use hekate_threads::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;

/// Added to epochs by a restore that is accepted: more views than a cluster forms in its life.
const EPOCHS: u64 = 1 << 32;
/// Added to the counter of sessions, and to the other counters, which have fewer numbers.
const SESSIONS: u64 = 1 << 32;
const NUMBERS: u64 = 1000;
const RINGS: u64 = 100;

/// A sum of records, which a backup carries: XXH3 in hex digits.
pub fn sum_of(records: &BTreeMap<String, String>) -> String {
    let mut sum = xxhash_rust::xxh3::Xxh3::new();
    for (key, value) in records {
        for text in [key, value] {
            sum.update(&(text.len() as u64).to_le_bytes());
            sum.update(text.as_bytes());
        }
    }
    format!("{:032x}", sum.digest128())
}

/// Makes records of a backup fit to be used. `accept`: bricks know more than the backup, which is lost.
///
/// # Errors
/// `Damaged` if a record cannot be parsed.
pub fn renew(records: &mut BTreeMap<String, String>, accept: bool) -> Result<()> {
    records.retain(|key, _| !key.starts_with("/sessions/"));
    for (key, value) in records.iter_mut() {
        match key.as_str() {
            "/counters/sessions" => add(key, value, SESSIONS)?,
            "/counters/rings" => add(key, value, RINGS)?,
            key if key.starts_with("/counters/") => add(key, value, NUMBERS)?,
            key if accept && key.starts_with("/rings/") && key.contains("/views/") => {
                change(key, value, |record: &mut ViewRecord| {
                    let raised = |epoch: Epoch| Epoch(epoch.0.saturating_add(EPOCHS));
                    record.view.epoch = raised(record.view.epoch);
                    if let Some(opened) = &mut record.opened {
                        opened.epoch = raised(opened.epoch);
                    }
                })?;
            }
            key if accept && key.starts_with("/bricks/") => {
                change(key, value, |record: &mut BrickInfo| record.restored = true)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn add(key: &str, value: &mut String, more: u64) -> Result<()> {
    change(key, value, |number: &mut u64| *number = number.saturating_add(more))
}

fn change<T: Serialize + DeserializeOwned>(key: &str, value: &mut String, change: impl Fn(&mut T)) -> Result<()> {
    let damaged = |e: serde_json::Error| Error::Damaged { what: format!("the backup's {key}: {e}") };
    let mut record: T = serde_json::from_str(value).map_err(damaged)?;
    change(&mut record);
    *value = serde_json::to_string(&record).map_err(damaged)?;
    Ok(())
}

/// Records of a backup as the source of a move.
pub struct BackupStore(Mutex<BTreeMap<String, String>>);

impl BackupStore {
    pub fn new(records: BTreeMap<String, String>) -> Self {
        Self(Mutex::new(records))
    }
}

impl Coordinator for BackupStore {
    fn get(&self, key: &str) -> Result<Option<String>> {
        Ok(self.0.lock().get(key).cloned())
    }

    fn list(&self, prefix: &str) -> Result<Listing> {
        let records = self.0.lock();
        let pairs = records.iter().filter(|(key, _)| key.starts_with(prefix));
        let pairs = pairs.map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(Listing { pairs, revision: Revision::default() })
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        let mut records = self.0.lock();
        if expect.iter().any(|(key, value)| records.get(*key).map(|found| &found[..]) != *value) {
            return Ok(Outcome::Refused);
        }
        for (key, value) in writes {
            match value {
                Some(value) => _ = records.insert((*key).into(), (*value).into()),
                None => _ = records.remove(*key),
            }
        }
        Ok(Outcome::Written)
    }

    fn keep(&self, _: &str, _: &str, _: Duration) -> Result<Outcome> {
        Err(Error::invalid("a backup keeps no leases"))
    }

    fn release(&self, _: &str) -> Result<Outcome> {
        Err(Error::invalid("a backup keeps no leases"))
    }

    fn watch(&self, _: &[&str], _: Revision, _: Duration) -> Result<Watched> {
        Err(Error::invalid("a backup does not change"))
    }

    fn end_watches(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn numbers_go_on_far_above_and_sessions_end() {
        let mut kept = records(&[
            ("/cluster", "\"c\""),
            ("/counters/sessions", "7"),
            ("/counters/volumes", "2"),
            ("/counters/rings", "1"),
            ("/sessions/00000000000000000007", "{}"),
        ]);
        renew(&mut kept, false).unwrap();
        let counted = ((1u64 << 32) + 7).to_string();
        let expected = [
            ("/cluster", "\"c\""),
            ("/counters/rings", "101"),
            ("/counters/sessions", &counted),
            ("/counters/volumes", "1002"),
        ];
        assert_eq!(kept, records(&expected));
        let damaged = renew(&mut records(&[("/counters/rings", "x")]), false).unwrap_err();
        assert!(damaged.to_string().contains("/counters/rings"), "{damaged}");
    }

    #[test]
    fn an_accepted_restore_raises_epochs_and_takes_bricks_as_they_are() {
        let view = r#"{"view":{"epoch":3,"leader":"00000000000000000000000000000001","members":[]},"opened":null}"#;
        let brick = r#"{"brick":"00000000000000000000000000000001","directory":"/b","pool":"p","weight":1}"#;
        let both = [("/rings/00001/views/00000", view), ("/bricks/1", brick)];
        let (mut plain, mut accepted) = (records(&both), records(&both));
        renew(&mut plain, false).unwrap();
        assert_eq!(plain, records(&both));
        renew(&mut accepted, true).unwrap();
        let view: ViewRecord = serde_json::from_str(&accepted["/rings/00001/views/00000"]).unwrap();
        let brick: BrickInfo = serde_json::from_str(&accepted["/bricks/1"]).unwrap();
        assert_eq!((view.view.epoch, brick.restored), (Epoch((1 << 32) + 3), true));
    }

    #[test]
    fn a_sum_depends_on_every_byte() {
        let sum = |key: &str, value: &str| sum_of(&records(&[(key, value)]));
        assert_ne!(sum("/a", "1"), sum("/a", "2"));
        assert_ne!(sum("/a", "1"), sum("/a1", ""));
        assert_eq!(sum("/a", "1"), sum("/a", "1"));
    }
}
