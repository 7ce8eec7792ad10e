//! What a rewrite of a sealed layer copies: a pure function of its map, the map of the layer that is merged into it, and
//! the segments that are sparse.

use crate::format::{LayerState, PAGE_ENTRIES};
use std::collections::BTreeSet;

/// A layer's own entries of a page: 0, a hole (1), or a place.
pub type Entries = Vec<u64>;

pub const NOTHING: u64 = 0;
pub const HOLE: u64 = 1;
const BLOCK_BITS: u32 = 12;

/// An entry for a block of a segment.
pub fn entry(segment: u32, block: u32) -> u64 {
    u64::from(segment) << BLOCK_BITS | u64::from(block)
}

/// Segment and block of an entry with data.
pub fn segment_and_block(entry: u64) -> Option<(u32, u32)> {
    (entry > HOLE).then_some(((entry >> BLOCK_BITS) as u32, (entry & ((1 << BLOCK_BITS) - 1)) as u32))
}

/// Where an entry of the new page is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The layer's own entry stays as it is.
    Kept(u64),
    /// A copy of a block of the layer itself.
    Own { segment: u32, block: u32 },
    /// A copy of a block of the layer that is merged into it.
    Merged { segment: u32, block: u32 },
}

/// The segments whose blocks in use are less than a share of a hundred.
pub fn sparse(state: &LayerState, percent: u32) -> BTreeSet<u32> {
    let is_sparse = |live: u32| u64::from(live) * 100 < u64::from(state.segment_blocks) * u64::from(percent);
    state.segments.iter().filter(|segment| is_sparse(segment.live)).map(|segment| segment.number).collect()
}

/// The new page. `is_lowest`: no layer lies below, so that a hole need not hide anything.
pub fn page(own: &Entries, merged: Option<&Entries>, sparse: &BTreeSet<u32>, is_lowest: bool) -> Vec<From> {
    let from = |index: usize| {
        let here = own.get(index).copied().unwrap_or(NOTHING);
        let below = merged.and_then(|merged| merged.get(index)).copied().unwrap_or(NOTHING);
        match (segment_and_block(here), segment_and_block(below)) {
            (Some((segment, block)), _) if sparse.contains(&segment) => From::Own { segment, block },
            (Some(_), _) => From::Kept(here),
            (None, Some((segment, block))) if here == NOTHING => From::Merged { segment, block },
            _ if is_lowest || (here, below) == (NOTHING, NOTHING) => From::Kept(NOTHING),
            _ => From::Kept(HOLE),
        }
    };
    (0..PAGE_ENTRIES as usize).map(from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(entries: &[u64]) -> Entries {
        let mut all = vec![NOTHING; PAGE_ENTRIES as usize];
        all[..entries.len()].copy_from_slice(entries);
        all
    }

    #[test]
    fn the_upper_layer_hides_the_lower_one_and_sparse_segments_are_copied() {
        let own = filled(&[entry(1, 5), entry(2, 6), HOLE, NOTHING, NOTHING, HOLE]);
        let below = filled(&[entry(7, 1), entry(7, 2), entry(7, 3), entry(7, 4), HOLE, NOTHING]);
        let sparse = BTreeSet::from([2]);
        let page_of = |is_lowest| page(&own, Some(&below), &sparse, is_lowest)[..7].to_vec();
        let own_copy = From::Own { segment: 2, block: 6 };
        let merged = From::Merged { segment: 7, block: 4 };
        let kept = From::Kept;
        assert_eq!(page_of(false), [kept(entry(1, 5)), own_copy, kept(1), merged, kept(1), kept(1), kept(0)]);
        assert_eq!(page_of(true), [kept(entry(1, 5)), own_copy, kept(0), merged, kept(0), kept(0), kept(0)]);
    }
}
