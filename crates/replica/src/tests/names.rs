//! Ops that make and move names: owners of new inodes, and errors.

use super::drive::{begin, elsewhere, seed_of};
use super::*;

/// A directory with this mode, of group 7.
fn directory(ring: &mut TestRing, mode: u16) -> InodeId {
    let made = ring.execute(make_directory(ROOT, b"d", 1));
    let Ok(Reply::Node { attr: Attr { id: inode, .. }, .. }) = made else { panic!("{made:?}") };
    let changes = AttrChanges { mode: Some(mode), gid: Some(7), ..Default::default() };
    ring.execute(Op::Inode { op: InodeOp::SetAttr { inode, changes } }).unwrap();
    inode
}

/// Creates as user and group 1.
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

/// inode(7): users that share a directory through its group can read each other's files.
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

/// open(2) with O_TMPFILE: a program may write the file first and give it a name afterwards.
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
        assert_eq!(shown.is_ok(), linkable, "it is removed once no session has it open, unless it has a name");
    }
    ring.rest();
    ring.check();
}

/// The kernel answers ENOENT for a removed directory that a process has open, and ENOTDIR for what is no directory.
#[test]
fn nothing_is_found_in_a_directory_that_is_gone() {
    for far in [false, true] {
        let mut ring = open(&storages());
        let there = elsewhere(&ring, ring.leader(ROOT.position()));
        let seed = if far { seed_of(there.partition) } else { 0 };
        let mut make = |dir, text: &[u8]| {
            let made = ring.execute(make_directory(dir, text, seed));
            let Ok(Reply::Node { attr: Attr { id, .. }, .. }) = made else { panic!("{made:?}") };
            id
        };
        let (gone, kept) = (make(ROOT, b"d"), make(ROOT, b"e"));
        let file = create(&mut ring, ROOT, b"f", NewNode::File, true).unwrap().id;
        ring.name_op(NameOp::Rmdir { dir: ROOT, name: name(b"d") }).unwrap();
        ring.rest();
        let list = |dir| Op::Name { op: NameOp::List { dir, after: None, limit: 10, attributes: true, touch: false } };
        assert_eq!(ring.read(list(gone)), Err(Error::NotFound));
        assert_eq!(ring.read(list(file)), Err(Error::NotDirectory));
        assert_eq!(lookup(&mut ring, gone, b"x"), Err(Error::NotFound));
        assert_eq!(create(&mut ring, gone, b"x", NewNode::File, true), Err(Error::NotFound));
        assert_eq!(ring.execute(make_directory(gone, b"x", seed)), Err(Error::NotFound));
        let link = NameOp::Link { dir: gone, name: name(b"x"), inode: file };
        assert_eq!(ring.name_op(link), Err(Error::NotFound));
        for (dir, from, to_dir) in [(ROOT, b"f", gone), (ROOT, b"e", gone), (gone, b"x", kept), (gone, b"x", ROOT)] {
            let (from, to, mode) = (name(from), name(b"y"), RenameMode::Replace);
            let rename = NameOp::Rename { dir, name: from, to_dir, to_name: to, mode, open_here: None };
            assert_eq!(ring.name_op(rename), Err(Error::NotFound), "{far}: {dir:?} to {to_dir:?}");
        }
        ring.rest();
        ring.check();
    }
}

/// rename(2): the error gives the reason, and nothing has moved.
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

/// ext4 does so for RENAME_WHITEOUT (renameat2(2)): the old name leads to the file or to the whiteout at all times.
#[test]
fn a_rename_leaves_a_whiteout_in_one_step() {
    for far in [false, true] {
        let mut ring = open(&storages());
        let there = elsewhere(&ring, ring.leader(ROOT.position()));
        let made = ring.execute(make_directory(ROOT, b"a", if far { seed_of(there.partition) } else { 0 }));
        let Ok(Reply::Node { attr: Attr { id: a, .. }, .. }) = made else { panic!("{made:?}") };
        let mut file = |dir, text: &[u8]| create(&mut ring, dir, text, NewNode::File, true).unwrap().id;
        let (moved, kept) = (file(ROOT, b"f"), file(a, b"g"));
        let whiteout = |replace| RenameMode::Whiteout { replace, uid: 3, gid: 4, seed: 9 };
        let rename = |ring: &mut TestRing, mode| {
            let (name, to_name, open_here) = (name(b"f"), name(b"g"), None);
            ring.name_op(NameOp::Rename { dir: ROOT, name, to_dir: a, to_name, mode, open_here })
        };
        assert_eq!(rename(&mut ring, whiteout(false)), Err(Error::Exists));
        assert_eq!((lookup(&mut ring, ROOT, b"f"), lookup(&mut ring, a, b"g")), (Ok(moved), Ok(kept)));
        let Ok(Reply::Node { attr, created: true }) = rename(&mut ring, whiteout(true)) else { panic!("no whiteout") };
        let Attr { kind, mode, device, uid, gid, .. } = attr;
        assert_eq!((kind, mode, device, uid, gid), (NodeKind::CharDevice, 0, 0, 3, 4));
        ring.rest();
        assert_eq!((lookup(&mut ring, ROOT, b"f"), lookup(&mut ring, a, b"g")), (Ok(attr.id), Ok(moved)));
        assert_eq!(ring.read(Op::Inode { op: InodeOp::GetAttr { inode: kept } }), Err(Error::Stale));
        ring.name_op(NameOp::Unlink { dir: ROOT, name: name(b"f"), open_here: None }).unwrap();
        ring.rest();
        assert_eq!(ring.read(Op::Inode { op: InodeOp::GetAttr { inode: attr.id } }), Err(Error::Stale));
        ring.check();
    }
}

/// A replaced file is removed. An exchanged file or directory stays.
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

/// A session that has the file open can read on.
#[test]
fn a_file_that_is_open_outlives_the_rename_that_replaces_it() {
    for far in [false, true] {
        let mut ring = open(&storages());
        let there = elsewhere(&ring, ring.leader(ROOT.position()));
        let made = ring.execute(make_directory(ROOT, b"a", if far { seed_of(there.partition) } else { 0 }));
        let Ok(Reply::Node { attr: Attr { id: a, .. }, .. }) = made else { panic!("{made:?}") };
        for is_open in [true, false] {
            create(&mut ring, ROOT, b"f", NewNode::File, true).unwrap();
            let replaced = create(&mut ring, a, b"g", NewNode::File, true).unwrap().id;
            let (mode, open_here) = (RenameMode::Replace, is_open.then_some(replaced));
            let (dir, name_, to_dir, to_name) = (ROOT, name(b"f"), a, name(b"g"));
            ring.name_op(NameOp::Rename { dir, name: name_, to_dir, to_name, mode, open_here }).unwrap();
            ring.rest();
            let shown = ring.read(Op::Inode { op: InodeOp::GetAttr { inode: replaced } });
            assert_eq!(shown.is_ok(), is_open, "{far}: {shown:?}");
            ring.tell(ring.leader(replaced.position()), Event::Collect { volume: VOLUME, inode: replaced });
            ring.name_op(NameOp::Unlink { dir: a, name: name(b"g"), open_here: None }).unwrap();
            ring.rest();
            ring.check();
        }
    }
}

/// The new name's partition does not know where the old name is, and asks the directory's own partition.
#[test]
fn a_name_is_renamed_out_of_a_directory_that_several_partitions_share() {
    let mut ring = open(&storages());
    let there = elsewhere(&ring, ring.leader(ROOT.position()));
    ring.spread = 2;
    let made = ring.execute(make_directory(ROOT, b"d", seed_of(there.partition)));
    let Ok(Reply::Node { attr: Attr { id: dir, .. }, .. }) = made else { panic!("{made:?}") };
    ring.spreads.insert(dir, 2);
    let position = |text: &[u8]| name_position(dir, &name(text), 2).partition(COUNT);
    let home = dir.position().partition(COUNT);
    let names: Vec<[u8; 1]> = (b'a'..=b'z').map(|letter| [letter]).collect();
    for text in [names.iter().find(|text| position(*text) != home), names.iter().find(|text| position(*text) == home)] {
        let text = text.unwrap();
        assert_ne!(position(text), ROOT.position().partition(COUNT));
        let file = create(&mut ring, dir, text, NewNode::File, true).unwrap();
        let (mode, open_here) = (RenameMode::Replace, None);
        let (from, to_dir, to_name) = (name(text), ROOT, name(b"f"));
        let renamed = ring.name_op(NameOp::Rename { dir, name: from, to_dir, to_name, mode, open_here });
        assert_eq!(renamed, Ok(Reply::Done));
        assert_eq!(lookup(&mut ring, ROOT, b"f"), Ok(file.id));
        assert_eq!(lookup(&mut ring, dir, text), Err(Error::NotFound));
    }
    ring.rest();
    ring.check();
}

/// acl(5): without it only the owner and the group have access.
#[test]
fn what_is_made_in_a_directory_with_a_default_acl_has_it() {
    for spread in [1, 8] {
        let mut ring = open(&storages());
        ring.spread = spread;
        let dir = directory(&mut ring, 0o755);
        ring.spreads.insert(dir, spread);
        makes_with_default_acl(&mut ring, dir);
    }
}

/// Entries of tag, permissions and id, as the kernel passes them.
pub(super) fn acl(entries: &[(u16, u16, u32)]) -> Bytes {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value.into()
}

fn makes_with_default_acl(ring: &mut TestRing, dir: InodeId) {
    let value = acl(&[(0x01, 7, !0), (0x02, 7, 5), (0x04, 5, !0), (0x10, 7, !0), (0x20, 0, !0)]);
    let name_ = Bytes::from_static(crate::ops::acl::DEFAULT);
    let (inode, create_, replace, drop_set_group) = (dir, false, false, false);
    let op = InodeOp::SetXattr { inode, name: name_, value, create: create_, replace, drop_set_group };
    ring.execute(Op::Inode { op }).unwrap();
    let named = create(ring, dir, b"f", NewNode::File, true).unwrap();
    let below = create(ring, dir, b"d", NewNode::Directory, true).unwrap();
    let unnamed = NameOp::CreateUnnamed { dir, mode: 0o660, uid: 1, gid: 1, umask: 0, linkable: true, seed: 1 };
    let Ok(Reply::Node { attr: unnamed, .. }) = ring.name_op(unnamed) else { panic!("no file") };
    let others = (b'g'..=b'z').map(|letter| create(ring, dir, &[letter], NewNode::File, true).unwrap());
    let made: Vec<Attr> = others.collect();
    for attr in made.into_iter().chain([named, below, unnamed]) {
        assert!(attr.has_xattrs, "{attr:?}");
        let op = InodeOp::GetXattr { inode: attr.id, name: Bytes::from_static(crate::ops::acl::ACCESS) };
        let Ok(Reply::Bytes { bytes }) = ring.read(Op::Inode { op }) else { panic!("no ACL of {attr:?}") };
        assert!(bytes.windows(4).any(|id| id == 5u32.to_le_bytes()), "{bytes:?}");
    }
}

/// Each is moved into the other at the same time: no path would lead to them.
#[test]
fn two_directories_are_not_moved_into_each_other() {
    let mut ring = open(&storages());
    let there = elsewhere(&ring, ring.leader(ROOT.position()));
    let mut make = |text: &[u8], partition| {
        let made = ring.execute(make_directory(ROOT, text, seed_of(partition)));
        let Ok(Reply::Node { attr: Attr { id, .. }, .. }) = made else { panic!("{made:?}") };
        id
    };
    let (a, b) = (make(b"a", there.partition), make(b"b", PartitionNumber(there.partition.0 + 1)));
    ring.rest();
    let rename = |text: &[u8], to_dir| {
        let (dir, mode, open_here) = (ROOT, RenameMode::Replace, None);
        Op::Name { op: NameOp::Rename { dir, name: name(text), to_dir, to_name: name(text), mode, open_here } }
    };
    begin(&mut ring, 1, rename(b"a", b));
    begin(&mut ring, 2, rename(b"b", a));
    (0..100).for_each(|_| ring.tick());
    let answers: Vec<_> = [1, 2].map(|token| ring.answers[&Token(token)].clone()).into();
    assert!(answers.contains(&Ok(Reply::Done)) && answers.contains(&Err(Error::Loop)), "{answers:?}");
    ring.rest();
    ring.check();
}

/// chown(2) and utimensat(2), after names were made in all of the directory's partitions.
#[test]
fn a_directory_that_several_partitions_share_is_changed_in_all_of_them() {
    let mut ring = open(&storages());
    ring.spread = 8;
    let made = ring.execute(make_directory(ROOT, b"d", 1));
    let Ok(Reply::Node { attr: Attr { id: dir, .. }, .. }) = made else { panic!("{made:?}") };
    ring.spreads.insert(dir, 8);
    (b'a'..=b'z').for_each(|letter| drop(create(&mut ring, dir, &[letter], NewNode::File, true).unwrap()));
    ring.rest();
    let stubs = |ring: &mut TestRing| -> Vec<(Time, u64)> {
        let stub = |position| {
            let op = Op::Name { op: NameOp::Stub { dir, spread: 8 } };
            match ring.read_at(ring.leader(position), op) {
                Ok(Reply::Stub { stub }) => (stub.mtime, stub.change),
                other => panic!("{other:?}"),
            }
        };
        name_positions(dir, 8).map(stub).collect()
    };
    let before = stubs(&mut ring);
    let (uid, mtime) = (Some(9), Some(SetTime::At { time: Time(7) }));
    let changes = AttrChanges { uid, mtime, ..Default::default() };
    ring.execute(Op::Inode { op: InodeOp::SetAttr { inode: dir, changes } }).unwrap();
    ring.rest();
    ring.check();
    let after = stubs(&mut ring);
    assert!(after.iter().all(|stub| stub.0 == Time(7)), "{before:?} {after:?}");
    // In the directory's own partition the inode has the change counter, not the stub.
    assert!(before.iter().zip(&after).skip(1).all(|(before, after)| after.1 > before.1), "{before:?} {after:?}");
    let none = AttrChanges::default();
    let mode = AttrChanges { mode: Some(0o700), ..none.clone() };
    let (uid, gid) = (AttrChanges { uid: Some(10), ..none.clone() }, AttrChanges { gid: Some(5), ..none.clone() });
    for changes in [mode, uid, gid, AttrChanges { mtime: Some(SetTime::At { time: Time(8) }), ..none }] {
        let before = stubs(&mut ring);
        ring.execute(Op::Inode { op: InodeOp::SetAttr { inode: dir, changes: changes.clone() } }).unwrap();
        ring.rest();
        let after = stubs(&mut ring);
        assert!(before.iter().zip(&after).skip(1).all(|(before, after)| after.1 > before.1), "{changes:?} alone");
    }
}
