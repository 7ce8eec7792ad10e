//! Pseudorandom numbers that are the same for the same seed, on every machine and in every version.
//!
//! SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014). Sample data sets are
//! made with it and the answers of the planner depend on it, so it is not from a library, whose numbers may change with
//! a release.

/// One stream of numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0; by multiplication (Lemire), whose bias is below end / 2^64.
    pub fn below(&mut self, end: usize) -> usize {
        assert!(end > 0, "there is no number below 0");
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// A number from 0 up to, but not including, 1.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_splitmix64() {
        // From the authors' reference program, with 1234567 as the seed.
        let mut random = Random::seeded(1_234_567);
        assert_eq!([random.bits(), random.bits()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random::seeded(1);
        let drawn: Vec<usize> = (0..1000).map(|_| random.below(3)).collect();
        assert!((0..3).all(|number| drawn.contains(&number)) && drawn.iter().all(|number| *number < 3));
        assert!((0..1000).map(|_| random.fraction()).all(|fraction| (0.0..1.0).contains(&fraction)));
    }
}
