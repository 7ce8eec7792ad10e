//! The vDisk of a run: small segments and limits, so that checkpoints, new segments and scrubs come often.

use super::pick;
pub use crate::history::disks::CELLS_PER_BLOCK;
use crate::history::disks::Cell;
use crate::simulator::settings::workload::Micros;
use hekate_brick::storage::Random;

const BLOCK_BYTES: u64 = 4096;
/// Blocks of a page of the map.
const PAGE_BLOCKS: u64 = 512;

/// The vDisk of a run, and what its users do.
#[derive(Debug, Clone)]
pub struct DiskSettings {
    /// First blocks of the regions that are used, in their order.
    regions: Vec<u64>,
    /// Blocks of a region.
    pub region_blocks: u64,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    pub disk: hekate_vdisk::Settings,
    pub is_async: bool,
    /// Calls of an owner at a time, at most.
    pub calls_at_once: u64,
    /// Durable changes, in percent.
    pub durable_share: u64,
    /// Times for which a client stands still, or is cut off.
    pub away: [Micros; 2],
    /// Faults end after this time, if clients have not finished before.
    pub faults_max: Micros,
    /// Longest pause of a user between two calls.
    pub think_max: Micros,
}

impl DiskSettings {
    /// The vDisk of a seed.
    pub fn of(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x000d_15c5);
        let region_blocks = pick(random, &[2, 4, 8]);
        // Each in a page of its own, or all in one.
        let (count, step) = pick(random, &[(3, 16), (6, 16), (4, PAGE_BLOCKS), (20, PAGE_BLOCKS)]);
        let regions = (0..count).map(|region| region * step + random.below(step - region_blocks)).collect();
        // A session ends after a minute.
        let lasts = random.once_in(6);
        let disk = hekate_vdisk::Settings {
            map_pages: 16,
            checkpoint_bytes: pick(random, &[64 << 10, 256 << 10]),
            append_blocks: pick(random, &[1, 3, 15]),
            background: random.below(4) > 0,
        };
        Self {
            regions,
            region_blocks,
            segment_blocks: pick(random, &[8, 20, 64]),
            disk,
            is_async: random.once_in(8),
            calls_at_once: pick(random, &[1, 2, 4]),
            durable_share: pick(random, &[0, 10, 40]),
            away: if lasts { [10_000_000, 70_000_000] } else { [1_000_000, 5_000_000] },
            faults_max: if lasts { 110_000_000 } else { 40_000_000 },
            think_max: pick(random, &[20_000, 100_000, 300_000]),
        }
    }

    /// Bytes of the vDisk.
    pub fn size(&self) -> u64 {
        self.regions.last().map_or(0, |last| (last + self.region_blocks) * BLOCK_BYTES)
    }

    /// All cells that are used, in their order.
    pub fn cells(&self) -> Vec<Cell> {
        let of = |first: &u64| first * CELLS_PER_BLOCK..(first + self.region_blocks) * CELLS_PER_BLOCK;
        self.regions.iter().flat_map(of).collect()
    }

    /// First block of a random region.
    pub fn region(&self, random: &mut Random) -> u64 {
        self.regions[random.below(self.regions.len() as u64) as usize]
    }
}
