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
    /// Faults that are cuts of the way to the coordinator, in percent, besides those among the others.
    pub coordinator_cuts: u64,
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

impl Settings {
    /// The settings of a seed: of a run of everything, or, for one seed of three each, about names and about rivals.
    pub fn of(seed: u64) -> Self {
        let wide = Self::wide(seed);
        match seed % 3 {
            0 => wide,
            1 => Self { workload: Workload::narrow_names(seed), ..wide },
            _ => Self::rivals(wide),
        }
    }

    /// Many calls about one or two blocks, while servers lose the coordinator: what a leader answers after its lease
    /// meets what another one has changed.
    fn rivals(wide: Self) -> Self {
        let random = &mut Random::new(wide.seed ^ 0x4057_71fa);
        let servers = pick(random, &[2, 3, 3]);
        Self {
            servers,
            copies: pick(random, &[2, 2, 3]).min(servers),
            clients: pick(random, &[2, 3]),
            calls_per_client: 120,
            workload: Workload::narrow_rivals(wide.seed),
            think_max: pick(random, &[100_000, 200_000]),
            faults_every: pick(random, &[800_000, 2_000_000]),
            coordinator_cuts: pick(random, &[0, 50]),
            ..wide
        }
    }

    fn wide(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4057_ed00);
        let servers = pick(random, &[1, 2, 3, 3, 3]);
        Self {
            seed,
            servers,
            copies: pick(random, &[1, 2, 2, 3]).min(servers),
            clients: pick(random, &[1, 2, 3, 4]),
            calls_per_client: pick(random, &[20, 40, 60]),
            workload: Workload::of(seed),
            think_max: pick(random, &[20_000, 200_000, 500_000]),
            delay_max: pick(random, &[200, 2_000, 20_000]),
            lost: pick(random, &[0, 0, 10]),
            doubled: pick(random, &[0, 10]),
            lost_answers: pick(random, &[0, 5, 30]),
            faults_every: pick(random, &[0, 800_000, 2_000_000, 4_000_000]),
            coordinator_cuts: 0,
        }
    }
}
