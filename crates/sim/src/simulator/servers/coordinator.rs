//! The coordinator of a run: it answers late, loses answers, executes writes long after their caller gave up, forgets
//! old changes and is out of reach for a while, as etcd does.

use crate::simulator::settings::workload::Micros;
use crate::simulator::threads;
use crate::simulator::world::{Event, Later, World};
use hekate_cluster::Coordinator;
use hekate_cluster::coordinator::{Changed, Expect, Known, Listing, Outcome, Revision, Watched, Write};
use hekate_proto::{Error, Result};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a server waits for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Longest time until a late write is executed, in µs.
pub const LATE_MAX: Micros = 5_000_000;
/// Longest time until a slow answer arrives, in µs: the caller still waits for it.
const SLOW_MAX: Micros = 1_900_000;
/// Changes that are retained for watches.
const CHANGES_KEPT: usize = 64;
/// Time between two looks of a watch whether kept keys have expired.
const WATCH_PAUSE: Duration = Duration::from_millis(500);
/// Keys of rings and their views.
const RINGS: &str = "/rings/";
const SESSIONS: &str = "/sessions/";
/// The key of the threads that watch: neither an address nor a message has it.
const WATCHES: u64 = 1 << 61;

/// All keys.
#[derive(Default)]
pub struct Store {
    values: BTreeMap<String, String>,
    /// Kept keys, and when they expire.
    kept: BTreeMap<String, (String, Micros)>,
    revision: u64,
    /// Number of changes of rings and their views.
    ring_changes: u64,
    /// The last changes, with their revisions.
    changes: VecDeque<(u64, String)>,
}

impl Store {
    pub fn ring_changes(&self) -> u64 {
        self.ring_changes
    }

    fn get(&mut self, key: &str, now: Micros) -> Option<String> {
        self.expire(now);
        self.values.get(key).or_else(|| self.kept.get(key).map(|(value, _)| value)).cloned()
    }

    fn list(&mut self, prefix: &str, now: Micros) -> Listing {
        self.expire(now);
        let kept = self.kept.iter().map(|(key, (value, _))| (key, value));
        let all: BTreeMap<&String, &String> = self.values.iter().chain(kept).collect();
        let found = all.into_iter().filter(|(key, _)| key.starts_with(prefix));
        let pairs = found.map(|(key, value)| (key.clone(), value.clone())).collect();
        Listing { pairs, revision: Revision(self.revision) }
    }

    fn changed(&mut self, keys: impl IntoIterator<Item = String>) {
        self.revision += 1;
        let revision = self.revision;
        self.changes.extend(keys.into_iter().map(|key| (revision, key)));
        while self.changes.len() > CHANGES_KEPT {
            self.changes.pop_front();
        }
    }

    fn expire(&mut self, now: Micros) {
        let over = self.kept.iter().filter(|(_, (_, until))| *until <= now).map(|(key, _)| key.clone());
        for key in over.collect::<Vec<_>>() {
            self.kept.remove(&key);
            self.changed([key]);
        }
    }

    fn transact(&mut self, expect: &[Pair], writes: &[Pair]) -> Outcome {
        if expect.iter().any(|(key, value)| self.values.get(key) != value.as_ref()) {
            return Outcome::Refused;
        }
        for (key, value) in writes {
            match value {
                Some(value) => _ = self.values.insert(key.clone(), value.clone()),
                None => _ = self.values.remove(key),
            }
        }
        self.ring_changes += u64::from(writes.iter().any(|(key, _)| key.starts_with(RINGS)));
        self.changed(writes.iter().map(|(key, _)| key.clone()));
        Outcome::Written
    }

    fn keep(&mut self, key: &str, value: &str, until: Micros) {
        let before = self.kept.insert(key.into(), (value.into(), until));
        if before.is_none_or(|(before, _)| before != value) {
            self.changed([key.into()]);
        }
    }

    fn release(&mut self, key: &str) {
        if self.kept.remove(key).is_some() {
            self.changed([key.into()]);
        }
    }

    /// What has changed below a prefix, as [`Coordinator::changes`] returns it.
    fn changed_since(&mut self, prefix: &str, after: Option<Revision>, now: Micros) -> Changed {
        let keys = after.and_then(|after| self.changes(&[prefix.into()], after.0, now));
        let Some(keys) = keys else { return self.list(prefix, now).into() };
        let keys: BTreeSet<String> = keys.into_iter().collect();
        let pairs = keys.into_iter().map(|key| (key.clone(), self.get(&key, now))).collect();
        Changed { pairs, revision: Revision(self.revision), is_partial: true }
    }

    /// What has changed below the prefixes after a revision. `None`: the changes are not retained, or there is no such
    /// revision yet.
    fn changes(&mut self, prefixes: &[String], after: u64, now: Micros) -> Option<Vec<String>> {
        self.expire(now);
        let first = self.changes.front().map_or(self.revision + 1, |(revision, _)| *revision);
        if after > self.revision || after + 1 < first && after < self.revision {
            return None;
        }
        let is_watched = |key: &String| prefixes.iter().any(|prefix| key.starts_with(prefix));
        let later = self.changes.iter().filter(|(revision, key)| *revision > after && is_watched(key));
        Some(later.map(|(_, key)| key.clone()).collect())
    }
}

/// A key and its value, expected or written.
type Pair = (String, Option<String>);

fn owned(all: &[(&str, Option<&str>)]) -> Vec<Pair> {
    all.iter().map(|(key, value)| ((*key).into(), value.map(Into::into))).collect()
}

/// The coordinator at once, for whoever makes or judges the cluster.
pub struct AtHand(pub Arc<Mutex<Store>>);

impl Coordinator for AtHand {
    fn get(&self, key: &str) -> Result<Option<String>> {
        Ok(self.0.lock().get(key, 0))
    }

    fn list(&self, prefix: &str) -> Result<Listing> {
        Ok(self.0.lock().list(prefix, 0))
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        Ok(self.0.lock().transact(&owned(expect), &owned(writes)))
    }

    fn keep(&self, _: &str, _: &str, _: Duration) -> Result<Outcome> {
        Err(Error::bug("who makes the cluster keeps no key"))
    }

    fn release(&self, _: &str) -> Result<Outcome> {
        Err(Error::bug("who makes the cluster keeps no key"))
    }

    fn watch(&self, _: &[&str], after: Revision, _: Duration) -> Result<Watched> {
        Ok(Watched::Unchanged { revision: after })
    }

    fn end_watches(&self) {}
}

/// What becomes of a call.
pub enum Fate {
    Answered,
    /// It is executed, and its answer takes up to two seconds.
    Slow,
    /// It is executed, and its answer is lost.
    AnswerLost,
    /// It is executed later, when its caller has given up.
    Late,
    /// It never arrives, and its caller cannot know that.
    Lost,
    /// It never arrives, and its caller knows that.
    Unreachable,
}

/// The coordinator as a server reaches it.
pub struct Reached {
    pub server: u32,
    pub store: Arc<Mutex<Store>>,
    pub ended: AtomicBool,
}

impl Reached {
    fn fate(&self) -> Fate {
        let server = self.server;
        pause();
        threads::in_world(move |world: &mut World| world.fate_at_coordinator(server)).unwrap_or(Fate::Unreachable)
    }

    fn read<T: 'static>(&self, act: impl FnOnce(&mut Store, Micros) -> T + 'static) -> Result<T> {
        let fate = self.fate();
        let (Fate::Answered | Fate::Slow) = fate else { return Err(late()) };
        let store = self.store.clone();
        let done = threads::in_world(move |world: &mut World| act(&mut store.lock(), world.now));
        pause_of(&fate);
        done.ok_or_else(late)
    }

    fn write(&self, act: impl FnOnce(&mut Store, Micros) -> Outcome + 'static) -> Result<Outcome> {
        let (fate, store) = (self.fate(), self.store.clone());
        let execute = move |world: &mut World| {
            let outcome = act(&mut store.lock(), world.now);
            world.wake(WATCHES);
            outcome
        };
        let unknown = || {
            hekate_threads::sleep(ANSWER_LIMIT);
            Ok(Outcome::Unknown { why: "the coordinator did not answer in time".into() })
        };
        match fate {
            Fate::Answered | Fate::Slow => {
                let outcome = threads::in_world(execute);
                pause_of(&fate);
                outcome.ok_or_else(late)
            }
            Fate::AnswerLost => {
                threads::in_world(execute);
                unknown()
            }
            Fate::Late => {
                threads::in_world(move |world: &mut World| {
                    let delay = world.delay(LATE_MAX);
                    world.after(delay, Event::Later(Later(Box::new(move |world| _ = execute(world)))));
                });
                unknown()
            }
            Fate::Lost => unknown(),
            Fate::Unreachable => Err(late()),
        }
    }
}

/// The way of an answer.
fn pause_of(fate: &Fate) {
    match fate {
        Fate::Slow => {
            let delay = threads::in_world(|world: &mut World| world.delay(SLOW_MAX)).unwrap_or_default();
            hekate_threads::sleep(Duration::from_micros(delay));
        }
        _ => pause(),
    }
}

fn pause() {
    let delay = threads::in_world(|world: &mut World| world.delay(world.settings.delay_max)).unwrap_or_default();
    hekate_threads::sleep(Duration::from_micros(delay));
}

fn late() -> Error {
    hekate_threads::sleep(ANSWER_LIMIT);
    Error::Unavailable { what: "the coordinator does not answer".into() }
}

impl Coordinator for Reached {
    fn get(&self, key: &str) -> Result<Option<String>> {
        let key = key.to_string();
        self.read(move |store, now| store.get(&key, now))
    }

    fn list(&self, prefix: &str) -> Result<Listing> {
        let server = self.server;
        let is_hidden = prefix == SESSIONS
            && threads::in_world(move |world: &mut World| world.without_sessions.contains(&server)).unwrap_or_default();
        if is_hidden {
            return Err(late());
        }
        let prefix = prefix.to_string();
        self.read(move |store, now| store.list(&prefix, now))
    }

    fn changes(&self, known: &[Known<'_>]) -> Result<Vec<Changed>> {
        let known: Vec<_> = known.iter().map(|known| (known.prefix.to_string(), known.after)).collect();
        let changes: Vec<Changed> = self.read(move |store, now| {
            known.iter().map(|(prefix, after)| store.changed_since(prefix, *after, now)).collect()
        })?;
        let is_partial = changes.iter().all(|part| part.is_partial);
        let what = if is_partial { "readings of changes of records" } else { "readings of all records" };
        threads::in_world(move |world: &mut World| world.report.count(what));
        Ok(changes)
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        let (expect, writes) = (owned(expect), owned(writes));
        self.write(move |store, _| store.transact(&expect, &writes))
    }

    fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<Outcome> {
        let (key, value) = (key.to_string(), value.to_string());
        let clock = threads::in_world(|world: &mut World| world.coordinator_clock()).ok_or_else(late)?;
        self.write(move |store, now| {
            store.expire(now);
            store.keep(&key, &value, clock.after(now, lifetime.as_micros() as Micros));
            Outcome::Written
        })
    }

    fn release(&self, key: &str) -> Result<Outcome> {
        let key = key.to_string();
        self.write(move |store, _| {
            store.release(&key);
            Outcome::Written
        })
    }

    fn watch(&self, prefixes: &[&str], after: Revision, limit: Duration) -> Result<Watched> {
        let end = hekate_threads::now() + limit;
        let prefixes: Vec<String> = prefixes.iter().map(|prefix| (*prefix).into()).collect();
        loop {
            if self.ended.load(Ordering::Relaxed) || threads::is_dying() {
                return Err(Error::Unavailable { what: "the watches have ended".into() });
            }
            let watched = prefixes.clone();
            let found =
                self.read(move |store, now| (store.changes(&watched, after.0, now), Revision(store.revision)))?;
            let left = end.saturating_duration_since(hekate_threads::now());
            match found {
                (None, _) => return Ok(Watched::ReadAgain),
                (Some(keys), revision) if !keys.is_empty() => return Ok(Watched::Changed { keys, revision }),
                (_, revision) if left.is_zero() => return Ok(Watched::Unchanged { revision }),
                _ => _ = threads::wait(Some(WATCHES), Some(left.min(WATCH_PAUSE))),
            }
        }
    }

    fn end_watches(&self) {
        self.ended.store(true, Ordering::Relaxed);
        threads::in_world(|world: &mut World| world.wake(WATCHES));
    }
}

#[cfg(test)]
mod tests;
