//! Edge cases of reads: pages of a listing, the end of a small file, the new root.

use super::drive::seed_of;
use super::*;

fn made(ring: &mut TestRing, dir: InodeId, text: &[u8]) -> InodeId {
    let Ok(Reply::Node { attr, .. }) = ring.execute(make_directory(dir, text, 0)) else { panic!("not made") };
    attr.id
}

#[test]
fn a_listing_ends_with_its_last_page_and_no_earlier() {
    let mut ring = open(&storages());
    for text in [b"a", b"b", b"c", b"d", b"e"] {
        made(&mut ring, ROOT, text);
    }
    let (mut after, mut pages, mut names) = (None, Vec::new(), 0);
    loop {
        let op = NameOp::List { dir: ROOT, after: after.clone(), limit: 2, attributes: true, touch: false };
        let Ok(Reply::List { entries, end }) = ring.read(Op::Name { op }) else { panic!("not listed") };
        pages.push((entries.len(), end));
        names += entries.len();
        after = entries.last().map(|entry| entry.name.clone()).or(after);
        if end || pages.len() > 5 {
            break;
        }
    }
    assert_eq!((names, pages), (5, vec![(2, false), (2, false), (1, true)]));
}

#[test]
fn a_small_file_is_read_up_to_its_end_and_what_was_never_written_is_zeros() {
    let mut ring = open(&storages());
    let inode = create_file(&mut ring).id;
    let write = DataOp::Write { inode, offset: 0, data: Bytes::from_static(b"0123456789"), drop_set_id: false };
    ring.execute(Op::Data { op: write }).unwrap();
    let longer = InodeOp::SetAttr { inode, changes: AttrChanges { size: Some(14), ..Default::default() } };
    ring.execute(Op::Inode { op: longer }).unwrap();
    let mut read = |offset, length| {
        let op = DataOp::Read { inode, offset, length, touch: false };
        let Ok(Reply::FileData { bytes, .. }) = ring.read(Op::Data { op }) else { panic!("not read") };
        bytes
    };
    assert_eq!(&read(3, 4)[..], b"3456");
    assert_eq!(&read(8, 100)[..], b"89\0\0\0\0");
    assert_eq!(&read(12, 1)[..], b"\0");
    assert_eq!(&read(14, 1)[..], b"");
}

#[test]
fn a_new_root_lets_everybody_in() {
    let ask = open(&storages()).ask();
    let root = root_directory(&ask, 1000, 100).into_iter().find_map(|change| match change {
        Change::Put { key, value } if key.kind() == Some(Kind::Inode) => InodeRecord::from_bytes(value).ok(),
        _ => None,
    });
    let root = root.map(|root| (root.mode, root.uid, root.gid));
    assert_eq!(root, Some((0o755, 1000, 100)));
}

/// Two files of one data id would share their bytes.
#[test]
fn files_that_grow_out_of_their_inodes_keep_their_own_bytes() {
    let mut ring = open(&storages());
    let mut places = Vec::new();
    for text in [b"f", b"g"] {
        let (name, node, mode) = (name(text), NewNode::File, 0o644);
        let op = NameOp::Create { dir: ROOT, name, node, mode, uid: 1, gid: 1, umask: 0, exclusive: true, seed: 7 };
        let Ok(Reply::Node { attr: Attr { id: inode, .. }, .. }) = ring.name_op(op) else { panic!("not made") };
        let data = Bytes::from_static(text);
        ring.execute(Op::Data { op: DataOp::Write { inode, offset: 0, data, drop_set_id: false } }).unwrap();
        let spilt = ring.execute(Op::Data { op: DataOp::Spill { inode } });
        let Ok(Reply::Node { attr, .. }) = spilt else { panic!("{spilt:?}") };
        places.push((attr.layout.pieces[0].data, text));
    }
    for (data, text) in places {
        let op = DataOp::ReadShard { data, index: 0, offset: 0, length: 10 };
        assert_eq!(ring.read(Op::Data { op }), Ok(Reply::Data { bytes: Bytes::from_static(text) }));
    }
}

/// The attributes of an inode of another partition may be out of date on this leader's brick, so they are left out. A
/// name without an inode is no reason to show none.
#[test]
fn a_listing_has_the_attributes_that_are_asked_for_and_that_its_partition_knows() {
    let mut ring = open(&storages());
    create_file(&mut ring);
    let root = ring.leader(ROOT.position());
    let is_there = |number: &u32| *number != root.partition.0 && ring.views[*number as usize].has_member(root.brick);
    let there = PartitionNumber((0..COUNT).find(is_there).unwrap());
    ring.execute(make_directory(ROOT, b"d", seed_of(there))).unwrap();
    let key = Key::name(ring.ask().names_prefix(root.partition, ROOT), ROOT, b"g");
    let gone = NameRecord { inode: InodeId::new(ROOT.position().0, 5, 1 << 40), kind: NodeKind::File };
    let stub = Key::inode(RING, VOLUME, ROOT, Kind::Stub);
    let value = ring.bricks[root.brick.0 as usize].get(&stub).unwrap().unwrap();
    let mut commit = Commit { changes: vec![Change::Put { key: stub, value }], ..Commit::default() };
    commit.put(key, &gone);
    ring.tell(root, Event::Change { token: Token(1), commit: Box::new(commit) });
    let mut listed = |attributes| {
        let op = NameOp::List { dir: ROOT, after: None, limit: 10, attributes, touch: false };
        let answer = ring.read(Op::Name { op });
        let Ok(Reply::List { entries, .. }) = answer else { panic!("{answer:?}") };
        entries.into_iter().map(|entry| (entry.name, entry.attr.is_some())).collect::<Vec<_>>()
    };
    let [d, f, g] = [b"d", b"f", b"g"].map(|text| name(text));
    assert_eq!(listed(true), [(d.clone(), false), (f.clone(), true), (g.clone(), false)]);
    assert_eq!(listed(false), [(d, false), (f, false), (g, false)]);
}

#[test]
fn a_whole_shard_is_read_at_once_and_no_more() {
    let mut ring = open(&storages());
    let mut read = |length: usize| {
        let op = DataOp::ReadShard { data: DataId(9), index: 0, offset: 0, length: length as u32 };
        ring.read(Op::Data { op })
    };
    assert!(matches!(read(IO_BYTES_MAX), Ok(Reply::Data { .. })));
    assert!(matches!(read(IO_BYTES_MAX + 1), Err(Error::Invalid { .. })));
}
