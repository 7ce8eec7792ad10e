//! The configurations of times that tests explore.

use super::{Line, Rules, Times};
use crate::state::Budget;

const WRITES: &[&[Line]] = &[&[Line::Write, Line::Write]];
const COPIED: &[&[Line]] = &[&[Line::Write, Line::Write, Line::Set]];
const AGAIN: &[&[Line]] = &[&[Line::Write, Line::Set, Line::Write]];
const CHANGED: &[&[Line]] = &[&[Line::Write, Line::Write], &[Line::Change]];
const WRITERS: &[&[Line]] = &[&[Line::Write], &[Line::Write]];

fn times(name: &'static str, replicas: u8, scripts: &[&[Line]], faults: Budget) -> Times {
    let scripts = scripts.iter().map(|script| script.to_vec()).collect();
    Times { name, replicas, scripts, faults, rules: Rules::all(), states_max: 3_000_000 }
}

/// Explored by `cargo test`.
pub fn small() -> Vec<Times> {
    vec![
        times("times, kill and suspicion", 2, WRITES, Budget { kills: 1, suspicions: 1, ..Budget::NONE }),
        times("times, two suspicions", 2, CHANGED, Budget { suspicions: 2, ..Budget::NONE }),
        times("times, set, two suspicions", 2, COPIED, Budget { suspicions: 2, ..Budget::NONE }),
        times("times, set and written, suspicion", 2, AGAIN, Budget { suspicions: 1, kills: 1, ..Budget::NONE }),
        times("times, power cut", 2, CHANGED, Budget { cuts: 1, ..Budget::NONE }),
        times("times, blackout", 2, CHANGED, Budget { blackouts: 1, ..Budget::NONE }),
        times("times, two writers, blackout", 2, WRITERS, Budget { blackouts: 1, ..Budget::NONE }),
        times("times, three replicas", 3, WRITES, Budget { suspicions: 1, ..Budget::NONE }),
    ]
}

/// Explored by `make soak` as well.
pub fn large() -> Vec<Times> {
    let mut all = vec![
        times("times, power cut and suspicion", 2, WRITES, Budget { cuts: 1, suspicions: 1, ..Budget::NONE }),
        times("times, set, blackout and kill", 2, COPIED, Budget { blackouts: 1, kills: 1, ..Budget::NONE }),
        times("times, three replicas, two faults", 3, WRITES, Budget { suspicions: 1, kills: 1, ..Budget::NONE }),
    ];
    all.iter_mut().for_each(|one| one.states_max = 12_000_000);
    all
}

/// A configuration by name.
pub fn named(name: &str) -> Times {
    let found = small().into_iter().chain(large()).find(|times| times.name == name);
    found.unwrap_or_else(|| unreachable!("there is no configuration {name}"))
}
