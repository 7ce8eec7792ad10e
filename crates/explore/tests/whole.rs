//! With all rules no promise is broken in any state of these configurations, and from each state the system becomes
//! whole again without another fault. `HEKATE_EXPLORE=large` explores the larger ones, and its name one of them.

use hekate_explore::check;
use hekate_explore::rules::Rules;
use hekate_explore::scope::Scope;
use hekate_explore::scopes::{large, small};
use std::sync::Mutex;

/// Kinds of steps that the small configurations have together.
const KINDS: usize = 25;

/// Exploring takes memory: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Explores one after the other, prints all output, and checks that there are at least so many states.
fn explore_all(scopes: &[Scope], states_min: usize) -> usize {
    let _alone = ALONE.lock();
    let (states, kinds) = check::all_hold(scopes);
    assert!(scopes.len() < small().len() || kinds.len() == KINDS, "some kinds of steps were not taken");
    assert!(states > states_min, "a step that cannot happen makes a model small");
    states
}

#[test]
fn all_promises_hold_in_every_state() {
    let states_min = match std::env::var("HEKATE_EXPLORE").unwrap_or_default().as_str() {
        "" => 1_000_000,
        "large" => 5_000_000,
        _ => 1,
    };
    explore_all(&check::wanted(small(), large(), Vec::new()), states_min);
}

/// Rule 16b is for speed: without it unsettled writes are settled when they are read or written next. Rule 15c is for
/// logs, which are not undone, and for losing as little as possible: any leader has every acknowledged write.
#[test]
fn no_promise_needs_these_rules() {
    let tried = [
        ("level_unsettled", ["kill", "suspicion", "power cut", "blackout"].as_slice()),
        ("longest_leads", ["three replicas, suspicion", "blackout of records"].as_slice()),
    ];
    for (rule, names) in tried {
        let scopes: Vec<Scope> = small().into_iter().filter(|scope| names.contains(&scope.name)).collect();
        let without = scopes.iter().map(|scope| Scope { rules: Rules::without(rule), ..scope.clone() });
        let without = explore_all(&without.collect::<Vec<_>>(), 50_000);
        let states = explore_all(&scopes, 50_000);
        assert_ne!(states, without, "{rule} changes nothing here");
    }
}
