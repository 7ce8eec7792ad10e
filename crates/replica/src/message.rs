//! Messages between replicas; `docs/format/wire.md` is the document.
//!
//! The transport delivers each message at most once, keeps the order of messages from one replica to another, and drops
//! what an earlier generation of either end sent (`transport/link.rs`): a leg that is sent again never arrives after
//! the leg that undoes it. Messages between other pairs may overtake each other.

use crate::transactions::legs::UNDOING;
use bytes::Bytes;
use hekate_brick::{Amount, LogEntry};
use hekate_proto::*;

wire_struct! {
    /// One replica of a partition.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct Address {
        /// The partition.
        pub partition: PartitionNumber,
        /// The brick that stores the replica.
        pub brick: BrickId,
    }

    /// A message with its sender, receiver and epoch.
    pub struct Envelope {
        /// The ring of both replicas.
        pub ring: RingId,
        /// The sender.
        pub from: Address,
        /// The receiver.
        pub to: Address,
        /// The epoch of the sender's view.
        pub epoch: Epoch,
        /// The message.
        pub message: Message,
    }

    /// New blocks, which are written to a data file before the record that refers to them is appended.
    pub struct Fresh {
        /// The shard.
        pub shard: ShardId,
        /// The number of the first block.
        pub first_block: u32,
        /// Whole blocks.
        pub bytes: Bytes,
    }

    /// The key of an index entry and a hash of the entry.
    pub struct Hashed {
        /// The key.
        pub key: Key,
        /// XXH3-128 of the key's length (8 bytes), the key and the value.
        pub hash: u128,
    }

    /// A shard's record at a replica.
    #[derive(Copy)]
    pub struct HeldShard {
        /// The shard.
        pub shard: ShardId,
        /// Its record; `None` if the replica does not have the shard.
        pub record: Option<ShardRecord>,
    }

    /// The number of a block of a shard and a hash of its bytes.
    #[derive(Copy)]
    pub struct BlockHash {
        /// The number of the block.
        pub block: u32,
        /// XXH3-128 of its bytes.
        pub hash: u128,
    }

    /// Fast writes to a shard that a member does not know to be on all members, in the order in which it took them.
    pub struct FastList {
        /// The shard.
        pub shard: ShardId,
        /// The writes. Each follows the one before it.
        pub writes: Vec<FastWrite>,
    }

    /// A block of a shard.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct BlockAt {
        /// The shard.
        pub shard: ShardId,
        /// The number of the block.
        pub block: u32,
    }
}

wire_enum! {
    /// A message from one replica to another. `->` names the answer.
    pub enum Message {
        /// Leader to member: a record. `copied`: the leader read it from its journal, and `fresh` are those of its
        /// blocks that the leader still has.
        1 = Append { entry: LogEntry, fresh: Vec<Fresh>, copied: bool },
        /// Member to leader: all records up to this one are in its journal, and its brick has room for growing records
        /// of `room` more.
        2 = Held { sequence: Sequence, room: Amount },
        /// Leader to member or learner: asks for the end of its log. From now on the receiver takes fast writes that
        /// name this term. -> `Position`
        3 = Ask { term: u64 },
        /// Member or learner to leader: the end of its log, and the blocks that it lost in a power cut. `heal`: how far
        /// it has healed; `None` if it has all that its log says. `lists`: fast writes that it does not know to be
        /// settled.
        4 = Position {
            epoch: Epoch,
            sequence: Sequence,
            room: Amount,
            lost: Vec<BlockAt>,
            heal: Option<HealRecord>,
            lists: Vec<FastList>,
        },
        /// Leader to the member with the longest log: asks for the records after this one. -> `Append`s and `FetchEnd`
        5 = Fetch { after: Sequence },
        /// Member to leader: all records after this one were sent. If it is greater than what `Fetch` named, the member
        /// does not have the records up to it any more.
        6 = FetchEnd { after: Sequence },
        /// Leader to member: asks for the member's copy of a block. -> `Block`
        7 = ReadBlock { at: BlockAt },
        /// `length`: that of the member's copy of the shard.
        8 = Block { at: BlockAt, bytes: Option<Bytes>, length: u32 },
        /// Leader to member: asks for a sync of the journal up to this record and of these shards' bytes. -> `Synced`
        9 = Sync { ticket: u64, sequence: Sequence, shards: Vec<ShardId> },
        10 = Synced { ticket: u64 },
        /// Driver to the leader of another partition: one step of an op over several partitions. `view`: the epoch of the
        /// leader's view; in another one the leg may have been taken already, and its mark removed. -> `LegEnded`
        11 = Leg {
            intent: IntentId,
            number: u16,
            volume: VolumeId,
            session: SessionId,
            op_id: OpId,
            leg: Leg,
            view: Epoch,
        },
        12 = LegEnded { intent: IntentId, number: u16, outcome: Outcome },
        /// Driver to a leader that took legs of an intent: the intent is removed for good, so the marks of its legs can
        /// be.
        13 = Forget { intent: IntentId },
        /// A leader that took legs to their driver: asks whether the intent is removed. -> `Forget`, if it is
        14 = IsGone { intent: IntentId },
        /// Member to leader: it cannot append records any more.
        15 = Failed { error: Error },
        /// Leader to member: all records up to this one are on stable storage of every member.
        16 = Stable { sequence: Sequence },
        /// Member to leader: asks that all its records become stable on every member. -> `Stable`
        17 = WantStable,
        /// Leader to member: with the records up to this one, the members have reconciled what they lost in power cuts.
        18 = Settled { sequence: Sequence },
        /// Leader to member, in a new view, at the same record: asks for a digest of what the member holds of a
        /// portion. -> `Compared`
        19 = Compare { portion: Portion },
        /// Member to leader: the sum of the hashes of what it holds of the portion, and the number of its entries.
        20 = Compared { portion: Portion, sum: u128, count: u64 },
        /// Leader to a member whose sum differs: asks for the hash of each entry. -> `Listed`
        21 = List { portion: Portion },
        22 = Listed { portion: Portion, entries: Vec<Hashed> },
        /// Leader to learner: the learner's log continues after this record of the leader's, and its data is about to
        /// be compared.
        23 = Restart { sequence: Sequence },
        /// Leader to learner: a record, and a step of healing that belongs to it.
        24 = Heal { entry: LogEntry, fresh: Vec<Fresh>, step: HealStep },
        /// Learner to leader: what it held at that record, from the step's `from` up to `to`. `entries`: `None` if the
        /// sum of their hashes was the leader's.
        25 = Differs { sequence: Sequence, to: Key, entries: Option<Vec<Hashed>>, shards: Vec<HeldShard> },
        /// Leader to learner: asks for the hashes of this shard's blocks, once the learner has this record. ->
        /// `BlockHashes`
        26 = HashBlocks { sequence: Sequence, shard: ShardId },
        27 = BlockHashes { shard: ShardId, hashes: Vec<BlockHash> },
        /// Leader to member: asks which fast writes to these shards it lists, once it has this record. After this
        /// record the member takes no fast write to them. -> `FastListed`
        28 = ListFast { sequence: Sequence, shards: Vec<ShardId> },
        29 = FastListed { sequence: Sequence, lists: Vec<FastList> },
        /// Leader to member: asks whether it has the fast write with this stamp. -> `FastHeld`
        30 = AskFast { shard: ShardId, stamp: Stamp },
        31 = FastHeld { shard: ShardId, stamp: Stamp, held: bool },
        /// Leader to member: asks for a digest of what it holds from one key to another at exactly this record, without
        /// the shards in `left_out`. -> `Proved`
        32 = Prove { sequence: Sequence, from: Key, to: Key, left_out: Vec<ShardId> },
        /// Member to leader: the sum of the hashes of what it held, and the number of its entries.
        33 = Proved { sequence: Sequence, sum: u128, count: u64 },
        /// Member to a leader that asked for records: they are in a part of its journal that cannot be read.
        34 = Unreadable,
    }

    /// A part of what a replica holds.
    pub enum Portion {
        /// Entries of the index from a key to another (exclusive), without shards and checksums.
        1 = Entries { from: Key, to: Key },
        /// All shards: stamp and length of each.
        2 = Shards,
    }

    /// A step of a learner's healing that belongs to a record.
    pub enum HealStep {
        /// The learner compares a portion. From this record on it applies the leader's records to that portion too. ->
        /// `Differs`
        1 = Compare { from: Key, to: Key, sum: u128, count: u64, shards: Vec<HeldShard> },
        /// The learner applies these changes too. From this record on it applies the leader's records to the shards in
        /// `reconciled`, which are equal on both.
        2 = Take { changes: Vec<Change>, reconciled: Vec<ShardId> },
        /// The learner has everything.
        3 = End,
    }

    /// The result of a leg.
    pub enum Outcome {
        /// The leg was taken.
        1 = Taken { reply: Reply },
        /// The leg was not taken, and will not be.
        2 = Refused { error: Error },
        /// An op holds what the leg needs, or the journal has no room. The driver tries again.
        3 = Busy,
    }
}

impl Message {
    /// True if the message shows an op of another partition what this replica holds, and no record vouches for it: a leg
    /// that is refused, or only reads, makes none, so a leader that was replaced would answer it from an old state. The
    /// host sends it only under its lease (R20).
    pub fn needs_lease(&self) -> bool {
        match self {
            Self::LegEnded { number, outcome, .. } => {
                number & UNDOING == 0 && !matches!(outcome, Outcome::Busy | Outcome::Taken { reply: Reply::Done })
            }
            _ => false,
        }
    }
}
