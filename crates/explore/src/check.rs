//! The checks of each model's tests: its promises hold in every state, and without any one of its rules a promise is
//! broken.

use crate::search::{Model, explore};
use std::collections::HashSet;
use std::mem::Discriminant;

/// A rule, the configuration in which its absence breaks a promise, and a word of that complaint.
pub type Missed = (&'static str, &'static str, &'static str);
/// A rule's number in the document, its name, and its text.
pub type Rule = (&'static str, &'static str, &'static str);

/// The configurations to explore: the larger ones with `HEKATE_EXPLORE=large`, any single one by its name; otherwise
/// the small ones.
pub fn wanted<M: Model>(small: Vec<M>, large: Vec<M>, largest: Vec<M>) -> Vec<M> {
    match std::env::var("HEKATE_EXPLORE").unwrap_or_default().as_str() {
        "" => small,
        "large" => large,
        name => small.into_iter().chain(large).chain(largest).filter(|model| model.name() == name).collect(),
    }
}

/// Explores the models one after the other. Returns their number of states together, and the kinds of steps that were
/// taken.
pub fn all_hold<M: Model>(models: &[M]) -> (usize, HashSet<Discriminant<M::Action>>) {
    let (mut states, mut kinds) = (0, HashSet::new());
    for model in models {
        let found = explore(model, true);
        println!("{found}");
        let text = found.violation.map_or_else(String::new, |violation| violation.text);
        assert!(text.is_empty(), "{text}");
        assert!(found.is_complete, "{}: more than {} states", found.name, model.states_max());
        assert!(found.whole > 0, "{}: never whole", found.name);
        states += found.states;
        kinds.extend(found.kinds);
    }
    println!("{states} states of {} configurations; steps of {} kinds", models.len(), kinds.len());
    (states, kinds)
}

/// Explores each configuration without its rule. `without`: the configuration and the rule, by name.
pub fn each_is_missed<M: Model>(missed: &[Missed], rules: &[Rule], without: impl Fn(&str, &str) -> M) {
    let mut unexpected = Vec::new();
    for (rule, name, word) in missed {
        let found = explore(&without(rule, name), true);
        let number = rules.iter().find(|(_, name, _)| name == rule).map_or("", |(number, _, _)| number);
        match found.violation {
            Some(violation) if violation.complaint.contains(word) => {
                println!("rule {number}, {rule}; {} states; {}", found.states, violation.text);
            }
            Some(violation) => unexpected.push(format!("{rule}: {}", violation.text)),
            None => unexpected.push(format!("no promise is broken without {rule} in {name} ({} states)", found.states)),
        }
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
}

/// Each rule is either tried or listed as not shown.
pub fn none_is_forgotten(rules: &[Rule], missed: &[Missed], not_shown: &[&str]) {
    let tried: Vec<&str> = missed.iter().map(|(rule, _, _)| *rule).chain(not_shown.iter().copied()).collect();
    assert!(
        rules.iter().all(|(_, rule, _)| tried.contains(rule)),
        "a rule that is neither tried nor listed as not shown"
    );
    assert_eq!(rules.len(), tried.len());
}
