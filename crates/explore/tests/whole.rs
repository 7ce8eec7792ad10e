//! With all rules on no promise is broken in any state of these configurations, and from each state the system becomes
//! whole again if nothing else fails. `HEKATE_EXPLORE=large` explores the larger ones as well (a quarter of an hour).

use hekate_explore::rules::Rules;
use hekate_explore::scope::Scope;
use hekate_explore::scopes::{large, small};
use hekate_explore::search::explore;
use std::sync::Mutex;

/// Exploring takes memory: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Explores one after the other, with all output and at least so many states.
fn explore_all(scopes: &[Scope], states_min: usize) {
    let _alone = ALONE.lock();
    let mut states = 0;
    for scope in scopes {
        let found = explore(scope, true);
        println!("{found}");
        let text = found.violation.map_or_else(String::new, |violation| violation.text);
        assert!(text.is_empty(), "{text}");
        assert!(found.is_complete, "{}: more than {} states", scope.name, scope.states_max);
        assert!(found.whole > 0, "{}: never whole", scope.name);
        states += found.states;
    }
    println!("{states} states of {} configurations", scopes.len());
    assert!(states > states_min, "a step that can not happen any more makes a model small");
}

#[test]
fn all_promises_hold_in_every_state() {
    explore_all(&small(), 1_000_000);
    if std::env::var("HEKATE_EXPLORE").is_ok_and(|size| size == "large") {
        explore_all(&large(), 5_000_000);
    }
}

/// Rule 16b is for speed: without it what is unsettled is settled when it is read or written next.
#[test]
fn a_view_may_open_before_everything_is_settled() {
    let names = ["kill", "suspicion", "two suspicions", "three replicas, suspicion", "power cut", "blackout"];
    let scopes: Vec<Scope> = small()
        .into_iter()
        .filter(|scope| names.contains(&scope.name))
        .map(|scope| Scope { rules: Rules::without("level_unsettled"), ..scope })
        .collect();
    explore_all(&scopes, 100_000);
}
