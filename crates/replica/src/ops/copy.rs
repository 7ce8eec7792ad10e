//! copy_file_range: a shard's leader reads bytes from another shard's leader, so they do not pass through the client.
//!
//! Blocks of zeros are not written. Where the target has a hole it stays, and where the target has bytes they become a
//! hole.

use crate::ops::data::{block_change, write_run, write_shard};
use crate::ops::step::{Ask, Commit, Here, Next, Stepped};
use bytes::{Bytes, BytesMut};
use hekate_brick::Brick;
use hekate_proto::*;
use std::ops::Range;

/// Bytes of one copy, which are in memory and in one message.
const COPY_BYTES_MAX: u32 = 1 << 20;
const BLOCK: u32 = BLOCK_BYTES as u32;
const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Copies a range of another shard into a shard.
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
    write_sparse(here, shard, offset, &bytes)
}

/// The written range as runs of blocks, with blocks of zeros apart: the range of each run in the shard, and true if it
/// is zeros.
fn runs_of(offset: u32, bytes: &[u8]) -> Vec<(Range<u32>, bool)> {
    let end = offset + bytes.len() as u32;
    let mut runs: Vec<(Range<u32>, bool)> = Vec::new();
    let mut at = offset;
    while at < end {
        let next = (at / BLOCK + 1) * BLOCK;
        let part = at..next.min(end);
        let is_zeros = bytes[(part.start - offset) as usize..(part.end - offset) as usize] == ZEROS[..part.len()];
        match runs.last_mut() {
            Some((run, same)) if *same == is_zeros => run.end = part.end,
            _ => runs.push((part.clone(), is_zeros)),
        }
        at = part.end;
    }
    runs
}

/// Writes the bytes that are not zeros, and leaves or makes holes for zeros.
fn write_sparse(here: &mut Here, shard: ShardId, offset: u32, bytes: &Bytes) -> Stepped<Next> {
    // A range outside of the shard is refused by `write_shard`, before it is split into runs.
    let in_shard = u64::from(offset) + bytes.len() as u64 <= SHARD_BYTES;
    let runs = if in_shard { runs_of(offset, bytes) } else { Vec::new() };
    if runs.iter().all(|(_, is_zeros)| !is_zeros) {
        return write_shard(here, shard, offset, bytes, (None, false));
    }
    let (brick, ask) = (here.brick, here.ask);
    if brick.is_dropped(shard) {
        return Err(Error::LayoutChanged.into());
    }
    let before = brick.shard(ask.ring, shard)?;
    let stamp = here.next_stamp(before);
    let mut record = ShardRecord { stamp, ..before.unwrap_or(ShardRecord::empty(stamp)) };
    let mut commit = Commit { reply: Some(Reply::Written { stamp, fast: None }), ..Commit::default() };
    // A record may have one run of fresh blocks of a shard.
    let last = runs.iter().rposition(|(_, is_zeros)| !is_zeros);
    for (index, (run, is_zeros)) in runs.into_iter().enumerate() {
        record = match is_zeros {
            true => write_zeros(brick, ask, &mut commit, (shard, record), run)?,
            false => {
                let part = bytes.slice((run.start - offset) as usize..(run.end - offset) as usize);
                write_run(brick, ask, &mut commit, (shard, record), run.start, &part, Some(index) == last)?
            }
        };
    }
    match commit.changes.is_empty() {
        true => Ok(Next::Reply(Reply::Done)),
        false => Ok(Next::record(commit)),
    }
}

/// Whole blocks become holes, parts of blocks zeros, and holes stay. Returns the shard's record afterwards.
fn write_zeros(
    brick: &Brick,
    ask: &Ask,
    commit: &mut Commit,
    (shard, before): (ShardId, ShardRecord),
    run: Range<u32>,
) -> Stepped<ShardRecord> {
    let (from, to) = (run.start / BLOCK, run.end.div_ceil(BLOCK));
    let holes = brick.holes(ask.ring, shard, from, to)?;
    let mut record = before;
    let mut block = from;
    while block < to {
        let count = holes[(block - from) as usize..].iter().take_while(|hole| !**hole).count() as u32;
        for edge in block..block + count {
            let part = run.start.max(edge * BLOCK)..run.end.min((edge + 1) * BLOCK);
            if part.len() == BLOCK_BYTES {
                continue;
            }
            let mut bytes = brick.read_shard(ask.ring, shard, edge * BLOCK, BLOCK)?.to_vec();
            bytes.resize(BLOCK_BYTES, 0);
            bytes[(part.start - edge * BLOCK) as usize..(part.end - edge * BLOCK) as usize].fill(0);
            commit.changes.push(block_change(shard, record, edge, bytes.into()));
        }
        let (first, end) = (block.max(run.start.div_ceil(BLOCK)), (block + count).min(run.end / BLOCK));
        if first < end {
            record = record.without_room();
            commit.changes.push(Change::PunchBlocks { shard, record, first, count: end - first });
        }
        block += count.max(1);
    }
    Ok(record)
}

/// The answer to a leg that reads a range.
pub fn read(brick: &Brick, ring: RingId, volume: VolumeId, range: &ShardRange) -> Stepped<Reply> {
    check(range)?;
    let shard = ShardId { volume, data: range.data, index: range.index };
    Ok(Reply::Data { bytes: brick.read_shard(ring, shard, range.offset, range.length)? })
}

fn check(range: &ShardRange) -> Stepped<()> {
    let end = u64::from(range.offset) + u64::from(range.length);
    match end <= SHARD_BYTES && (1..=COPY_BYTES_MAX).contains(&range.length) {
        true => Ok(()),
        false => Err(Error::invalid("a range that is empty, over 1 MiB or ends outside of its shard").into()),
    }
}

/// The bytes with zeros up to `length`, as the shard may end earlier.
fn padded(bytes: &[u8], length: u32) -> Bytes {
    let mut padded = BytesMut::from(bytes);
    padded.resize(length as usize, 0);
    padded.freeze()
}
