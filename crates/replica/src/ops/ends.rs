//! The end of a file that a session may have moved under a grant (G8 of `docs/coherence.md`). Its leader learns of it
//! when the grant is returned. If that cannot happen, the shards between the recorded end and the limit of the grant are
//! asked how long they are: all that was acknowledged is in them.

use crate::ops::step::{Ask, Commit, EndBy, EndChange, Here, Next, Stepped, Stop};
use crate::ops::tree::later;
use hekate_brick::Brick;
use hekate_proto::*;

/// Bytes behind the end of a file that a grant covers: the shards that may have to be asked, and how often a session
/// that writes a long file asks for a further grant.
const AHEAD: u64 = 32 << 20;

/// The limit of a grant to a session that has moved the end of a file to `end`.
pub fn limit_behind(end: u64) -> u64 {
    (end + AHEAD).next_multiple_of(SHARD_BYTES).min(FILE_BYTES_MAX)
}

/// Sets the size of a file to the end of its shards' bytes. Waits for shards that are open for fast writes: a write that
/// some member lacks may be undone.
pub fn find_end(here: &mut Here, id: InodeId) -> Stepped<Next> {
    if here.ask.session != SYSTEM_SESSION {
        return Err(Error::Protocol { what: "a client asks for the end of a file".into() }.into());
    }
    let tree = here.tree();
    let end = Some(Box::new(EndChange { file: (here.ask.volume, id), by: EndBy::Shards }));
    let mut commit = Commit { reply: Some(Reply::Done), end, ..Commit::default() };
    let mut inode = match tree.file(id) {
        Err(Stop::Error(Error::Stale | Error::NotFound)) => {
            commit.delete(Key::writing(here.ask.ring, here.ask.volume, id));
            return Ok(Next::record(commit));
        }
        found => found?,
    };
    let (from, to) = (inode.size, inode.size_high);
    let mut end = from;
    let mut start = from;
    for (shard, inside, count) in inode.layout.shard_runs(here.ask.volume, from, to.saturating_sub(from) as usize) {
        let length = match here.owns(shard.position()) {
            true if here.brick.get(&Key::unsettled(here.ask.ring, shard))?.is_some() => return Err(Stop::Wait),
            true => length_of(here.brick, here.ask, shard)?,
            false => match here.leg(shard.position(), Leg::ShardEnd { shard }, None)? {
                Reply::Found { at: Some(length) } => length,
                _ => return Err(Error::bug("a shard has another answer than its length").into()),
            },
        };
        if length > inside {
            end = start + (length - inside).min(count as u64);
        }
        start += count as u64;
    }
    if end > inode.size {
        (inode.mtime, inode.ctime) = (later(here.now, inode.mtime), later(here.now, inode.ctime));
        inode.change += 1;
        inode.etag = bytes::Bytes::new();
    }
    (inode.size, inode.size_high) = (end, end);
    commit.put(tree.key(id, Kind::Inode), &inode);
    Ok(Next::record(commit))
}

/// The length of a shard in bytes. Of a shard whose record cannot be read it may be any: then the greatest one.
pub fn length_of(brick: &Brick, ask: &Ask, shard: ShardId) -> Stepped<u64> {
    match brick.shard(ask.ring, shard) {
        Ok(record) => Ok(record.map_or(0, |record| u64::from(record.length))),
        Err(Error::Damaged { .. }) => Ok(SHARD_BYTES),
        Err(error) => Err(Stop::Error(error)),
    }
}
