//! vDisks over a store in memory.

mod histories;
mod losses;
mod single;

use crate::store::memory::Memory;
use crate::{Catalogue, Disk, Durability, Settings};
use bytes::Bytes;

/// Small limits, so that segments, checkpoints and dropped pages come early.
const SMALL: Settings = Settings { map_pages: 16, checkpoint_bytes: 200 << 10, append_blocks: 3, background: false };
const MIB: u64 = 1 << 20;
const SEGMENT_BLOCKS: u32 = 20;

fn catalogue(memory: &Memory, seed: u64) -> Catalogue {
    Catalogue::open(memory.session(seed)).unwrap().with_segments(SEGMENT_BLOCKS)
}

fn made(memory: &Memory, size: u64) -> (Catalogue, Disk) {
    let catalogue = catalogue(memory, 7);
    catalogue.create("d", size, Durability::Replicated, Vec::new()).unwrap();
    let disk = Disk::open(&catalogue, "d", "test", SMALL).unwrap();
    (catalogue, disk)
}

fn bytes(fill: u8, length: usize) -> Bytes {
    vec![fill; length].into()
}
