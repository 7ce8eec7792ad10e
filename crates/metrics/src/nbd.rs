//! What a block door counts.

/// What a block door has done since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NbdCounters {
    /// Connections that are open now.
    pub connections: u64,
    pub connections_accepted: u64,
    /// Closed at once, because as many as the door takes were open.
    pub connections_refused: u64,
    /// Of each vDisk, snapshot and template that clients have open.
    pub vdisks: Vec<VdiskCounters>,
}

/// How a vDisk stands, and what was done with it since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VdiskCounters {
    pub name: String,
    /// Connections that have it open.
    pub users: u64,
    /// Blocks of 4 KiB that were written and read.
    pub blocks_written: u64,
    pub blocks_read: u64,
    pub appends: u64,
    pub flushes: u64,
    pub checkpoints: u64,
    /// Pages of the map in memory, of 4 KiB each.
    pub map_pages: u64,
    /// Bytes that were acknowledged and that not all replicas have yet.
    pub backlog_bytes: u64,
    /// Blocks in use, and blocks that segments hold, of its own layer.
    pub blocks_live: u64,
    pub blocks_held: u64,
    /// Changes were lost: it is read-only until `hekate vdisk resume`.
    pub has_lost: bool,
}
