//! The watch: one stream of changes for the process, which all waits share.
//!
//! Invariant: a change after the revision of a wait is reported, or the wait says that its caller has to read again.

use crate::gateway::{Gateway, Stream};
use crate::messages::{Range, WatchLine, WatchResult, decoded, encoded, end_of};
use crate::store::{KEYS, RANGE};
use hekate_cluster::coordinator::Changes;
use hekate_cluster::{CLOSED, Revision, Watched};
use hekate_proto::{Error, Result};
use hekate_threads::{Condvar, Mutex, elapsed, now, sleep};
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Weak};
use std::time::Duration;

const WATCH: &str = "/v3/watch";
/// Time until the next attempt if no stream can be opened, or one has ended before this time.
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// Longest line, in bytes: all changes of one transaction, with their values.
const LINE_MAX: u64 = 64 << 20;

/// The changes of the keys.
pub struct Watch(Arc<Shared>);

struct Shared {
    gateway: Arc<Gateway>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// `None` before the first wait, and after changes were missed.
    changes: Option<Changes>,
    /// Number of times that `changes` was begun: a stream that was opened before does not fit.
    begun: u64,
    /// The highest revision after which a wait has waited since then, also if no key of the stream has it.
    waited_after: Revision,
    is_running: bool,
    has_ended: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

impl Watch {
    pub fn new(gateway: Arc<Gateway>) -> Self {
        Self(Arc::new(Shared { gateway, state: Mutex::new(State::default()), changed: Condvar::new() }))
    }

    /// See [`hekate_cluster::Coordinator::watch`].
    pub fn watch(&self, prefixes: &[&str], after: Revision, limit: Duration) -> Result<Watched> {
        let end = now() + limit;
        let is_of_another_store = after > self.0.revision()?;
        let mut state = self.0.state.lock();
        if is_of_another_store {
            self.0.forget(&mut state);
            return Ok(Watched::ReadAgain);
        }
        if state.changes.is_none() {
            state.changes = Some(Changes::new(after));
            state.begun += 1;
            state.waited_after = after;
        }
        state.waited_after = state.waited_after.max(after);
        if !state.is_running && !state.has_ended {
            let shared = Arc::downgrade(&self.0);
            hekate_threads::spawn("etcd-watch", move || run(&shared)).map_err(|e| Error::io("start a thread", e))?;
            state.is_running = true;
        }
        loop {
            if state.has_ended {
                return Err(Error::Unavailable { what: "this process stops".into() });
            }
            let Some(changes) = &state.changes else { return Ok(Watched::ReadAgain) };
            // The revision counts renewals of kept keys too, which are not in the stream.
            let last = changes.last().max(after);
            match changes.after(after, prefixes) {
                None => return Ok(Watched::ReadAgain),
                Some(keys) if !keys.is_empty() => return Ok(Watched::Changed { keys, revision: last }),
                Some(_) if now() >= end => return Ok(Watched::Unchanged { revision: last }),
                Some(_) => _ = self.0.changed.wait_until(&mut state, end),
            }
        }
    }

    pub fn end(&self) {
        self.0.state.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// The store's revision.
    fn revision(&self) -> Result<Revision> {
        let nothing = json!({ "key": encoded(CLOSED), "count_only": true });
        let found: Range = self.gateway.read(RANGE, &nothing)?;
        Ok(Revision(found.header.revision))
    }

    /// Changes are missed: all waits say that their callers have to read again.
    fn forget(&self, state: &mut State) {
        state.changes = None;
        self.changed.notify_all();
    }

    /// Opens the stream after a revision. `None` if the store has not come as far as `seen`: it is another one, or an
    /// older copy of it, whose changes may have revisions that were seen before.
    fn open(&self, last: Revision, seen: Revision) -> Result<Option<Stream<impl Read + use<>>>> {
        if self.revision()? < seen {
            return Ok(None);
        }
        let first = last.0.saturating_add(1).to_string();
        let range = json!({ "key": encoded(KEYS), "range_end": encoded(end_of(KEYS)), "start_revision": first });
        self.gateway.stream(WATCH, &json!({ "create_request": range })).map(Some)
    }

    /// Takes over one line of a stream. Returns false if the stream has ended.
    fn take(&self, begun: u64, result: &WatchResult) -> bool {
        let mut state = self.state.lock();
        if state.has_ended || state.begun != begun {
            return false;
        }
        // A stream is cancelled if the history after its first revision was discarded.
        let is_missed = result.canceled || !state.changes.as_mut().is_some_and(|changes| add(changes, result));
        if is_missed {
            self.forget(&mut state);
        } else {
            self.changed.notify_all();
        }
        !is_missed
    }
}

/// Returns false if the revisions are not in order.
pub(crate) fn add(changes: &mut Changes, result: &WatchResult) -> bool {
    for event in &result.events {
        let revision = Revision(event.kv.mod_revision);
        if revision < changes.last() {
            return false;
        }
        match decoded(&event.kv.key) {
            Ok(key) => changes.add_at(revision, [&key[..]]),
            Err(error) => log::debug!("a change of a key that is not of the cluster: {error}"),
        }
    }
    true
}

/// Reads the stream, and opens it again after the last change if it ends.
fn run(shared: &Weak<Shared>) {
    loop {
        let Some(here) = shared.upgrade() else { return };
        let opened = now();
        let last = {
            let state = here.state.lock();
            if state.has_ended {
                return;
            }
            let changes = state.changes.as_ref();
            changes.map(|changes| (changes.last(), changes.last().max(state.waited_after), state.begun))
        };
        // A wait begins anew with the revision that it has read.
        if let Some((last, seen, begun)) = last {
            match here.open(last, seen) {
                Ok(Some(mut stream)) => {
                    drop(here);
                    if !follow(shared, begun, &mut stream.lines) {
                        shared.upgrade().inspect(|here| here.gateway.leave(&stream));
                    }
                }
                Ok(None) => {
                    let mut state = here.state.lock();
                    if state.begun == begun {
                        here.forget(&mut state);
                    }
                }
                Err(error) => log::debug!("changes: {error}"),
            }
        }
        if elapsed(opened) < RETRY_PAUSE {
            sleep(RETRY_PAUSE);
        }
    }
}

/// Takes over the changes of a stream until it ends. Returns false if its endpoint does not answer as a member of etcd
/// does which knows a leader.
fn follow(shared: &Weak<Shared>, begun: u64, stream: &mut impl Read) -> bool {
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    let mut is_begun = false;
    loop {
        line.clear();
        match lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return is_begun,
            Ok(_) => {}
        }
        let Some(shared) = shared.upgrade() else { return true };
        let parsed: std::result::Result<WatchLine, _> = serde_json::from_slice(&line);
        let Ok(WatchLine { result: Some(result) }) = parsed else { return false };
        is_begun = true;
        if !shared.take(begun, &result) {
            return true;
        }
    }
}
