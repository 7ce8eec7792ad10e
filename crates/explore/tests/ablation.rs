//! Each rule is needed: without it the explorer finds a state in which a promise is broken, and tells the shortest way
//! to it (`cargo test -p hekate-explore --test ablation -- --nocapture` prints all of them).

use hekate_explore::rules::{RULES, Rules};
use hekate_explore::scope::Scope;
use hekate_explore::scopes::named;
use hekate_explore::search::explore;

/// A rule, the configuration in which it is missed, and a word of what is lost.
const MISSED: &[(&str, &str, &str)] = &[
    ("whole_stamp", "pipelined", "different bytes"),
    ("leader_stamps", "pipelined", "different bytes"),
    ("epoch_in_stamps", "kill", "different bytes"),
    ("all_members", "two clients", "acknowledged"),
    ("one_epoch", "suspicion and kill", "acknowledged"),
    ("answered_once", "pipelined", "read"),
    ("settled_first", "two clients", "acknowledged"),
    ("settled_reads", "two clients", "read"),
    ("fresh_stamp", "two clients", "acknowledged"),
    ("both_ranges", "two clients", "different bytes"),
    ("ids_go_along", "two clients", "acknowledged"),
    ("ids_are_struck", "kill", "read"),
    ("settled_ids", "kill", "acknowledged"),
    ("records_follow", "two clients", "different bytes"),
    ("members_report", "kill", "whole again"),
    ("epochs_fence", "kill", "read"),
    ("fence_survives", "suspicion and kill", "read"),
    ("lease_wait", "suspicion", "two leaders"),
    ("lease_for_view", "suspicion and kill", "two leaders"),
    ("last_view_leads", "kill", "acknowledged"),
    ("opened_counts", "kill", "acknowledged"),
    ("all_lists", "blackout", "differ"),
    ("incarnations", "power cut", "read"),
    ("lives_in_forming", "two power cuts", "acknowledged"),
    ("wait_for_memory", "power cut and kill", "acknowledged"),
    ("losses_told", "blackout", "acknowledged"),
    ("unstable_listed", "power cut", "acknowledged"),
    ("stable_needs_all", "power cut", "acknowledged"),
    ("learners_sync", "new replica, blackout", "differ"),
    ("own_list", "suspicion and power cut", "differ"),
    ("learners_listed", "kill", "differ"),
    ("fenced_promotion", "kill", "differ"),
    ("synced_promotion", "new replica, blackout", "acknowledged"),
];

/// Rules that one shard and so few faults do not need; the document says why they are there.
const NOT_SHOWN: &[&str] = &["longest_leads", "level_unsettled", "lists_handed_on"];

#[test]
fn each_rule_is_needed() {
    let mut unexpected = Vec::new();
    for (rule, scope, word) in MISSED {
        let scope = Scope { rules: Rules::without(rule), ..named(scope) };
        let found = explore(&scope, true);
        let number = RULES.iter().find(|(_, name, _)| name == rule).map_or("", |(number, _, _)| number);
        match found.violation {
            Some(violation) if violation.complaint.contains(word) => {
                println!("rule {number}, {rule}; {} states; {}", found.states, violation.text);
            }
            Some(violation) => unexpected.push(format!("{rule}: {}", violation.text)),
            None => unexpected.push(format!("{rule} is not missed in {} ({} states)", scope.name, found.states)),
        }
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
}

#[test]
fn no_rule_is_forgotten() {
    let tried: Vec<&str> = MISSED.iter().map(|(rule, _, _)| *rule).chain(NOT_SHOWN.iter().copied()).collect();
    let all: Vec<&str> = RULES.iter().map(|(_, name, _)| *name).collect();
    assert!(all.iter().all(|rule| tried.contains(rule)), "a rule without a line here");
    assert_eq!(all.len(), tried.len());
}
