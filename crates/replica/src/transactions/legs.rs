//! Legs: what a partition does for an op that another one drives. Each leg is taken once: a mark with the intent's id
//! and the leg's number is in the record of the leg's change. A leg that undoes another has an effect only if that one
//! was taken. No leg waits: one that meets a hold is answered `Busy`, and its driver tries again, so ops do not
//! deadlock.

use crate::ops::data::fill_shard;
use crate::ops::read::stub_view;
use crate::ops::shards::{Portion, full_portion, portion_of};
use crate::ops::step::{Ask, Commit, Stepped, Stop};
use crate::ops::stubs;
use crate::ops::tree::{Tree, attr_of, drop_link, later};
use bytes::Bytes;
use hekate_brick::Brick;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// The result of a leg.
pub struct Taken {
    /// The answer to the driver.
    pub reply: Reply,
    /// The record to make. `None`: the leg was taken before, or only reads.
    pub commit: Option<Commit>,
    /// One record does not take all of the leg: the driver is to send it again.
    pub more: bool,
}

/// The bit of a leg's number for a leg that undoes the one with the number without this bit.
pub const UNDOING: u16 = 1 << 15;

/// Takes a leg, unless it was taken before.
///
/// # Errors
///
/// `Stop::Wait` if an op holds what the leg needs; `Stop::Error` if the leg cannot be taken.
pub fn take(
    brick: &Brick,
    ask: &Ask,
    at: PartitionNumber,
    (intent, number): (IntentId, u16),
    leg: &Leg,
    now: Time,
) -> Stepped<Taken> {
    let only = |reply| Taken { reply, commit: None, more: false };
    if let Leg::Parent { inode } = leg {
        let parent = Tree::new(brick, ask, at).parent(*inode)?;
        return Ok(only(Reply::Elsewhere { inode: parent, kind: NodeKind::Directory }));
    }
    if let Leg::Attributes { inode } = leg {
        let attr = Tree::new(brick, ask, at).attr(*inode)?;
        return Ok(only(Reply::Node { attr, created: false }));
    }
    if let Leg::ReadShard { range } = leg {
        return Ok(only(crate::ops::copy::read(brick, ask.ring, ask.volume, range)?));
    }
    if let Leg::ShardEnd { shard } = leg {
        return Ok(only(Reply::Found { at: Some(crate::ops::ends::length_of(brick, ask, *shard)?) }));
    }
    if let Leg::DropShards { data, to } = leg {
        let Portion { shards, next } = portion_of(brick, ask, at, *data, 0..*to)?;
        let changes: Vec<Change> = shards.into_iter().map(|shard| Change::DropShard { shard }).collect();
        let commit = (!changes.is_empty()).then_some(Commit { changes, ..Commit::default() });
        return Ok(Taken { reply: Reply::Done, commit, more: next.is_some() });
    }
    if let Some(elsewhere) = rests_elsewhere(&Tree::new(brick, ask, at), ask, at, leg)? {
        return Ok(only(elsewhere));
    }
    let mark = mark_of(ask, at, intent, number);
    let taken = brick.get(&mark)?.is_some() && (undoes(leg) || !is_planted(Bug::LegExecutedTwice));
    if taken != undoes(leg) {
        return Ok(only(answer_to(&Tree::new(brick, ask, at), leg)?));
    }
    if let Leg::EmptyShards { data, from, to } = leg
        && let Some(commit) = first_of_many(brick, ask, at, *data, *from..*to)?
    {
        return Ok(Taken { reply: Reply::Done, commit: Some(commit), more: true });
    }
    let (mut commit, reply) = apply(brick, ask, at, intent, leg, now)?;
    if taken {
        commit.delete(mark);
        return Ok(Taken { reply, commit: Some(commit), more: false });
    }
    match leg {
        // The directory may be removed again until its intent is removed for good.
        Leg::MakeDirectory { inode, .. } => commit.put(mark, inode),
        _ => commit.put(mark, &0u8),
    }
    Ok(Taken { reply, commit: Some(commit), more: false })
}

/// The key of a leg's mark. A leg that undoes another one has that one's mark.
pub fn mark_of(ask: &Ask, at: PartitionNumber, intent: IntentId, number: u16) -> Key {
    Key::leg_done(ask.ring, at.first_position(ask.count), intent, number & !UNDOING)
}

/// The first record of a leg that empties more shards than one record takes. `None` if one record does. The mark comes
/// with the last record.
fn first_of_many(
    brick: &Brick,
    ask: &Ask,
    at: PartitionNumber,
    data: DataId,
    range: Range<u64>,
) -> Stepped<Option<Commit>> {
    let Portion { shards, next: Some(_) } = full_portion(brick, ask, at, data, range)? else { return Ok(None) };
    let mut commit = Commit::default();
    for shard in shards {
        cut_shard(brick, ask, &mut commit, shard, 0)?;
    }
    Ok(Some(commit))
}

/// The stub that says where the name to be held is, if it is not in this partition.
fn rests_elsewhere(tree: &Tree, ask: &Ask, at: PartitionNumber, leg: &Leg) -> Stepped<Option<Reply>> {
    let Leg::HoldName { dir, name } = leg else { return Ok(None) };
    let stub = tree.found_stub(*dir)?;
    let elsewhere = stub.filter(|stub| ask.partition(name_position(*dir, name, stub.spread)) != at);
    Ok(elsewhere.map(|stub| Reply::Stub { stub: stub_view(&stub) }))
}

/// The answer of a leg that was taken before. What it reports cannot have changed since, as the leg holds it.
fn answer_to(tree: &Tree, leg: &Leg) -> Stepped<Reply> {
    Ok(match leg {
        Leg::MakeDirectory { inode, .. } if !tree.is_home(*inode) => Reply::Done,
        Leg::MakeDirectory { inode, .. } | Leg::AddLink { inode } | Leg::AddObjectLink { inode, .. } => {
            Reply::Node { attr: tree.attr(*inode)?, created: false }
        }
        Leg::CloseDirectory { inode: dir, .. } | Leg::HoldStub { dir } => {
            Reply::Stub { stub: stub_view(&tree.any_stub(*dir)?) }
        }
        Leg::HoldName { dir, name } => leads_to(tree, *dir, name)?,
        _ => Reply::Done,
    })
}

fn leads_to(tree: &Tree, dir: InodeId, name: &Name) -> Stepped<Reply> {
    let found = tree.name(dir, name)?.ok_or(Error::NotFound)?;
    Ok(Reply::Elsewhere { inode: found.inode, kind: found.kind })
}

/// True if the leg undoes the one with its number.
pub fn undoes(leg: &Leg) -> bool {
    match leg {
        Leg::UnmakeDirectory { .. }
        | Leg::TakeBackLink { .. }
        | Leg::ReopenDirectory { .. }
        | Leg::ReleaseName { .. }
        | Leg::LetMoves
        | Leg::UnfillShard { .. } => true,
        Leg::MakeDirectory { .. }
        | Leg::AddLink { .. }
        | Leg::AddObjectLink { .. }
        | Leg::Attributes { .. }
        | Leg::CloseDirectory { .. }
        | Leg::FillShard { .. }
        | Leg::DropLink { .. }
        | Leg::DropDirectory { .. }
        | Leg::ReplaceName { .. }
        | Leg::SetParent { .. }
        | Leg::CutShard { .. }
        | Leg::HoldName { .. }
        | Leg::HoldMoves
        | Leg::ReleaseMoves
        | Leg::Parent { .. }
        | Leg::DropShards { .. }
        | Leg::EmptyShards { .. }
        | Leg::ReadShard { .. }
        | Leg::ShardEnd { .. }
        | Leg::MarkMoved { .. }
        | Leg::HoldStub { .. }
        | Leg::SetStub { .. } => false,
    }
}

/// Legs by the number that they are sent with. A leg that undoes another has that one's number with [`UNDOING`] set: an
/// answer to that one, which may have been sent twice, is not taken for its own.
pub fn by_sent_number(legs: Vec<IntentLeg>) -> BTreeMap<u16, IntentLeg> {
    let number = |leg: &IntentLeg| leg.number | if undoes(&leg.leg) { UNDOING } else { 0 };
    legs.into_iter().map(|leg| (number(&leg), leg)).collect()
}

fn apply(
    brick: &Brick,
    ask: &Ask,
    at: PartitionNumber,
    intent: IntentId,
    leg: &Leg,
    now: Time,
) -> Stepped<(Commit, Reply)> {
    let tree = Tree::new(brick, ask, at);
    let mut commit = Commit::default();
    let mut reply = Reply::Done;
    match leg {
        Leg::MakeDirectory { .. }
        | Leg::UnmakeDirectory { .. }
        | Leg::CloseDirectory { .. }
        | Leg::ReopenDirectory { .. }
        | Leg::DropDirectory { .. }
        | Leg::HoldStub { .. }
        | Leg::SetStub { .. } => reply = stubs::take(&tree, ask, &mut commit, leg, now)?,
        Leg::AddLink { inode } => {
            let record = add_link(&tree, &mut commit, *inode, None, now)?;
            reply = Reply::Node { attr: attr_of(*inode, &record, None), created: false };
        }
        Leg::AddObjectLink { inode, etag } => {
            tree.file(*inode)?;
            let record = add_link(&tree, &mut commit, *inode, Some(etag), now)?;
            reply = Reply::Node { attr: attr_of(*inode, &record, None), created: false };
        }
        // The inode's other names may be removed by now, so it may become an orphan.
        Leg::TakeBackLink { inode } => drop_link(&tree, &mut commit, *inode, true, now)?,
        Leg::FillShard { shard, bytes } => commit = fill_shard(ask, *shard, bytes),
        Leg::UnfillShard { shard } => commit.changes.push(Change::DropShard { shard: *shard }),
        Leg::DropLink { inode, keep } => drop_link(&tree, &mut commit, *inode, *keep, now)?,
        Leg::ReplaceName { dir, name, new } => {
            replace_name(&tree, &mut commit, *dir, name, *new, now)?;
            commit.delete(ask.hold_key(at, *dir, name));
        }
        Leg::SetParent { inode, parent } => set_parent(&tree, &mut commit, *inode, *parent, now)?,
        Leg::MarkMoved { inode } => mark_moved(&tree, &mut commit, *inode, now)?,
        Leg::EmptyShards { data, from, to } => {
            for shard in full_portion(brick, ask, at, *data, *from..*to)?.shards {
                cut_shard(brick, ask, &mut commit, shard, 0)?;
            }
        }
        Leg::CutShard { shard, length } => cut_shard(brick, ask, &mut commit, *shard, *length)?,
        Leg::HoldName { dir, name } => {
            tree.stub(*dir)?;
            reply = leads_to(&tree, *dir, name)?;
            hold(brick, &mut commit, ask.hold_key(at, *dir, name), intent)?;
        }
        Leg::ReleaseName { dir, name } => {
            commit.delete(ask.hold_key(at, *dir, name));
        }
        Leg::HoldMoves => hold(brick, &mut commit, moves_key(ask), intent)?,
        Leg::LetMoves | Leg::ReleaseMoves => commit.delete(moves_key(ask)),
        Leg::Parent { .. }
        | Leg::Attributes { .. }
        | Leg::ReadShard { .. }
        | Leg::ShardEnd { .. }
        | Leg::DropShards { .. } => {
            return Err(Error::bug("a leg without a mark").into());
        }
    }
    Ok((commit, reply))
}

/// The key of the hold on a volume's moves of directories.
pub fn moves_key(ask: &Ask) -> Key {
    Key::hold(KeyPrefix { ring: ask.ring, position: ROOT.position(), volume: ask.volume }, ROOT, b"")
}

fn hold(brick: &Brick, commit: &mut Commit, key: Key, intent: IntentId) -> Stepped<()> {
    if brick.get(&key)?.is_some() {
        return Err(Stop::Wait);
    }
    commit.put(key, &intent);
    Ok(())
}

/// Removes what this partition has of an empty directory.
pub fn drop_directory(tree: &Tree, commit: &mut Commit, id: InodeId) -> Stepped<()> {
    commit.delete(tree.stub_key(id));
    if !tree.is_home(id) {
        return Ok(());
    }
    commit.delete(tree.key(id, Kind::Inode));
    match tree.inode(id) {
        Ok(inode) => tree.delete_xattrs(commit, id, &inode),
        // The directory was never made.
        Err(Stop::Error(Error::Stale)) => Ok(()),
        Err(other) => Err(other),
    }
}

/// Adds a link to an inode, and sets the ETag of its content. Returns the inode with the link.
///
/// # Errors
///
/// `Denied` for a directory; `NotFound` if the inode has no name and may not be given one; `TooManyLinks`.
pub fn add_link(
    tree: &Tree,
    commit: &mut Commit,
    id: InodeId,
    etag: Option<&Bytes>,
    now: Time,
) -> Stepped<InodeRecord> {
    let mut inode = tree.inode(id)?;
    if inode.kind == NodeKind::Directory {
        return Err(Error::Denied { what: "hard links to directories".into() }.into());
    }
    if inode.nlink == 0 {
        if !tree.is_linkable(id)? {
            return Err(Error::NotFound.into());
        }
        commit.delete(tree.orphan_key(id));
    }
    inode.nlink = inode.nlink.checked_add(1).ok_or(Error::TooManyLinks)?;
    if let Some(etag) = etag {
        inode.etag = etag.clone();
    }
    inode.ctime = later(now, inode.ctime);
    inode.change += 1;
    commit.put(tree.key(id, Kind::Inode), &inode);
    Ok(inode)
}

/// Sets a directory's parent. A directory that was removed at its new place in the meantime has none, which is no
/// error: the driver would repeat the leg for ever, and all moves of directories in the volume would wait for it.
pub fn set_parent(tree: &Tree, commit: &mut Commit, id: InodeId, parent: InodeId, now: Time) -> Stepped<()> {
    match tree.inode(id) {
        Ok(inode) => commit.put(tree.key(id, Kind::Inode), &moved(InodeRecord { parent, ..inode }, now)),
        Err(Stop::Error(Error::Stale)) => {}
        Err(other) => return Err(other),
    }
    Ok(())
}

/// Updates the change time of an inode that was renamed. The inode may be removed by now.
pub fn mark_moved(tree: &Tree, commit: &mut Commit, id: InodeId, now: Time) -> Stepped<()> {
    match tree.inode(id) {
        Ok(inode) => commit.put(tree.key(id, Kind::Inode), &moved(inode, now)),
        Err(Stop::Error(Error::Stale)) => {}
        Err(other) => return Err(other),
    }
    Ok(())
}

fn moved(inode: InodeRecord, now: Time) -> InodeRecord {
    InodeRecord { ctime: later(now, inode.ctime), change: inode.change + 1, ..inode }
}

fn replace_name(
    tree: &Tree,
    commit: &mut Commit,
    dir: InodeId,
    name: &Name,
    new: Option<(InodeId, NodeKind)>,
    now: Time,
) -> Stepped<()> {
    let Some(old) = tree.name(dir, name)? else { return Ok(()) };
    let mut stub = tree.any_stub(dir)?;
    stub.directories -= u32::from(old.kind == NodeKind::Directory);
    let key = tree.name_key(dir, name);
    match new {
        Some((inode, kind)) => {
            stub.directories += u32::from(kind == NodeKind::Directory);
            commit.put(key, &NameRecord { inode, kind });
        }
        None => {
            stub.entries -= 1;
            commit.delete(key);
        }
    }
    stub.renamed(now);
    commit.put(tree.stub_key(dir), &stub);
    Ok(())
}

/// Cuts the shard at `length` bytes, if it is longer, and releases the room behind that. Otherwise gives it another stamp
/// if a fast write may make it longer than that: one that is on its way is refused then.
pub fn cut_shard(brick: &Brick, ask: &Ask, commit: &mut Commit, shard: ShardId, length: u32) -> Stepped<()> {
    let Some(record) = brick.shard(ask.ring, shard)? else { return Ok(()) };
    if record.length > length {
        crate::ops::data::cut(brick, ask, commit, shard, record, length)?;
    } else if record.reserved_blocks > record.home_blocks.max(length.div_ceil(BLOCK_BYTES as u32)) {
        commit.changes.push(crate::ops::data::give_back(ask, shard, record, length));
    } else if u64::from(record.home_blocks) * BLOCK_BYTES as u64 > u64::from(length) {
        let stamp = Stamp { count: record.stamp.count + 1, session: ask.session, op: ask.op_id };
        commit.changes.push(Change::Restamp { shard, record: ShardRecord { stamp, ..record } });
    }
    Ok(())
}
