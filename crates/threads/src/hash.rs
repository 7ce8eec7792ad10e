//! Hash maps whose order of iteration depends on the simulator's seed in the simulator, and is random elsewhere.

use crate::scheduler::current;
use foldhash::SharedSeed;
use foldhash::quality::{FoldHasher, RandomState, SeedableRandomState};
use std::hash::BuildHasher;

/// `std`'s hash map with [`Hashing`].
pub type HashMap<K, V> = std::collections::HashMap<K, V, Hashing>;
/// `std`'s hash set with [`Hashing`].
pub type HashSet<K> = std::collections::HashSet<K, Hashing>;

/// The seed of a map's hashes.
#[derive(Debug, Clone)]
pub enum Hashing {
    /// Random, on a thread of the operating system.
    Machine(RandomState),
    /// Drawn from the simulator's random numbers, on a simulated thread.
    Simulated(SeedableRandomState),
}

impl Default for Hashing {
    fn default() -> Self {
        match current() {
            Some(scheduler) => {
                let seed = scheduler.random();
                Hashing::Simulated(SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()))
            }
            None => Hashing::Machine(RandomState::default()),
        }
    }
}

impl BuildHasher for Hashing {
    type Hasher = FoldHasher<'static>;

    fn build_hasher(&self) -> Self::Hasher {
        match self {
            Hashing::Machine(state) => state.build_hasher(),
            Hashing::Simulated(state) => state.build_hasher(),
        }
    }
}
