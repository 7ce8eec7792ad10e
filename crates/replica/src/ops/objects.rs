//! Files as objects: put, removal under a condition, join, directories that keys need, and what a reader of an object
//! gets in one answer.
//!
//! A key's last segment can be that of a directory too. The object then has an alternate name beside the directory. So
//! each of these ops has two names: a directory's name gives way to the alternate one.

use crate::ops::dispatch::not_a_change;
use crate::ops::inodes::born_with;
use crate::ops::names::{Maker, add_name, node_of, remove_name, touch};
use crate::ops::read::node;
use crate::ops::step::{Commit, Here, Next, Stepped, Stop};
use crate::ops::stubs;
use crate::ops::tree::{Tree, attr_of, drop_link, new_inode};
use crate::{ops::acl, transactions::legs::add_link};
use bytes::Bytes;
use hekate_proto::*;

type Legs = Vec<(Position, Leg)>;

/// The next step of an op on an object.
pub fn step(here: &mut Here, op: &NameOp) -> Stepped<Next> {
    match op {
        NameOp::Put { dir, name, alternate, source, etag, condition, keep, seed } => {
            let at = choose(&here.tree(), (*dir, name), alternate.as_ref())?;
            put(here, *dir, &at, (source, etag, *seed), (condition, *keep))
        }
        NameOp::Remove { dir, name, alternate, condition, keep } => {
            let at = choose(&here.tree(), (*dir, name), alternate.as_ref())?;
            remove(here, *dir, &at, (condition, *keep))
        }
        NameOp::MakePrefix { dir, name, alternate, mode, uid, gid, seed } => {
            let maker = Maker { mode: *mode, umask: 0, uid: *uid, gid: *gid };
            make_prefix(here, *dir, (name, alternate), maker, *seed)
        }
        NameOp::Join { dir, parts, to, mode, uid, gid, etag, attributes, seed } => {
            let maker = Maker { mode: *mode, umask: 0, uid: *uid, gid: *gid };
            join(here, *dir, parts, (to, maker, etag, attributes, *seed))
        }
        _ => Err(not_a_change()),
    }
}

/// The name that an op is executed at, and what has it.
struct At<'a> {
    name: &'a Name,
    found: Option<NameRecord>,
    is_alternate: bool,
}

/// Chooses between a name and its alternate: the alternate one, if a directory has the name, or if only that exists.
fn choose<'a>(tree: &Tree, (dir, name): (InodeId, &'a Name), alternate: Option<&'a Name>) -> Stepped<At<'a>> {
    tree.stub_of(dir, name)?;
    let found = tree.name(dir, name)?;
    let plain = At { name, found, is_alternate: false };
    let is_directory = found.is_some_and(|found| found.kind == NodeKind::Directory);
    let Some(alternate) = alternate else {
        return if is_directory { Err(Error::IsDirectory.into()) } else { Ok(plain) };
    };
    if found.is_some() && !is_directory {
        return Ok(plain);
    }
    tree.stub_of(dir, alternate)?;
    let second = tree.name(dir, alternate)?;
    match second {
        Some(second) if second.kind == NodeKind::Directory => Err(Error::IsDirectory.into()),
        None if !is_directory => Ok(plain),
        found => Ok(At { name: alternate, found, is_alternate: true }),
    }
}

/// Checks the condition on what has the name. Only a file counts: other kinds of inodes are no objects.
fn check_condition(here: &mut Here, found: Option<NameRecord>, condition: &Condition) -> Stepped<()> {
    let file = found.filter(|found| found.kind == NodeKind::File);
    let holds = match (condition, file) {
        (Condition::Always, _) | (Condition::Absent, None) | (Condition::Exists, Some(_)) => true,
        (Condition::Matches { etag }, Some(found)) => *etag == etag_of(&attributes(here, found.inode)?),
        _ => false,
    };
    if holds { Ok(()) } else { Err(Error::ConditionFailed.into()) }
}

/// The inode's attributes, from its partition.
fn attributes(here: &mut Here, inode: InodeId) -> Stepped<Attr> {
    if here.owns(inode.position()) {
        return here.tree().attr(inode);
    }
    node_of(here.leg(inode.position(), Leg::Attributes { inode }, None)?)
}

fn put(
    here: &mut Here,
    dir: InodeId,
    at: &At,
    (source, etag, seed): (&PutSource, &Bytes, u32),
    (condition, keep): (&Condition, bool),
) -> Stepped<Next> {
    if let (PutSource::Inode { inode }, Some(found)) = (source, at.found)
        && found.inode == *inode
    {
        // The op has been executed before its client crashed.
        return Ok(Next::Reply(node(attributes(here, *inode)?)));
    }
    check_condition(here, at.found, condition)?;
    let (tree, now) = (here.tree(), here.now);
    let stub = tree.stub(dir)?;
    let mut commit = Commit::default();
    let attr = match source {
        PutSource::Bytes { content, mode, uid, gid, attributes } => {
            let maker = Maker { mode: *mode, umask: 0, uid: *uid, gid: *gid };
            new_object(here, (dir, &stub), maker, (content, etag, attributes), seed, &mut commit)?
        }
        PutSource::Inode { inode } => link_object(here, *inode, etag, &mut commit)?,
    };
    let mut legs = Legs::new();
    match at.found {
        None => add_name(&tree, &mut commit, (dir, stub), at.name, (attr.id, attr.kind), now),
        Some(old) => {
            commit.put(tree.name_key(dir, at.name), &NameRecord { inode: attr.id, kind: attr.kind });
            touch(&tree, &mut commit, dir, stub, now);
            drop_old(here, old.inode, keep, &mut commit, &mut legs)?;
        }
    }
    commit.reply = Some(Reply::Node { attr, created: at.found.is_none() });
    Ok(Next::Commit(commit, legs))
}

/// Makes a file with its content.
fn new_object(
    here: &mut Here,
    (dir, stub): (InodeId, &StubRecord),
    maker: Maker,
    (content, etag, attributes): (&Bytes, &Bytes, &[(Bytes, Bytes)]),
    seed: u32,
    commit: &mut Commit,
) -> Stepped<Attr> {
    if content.len() as u64 > INLINE_MAX {
        return Err(Error::invalid(format!("a put of over {INLINE_MAX} bytes; write a file and put its inode")).into());
    }
    let tree = here.tree();
    let owner = maker.owner(stub, NodeKind::File)?;
    let id = InodeId::new(tree.names_prefix(dir).position.0, seed, here.number(0));
    let mut inode = new_inode(NodeKind::File, owner.birth.mode, owner.uid, owner.gid, here.now);
    inode.has_xattrs = owner.birth.has_acl();
    inode.size = content.len() as u64;
    inode.size_high = inode.size;
    inode.etag = etag.clone();
    born_with(&tree, commit, (id, &mut inode), attributes)?;
    if !content.is_empty() {
        // The request's buffer is much longer than its content, and the overlay keeps what it is given.
        let value = Bytes::copy_from_slice(content);
        commit.changes.push(Change::Put { key: tree.key(id, Kind::Content), value });
    }
    commit.put(tree.key(id, Kind::Inode), &inode);
    commit.changes.extend(acl::born(here.ask, id, &owner.birth));
    Ok(attr_of(id, &inode, None))
}

/// Gives an existing file one more link, and its ETag.
fn link_object(here: &mut Here, id: InodeId, etag: &Bytes, commit: &mut Commit) -> Stepped<Attr> {
    if here.owns(id.position()) {
        let tree = here.tree();
        tree.file(id)?;
        return Ok(attr_of(id, &add_link(&tree, commit, id, Some(etag), here.now)?, None));
    }
    let link = Leg::AddObjectLink { inode: id, etag: etag.clone() };
    node_of(here.leg(id.position(), link, Some(Leg::TakeBackLink { inode: id }))?)
}

/// Drops the link of a file whose name is removed or leads to another one. `keep`: the session may have it open.
fn drop_old(here: &Here, inode: InodeId, keep: bool, commit: &mut Commit, legs: &mut Legs) -> Stepped<()> {
    let keep = keep || !here.ask.alone;
    if here.owns(inode.position()) {
        return drop_link(&here.tree(), commit, inode, keep, here.now);
    }
    legs.push((inode.position(), Leg::DropLink { inode, keep }));
    Ok(())
}

fn remove(here: &mut Here, dir: InodeId, at: &At, (condition, keep): (&Condition, bool)) -> Stepped<Next> {
    let Some(found) = at.found else { return Err(Error::NotFound.into()) };
    check_condition(here, at.found, condition)?;
    let tree = here.tree();
    let (mut commit, mut legs) = (Commit { reply: Some(Reply::Done), ..Commit::default() }, Legs::new());
    remove_name(&tree, &mut commit, (dir, tree.stub(dir)?), at.name, found.kind, here.now);
    drop_old(here, found.inode, keep, &mut commit, &mut legs)?;
    Ok(Next::Commit(commit, legs))
}

/// Makes a directory for keys. A file that has its name moves to the alternate name in the same record, so that its
/// key is never missing.
fn make_prefix(
    here: &mut Here,
    dir: InodeId,
    (name, alternate): (&Name, &Name),
    maker: Maker,
    seed: u64,
) -> Stepped<Next> {
    let tree = here.tree();
    let stub = tree.stub_of(dir, name)?;
    let found = tree.name(dir, name)?;
    let (mut commit, mut legs) = (Commit::default(), Legs::new());
    let id = InodeId::new((seed >> 32) as u32, seed as u32, here.number(0));
    let owner = maker.owner(&stub, NodeKind::Directory)?;
    let owner = here.one_owner(crate::ops::tree::Owner { implied: true, ..owner })?;
    match found.map(|found| found.kind) {
        None => {
            let attr = stubs::make(here, (id, dir), &owner, &mut commit)?;
            add_name(&tree, &mut commit, (dir, stub), name, (id, NodeKind::Directory), here.now);
            commit.reply = Some(Reply::Node { attr, created: true });
            return Ok(Next::record(commit));
        }
        Some(NodeKind::File) => {}
        Some(NodeKind::Directory) => return Err(Error::Exists.into()),
        Some(_) => return Err(Error::NotDirectory.into()),
    }
    tree.stub_of(dir, alternate)?;
    let hidden = tree.name(dir, alternate)?;
    if hidden.is_some_and(|hidden| hidden.kind == NodeKind::Directory) {
        return Err(Error::IsDirectory.into());
    }
    let attr = stubs::make(here, (id, dir), &owner, &mut commit)?;
    if let Some(found) = found {
        commit.put(tree.name_key(dir, alternate), &found);
    }
    commit.put(tree.name_key(dir, name), &NameRecord { inode: id, kind: NodeKind::Directory });
    let mut stub = tree.stub(dir)?;
    stub.entries += u64::from(hidden.is_none());
    stub.directories += 1;
    touch(&tree, &mut commit, dir, stub, here.now);
    // A file with both names was visible under the first one only, so the second one's content goes.
    if let Some(hidden) = hidden {
        drop_old(here, hidden.inode, true, &mut commit, &mut legs)?;
    }
    commit.reply = Some(Reply::Node { attr, created: true });
    Ok(Next::Commit(commit, legs))
}

/// Parts of a join at most: S3's limit for an upload.
const PARTS_MAX: usize = 10_000;

/// The new file of a join: name, owner, ETag, extended attributes, and random bits for its id.
type Joined<'a> = (&'a Name, Maker, &'a Bytes, &'a [(Bytes, Bytes)], u32);

fn join(
    here: &mut Here,
    dir: InodeId,
    parts: &[(Name, Bytes)],
    (to, maker, etag, attributes, seed): Joined,
) -> Stepped<Next> {
    let (tree, now) = (here.tree(), here.now);
    let mut stub = tree.stub_of(dir, to)?;
    if stub.spread > 1 {
        return Err(Error::invalid("the names of a directory in which files are joined are in one partition").into());
    }
    if parts.is_empty() || parts.len() > PARTS_MAX || !parts.is_sorted_by(|(a, _), (b, _)| a < b) {
        return Err(Error::invalid(format!("a join has 1 to {PARTS_MAX} parts, in the order of their names")).into());
    }
    if tree.name(dir, to)?.is_some() {
        return Err(Error::Exists.into());
    }
    let owner = maker.owner(&stub, NodeKind::File)?;
    let id = InodeId::new(tree.names_prefix(dir).position.0, seed, here.number(0));
    let mut joined = new_inode(NodeKind::File, owner.birth.mode, owner.uid, owner.gid, now);
    let (mut commit, mut pieces) = (Commit::default(), Vec::new());
    for (part, wanted) in parts {
        let found = tree.name(dir, part)?.ok_or(Error::NotFound)?;
        if !here.owns(found.inode.position()) {
            return Err(Error::invalid("a part of a join that was not made in its directory").into());
        }
        let inode = tree.file(found.inode)?;
        if !wanted.is_empty() && *wanted != etag_of(&attr_of(found.inode, &inode, None)) {
            return Err(Error::ConditionFailed.into());
        }
        if inode.nlink != 1 {
            return Err(Error::invalid("a part of a join that has several names").into());
        }
        if inode.layout.is_inline() {
            return Ok(Next::Reply(Reply::Elsewhere { inode: found.inode, kind: NodeKind::File }));
        }
        add_pieces(&mut pieces, &inode)?;
        joined.size =
            joined.size.checked_add(inode.size).filter(|size| *size <= FILE_BYTES_MAX).ok_or(Error::TooLarge)?;
        commit.delete(tree.name_key(dir, part));
        commit.delete(tree.key(found.inode, Kind::Inode));
        tree.delete_xattrs(&mut commit, found.inode, &inode)?;
        stub.entries -= 1;
    }
    // The file may grow behind its last piece.
    pieces.last_mut().into_iter().for_each(|last: &mut Piece| last.length = u64::MAX);
    joined.layout = Layout { version: here.new_layout_version(), pieces };
    (joined.size_high, joined.etag) = (joined.size, etag.clone());
    joined.has_xattrs = owner.birth.has_acl();
    born_with(&tree, &mut commit, (id, &mut joined), attributes)?;
    commit.put(tree.key(id, Kind::Inode), &joined);
    commit.changes.extend(acl::born(here.ask, id, &owner.birth));
    add_name(&tree, &mut commit, (dir, stub), to, (id, NodeKind::File), now);
    commit.reply = Some(Reply::Node { attr: attr_of(id, &joined, None), created: true });
    Ok(Next::record(commit))
}

/// Adds a part's pieces, the last one up to the part's end.
fn add_pieces(pieces: &mut Vec<Piece>, part: &InodeRecord) -> Stepped<()> {
    let mut left = part.size;
    for piece in &part.layout.pieces {
        let length = piece.length.min(left);
        left -= length;
        if length > 0 {
            pieces.push(Piece { data: piece.data, length });
        }
    }
    if left > 0 {
        return Err(Error::Damaged { what: "the pieces of a file end before the file".into() }.into());
    }
    Ok(())
}

/// What a reader of the object under a name gets.
pub fn fetch_name(
    tree: &Tree,
    name: (InodeId, &Name),
    alternate: Option<&Name>,
    attribute: &Bytes,
    content: bool,
) -> Stepped<Reply> {
    let at = match choose(tree, name, alternate) {
        // The caller has no alternate: it asks for the directory itself.
        Err(Stop::Error(Error::IsDirectory)) if alternate.is_none() => {
            At { name: name.1, found: tree.name(name.0, name.1)?, is_alternate: false }
        }
        chosen => chosen?,
    };
    let found = at.found.ok_or(Error::NotFound)?;
    if !tree.is_home(found.inode) {
        return Ok(Reply::Elsewhere { inode: found.inode, kind: found.kind });
    }
    fetch(tree, found.inode, attribute, content, at.is_alternate)
}

/// What a reader of an object gets.
pub fn fetch(tree: &Tree, id: InodeId, attribute: &Bytes, content: bool, alternate: bool) -> Stepped<Reply> {
    let attr = tree.attr(id)?;
    let value = if attr.has_xattrs { tree.xattr(id, attribute)? } else { None };
    let is_inline = attr.kind == NodeKind::File && attr.layout.is_inline();
    let content = (content && is_inline).then(|| inline_content(tree, &attr)).transpose()?;
    Ok(Reply::Fetched { object: Box::new(Fetched { attr, attribute: value, content, alternate }) })
}

/// The bytes beside the inode, with zeros up to its size.
fn inline_content(tree: &Tree, attr: &Attr) -> Stepped<Bytes> {
    let content = tree.content(attr.id)?;
    match content.len() as u64 {
        length if length == attr.size => Ok(content),
        length if length > attr.size => Ok(content.slice(..attr.size as usize)),
        _ => Ok(crate::ops::data::splice(&content, attr.size as usize, b"")),
    }
}
