//! Directories whose names are in several partitions: their stubs are made, closed, dropped and changed together.
//!
//! A change of all stubs is prepared with a leg to each before the commit point, and done with a leg to each after it.
//! Between the two, ops that ask a stub for a name wait. So a crash leaves it done on all or undone on all.

use crate::ops::acl::Birth;
use crate::ops::read::stub_view;
use crate::ops::step::{Ask, Commit, Here, Stepped, Stop};
use crate::ops::tree::{Owner, Tree, new_directory, new_stub};
use hekate_proto::*;

/// The time of a stub in which nothing was changed yet: the directory's inode has its time.
pub const NEVER: Time = Time(i64::MIN);

type Legs = Vec<(Position, Leg)>;

/// How a directory that is to be removed was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// All of it is in this partition, and it is empty: one record removes it.
    Here,
    /// With a leg in each of this number of partitions.
    Everywhere(u32),
}

/// Makes a directory in all of its partitions. This partition's part is in the commit.
pub fn make(here: &mut Here, (id, parent): (InodeId, InodeId), owner: &Owner, commit: &mut Commit) -> Stepped<Attr> {
    let (ask, tree, now, spread) = (here.ask, here.tree(), here.now, here.ask.spread);
    if !is_spread(spread, ask.count) {
        return Err(
            Error::bug(format!("a directory with a spread of {spread} on a ring of {} partitions", ask.count)).into()
        );
    }
    let mut made = None;
    for (part, position) in name_positions(id, spread).enumerate() {
        if here.owns(position) && part == 0 {
            let (records, attr) = new_directory(ask, (id, parent), owner, spread, now);
            commit.changes.extend(records);
            made = Some(attr);
        } else if here.owns(position) {
            commit.put(tree.stub_key(id), &new_stub(owner, spread, NEVER));
        } else {
            let make = made_by(id, parent, owner, spread);
            let reply = here.leg(position, make, Some(Leg::UnmakeDirectory { inode: id }))?;
            if let Reply::Node { attr, .. } = reply {
                made = Some(attr);
            }
        }
    }
    made.ok_or_else(|| Error::bug("a leg that makes an inode answers with it").into())
}

fn made_by(inode: InodeId, parent: InodeId, owner: &Owner, spread: u32) -> Leg {
    let Owner { uid, gid, birth: Birth { mode, access, default }, implied } = owner.clone();
    Leg::MakeDirectory { inode, parent, mode, uid, gid, spread, access_acl: access, default_acl: default, implied }
}

/// Closes a directory that is to be removed, if it is empty. `implied`: only if it is implied.
pub fn close(here: &mut Here, inode: InodeId, implied: bool) -> Stepped<Closed> {
    let tree = here.tree();
    if here.owns(inode.position()) {
        if implied && !tree.inode(inode)?.implied {
            return Err(Error::NotEmpty.into());
        }
        let stub = tree.any_stub(inode)?;
        // A directory in several partitions may have been closed by this op itself, so that is no reason to wait.
        if stub.spread == 1 && !stub.alive {
            return Err(Stop::Wait);
        }
        match stub.entries {
            0 if stub.spread == 1 => return Ok(Closed::Here),
            0 => {}
            _ => return Err(Error::NotEmpty.into()),
        }
    }
    let undo = Some(Leg::ReopenDirectory { inode });
    let spread = match here.leg(inode.position(), Leg::CloseDirectory { inode, implied }, undo.clone())? {
        Reply::Stub { stub } => stub.spread,
        _ => return Err(Error::bug("a leg that closes a directory answers with its stub").into()),
    };
    for position in name_positions(inode, spread).skip(1) {
        here.leg(position, Leg::CloseDirectory { inode, implied }, undo.clone())?;
    }
    Ok(Closed::Everywhere(spread))
}

/// Removes a directory that was closed, in the commit or with legs after it.
pub fn drop_closed(here: &Here, inode: InodeId, closed: Closed, commit: &mut Commit, legs: &mut Legs) -> Stepped<()> {
    match closed {
        Closed::Here => crate::transactions::legs::drop_directory(&here.tree(), commit, inode),
        Closed::Everywhere(spread) => {
            let drop = |position| (position, Leg::DropDirectory { inode });
            legs.extend(name_positions(inode, spread).map(drop));
            Ok(())
        }
    }
}

/// Holds the stubs in other partitions, so that they change together with the inode.
pub fn hold(here: &mut Here, dir: InodeId, spread: u32) -> Stepped<()> {
    for position in name_positions(dir, spread).skip(1) {
        here.leg(position, Leg::HoldStub { dir }, Some(Leg::ReopenDirectory { inode: dir }))?;
    }
    Ok(())
}

/// The legs that set the stubs in other partitions and end the holds.
pub fn set(dir: InodeId, stub: &StubRecord, mtime: Option<Time>) -> Legs {
    let StubRecord { mode, uid, gid, spread, .. } = *stub;
    let set = |position| {
        let default_acl = stub.default_acl.clone();
        (position, Leg::SetStub { dir, mode, uid, gid, mtime, default_acl })
    };
    name_positions(dir, spread).skip(1).map(set).collect()
}

/// Executes a leg about a directory in one of its partitions.
pub fn take(tree: &Tree, ask: &Ask, commit: &mut Commit, leg: &Leg, now: Time) -> Stepped<Reply> {
    let (dir, stub) = match leg {
        Leg::MakeDirectory { inode, parent, mode, uid, gid, spread, access_acl, default_acl, implied } => {
            let birth = Birth { mode: *mode, access: access_acl.clone(), default: default_acl.clone() };
            let owner = Owner { uid: *uid, gid: *gid, birth, implied: *implied };
            if !tree.is_home(*inode) {
                commit.put(tree.stub_key(*inode), &new_stub(&owner, *spread, NEVER));
                return Ok(Reply::Done);
            }
            let (changes, attr) = new_directory(ask, (*inode, *parent), &owner, *spread, now);
            commit.changes.extend(changes);
            return Ok(Reply::Node { attr, created: true });
        }
        Leg::UnmakeDirectory { inode } | Leg::DropDirectory { inode } => {
            crate::transactions::legs::drop_directory(tree, commit, *inode)?;
            return Ok(Reply::Done);
        }
        Leg::CloseDirectory { inode: dir, implied } => {
            let stub = tree.stub(*dir)?;
            if stub.entries > 0 || *implied && tree.is_home(*dir) && !tree.inode(*dir)?.implied {
                return Err(Error::NotEmpty.into());
            }
            (*dir, StubRecord { alive: false, ..stub })
        }
        Leg::HoldStub { dir } => (*dir, StubRecord { alive: false, ..tree.stub(*dir)? }),
        Leg::ReopenDirectory { inode } => (*inode, StubRecord { alive: true, ..tree.any_stub(*inode)? }),
        Leg::SetStub { dir, mode, uid, gid, mtime, default_acl } => {
            let stub = tree.any_stub(*dir)?;
            let (mtime, change) = (mtime.unwrap_or(stub.mtime), stub.change + 1);
            let (mode, uid, gid, default_acl) = (*mode, *uid, *gid, default_acl.clone());
            (*dir, StubRecord { alive: true, mode, uid, gid, mtime, change, default_acl, ..stub })
        }
        _ => return Err(Error::bug("a leg that is about no directory").into()),
    };
    commit.put(tree.stub_key(dir), &stub);
    Ok(Reply::Stub { stub: stub_view(&stub) })
}
