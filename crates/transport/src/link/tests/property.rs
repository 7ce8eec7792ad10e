//! Random sends, losses, duplicates, delays, reorderings, disconnections and restarts. `Medium` checks each delivery,
//! and in the end everything arrives.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Send(usize, usize),
    Deliver(usize),
    Lose(usize),
    Copy(usize),
    Wait(u64),
    Restart(usize),
    Disconnect(usize),
    Connect(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..2usize, 0..60usize).prop_map(|(end, size)| Step::Send(end, size)),
        14 => any::<usize>().prop_map(Step::Deliver),
        2 => any::<usize>().prop_map(Step::Lose),
        4 => any::<usize>().prop_map(Step::Copy),
        4 => (0..300u64).prop_map(Step::Wait),
        1 => (0..2usize).prop_map(Step::Restart),
        1 => (0..2usize).prop_map(Step::Disconnect),
        2 => (0..2usize).prop_map(Step::Connect),
    ]
}

fn settings() -> LinkSettings {
    LinkSettings {
        unacknowledged_bytes_max: 1000,
        report_after_messages: 5,
        give_up_after: Duration::from_millis(700),
        ..medium::lossy()
    }
}

fn run(steps: &[Step]) {
    let mut medium = Medium::new(settings());
    for (number, step) in steps.iter().enumerate() {
        let pick = |index: &usize| index % medium.flying.len().max(1);
        match step {
            Step::Send(end, size) => drop(medium.send(*end, format!("{number}:{:size$}", "").as_bytes())),
            Step::Wait(ms) => medium.advance(*ms as u32 * MS),
            Step::Restart(end) => medium.restart(*end),
            Step::Disconnect(end) => medium.disconnect(*end),
            Step::Connect(end) => medium.connect(*end),
            Step::Deliver(_) | Step::Lose(_) | Step::Copy(_) if medium.flying.is_empty() => {}
            Step::Deliver(index) => medium.deliver(pick(index)),
            Step::Lose(index) => drop(medium.flying.remove(pick(index))),
            Step::Copy(index) => medium.flying.push(medium.flying[pick(index)].clone()),
        }
    }
    medium.heal();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_what_arrives_is_what_was_sent(steps in prop::collection::vec(step(), 0..250)) {
        run(&steps);
    }
}
