//! copy_file_range: a shard's leader takes bytes from another's, so they do not go through the client.

use crate::data::write_shard;
use crate::step::{Here, Next, Stepped};
use bytes::{Bytes, BytesMut};
use hekate_brick::Brick;
use hekate_proto::*;

/// Bytes of one copy: they lie in memory, and in one message.
const COPY_BYTES_MAX: u32 = 1 << 20;

/// Writes to a shard what another has in a range.
pub fn copy_shard(here: &mut Here, from: ShardRange, shard: ShardId, offset: u32) -> Stepped<Next> {
    let source = ShardId { volume: here.ask.volume, data: from.data, index: from.index };
    check(&from)?;
    let bytes = if here.owns(source.position()) {
        here.brick.read_shard(here.ask.ring, source, from.offset, from.length)?
    } else {
        match here.leg(source.position(), Leg::ReadShard { range: from }, None)? {
            Reply::Data { bytes } => bytes,
            _ => return Err(Error::bug("a leg that reads a shard answers with its bytes").into()),
        }
    };
    let bytes = if bytes.len() == from.length as usize { bytes } else { padded(&bytes, from.length) };
    write_shard(here, shard, offset, &bytes, None)
}

/// What the leg answers.
pub fn read(brick: &Brick, ring: RingId, volume: VolumeId, range: &ShardRange) -> Stepped<Reply> {
    check(range)?;
    let shard = ShardId { volume, data: range.data, index: range.index };
    Ok(Reply::Data { bytes: brick.read_shard(ring, shard, range.offset, range.length)? })
}

fn check(range: &ShardRange) -> Stepped<()> {
    let end = u64::from(range.offset) + u64::from(range.length);
    match end <= SHARD_BYTES && (1..=COPY_BYTES_MAX).contains(&range.length) {
        true => Ok(()),
        false => Err(Error::invalid("a range that does not lie in its shard, or is over 1 MiB").into()),
    }
}

/// A shard that ends before is zeros from there on.
fn padded(bytes: &[u8], length: u32) -> Bytes {
    let mut padded = BytesMut::from(bytes);
    padded.resize(length as usize, 0);
    padded.freeze()
}
