//! copy_file_range: a shard's leader takes bytes from another's, so they do not go through the client.
//!
//! Blocks of zeros are not written: where the target has a hole they leave it, where it has bytes they make one. So holes stay holes,
//! and bytes of zeros become one.

use crate::ops::data::{block_change, write_run, write_shard};
use crate::ops::step::{Ask, Commit, Here, Next, Stepped};
use bytes::{Bytes, BytesMut};
use hekate_brick::Brick;
use hekate_proto::*;
use std::ops::Range;

/// Bytes of one copy: they lie in memory, and in one message.
const COPY_BYTES_MAX: u32 = 1 << 20;
const BLOCK: u32 = BLOCK_BYTES as u32;
const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

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
    write_sparse(here, shard, offset, &bytes)
}

/// Runs of the written blocks, those of zeros apart from others: the places of each in the shard, and whether it is of zeros.
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

/// Writes what is not zeros; where zeros come the shard has holes afterwards.
fn write_sparse(here: &mut Here, shard: ShardId, offset: u32, bytes: &Bytes) -> Stepped<Next> {
    // What does not lie in its shard is refused there, before places are reckoned with.
    let in_shard = u64::from(offset) + bytes.len() as u64 <= SHARD_BYTES;
    let runs = if in_shard { runs_of(offset, bytes) } else { Vec::new() };
    if runs.iter().all(|(_, is_zeros)| !is_zeros) {
        return write_shard(here, shard, offset, bytes, None);
    }
    let (brick, ask) = (here.brick, here.ask);
    if brick.is_dropped(shard) {
        return Err(Error::LayoutChanged.into());
    }
    let before = brick.shard(ask.ring, shard)?;
    let stamp = here.next_stamp(before);
    let mut record = ShardRecord { stamp, ..before.unwrap_or(ShardRecord::empty(stamp)) };
    let mut commit = Commit { reply: Some(Reply::Written { stamp, fast: None }), ..Commit::default() };
    // A brick knows one run of a shard that was written before its record.
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

/// Whole blocks become holes, parts of blocks zeros; what is a hole stays as it is. -> the shard's record afterwards.
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
