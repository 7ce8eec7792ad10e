use hekate_explore::lane::scopes::{large, small};
use hekate_explore::lane::{Lane, Rules};
use hekate_explore::search::explore;
#[test]
fn try_rules() {
    let rules = std::env::var("RULES").unwrap();
    let names = std::env::var("NAMES").unwrap();
    let full = std::env::var("FULL").is_ok();
    for rule in rules.split(',') {
        for name in names.split(';') {
            for lane in small().into_iter().chain(large()).filter(|lane| lane.scope.name == name) {
                let rules = if rule.is_empty() { Rules::all() } else { Rules::without(rule) };
                let found = explore(&Lane { rules, ..lane }, true);
                let text = found.violation.as_ref().map_or(String::from("holds"), |v| {
                    if full { v.text.clone() } else { format!("{} {}", v.complaint, v.steps) }
                });
                println!(
                    "{rule} / {name}: {} states, {} complete, {:.1?}: {text}",
                    found.states, found.is_complete, found.took
                );
            }
        }
    }
}
