//! What replicas of partitions tell each other; `docs/format/wire.md` is the document.
//!
//! Whoever carries messages delivers each at most once, those from one replica to another in their order, and drops what
//! an earlier life of either end sent (`transport/link.rs`): a leg that was sent again never comes behind the one that
//! undoes it. Messages between other pairs may overtake each other.

use bytes::Bytes;
use hekate_brick::{Amount, LogEntry};
use hekate_proto::*;

wire_struct! {
    /// One replica of a partition.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct Address {
        /// Which partition.
        pub partition: PartitionNumber,
        /// On which brick.
        pub brick: BrickId,
    }

    /// A message on its way.
    pub struct Envelope {
        /// Ring of both.
        pub ring: RingId,
        /// Who says it.
        pub from: Address,
        /// To whom.
        pub to: Address,
        /// The sender's epoch.
        pub epoch: Epoch,
        /// What.
        pub message: Message,
    }

    /// Fresh blocks to be written home before the record that tells of them.
    pub struct Fresh {
        /// Which shard.
        pub shard: ShardId,
        /// From which block.
        pub first_block: u32,
        /// Whole blocks.
        pub bytes: Bytes,
    }

    /// An entry of the index, in short.
    pub struct Hashed {
        /// Its key.
        pub key: Key,
        /// XXH3-128 of the key's length (8 bytes), the key and the value.
        pub hash: u128,
    }

    /// A shard as a replica has it; none: it has not.
    #[derive(Copy)]
    pub struct HeldShard {
        /// Which.
        pub shard: ShardId,
        /// As it is there.
        pub record: Option<ShardRecord>,
    }

    /// A block of a shard, in short.
    #[derive(Copy)]
    pub struct BlockHash {
        /// Which block.
        pub block: u32,
        /// XXH3-128 of its bytes.
        pub hash: u128,
    }

    /// Fast writes to a shard that a member does not know to be on all, in their order.
    pub struct FastList {
        /// Which shard.
        pub shard: ShardId,
        /// Each follows the one before it.
        pub writes: Vec<FastWrite>,
    }

    /// A block of a shard.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct BlockAt {
        /// Which shard.
        pub shard: ShardId,
        /// Which block of it.
        pub block: u32,
    }
}

wire_enum! {
    /// See the module.
    pub enum Message {
        /// Leader to member: a record. `copied`: from its journal, with the fresh blocks that it still has.
        1 = Append { entry: LogEntry, fresh: Vec<Fresh>, copied: bool },
        /// Member to leader: all records up to this one are in its journal; growing ones that take up to `room` may follow.
        2 = Held { sequence: Sequence, room: Amount },
        /// Leader to member: how far are you? From now on fast writes are taken that name this term. -> `Position`
        3 = Ask { term: u64 },
        /// Where the member's or learner's log ends, which blocks a power cut took from it, and how far it has healed; none: it
        /// has all that its log says. `lists`: fast writes that it does not know to be settled.
        4 = Position {
            epoch: Epoch,
            sequence: Sequence,
            room: Amount,
            lost: Vec<BlockAt>,
            heal: Option<HealRecord>,
            lists: Vec<FastList>,
        },
        /// Leader to the member with the longest log: the records after this one. -> `Append`s and `FetchEnd`
        5 = Fetch { after: Sequence },
        /// All after that record were sent. A greater one than was asked for: those before it are no longer there.
        6 = FetchEnd { after: Sequence },
        /// Leader to member: a block as you have it. -> `Block`
        7 = ReadBlock { at: BlockAt },
        8 = Block { at: BlockAt, bytes: Option<Bytes> },
        /// Leader to member: everything up to this record, and these shards' bytes, on stable storage. -> `Synced`
        9 = Sync { ticket: u64, sequence: Sequence, shards: Vec<ShardId> },
        10 = Synced { ticket: u64 },
        /// Driver to the leader of another partition: one step of an op. -> `LegEnded`
        11 = Leg { intent: IntentId, number: u16, volume: VolumeId, session: SessionId, op_id: OpId, leg: Leg },
        12 = LegEnded { intent: IntentId, number: u16, outcome: Outcome },
        /// Driver to who took legs of an intent: it is gone for good, so their marks can go.
        13 = Forget { intent: IntentId },
        /// Who took legs to their driver: is the intent gone? -> `Forget`, if it is
        14 = IsGone { intent: IntentId },
        /// Member to leader: it cannot take records any more.
        15 = Failed { error: Error },
        /// Leader to member: all records up to this one are on stable storage of every member.
        16 = Stable { sequence: Sequence },
        /// Member to leader: let all that there is become so. -> `Stable`
        17 = WantStable,
        /// Leader to member: with the records up to this one, members agree on what power cuts took.
        18 = Settled { sequence: Sequence },
        /// Leader to member, in a new view and at the same record: what do you hold of this? -> `Compared`
        19 = Compare { portion: Portion },
        /// The sum of the hashes of what the member holds of it, and how many there are.
        20 = Compared { portion: Portion, sum: u128, count: u64 },
        /// Leader to member, whose sum differs: entry by entry. -> `Listed`
        21 = List { portion: Portion },
        22 = Listed { portion: Portion, entries: Vec<Hashed> },
        /// Leader to learner: your log goes on behind this record of mine; what you have is going to be compared.
        23 = Restart { sequence: Sequence },
        /// Leader to learner: a record, and with it a step of its healing.
        24 = Heal { entry: LogEntry, fresh: Vec<Fresh>, step: HealStep },
        /// Learner to leader: what it held with that record, up to `to`. `entries`: none if their sum was the leader's.
        25 = Differs { sequence: Sequence, to: Key, entries: Option<Vec<Hashed>>, shards: Vec<HeldShard> },
        /// Leader to learner, once it has this record: the blocks of this shard. -> `BlockHashes`
        26 = HashBlocks { sequence: Sequence, shard: ShardId },
        27 = BlockHashes { shard: ShardId, hashes: Vec<BlockHash> },
        /// Leader to member: once you have this record, after which you take no more of them, which fast writes to these shards
        /// do you list? -> `FastListed`
        28 = ListFast { sequence: Sequence, shards: Vec<ShardId> },
        29 = FastListed { sequence: Sequence, lists: Vec<FastList> },
        /// Leader to member: do you have the fast write with this stamp? -> `FastHeld`
        30 = AskFast { shard: ShardId, stamp: Stamp },
        31 = FastHeld { shard: ShardId, stamp: Stamp, held: bool },
        /// Leader to member: what do you hold of this, shards but for these, with exactly this record? -> `Proved`
        32 = Prove { sequence: Sequence, from: Key, to: Key, left_out: Vec<ShardId> },
        /// The sum of the hashes of what the member held of it, and how many there are.
        33 = Proved { sequence: Sequence, sum: u128, count: u64 },
        /// Member to leader, that asked for records: they rest where the journal cannot be read.
        34 = Unreadable,
    }

    /// Part of what a replica holds.
    pub enum Portion {
        /// Entries of the index from a key to another (exclusive), without shards and checksums.
        1 = Entries { from: Key, to: Key },
        /// All shards: stamp and length of each.
        2 = Shards,
    }

    /// What a learner does together with a record.
    pub enum HealStep {
        /// It compares a portion, which follows the leader's records from now on. -> `Differs`
        1 = Compare { from: Key, to: Key, sum: u128, count: u64, shards: Vec<HeldShard> },
        /// It takes these as well. Shards that are even follow the leader's records from now on.
        2 = Take { changes: Vec<Change>, evened: Vec<ShardId> },
        /// It has everything.
        3 = End,
    }

    /// What came of a leg.
    pub enum Outcome {
        /// It was taken.
        1 = Taken { reply: Reply },
        /// It was not, and will not be.
        2 = Refused { error: Error },
        /// Something has hold of what it needs, or there is no room in the journal: try again.
        3 = Busy,
    }
}
