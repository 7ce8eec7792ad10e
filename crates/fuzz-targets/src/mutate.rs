//! Small changes to bytes, reproducible from a seed: the mutator of the tests that run without libFuzzer.

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers are a function of the seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }
}

/// Values at which comparisons and additions overflow or change sign.
const INTERESTING: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x3ff,
    0x400,
    0x1000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    u64::MAX,
];

/// Longest result, in bytes.
const BYTES_MAX: usize = 64 << 10;

/// `bytes` with one to four changes; spliced pieces come from `other`.
pub fn mutate(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(4) {
        change(&mut out, other, random);
    }
    out.truncate(BYTES_MAX);
    out
}

fn change(out: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(out.len());
    match random.below(9) {
        0 => put(out, at, |byte| *byte ^= 1 << random.below(8)),
        1 => put(out, at, |byte| *byte = random.bits() as u8),
        2 | 3 => overwrite(out, at, random),
        4 => drop(out.drain(at..(at + 1 + random.below(16)).min(out.len()).max(at))),
        5 => insert(out, at, &random.bits().to_le_bytes()[..1 + random.below(8)]),
        6 => {
            let piece = piece(out, random).to_vec();
            insert(out, at, &piece);
        }
        7 => insert(out, at, piece(other, random)),
        _ => out.truncate(at),
    }
}

fn put(out: &mut [u8], at: usize, change: impl FnOnce(&mut u8)) {
    if let Some(byte) = out.get_mut(at) {
        change(byte);
    }
}

/// Overwrites a length or number with an interesting one, in either byte order, or decrements it.
fn overwrite(out: &mut [u8], at: usize, random: &mut Random) {
    let value = INTERESTING[random.below(INTERESTING.len())].wrapping_sub(random.below(2) as u64);
    let width = 1 << random.below(4);
    let mut bytes = value.to_le_bytes()[..width].to_vec();
    if random.below(4) == 0 {
        bytes.reverse();
    }
    for (to, from) in out.iter_mut().skip(at).zip(bytes) {
        *to = from;
    }
}

fn insert(out: &mut Vec<u8>, at: usize, piece: &[u8]) {
    out.splice(at..at, piece.iter().copied());
}

fn piece<'a>(bytes: &'a [u8], random: &mut Random) -> &'a [u8] {
    let from = random.below(bytes.len());
    let count = (1 + random.below(64)).min(bytes.len() - from);
    &bytes[from..from + count]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_bytes_each_time_and_no_input_is_too_small() {
        let run = |seed| -> Vec<Vec<u8>> {
            let mut random = Random::new(seed);
            (0..1000).map(|n| mutate(&[7; 40][..n % 41], &[9; 3][..n % 4], &mut random)).collect()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
