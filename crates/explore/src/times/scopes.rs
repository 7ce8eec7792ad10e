//! The configurations of times that tests explore.

use super::{Line, Rules, Times};
use crate::state::Budget;

const NO_FAULTS: Budget =
    Budget { deaths: 0, kills: 0, cuts: 0, blackouts: 0, suspicions: 0, timeouts: 0, hasty_reads: 0 };

fn times(name: &'static str, replicas: u8, scripts: &[&[Line]], faults: Budget) -> Times {
    let scripts = scripts.iter().map(|script| script.to_vec()).collect();
    Times { name, replicas, scripts, faults, rules: Rules::all(), states_max: 3_000_000 }
}

/// What is explored by `cargo test`.
pub fn small() -> Vec<Times> {
    let writes: &[&[Line]] = &[&[Line::Write, Line::Write]];
    let copied: &[&[Line]] = &[&[Line::Write, Line::Write, Line::Set]];
    let again: &[&[Line]] = &[&[Line::Write, Line::Set, Line::Write]];
    let changed: &[&[Line]] = &[&[Line::Write, Line::Write], &[Line::Change]];
    let writers: &[&[Line]] = &[&[Line::Write], &[Line::Write]];
    vec![
        times("times, kill and suspicion", 2, writes, Budget { kills: 1, suspicions: 1, ..NO_FAULTS }),
        times("times, two suspicions", 2, changed, Budget { suspicions: 2, ..NO_FAULTS }),
        times("times, set, two suspicions", 2, copied, Budget { suspicions: 2, ..NO_FAULTS }),
        times("times, set and written, suspicion", 2, again, Budget { suspicions: 1, kills: 1, ..NO_FAULTS }),
        times("times, power cut", 2, changed, Budget { cuts: 1, ..NO_FAULTS }),
        times("times, blackout", 2, changed, Budget { blackouts: 1, ..NO_FAULTS }),
        times("times, two writers, blackout", 2, writers, Budget { blackouts: 1, ..NO_FAULTS }),
        times("times, three replicas", 3, writes, Budget { suspicions: 1, ..NO_FAULTS }),
    ]
}

/// What `make soak` explores as well.
pub fn large() -> Vec<Times> {
    let writes: &[&[Line]] = &[&[Line::Write, Line::Write]];
    let copied: &[&[Line]] = &[&[Line::Write, Line::Write, Line::Set]];
    let mut all = vec![
        times("times, power cut and suspicion", 2, writes, Budget { cuts: 1, suspicions: 1, ..NO_FAULTS }),
        times("times, set, blackout and kill", 2, copied, Budget { blackouts: 1, kills: 1, ..NO_FAULTS }),
        times("times, three replicas, two faults", 3, writes, Budget { suspicions: 1, kills: 1, ..NO_FAULTS }),
    ];
    all.iter_mut().for_each(|one| one.states_max = 12_000_000);
    all
}

/// One of them, by name.
pub fn named(name: &str) -> Times {
    let found = small().into_iter().chain(large()).find(|times| times.name == name);
    found.unwrap_or_else(|| unreachable!("there is no configuration {name}"))
}
