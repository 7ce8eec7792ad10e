//! Statistics of a series: quantiles, the curve "this or better", its knee and flatness, autocorrelation.

/// The value that this share of the samples does not exceed; `sorted` ascends and is not empty (Hyndman and Fan's type
/// 1: always a sample, never between two).
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// The value that a normal variable with mean 0 and deviation 1 does not exceed with this probability; off by 0.0005 at
/// most (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.23).
pub fn normal_quantile(probability: f64) -> f64 {
    let tail = probability.min(1.0 - probability).max(1e-300);
    let t = (-2.0 * tail.ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let value = t - above / below;
    if probability < 0.5 { -value } else { value }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Of these values, not an estimate for a larger population.
pub fn standard_deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

/// The curve "this rate or better": shares of the samples and the rate that they reach, from the best sample on.
pub fn or_better(sorted: &[f64]) -> Vec<(f64, f64)> {
    let count = sorted.len() as f64;
    sorted.iter().rev().enumerate().map(|(index, rate)| ((index + 1) as f64 / count, *rate)).collect()
}

/// Mean over peak: 1 for a machine that always gives its best, less the lower its mean is below its peak.
pub fn flatness(sorted: &[f64]) -> f64 {
    match sorted.last() {
        Some(peak) if *peak > 0.0 => mean(sorted) / peak,
        _ => 1.0,
    }
}

/// The point where the curve "this or better" bends most: the one farthest from the straight line between its ends
/// (Satopää et al., Finding a "kneedle" in a haystack, 2011, without its smoothing). None if the curve keeps within 5 %
/// of that line.
pub fn knee(sorted: &[f64]) -> Option<(f64, f64)> {
    let (least, peak) = (*sorted.first()?, *sorted.last()?);
    if sorted.len() < 3 || peak <= least {
        return None;
    }
    let count = sorted.len() as f64;
    let height = |index: usize| {
        let share = (index as f64 + 0.5) / count;
        (sorted[sorted.len() - 1 - index] - least) / (peak - least) - (1.0 - share)
    };
    let farthest = (0..sorted.len()).max_by(|one, other| height(*one).abs().total_cmp(&height(*other).abs()))?;
    const STRAIGHT: f64 = 0.05;
    (height(farthest).abs() > STRAIGHT).then(|| ((farthest + 1) as f64 / count, sorted[sorted.len() - 1 - farthest]))
}

/// Correlation of samples 0, 1, 2 … intervals apart: 1 equal, 0 unrelated, -1 opposite. Up to a quarter of the series;
/// all 0 behind the first if it never varies. By FFT (Wiener and Khinchin), with the usual divisor n.
pub fn autocorrelation(values: &[f64]) -> Vec<f64> {
    let lags = (values.len() / 4).max(1);
    let mean = mean(values);
    let length = crate::plan::sum::friendly(values.len() + lags);
    let mut padded = vec![0.0; length];
    padded.iter_mut().zip(values).for_each(|(to, value)| *to = value - mean);
    let mut spectrum = crate::plan::sum::transform(&mut padded);
    spectrum.iter_mut().for_each(|bin| *bin = (bin.norm_sqr()).into());
    let sums = crate::plan::sum::transform_back(&mut spectrum, length);
    let whole = sums[0];
    // A series without variation has only the rounding of its mean left.
    let nothing = (mean.abs() * 1e-12).powi(2) * (values.len() * length) as f64;
    let relative = |lag: usize| if whole > nothing { (sums[lag] / whole).clamp(-1.0, 1.0) } else { 0.0 };
    std::iter::once(1.0).chain((1..lags).map(relative)).collect()
}

/// Number of neighbouring samples that are worth one: 1 if they are unrelated. Geyer's initial positive sequence: the
/// sum of the autocorrelations up to the first pair that is not positive.
pub fn samples_per_independent_one(autocorrelation: &[f64]) -> f64 {
    let pairs = autocorrelation.chunks_exact(2).map(|pair| pair[0] + pair[1]);
    let sum: f64 = pairs.take_while(|pair| *pair > 0.0).sum();
    (2.0 * sum - 1.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn quantiles_are_samples() {
        let sorted = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(
            [0.0, 0.25, 0.26, 0.5, 0.99, 1.0].map(|share| quantile(&sorted, share)),
            [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
        );
    }

    #[test]
    fn the_normal_distribution_is_that_of_the_tables() {
        for (probability, value) in [(0.5, 0.0), (0.99, 2.3263), (0.01, -2.3263), (0.975, 1.95996), (0.999, 3.0902)] {
            assert!((normal_quantile(probability) - value).abs() < 5e-4, "{probability}");
        }
        assert!(normal_quantile(1e-300).is_finite() && normal_quantile(1.0).is_finite());
    }

    #[test]
    fn the_curve_falls_from_the_best_sample() {
        assert_eq!(or_better(&[1.0, 2.0]), [(0.5, 2.0), (1.0, 1.0)]);
    }

    #[test]
    fn flat_is_one_and_half_of_the_peak_a_half() {
        assert_eq!([flatness(&[5.0, 5.0]), flatness(&[0.0, 4.0]), flatness(&[0.0])], [1.0, 0.5, 1.0]);
    }

    #[test]
    fn the_knee_is_where_a_plateau_ends() {
        let sorted: Vec<f64> =
            (0..30).map(|index| index as f64 * 3.0).chain((0..70).map(|index| 100.0 + index as f64 * 0.1)).collect();
        let (share, rate) = knee(&sorted).unwrap();
        assert!((share - 0.7).abs() < 0.02 && (87.0..=101.0).contains(&rate), "{share} {rate}");
        assert_eq!(knee(&(0..100).map(f64::from).collect::<Vec<_>>()), None);
        assert_eq!(knee(&[1.0, 1.0, 1.0]), None);
    }

    #[test]
    fn autocorrelation_is_the_sum_by_its_definition() {
        let mut random = Random::seeded(7);
        let values: Vec<f64> = (0..50).map(|_| random.fraction() * 100.0).collect();
        let mean = mean(&values);
        let sum = |lag: usize| -> f64 { (lag..50).map(|at| (values[at] - mean) * (values[at - lag] - mean)).sum() };
        let found = autocorrelation(&values);
        for (lag, found) in found.iter().enumerate() {
            assert!((found - sum(lag) / sum(0)).abs() < 1e-9, "{lag}");
        }
        assert_eq!(found.len(), 12);
        assert_eq!(autocorrelation(&[0.1; 100])[1], 0.0);
    }

    #[test]
    fn alike_neighbours_say_less() {
        let mut random = Random::seeded(3);
        let free: Vec<f64> = (0..4000).map(|_| random.fraction()).collect();
        let tenfold: Vec<f64> = free.iter().flat_map(|value| [*value; 10]).collect();
        assert!(samples_per_independent_one(&autocorrelation(&free)) < 1.5);
        let found = samples_per_independent_one(&autocorrelation(&tenfold));
        assert!((8.0..12.0).contains(&found), "{found}");
    }
}
