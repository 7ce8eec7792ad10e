//! Maps and logs of large vDisks without their data, to measure what opening them costs.

use crate::catalogue::Catalogue;
use crate::format::append::{Entry, Header, checksum};
use crate::format::{BLOCK_BYTES, LayerState, PAGE_ENTRIES, SegmentUse};
use crate::layer::{Layer, Pages, segment_name};
use crate::map::Place;
use bytes::{Bytes, BytesMut};
use hekate_proto::{Error, Result};
use std::collections::BTreeMap;

/// Blocks with data of an append.
const DATA: u64 = 15;
/// Bytes of the map that are written at once.
const WRITE_BYTES: u64 = 1 << 20;

/// Makes the vDisk look as if each of its first `blocks` blocks had been written once, in random order, and as if `appends`
/// appends of 15 random blocks had followed the last checkpoint. `writing`: the process that wrote it was killed during a
/// checkpoint. No data is written, so that nothing of the vDisk can be read but the places of its blocks.
///
/// # Errors
/// Those of the store; `Invalid` if a block is beyond the vDisk's end.
pub fn make_map(catalogue: &Catalogue, name: &str, blocks: u64, appends: u64, writing: bool) -> Result<()> {
    let store = catalogue.store();
    let (_, record) = catalogue.disk(name)?;
    if blocks == 0 || blocks * BLOCK_BYTES > record.size {
        return Err(Error::invalid(format!("vDisk {name} has no {blocks} blocks")));
    }
    let (layer, state) = Layer::open(&**store, record.head)?;
    let random = Random { blocks, stride: stride(blocks) };
    let in_segment = u64::from(state.segment_blocks) / (DATA + 1) * DATA;
    let place = |number: u64| {
        let (segment, rest) = (1 + number / in_segment, number % in_segment);
        (segment as u32, (rest + rest / DATA + 1) as u32)
    };
    let file = layer.map_file(store, true)?;
    let (mut at, mut run) = (0, BytesMut::new());
    for block in 0..blocks.next_multiple_of(PAGE_ENTRIES) {
        let entry = match block < blocks {
            true => {
                let (segment, block) = place(random.at(block));
                Place::data(0, segment, block).entry_at(0)
            }
            false => 0,
        };
        run.extend_from_slice(&entry.to_le_bytes());
        if run.len() as u64 == WRITE_BYTES {
            store.write(file.id, at, run.split().freeze(), false)?;
            at += WRITE_BYTES;
        }
    }
    store.write(file.id, at, run.freeze(), false)?;
    store.sync(file.id)?;
    let segments = blocks.div_ceil(in_segment) as u32;
    let mut pages = Pages::default();
    (0..blocks.div_ceil(PAGE_ENTRIES)).for_each(|page| pages.set(page));
    let uses = (1..=segments).map(|number| {
        let written = in_segment.min(blocks - u64::from(number - 1) * in_segment) as u32;
        SegmentUse { number, live: written, written }
    });
    let mut next = LayerState {
        writing,
        next_segment: segments + 1,
        segments: uses.collect(),
        pages: pages.to_bytes(),
        ..state.clone()
    };
    next.log.sequence = 1;
    (next.log.segment, next.log.block) = (segments, state.segment_blocks);
    make_log(catalogue, &layer, &next, appends, &|number| (random.at(number), place(random.at(random.at(number)))))?;
    layer.put_state(&**store, &next)
}

/// Writes the headers of appends behind a state. `overwritten`: the block that is written as the n-th, and where it was.
fn make_log(
    catalogue: &Catalogue,
    layer: &Layer,
    state: &LayerState,
    appends: u64,
    overwritten: &dyn Fn(u64) -> (u64, (u32, u32)),
) -> Result<()> {
    let store = catalogue.store();
    let zero = Bytes::from(vec![0; BLOCK_BYTES as usize]);
    let sum = checksum(&zero);
    let (mut segment, mut block, mut file) = (state.next_segment, 0, None);
    for append in 0..appends {
        if block + DATA as u32 + 1 > state.segment_blocks {
            (segment, block, file) = (segment + 1, 0, None);
        }
        let id = match file {
            Some(id) => id,
            None => {
                let id = store.make_file(layer.directory, &segment_name(segment))?;
                store.allocate(id, u64::from(state.segment_blocks) * BLOCK_BYTES)?;
                *file.insert(id)
            }
        };
        let written: Vec<(u64, (u32, u32))> = (append * DATA..(append + 1) * DATA).map(overwritten).collect();
        let mut freed: BTreeMap<u32, u32> = BTreeMap::new();
        written.iter().for_each(|(_, (from, _))| *freed.entry(*from).or_default() += 1);
        let data = written.iter().map(|(block, _)| Entry::Data { block: *block, checksum: sum });
        let freed = freed.into_iter().map(|(segment, count)| Entry::Freed { segment, count });
        let header = Header {
            layer: state.layer,
            opening: state.log.opening,
            sequence: state.log.sequence + append,
            stable: 0,
            segment,
            block,
            entries: data.chain(freed).collect(),
        };
        let sealed = header.seal(&vec![zero.clone(); DATA as usize]);
        store.write(id, u64::from(block) * BLOCK_BYTES, sealed.slice(..BLOCK_BYTES as usize), false)?;
        block += DATA as u32 + 1;
        if append + 1 == appends || block + DATA as u32 + 1 > state.segment_blocks {
            store.sync(id)?;
        }
    }
    Ok(())
}

/// A permutation of blocks.
struct Random {
    blocks: u64,
    stride: u64,
}

impl Random {
    fn at(&self, number: u64) -> u64 {
        (u128::from(number) * u128::from(self.stride) % u128::from(self.blocks)) as u64
    }
}

/// A number near the golden section that has no divisor in common with `blocks`.
fn stride(blocks: u64) -> u64 {
    let divisor = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut stride = (blocks as f64 * 0.618_033_988_749) as u64 | 1;
    while divisor(stride, blocks) != 1 {
        stride += 2;
    }
    stride
}
