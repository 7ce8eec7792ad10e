//! Attributes of an inode: owners, extended attributes, ACLs, and the count of its changes.

use super::names::acl;
use super::*;

const NOBODY: u32 = !0;

fn set_xattr(ring: &mut TestRing, inode: InodeId, name: Bytes, value: Bytes) -> Result<Reply> {
    let (create, replace, drop_set_group) = (false, false, false);
    ring.execute(Op::Inode { op: InodeOp::SetXattr { inode, name, value, create, replace, drop_set_group } })
}

fn get_xattr(ring: &mut TestRing, inode: InodeId, name: &'static [u8]) -> Result<Reply> {
    ring.read(Op::Inode { op: InodeOp::GetXattr { inode, name: Bytes::from_static(name) } })
}

fn set(ring: &mut TestRing, inode: InodeId, changes: AttrChanges) {
    ring.execute(Op::Inode { op: InodeOp::SetAttr { inode, changes } }).unwrap();
}

fn attr(ring: &mut TestRing, inode: InodeId) -> Attr {
    let got = ring.read(Op::Inode { op: InodeOp::GetAttr { inode } });
    let Ok(Reply::Node { attr, .. }) = got else { panic!("{got:?}") };
    attr
}

/// Clients that cache what they read rely on the count, as NFS does.
#[test]
fn each_change_of_a_file_is_counted() {
    let mut ring = open(&storages());
    let inode = create_file(&mut ring).id;
    let named = acl(&[(0x01, 7, NOBODY), (0x02, 7, 5), (0x04, 5, NOBODY), (0x10, 7, NOBODY), (0x20, 0, NOBODY)]);
    let (create, replace, drop_set_group) = (false, false, false);
    let sets = |name: &'static [u8], value| {
        let name = Bytes::from_static(name);
        Op::Inode { op: InodeOp::SetXattr { inode, name, value, create, replace, drop_set_group } }
    };
    let write = DataOp::Write { inode, offset: 0, data: Bytes::from_static(b"x"), drop_set_id: false };
    let ops = [Op::Data { op: write }, sets(b"user.a", Bytes::from_static(b"x")), sets(crate::ops::acl::ACCESS, named)];
    for op in ops {
        let before = attr(&mut ring, inode).change;
        ring.execute(op.clone()).unwrap();
        assert_eq!(attr(&mut ring, inode).change, before + 1, "{op:?}");
    }
}

/// capabilities(7): a program that gets another owner loses its capabilities.
#[test]
fn file_capabilities_go_with_the_owner_and_stay_with_mode_and_times() {
    let mut ring = open(&storages());
    let inode = create_file(&mut ring).id;
    let none = AttrChanges::default();
    let cases = [
        (AttrChanges { mode: Some(0o755), ..none.clone() }, true),
        (AttrChanges { mtime: Some(SetTime::Now), ..none.clone() }, true),
        (AttrChanges { uid: Some(7), ..none.clone() }, false),
        (AttrChanges { gid: Some(7), ..none }, false),
    ];
    for (changes, stays) in cases {
        let name = b"security.capability";
        set_xattr(&mut ring, inode, Bytes::from_static(name), Bytes::from_static(b"all")).unwrap();
        set(&mut ring, inode, changes.clone());
        let got = get_xattr(&mut ring, inode, name);
        assert_eq!(got.is_ok(), stays, "{changes:?}: {got:?}");
    }
}

#[test]
fn the_name_of_an_extended_attribute_has_up_to_255_bytes() {
    let mut ring = open(&storages());
    let inode = create_file(&mut ring).id;
    let mut sets = |bytes| set_xattr(&mut ring, inode, vec![b'a'; bytes].into(), Bytes::from_static(b"x"));
    assert_eq!(sets(255), Ok(Reply::Done));
    assert!(matches!(sets(256), Err(Error::Invalid { .. })));
}

/// acl(5): a default ACL that a mode could express is inherited too, and is removed with its directory.
#[test]
fn a_directory_has_the_default_acl_of_its_parent_and_takes_it_along() {
    let mut ring = open(&storages());
    let made = |ring: &mut TestRing, dir, text: &[u8]| {
        let made = ring.execute(make_directory(dir, text, 1));
        let Ok(Reply::Node { attr: Attr { id, .. }, .. }) = made else { panic!("{made:?}") };
        id
    };
    let parent = made(&mut ring, ROOT, b"p");
    let minimal = acl(&[(0x01, 7, NOBODY), (0x04, 5, NOBODY), (0x20, 5, NOBODY)]);
    set_xattr(&mut ring, parent, Bytes::from_static(crate::ops::acl::DEFAULT), minimal.clone()).unwrap();
    let dir = made(&mut ring, parent, b"d");
    assert_eq!(get_xattr(&mut ring, dir, crate::ops::acl::DEFAULT), Ok(Reply::Bytes { bytes: minimal }));
    ring.name_op(NameOp::Rmdir { dir: parent, name: name(b"d") }).unwrap();
    ring.rest();
    let key = Key::xattr(RING, VOLUME, dir, crate::ops::acl::DEFAULT);
    assert!(!ring.entries().iter().any(|(known, _)| *known == key));
}

/// The kernel asks for it when the caller that sets the ACL is not in the file's group.
#[test]
fn set_group_id_goes_with_an_acl_and_no_other_bit() {
    let mut ring = open(&storages());
    let inode = create_file(&mut ring).id;
    let value = acl(&[(0x01, 7, NOBODY), (0x02, 6, 5), (0x04, 5, NOBODY), (0x10, 7, NOBODY), (0x20, 0, NOBODY)]);
    for (drop_set_group, mode) in [(false, 0o2770), (true, 0o770)] {
        set(&mut ring, inode, AttrChanges { mode: Some(0o2755), ..Default::default() });
        let (name, value, create, replace) = (Bytes::from_static(crate::ops::acl::ACCESS), value.clone(), false, false);
        let op = InodeOp::SetXattr { inode, name, value, create, replace, drop_set_group };
        assert_eq!(ring.execute(Op::Inode { op }), Ok(Reply::Done));
        assert_eq!(attr(&mut ring, inode).mode, mode);
    }
}
