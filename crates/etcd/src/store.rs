//! The trait over etcd.

use crate::changes::Watch;
use crate::credential::Credential;
use crate::difference::difference;
use crate::gateway::{Endpoints, Gateway};
use crate::kept::{self, Kept};
use crate::messages::{Range, Transacted, decoded, delete, has, key_range, put, range_of};
use hekate_cluster::coordinator::{Changed, Expect, KEYS_MAX, Known, Write, names_closed};
use hekate_cluster::{CLOSED, Coordinator, Listing, Outcome, Revision, Watched};
use hekate_proto::{Error, Result};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const RANGE: &str = "/v3/kv/range";
pub(crate) const TXN: &str = "/v3/kv/txn";
/// Prefix of all keys of the trait.
pub(crate) const KEYS: &str = "/";
/// Time for a transaction: a disk of etcd may be slow.
const WRITE_LIMIT: Duration = Duration::from_secs(4);

/// A coordinator in etcd. Its threads end with it.
pub struct EtcdCoordinator {
    gateway: Arc<Gateway>,
    kept: Kept,
    changes: Watch,
}

impl EtcdCoordinator {
    /// # Errors
    /// `Invalid` if the credential cannot be used. Connects with the first call.
    pub fn new(endpoints: Endpoints, credential: &Credential) -> Result<Self> {
        let gateway = Arc::new(Gateway::new(endpoints, credential)?);
        Ok(Self { kept: Kept::new(gateway.clone()), changes: Watch::new(gateway.clone()), gateway })
    }

    pub fn endpoints(&self) -> &Endpoints {
        self.gateway.endpoints()
    }

    fn range(&self, request: &Value) -> Result<Range> {
        self.gateway.read(RANGE, request)
    }
}

/// The outcome of a transaction whose failure branch reads [`CLOSED`], unless it names that key.
pub(crate) fn outcome_of(answer: std::result::Result<Transacted, String>) -> Result<Outcome> {
    Ok(match answer {
        Err(why) => Outcome::Unknown { why },
        Ok(done) if done.succeeded => Outcome::Written,
        Ok(done) => match done.found() {
            Some(closed) => Outcome::Closed { by: decoded(&closed.value)? },
            None => Outcome::Refused,
        },
    })
}

impl Coordinator for EtcdCoordinator {
    fn get(&self, key: &str) -> Result<Option<String>> {
        let found = self.range(&json!({ "key": crate::messages::encoded(key) }))?;
        found.kvs.first().map(|pair| decoded(&pair.value)).transpose()
    }

    fn list(&self, prefix: &str) -> Result<Listing> {
        let found = self.range(&key_range(prefix))?;
        let pairs = found.kvs.iter().map(|pair| Ok((decoded(&pair.key)?, decoded(&pair.value)?)));
        Ok(Listing { pairs: pairs.collect::<Result<_>>()?, revision: Revision(found.header.revision) })
    }

    fn changes(&self, known: &[Known<'_>]) -> Result<Vec<Changed>> {
        difference(known, |request| self.gateway.read(TXN, request))
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        let is_named = names_closed(expect, writes);
        if expect.len() >= KEYS_MAX || writes.len() > KEYS_MAX {
            let count = expect.len().max(writes.len());
            return Err(Error::invalid(format!("a transaction of {count} keys; etcd takes {KEYS_MAX}")));
        }
        let open = (!is_named).then_some((CLOSED, None));
        let compare: Vec<_> = open.iter().chain(expect).map(|(key, value)| has(key, *value)).collect();
        let changes = writes.iter().map(|(key, value)| value.map_or_else(|| delete(key), |value| put(key, value)));
        let failure: Vec<_> = open.iter().map(|(key, _)| range_of(key)).collect();
        let request = json!({ "compare": compare, "success": changes.collect::<Vec<_>>(), "failure": failure });
        outcome_of(self.gateway.write(TXN, &request, Some(WRITE_LIMIT))?)
    }

    fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<Outcome> {
        self.kept.start(key)?;
        match self.gateway.write(TXN, &kept::renewal(key, value, lifetime), None)? {
            Ok(done) if kept::is_renewed(&done) => Ok(Outcome::Written),
            other => outcome_of(other),
        }
    }

    fn release(&self, key: &str) -> Result<Outcome> {
        self.kept.released(key);
        let request = json!({ "success": [delete(key), delete(&kept::renewals_of(key))] });
        outcome_of(self.gateway.write(TXN, &request, None)?)
    }

    fn watch(&self, prefixes: &[&str], after: Revision, limit: Duration) -> Result<Watched> {
        self.kept.watch()?;
        self.changes.watch(prefixes, after, limit)
    }

    fn end_watches(&self) {
        self.changes.end();
    }
}
