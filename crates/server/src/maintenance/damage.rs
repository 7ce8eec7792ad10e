//! Damage on this server's bricks that no replica could repair, whether a read, a write or a scrub found it; and bricks
//! that have stopped.
//!
//! An item leaves the list when its brick can read it again: it was repaired, overwritten or removed. The list is in
//! memory: after a restart of the server the next read or scrub finds the damage again.

use crate::hosting::node::Node;
use crate::hosting::own_bricks::OwnBricks;
use crate::maintenance::repair::outcome_text;
use crate::maintenance::scrub::{describe, volume_of};
use hekate_brick::{Brick, Finding};
use hekate_control::peer::Repaired;
use hekate_control::status::DamagedItem;
use hekate_proto::*;
use hekate_threads::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// Items that are kept, of some 200 bytes each. Further ones are logged, and added by the next scrub when there is
/// room.
const KEPT_MAX: usize = 10_000;
/// Items that are read again in one round: at most 64 blocks of 4 KiB every 100 ms.
const LOOKED_AT_ONCE: usize = 64;
/// Items that `hekate status` lists.
const NAMED_MAX: usize = 100;

/// The brick, and the description of what is damaged on it.
type Place = (BrickId, String);

/// The damaged items of this server's bricks.
#[derive(Default)]
pub struct Damages {
    known: Mutex<BTreeMap<Place, Finding>>,
    /// The item that was read again last; the next round begins behind it.
    looked_at: Mutex<Option<Place>>,
    /// Stopped bricks that the log has named.
    stopped: Mutex<BTreeSet<BrickId>>,
}

impl Damages {
    /// The number of items that are known to be damaged now.
    pub fn count(&self) -> u64 {
        self.known.lock().len() as u64
    }

    /// Adds an item. True if it was not known.
    fn add(&self, place: Place, finding: &Finding) -> bool {
        let mut known = self.known.lock();
        let is_new = !known.contains_key(&place);
        if is_new && known.len() < KEPT_MAX {
            known.insert(place, finding.clone());
        }
        is_new
    }

    /// The items that the next round reads: those behind the last one, then those from the beginning, each once.
    fn next(&self) -> Vec<(Place, Finding)> {
        let (known, mut looked_at) = (self.known.lock(), self.looked_at.lock());
        let last = looked_at.take();
        let behind = known.range((last.clone().map_or(Unbounded, Excluded), Unbounded));
        let before = last.into_iter().flat_map(|last| known.range(..=last));
        let chosen = behind.chain(before).take(LOOKED_AT_ONCE);
        let chosen: Vec<_> = chosen.map(|(place, finding)| (place.clone(), finding.clone())).collect();
        *looked_at = chosen.last().map(|(place, _)| place.clone());
        chosen
    }

    /// Records the outcome of repairing what a read, a write or a scrub found damaged on a brick of this server.
    pub fn note(&self, at: &DamagedAt<'_>, finding: &Finding, outcome: &Result<Repaired>) {
        let item = (at.brick.id(), describe(finding));
        let name = &at.name;
        match outcome {
            Ok(done @ (Repaired::Yes | Repaired::NotNeeded)) => {
                self.known.lock().remove(&item);
                log::warn!("{} on brick {name}: {}", item.1, outcome_text(*done));
            }
            // A brick that stops is logged as stopped, and is replaced as a whole.
            Ok(Repaired::KeyLost) => {}
            _ if at.brick.stopped().is_some() => {}
            Ok(Repaired::No) | Err(_) => {
                let (volume, what) = (&at.volume, item.1.clone());
                if self.add(item, finding) {
                    let why = outcome.as_ref().err().map_or(outcome_text(Repaired::No).to_string(), |error| {
                        format!("damaged, and it cannot be repaired now: {error}")
                    });
                    let then = match outcome {
                        Err(Error::Unavailable { .. }) => "the next scrub tries again",
                        _ => "programs that read it get EIO. Restore the file from a backup, or remove it",
                    };
                    log::error!("volume {volume}: {what} on brick {name}: {why}; {then}");
                }
            }
        }
    }

    /// Reads some of the damaged items again, and logs bricks that have stopped.
    pub fn round(&self, bricks: &OwnBricks) {
        bricks.values().for_each(|brick| self.log_stopped(bricks, brick));
        for (place, finding) in self.next() {
            let brick = bricks.get(&place.0).filter(|brick| brick.stopped().is_none());
            // A stopped brick is not read: it is replaced as a whole.
            let Some(brick) = brick else {
                self.known.lock().remove(&place);
                continue;
            };
            if is_right(brick, &finding) && self.known.lock().remove(&place).is_some() {
                let name = bricks.name(place.0);
                log::info!("{} on brick {name}: was damaged; it has been overwritten or removed", place.1);
            }
        }
    }

    /// Logs a stopped brick, the first time that it is found stopped.
    fn log_stopped(&self, bricks: &OwnBricks, brick: &Brick) {
        let Some(why) = brick.stopped() else { return };
        if self.stopped.lock().insert(brick.id()) {
            log::error!("{}", stopped_line(&bricks.name(brick.id()), bricks.directory(brick.id()), &why));
        }
    }
}

/// Where damage was found, with the names for the log.
pub struct DamagedAt<'a> {
    brick: &'a Brick,
    name: String,
    volume: String,
}

impl<'a> DamagedAt<'a> {
    pub fn new(node: &Node, brick: &'a Brick, finding: &Finding) -> Self {
        Self { brick, name: node.bricks.name(brick.id()), volume: volume_name(node, finding) }
    }
}

fn volume_name(node: &Node, finding: &Finding) -> String {
    let volume = volume_of(finding);
    node.volumes.name(volume).unwrap_or_else(|| format!("number {}", volume.0))
}

/// The damaged items for `hekate status`.
pub fn rows(node: &Node) -> Vec<DamagedItem> {
    let known: Vec<_> =
        node.maintenance.damages.known.lock().iter().take(NAMED_MAX).map(|(p, f)| (p.clone(), f.clone())).collect();
    let row = |((brick, what), finding): (Place, Finding)| DamagedItem {
        volume: volume_name(node, &finding),
        what,
        brick,
        directory: node.bricks.directory(brick).map(String::from),
        server: node.cluster.server(),
    };
    known.into_iter().map(row).collect()
}

fn is_right(brick: &Brick, finding: &Finding) -> bool {
    match finding {
        Finding::Block { ring, shard, block } => match brick.shard(*ring, *shard) {
            Ok(None) => true,
            Ok(Some(_)) => brick.read_block(*ring, *shard, *block).is_ok(),
            Err(_) => false,
        },
        Finding::Entry { key } => brick.get(key).is_ok(),
        Finding::Stray { .. } => true,
    }
}

/// The log line for a stopped brick: the cause, and what to do.
fn stopped_line(name: &str, directory: Option<&String>, why: &str) -> String {
    let called = directory.map_or(name, String::as_str);
    format!(
        "brick {name} has stopped: {why}. Its partitions go on if they have enough other replicas. If its disk has \
         failed: hekate brick replace {called} NEW-DIR on this server; else restart the server, and it is healed"
    )
}
