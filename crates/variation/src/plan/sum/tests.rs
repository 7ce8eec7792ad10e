//! Sums by FFT against sums by enumeration: never farther apart than the printed bound.

use super::super::distribution::Distribution;
use super::*;
use proptest::prelude::*;

/// The probability that the sum of one draw of each reaches the target, by enumerating all draws.
pub fn by_enumeration(machines: &[&Distribution], target: f64) -> f64 {
    match machines.split_first() {
        None => f64::from(target <= 1e-9),
        Some((first, rest)) => {
            first.points().iter().map(|(value, weight)| weight * by_enumeration(rest, target - value)).sum()
        }
    }
}

fn sum_of(parts: &[Part]) -> Sum {
    Spectra::new(length_for(parts)).sum(parts)
}

fn part(kind: &Distribution, width: f64, count: usize) -> Part {
    Part { cells: Arc::new(kind.cells(width)), count }
}

#[test]
fn two_dice_are_two_dice() {
    let die = Distribution::new((1..=6).map(f64::from).collect(), 0.0);
    let sum = sum_of(&[part(&die, 1.0, 2)]);
    for (target, ways) in [(1, 36), (2, 36), (3, 35), (7, 21), (12, 1), (13, 0)] {
        let found = sum.reaches(f64::from(target), 1.0);
        let wanted = f64::from(ways) / 36.0;
        assert!(found.low <= wanted && wanted <= found.high && found.high - found.low < 1e-11, "{target}: {found:?}");
        assert!((sum.estimate(f64::from(target), 1.0) - wanted).abs() < 1e-12);
    }
}

#[test]
fn a_window_that_wraps_gives_the_same_result() {
    let kind = Distribution::new((0..200).map(|index| f64::from(index * index % 97)).collect(), 0.1);
    let parts = [part(&kind, 1.0, 400)];
    let (range, _) = extent(&sizes(&parts));
    let short = sum_of(&parts);
    assert!((short.tail.len() as u64) < range / 2, "{} of {range}", short.tail.len());
    let whole = Spectra::new(friendly(range as usize + 1)).sum(&parts);
    let mean = 400.0 * kind.mean();
    for target in [mean * 0.9, mean - 100.0, mean, mean + 100.0, mean * 1.1].map(f64::round) {
        let (one, other) = (short.estimate(target, 1.0), whole.estimate(target, 1.0));
        assert!((one - other).abs() <= short.error + whole.error, "{target}: {one} {other}");
    }
}

proptest! {
    #[test]
    fn sums_are_those_of_enumeration(
        one in prop::collection::vec(0.0f64..100.0, 1..6), other in prop::collection::vec(0.0f64..30.0, 1..4),
        outage in prop_oneof![Just(0.0), 0.0f64..0.5], counts in (0usize..4, 1usize..3), share in 0.0f64..1.1, cells in 5usize..400,
    ) {
        let (one, other) = (Distribution::new(one, outage), Distribution::new(other, 0.0));
        let width = super::super::grid::even_width(&[&one, &other], cells);
        prop_assume!(width > 0.0);
        let sum = sum_of(&[part(&one, width, counts.0), part(&other, width, counts.1)]);
        let machines: Vec<&Distribution> =
            std::iter::repeat_n(&one, counts.0).chain(std::iter::repeat_n(&other, counts.1)).collect();
        let target = share * machines.iter().map(|machine| machine.most()).sum::<f64>();
        let (found, wanted) = (sum.reaches(target, width), by_enumeration(&machines, target));
        prop_assert!(found.low <= wanted + 1e-12 && wanted <= found.high + 1e-12, "{:?} {}", found, wanted);
    }

    #[test]
    fn whole_numbers_are_summed_exactly(values in prop::collection::vec(0u32..50, 1..6), count in 1usize..5, target in 0u32..200) {
        let kind = Distribution::new(values.iter().map(|value| f64::from(*value)).collect(), 0.0);
        prop_assume!(kind.most() > 0.0);
        let width = super::super::grid::exact_width(&[&kind]).unwrap();
        let sum = sum_of(&[part(&kind, width, count)]);
        let wanted = by_enumeration(&vec![&kind; count], f64::from(target));
        prop_assert!((sum.estimate(f64::from(target), width) - wanted).abs() <= sum.error + 1e-12);
        prop_assert!(sum.error < 1e-10);
    }
}
