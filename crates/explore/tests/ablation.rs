//! Each rule is needed: without it the explorer finds a state in which a promise is broken, and prints the shortest
//! path to it (`cargo test -p hekate-explore ablation -- --nocapture` prints all of them).

use hekate_explore::check::{self, Missed};
use hekate_explore::rules::{RULES, Rules};
use hekate_explore::scope::Scope;
use hekate_explore::scopes::named;

const MISSED: &[Missed] = &[
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
    ("losses_reported", "blackout", "acknowledged"),
    ("unstable_listed", "power cut", "acknowledged"),
    ("stable_needs_all", "power cut", "acknowledged"),
    ("learners_sync", "new replica, blackout", "differ"),
    ("own_list", "suspicion and power cut", "differ"),
    ("learners_listed", "kill", "differ"),
    ("fenced_promotion", "kill", "differ"),
    ("synced_promotion", "new replica, blackout", "acknowledged"),
];

/// Rules that one shard and so few faults do not need; the document gives their reasons.
const NOT_SHOWN: &[&str] = &["longest_leads", "level_unsettled", "lists_handed_on"];

#[test]
fn each_rule_is_needed() {
    check::each_is_missed(MISSED, RULES, |rule, name| Scope { rules: Rules::without(rule), ..named(name) });
}

#[test]
fn no_rule_is_forgotten() {
    check::none_is_forgotten(RULES, MISSED, NOT_SHOWN);
}
