//! The connection breaks after a request was sent and before its reply arrives, for each kind of op: the request is
//! sent again and executed once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

include!("support/scratch.rs");
include!("support/cutter.rs");

use bytes::Bytes;
use hekate_client::proto::*;
use hekate_client::{Context, FilePosition, Joined, New, ObjectName, OpenOptions, Owner, SetXattr, Volume};

/// One kind of request, how to make a client send it, and the outcome that the caller sees.
struct Case {
    what: &'static str,
    which: fn(&Op) -> bool,
    act: fn(&Volume, &Things) -> Result<String>,
}

/// What each case begins with, in its own directory.
struct Things {
    dir: InodeId,
    file: InodeId,
    large: InodeId,
    link: InodeId,
}

/// More bytes than are stored beside an inode.
const LARGE: usize = 100_000;

fn context() -> Context<'static> {
    Context::default()
}

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn make(volume: &Volume, dir: InodeId, text: &str, node: NewNode) -> Result<InodeId> {
    let new = New { node, mode: 0o755, uid: 0, gid: 0, umask: 0, exclusive: true };
    Ok(volume.create(&context(), dir, name(text), new)?.0.id)
}

impl Things {
    fn new(volume: &Volume, text: &str) -> Self {
        let dir = make(volume, ROOT, text, NewNode::Directory).unwrap();
        let make = |text, node| make(volume, dir, text, node).unwrap();
        let (file, large) = (make("file", NewNode::File), make("large", NewNode::File));
        let link = make("link", NewNode::Symlink { target: Bytes::from_static(b"there") });
        make("empty", NewNode::Directory);
        volume.write(&context(), file, 0, Bytes::from_static(b"abc"), false).unwrap();
        volume.write(&context(), large, 0, Bytes::from(vec![7; LARGE]), false).unwrap();
        volume
            .setxattr(&context(), file, Bytes::from_static(b"user.x"), Bytes::from_static(b"y"), SetXattr::default())
            .unwrap();
        Self { dir, file, large, link }
    }

    /// Everything in which an op that was executed twice would show: each change counts in the change counters.
    fn describe(&self, volume: &Volume) -> Vec<String> {
        let mut all = vec![describe(volume, "", self.dir)];
        let (entries, end) = volume.list(&context(), self.dir, None, 100, false).unwrap();
        assert!(end);
        all.extend(entries.iter().map(|entry| describe(volume, &format!("{:?}", entry.name), entry.inode)));
        all
    }
}

fn describe(volume: &Volume, text: &str, inode: InodeId) -> String {
    let Attr { kind, mode, uid, nlink, size, change, .. } = volume.getattr(&context(), inode).unwrap();
    let bytes = match kind {
        NodeKind::File => volume.read(&context(), inode, 0, 2 * LARGE as u32).unwrap(),
        _ => Bytes::new(),
    };
    let (written, names) =
        (bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(), volume.listxattr(&context(), inode));
    format!("{text} {kind:?} {mode:o} {uid} links {nlink} size {size} change {change} sum {written} xattrs {names:?}")
}

macro_rules! case {
    ($what:literal, $pattern:pat, $act:expr) => {
        Case { what: $what, which: |op| matches!(op, $pattern), act: $act }
    };
}

fn said<T: std::fmt::Debug>(answer: Result<T>) -> Result<String> {
    answer.map(|answer| format!("{answer:?}"))
}

fn of_names() -> Vec<Case> {
    vec![
        case!("a lookup", Op::Name { op: NameOp::Lookup { .. } }, |volume, things| {
            said(volume.lookup(&context(), things.dir, name("file")).map(|attr| attr.size))
        }),
        case!("a create", Op::Name { op: NameOp::Create { .. } }, |volume, things| {
            said(make(volume, things.dir, "new", NewNode::File).map(drop))
        }),
        case!("a mkdir", Op::Name { op: NameOp::Create { .. } }, |volume, things| {
            said(make(volume, things.dir, "newdir", NewNode::Directory).map(drop))
        }),
        case!("a link", Op::Name { op: NameOp::Link { .. } }, |volume, things| {
            said(volume.link(&context(), things.dir, name("second"), things.file).map(|attr| attr.nlink))
        }),
        case!("an unlink", Op::Name { op: NameOp::Unlink { .. } }, |volume, things| {
            said(volume.unlink(&context(), things.dir, name("large"), None))
        }),
        case!("a rmdir", Op::Name { op: NameOp::Rmdir { .. } }, |volume, things| {
            said(volume.rmdir(&context(), things.dir, name("empty")))
        }),
        case!("a rename", Op::Name { op: NameOp::Rename { .. } }, |volume, things| {
            let (from, to) = ((things.dir, name("file")), (things.dir, name("elsewhere")));
            said(volume.rename(&context(), from, to, RenameMode::NoReplace, None))
        }),
        case!("an exchange", Op::Name { op: NameOp::Rename { .. } }, |volume, things| {
            let (from, to) = ((things.dir, name("file")), (things.dir, name("large")));
            said(volume.rename(&context(), from, to, RenameMode::Exchange, None))
        }),
        case!("a rename that leaves a whiteout", Op::Name { op: NameOp::Rename { .. } }, |volume, things| {
            let (from, to) = ((things.dir, name("file")), (things.dir, name("elsewhere")));
            let mode = RenameMode::Whiteout { replace: false, uid: 0, gid: 0, seed: 7 };
            said(volume.rename(&context(), from, to, mode, None))
        }),
        case!("a list", Op::Name { op: NameOp::List { .. } | NameOp::ListPart { .. } }, |volume, things| {
            said(volume.list(&context(), things.dir, None, 100, false).map(|(entries, end)| (entries.len(), end)))
        }),
    ]
}

fn object(things: &Things, text: &str) -> ObjectName {
    ObjectName { dir: things.dir, name: name(text), alternate: Some(name(&format!("%~-{text}"))) }
}

fn of_objects() -> Vec<Case> {
    fn put(volume: &Volume, name: &ObjectName, condition: Condition) -> Result<String> {
        let (content, attributes) = (bytes(50), vec![(Bytes::from_static(b"hekate.s3"), bytes(9))]);
        let source = PutSource::Bytes { content, mode: 0o644, uid: 1, gid: 1, attributes };
        said(volume.put(&context(), name, source, Bytes::from_static(b"etag"), condition).map(|(_, created)| created))
    }
    vec![
        case!("a put", Op::Name { op: NameOp::Put { .. } }, |volume, things| {
            put(volume, &object(things, "new"), Condition::Absent)
        }),
        case!("a put over a file", Op::Name { op: NameOp::Put { .. } }, |volume, things| {
            let etag = etag_of(&volume.getattr(&context(), things.file)?);
            put(volume, &object(things, "file"), Condition::Matches { etag })
        }),
        case!("a put of an inode", Op::Name { op: NameOp::Put { .. } }, |volume, things| {
            let (inode, etag) = (things.large, Bytes::from_static(b"etag"));
            let put = PutSource::Inode { inode };
            said(
                volume
                    .put(&context(), &object(things, "new"), put, etag, Condition::Absent)
                    .map(|(attr, _)| attr.nlink),
            )
        }),
        case!("a removal", Op::Name { op: NameOp::Remove { .. } }, |volume, things| {
            said(volume.remove_object(&context(), &object(things, "file"), Condition::Exists))
        }),
        case!("a directory for a key", Op::Name { op: NameOp::MakePrefix { .. } }, |volume, things| {
            let owner = Owner { mode: 0o755, uid: 1, gid: 1 };
            let made = volume.make_prefix(&context(), things.dir, name("file"), name("%~-file"), owner)?;
            said(Ok(made.implied))
        }),
        case!("a removal of that", Op::Name { op: NameOp::RemovePrefix { .. } }, |volume, things| {
            let owner = Owner { mode: 0o755, uid: 1, gid: 1 };
            volume.make_prefix(&context(), things.dir, name("implied"), name("%~-implied"), owner)?;
            said(volume.remove_prefix(&context(), things.dir, name("implied")))
        }),
        case!("a join", Op::Name { op: NameOp::Join { .. } }, |volume, things| {
            let parts = vec![(name("file"), Bytes::new()), (name("large"), Bytes::new())];
            let owner = Owner { mode: 0o755, uid: 1, gid: 1 };
            let joined = Joined { name: name("z"), owner, etag: Bytes::new(), attributes: Vec::new() };
            said(volume.join(&context(), things.dir, parts, joined).map(|attr| attr.size))
        }),
        case!("a fetch", Op::Name { op: NameOp::Fetch { .. } }, |volume, things| {
            let fetched = volume.fetch(&context(), &object(things, "file"), Bytes::from_static(b"user.x"), true)?;
            said(Ok((fetched.content, fetched.attribute)))
        }),
        case!("a list of keys", Op::Name { op: NameOp::ListKeys { .. } }, |volume, things| {
            let page = volume.list_keys(&context(), things.dir, Bytes::new(), Bytes::new(), 100)?;
            said(Ok(page.entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>()))
        }),
    ]
}

fn of_inodes() -> Vec<Case> {
    fn key(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }
    vec![
        case!("a getattr", Op::Inode { op: InodeOp::GetAttr { .. } }, |volume, things| {
            said(volume.getattr(&context(), things.file).map(|attr| attr.change))
        }),
        case!("a setattr", Op::Inode { op: InodeOp::SetAttr { .. } }, |volume, things| {
            let changes = AttrChanges { uid: Some(7), ..AttrChanges::default() };
            said(volume.setattr(&context(), things.file, changes).map(|attr| attr.change))
        }),
        case!("a truncate", Op::Inode { op: InodeOp::SetAttr { .. } }, |volume, things| {
            let changes = AttrChanges { size: Some(10), ..AttrChanges::default() };
            said(volume.setattr(&context(), things.large, changes).map(|attr| attr.size))
        }),
        case!("a readlink", Op::Inode { op: InodeOp::ReadLink { .. } }, |volume, things| {
            said(volume.readlink(&context(), things.link))
        }),
        case!("a getxattr", Op::Inode { op: InodeOp::GetXattr { .. } }, |volume, things| {
            said(volume.getxattr(&context(), things.file, key("user.x")))
        }),
        case!("a setxattr", Op::Inode { op: InodeOp::SetXattr { .. } }, |volume, things| {
            said(volume.setxattr(
                &context(),
                things.file,
                key("user.new"),
                key("v"),
                SetXattr { create: true, ..SetXattr::default() },
            ))
        }),
        case!("a listxattr", Op::Inode { op: InodeOp::ListXattr { .. } }, |volume, things| {
            said(volume.listxattr(&context(), things.file))
        }),
        case!("a removexattr", Op::Inode { op: InodeOp::RemoveXattr { .. } }, |volume, things| {
            said(volume.removexattr(&context(), things.file, key("user.x")))
        }),
    ]
}

fn bytes(length: usize) -> Bytes {
    Bytes::from(vec![9; length])
}

fn of_data() -> Vec<Case> {
    vec![
        case!("a read", Op::Data { op: DataOp::Read { .. } }, |volume, things| {
            said(volume.read(&context(), things.file, 0, 10))
        }),
        case!("a write", Op::Data { op: DataOp::Write { .. } }, |volume, things| {
            said(volume.write(&context(), things.file, 1, bytes(5), false))
        }),
        case!("a durable write", Op::Data { op: DataOp::Write { .. } }, |volume, things| {
            said(volume.write(&Context { durable: true, ..context() }, things.file, 1, bytes(5), false))
        }),
        case!("a spill", Op::Data { op: DataOp::Spill { .. } }, |volume, things| {
            said(volume.write(&context(), things.file, 1, bytes(LARGE), false))
        }),
        case!("a read of a shard", Op::Data { op: DataOp::ReadShard { .. } }, |volume, things| {
            said(volume.read(&context(), things.large, LARGE as u64 - 3, 10))
        }),
        case!("a write to a shard", Op::Data { op: DataOp::WriteShard { .. } }, |volume, things| {
            said(volume.write(&context(), things.large, 5, bytes(50), false))
        }),
        case!("a great write to a shard", Op::Data { op: DataOp::WriteShard { .. } }, |volume, things| {
            said(volume.write(&context(), things.large, LARGE as u64, bytes(LARGE), false))
        }),
        case!("a word of a write", Op::Data { op: DataOp::Wrote { .. } }, |volume, things| {
            said(volume.write(&context(), things.large, 5, bytes(50), false))
        }),
        case!("a sync", Op::Data { op: DataOp::Sync { .. } }, |volume, things| {
            volume.write(&context(), things.large, 5, bytes(50), false)?;
            said(volume.fsync(&context(), things.large))
        }),
        case!("a statfs", Op::Volume { op: VolumeOp::StatFs }, |volume, _| {
            said(volume.statfs(&context()).map(|space| space.total > 0))
        }),
    ]
}

fn at(inode: InodeId, offset: u64) -> FilePosition {
    FilePosition { inode, offset }
}

/// Space, holes and copies of files in shards.
fn of_space() -> Vec<Case> {
    fn set_size(volume: &Volume, inode: InodeId, size: u64) -> Result<Attr> {
        volume.setattr(&context(), inode, AttrChanges { size: Some(size), ..AttrChanges::default() })
    }
    vec![
        case!("a punch", Op::Data { op: DataOp::AllocateShard { .. } }, |volume, things| {
            said(volume.allocate(&context(), things.large, 5000, 50_000, Allocate::Punch, false))
        }),
        case!("zeros", Op::Data { op: DataOp::AllocateShard { .. } }, |volume, things| {
            let mode = Allocate::Zero { keep_size: false };
            said(volume.allocate(&context(), things.large, 5000, 2 * LARGE as u64, mode, false))
        }),
        case!("a punch of many shards", Op::Data { op: DataOp::EmptyShards { .. } }, |volume, things| {
            set_size(volume, things.large, 1 << 50)?;
            volume.write(&context(), things.large, 1 << 40, bytes(50), false)?;
            volume.allocate(&context(), things.large, 5000, 1 << 50, Allocate::Punch, false)?;
            said(volume.read(&context(), things.large, 1 << 40, 60))
        }),
        case!("a copy", Op::Data { op: DataOp::CopyShard { .. } }, |volume, things| {
            let (from, to) = (at(things.large, 10), at(things.large, 3 * LARGE as u64));
            said(volume.copy(&context(), from, to, LARGE as u64, false, false))
        }),
        case!("a copy of a hole", Op::Data { op: DataOp::EmptyShards { .. } }, |volume, things| {
            set_size(volume, things.large, 1 << 40)?;
            let (from, to) = (at(things.large, 1 << 30), at(things.file, 7));
            let copied = volume.copy(&context(), from, to, 1 << 30, false, false)?;
            said(volume.seek(&context(), things.file, 7, true).map(|hole| (copied, hole)))
        }),
    ]
}

/// Ops on directories that several partitions share.
fn of_parts() -> Vec<Case> {
    vec![case!("a look at a stub", Op::Name { op: NameOp::Stub { .. } }, |volume, things| {
        said(volume.getattr(&context(), things.dir).map(|attr| (attr.nlink, attr.change)))
    })]
}

/// Runs all cases with the names of directories in `spread` partitions. Those of `from_memory` may need no request.
fn each_kind_is_done_once(spread: u32, no_pledges: bool, from_memory: &[&str]) {
    let scratch = Scratch::wide(&format!("retries-{spread}-{no_pledges}"), spread);
    let Endpoint::Unix(server) = scratch.endpoint() else { panic!("a unix socket") };
    let cutter = Cutter::new(&server, server.with_file_name("cut.sock"));
    let options = OpenOptions { no_pledges, ..OpenOptions::default() };
    let open = |endpoint| Volume::open(endpoint, "v1", &options).unwrap();
    let (cut, whole) = (open(cutter.endpoint()), open(scratch.endpoint()));
    let parts = if spread > 1 { of_parts() } else { Vec::new() };
    for (number, case) in of_names()
        .into_iter()
        .chain(of_objects())
        .chain(of_inodes())
        .chain(of_data())
        .chain(of_space())
        .chain(parts)
        .enumerate()
    {
        let [one, other] = ["cut", "whole"].map(|text| format!("{number}-{text}"));
        let (ours, theirs) = (Things::new(&cut, &one), Things::new(&whole, &other));
        cutter.cut_next(case.which);
        let answer = (case.act)(&cut, &ours);
        assert!(cutter.has_cut() || from_memory.contains(&case.what), "{} was not cut", case.what);
        assert_eq!(answer, (case.act)(&whole, &theirs), "{}", case.what);
        assert_eq!(ours.describe(&cut), theirs.describe(&whole), "{}", case.what);
        assert_eq!(ours.describe(&whole), theirs.describe(&whole), "{} as others see it", case.what);
    }
    cutter.cut_next(|op| matches!(op, Op::Volume { op: VolumeOp::EndSession }));
    cut.end();
    assert!(cutter.has_cut(), "the end of a session was not cut");
    assert!(cut.lookup(&context(), ROOT, name("0-cut")).is_err(), "the session is over");
}

#[test]
fn each_kind_of_op_whose_answer_is_lost_is_done_once() {
    each_kind_is_done_once(1, true, &[]);
}

#[test]
fn in_directories_of_several_partitions_too() {
    each_kind_is_done_once(4, true, &[]);
}

#[test]
fn under_pledges_too() {
    let from_memory = ["a lookup", "a getattr", "a read", "a look at a stub"];
    for spread in [1, 4] {
        each_kind_is_done_once(spread, false, &from_memory);
    }
}
