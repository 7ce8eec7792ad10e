//! The steps of a history, and random histories.

use crate::storage::Random;

/// A step. Numbers that do not fit are reduced modulo what does, so any sequence of steps is a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Puts an entry with a value of so many bytes.
    Put {
        partition: usize,
        name: u8,
        bytes: usize,
    },
    Delete {
        partition: usize,
        name: u8,
    },
    /// Writes blocks through the journal. The shard's last block lacks `short` bytes if the shard ends there.
    Write {
        shard: usize,
        first: u32,
        count: u32,
        short: u32,
    },
    /// Writes fresh blocks home, `gap` blocks behind all earlier ones, and appends their record.
    Fresh {
        shard: usize,
        gap: u32,
        count: u32,
        short: u32,
    },
    /// Writes fresh blocks home, without a record.
    FreshWithoutRecord {
        shard: usize,
        gap: u32,
        count: u32,
    },
    /// Cuts the shard to a part of its bytes.
    Cut {
        shard: usize,
        bytes: u32,
    },
    /// Punches blocks that are or were at home.
    Punch {
        shard: usize,
        first: u32,
        count: u32,
    },
    /// Reserves fresh blocks.
    Reserve {
        shard: usize,
        count: u32,
    },
    Drop {
        shard: usize,
    },
    /// Syncs the journal.
    Sync,
    /// Syncs the data files of these shards, one bit each.
    SyncShards {
        shards: u8,
    },
    Checkpoint,
    /// A checkpoint with these steps between its beginning and its end.
    CheckpointAround(Vec<Step>),
    /// The process ends, by a kill or by closing the brick, and another opens the brick in the same incarnation.
    Reopen {
        clean: bool,
    },
    /// The process is killed after so many more calls that change something.
    Die {
        calls: u64,
    },
}

/// The history of a seed.
pub fn history(seed: u64) -> Vec<Step> {
    let mut random = Random::new(seed);
    // Some write more than the journal holds. Most are small, so that there are more of them in the same time.
    let big = random.once_in(6);
    let dies = random.once_in(3);
    let count = if big { 16 + random.below(16) } else { 5 + random.below(14) };
    (0..count).map(|_| step(&mut random, big, dies)).collect()
}

fn step(random: &mut Random, big: bool, dies: bool) -> Step {
    match random.below(if dies { 32 } else { 30 }) {
        19..=21 => Step::Sync,
        22..=24 => Step::SyncShards { shards: random.below(8) as u8 },
        25 | 26 => Step::Checkpoint,
        27 => Step::CheckpointAround((0..1 + random.below(3)).map(|_| change(random, big)).collect()),
        28 | 29 => Step::Reopen { clean: random.once_in(3) },
        30 | 31 => Step::Die { calls: 1 + random.below(14) },
        _ => change(random, big),
    }
}

fn change(random: &mut Random, big: bool) -> Step {
    // Most steps are on one shard.
    let shard = random.below(4) as usize % 3;
    let count = 1 + random.below(if big { 7 } else { 3 }) as u32;
    let short = if random.once_in(2) { 0 } else { random.below(4096) as u32 };
    // Sometimes across the border of two groups of checksums.
    let gap = if random.once_in(12) { 60 } else { random.below(3) as u32 };
    match random.below(20) {
        0..=3 => {
            let bytes = if big && random.once_in(2) { 2000 + random.below(20_000) } else { random.below(60) } as usize;
            Step::Put { partition: shard, name: random.below(4) as u8, bytes }
        }
        4 => Step::Delete { partition: shard, name: random.below(4) as u8 },
        5..=8 => Step::Write { shard, first: random.below(8) as u32, count, short },
        9 | 10 => Step::Write { shard, first: random.below(120) as u32, count: 1, short },
        11..=15 => Step::Fresh { shard, gap, count, short },
        16 if random.once_in(2) => Step::Reserve { shard, count: 3 * count },
        16 => Step::FreshWithoutRecord { shard, gap, count },
        17 if random.once_in(2) => Step::Punch { shard, first: random.below(70) as u32, count: 2 * count },
        17 | 18 => Step::Cut { shard, bytes: random.number() as u32 },
        _ => Step::Drop { shard },
    }
}
