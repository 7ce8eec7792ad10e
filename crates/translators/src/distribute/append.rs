//! Appends to a file (O_APPEND), by several mounts at once.
//!
//! The leader of an inode knows the end of bytes stored beside it. For bytes in shards, the appending client holds a
//! lock on the file until the leader knows the new end, so that two clients never write to the same place. As any
//! other lock, it is released with its session.

use super::Distribute;
use super::bytes::FileWrite;
use bytes::Bytes;
use hekate_graph::Context;
use hekate_proto::*;

/// The lock of an append. All appends of a mount have the same lock owner, and locks of one owner do not exclude each
/// other: [`crate::Locks::begin_append`] serializes the appends of a mount.
const LOCK: Lock =
    Lock { kind: LockKind::Write, style: LockStyle::Append, start: 0, end: LOCK_END, owner: LockOwner(0), pid: 0 };

impl Distribute {
    /// Appends `data` to the file. Replies `Done`.
    pub(super) fn append(&self, context: &Context, inode: InodeId, data: Bytes, drop_set_id: bool) -> Result<Reply> {
        loop {
            if self.known_shape(inode).is_none() {
                let op = DataOp::Append { inode, data: data.clone(), drop_set_id };
                match self.forward(context, self.home(inode), Op::Data { op })? {
                    Reply::Node { attr, .. } if attr.layout.is_inline() => _ = self.ensure_in_shards(context, inode)?,
                    Reply::Node { .. } => {}
                    done => return Ok(done),
                }
            }
            let _turn = self.locks.begin_append(context, inode)?;
            self.locks.acquire(context, inode, LOCK)?;
            let appended = self.append_shards(context, inode, &data, drop_set_id);
            self.locks.unlock(context, inode, LOCK);
            if appended? {
                return Ok(Reply::Done);
            }
        }
    }

    /// Appends to shards, while the lock is held. False if the layout changed meanwhile and nothing was written.
    fn append_shards(&self, context: &Context, inode: InodeId, data: &Bytes, drop_set_id: bool) -> Result<bool> {
        let own = self.known_shape(inode).and_then(|shape| {
            let end = self.replicate.pledges().end_of(inode, shape.layout.version)?;
            Some((end.max(shape.size), shape.layout))
        });
        let (size, layout) = match own {
            Some(known) => known,
            None => {
                self.replicate.pledges().tell_of_writes(&self.replicate, context, Some(inode))?;
                let attr = self.attr(context, inode)?;
                (attr.size, attr.layout)
            }
        };
        if layout.is_inline() {
            return Ok(false);
        }
        if size.saturating_add(data.len() as u64) > FILE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        let write = FileWrite { inode, layout: &layout, offset: size, data, drop_set_id };
        self.write_shards(context, &write)
    }
}
