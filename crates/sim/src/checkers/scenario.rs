//! Short constructors for histories in tests.

use crate::history::{CallNumber, History, Moment};
use bytes::Bytes;
use hekate_proto::*;

/// The client of every call, unless a test names another one: client and session have the same number.
const CLIENT: u32 = 1;

/// The file that tests write to.
pub const FILE: InodeId = InodeId::new(1, 1, 2);

/// A history that a test builds call by call.
#[derive(Default)]
pub struct Scenario {
    pub history: History,
}

impl Scenario {
    /// Adds a call with its answer.
    pub fn did(&mut self, from: Moment, to: Moment, op: Op, outcome: Result<Reply>) -> CallNumber {
        self.client_did(CLIENT, from, to, op, outcome)
    }

    /// Adds a call of a client with its answer.
    pub fn client_did(&mut self, client: u32, from: Moment, to: Moment, op: Op, outcome: Result<Reply>) -> CallNumber {
        let call = self.history.invoke(client, SessionId(client.into()), op, false, from);
        self.history.answer(call, to, outcome);
        call
    }

    /// Adds a call whose client died.
    pub fn asked(&mut self, from: Moment, op: Op) -> CallNumber {
        self.history.invoke(CLIENT, SessionId(CLIENT.into()), op, false, from)
    }

    /// Adds a successful write.
    pub fn wrote(&mut self, from: Moment, to: Moment, offset: u64, data: &[u8]) {
        self.did(from, to, write(offset, data), Ok(Reply::Done));
    }

    /// Adds a read of `length` bytes.
    pub fn read(&mut self, from: Moment, to: Moment, offset: u64, length: u32, bytes: &[u8]) {
        let op = Op::Data { op: DataOp::Read { inode: FILE, offset, length, touch: false } };
        let attr = attr(FILE, NodeKind::File);
        self.did(from, to, op, Ok(Reply::FileData { bytes: Bytes::copy_from_slice(bytes), attr }));
    }

    /// Adds a successful truncate.
    pub fn truncated(&mut self, from: Moment, to: Moment, size: u64) {
        self.did(from, to, truncate(size), node(Attr { size, ..attr(FILE, NodeKind::File) }));
    }

    /// Adds a getattr that shows this size.
    pub fn sized(&mut self, from: Moment, to: Moment, size: u64) {
        let op = Op::Inode { op: InodeOp::GetAttr { inode: FILE } };
        self.did(from, to, op, node(Attr { size, ..attr(FILE, NodeKind::File) }));
    }

    /// Adds a successful fsync of an inode.
    pub fn synced(&mut self, from: Moment, to: Moment, inode: InodeId) {
        self.did(from, to, Op::Data { op: DataOp::Fsync { inode } }, Ok(Reply::Done));
    }
}

/// A write to the file.
pub fn write(offset: u64, data: &[u8]) -> Op {
    let data = Bytes::copy_from_slice(data);
    Op::Data { op: DataOp::Write { inode: FILE, offset, data, drop_set_id: false } }
}

/// A truncate of the file.
pub fn truncate(size: u64) -> Op {
    let changes = AttrChanges { size: Some(size), ..AttrChanges::default() };
    Op::Inode { op: InodeOp::SetAttr { inode: FILE, changes } }
}

/// A name.
pub fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

/// An answer with attributes.
pub fn node(attr: Attr) -> Result<Reply> {
    Ok(Reply::Node { attr, created: false })
}

/// Attributes of a new inode.
pub fn attr(id: InodeId, kind: NodeKind) -> Attr {
    let nlink = if kind == NodeKind::Directory { 2 } else { 1 };
    let (layout, time) = (Layout::inline(0), Time(1));
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    Attr {
        id,
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        nlink,
        size: 0,
        device: 0,
        atime,
        mtime,
        ctime,
        btime,
        change: 1,
        layout,
        spread: 1,
        has_xattrs: false,
        etag: Bytes::new(),
        implied: false,
    }
}
