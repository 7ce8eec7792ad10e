//! The settings of a run, all of which follow from its seed and its kind.

mod disks;
mod narrow;
pub mod workload;

pub use disks::{CELLS_PER_BLOCK, DiskSettings};

use crate::simulator::settings::workload::{FaultSettings, Micros, Workload};
use hekate_brick::storage::Random;

/// Factor by which faults come less often than a workload says: leases last 3 s.
const SLOWER: Micros = 20;
/// Shortest and longest mean time between two faults of narrow runs.
const EVERY: std::ops::RangeInclusive<Micros> = 500_000..=4_000_000;

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    pub servers: u32,
    pub copies: u32,
    pub clients: u32,
    pub calls_per_client: u32,
    /// Calls that a client makes at a time.
    pub calls_at_once: usize,
    /// Machines, bricks, partitions, what clients call, and the rates of clocks.
    pub workload: Workload,
    /// Calls about locks, in percent.
    pub locks: u64,
    /// Calls about objects, in percent.
    pub objects: u64,
    /// Longest pause of a client between two calls.
    pub think_max: Micros,
    /// Longest delay of a message, and of an answer of the coordinator.
    pub delay_max: Micros,
    /// Longest delay of one in five requests of a fast write.
    pub late_max: Micros,
    /// Longest time until a client notices that its connection was cut.
    pub notice_max: Micros,
    /// Longest time until a cut of a connection for notifications is noticed, which carries nothing until then. 0: it is
    /// noticed at once.
    pub listener_notice_max: Micros,
    /// Messages between clients and servers that take up to `late_max`, of 1,000.
    pub slow_messages: u64,
    /// Packets between servers that are lost, and doubled, and that take 20 times as long, of 1,000.
    pub lost: u64,
    pub doubled: u64,
    pub slow: u64,
    /// Calls of the coordinator whose answer is lost, of 1,000.
    pub lost_answers: u64,
    pub faults: FaultSettings,
    /// Weight of the fault that a server is stopped as an operator stops it.
    pub stop: u64,
    /// Clients use a vDisk, and nothing else.
    pub disks: Option<DiskSettings>,
}

/// The kinds of runs: everything, and those that leave most things out (`settings/narrow.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Wide,
    Narrow,
    Names,
    Rivals,
    Late,
    Legs,
    Splits,
    Journals,
    Locks,
    Objects,
    Disks,
    Pledges,
}

impl Kind {
    pub const ALL: [Kind; 12] = [
        Kind::Wide,
        Kind::Narrow,
        Kind::Names,
        Kind::Rivals,
        Kind::Late,
        Kind::Legs,
        Kind::Splits,
        Kind::Journals,
        Kind::Locks,
        Kind::Objects,
        Kind::Disks,
        Kind::Pledges,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Wide => "wide",
            Kind::Narrow => "narrow",
            Kind::Names => "names",
            Kind::Rivals => "rivals",
            Kind::Late => "late",
            Kind::Legs => "legs",
            Kind::Splits => "splits",
            Kind::Journals => "journals",
            Kind::Locks => "locks",
            Kind::Objects => "objects",
            Kind::Disks => "disks",
            Kind::Pledges => "pledges",
        }
    }

    fn workload(self, seed: u64) -> Workload {
        match self {
            Kind::Wide => Workload::of(seed),
            Kind::Narrow => Workload::narrow(seed),
            Kind::Names | Kind::Objects => Workload::narrow_names(seed),
            Kind::Rivals | Kind::Locks => Workload::narrow_rivals(seed),
            Kind::Late => Workload::narrow_late(seed),
            Kind::Legs => Workload::narrow_legs(seed),
            Kind::Splits => Workload::narrow_splits(seed),
            Kind::Journals => Workload::narrow_journals(seed),
            Kind::Disks => Workload::narrow_disks(seed),
            Kind::Pledges => Workload::narrow_pledges(seed),
        }
    }
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

impl Settings {
    /// The settings of a seed.
    pub fn of(kind: Kind, seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4057_ed00);
        let workload = kind.workload(seed);
        let every = if workload.faults.every == 0 { 0 } else { pick(random, &[800_000, 2_000_000, 4_000_000]) };
        let delay_max = pick(random, &[200, 2_000, 20_000]);
        let wide = Self {
            seed,
            servers: workload.servers,
            copies: workload.copies,
            clients: workload.clients,
            calls_per_client: workload.calls_per_client,
            calls_at_once: pick(random, &[1, 1, 2, 4]),
            locks: pick(random, &[0, 0, 10]),
            think_max: pick(random, &[20_000, 200_000, 500_000]),
            delay_max,
            late_max: pick(random, &[SLOWER * delay_max, 100_000, 2_000_000]),
            notice_max: pick(random, &[30_000, 300_000, 2_000_000]),
            listener_notice_max: 0,
            slow_messages: 0,
            lost: pick(random, &[0, 0, 10]),
            doubled: pick(random, &[0, 10]),
            slow: pick(random, &[0, 10, 50]),
            lost_answers: pick(random, &[0, 5, 30]),
            faults: FaultSettings { every, ..workload.faults },
            stop: pick(random, &[0, 0, 2]),
            objects: pick(random, &[0, 0, 20]),
            disks: None,
            workload,
        };
        wide.of_kind(kind, random)
    }

    /// Narrow runs have few clients that think for a short time, and faults as often as their workload says.
    fn of_kind(self, kind: Kind, random: &mut Random) -> Self {
        let every = (self.workload.faults.every * SLOWER).clamp(*EVERY.start(), *EVERY.end());
        let think_max = pick(random, &[20_000, 100_000, 200_000]);
        let narrow = |of: Self| Self { think_max, faults: FaultSettings { every, ..of.faults }, ..of };
        match kind {
            Kind::Wide => self,
            Kind::Narrow | Kind::Names | Kind::Legs | Kind::Journals | Kind::Rivals => narrow(self),
            Kind::Late | Kind::Splits => Self { calls_at_once: 1, ..narrow(self) },
            Kind::Locks => Self { locks: pick(random, &[50, 80]), ..narrow(self) },
            Kind::Objects => Self { objects: pick(random, &[60, 90]), ..narrow(self) },
            Kind::Pledges => Self {
                calls_at_once: pick(random, &[1, 2, 4]),
                think_max: pick(random, &[50_000, 200_000, 400_000]),
                late_max: pick(random, &[100_000, 2_000_000]),
                listener_notice_max: pick(random, &[1, 300_000, 12_000_000]),
                slow_messages: pick(random, &[0, 10, 50]),
                locks: 0,
                objects: 0,
                ..narrow(self)
            },
            Kind::Disks => Self { disks: Some(DiskSettings::of(self.seed)), ..narrow(self) },
        }
    }
}
