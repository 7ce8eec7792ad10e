//! Properties of every plan, whatever the samples.

use super::*;
use crate::series::{Series, Unit};
use crate::shapes::SHAPES;
use proptest::prelude::*;

fn kind(rates: &[f64]) -> Kind {
    kind_with(rates, Conditions::default())
}

fn kind_with(rates: &[f64], conditions: Conditions) -> Kind {
    let times = (0..rates.len()).map(|at| at as f64).collect();
    Kind::new(&Series::new("k", Unit::Iops, rates.to_vec(), times).unwrap(), &conditions).unwrap()
}

fn ask(kind: &Kind, target: f64, confidence: f64) -> Question<'_> {
    Question { kind, have: Vec::new(), target, confidence, conditions: Conditions::default() }
}

fn count(rates: &[f64], target: f64, confidence: f64) -> usize {
    answer(&ask(&kind(rates), target, confidence)).unwrap().count
}

fn rates() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(prop_oneof![1.0f64..1000.0, (1u32..50).prop_map(f64::from)], 2..12)
}

#[test]
fn machines_that_never_vary_need_no_more_than_their_best() {
    let found = answer(&ask(&kind(&[250.0; 5]), 1000.0, 0.99)).unwrap();
    assert_eq!((found.count, found.probability.high, found.one_fewer.high < 1e-9), (4, 1.0, true));
    assert_eq!(count(&[0.1, 0.1], 0.3, 0.99), 3);
}

#[test]
fn a_question_without_an_answer_is_refused_with_its_reason() {
    let error = |rates: &[f64], target, confidence| answer(&ask(&kind(rates), target, confidence)).unwrap_err().text;
    assert!(error(&[0.0, 0.0], 10.0, 0.5).contains("has a rate of 0 always"));
    assert!(error(&[1.0, 2.0], 1e9, 0.99).contains("1000000 machines do not reach"));
    assert!(error(&[1.0, 2.0], f64::NAN, 0.99).contains("target"));
    assert!(error(&[1.0, 2.0], -5.0, 0.99).contains("target"));
    assert!(error(&[1.0, 2.0], 5.0, 1.0).contains("for certain"));
    assert!(error(&[1.0, 2.0], 5.0, f64::NAN).contains("confidence"));
    let one = Series::new("one", Unit::Iops, vec![5.0], vec![0.0]).unwrap();
    assert!(Kind::new(&one, &Conditions::default()).unwrap_err().text.contains("one sample"));
    let conditions = Conditions { down: 1.0, ..Conditions::default() };
    assert!(conditions.check().unwrap_err().text.contains("--down"));
}

#[test]
fn the_three_ways_agree_on_the_sample_series() {
    for shape in SHAPES {
        let rates: Vec<f64> = shape.samples().iter().map(|rate| *rate as f64).collect();
        let kind = kind(&rates);
        for confidence in [0.75, 0.9, 0.99, 0.999] {
            let question = ask(&kind, 100_000.0, confidence);
            let exact = answer(&question).unwrap();
            assert!(exact.exactness.decided && exact.exactness.on_grid, "{}: {exact:?}", shape.name);
            let games = chance::play(&question, exact.count, 1);
            let (_, low, high) = games.probability(exact.count);
            assert!(
                low <= exact.probability.high && exact.probability.low <= high,
                "{}: {exact:?} {low} {high}",
                shape.name
            );
            let said = games.said(confidence);
            assert!((said.count_low..=said.count_high).contains(&exact.count), "{}: {said:?}", shape.name);
            let found = buckets::count(&question, exact.count).unwrap();
            assert!((found.count_low..=found.count_high).contains(&exact.count), "{}: {found:?}", shape.name);
            assert_eq!(found.count, exact.count, "{}: {found:?}", shape.name);
        }
    }
}

#[test]
fn conditions_ask_for_more() {
    let rates: Vec<f64> = SHAPES[0].samples().iter().map(|rate| *rate as f64).collect();
    let plain = count(&rates, 100_000.0, 0.99);
    let with = |conditions: Conditions| {
        let kind = kind_with(&rates, conditions);
        answer(&Question { conditions, ..ask(&kind, 100_000.0, 0.99) }).unwrap().count
    };
    let base = Conditions::default();
    let down = with(Conditions { down: 0.25, ..base });
    assert_eq!(base.up(plain), plain);
    assert_eq!(Conditions { down: 0.25, ..base }.up(down), plain);
    assert!(with(Conditions { outage: 0.05, ..base }) > plain);
    assert!(with(Conditions { amplification: 2.0, ..base }) > plain);
    let apart = with(Conditions { together: 0.3, ..base });
    let as_one = with(Conditions { together: 1.0, ..base });
    assert!(plain <= apart && apart <= as_one);
    assert_eq!(Some(as_one), ask(&kind(&rates), 100_000.0, 0.99).all_together());
}

#[test]
fn machines_that_are_there_count() {
    let (old, new) = (kind(&[100.0, 200.0]), kind(&[300.0, 500.0]));
    let question = Question { have: vec![(&old, 10)], ..ask(&new, 2000.0, 0.9) };
    let found = answer(&question).unwrap();
    let fleet: Vec<&distribution::Distribution> =
        std::iter::repeat_n(&old.distribution, 10).chain(std::iter::repeat_n(&new.distribution, found.count)).collect();
    let wanted = enumerate(&fleet, 2000.0);
    assert!((found.probability.low - wanted).abs() < 1e-9 && wanted >= 0.9, "{found:?} {wanted}");
    assert!(enumerate(&fleet[..fleet.len() - 1], 2000.0) < 0.9);
    assert_eq!(answer(&Question { have: vec![(&old, 20)], ..ask(&new, 2000.0, 0.9) }).unwrap().count, 0);
}

fn enumerate(machines: &[&distribution::Distribution], target: f64) -> f64 {
    match machines.split_first() {
        None => f64::from(target <= 1e-9),
        Some((first, rest)) => {
            first.points().iter().map(|(value, weight)| weight * enumerate(rest, target - value)).sum()
        }
    }
}

#[test]
fn the_cheapest_mix_is_no_dearer_than_either_kind_alone() {
    let (one, other) = (kind(&[100.0, 110.0, 120.0]), kind(&[900.0, 1500.0, 2000.0]));
    let alone = (count(&[100.0, 110.0, 120.0], 9_000.0, 0.99), count(&[900.0, 1500.0, 2000.0], 9_000.0, 0.99));
    let mixes = mix::mixes(&ask(&one, 9_000.0, 0.99), &other, (1.0, 13.0), alone.0).unwrap();
    let cheapest = mix::cheapest(&mixes).unwrap();
    assert_eq!(mixes[0].second, alone.1);
    assert!(cheapest.cost <= alone.0 as f64 + 1.0 && cheapest.cost <= alone.1 as f64 * 13.0, "{cheapest:?} {alone:?}");
    assert!(mixes.windows(2).all(|pair| pair[1].second <= pair[0].second), "{mixes:?}");
}

#[test]
fn the_bootstrap_is_wider_for_fewer_samples() {
    let rates: Vec<f64> = SHAPES[0].samples().iter().map(|rate| *rate as f64).collect();
    let width = |rates: &[f64]| {
        let kind = kind(rates);
        let question = ask(&kind, 100_000.0, 0.99);
        let count = answer(&question).unwrap().count;
        let interval = bootstrap::interval(&question, count, 100, 1).0.unwrap();
        assert!(interval.low <= count && count <= interval.high && interval.replicates == 100, "{interval:?} {count}");
        interval.high - interval.low
    };
    assert!(width(&rates[..12]) > width(&rates));
}

#[test]
fn a_thousand_machines_of_real_numbers_are_decided() {
    let rates: Vec<f64> =
        (0..500).map(|at| 50.0 + f64::from(at % 97) * 1.234_567 + f64::from(at % 7) * 0.111).collect();
    let found = answer(&ask(&kind(&rates), 110_000.0, 0.99)).unwrap();
    assert!(found.exactness.decided && !found.exactness.on_grid && found.count > 900, "{found:?}");
    assert!(found.exactness.rounding_error_max < 1e-6, "{found:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_plan_agrees_with_enumeration(rates in prop::collection::vec(1u32..20, 2..5), share in 0.5f64..5.0, confidence in 0.05f64..0.95) {
        let rates: Vec<f64> = rates.iter().map(|rate| f64::from(*rate)).collect();
        let kind = kind(&rates);
        let target = (share * kind.distribution.mean()).max(1.0).round();
        let found = answer(&ask(&kind, target, confidence)).unwrap();
        prop_assume!(found.count <= 8);
        let of = |count: usize| enumerate(&vec![&kind.distribution; count], target);
        prop_assert!(of(found.count) >= confidence - 1e-9 && of(found.count - 1) < confidence + 1e-9, "{:?}", found);
        prop_assert!((of(found.count) - found.probability.low).abs() < 1e-9);
    }

    #[test]
    fn more_is_asked_by_a_greater_target_or_confidence(rates in rates(), target in 100.0f64..20_000.0, more in 1.0f64..2.0, confidence in 0.1f64..0.9) {
        let base = count(&rates, target, confidence);
        prop_assert!(count(&rates, target * more, confidence) >= base);
        prop_assert!(count(&rates, target, confidence + 0.09) >= base);
    }

    #[test]
    fn neither_order_nor_a_scale_matters(rates in rates(), target in 100.0f64..20_000.0, scale in 0.01f64..100.0, turn in 0usize..12) {
        let base = answer(&ask(&kind(&rates), target, 0.9)).unwrap();
        let mut turned = rates.clone();
        turned.rotate_left(turn % rates.len());
        prop_assert_eq!(&answer(&ask(&kind(&turned), target, 0.9)).unwrap().probability, &base.probability);
        // A scale of a power of two changes no digit; another one may move a sum that is exactly on the target.
        let doubled: Vec<f64> = rates.iter().map(|rate| rate * 64.0).collect();
        prop_assert_eq!(count(&doubled, target * 64.0, 0.9), base.count);
        let scaled: Vec<f64> = rates.iter().map(|rate| rate * scale).collect();
        let found = answer(&ask(&kind(&scaled), target * scale, 0.9)).unwrap();
        prop_assert!(found.count == base.count || !found.exactness.decided || !base.exactness.decided
            || (base.one_fewer.high - 0.9).abs() < 1e-6 || (base.probability.low - 0.9).abs() < 1e-6, "{:?} {:?}", found, base);
    }

    #[test]
    fn dice_and_buckets_stand_by_the_exact_answer(rates in rates(), machines in 2.0f64..30.0, confidence in 0.2f64..0.98, together in prop_oneof![Just(0.0), 0.0f64..1.0]) {
        let conditions = Conditions { together, ..Conditions::default() };
        let kind = kind(&rates);
        let target = machines * kind.distribution.mean();
        let question = Question { conditions, ..ask(&kind, target, confidence) };
        let found = answer(&question).unwrap();
        let said = buckets::count(&question, found.count).unwrap();
        let slack = usize::from(!found.exactness.decided);
        prop_assert!(said.count_low <= found.count && found.count <= said.count_high + slack, "{:?} {:?}", said, found);
        let (share, low, high) = chance::play(&question, found.count, 5).probability(found.count);
        // The interval is of 99 %; it is widened by its own width, so that the hundredth case passes too.
        let width = high - low;
        prop_assert!(found.probability.high >= low - width && found.probability.low <= high + width, "{} {:?}", share, found);
    }
}
