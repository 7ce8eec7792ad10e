//! rename: names move, inodes stay. The new name's partition drives; its record is the commit point.

use crate::execute::{Ask, Commit, Multi, Partitions, Stop};
use crate::names::touch;
use crate::tree::{Tree, drop_link};
use hekate_proto::*;

/// From where to where.
pub struct Ends<'a> {
    pub dir: InodeId,
    pub name: &'a Name,
    pub to_dir: InodeId,
    pub to_name: &'a Name,
}

/// What was found at both ends.
struct Found {
    from: NameRecord,
    to: Option<NameRecord>,
    stub: StubRecord,
    to_stub: StubRecord,
}

pub fn rename(
    parts: &mut dyn Partitions,
    ask: &Ask,
    ends: &Ends,
    mode: RenameMode,
    open_here: Option<InodeId>,
) -> std::result::Result<Reply, Stop> {
    let found = look(parts, ask, ends)?;
    if let Some(done) = check(parts, ask, ends, mode, &found)? {
        return Ok(done);
    }
    let exchange = mode == RenameMode::Exchange;
    let keep = !ask.alone || open_here.is_some();
    let home = ask.partition(ask.name_place(ends.to_dir, ends.to_name).position);
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    let mut legs = Vec::new();
    names(parts, ask, ends, &found, exchange, &mut commit, &mut legs)?;
    if ends.dir != ends.to_dir {
        set_parents(parts, ask, ends, &found, exchange, &mut commit, &mut legs)?;
    }
    if let Some(replaced) = found.to.filter(|_| !exchange) {
        drop_replaced(parts, ask, home, replaced, keep, &mut commit, &mut legs)?;
    }
    Multi::begin(parts, ask, home, "rename")?.commit(commit, legs)?;
    Ok(Reply::Done)
}

fn look(parts: &dyn Partitions, ask: &Ask, ends: &Ends) -> std::result::Result<Found, Stop> {
    let from_place = ask.name_place(ends.dir, ends.name);
    let to_place = ask.name_place(ends.to_dir, ends.to_name);
    let tree = Tree::new(parts.brick(ask.partition(to_place.position))?, ask);
    let to_stub = tree.stub(ends.to_dir)?;
    let to = tree.name(to_place, ends.to_dir, ends.to_name)?;
    let tree = Tree::new(parts.brick(ask.partition(from_place.position))?, ask);
    let stub = tree.stub(ends.dir)?;
    let from = tree.name(from_place, ends.dir, ends.name)?.ok_or(Error::NotFound)?;
    Ok(Found { from, to, stub, to_stub })
}

/// Whether it may be; `Some`: there is nothing to do. Locks every partition whose state the answer depends on.
fn check(
    parts: &dyn Partitions,
    ask: &Ask,
    ends: &Ends,
    mode: RenameMode,
    found: &Found,
) -> std::result::Result<Option<Reply>, Stop> {
    let moved = found.from;
    let is_directory = |record: &NameRecord| record.kind == NodeKind::Directory;
    if ends.dir != ends.to_dir {
        if is_directory(&moved) {
            not_below(parts, ask, ends.to_dir, moved.inode)?;
            parts.brick(ask.partition(moved.inode.position()))?;
        }
        if let (RenameMode::Exchange, Some(other)) = (mode, found.to.filter(|to| is_directory(to))) {
            not_below(parts, ask, ends.dir, other.inode)?;
        }
    }
    let Some(target) = found.to else {
        return match mode {
            RenameMode::Exchange => Err(Error::NotFound.into()),
            _ => Ok(None),
        };
    };
    let brick = parts.brick(ask.partition(target.inode.position()))?;
    match mode {
        RenameMode::NoReplace => Err(Error::Exists.into()),
        // Two names of one inode: POSIX says that nothing happens.
        _ if target.inode == moved.inode => Ok(Some(Reply::Done)),
        RenameMode::Exchange => Ok(None),
        RenameMode::Replace => match (is_directory(&moved), is_directory(&target)) {
            (true, false) => Err(Error::NotDirectory.into()),
            (false, true) => Err(Error::IsDirectory.into()),
            (false, false) => Ok(None),
            (true, true) => match Tree::new(brick, ask).stub(target.inode)?.entries {
                0 => Ok(None),
                _ => Err(Error::NotEmpty.into()),
            },
        },
    }
}

/// `dir` is neither `moved` nor below it. The partitions of all ancestors stay locked, so it stays true.
fn not_below(parts: &dyn Partitions, ask: &Ask, dir: InodeId, moved: InodeId) -> std::result::Result<(), Stop> {
    let mut at = dir;
    loop {
        if at == moved {
            return Err(Error::Loop.into());
        }
        if at == ROOT {
            return Ok(());
        }
        at = Tree::new(parts.brick(ask.partition(at.position()))?, ask).inode(at)?.parent;
    }
}

fn names(
    parts: &mut dyn Partitions,
    ask: &Ask,
    ends: &Ends,
    found: &Found,
    exchange: bool,
    commit: &mut Commit,
    legs: &mut Vec<(Position, Leg)>,
) -> std::result::Result<(), Stop> {
    let (from_place, to_place) = (ask.name_place(ends.dir, ends.name), ask.name_place(ends.to_dir, ends.to_name));
    let home = ask.partition(to_place.position);
    let now = parts.leader(home)?.time(ask.now);
    let tree = Tree::new(parts.brick(home)?, ask);
    let directory = |kind: NodeKind| u32::from(kind == NodeKind::Directory);
    let new = found.to.filter(|_| exchange);
    let (mut stub, mut to_stub) = (found.stub.clone(), found.to_stub.clone());
    to_stub.entries += u64::from(found.to.is_none());
    to_stub.directories += directory(found.from.kind);
    to_stub.directories -= found.to.map_or(0, |to| directory(to.kind));
    commit.put(Key::name(to_place, ends.to_dir, ends.to_name.as_bytes()), &found.from);
    let from_partition = ask.partition(from_place.position);
    if from_partition != home {
        touch(&tree, commit, ends.to_dir, to_stub, now);
        let new = new.map(|new| (new.inode, new.kind));
        legs.push((from_place.position, Leg::ReplaceName { dir: ends.dir, name: ends.name.clone(), new }));
        return Ok(());
    }
    let same = ends.dir == ends.to_dir;
    let from_stub = if same { &mut to_stub } else { &mut stub };
    from_stub.directories -= directory(found.from.kind);
    from_stub.directories += new.map_or(0, |new| directory(new.kind));
    from_stub.entries -= u64::from(new.is_none());
    let key = Key::name(from_place, ends.dir, ends.name.as_bytes());
    match new {
        Some(new) => commit.put(key, &new),
        None => commit.delete(key),
    }
    if !same {
        touch(&tree, commit, ends.dir, stub, now);
    }
    touch(&tree, commit, ends.to_dir, to_stub, now);
    Ok(())
}

fn set_parents(
    parts: &dyn Partitions,
    ask: &Ask,
    ends: &Ends,
    found: &Found,
    exchange: bool,
    commit: &mut Commit,
    legs: &mut Vec<(Position, Leg)>,
) -> std::result::Result<(), Stop> {
    let home = ask.partition(ask.name_place(ends.to_dir, ends.to_name).position);
    let back = found.to.filter(|_| exchange).map(|to| (to, ends.dir));
    let moves = [Some((found.from, ends.to_dir)), back];
    for (record, parent) in moves.into_iter().flatten().filter(|(record, _)| record.kind == NodeKind::Directory) {
        let position = record.inode.position();
        if ask.partition(position) == home {
            let tree = Tree::new(parts.brick(home)?, ask);
            crate::legs::set_parent(&tree, commit, record.inode, parent)?;
        } else {
            legs.push((position, Leg::SetParent { inode: record.inode, parent }));
        }
    }
    Ok(())
}

fn drop_replaced(
    parts: &mut dyn Partitions,
    ask: &Ask,
    home: PartitionNumber,
    replaced: NameRecord,
    keep: bool,
    commit: &mut Commit,
    legs: &mut Vec<(Position, Leg)>,
) -> std::result::Result<(), Stop> {
    let inode = replaced.inode;
    let directory = replaced.kind == NodeKind::Directory;
    if ask.partition(inode.position()) != home {
        let leg = if directory { Leg::DropDirectory { inode } } else { Leg::DropLink { inode, keep } };
        legs.push((inode.position(), leg));
        return Ok(());
    }
    let now = parts.leader(home)?.time(ask.now);
    let tree = Tree::new(parts.brick(home)?, ask);
    if directory {
        crate::legs::drop_directory(&tree, commit, inode)
    } else {
        drop_link(&tree, commit, inode, keep, now)
    }
}
