//! Times of files that are written by fast writes (rule 27): all states, and what breaks without each of the rules.
//! `HEKATE_EXPLORE=large` explores the larger configurations, and its name one of them.

use hekate_explore::check::{self, Missed};
use hekate_explore::times::scopes::{large, named, small};
use hekate_explore::times::{RULES, Rules, Times};

const MISSED: &[Missed] = &[
    ("noted", "times, two suspicions", "misses"),
    ("note_synced", "times, two writers, blackout", "misses"),
    ("idle_in_log", "times, two suspicions", "misses"),
    ("ends_with_change", "times, set, two suspicions", "a client set"),
    ("renewed", "times, two suspicions", "misses"),
    ("renewed_first", "times, two suspicions", "misses"),
    ("note_taken", "times, set, two suspicions", "a client set"),
    ("settled_reads", "times, two suspicions", "go back"),
    ("early_leased", "times, two suspicions", "misses"),
    ("renewed_late", "times, two suspicions", "misses"),
];

#[test]
fn all_promises_hold_in_every_state() {
    check::all_hold(&check::wanted(small(), large(), Vec::new()));
}

#[test]
fn each_rule_is_needed() {
    check::each_is_missed(MISSED, RULES, |rule, name| Times { rules: Rules::without(rule), ..named(name) });
}

#[test]
fn no_rule_is_forgotten() {
    check::none_is_forgotten(RULES, MISSED, &[]);
}
