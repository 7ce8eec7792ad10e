//! The coordinator of a run: it answers late, loses answers, and is out of reach for a while, as etcd does.

use super::world::World;
use crate::cluster::settings::Micros;
use crate::cluster::threads;
use hekate_cluster::Coordinator;
use hekate_cluster::coordinator::{Expect, Write};
use hekate_proto::{Error, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a server waits for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// All keys.
#[derive(Default)]
pub struct Store {
    values: BTreeMap<String, String>,
    /// Kept keys, and when they expire.
    kept: BTreeMap<String, (String, Micros)>,
}

impl Store {
    fn get(&mut self, key: &str, now: Micros) -> Option<String> {
        self.expire(now);
        self.values.get(key).or_else(|| self.kept.get(key).map(|(value, _)| value)).cloned()
    }

    fn list(&mut self, prefix: &str, now: Micros) -> Vec<(String, String)> {
        self.expire(now);
        let kept = self.kept.iter().map(|(key, (value, _))| (key, value));
        let all: BTreeMap<&String, &String> = self.values.iter().chain(kept).collect();
        let found = all.into_iter().filter(|(key, _)| key.starts_with(prefix));
        found.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn expire(&mut self, now: Micros) {
        self.kept.retain(|_, (_, until)| *until > now);
    }

    fn transact(&mut self, expect: &[(String, Option<String>)], writes: &[(String, Option<String>)]) -> bool {
        if expect.iter().any(|(key, value)| self.values.get(key) != value.as_ref()) {
            return false;
        }
        for (key, value) in writes {
            match value {
                Some(value) => _ = self.values.insert(key.clone(), value.clone()),
                None => _ = self.values.remove(key),
            }
        }
        true
    }
}

fn owned(all: &[(&str, Option<&str>)]) -> Vec<(String, Option<String>)> {
    all.iter().map(|(key, value)| ((*key).into(), value.map(Into::into))).collect()
}

/// The coordinator at once, for whoever makes the cluster.
pub struct AtHand(pub Arc<Mutex<Store>>);

impl Coordinator for AtHand {
    fn get(&self, key: &str) -> Result<Option<String>> {
        Ok(self.0.lock().get(key, 0))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, String)>> {
        Ok(self.0.lock().list(prefix, 0))
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<bool> {
        Ok(self.0.lock().transact(&owned(expect), &owned(writes)))
    }

    fn keep(&self, _: &str, _: &str, _: Duration) -> Result<()> {
        Err(Error::bug("who makes the cluster keeps no key"))
    }
}

/// The coordinator as a server reaches it.
pub struct Reached {
    pub server: u32,
    pub store: Arc<Mutex<Store>>,
}

impl Reached {
    /// Has the coordinator do something. Its request or its answer may be lost.
    fn call<T: 'static>(&self, act: impl FnOnce(&mut Store, Micros) -> T + 'static) -> Result<T> {
        self.pause();
        let server = self.server;
        let Some(Some(fate)) = threads::in_world(move |world: &mut World| world.fate_at_coordinator(server)) else {
            return Err(self.late());
        };
        let store = self.store.clone();
        let done = threads::in_world(move |world: &mut World| act(&mut store.lock(), world.now));
        self.pause();
        match done.filter(|_| fate) {
            Some(done) => Ok(done),
            None => Err(self.late()),
        }
    }

    fn pause(&self) {
        let delay = threads::in_world(|world: &mut World| world.delay(world.settings.delay_max)).unwrap_or_default();
        hekate_threads::sleep(Duration::from_micros(delay));
    }

    fn late(&self) -> Error {
        hekate_threads::sleep(ANSWER_LIMIT);
        Error::Unavailable { what: "the coordinator does not answer".into() }
    }
}

impl Coordinator for Reached {
    fn get(&self, key: &str) -> Result<Option<String>> {
        let key = key.to_string();
        self.call(move |store, now| store.get(&key, now))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, String)>> {
        let prefix = prefix.to_string();
        self.call(move |store, now| store.list(&prefix, now))
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<bool> {
        let (expect, writes) = (owned(expect), owned(writes));
        self.call(move |store, _| store.transact(&expect, &writes))
    }

    fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<()> {
        let (key, value) = (key.to_string(), value.to_string());
        self.call(move |store, now| {
            store.expire(now);
            match lifetime.is_zero() {
                true => _ = store.kept.remove(&key),
                false => _ = store.kept.insert(key, (value, now + lifetime.as_micros() as Micros)),
            }
        })
    }
}
