//! What ops of a session may change.

use super::support::*;
use crate::pledges::touched::touched_by;
use hekate_proto::*;

const DIR: InodeId = inode(0, 5);
const FILE: InodeId = inode(0, 6);

#[test]
fn a_read_that_may_move_the_time_of_access_is_a_change() {
    let read = Op::Data { op: DataOp::Read { inode: FILE, offset: 0, length: 1, touch: true } };
    let now = hekate_threads::time_of_day().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    let accessed = |atime| Attr { atime: Time(atime), mtime: Time(now - 2), ..attr(FILE, NodeKind::File) };
    assert!(touched_by(&read, |_| Some(accessed(now - 3))).is_some(), "the file has changed since");
    assert!(touched_by(&read, |_| Some(accessed(now - 1))).is_none());
    let yesterday = now - (23 * 3600 + 1800) * 1_000_000_000;
    let old = Attr { mtime: Time(yesterday - 1), ctime: Time(0), ..accessed(yesterday) };
    assert!(touched_by(&read, |_| Some(old.clone())).is_some(), "it is due soon, and clocks differ");
    let quiet = Op::Data { op: DataOp::Read { inode: FILE, offset: 0, length: 1, touch: false } };
    assert!(touched_by(&quiet, |_| None).is_none());
}

/// A file may be hidden under the other name of a prefix, and loses it.
#[test]
fn a_prefix_changes_what_either_of_its_names_leads_to() {
    let (dir, mode, uid, gid, seed) = (DIR, 0o755, 0, 0, 1);
    let op = NameOp::MakePrefix { dir, name: name("a"), alternate: name("b"), mode, uid, gid, seed };
    let touched = touched_by(&Op::Name { op }, |_| None).unwrap();
    assert_eq!(touched.leading, [(DIR, name("a")), (DIR, name("b"))]);
}
