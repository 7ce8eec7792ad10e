//! The checksum of a block: CRC32C (RFC 3720 appendix B.4) of shard id, block number and the 4,096 bytes, never 0.
//!
//! Shard and block number are included so that a block in the place of another block does not match.

use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{ShardId, Wire};

/// Blocks whose checksums are one entry of the index, a *group*.
pub const CRC_BLOCKS: u32 = 64;

/// The checksum of a block. 0 stands for a hole, so a CRC of 0 becomes 1.
pub fn block_checksum(shard: ShardId, block: u32, bytes: &[u8]) -> u32 {
    if is_planted(Bug::ChecksumsOff) {
        return 1;
    }
    let mut seed = Vec::with_capacity(32);
    shard.put(&mut seed);
    block.put(&mut seed);
    crc32c::crc32c_append(crc32c::crc32c(&seed), bytes).max(1)
}
