//! Writes at the end of a file (O_APPEND), of several mounts at once.
//!
//! Bytes beside the inode: its leader knows the end. Bytes in shards: who appends holds a lock on the file until the
//! leader knows the new end, so that no two write to the same place. It is a lock like others: it goes with its session.

use super::Distribute;
use bytes::Bytes;
use hekate_graph::Context;
use hekate_proto::*;

/// One append of a mount at a time asks for it.
const LOCK: Lock =
    Lock { kind: LockKind::Write, style: LockStyle::Append, start: 0, end: LOCK_END, owner: LockOwner(0), pid: 0 };

impl Distribute {
    /// -> `Done`.
    pub(super) fn append(&self, context: &Context, inode: InodeId, data: Bytes, drop_set_id: bool) -> Result<Reply> {
        loop {
            if self.known_shape(inode).is_none() {
                let op = DataOp::Append { inode, data: data.clone(), drop_set_id };
                match self.pass(context, self.home(inode), Op::Data { op })? {
                    Reply::Node { attr, .. } if attr.layout.is_inline() => _ = self.in_shards(context, inode)?,
                    Reply::Node { .. } => {}
                    done => return Ok(done),
                }
            }
            self.locks.hold(context, inode, LOCK)?;
            let appended = self.append_shards(context, inode, &data, drop_set_id);
            self.locks.let_go(context, inode, LOCK);
            if appended? {
                return Ok(Reply::Done);
            }
        }
    }

    /// With the lock. False: the bytes moved meanwhile.
    fn append_shards(&self, context: &Context, inode: InodeId, data: &Bytes, drop_set_id: bool) -> Result<bool> {
        let Attr { size, layout, .. } = self.attr(context, inode)?;
        if layout.is_inline() {
            return Ok(false);
        }
        if size.saturating_add(data.len() as u64) > FILE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        self.write_shards(context, inode, &layout, size, data, drop_set_id)
    }
}
