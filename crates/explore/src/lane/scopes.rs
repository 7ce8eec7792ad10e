//! The configurations of the lane that tests explore.

use super::{Lane, Rules};
use crate::scope::{Line, Scope};
use crate::scopes::scope;
use crate::state::Budget;

const fn write(cell: u8) -> Line {
    Line::Fast { shard: 0, cell }
}

const TWO: &[&[Line]] = &[&[write(0), write(0)]];
const THREE: &[&[Line]] = &[&[write(0), write(0), write(1)]];
const RIVALS: &[&[Line]] = &[&[write(1), write(0)], &[write(0)]];
/// The second one settles the one before, in another cell.
const SYNCED: &[&[Line]] = &[&[write(0), write(0), Line::Sync]];
const THREE_SYNCED: &[&[Line]] = &[&[write(0), write(0), write(1), Line::Sync]];
const HASTY: Budget = Budget { hasty_reads: 1, ..Budget::NONE };
const CUT: Budget = Budget { cuts: 1, ..Budget::NONE };
const BLACKOUT: Budget = Budget { blackouts: 1, ..Budget::NONE };

fn lane(name: &'static str, replicas: u8, scripts: &[&[Line]], faults: Budget) -> Lane {
    Lane {
        scope: Scope { power: true, states_max: 2_000_000, ..scope(name, replicas, scripts, faults) },
        rules: Rules::all(),
        loose: false,
        durable: 0,
    }
}

/// Its fast writes are answered before they are on stable storage.
fn loose(name: &'static str, replicas: u8, scripts: &[&[Line]], faults: Budget) -> Lane {
    Lane { loose: true, ..lane(name, replicas, scripts, faults) }
}

/// What is explored by `cargo test`.
pub fn small() -> Vec<Lane> {
    vec![
        lane("lane", 2, RIVALS, Budget { deaths: 1, timeouts: 1, ..HASTY }),
        lane("lane, three writes", 2, THREE, Budget { timeouts: 1, ..HASTY }),
        lane("lane, kill", 2, TWO, Budget { kills: 1, timeouts: 1, ..HASTY }),
        lane("lane, suspicion", 2, TWO, Budget { suspicions: 1, timeouts: 1, ..HASTY }),
        lane("lane, three writes, suspicion", 2, THREE, Budget { suspicions: 1, ..Budget::NONE }),
        lane("lane, two suspicions", 2, TWO, Budget { suspicions: 2, ..Budget::NONE }),
        lane("lane, three replicas", 3, TWO, Budget { timeouts: 1, ..HASTY }),
        lane("lane, three replicas, suspicion", 3, TWO, Budget { suspicions: 1, ..Budget::NONE }),
        loose("loose, power cut", 2, THREE, CUT),
        loose("loose, blackout", 2, THREE, BLACKOUT),
        loose("loose, power cut and fsync", 2, SYNCED, CUT),
        loose("loose, blackout and fsync", 2, SYNCED, BLACKOUT),
    ]
}

/// What `make soak` explores as well.
pub fn large() -> Vec<Lane> {
    let mut lanes = vec![
        lane("lane, rivals and suspicion", 2, RIVALS, Budget { suspicions: 1, ..HASTY }),
        lane("lane, suspicion and kill", 2, TWO, Budget { suspicions: 1, kills: 1, ..Budget::NONE }),
        lane("lane, three writes, suspicion and kill", 2, THREE, Budget { suspicions: 1, kills: 1, ..Budget::NONE }),
        lane("lane, two suspicions, three writes", 2, THREE, Budget { suspicions: 2, ..Budget::NONE }),
        lane("lane, two kills", 2, THREE, Budget { kills: 2, ..Budget::NONE }),
        lane("lane, three replicas, kill", 3, TWO, Budget { kills: 1, ..Budget::NONE }),
        lane("lane, three replicas, rivals", 3, RIVALS, Budget { deaths: 1, timeouts: 1, ..HASTY }),
        loose("loose, three writes, power cut and fsync", 2, THREE_SYNCED, CUT),
        loose("loose, three writes, blackout and fsync", 2, THREE_SYNCED, BLACKOUT),
        loose("loose, power cut and kill", 2, THREE, Budget { kills: 1, ..CUT }),
        loose("loose, blackout and kill", 2, THREE, Budget { kills: 1, ..BLACKOUT }),
        loose("loose, power cut and suspicion", 2, THREE, Budget { suspicions: 1, ..CUT }),
        loose("loose, blackout and suspicion", 2, THREE, Budget { suspicions: 1, ..BLACKOUT }),
        loose("loose, power cut and time-out", 2, THREE, Budget { timeouts: 1, ..CUT }),
        loose("loose, two power cuts", 2, TWO, Budget { cuts: 2, ..CUT }),
        loose("loose, two writes, blackout and two kills", 2, TWO, Budget { kills: 2, ..BLACKOUT }),
        loose("loose, rivals, power cut", 2, RIVALS, CUT),
        loose("loose, rivals, blackout", 2, RIVALS, BLACKOUT),
        loose("loose, three replicas, power cut", 3, TWO, CUT),
        loose("loose, three replicas, blackout", 3, TWO, BLACKOUT),
        loose("loose, three replicas, blackout and kill", 3, TWO, Budget { kills: 1, ..BLACKOUT }),
    ];
    for lane in &mut lanes {
        lane.scope.states_max = 16_000_000;
    }
    lanes
}

/// One of them, by name.
pub fn named(name: &str) -> Lane {
    let found = small().into_iter().chain(large()).find(|lane| lane.scope.name == name);
    found.unwrap_or_else(|| unreachable!("there is no configuration {name}"))
}
