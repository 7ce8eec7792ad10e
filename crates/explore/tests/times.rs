//! Times of files that are written on the fast lane (rule 27): all states, and what happens without each of its rules.
//! `HEKATE_EXPLORE=large` explores the larger configurations, and its name one of them.

use hekate_explore::search::explore;
use hekate_explore::times::scopes::{large, named, small};
use hekate_explore::times::{RULES, Rules, Times};

/// A rule, the configuration in which it is missed, and a word of what is lost.
const MISSED: &[(&str, &str, &str)] = &[
    ("noted", "times, two suspicions", "misses"),
    ("note_synced", "times, two writers, blackout", "misses"),
    ("idle_in_log", "times, two suspicions", "misses"),
    ("ends_with_change", "times, set, two suspicions", "somebody set"),
    ("renewed", "times, two suspicions", "misses"),
    ("renewed_first", "times, two suspicions", "misses"),
    ("note_taken", "times, set, two suspicions", "somebody set"),
    ("settled_reads", "times, two suspicions", "go back"),
    ("early_leased", "times, two suspicions", "misses"),
    ("renewed_late", "times, two suspicions", "misses"),
];

#[test]
fn all_promises_hold_in_every_state() {
    let wanted = std::env::var("HEKATE_EXPLORE").unwrap_or_default();
    let all: Vec<Times> = match wanted.as_str() {
        "" => small(),
        "large" => large(),
        name => small().into_iter().chain(large()).filter(|times| times.name == name).collect(),
    };
    let mut states = 0;
    for times in &all {
        let found = explore(times, true);
        println!("{found}");
        let text = found.violation.map_or_else(String::new, |violation| violation.text);
        assert!(text.is_empty(), "{text}");
        assert!(found.is_complete, "{}: more than {} states", found.name, times.states_max);
        assert!(found.whole > 0, "{}: never whole", found.name);
        states += found.states;
    }
    println!("{states} states of {} configurations", all.len());
}

#[test]
fn each_rule_is_needed() {
    let mut unexpected = Vec::new();
    for (rule, times, word) in MISSED {
        let times = Times { rules: Rules::without(rule), ..named(times) };
        let found = explore(&times, true);
        let number = RULES.iter().find(|(_, name, _)| name == rule).map_or("", |(number, _, _)| number);
        match found.violation {
            Some(violation) if violation.complaint.contains(word) => {
                println!("rule {number}, {rule}; {} states; {}", found.states, violation.text);
            }
            Some(violation) => unexpected.push(format!("{rule}: {}", violation.text)),
            None => unexpected.push(format!("{rule} is not missed in {} ({} states)", times.name, found.states)),
        }
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
}

#[test]
fn no_rule_is_forgotten() {
    let tried = || MISSED.iter().map(|(rule, _, _)| *rule);
    assert!(RULES.iter().all(|(_, rule, _)| tried().any(|one| one == *rule)), "a rule without a line here");
    assert_eq!(RULES.len(), tried().count());
}
