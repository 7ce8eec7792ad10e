//! The configurations of the lane that tests explore.

use super::{Lane, Rules};
use crate::scope::{Line, Scope};
use crate::scopes::scope;
use crate::state::Budget;

const NO_FAULTS: Budget =
    Budget { deaths: 0, kills: 0, cuts: 0, blackouts: 0, suspicions: 0, timeouts: 0, hasty_reads: 0 };

const fn write(cell: u8) -> Line {
    Line::Fast { shard: 0, cell }
}

fn lane(name: &'static str, replicas: u8, scripts: &[&[Line]], faults: Budget) -> Lane {
    Lane {
        scope: Scope { power: true, states_max: 2_000_000, ..scope(name, replicas, scripts, faults) },
        rules: Rules::all(),
    }
}

/// What is explored by `cargo test`.
pub fn small() -> Vec<Lane> {
    let two: &[&[Line]] = &[&[write(0), write(0)]];
    let three: &[&[Line]] = &[&[write(0), write(0), write(1)]];
    let rivals: &[&[Line]] = &[&[write(1), write(0)], &[write(0)]];
    let hasty = Budget { hasty_reads: 1, ..NO_FAULTS };
    vec![
        lane("lane", 2, rivals, Budget { deaths: 1, timeouts: 1, ..hasty }),
        lane("lane, three writes", 2, three, Budget { timeouts: 1, ..hasty }),
        lane("lane, kill", 2, two, Budget { kills: 1, timeouts: 1, ..hasty }),
        lane("lane, suspicion", 2, two, Budget { suspicions: 1, timeouts: 1, ..hasty }),
        lane("lane, three writes, suspicion", 2, three, Budget { suspicions: 1, ..NO_FAULTS }),
        lane("lane, two suspicions", 2, two, Budget { suspicions: 2, ..NO_FAULTS }),
        lane("lane, three replicas", 3, two, Budget { timeouts: 1, ..hasty }),
        lane("lane, three replicas, suspicion", 3, two, Budget { suspicions: 1, ..NO_FAULTS }),
    ]
}

/// What `make soak` explores as well.
pub fn large() -> Vec<Lane> {
    let two: &[&[Line]] = &[&[write(0), write(0)]];
    let three: &[&[Line]] = &[&[write(0), write(0), write(1)]];
    let rivals: &[&[Line]] = &[&[write(1), write(0)], &[write(0)]];
    let hasty = Budget { hasty_reads: 1, ..NO_FAULTS };
    let mut lanes = vec![
        lane("lane, rivals and suspicion", 2, rivals, Budget { suspicions: 1, ..hasty }),
        lane("lane, suspicion and kill", 2, two, Budget { suspicions: 1, kills: 1, ..NO_FAULTS }),
        lane("lane, three writes, suspicion and kill", 2, three, Budget { suspicions: 1, kills: 1, ..NO_FAULTS }),
        lane("lane, two suspicions, three writes", 2, three, Budget { suspicions: 2, ..NO_FAULTS }),
        lane("lane, two kills", 2, three, Budget { kills: 2, ..NO_FAULTS }),
        lane("lane, three replicas, kill", 3, two, Budget { kills: 1, ..NO_FAULTS }),
        lane("lane, three replicas, rivals", 3, rivals, Budget { deaths: 1, timeouts: 1, ..hasty }),
    ];
    for lane in &mut lanes {
        lane.scope.states_max = 12_000_000;
    }
    lanes
}

/// One of them, by name.
pub fn named(name: &str) -> Lane {
    let found = small().into_iter().chain(large()).find(|lane| lane.scope.name == name);
    found.unwrap_or_else(|| unreachable!("there is no configuration {name}"))
}
