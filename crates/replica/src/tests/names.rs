//! What makes and moves names, op by op: whose what is made is, and why something may not be.

use super::drive::{elsewhere, seed_of};
use super::*;

/// A directory with this mode, of group 7.
fn directory(ring: &mut TestRing, mode: u16) -> InodeId {
    let made = ring.execute(make_directory(ROOT, b"d", 1));
    let Ok(Reply::Node { attr: Attr { id: inode, .. }, .. }) = made else { panic!("{made:?}") };
    let changes = AttrChanges { mode: Some(mode), gid: Some(7), ..Default::default() };
    ring.execute(Op::Inode { op: InodeOp::SetAttr { inode, changes } }).unwrap();
    inode
}

/// By user and group 1.
fn create(ring: &mut TestRing, dir: InodeId, text: &[u8], node: NewNode, exclusive: bool) -> Result<Attr> {
    let (name, mode, umask) = (name(text), 0o777, 0o027);
    let made = NameOp::Create { dir, name, node, mode, uid: 1, gid: 1, umask, exclusive, seed: 1 };
    match ring.name_op(made)? {
        Reply::Node { attr, .. } => Ok(attr),
        other => panic!("{other:?}"),
    }
}

fn lookup(ring: &mut TestRing, dir: InodeId, text: &[u8]) -> Result<InodeId> {
    match ring.read(Op::Name { op: NameOp::Lookup { dir, name: name(text) } })? {
        Reply::Node { attr: Attr { id, .. }, .. } | Reply::Elsewhere { inode: id, .. } => Ok(id),
        other => panic!("{other:?}"),
    }
}

/// inode(7): people who share a directory by its group read each other's files.
#[test]
fn what_is_made_in_a_directory_with_set_group_id_has_its_group() {
    let mut ring = open(&storages());
    let target = Bytes::from_static(b"x");
    for (mode, gid, directory_mode) in [(0o755, 1, 0o750), (0o2755, 7, 0o2750)] {
        let dir = directory(&mut ring, mode);
        let mut made = |text: &[u8], node| {
            let attr = create(&mut ring, dir, text, node, true).unwrap();
            (attr.mode, attr.gid)
        };
        assert_eq!(made(b"f", NewNode::File), (0o750, gid));
        assert_eq!(made(b"d", NewNode::Directory), (directory_mode, gid));
        assert_eq!(made(b"l", NewNode::Symlink { target: target.clone() }), (0o777, gid), "no umask");
        for text in [b"f", b"l"] {
            ring.name_op(NameOp::Unlink { dir, name: name(text), open_here: None }).unwrap();
        }
        ring.name_op(NameOp::Rmdir { dir, name: name(b"d") }).unwrap();
        ring.name_op(NameOp::Rmdir { dir: ROOT, name: name(b"d") }).unwrap();
    }
}

/// open(2) without O_EXCL, symlink(2).
#[test]
fn what_may_not_be_made_says_why() {
    let mut ring = open(&storages());
    let dir = directory(&mut ring, 0o755);
    let file = create(&mut ring, dir, b"f", NewNode::File, true).unwrap();
    create(&mut ring, dir, b"d", NewNode::Directory, true).unwrap();
    assert_eq!(create(&mut ring, dir, b"f", NewNode::File, true), Err(Error::Exists));
    assert_eq!(create(&mut ring, dir, b"f", NewNode::File, false).map(|attr| attr.id), Ok(file.id));
    assert_eq!(create(&mut ring, dir, b"d", NewNode::File, false), Err(Error::IsDirectory));
    let link = |bytes| NewNode::Symlink { target: vec![b'x'; bytes].into() };
    assert_eq!(create(&mut ring, dir, b"l", link(0), true), Err(Error::NameTooLong));
    assert_eq!(create(&mut ring, dir, b"l", link(4096), true), Err(Error::NameTooLong));
    assert_eq!(create(&mut ring, dir, b"l", link(4095), true).map(|attr| attr.size), Ok(4095));
    assert_eq!(create(&mut ring, dir, b"k", link(1), true).map(|attr| attr.size), Ok(1));
    let unlink = NameOp::Unlink { dir, name: name(b"d"), open_here: None };
    assert_eq!(ring.name_op(unlink), Err(Error::IsDirectory));
    assert_eq!(ring.name_op(NameOp::Rmdir { dir, name: name(b"f") }), Err(Error::NotDirectory));
}

/// open(2) with O_TMPFILE: whoever made it may write it first and show it then.
#[test]
fn a_file_without_a_name_is_given_one_if_it_may() {
    let mut ring = open(&storages());
    for (text, linkable) in [(b"f", true), (b"g", false)] {
        let made = NameOp::CreateUnnamed { dir: ROOT, mode: 0o600, uid: 1, gid: 1, umask: 0, linkable, seed: 1 };
        let Ok(Reply::Node { attr, .. }) = ring.name_op(made) else { panic!("no file") };
        assert_eq!(attr.nlink, 0);
        let linked = ring.name_op(NameOp::Link { dir: ROOT, name: name(text), inode: attr.id });
        match linked {
            Ok(Reply::Node { attr, .. }) if linkable => assert_eq!(attr.nlink, 1),
            other => assert!(!linkable && other == Err(Error::NotFound), "{other:?}"),
        }
        let at = ring.leader(attr.id.position());
        ring.tell(at, Event::Collect { volume: VOLUME, inode: attr.id });
        let shown = ring.read(Op::Inode { op: InodeOp::GetAttr { inode: attr.id } });
        assert_eq!(shown.is_ok(), linkable, "it goes with who has it open, unless it has a name by then");
    }
    ring.rest();
    ring.check();
}

/// rename(2): it says why, and all is where it was.
#[test]
fn what_may_not_be_renamed_says_why_and_stays() {
    use RenameMode::*;
    for far in [false, true] {
        let mut ring = open(&storages());
        let there = elsewhere(&ring, ring.leader(ROOT.position()));
        let seed = if far { seed_of(there.partition) } else { 0 };
        let mut make = |dir, text: &[u8]| {
            let made = ring.execute(make_directory(dir, text, seed));
            let Ok(Reply::Node { attr: Attr { id, .. }, .. }) = made else { panic!("{made:?}") };
            id
        };
        let a = make(ROOT, b"a");
        let b = make(a, b"b");
        let c = make(b, b"c");
        make(ROOT, b"e");
        create(&mut ring, ROOT, b"f", NewNode::File, true).unwrap();
        create(&mut ring, a, b"g", NewNode::File, true).unwrap();
        let inode = lookup(&mut ring, ROOT, b"f").unwrap();
        ring.name_op(NameOp::Link { dir: a, name: name(b"h"), inode }).unwrap();
        let all = [
            ((ROOT, b"a"), (a, b"x"), Replace, Err(Error::Loop)),
            ((ROOT, b"a"), (c, b"x"), Replace, Err(Error::Loop)),
            ((ROOT, b"a"), (b, b"c"), Exchange, Err(Error::Loop)),
            ((b, b"c"), (ROOT, b"a"), Exchange, Err(Error::Loop)),
            ((b, b"c"), (ROOT, b"a"), Replace, Err(Error::NotEmpty)),
            ((ROOT, b"f"), (a, b"b"), Replace, Err(Error::IsDirectory)),
            ((ROOT, b"e"), (a, b"g"), Replace, Err(Error::NotDirectory)),
            ((ROOT, b"f"), (a, b"g"), NoReplace, Err(Error::Exists)),
            ((ROOT, b"f"), (a, b"x"), Exchange, Err(Error::NotFound)),
            ((ROOT, b"x"), (a, b"g"), Replace, Err(Error::NotFound)),
            ((ROOT, b"f"), (a, b"h"), Replace, Ok(Reply::Done)),
        ];
        for ((dir, from), (to_dir, to), mode, expected) in all {
            let ends = [(dir, from), (to_dir, to)];
            let before = ends.map(|(dir, text)| lookup(&mut ring, dir, text));
            let (name, to_name, open_here) = (name(from), name(to), None);
            let renamed = ring.name_op(NameOp::Rename { dir, name, to_dir, to_name, mode, open_here });
            assert_eq!(renamed, expected, "{far}: {from:?} to {to:?}");
            assert_eq!(ends.map(|(dir, text)| lookup(&mut ring, dir, text)), before, "{from:?} to {to:?}");
        }
        ring.rest();
        ring.check();
    }
}

/// A file that is replaced goes; one that is only exchanged stays, and so does a directory.
#[test]
fn what_a_rename_replaces_goes_and_what_it_exchanges_stays() {
    for far in [false, true] {
        let mut ring = open(&storages());
        let there = elsewhere(&ring, ring.leader(ROOT.position()));
        let made = ring.execute(make_directory(ROOT, b"a", if far { seed_of(there.partition) } else { 0 }));
        let Ok(Reply::Node { attr: Attr { id: a, .. }, .. }) = made else { panic!("{made:?}") };
        for (dir, text) in [(ROOT, b"f"), (a, b"g")] {
            create(&mut ring, dir, text, NewNode::File, true).unwrap();
        }
        for (dir, text) in [(ROOT, b"d"), (a, b"e")] {
            ring.execute(make_directory(dir, text, seed_of(there.partition))).unwrap();
        }
        for (from, to, mode) in [
            (b"f", b"g", RenameMode::Exchange),
            (b"d", b"e", RenameMode::Exchange),
            (b"f", b"e", RenameMode::Exchange),
            (b"d", b"g", RenameMode::Exchange),
            (b"f", b"g", RenameMode::Replace),
            (b"d", b"e", RenameMode::Replace),
        ] {
            let before = (lookup(&mut ring, ROOT, from), lookup(&mut ring, a, to));
            let (dir, name, to_dir, to_name, open_here) = (ROOT, name(from), a, name(to), None);
            ring.name_op(NameOp::Rename { dir, name, to_dir, to_name, mode, open_here }).unwrap();
            let after = (lookup(&mut ring, ROOT, from), lookup(&mut ring, a, to));
            let left = if mode == RenameMode::Exchange { before.1 } else { Err(Error::NotFound) };
            assert_eq!(after, (left, before.0), "{from:?} to {to:?}");
            ring.rest();
            ring.check();
        }
    }
}
