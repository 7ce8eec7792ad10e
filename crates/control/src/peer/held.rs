//! What the replicas of a server hold of keys and shards: each server's part of the reply to [`crate::Where`].

use hekate_proto::{BrickId, PartitionNumber, RingId, Sequence};
use serde::{Deserialize, Serialize};

/// Most keys and shards of a request: a copy of each, at most some hundred bytes in JSON, fits into a frame of 16 MiB.
pub const HELD_LOOKS_MAX: usize = 256;

/// What the replicas on the server that answers hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Held {
    /// The ring.
    pub ring: RingId,
    /// The keys and shards to read, at most [`HELD_LOOKS_MAX`].
    pub looks: Vec<Look>,
}

/// A key or shard to read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Look {
    /// Its partition.
    pub partition: PartitionNumber,
    /// The key or shard.
    pub what: LookAt,
}

/// A key or shard, in its encoding on the wire.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LookAt {
    /// The value of a key.
    Key(Vec<u8>),
    /// The record of a shard.
    Shard(Vec<u8>),
}

/// The reply to [`Held`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HeldRows {
    /// For each key or shard, the copy of each replica.
    pub held: Vec<Vec<HeldCopy>>,
}

/// One replica's copy of a key or shard.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeldCopy {
    /// The replica's brick.
    pub brick: BrickId,
    /// Number of the last record of its log.
    pub sequence: Sequence,
    /// The value or record, in its encoding on the wire. None: it has none, or cannot be read.
    pub has: Option<Vec<u8>>,
    /// Why it cannot be read.
    pub error: Option<String>,
}
