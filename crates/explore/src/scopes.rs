//! The configurations that tests explore: small ones for `cargo test`, larger ones for `make soak`.
//!
//! Each has few faults, so that all of its states can be visited; together they have every kind of fault, and the
//! relevant pairs of faults.

use crate::rules::Rules;
use crate::scope::{Line, Scope};
use crate::state::Budget;

/// The first client writes one cell, others the other one: equal stamps must imply that both cells are equal.
const fn fast(cell: u8) -> Line {
    Line::Fast { shard: 0, cell }
}

const fn led(cell: u8) -> Line {
    Line::Led { shard: 0, cell }
}

pub(crate) fn scope(name: &'static str, replicas: u8, scripts: &[&[Line]], faults: Budget) -> Scope {
    Scope {
        name,
        replicas,
        shards: 1,
        scripts: scripts.iter().map(|script| script.to_vec()).collect(),
        pipeline: 1,
        power: faults.cuts + faults.blackouts > 0,
        faults,
        new: 0,
        background_syncs: false,
        unordered: false,
        late_notes: false,
        rules: Rules::all(),
        states_max: 2_000_000,
    }
}

/// Explored by `cargo test`.
pub fn small() -> Vec<Scope> {
    let two: &[&[Line]] = &[&[fast(0)], &[fast(1)]];
    let one: &[&[Line]] = &[&[fast(0)]];
    let durable: &[&[Line]] = &[&[fast(0), Line::Sync]];
    let lane = Budget { deaths: 1, timeouts: 1, hasty_reads: 1, ..Budget::NONE };
    let pipelined: &[&[Line]] = &[&[fast(0), fast(1)], &[led(0)]];
    let records: &[&[Line]] = &[&[led(0), led(1), Line::Sync]];
    let three: &[&[Line]] = &[&[fast(0)], &[fast(1)], &[led(0)]];
    let hasty = Budget { hasty_reads: 1, ..Budget::NONE };
    vec![
        scope("two clients", 2, two, lane),
        Scope { unordered: true, ..scope("two clients, no order", 2, two, lane) },
        Scope { pipeline: 2, ..scope("pipelined", 2, pipelined, Budget { timeouts: 1, ..Budget::NONE }) },
        scope("three clients", 2, three, Budget::NONE),
        scope("three replicas", 3, two, Budget { deaths: 1, ..Budget::NONE }),
        scope("kill", 2, one, Budget { kills: 1, ..hasty }),
        scope("kill and fsync", 2, durable, Budget { kills: 1, ..Budget::NONE }),
        scope("suspicion", 2, one, Budget { suspicions: 1, ..hasty }),
        scope("two suspicions", 2, one, Budget { suspicions: 2, ..Budget::NONE }),
        scope("suspicion and kill", 2, one, Budget { suspicions: 1, kills: 1, ..Budget::NONE }),
        scope("three replicas, suspicion", 3, one, Budget { suspicions: 1, ..Budget::NONE }),
        Scope { background_syncs: true, ..scope("power cut", 2, durable, Budget { cuts: 1, ..Budget::NONE }) },
        Scope { background_syncs: true, ..scope("blackout", 2, durable, Budget { blackouts: 1, ..Budget::NONE }) },
        Scope {
            background_syncs: true,
            ..scope("blackout of records", 2, records, Budget { blackouts: 1, ..Budget::NONE })
        },
        Scope { new: 2, ..scope("new replica, blackout", 2, durable, Budget { blackouts: 1, ..Budget::NONE }) },
        Scope { new: 2, ..scope("new replica, power cut", 2, durable, Budget { cuts: 1, ..Budget::NONE }) },
    ]
}

/// Configurations that ablations need in addition; too large to be visited completely by `cargo test`.
pub fn middle() -> Vec<Scope> {
    let one: &[&[Line]] = &[&[fast(0)]];
    let durable: &[&[Line]] = &[&[fast(0), Line::Sync]];
    vec![
        scope("power cut and kill", 2, one, Budget { cuts: 1, kills: 1, ..Budget::NONE }),
        scope("suspicion and power cut", 2, one, Budget { suspicions: 1, cuts: 1, ..Budget::NONE }),
        scope("two power cuts", 2, durable, Budget { cuts: 2, ..Budget::NONE }),
    ]
}

/// Explored by `make soak` as well.
pub fn large() -> Vec<Scope> {
    let two: &[&[Line]] = &[&[fast(0)], &[fast(1)]];
    let one: &[&[Line]] = &[&[fast(0)]];
    let pair: &[&[Line]] = &[&[fast(0), fast(1)]];
    let pipelined: &[&[Line]] = &[&[fast(0), fast(1)], &[led(0)]];
    let mut scopes = middle();
    scopes.extend([
        Scope {
            late_notes: true,
            ..scope(
                "two clients, late notes",
                2,
                two,
                Budget { deaths: 1, hasty_reads: 1, timeouts: 1, ..Budget::NONE },
            )
        },
        scope("three replicas, two clients", 3, two, Budget { deaths: 1, hasty_reads: 1, timeouts: 1, ..Budget::NONE }),
        scope("two clients, kill", 2, two, Budget { kills: 1, ..Budget::NONE }),
        scope("two clients, suspicion", 2, two, Budget { suspicions: 1, ..Budget::NONE }),
        Scope { pipeline: 2, ..scope("pipelined, suspicion", 2, pair, Budget { suspicions: 1, ..Budget::NONE }) },
        Scope {
            pipeline: 2,
            unordered: true,
            ..scope("pipelined, no order", 2, pipelined, Budget { timeouts: 1, ..Budget::NONE })
        },
        scope("three replicas, kill", 3, one, Budget { kills: 1, ..Budget::NONE }),
    ]);
    for scope in &mut scopes {
        scope.states_max = 12_000_000;
    }
    scopes
}

/// A configuration by name.
pub fn named(name: &str) -> Scope {
    let found = small().into_iter().chain(middle()).find(|scope| scope.name == name);
    found.unwrap_or_else(|| unreachable!("there is no scope {name}"))
}
