//! The configurations of the fast lane that tests explore.

use super::{Action, Lane, Rules};
use crate::scope::{Line, Scope};
use crate::scopes::scope;
use crate::state::Budget;

const fn write(cell: u8) -> Line {
    Line::Fast { shard: 0, cell }
}

const TWO: &[&[Line]] = &[&[write(0), write(0)]];
/// The third write settles the second, in another cell.
const THREE: &[&[Line]] = &[&[write(0), write(0), write(1)]];
/// A shard is reconciled in two records, the last write's cell first.
const ZIGZAG: &[&[Line]] = &[&[write(0), write(1), write(0)]];
/// Each write makes the shard longer.
const GROWING: &[&[Line]] = &[&[write(0), write(1)]];
const RIVALS: &[&[Line]] = &[&[write(1), write(0)], &[write(0)]];
const ONE_SYNCED: &[&[Line]] = &[&[write(0), Line::Sync]];
const SYNCED: &[&[Line]] = &[&[write(0), write(0), Line::Sync]];
const HASTY: Budget = Budget { hasty_reads: 1, ..Budget::NONE };
const CUT: Budget = Budget { cuts: 1, ..Budget::NONE };
const BLACKOUT: Budget = Budget { blackouts: 1, ..Budget::NONE };

fn lane(name: &'static str, replicas: u8, scripts: &[&[Line]], faults: Budget) -> Lane {
    Lane {
        scope: Scope { power: true, states_max: 2_000_000, ..scope(name, replicas, scripts, faults) },
        rules: Rules::all(),
        loose: false,
        durable: 0,
        grows: false,
        warm: false,
        after: Vec::new(),
    }
}

/// The shard grows with the writes.
fn growing(name: &'static str, replicas: u8, scripts: &[&[Line]], faults: Budget) -> Lane {
    Lane { grows: true, ..lane(name, replicas, scripts, faults) }
}

/// Fast writes are answered before they are on stable storage.
fn loose(name: &'static str, replicas: u8, scripts: &[&[Line]], faults: Budget) -> Lane {
    Lane { loose: true, ..lane(name, replicas, scripts, faults) }
}

/// Two faults; the first write is done at the start.
fn warm(name: &'static str, replicas: u8, scripts: &[&[Line]], faults: Budget) -> Lane {
    Lane { warm: true, ..loose(name, replicas, scripts, faults) }
}

/// Two loose writes to three replicas, the second one to two of them; then all machines lose power.
fn after_blackout(name: &'static str, kept: [u8; 3]) -> Lane {
    let arrive = |replica: u8| Action::Arrive { replica, index: 0 };
    let begin = Action::Begin { client: 0 };
    let mut after = vec![begin, arrive(0), arrive(1), arrive(2), Action::Ack { client: 0 }, begin];
    after.extend((0..3).filter(|at| *at == 0 || kept[*at as usize] == 2).map(arrive));
    after.push(Action::Blackout { kept });
    after.extend([0, 1, 2].map(|replica| Action::Start { replica }));
    Lane { after, ..warm(name, 3, THREE, Budget { kills: 1, ..BLACKOUT }) }
}

/// Two loose writes, the second one to both replicas or to the leader only, whose process is then killed.
fn after_kill(name: &'static str, faults: Budget) -> Lane {
    let arrive = |replica: u8| Action::Arrive { replica, index: 0 };
    let begin = Action::Begin { client: 0 };
    let after =
        vec![begin, arrive(0), arrive(1), Action::Ack { client: 0 }, begin, arrive(0), Action::Kill { replica: 0 }];
    Lane { after, ..warm(name, 2, THREE, Budget { kills: 1, ..faults }) }
}

/// Explored by `cargo test`.
pub fn small() -> Vec<Lane> {
    vec![
        lane("lane", 2, RIVALS, Budget { deaths: 1, timeouts: 1, ..HASTY }),
        lane("lane, three writes", 2, THREE, Budget { timeouts: 1, ..HASTY }),
        lane("lane, kill", 2, TWO, Budget { kills: 1, timeouts: 1, ..HASTY }),
        lane("lane, suspicion", 2, TWO, Budget { suspicions: 1, timeouts: 1, ..HASTY }),
        lane("lane, three writes, suspicion", 2, THREE, Budget { suspicions: 1, ..Budget::NONE }),
        lane("lane, two suspicions", 2, TWO, Budget { suspicions: 2, ..Budget::NONE }),
        lane("lane, two records, suspicion", 2, ZIGZAG, Budget { suspicions: 1, ..Budget::NONE }),
        lane("lane, three replicas", 3, TWO, Budget { timeouts: 1, ..HASTY }),
        growing("lane, growing", 2, &[&[write(0), write(1)], &[write(0)]], Budget { deaths: 1, timeouts: 1, ..HASTY }),
        growing("lane, growing, kill", 2, GROWING, Budget { kills: 1, timeouts: 1, ..HASTY }),
        growing("lane, growing, suspicion", 2, GROWING, Budget { suspicions: 1, timeouts: 1, ..HASTY }),
        growing("lane, growing, two suspicions", 2, GROWING, Budget { suspicions: 2, ..Budget::NONE }),
        Lane { loose: true, ..growing("loose, growing, power cut", 2, GROWING, CUT) },
        warm("loose, power cut", 2, THREE, CUT),
        warm("loose, blackout", 2, THREE, BLACKOUT),
        loose("loose, power cut and fsync", 2, SYNCED, CUT),
        loose("loose, blackout and fsync", 2, SYNCED, BLACKOUT),
        Lane { durable: 1 << 2, ..warm("durable, then loose, blackout", 2, THREE, BLACKOUT) },
    ]
}

/// Explored by `make soak` as well.
pub fn large() -> Vec<Lane> {
    let mut lanes = vec![
        lane("lane, rivals and suspicion", 2, RIVALS, Budget { suspicions: 1, ..HASTY }),
        lane("lane, suspicion and kill", 2, TWO, Budget { suspicions: 1, kills: 1, ..Budget::NONE }),
        lane("lane, three writes, suspicion and kill", 2, THREE, Budget { suspicions: 1, kills: 1, ..Budget::NONE }),
        lane("lane, two suspicions, three writes", 2, THREE, Budget { suspicions: 2, ..Budget::NONE }),
        lane("lane, two kills", 2, THREE, Budget { kills: 2, ..Budget::NONE }),
        lane("lane, three replicas, suspicion", 3, TWO, Budget { suspicions: 1, ..Budget::NONE }),
        lane("lane, three replicas, kill", 3, TWO, Budget { kills: 1, ..Budget::NONE }),
        lane("lane, three replicas, rivals", 3, RIVALS, Budget { deaths: 1, timeouts: 1, ..HASTY }),
        loose("loose, power cut, from the beginning", 2, THREE, CUT),
        loose("loose, blackout, from the beginning", 2, THREE, BLACKOUT),
        Lane { durable: 1 << 3, ..loose("loose, then durable, blackout", 2, THREE, BLACKOUT) },
        loose("loose, one write, blackout, kill and fsync", 2, ONE_SYNCED, Budget { kills: 1, ..BLACKOUT }),
        loose("loose, one write, blackout, suspicion and fsync", 2, ONE_SYNCED, Budget { suspicions: 1, ..BLACKOUT }),
        after_kill("loose, after a kill, power cut", CUT),
        after_kill("loose, after a kill, blackout", BLACKOUT),
        warm("loose, rivals, power cut", 2, RIVALS, CUT),
        warm("loose, rivals, blackout", 2, RIVALS, BLACKOUT),
        loose("loose, three replicas, power cut", 3, TWO, CUT),
        loose("loose, three replicas, blackout", 3, TWO, BLACKOUT),
        warm("loose, two writes, two blackouts", 2, TWO, Budget { blackouts: 2, ..Budget::NONE }),
    ];
    for lane in &mut lanes {
        lane.scope.states_max = 16_000_000;
    }
    lanes
}

/// Explored by name only: they take long.
pub fn largest() -> Vec<Lane> {
    let mut lanes = vec![
        warm("loose, two writes, blackout and power cut", 2, TWO, Budget { cuts: 1, ..BLACKOUT }),
        warm("loose, two writes, blackout and kill", 2, TWO, Budget { kills: 1, ..BLACKOUT }),
        warm("loose, two writes, blackout and suspicion", 2, TWO, Budget { suspicions: 1, ..BLACKOUT }),
        after_blackout("loose, three replicas, after a blackout", [0, 2, 0]),
        after_blackout("loose, three replicas, after another blackout", [1, 0, 2]),
    ];
    for lane in &mut lanes {
        lane.scope.states_max = 24_000_000;
    }
    lanes
}

/// A configuration by name.
pub fn named(name: &str) -> Lane {
    let found = small().into_iter().chain(large()).chain(largest()).find(|lane| lane.scope.name == name);
    found.unwrap_or_else(|| unreachable!("there is no configuration {name}"))
}
