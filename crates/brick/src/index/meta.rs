//! What a checkpoint says beside the entries: how far the index is. `docs/format/index.md` is the document.

use crate::index::Index;
use crate::journal::format::SEGMENT_HEADER_BYTES;
use crate::journal::{Geometry, Lsn};
use crate::machine::LogPosition;
use hekate_proto::*;
use std::collections::BTreeMap;

wire_struct! {
    /// One partition's log in [`Meta`].
    pub struct PartitionLog {
        /// Ring.
        pub ring: RingId,
        /// Partition.
        pub partition: PartitionNumber,
        /// Epoch of its last record.
        pub epoch: Epoch,
        /// Number of its last record.
        pub sequence: Sequence,
    }

    /// What a checkpoint says beside the entries.
    pub struct Meta {
        /// The index holds everything before this position of the log.
        pub applied: u64,
        /// Generation of the journal's writer.
        pub generation: u32,
        /// Where the log went on in that opening: from there on nothing counts that an earlier one has written.
        pub resumed: u64,
        /// Each partition's log.
        pub logs: Vec<PartitionLog>,
    }
}

impl Meta {
    /// `resumed`: generation of the journal's writer, and where it went on.
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

    /// Positions that no log reaches are damage.
    fn checked(self, geometry: Geometry) -> Result<Self> {
        let behind_header = |at: Lsn| geometry.offset_of(at) >= SEGMENT_HEADER_BYTES;
        let reachable = |at: Lsn| (1..u64::MAX / 2 / geometry.segment_bytes).contains(&geometry.number_of(at));
        let is_place = |at: u64| behind_header(Lsn(at)) && reachable(Lsn(at));
        if is_place(self.applied) && is_place(self.resumed) && self.generation < u32::MAX {
            return Ok(self);
        }
        let (applied, generation) = (self.applied, self.generation);
        Err(Error::Damaged { what: format!("the index says that it is at {applied}, opening {generation}") })
    }

    /// Of the last checkpoint, or of a new brick.
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
