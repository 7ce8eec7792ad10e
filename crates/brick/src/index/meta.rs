//! The meta record of the index: up to where the index holds the log. `docs/format/index.md` describes it.

use crate::index::Index;
use crate::journal::format::SEGMENT_HEADER_BYTES;
use crate::journal::{Geometry, Lsn};
use crate::machine::LogPosition;
use hekate_proto::*;
use std::collections::BTreeMap;

wire_struct! {
    /// The position of a partition's log in [`Meta`].
    pub struct PartitionLog {
        /// Ring of the partition.
        pub ring: RingId,
        /// Number of the partition.
        pub partition: PartitionNumber,
        /// Epoch of its last record.
        pub epoch: Epoch,
        /// Number of its last record.
        pub sequence: Sequence,
    }

    /// What a checkpoint, or an opening, commits beside the entries.
    pub struct Meta {
        /// The index holds the log up to this position.
        pub applied: u64,
        /// Generation of the opening that committed this: greater than those of all openings before it.
        pub generation: u32,
        /// Position from which that opening appended: from there on, records of earlier generations are ignored.
        pub resumed: u64,
        /// The position of each partition's log.
        pub logs: Vec<PartitionLog>,
    }
}

impl Meta {
    /// `generation` and `resumed` of the opening that commits it.
    pub fn new(
        applied: Lsn,
        (generation, resumed): (u32, Lsn),
        positions: &BTreeMap<(RingId, PartitionNumber), LogPosition>,
    ) -> Self {
        let log = |((ring, partition), at): (&(RingId, PartitionNumber), &LogPosition)| PartitionLog {
            ring: *ring,
            partition: *partition,
            epoch: at.epoch,
            sequence: at.sequence,
        };
        Self { applied: applied.0, generation, resumed: resumed.0, logs: positions.iter().map(log).collect() }
    }

    /// Checks the positions: `Damaged` if a log cannot have one of them.
    fn checked(self, geometry: Geometry) -> Result<Self> {
        let behind_header = |at: Lsn| geometry.offset_of(at) >= SEGMENT_HEADER_BYTES;
        let reachable = |at: Lsn| (1..u64::MAX / 2 / geometry.segment_bytes).contains(&geometry.number_of(at));
        let is_place = |at: u64| behind_header(Lsn(at)) && reachable(Lsn(at));
        if is_place(self.applied) && is_place(self.resumed) && self.generation < u32::MAX {
            return Ok(self);
        }
        let (applied, generation) = (self.applied, self.generation);
        Err(Error::Damaged { what: format!("the index has an impossible position: {applied}, opening {generation}") })
    }

    /// The meta record of the last commit; for a new brick, that of an empty log.
    ///
    /// # Errors
    /// `Damaged`: it cannot be decoded, or is not one that a brick writes.
    pub fn read(index: &dyn Index, geometry: Geometry) -> Result<Self> {
        match index.meta()? {
            Some(bytes) => Self::from_bytes(bytes).map_err(Error::from).and_then(|meta| meta.checked(geometry)),
            None => {
                let start = geometry.start_of(1).0;
                Ok(Self { applied: start, generation: 0, resumed: start, logs: Vec::new() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_document_is_what_is_stored() {
        let log =
            PartitionLog { ring: RingId(1), partition: PartitionNumber(0), epoch: Epoch(1), sequence: Sequence(1) };
        let meta = Meta { applied: 0x0100_108d, generation: 1, resumed: 0x0100_1000, logs: vec![log] };
        let mut sealed = Vec::new();
        crate::index::seal(b"checkpoint", &meta.to_bytes(), &mut sealed);
        let document = include_str!("../../../../docs/format/index.md");
        let (_, example) = document.split_once("### The meta record").unwrap();
        let lines = example.split("```").nth(1).unwrap().lines().filter(|line| !line.is_empty());
        let hex = lines.map(|line| line.get(6..54).unwrap_or(&line[6..])).flat_map(str::split_whitespace);
        let bytes: Vec<u8> = hex.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        assert_eq!(bytes, sealed);
    }
}
