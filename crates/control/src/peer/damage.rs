//! Repair of a damaged block or entry, with a copy of another server.

use super::{PeerCall, PeerRequest};
use hekate_proto::{BrickId, Epoch, RingId, Sequence};
use serde::{Deserialize, Serialize};

/// An order of repair. The field `repair` of its JSON names the variant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "repair", rename_all = "kebab-case")]
pub enum Repair {
    /// See [`RepairItem`].
    Mend(RepairItem),
    /// See [`CopyItem`].
    Copy(CopyItem),
}

/// Asks the server that leads the item's partition to repair the item on a brick.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RepairItem {
    /// The brick.
    pub brick: BrickId,
    /// The item.
    pub what: EncodedPart,
}

/// Asks the server of a brick for the brick's copy of the item.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CopyItem {
    /// The brick.
    pub brick: BrickId,
    /// The item.
    pub what: EncodedPart,
}

impl From<RepairItem> for PeerRequest {
    fn from(call: RepairItem) -> Self {
        Self::Repair(Repair::Mend(call))
    }
}

impl PeerCall for RepairItem {
    type Reply = Said<Repaired>;
}

impl From<CopyItem> for PeerRequest {
    fn from(call: CopyItem) -> Self {
        Self::Repair(Repair::Copy(call))
    }
}

impl PeerCall for CopyItem {
    type Reply = Said<Copied>;
}

/// The reply to an order of repair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said<T> {
    /// The result.
    pub said: T,
}

/// A damaged block or entry, in its encoding on the wire.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncodedPart {
    /// A block of 4 KiB.
    Block {
        /// The ring.
        ring: RingId,
        /// The shard.
        shard: Vec<u8>,
        /// The block's number in the shard.
        block: u32,
    },
    /// An entry of the index.
    Entry {
        /// Its key.
        key: Vec<u8>,
    },
}

/// The outcome of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repaired {
    /// The item was overwritten with the copy of another replica.
    Yes,
    /// The item is intact, or was removed meanwhile.
    NotNeeded,
    /// No other replica has the item, or it cannot be written now.
    No,
    /// No other replica has an entry with that key, or the block's shard: the key itself is damaged, and the entry that
    /// it stands for cannot be named.
    KeyLost,
}

/// What a replica holds of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Epoch of the last record of its log.
    pub epoch: Epoch,
    /// Number of the last record of its log.
    pub sequence: Sequence,
    /// The shard's record, in its encoding on the wire. None: it has none, or the item is an entry.
    pub record: Option<Vec<u8>>,
    /// The bytes of the block, or the value of the entry. None: it has none.
    pub has: Option<Vec<u8>>,
}
