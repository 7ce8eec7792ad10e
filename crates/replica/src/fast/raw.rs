//! Writes that a client coordinates at each member itself, outside of the log and without stamps, as GlusterFS's AFR
//! does. They measure that protocol and the network; only volumes of `Mode::Afr` and `Mode::FastPath` use them. Only
//! with the cargo feature `measuring`; without it `raw_absent.rs` is in the place of this file.
//!
//! AFR's changelog is the list of unsettled writes. A leader that begins reconciles what is listed, which is AFR's
//! self-heal. The server keeps the locks (`server/request/raw.rs`).

use crate::context::Context;
use crate::fast::{HomeWrite, append_outside};
use crate::membership::Membership;
use crate::ops::data::block_change;
use crate::ops::step::Ask;
use hekate_brick::Brick;
use hekate_proto::*;

/// Writes that a changelog holds at the same time.
const PENDING_MAX: usize = 64;

/// Executes a step of a raw write at this replica.
///
/// # Errors
///
/// Outer: the replica has failed. Inner: the answer to the client; after `Conflict` the client sends the write to the
/// leader.
pub(crate) fn take(cx: &Context, ask: &Ask, op: &DataOp) -> Result<Result<Reply>> {
    let DataOp::RawWrite { data, index, step } = op else {
        return Ok(Err(Error::bug("an op that is no raw write came to the raw lane")));
    };
    let shard = ShardId { volume: ask.volume, data: *data, index: *index };
    let conflict = || Ok(Err(Error::Conflict { stamp: None }));
    if !cx.at.names_this_incarnation() || !cx.at.view.whole || !cx.at.view.has_member(cx.at.own.brick) {
        return conflict();
    }
    let changes = match step {
        RawStep::Write { offset, bytes } => {
            let write = HomeWrite { shard, offset: *offset, bytes };
            if let Some(refusal) = write.refusal(cx.at, ask) {
                return Ok(Err(refusal));
            }
            let end = u64::from(*offset) + bytes.len() as u64;
            let found = write.target(cx.at, cx.around.brick)?.filter(|record| end <= u64::from(record.length));
            let Some(record) = found else { return conflict() };
            let Some(blocks) = write.blocks(cx.around.brick, ask, record.length)? else { return conflict() };
            vec![block_change(shard, record, write.first(), blocks)]
        }
        RawStep::Mark { offset, length } => match marked(cx.at, cx.around.brick, ask, shard, (*offset, *length))? {
            Some(change) => vec![change],
            None => return conflict(),
        },
        RawStep::Clear => cleared(cx.at, cx.around.brick, ask, shard)?.into_iter().collect(),
        RawStep::Lock { .. } | RawStep::Unlock => {
            return Ok(Err(Error::bug("a lock of a raw write came to a replica")));
        }
    };
    match append_outside(cx.at, cx.around.brick, ask, changes, false)? {
        true => Ok(Ok(Reply::Done)),
        false => conflict(),
    }
}

fn changelog(at: &Membership, brick: &Brick, shard: ShardId) -> Result<Vec<FastWrite>> {
    match brick.get(&Key::unsettled(at.ring, shard))? {
        Some(value) => Ok(UnsettledRecord::from_bytes(value)?.writes),
        None => Ok(Vec::new()),
    }
}

/// The change that adds the op to the changelog: it may have written these blocks here, and not elsewhere.
fn marked(
    at: &Membership,
    brick: &Brick,
    ask: &Ask,
    shard: ShardId,
    (offset, length): (u32, u32),
) -> Result<Option<Change>> {
    let is_here = ask.partition(shard.position()) == at.own.partition;
    let found = if is_here && !brick.is_dropped(shard) { brick.shard(at.ring, shard)? } else { None };
    let Some(record) = found.filter(|record| length > 0 && offset < record.length) else { return Ok(None) };
    // A client may mark a whole shard: only the blocks that the shard has are listed.
    let end = (u64::from(offset) + u64::from(length)).min(u64::from(record.length));
    let mut writes = changelog(at, brick, shard)?;
    if writes.len() >= PENDING_MAX {
        return Ok(None);
    }
    let first = offset / BLOCK_BYTES as u32;
    let blocks = end.div_ceil(BLOCK_BYTES as u64) as u32 - first;
    let stamp = Stamp { count: record.stamp.count, session: ask.session, op: ask.op_id };
    writes.push(FastWrite { stamp, first, blocks });
    let value = UnsettledRecord { writes }.to_bytes();
    Ok(Some(Change::Put { key: Key::unsettled(at.ring, shard), value }))
}

/// The change that removes the op from the changelog, as all members have the write.
fn cleared(at: &Membership, brick: &Brick, ask: &Ask, shard: ShardId) -> Result<Option<Change>> {
    let mut writes = changelog(at, brick, shard)?;
    let before = writes.len();
    writes.retain(|write| (write.stamp.session, write.stamp.op) != (ask.session, ask.op_id));
    let key = Key::unsettled(at.ring, shard);
    Ok(match writes.is_empty() {
        _ if writes.len() == before => None,
        true => Some(Change::Delete { key }),
        false => Some(Change::Put { key, value: UnsettledRecord { writes }.to_bytes() }),
    })
}
