//! rename: names move, inodes stay. The new name's partition drives the op, and its record is the commit point.
//!
//! If the old name is in another partition it is held first: readers of it wait, so none sees the file under neither
//! name. A whiteout that is left at the old name is an inode of the new name's partition, so it is made with the commit
//! point. A move of a directory to another parent holds all moves of directories in the volume, so that no directory is
//! moved below itself.

use crate::ops::names::touch;
use crate::ops::step::{Commit, Here, Next, Stepped};
use crate::ops::stubs;
use crate::ops::tree::{attr_of, drop_link, new_inode};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// The old and the new name.
pub struct Ends<'a> {
    pub dir: InodeId,
    pub name: &'a Name,
    pub to_dir: InodeId,
    pub to_name: &'a Name,
}

/// The entries at the old and the new name of a rename, before it.
struct Found {
    from: NameRecord,
    to: Option<NameRecord>,
    /// The position of the old name, if another partition owns it.
    far: Option<Position>,
    exchange: bool,
    /// The whiteout to leave at the old name.
    whiteout: Option<NameRecord>,
}

impl Found {
    /// What the old name leads to after the rename.
    fn left(&self) -> Option<NameRecord> {
        self.whiteout.or(self.to.filter(|_| self.exchange))
    }
}

type Legs = Vec<(Position, Leg)>;

pub fn rename(here: &mut Here, ends: &Ends, mode: RenameMode, open_here: Option<InodeId>) -> Stepped<Next> {
    let mut found = look(here, ends, mode)?;
    if let Some(reply) = check(mode, &found)? {
        return Ok(Next::Reply(reply));
    }
    let directory = |record: &NameRecord| record.kind == NodeKind::Directory;
    let moves = ends.dir != ends.to_dir
        && (directory(&found.from) || found.exchange && found.to.is_some_and(|to| directory(&to)));
    if moves {
        hold_moves(here)?;
        not_below(here, ends, &found)?;
    }
    let closed = match found.to.filter(|to| !found.exchange && to.kind == NodeKind::Directory) {
        Some(to) => Some(stubs::close(here, to.inode, false)?),
        None => None,
    };
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    let mut legs = Vec::new();
    make_whiteout(here, ends, mode, &mut found, &mut commit);
    move_names(here, ends, &found, &mut commit, &mut legs)?;
    mark_moved(here, ends, &found, &mut commit, &mut legs)?;
    if let Some(replaced) = found.to.filter(|_| !found.exchange) {
        let keep = !here.ask.alone || open_here.is_some();
        match closed {
            Some(closed) => stubs::drop_closed(here, replaced.inode, closed, &mut commit, &mut legs)?,
            None => drop_replaced(here, replaced.inode, keep, &mut commit, &mut legs)?,
        }
    }
    if moves {
        legs.push((ROOT.position(), Leg::ReleaseMoves));
    }
    Ok(Next::Commit(commit, legs))
}

fn look(here: &mut Here, ends: &Ends, mode: RenameMode) -> Stepped<Found> {
    let tree = here.tree();
    tree.stub_of(ends.to_dir, ends.to_name)?;
    let to = tree.name(ends.to_dir, ends.to_name)?;
    let exchange = mode == RenameMode::Exchange;
    // Without a stub of the old name's directory, the directory's own partition is asked, which has one.
    let mut spread = tree.found_stub(ends.dir)?.map_or(1, |stub| stub.spread);
    loop {
        let position = name_position(ends.dir, ends.name, spread);
        if here.owns(position) {
            tree.stub_of(ends.dir, ends.name)?;
            let from = tree.name(ends.dir, ends.name)?.ok_or(Error::NotFound)?;
            return Ok(Found { from, to, far: None, exchange, whiteout: None });
        }
        let hold = Leg::HoldName { dir: ends.dir, name: ends.name.clone() };
        let undo = Leg::ReleaseName { dir: ends.dir, name: ends.name.clone() };
        match here.leg(position, hold, Some(undo))? {
            Reply::Elsewhere { inode, kind } => {
                let from = NameRecord { inode, kind };
                return Ok(Found { from, to, far: Some(position), exchange, whiteout: None });
            }
            Reply::Stub { stub } if stub.spread > spread && is_spread(stub.spread, here.ask.count) => {
                spread = stub.spread;
            }
            _ => return Err(Error::bug("a leg that holds a name answers with its inode or stub").into()),
        }
    }
}

/// Checks that the rename is permitted. Returns an answer if there is nothing to do.
fn check(mode: RenameMode, found: &Found) -> Stepped<Option<Reply>> {
    let is_directory = |record: &NameRecord| record.kind == NodeKind::Directory;
    let Some(target) = found.to else {
        return match mode {
            RenameMode::Exchange => Err(Error::NotFound.into()),
            _ => Ok(None),
        };
    };
    match mode {
        RenameMode::NoReplace | RenameMode::Whiteout { replace: false, .. } => Err(Error::Exists.into()),
        // Two names of one inode: POSIX says that nothing changes.
        _ if target.inode == found.from.inode => Ok(Some(Reply::Done)),
        RenameMode::Exchange => Ok(None),
        RenameMode::Replace | RenameMode::Whiteout { .. } => match (is_directory(&found.from), is_directory(&target)) {
            (true, false) => Err(Error::NotDirectory.into()),
            (false, true) => Err(Error::IsDirectory.into()),
            _ => Ok(None),
        },
    }
}

fn hold_moves(here: &mut Here) -> Stepped<()> {
    here.leg(ROOT.position(), Leg::HoldMoves, Some(Leg::LetMoves)).map(|_| ())
}

/// Checks that no directory is moved below itself. Parents do not change while the moves are held.
fn not_below(here: &mut Here, ends: &Ends, found: &Found) -> Stepped<()> {
    let back = found.to.filter(|_| found.exchange).map(|to| (to, ends.dir));
    for (moved, dir) in [Some((found.from, ends.to_dir)), back].into_iter().flatten() {
        let mut at = dir;
        while moved.kind == NodeKind::Directory && at != ROOT && at != SYSTEM {
            if at == moved.inode {
                return Err(Error::Loop.into());
            }
            at = if here.owns(at.position()) {
                here.tree().parent(at)?
            } else {
                match here.leg(at.position(), Leg::Parent { inode: at }, None)? {
                    Reply::Elsewhere { inode, .. } => inode,
                    _ => return Err(Error::bug("a leg that reads a parent answers with it").into()),
                }
            };
        }
    }
    Ok(())
}

/// Makes the whiteout that RENAME_WHITEOUT leaves at the old name.
fn make_whiteout(here: &mut Here, ends: &Ends, mode: RenameMode, found: &mut Found, commit: &mut Commit) {
    let RenameMode::Whiteout { uid, gid, seed, .. } = mode else { return };
    let id = InodeId::new(here.tree().names_prefix(ends.to_dir).position.0, seed, here.number(0));
    let inode = new_inode(NodeKind::CharDevice, 0, uid, gid, here.now);
    commit.put(here.tree().key(id, Kind::Inode), &inode);
    commit.reply = Some(Reply::Node { attr: attr_of(id, &inode, None), created: true });
    found.whiteout = Some(NameRecord { inode: id, kind: NodeKind::CharDevice });
}

fn move_names(here: &Here, ends: &Ends, found: &Found, commit: &mut Commit, legs: &mut Legs) -> Stepped<()> {
    let (tree, now) = (here.tree(), here.now);
    let directory = |kind: NodeKind| u32::from(kind == NodeKind::Directory);
    let new = found.left();
    let mut to_stub = tree.stub(ends.to_dir)?;
    to_stub.entries += u64::from(found.to.is_none());
    to_stub.directories += directory(found.from.kind);
    to_stub.directories -= found.to.map_or(0, |to| directory(to.kind));
    commit.put(tree.name_key(ends.to_dir, ends.to_name), &found.from);
    if let Some(position) = found.far {
        touch(&tree, commit, ends.to_dir, to_stub, now);
        let new = new.map(|new| (new.inode, new.kind));
        legs.push((position, Leg::ReplaceName { dir: ends.dir, name: ends.name.clone(), new }));
        return Ok(());
    }
    let same = ends.dir == ends.to_dir;
    let mut other = tree.stub(ends.dir)?;
    let from_stub = if same { &mut to_stub } else { &mut other };
    from_stub.directories -= directory(found.from.kind);
    from_stub.directories += new.map_or(0, |new| directory(new.kind));
    from_stub.entries -= u64::from(new.is_none());
    let key = tree.name_key(ends.dir, ends.name);
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

/// Updates the change times of what moves, and the parent of a directory that gets another one.
fn mark_moved(here: &Here, ends: &Ends, found: &Found, commit: &mut Commit, legs: &mut Legs) -> Stepped<()> {
    let back = found.to.filter(|_| found.exchange).map(|to| (to, ends.dir));
    let leaves = ends.dir != ends.to_dir && !is_planted(Bug::ParentNotUpdated);
    for (NameRecord { inode, kind }, parent) in [Some((found.from, ends.to_dir)), back].into_iter().flatten() {
        let is_child = kind == NodeKind::Directory && leaves;
        match (here.owns(inode.position()), is_child) {
            (true, true) => crate::transactions::legs::set_parent(&here.tree(), commit, inode, parent, here.now)?,
            (true, false) => crate::transactions::legs::mark_moved(&here.tree(), commit, inode, here.now)?,
            (false, true) => legs.push((inode.position(), Leg::SetParent { inode, parent })),
            (false, false) => legs.push((inode.position(), Leg::MarkMoved { inode })),
        }
    }
    Ok(())
}

fn drop_replaced(here: &Here, inode: InodeId, keep: bool, commit: &mut Commit, legs: &mut Legs) -> Stepped<()> {
    if here.owns(inode.position()) {
        return drop_link(&here.tree(), commit, inode, keep, here.now);
    }
    legs.push((inode.position(), Leg::DropLink { inode, keep }));
    Ok(())
}
