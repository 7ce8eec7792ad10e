//! Waits for changes of the coordinator's records, and wakes the threads that read them.
//!
//! Invariant: a change is never missed. The revision is read before the threads are woken for the first time, and the
//! watch continues after it; they read once more for each change after that.

use crate::hosting::node::Node;
use hekate_cluster::{Revision, Watched};
use hekate_proto::Result;
use std::time::Duration;

/// Time between two watches: changes that follow each other closely wake the threads once.
pub const PAUSE: Duration = Duration::from_millis(20);
/// Time until the next attempt if the coordinator does not answer.
pub const RETRY_PAUSE: Duration = Duration::from_millis(750);
/// The longest wait for a change.
const WATCH_LIMIT: Duration = Duration::from_secs(60);

/// Keys of the servers' leases, with the bricks that have stopped. A renewal of a lease does not change its value.
const ALIVE: &str = "/alive/";
const BRICKS: &str = "/bricks/";
/// Rings, with their views.
const RINGS: &str = "/rings/";
const PREFIXES: [&str; 6] = [ALIVE, BRICKS, RINGS, "/servers/", "/sessions/", "/volumes/"];

/// A watch of the records.
#[derive(Default)]
pub struct Watch {
    /// The threads have been woken for all changes up to this revision. None: they have to read everything.
    seen: Option<Revision>,
}

impl Watch {
    /// Waits for the next change, and wakes the threads that read what has changed.
    ///
    /// # Errors
    ///
    /// Those of the coordinator; the next call begins anew.
    pub fn wait(&mut self, node: &Node) -> Result<()> {
        if node.views.have_ended() {
            return Ok(());
        }
        let coordinator = node.cluster.registry().coordinator();
        let after = match self.seen.take() {
            Some(after) => after,
            None => {
                let now = coordinator.list("/cluster")?.revision;
                node.wake_views();
                node.wake_records();
                now
            }
        };
        match coordinator.watch(&PREFIXES, after, WATCH_LIMIT) {
            Ok(Watched::Changed { keys, revision }) => {
                wake(node, &keys);
                self.seen = Some(revision);
            }
            Ok(Watched::Unchanged { revision }) => self.seen = Some(revision),
            Ok(Watched::ReadAgain) => {}
            // The server leaves, which has ended the watch.
            Err(_) if node.views.have_ended() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn wake(node: &Node, keys: &[String]) {
    let is_under = |prefixes: &[&str]| keys.iter().any(|key| prefixes.iter().any(|prefix| key.starts_with(prefix)));
    if is_under(&[ALIVE, BRICKS, RINGS]) {
        node.wake_views();
    }
    if !keys.iter().all(|key| key.starts_with(ALIVE)) {
        node.wake_records();
    }
}
