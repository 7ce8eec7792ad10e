//! Clocks that are set back.

use super::*;

fn at(ring: &mut TestRing, inode: InodeId) -> (Time, Time) {
    let Ok(Reply::Node { attr, .. }) = ring.read(Op::Inode { op: InodeOp::GetAttr { inode } }) else {
        panic!("no inode")
    };
    (attr.mtime, attr.ctime)
}

#[test]
fn times_of_what_changes_do_not_go_back_with_the_clock_of_a_new_leader() {
    let storages = storages();
    let mut ring = open(&storages);
    ring.clock = 1_000_000_000_000;
    let file = create_file(&mut ring).id;
    let (before, root_before) = (at(&mut ring, file), at(&mut ring, ROOT));
    let op_id = ring.op_id;
    drop(ring);
    let mut ring = open(&storages);
    ring.op_id = op_id;
    assert!(ring.clock < before.0.0, "the leader does not know the other's clock");
    let changes = AttrChanges { size: Some(100), ..Default::default() };
    ring.execute(Op::Inode { op: InodeOp::SetAttr { inode: file, changes } }).unwrap();
    let after = at(&mut ring, file);
    assert!(after.0 >= before.0 && after.1 >= before.1, "{before:?} {after:?}");
    ring.execute(make_directory(ROOT, b"d", 3)).unwrap();
    let root_after = at(&mut ring, ROOT);
    assert!(root_after.0 >= root_before.0 && root_after.1 >= root_before.1, "{root_before:?} {root_after:?}");
}
