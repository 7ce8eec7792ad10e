//! What rests in journals and indexes: records of changes, and the values of the index.
//!
//! `docs/format/journal.md` and `docs/format/index.md` are the documents. All changes are after-images: taking a record
//! twice leaves what taking it once leaves.

use crate::attr::{Layout, NodeKind, Time};
use crate::ids::*;
use crate::key::Key;
use crate::op::Leg;
use crate::{wire_enum, wire_struct};
use bytes::Bytes;

wire_struct! {
    /// One change of one partition, journaled by each of its replicas.
    pub struct Record {
        /// Ring.
        pub ring: RingId,
        /// Partition of the ring.
        pub partition: PartitionNumber,
        /// View in which it was made.
        pub epoch: Epoch,
        /// Its number in the partition's log; 0: a fast write, which is in nobody else's journal as this record.
        pub sequence: Sequence,
        /// Who asked.
        pub session: SessionId,
        /// With which op.
        pub op_id: OpId,
        /// What changes.
        pub changes: Vec<Change>,
    }

    /// Consecutive 4 KiB blocks of a shard.
    pub struct BlockRun {
        /// Number of the first one in the shard.
        pub first: u32,
        /// A checksum each: CRC32C seeded with shard and block number, never 0 (0 says: never written).
        pub checksums: Vec<u32>,
    }
}

wire_enum! {
    /// A change, as after-image.
    pub enum Change {
        1 = Put { key: Key, value: Bytes },
        2 = Delete { key: Key },
        /// Whole blocks of a shard, carried by the journal, written home by a checkpoint.
        3 = WriteBlocks { shard: ShardId, record: ShardRecord, run: BlockRun, bytes: Bytes },
        /// Fresh blocks of a shard, written home before this record.
        4 = FreshBlocks { shard: ShardId, record: ShardRecord, run: BlockRun },
        /// The shard ends at `record.length`; blocks after it are gone.
        5 = CutShard { shard: ShardId, record: ShardRecord },
        6 = DropShard { shard: ShardId },
        /// So many blocks from `first` on become holes, and their room at home is given back.
        7 = PunchBlocks { shard: ShardId, record: ShardRecord, first: u32, count: u32 },
        /// So many fresh blocks from `first` on were given room at home before this record; they stay holes.
        8 = ReserveBlocks { shard: ShardId, record: ShardRecord, first: u32, count: u32 },
        /// The replica goes on with another log than its own from here on: it learns. What it has that the others do not
        /// have is found by comparing.
        9 = BeginLog,
        /// The shard has another stamp, and nothing else changes: what was to follow the one that it had comes too late.
        10 = Restamp { shard: ShardId, record: ShardRecord },
    }
}

impl Change {
    /// The shard that it is about.
    pub fn shard(&self) -> Option<ShardId> {
        match self {
            Change::WriteBlocks { shard, .. }
            | Change::FreshBlocks { shard, .. }
            | Change::CutShard { shard, .. }
            | Change::PunchBlocks { shard, .. }
            | Change::ReserveBlocks { shard, .. }
            | Change::Restamp { shard, .. }
            | Change::DropShard { shard } => Some(*shard),
            Change::Put { .. } | Change::Delete { .. } | Change::BeginLog => None,
        }
    }

    /// The shard as it is afterwards.
    pub fn shard_record_mut(&mut self) -> Option<&mut ShardRecord> {
        match self {
            Change::WriteBlocks { record, .. }
            | Change::FreshBlocks { record, .. }
            | Change::CutShard { record, .. }
            | Change::PunchBlocks { record, .. }
            | Change::ReserveBlocks { record, .. }
            | Change::Restamp { record, .. } => Some(record),
            Change::DropShard { .. } | Change::Put { .. } | Change::Delete { .. } | Change::BeginLog => None,
        }
    }
}

wire_struct! {
    /// Index: an inode.
    pub struct InodeRecord {
        /// Type.
        pub kind: NodeKind,
        /// Permission bits, 0o7777.
        pub mode: u16,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Names; of a directory see its stubs.
        pub nlink: u32,
        /// Bytes.
        pub size: u64,
        /// Device number.
        pub device: u64,
        /// Last read.
        pub atime: Time,
        /// Last change of content; of a directory see its stubs.
        pub mtime: Time,
        /// Last change of anything; of a directory the later of this and its stubs'.
        pub ctime: Time,
        /// Birth.
        pub btime: Time,
        /// Change counter.
        pub change: u64,
        /// Where the bytes are.
        pub layout: Layout,
        /// Of a directory: how many partitions share its names.
        pub spread: u32,
        /// Of a directory: its parent.
        pub parent: InodeId,
        /// The greatest size since the pieces were made: shards up to here may exist.
        pub size_high: u64,
        /// Reserved for grants: up to where a sole writer may move the end of file unasked. 0: no grant.
        pub grant_limit: u64,
        /// It has the extended attribute security.capability, which goes with the next change of content or owner.
        pub has_capability: bool,
        /// It has extended attributes or ACLs, or had some.
        pub has_xattrs: bool,
    }

    /// Index: what each partition with names of a directory knows of it.
    pub struct StubRecord {
        /// False while rmdir closes it, or setattr holds it: no name is made or found in it.
        pub alive: bool,
        /// Permission bits (set-group-id is inherited).
        pub mode: u16,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// How many partitions share the names.
        pub spread: u32,
        /// Names in this partition.
        pub entries: u64,
        /// Of these, directories.
        pub directories: u32,
        /// The directory's mtime as this partition has it; the least `Time`: others tell.
        pub mtime: Time,
        /// Last change of names in this partition.
        pub ctime: Time,
        /// Change counter of this partition.
        pub change: u64,
        /// Default ACL, as in the xattr system.posix_acl_default; empty: none.
        pub default_acl: Bytes,
    }

    /// Index: a name.
    #[derive(Copy)]
    pub struct NameRecord {
        /// Where it leads.
        pub inode: InodeId,
        /// What is there.
        pub kind: NodeKind,
    }

    /// Index: a shard.
    #[derive(Copy)]
    pub struct ShardRecord {
        /// Last write.
        pub stamp: Stamp,
        /// Bytes, at most 4 MiB.
        pub length: u32,
        /// Blocks that may have bytes at home: from here on a block is fresh.
        pub home_blocks: u32,
        /// Fresh blocks below this one may have room at home already; 0: none.
        pub reserved_blocks: u32,
    }

    /// Index: a partition's own counters.
    #[derive(Copy)]
    pub struct PartitionRecord {
        /// Inode and data numbers below this are handed out or given up.
        pub numbers_reserved: u64,
    }

    /// Index: an op over several partitions that a crash may leave half done: the legs that recovery takes. Before the
    /// commit point they undo, from it on they finish.
    pub struct IntentRecord {
        /// What the op was, for people.
        pub what: String,
        /// The volume.
        pub volume: VolumeId,
        /// Where each leg goes, its number, and the leg.
        pub legs: Vec<IntentLeg>,
    }

    /// A leg of an intent.
    pub struct IntentLeg {
        /// The partition that takes it owns this position.
        pub position: Position,
        /// Its number in the intent; undoing legs have the number of what they undo.
        pub number: u16,
        /// What to do.
        pub leg: Leg,
    }

    /// Index: the last result of an op in one of a session's slots.
    pub struct SessionRecord {
        /// Which op.
        pub op_id: OpId,
        /// What was answered: an encoded `Reply`.
        pub reply: Bytes,
    }

    /// Index: how far a replica that learns has come. Keys below `live` follow the leader's records, those from there on do
    /// not; keys below `healed` are as the members have them.
    pub struct HealRecord {
        /// Where the portion begins that is being healed.
        pub healed: Key,
        /// Where it ends.
        pub live: Key,
        /// Shards of the portion that differ, and do not follow the leader's records yet.
        pub differing: Vec<ShardId>,
    }

    /// Index: fast writes to a shard that may not be on every member, in their order.
    pub struct UnsettledRecord {
        /// Each follows the one before it.
        pub writes: Vec<FastWrite>,
    }

    /// A write that its client sent to all members at once.
    #[derive(Copy)]
    pub struct FastWrite {
        /// The shard's stamp after it: it names session and op. Of the system's session: a range that is yet to be made even.
        pub stamp: Stamp,
        /// The first block of which it wrote something.
        pub first: u32,
        /// How many.
        pub blocks: u32,
    }

    /// Index: a data id to collect.
    #[derive(Copy)]
    pub struct GarbageRecord {
        /// Shards `0..shards` may exist.
        pub shards: u64,
    }
}

impl Record {
    /// Whether a client sent it to all members at once: it is in no log.
    pub fn is_fast(&self) -> bool {
        self.sequence == Sequence(0)
    }
}

impl ShardRecord {
    /// Of a shard that nothing was written to yet.
    pub fn empty(stamp: Stamp) -> Self {
        Self { stamp, length: 0, home_blocks: 0, reserved_blocks: 0 }
    }

    /// As a cut or a punch leaves its room: blocks that had room only are no longer fresh.
    pub fn without_room(self) -> Self {
        Self { home_blocks: self.home_blocks.max(self.reserved_blocks), reserved_blocks: 0, ..self }
    }
}

impl StubRecord {
    /// Names in it changed.
    pub fn renamed(&mut self, now: Time) {
        self.ctime = now.max(self.ctime);
        self.mtime = self.ctime;
        self.change += 1;
    }
}

/// Slots of a session. The low 8 bits of an op id are its slot, which no two unanswered ops of a session share; so the
/// last result of each slot is all that retries can ask for.
pub const SESSION_SLOTS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Wire;

    fn sample() -> Record {
        let shard = ShardId { volume: VolumeId(1), data: DataId(7), index: 3 };
        let stamp = Stamp { count: 1, session: SessionId(2), op: OpId(3) };
        let record = ShardRecord { stamp, length: 5000, home_blocks: 2, reserved_blocks: 0 };
        Record {
            ring: RingId(1),
            partition: PartitionNumber(2),
            epoch: Epoch(3),
            sequence: Sequence(4),
            session: SessionId(5),
            op_id: OpId(6),
            changes: vec![
                Change::Put { key: Key::shard(RingId(1), shard), value: Bytes::from_static(b"v") },
                Change::WriteBlocks {
                    shard,
                    record,
                    run: BlockRun { first: 0, checksums: vec![1, 2] },
                    bytes: Bytes::from(vec![0; 8192]),
                },
                Change::DropShard { shard },
            ],
        }
    }

    #[test]
    fn records_survive_their_encoding() {
        let record = sample();
        assert_eq!(Record::from_bytes(record.to_bytes()).unwrap(), record);
    }

    #[test]
    fn every_truncation_and_every_flipped_byte_is_an_error_or_a_value_never_a_panic() {
        let bytes = sample().to_bytes();
        for cut in 0..bytes.len().min(400) {
            assert!(Record::from_bytes(bytes.slice(..cut)).is_err());
        }
        for at in 0..300 {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0xff;
            let _ = Record::from_bytes(Bytes::from(damaged));
        }
    }
}
