//! Fast writes as the code implements them: all states, and what breaks without each of the rules.
//! `HEKATE_EXPLORE=large` explores the larger configurations, and its name one of them.

use hekate_explore::check::{self, Missed};
use hekate_explore::lane::scopes::{large, largest, named, small};
use hekate_explore::lane::{Lane, RULES, Rules};

const MISSED: &[Missed] = &[
    ("listed", "lane", "different bytes"),
    ("reads_ask", "lane, suspicion", "read"),
    ("closed_first", "lane", "read"),
    ("restamped", "lane", "differ"),
    ("members_asked", "lane", "differ"),
    ("asked_behind", "lane", "differ"),
    ("ids_in_slots", "lane", "read"),
    ("own_ids", "lane", "read"),
    ("lists_end", "lane", "differ"),
    ("closing_reads", "lane, suspicion", "read"),
    ("terms_hold", "lane, kill", "differ"),
    ("terms_differ", "lane, three replicas, suspicion", "differ"),
    ("found_evened", "lane, kill", "differ"),
    ("own_found", "lane, kill", "differ"),
    ("fetched_lists", "lane, three replicas, suspicion", "read"),
    ("listed_ends", "lane, three writes, suspicion and kill", "differ"),
    ("whole_views", "lane, three writes, suspicion", "differ"),
    ("partial_lists", "lane, two records, suspicion", "read"),
    ("length_kept", "lane, growing, suspicion", "read"),
    ("length_even", "lane, growing", "differ"),
    ("learner_lists", "loose, power cut", "different bytes"),
    ("lives", "loose, power cut", "read"),
    ("losses_reported", "loose, blackout and fsync", "read"),
    ("opened_synced", "loose, one write, blackout, suspicion and fsync", "differ"),
    ("closing_syncs", "loose, blackout", "different bytes"),
    ("due_refuses", "loose, blackout", "different bytes"),
    ("found_syncs", "loose, after a kill, blackout", "different bytes"),
    ("learners_compared", "loose, power cut", "different bytes"),
    ("alone", "loose, blackout", "different bytes"),
    ("alone_first", "loose, three replicas, after a blackout", "different bytes"),
    ("note_settled", "loose, blackout, from the beginning", "different bytes"),
    ("note_closed", "loose, blackout", "different bytes"),
    ("note_whole", "loose, power cut", "different bytes"),
];

/// All members sync before a view opens, so data from before is durable by then.
const NOT_SHOWN: &[&str] = &["one_view_syncs"];

#[test]
fn all_promises_hold_in_every_state() {
    check::all_hold(&check::wanted(small(), large(), largest()));
}

#[test]
fn each_rule_is_needed() {
    check::each_is_missed(MISSED, RULES, |rule, name| Lane { rules: Rules::without(rule), ..named(name) });
}

#[test]
fn no_rule_is_forgotten() {
    check::none_is_forgotten(RULES, MISSED, NOT_SHOWN);
}
