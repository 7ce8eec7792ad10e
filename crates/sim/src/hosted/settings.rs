//! The settings of a run, all of which follow from its seed.

use crate::cluster::settings::{Micros, Settings as Workload};
use hekate_brick::storage::Random;

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    pub servers: u32,
    pub copies: u32,
    pub clients: u32,
    pub calls_per_client: u32,
    /// What clients call: the other fields of these settings are not used.
    pub workload: Workload,
    /// Longest pause of a client between two calls.
    pub think_max: Micros,
    /// Longest delay of a message, and of an answer of the coordinator.
    pub delay_max: Micros,
    /// Packets between servers that are lost, and doubled, of 1,000.
    pub lost: u64,
    pub doubled: u64,
    /// Calls of the coordinator whose answer is lost, of 1,000.
    pub lost_answers: u64,
    /// Mean time between two faults; 0: none.
    pub faults_every: Micros,
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

impl Settings {
    /// The settings of a seed.
    pub fn of(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4057_ed00);
        let servers = pick(random, &[1, 2, 3, 3, 3]);
        Self {
            seed,
            servers,
            copies: pick(random, &[1, 2, 2, 3]).min(servers),
            clients: pick(random, &[1, 2, 3]),
            calls_per_client: pick(random, &[20, 40, 60]),
            workload: Workload::of(seed),
            think_max: pick(random, &[20_000, 200_000, 500_000]),
            delay_max: pick(random, &[200, 2_000, 20_000]),
            lost: pick(random, &[0, 0, 10]),
            doubled: pick(random, &[0, 10]),
            lost_answers: pick(random, &[0, 5, 30]),
            faults_every: pick(random, &[0, 800_000, 2_000_000, 4_000_000]),
        }
    }
}
