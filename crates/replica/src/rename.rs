//! rename: names move, inodes stay. The new name's partition drives; its record is the commit point.
//!
//! Between partitions the old name is held first, so that nobody sees the file under neither name, and readers of it wait
//! (DESIGN section 6). A directory moves to another parent under one lock for the whole volume, so that none is moved
//! under itself.

use crate::names::touch;
use crate::step::{Commit, Here, Next, Stepped};
use crate::tree::drop_link;
use hekate_brick::planted::is_planted;
use hekate_proto::*;

/// From where to where.
pub struct Ends<'a> {
    pub dir: InodeId,
    pub name: &'a Name,
    pub to_dir: InodeId,
    pub to_name: &'a Name,
}

/// What is at both ends.
struct Found {
    from: NameRecord,
    to: Option<NameRecord>,
    /// The old name rests here too.
    near: bool,
    exchange: bool,
}

type Legs = Vec<(Position, Leg)>;

pub fn rename(here: &mut Here, ends: &Ends, mode: RenameMode, open_here: Option<InodeId>) -> Stepped<Next> {
    let found = look(here, ends, mode)?;
    if let Some(reply) = check(here, mode, &found)? {
        return Ok(Next::Reply(reply));
    }
    let directory = |record: &NameRecord| record.kind == NodeKind::Directory;
    let moves = ends.dir != ends.to_dir
        && (directory(&found.from) || found.exchange && found.to.is_some_and(|to| directory(&to)));
    if moves {
        hold_moves(here)?;
        not_below(here, ends, &found)?;
    }
    close_replaced(here, &found)?;
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    let mut legs = Vec::new();
    move_names(here, ends, &found, &mut commit, &mut legs)?;
    if ends.dir != ends.to_dir && !is_planted(13) {
        set_parents(here, ends, &found, &mut commit, &mut legs)?;
    }
    if let Some(replaced) = found.to.filter(|_| !found.exchange) {
        let keep = !here.ask.alone || open_here.is_some();
        drop_replaced(here, replaced, keep, &mut commit, &mut legs)?;
    }
    if moves {
        legs.push((ROOT.position(), Leg::ReleaseMoves));
    }
    Ok(Next::Commit(commit, legs))
}

fn look(here: &mut Here, ends: &Ends, mode: RenameMode) -> Stepped<Found> {
    let (ask, tree) = (here.ask, here.tree());
    tree.stub(ends.to_dir)?;
    let to = tree.name(ask.name_place(ends.to_dir, ends.to_name), ends.to_dir, ends.to_name)?;
    let place = ask.name_place(ends.dir, ends.name);
    let near = here.owns(place.position);
    let from = if near {
        tree.stub(ends.dir)?;
        tree.name(place, ends.dir, ends.name)?.ok_or(Error::NotFound)?
    } else {
        let hold = Leg::HoldName { dir: ends.dir, name: ends.name.clone() };
        let undo = Leg::ReleaseName { dir: ends.dir, name: ends.name.clone() };
        match here.leg(place.position, hold, Some(undo))? {
            Reply::Elsewhere { inode, kind } => NameRecord { inode, kind },
            _ => return Err(Error::bug("a held name answers where it leads").into()),
        }
    };
    Ok(Found { from, to, near, exchange: mode == RenameMode::Exchange })
}

/// Whether it may be; `Some`: there is nothing to do.
fn check(here: &Here, mode: RenameMode, found: &Found) -> Stepped<Option<Reply>> {
    let is_directory = |record: &NameRecord| record.kind == NodeKind::Directory;
    let Some(target) = found.to else {
        return match mode {
            RenameMode::Exchange => Err(Error::NotFound.into()),
            _ => Ok(None),
        };
    };
    match mode {
        RenameMode::NoReplace => Err(Error::Exists.into()),
        // Two names of one inode: POSIX says that nothing happens.
        _ if target.inode == found.from.inode => Ok(Some(Reply::Done)),
        RenameMode::Exchange => Ok(None),
        RenameMode::Replace => match (is_directory(&found.from), is_directory(&target)) {
            (true, false) => Err(Error::NotDirectory.into()),
            (false, true) => Err(Error::IsDirectory.into()),
            (true, true) if here.owns(target.inode.position()) => match here.tree().stub(target.inode)?.entries {
                0 => Ok(None),
                _ => Err(Error::NotEmpty.into()),
            },
            _ => Ok(None),
        },
    }
}

fn hold_moves(here: &mut Here) -> Stepped<()> {
    here.leg(ROOT.position(), Leg::HoldMoves, Some(Leg::LetMoves)).map(|_| ())
}

/// No directory comes to lie in itself. While the moves are held, parents stay what they are.
fn not_below(here: &mut Here, ends: &Ends, found: &Found) -> Stepped<()> {
    let back = found.to.filter(|_| found.exchange).map(|to| (to, ends.dir));
    for (moved, dir) in [Some((found.from, ends.to_dir)), back].into_iter().flatten() {
        let mut at = dir;
        while moved.kind == NodeKind::Directory && at != ROOT {
            if at == moved.inode {
                return Err(Error::Loop.into());
            }
            at = if here.owns(at.position()) {
                here.tree().inode(at)?.parent
            } else {
                match here.leg(at.position(), Leg::Parent { inode: at }, None)? {
                    Reply::Elsewhere { inode, .. } => inode,
                    _ => return Err(Error::bug("a directory answers its parent").into()),
                }
            };
        }
    }
    Ok(())
}

/// A directory of another partition that is replaced must be empty and stay so.
fn close_replaced(here: &mut Here, found: &Found) -> Stepped<()> {
    let Some(to) = found.to.filter(|to| !found.exchange && to.kind == NodeKind::Directory) else { return Ok(()) };
    let (inode, position) = (to.inode, to.inode.position());
    if here.owns(position) {
        return Ok(());
    }
    here.leg(position, Leg::CloseDirectory { inode }, Some(Leg::ReopenDirectory { inode })).map(|_| ())
}

fn move_names(here: &Here, ends: &Ends, found: &Found, commit: &mut Commit, legs: &mut Legs) -> Stepped<()> {
    let (ask, tree, now) = (here.ask, here.tree(), here.now);
    let (from_place, to_place) = (ask.name_place(ends.dir, ends.name), ask.name_place(ends.to_dir, ends.to_name));
    let directory = |kind: NodeKind| u32::from(kind == NodeKind::Directory);
    let new = found.to.filter(|_| found.exchange);
    let mut to_stub = tree.stub(ends.to_dir)?;
    to_stub.entries += u64::from(found.to.is_none());
    to_stub.directories += directory(found.from.kind);
    to_stub.directories -= found.to.map_or(0, |to| directory(to.kind));
    commit.put(Key::name(to_place, ends.to_dir, ends.to_name.as_bytes()), &found.from);
    if !found.near {
        touch(&tree, commit, ends.to_dir, to_stub, now);
        let new = new.map(|new| (new.inode, new.kind));
        legs.push((from_place.position, Leg::ReplaceName { dir: ends.dir, name: ends.name.clone(), new }));
        return Ok(());
    }
    let same = ends.dir == ends.to_dir;
    let mut other = tree.stub(ends.dir)?;
    let from_stub = if same { &mut to_stub } else { &mut other };
    from_stub.directories -= directory(found.from.kind);
    from_stub.directories += new.map_or(0, |new| directory(new.kind));
    from_stub.entries -= u64::from(new.is_none());
    let key = Key::name(from_place, ends.dir, ends.name.as_bytes());
    match new {
        Some(new) => commit.put(key, &new),
        None => commit.delete(key),
    }
    if !same {
        touch(&tree, commit, ends.dir, other, now);
    }
    touch(&tree, commit, ends.to_dir, to_stub, now);
    Ok(())
}

fn set_parents(here: &Here, ends: &Ends, found: &Found, commit: &mut Commit, legs: &mut Legs) -> Stepped<()> {
    let back = found.to.filter(|_| found.exchange).map(|to| (to, ends.dir));
    let moves = [Some((found.from, ends.to_dir)), back];
    for (record, parent) in moves.into_iter().flatten().filter(|(record, _)| record.kind == NodeKind::Directory) {
        let position = record.inode.position();
        if here.owns(position) {
            crate::legs::set_parent(&here.tree(), commit, record.inode, parent)?;
        } else {
            legs.push((position, Leg::SetParent { inode: record.inode, parent }));
        }
    }
    Ok(())
}

fn drop_replaced(here: &Here, replaced: NameRecord, keep: bool, commit: &mut Commit, legs: &mut Legs) -> Stepped<()> {
    let inode = replaced.inode;
    let directory = replaced.kind == NodeKind::Directory;
    if !here.owns(inode.position()) {
        let leg = if directory { Leg::DropDirectory { inode } } else { Leg::DropLink { inode, keep } };
        legs.push((inode.position(), leg));
        return Ok(());
    }
    if directory {
        crate::legs::drop_directory(&here.tree(), commit, inode)
    } else {
        drop_link(&here.tree(), commit, inode, keep, here.now)
    }
}
