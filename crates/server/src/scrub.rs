//! Scrubbing the bricks while they serve: a pass a week, or when somebody asks; what it finds is mended.

use crate::node::Node;
use crate::repair::{Mended, mend, words};
use hekate_brick::{Brick, Finding, ScrubCursor, data_file_path};
use hekate_proto::*;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a round comes, and what it reads at most of a brick: 32 MiB/s.
pub const ROUND_PAUSE: Duration = Duration::from_millis(100);
const ROUND_BYTES: u64 = 3 << 20;
/// From the start of the server to the first pass, and from the end of a pass to the next.
const FIRST_PASS_AFTER: Duration = Duration::from_secs(15 * 60);
const NEXT_PASS_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// Damaged things that are named.
const NAMED_MAX: usize = 100;

/// What is known of each brick's passes.
#[derive(Default)]
pub struct Scrubs(Mutex<HashMap<BrickId, Passes>>);

#[derive(Default)]
struct Passes {
    asked: bool,
    running: Option<Pass>,
    last: Option<(Instant, Pass)>,
    /// Why the last pass did not come to its end.
    error: Option<Error>,
}

/// A pass over a brick.
#[derive(Default, Clone)]
struct Pass {
    cursor: ScrubCursor,
    bytes: u64,
    strays: u64,
    mended: u64,
    damaged: u64,
    named: BTreeSet<String>,
}

impl Scrubs {
    /// A pass over this brick begins now, unless one is running.
    pub fn ask(&self, brick: BrickId) {
        let mut all = self.0.lock();
        let passes = all.entry(brick).or_default();
        (passes.asked, passes.error) = (true, None);
    }

    /// How the running pass and the last one went.
    pub fn show(&self, brick: BrickId) -> Value {
        let all = self.0.lock();
        let Some(passes) = all.get(&brick) else {
            return json!({ "state": "waits", "now": null, "last": null, "error": null });
        };
        let state = if passes.running.is_some() || passes.asked { "runs" } else { "waits" };
        let last = passes.last.as_ref().map(|(ended, pass)| {
            let mut shown = pass.show();
            shown["ended_seconds_ago"] = ended.elapsed().as_secs().into();
            shown
        });
        json!({ "state": state, "now": passes.running.as_ref().map(Pass::show), "last": last,
            "error": passes.error.as_ref().map(ToString::to_string) })
    }

    /// What is damaged and was not mended, by the last pass or the running one.
    pub fn damaged(&self) -> u64 {
        let count = |passes: &Passes| {
            let last = passes.last.as_ref().map_or(0, |(_, pass)| pass.damaged);
            passes.running.as_ref().map_or(0, |pass| pass.damaged).max(last)
        };
        self.0.lock().values().map(count).sum()
    }
}

impl Pass {
    fn show(&self) -> Value {
        json!({
            "bytes_checked": self.bytes,
            "mended": self.mended,
            "damaged": self.damaged,
            "stray_files_removed": self.strays,
            "damage": self.named,
        })
    }

    fn note(&mut self, finding: &Finding, outcome: Mended) {
        match (finding, outcome) {
            (Finding::Stray { .. }, _) => self.strays += 1,
            (_, Mended::Yes) => self.mended += 1,
            (_, Mended::NotNeeded) => {}
            (_, Mended::No) => {
                self.damaged += 1;
                if self.named.len() < NAMED_MAX {
                    self.named.insert(describe(finding));
                }
            }
        }
    }
}

fn describe(finding: &Finding) -> String {
    match finding {
        Finding::Block { shard, block, .. } => format!("block {block} of {}", data_file_path(*shard)),
        Finding::Entry { key } => format!("entry {key:?}"),
        Finding::Stray { path } => format!("file {path}"),
    }
}

/// A piece of every brick whose pass is due.
pub fn round(node: &Node) -> Result<()> {
    for brick in node.bricks.values() {
        if brick.status()?.poisoned.is_none() {
            round_of(node, brick)?;
        }
    }
    Ok(())
}

fn round_of(node: &Node, brick: &Arc<Brick>) -> Result<()> {
    let Some(mut pass) = begin(node, brick.id()) else { return Ok(()) };
    let until = pass.bytes + ROUND_BYTES;
    let outcome = (|| {
        while !pass.cursor.is_done() && pass.bytes < until {
            let step = brick.scrub(&mut pass.cursor)?;
            // Directories without files cost nothing and end the round as well.
            pass.bytes += step.bytes.max(4096);
            for finding in &step.findings {
                // Whatever keeps it from being mended, it is damaged.
                let outcome = mend(node, brick, finding).unwrap_or(Mended::No);
                log::warn!("scrub of brick {}: {}: {}", brick.id().text(), describe(finding), words(outcome));
                pass.note(finding, outcome);
            }
        }
        Ok(())
    })();
    let mut all = node.scrubs.0.lock();
    let passes = all.entry(brick.id()).or_default();
    passes.running = None;
    passes.error = outcome.as_ref().err().cloned();
    if pass.cursor.is_done() {
        passes.last = Some((Instant::now(), pass));
    } else if outcome.is_ok() {
        passes.running = Some(pass);
    }
    outcome
}

/// The running pass, or a new one if it is time.
fn begin(node: &Node, brick: BrickId) -> Option<Pass> {
    let mut all = node.scrubs.0.lock();
    let passes = all.entry(brick).or_default();
    if let Some(running) = &passes.running {
        return Some(running.clone());
    }
    let due = match &passes.last {
        Some((ended, _)) => ended.elapsed() > NEXT_PASS_AFTER,
        None => node.started.elapsed() > FIRST_PASS_AFTER,
    };
    if std::mem::take(&mut passes.asked) || due {
        passes.running = Some(Pass::default());
        passes.error = None;
    }
    passes.running.clone()
}
