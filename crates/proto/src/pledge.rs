//! Pledges: a leader's promise to tell a session before an answer changes; `docs/coherence.md` is the document.

use crate::ids::{DataId, InodeId, Name, OpId, PartitionNumber};
use crate::{wire_enum, wire_struct};
use std::time::Duration;

/// How long a session may answer by its pledges after it sent the `VolumeOp::Renew` that renewed them last.
pub const PLEDGE_LEASE: Duration = Duration::from_secs(4);

wire_enum! {
    /// What a pledge is about.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Pledged {
        /// Which inode has the name, or that none has it.
        1 = Name { dir: InodeId, name: Name },
        /// The attributes of an inode.
        2 = Attributes { inode: InodeId },
        /// The bytes of a shard.
        3 = Shard { data: DataId, index: u64 },
        /// A grant: the session may write bytes within the file's size without a word to the inode's leader, and says
        /// when it last did so once the grant is recalled. It may reach beyond the size (`GivenFor::Size`).
        4 = Times { inode: InodeId },
        /// A mapping right: no other session has pages of the file's mappings that may be written. One session has it.
        5 = Mapping { inode: InodeId },
    }

    /// What a reply's pledges are about, besides the op.
    pub enum GivenFor {
        /// The name that was looked up.
        1 = Name,
        /// The attributes in the reply.
        2 = Attributes,
        /// Entry k of a list: its name has the number 2k after the first, its attributes the number 2k + 1, unless
        /// these are in `except` (2k, or 2k + 1).
        3 = Entries { except: Vec<u32> },
        /// The shard that was read.
        4 = Shard,
        /// A grant on the file that was written.
        5 = Times,
        /// A grant on the file that was written, with which the session also moves the end of the file, up to `limit`
        /// (offset in bytes). No other session has one.
        6 = Size { limit: u64 },
        /// The mapping right. `since`: the number of the pledge from which on the session has had it without a break.
        /// 0: it has told this leader that it had it from an earlier one.
        7 = Mapping { since: u64 },
        /// No pledge: the change count that the directory had when it was listed. While its attributes are pledged with
        /// this count, in this term, its names are the same.
        8 = Listed { change: u64 },
    }

    /// What a server sends to a session without being asked.
    pub enum Notification {
        /// These waiting ops have their replies.
        1 = Answered { op_ids: Vec<OpId> },
        /// The leader of the partition recalls pledges. The session sends `VolumeOp::Return` once nothing of its client
        /// answers by them any more. Without pledges: it forgets those of leaders before this term, and sends
        /// `VolumeOp::Renew`.
        2 = Recall { partition: PartitionNumber, term: u64, pledges: Vec<Pledge> },
    }
}

wire_struct! {
    /// A pledge. A session that is given a pledge again gets a greater number.
    #[derive(PartialOrd, Ord)]
    pub struct Pledge {
        pub about: Pledged,
        pub number: u64,
    }

    /// Since when a session has had a mapping right without a break: the pledge of that number, of the leader with that
    /// term. In this order.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct MappedSince {
        pub term: u64,
        pub number: u64,
    }

    /// A mapping right that a session keeps at a new leader.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct KeptRight {
        pub partition: PartitionNumber,
        pub inode: InodeId,
        pub since: MappedSince,
    }

    /// What a session wrote under a grant.
    pub struct Report {
        pub inode: InodeId,
        /// Time since its last write, in ns.
        pub age: u64,
        /// The end of the file that it has moved, offset in bytes. 0: it has not.
        pub end: u64,
        /// The version of the layout by which it wrote.
        pub layout_version: u32,
    }

    /// Pledges that a reply carries.
    pub struct GivenPledges {
        /// The partition whose leader gives them.
        pub partition: PartitionNumber,
        /// The leader's term: no leader before or after it has the same.
        pub term: u64,
        /// The number of the first.
        pub number: u64,
        pub given_for: GivenFor,
    }
}
