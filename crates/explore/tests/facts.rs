//! The two facts that the design rests on, each with its shortest counterexample.

use hekate_explore::rules::Rules;
use hekate_explore::scope::{Line, Scope};
use hekate_explore::scopes::named;
use hekate_explore::search::{Violation, explore};
use hekate_explore::state::Budget;

fn broken(scope: &Scope) -> Violation {
    let found = explore(scope, false);
    let Some(violation) = found.violation else {
        unreachable!("{}: no violation in {} states", scope.name, found.states)
    };
    println!("{} states; {}", found.states, violation.text);
    violation
}

/// With version numbers instead of stamps two histories meet: one client's write arrives at one replica, another's at
/// the other, and both shards are at version 1.
#[test]
fn with_bare_version_numbers_two_histories_meet() {
    let faults = Budget::NONE;
    let scripts = vec![vec![Line::Fast { shard: 0, cell: 0 }], vec![Line::Fast { shard: 0, cell: 1 }]];
    let scope = Scope { name: "bare version numbers", scripts, faults, ..named("two clients") };
    // A stamp contains its writer; without this rule the comparison leaves the writer out, and only equal counts are
    // left.
    let scope = Scope { rules: Rules { whole_stamp: false, bare_counts: true, ..scope.rules }, ..scope };
    let violation = broken(&scope);
    assert_eq!(violation.complaint, "equal stamps, different bytes");
    assert_eq!(violation.steps, 4, "two writes, and one arrival of each");
}

/// A leader that reconciles followers under its present stamp lets a late message through: the follower has answered
/// Done, is set back, and then the leader answers Done as well.
#[test]
fn evening_without_a_fresh_stamp_lets_a_late_message_through() {
    let scope = named("two clients");
    let scope = Scope { name: "no fresh stamp", rules: Rules { fresh_stamp: false, ..scope.rules }, ..scope };
    let violation = broken(&scope);
    assert_eq!(violation.complaint, "an acknowledged write is not on every member");
}
