//! The fast lane as the code does it: all states, and what happens without each of its rules.
//! `HEKATE_EXPLORE=large` explores the larger configurations, and its name one of them.

use hekate_explore::lane::scopes::{large, named, small};
use hekate_explore::lane::{Lane, RULES, Rules};
use hekate_explore::search::explore;

/// A rule, the configuration in which it is missed, and a word of what is lost.
const MISSED: &[(&str, &str, &str)] = &[
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
];

/// What a learner lists it still lists when it becomes a member, and is evened then.
const NOT_SHOWN: &[&str] = &["learner_lists"];

#[test]
fn all_promises_hold_in_every_state() {
    let wanted = std::env::var("HEKATE_EXPLORE").unwrap_or_default();
    let lanes: Vec<Lane> = match wanted.as_str() {
        "" => small(),
        "large" => large(),
        name => small().into_iter().chain(large()).filter(|lane| lane.scope.name == name).collect(),
    };
    let mut states = 0;
    for lane in &lanes {
        let found = explore(lane, true);
        println!("{found}");
        let text = found.violation.map_or_else(String::new, |violation| violation.text);
        assert!(text.is_empty(), "{text}");
        assert!(found.is_complete, "{}: more than {} states", found.name, lane.scope.states_max);
        assert!(found.whole > 0, "{}: never whole", found.name);
        states += found.states;
    }
    println!("{states} states of {} configurations", lanes.len());
}

#[test]
fn each_rule_is_needed() {
    let mut unexpected = Vec::new();
    for (rule, lane, word) in MISSED {
        let lane = Lane { rules: Rules::without(rule), ..named(lane) };
        let found = explore(&lane, true);
        let number = RULES.iter().find(|(_, name, _)| name == rule).map_or("", |(number, _, _)| number);
        match found.violation {
            Some(violation) if violation.complaint.contains(word) => {
                println!("rule {number}, {rule}; {} states; {}", found.states, violation.text);
            }
            Some(violation) => unexpected.push(format!("{rule}: {}", violation.text)),
            None => unexpected.push(format!("{rule} is not missed in {} ({} states)", lane.scope.name, found.states)),
        }
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
}

#[test]
fn no_rule_is_forgotten() {
    let tried = || MISSED.iter().map(|(rule, _, _)| *rule).chain(NOT_SHOWN.iter().copied());
    assert!(RULES.iter().all(|(_, rule, _)| tried().any(|one| one == *rule)), "a rule without a line here");
    assert_eq!(RULES.len(), tried().count());
}
