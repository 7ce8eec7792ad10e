//! What journals and indexes store: records of changes, and the values of the index.
//!
//! `docs/format/journal.md` and `docs/format/index.md` describe them. All changes are after-images, so applying a
//! record twice has the same effect as applying it once.

use crate::attr::{Layout, NodeKind, Time};
use crate::ids::*;
use crate::key::Key;
use crate::op::Leg;
use crate::{wire_enum, wire_struct};
use bytes::Bytes;

wire_struct! {
    /// One change of one partition, journaled by each of its replicas.
    pub struct Record {
        pub ring: RingId,
        pub partition: PartitionNumber,
        /// The view in which the record was made.
        pub epoch: Epoch,
        /// Number in the partition's log. 0 for a fast write, which is outside of the log.
        pub sequence: Sequence,
        /// The session that requested the change.
        pub session: SessionId,
        /// The op that requested the change.
        pub op_id: OpId,
        pub changes: Vec<Change>,
    }

    /// Consecutive blocks of 4 KiB in a shard.
    pub struct BlockRun {
        /// Number of the first block in the shard.
        pub first: u32,
        /// One checksum for each block: CRC32C seeded with shard and block number, never 0. 0 stands for a block that
        /// was never written.
        pub checksums: Vec<u32>,
    }
}

wire_enum! {
    /// One change, as an after-image.
    pub enum Change {
        1 = Put { key: Key, value: Bytes },
        2 = Delete { key: Key },
        /// Whole blocks of a shard whose bytes are in the journal. A checkpoint writes them to the data file.
        3 = WriteBlocks { shard: ShardId, record: ShardRecord, run: BlockRun, bytes: Bytes },
        /// Fresh blocks of a shard, whose bytes were written to the data file before this record.
        4 = FreshBlocks { shard: ShardId, record: ShardRecord, run: BlockRun },
        /// The shard ends at `record.length`; later blocks are removed.
        5 = CutShard { shard: ShardId, record: ShardRecord },
        6 = DropShard { shard: ShardId },
        /// The `count` blocks from `first` on become holes, and their space in the data file is freed.
        7 = PunchBlocks { shard: ShardId, record: ShardRecord, first: u32, count: u32 },
        /// Space in the data file was allocated for the `count` fresh blocks from `first` on before this record. They
        /// remain holes.
        8 = ReserveBlocks { shard: ShardId, record: ShardRecord, first: u32, count: u32 },
        /// The replica continues with another log than its own, as a learner. Entries that it alone has are found by
        /// comparison.
        9 = BeginLog,
        /// The shard gets a new stamp and does not change otherwise. A fast write that follows the old stamp is
        /// refused from then on.
        10 = Restamp { shard: ShardId, record: ShardRecord },
    }
}

impl Change {
    /// The shard that the change is about.
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

    /// The shard's record after the change.
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
    /// Index value: an inode.
    pub struct InodeRecord {
        pub kind: NodeKind,
        /// Permission bits, 0o7777.
        pub mode: u16,
        pub uid: u32,
        pub gid: u32,
        /// Number of names. For a directory, see its stubs.
        pub nlink: u32,
        /// Size in bytes.
        pub size: u64,
        pub device: u64,
        /// Time of the last read.
        pub atime: Time,
        /// Time of the last change of content. For a directory, see its stubs.
        pub mtime: Time,
        /// Time of the last change of anything. For a directory, the later of this and the stubs' times.
        pub ctime: Time,
        /// Time of creation.
        pub btime: Time,
        pub change: u64,
        /// Where the bytes are stored.
        pub layout: Layout,
        /// For a directory: number of partitions that share its names.
        pub spread: u32,
        /// For a directory: its parent.
        pub parent: InodeId,
        /// Highest size in bytes since the pieces were made. Shards up to this size may exist.
        pub size_high: u64,
        /// Reserved for grants: size up to which a sole writer may move the end of the file without asking. 0: no
        /// grant.
        pub grant_limit: u64,
        /// The inode has the extended attribute security.capability, which the next change of content or owner
        /// removes.
        pub has_capability: bool,
        /// The inode has or had extended attributes or ACLs.
        pub has_xattrs: bool,
        /// Of a file: the ETag of its content as its writer recorded it. Empty: none since the last change of content.
        pub etag: Bytes,
        /// Of a directory: a key needed it, and it is no object itself.
        pub implied: bool,
    }

    /// Index value: what each partition with names of a directory knows of the directory.
    pub struct StubRecord {
        /// False while rmdir or setattr works on the directory: no name is made or looked up in it.
        pub alive: bool,
        /// Permission bits. New entries inherit set-group-id.
        pub mode: u16,
        pub uid: u32,
        pub gid: u32,
        /// Number of partitions that share the names.
        pub spread: u32,
        /// Number of names in this partition.
        pub entries: u64,
        /// Number of directories among them.
        pub directories: u32,
        /// The directory's mtime as far as this partition knows it. `i64::MIN` ns: this partition has changed no name,
        /// and the mtime is that of the inode or of another stub.
        pub mtime: Time,
        /// Time of the last change of names in this partition.
        pub ctime: Time,
        /// Change counter of the names in this partition.
        pub change: u64,
        /// The default ACL, as in the extended attribute system.posix_acl_default. Empty: none.
        pub default_acl: Bytes,
    }

    /// Index value: a name.
    #[derive(Copy)]
    pub struct NameRecord {
        /// The inode that has the name.
        pub inode: InodeId,
        /// Kind of that inode.
        pub kind: NodeKind,
    }

    /// Index value: a shard.
    #[derive(Copy)]
    pub struct ShardRecord {
        /// Stamp of the last write.
        pub stamp: Stamp,
        /// Length in bytes, at most 4 MiB.
        pub length: u32,
        /// Number of blocks that may have bytes in the data file. Blocks from this number on are fresh.
        pub home_blocks: u32,
        /// Fresh blocks below this number may have space in the data file. 0: none.
        pub reserved_blocks: u32,
    }

    /// Index value: a partition's own counters.
    #[derive(Copy)]
    pub struct PartitionRecord {
        /// Numbers of inodes, data ids and intents below this are assigned, or may be by the leader that reserved them.
        /// A new leader assigns numbers from here on.
        pub numbers_reserved: u64,
    }

    /// Index value: an op over several partitions that a crash may interrupt, with the legs that recovery executes.
    /// Before the commit point they undo the op, from it on they finish it.
    pub struct IntentRecord {
        /// Name of the op, for people.
        pub what: String,
        pub volume: VolumeId,
        /// The legs that recovery executes.
        pub legs: Vec<IntentLeg>,
    }

    /// One leg of an intent.
    pub struct IntentLeg {
        /// Position that the executing partition owns.
        pub position: Position,
        /// Number in the intent. An undoing leg has the number of the leg that it undoes.
        pub number: u16,
        /// The action.
        pub leg: Leg,
    }

    /// Index value: the last result of an op in one slot of a session.
    pub struct SessionRecord {
        /// The op.
        pub op_id: OpId,
        /// Its reply, an encoded `Reply`.
        pub reply: Bytes,
    }

    /// Index value: progress of a replica that learns. Keys below `live` follow the leader's records, later keys do
    /// not. Keys below `healed` are equal to the members'.
    pub struct HealRecord {
        /// Begin of the portion that is being healed.
        pub healed: Key,
        /// End of that portion.
        pub live: Key,
        /// Shards of the portion that differ and do not follow the leader's records yet.
        pub differing: Vec<ShardId>,
    }

    /// Index value: fast writes to a shard that some member may lack, in their order.
    pub struct UnsettledRecord {
        /// The writes. Each follows the one before it.
        pub writes: Vec<FastWrite>,
    }

    /// A write that its client sent to all members at once.
    #[derive(Copy)]
    pub struct FastWrite {
        /// The shard's stamp after the write, which names session and op. With the system's session: a range that has
        /// yet to be reconciled.
        pub stamp: Stamp,
        /// First block that it wrote to.
        pub first: u32,
        /// Number of blocks.
        pub blocks: u32,
    }

    /// Index value: a data id whose shards are to be removed.
    #[derive(Copy)]
    pub struct GarbageRecord {
        /// Shards `0..shards` may exist.
        pub shards: u64,
    }
}

impl Record {
    /// True for a fast write, which is in no log.
    pub fn is_fast(&self) -> bool {
        self.sequence == Sequence(0)
    }
}

impl ShardRecord {
    /// The record of a shard without bytes.
    pub fn empty(stamp: Stamp) -> Self {
        Self { stamp, length: 0, home_blocks: 0, reserved_blocks: 0 }
    }

    /// The record after a cut or a punch. Blocks that had allocated space and no bytes are no longer fresh: they count
    /// as blocks of the data file.
    pub fn without_room(self) -> Self {
        Self { home_blocks: self.home_blocks.max(self.reserved_blocks), reserved_blocks: 0, ..self }
    }
}

impl StubRecord {
    /// Updates times and change counter after a change of names in the directory.
    pub fn renamed(&mut self, now: Time) {
        self.ctime = now.max(self.ctime);
        self.mtime = self.ctime;
        self.change += 1;
    }
}

/// Slots of a session. The low 8 bits of an op id are its slot, and no two unanswered ops of a session share a slot. So
/// a retry can only need the last result of a slot.
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
