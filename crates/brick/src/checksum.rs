//! The checksum of a block: CRC32C (RFC 3720 appendix B.4) over shard, block number and the 4 KiB, never 0.
//!
//! Shard and number are in it so that a block that rests in another's place is damage too.

use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{ShardId, Wire};

/// Blocks whose checksums share one record of the index.
pub const CRC_BLOCKS: u32 = 64;

/// See the module. 0 stands for "never written", so a true 0 is told as 1.
pub fn block_checksum(shard: ShardId, block: u32, bytes: &[u8]) -> u32 {
    if is_planted(Bug::ChecksumsOff) {
        return 1;
    }
    let mut seed = Vec::with_capacity(32);
    shard.put(&mut seed);
    block.put(&mut seed);
    crc32c::crc32c_append(crc32c::crc32c(&seed), bytes).max(1)
}
