//! Legs: what a partition does for an op that another one drives. Each is taken once: a mark with the intent's id and
//! the leg's number rests beside what it changed.

use crate::data::fill_shard;
use crate::execute::{Ask, Commit, Partitions, Stop};
use crate::tree::{Tree, drop_link, new_directory};
use hekate_brick::Brick;
use hekate_proto::*;

/// Shard numbers that are tried one by one; for more of them the partition's shards are gone through.
const SHARDS_TRIED_MAX: u64 = 65_536;

/// Takes a leg, unless it was taken; an undoing leg does something only if the one that it undoes was taken.
pub fn take(
    parts: &mut dyn Partitions,
    ask: &Ask,
    at: PartitionNumber,
    intent: IntentId,
    number: u16,
    leg: &Leg,
) -> std::result::Result<(), Stop> {
    let mark = Key::leg_done(ask.ring, at.first_position(ask.count), intent, number);
    let taken = parts.brick(at)?.get(&mark)?.is_some();
    if taken != undoes(leg) {
        return Ok(());
    }
    let now = parts.leader(at)?.time(ask.now);
    let mut commit = apply(parts.brick(at)?, ask, at, leg, now)?;
    if taken {
        commit.delete(mark);
    } else {
        commit.put(mark.clone(), &0u8);
        parts.sweep(at, mark);
    }
    Ok(parts.commit(at, commit)?)
}

fn undoes(leg: &Leg) -> bool {
    match leg {
        Leg::UnmakeDirectory { .. }
        | Leg::TakeBackLink { .. }
        | Leg::ReopenDirectory { .. }
        | Leg::UnfillShard { .. } => true,
        Leg::MakeDirectory { .. }
        | Leg::AddLink { .. }
        | Leg::CloseDirectory { .. }
        | Leg::FillShard { .. }
        | Leg::DropLink { .. }
        | Leg::DropDirectory { .. }
        | Leg::ReplaceName { .. }
        | Leg::SetParent { .. }
        | Leg::CutShard { .. }
        | Leg::EmptyShards { .. } => false,
    }
}

fn apply(brick: &Brick, ask: &Ask, at: PartitionNumber, leg: &Leg, now: Time) -> std::result::Result<Commit, Stop> {
    let tree = Tree::new(brick, ask);
    let mut commit = Commit::default();
    match leg {
        Leg::MakeDirectory { inode, parent, mode, uid, gid } => {
            commit.changes = new_directory(ask, *inode, *parent, (*mode, *uid, *gid), now).0;
        }
        Leg::UnmakeDirectory { inode } | Leg::DropDirectory { inode } => drop_directory(&tree, &mut commit, *inode)?,
        Leg::AddLink { inode } => change_links(&tree, &mut commit, *inode, 1, now)?,
        Leg::TakeBackLink { inode } => change_links(&tree, &mut commit, *inode, -1, now)?,
        Leg::CloseDirectory { inode } => {
            let mut stub = tree.stub(*inode)?;
            if stub.entries > 0 {
                return Err(Error::NotEmpty.into());
            }
            stub.alive = false;
            commit.put(tree.key(*inode, Kind::Stub), &stub);
        }
        Leg::ReopenDirectory { inode } => {
            let mut stub = tree.any_stub(*inode)?;
            stub.alive = true;
            commit.put(tree.key(*inode, Kind::Stub), &stub);
        }
        Leg::FillShard { shard, bytes } => commit = fill_shard(ask, *shard, bytes),
        Leg::UnfillShard { shard } => commit.changes.push(Change::DropShard { shard: *shard }),
        Leg::DropLink { inode, keep } => drop_link(&tree, &mut commit, *inode, *keep, now)?,
        Leg::ReplaceName { dir, name, new } => replace_name(&tree, ask, &mut commit, *dir, name, *new, now)?,
        Leg::SetParent { inode, parent } => set_parent(&tree, &mut commit, *inode, *parent)?,
        Leg::EmptyShards { data, from, to } => {
            for shard in shards_of(brick, ask, at, *data, *from, *to)? {
                cut_shard(brick, ask, &mut commit, shard, 0)?;
            }
        }
        Leg::CutShard { shard, length } => cut_shard(brick, ask, &mut commit, *shard, *length)?,
    }
    Ok(commit)
}

/// The records of an empty directory go.
pub fn drop_directory(tree: &Tree, commit: &mut Commit, id: InodeId) -> std::result::Result<(), Stop> {
    commit.delete(tree.key(id, Kind::Inode));
    commit.delete(tree.key(id, Kind::Stub));
    for key in tree.xattr_keys(id)? {
        commit.delete(key);
    }
    Ok(())
}

fn change_links(tree: &Tree, commit: &mut Commit, id: InodeId, by: i32, now: Time) -> std::result::Result<(), Stop> {
    let mut inode = tree.inode(id)?;
    if inode.kind == NodeKind::Directory {
        return Err(Error::Denied { what: "hard links to directories".into() }.into());
    }
    if by > 0 && inode.nlink == 0 {
        return Err(Error::NotFound.into());
    }
    inode.nlink = inode.nlink.checked_add_signed(by).ok_or(Error::TooManyLinks)?;
    inode.ctime = now;
    inode.change += 1;
    commit.put(tree.key(id, Kind::Inode), &inode);
    Ok(())
}

/// The directory's parent is another one.
pub fn set_parent(tree: &Tree, commit: &mut Commit, id: InodeId, parent: InodeId) -> std::result::Result<(), Stop> {
    let mut inode = tree.inode(id)?;
    inode.parent = parent;
    commit.put(tree.key(id, Kind::Inode), &inode);
    Ok(())
}

fn replace_name(
    tree: &Tree,
    ask: &Ask,
    commit: &mut Commit,
    dir: InodeId,
    name: &Name,
    new: Option<(InodeId, NodeKind)>,
    now: Time,
) -> std::result::Result<(), Stop> {
    let place = ask.name_place(dir, name);
    let Some(old) = tree.name(place, dir, name)? else { return Ok(()) };
    let mut stub = tree.any_stub(dir)?;
    stub.directories -= u32::from(old.kind == NodeKind::Directory);
    let key = Key::name(place, dir, name.as_bytes());
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
    stub.mtime = now;
    stub.change += 1;
    commit.put(tree.key(dir, Kind::Stub), &stub);
    Ok(())
}

/// The shard ends at `length`, if it went further.
pub fn cut_shard(
    brick: &Brick,
    ask: &Ask,
    commit: &mut Commit,
    shard: ShardId,
    length: u32,
) -> std::result::Result<(), Stop> {
    let Some(record) = brick.shard(ask.ring, shard)? else { return Ok(()) };
    if record.length > length {
        crate::data::cut(brick, ask, commit, shard, record, length)?;
    }
    Ok(())
}

pub fn shards_of(
    brick: &Brick,
    ask: &Ask,
    at: PartitionNumber,
    data: DataId,
    from: u64,
    to: u64,
) -> std::result::Result<Vec<ShardId>, Stop> {
    let volume = ask.volume;
    let mut found = Vec::new();
    if to.saturating_sub(from) <= SHARDS_TRIED_MAX {
        for index in from..to {
            let shard = ShardId { volume, data, index };
            if ask.partition(shard.position()) == at && brick.shard(ask.ring, shard)?.is_some() {
                found.push(shard);
            }
        }
        return Ok(found);
    }
    for shard in brick.shards(ask.ring, at, ask.count)? {
        if shard.volume == volume && shard.data == data && (from..to).contains(&shard.index) {
            found.push(shard);
        }
    }
    Ok(found)
}
