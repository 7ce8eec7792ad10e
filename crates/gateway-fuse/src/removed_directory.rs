//! A directory that was removed while processes of this mount had it open or had it as their working directory: the
//! attributes that they still read and change. Processes of other mounts do not see these changes.

use bytes::Bytes;
use hekate_client::SetXattr;
use hekate_proto::{Attr, AttrChanges, InodeId, Layout, NodeKind, SetTime, Time};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Size of an empty directory in bytes, as servers report it.
const DIRECTORY_BYTES: u64 = 4096;

/// The attributes of a directory that were last sent to the kernel, as far as they are needed after its removal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastAttributes {
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
}

impl From<&Attr> for LastAttributes {
    fn from(attr: &Attr) -> Self {
        let Attr { atime, mtime, ctime, uid, gid, mode, .. } = *attr;
        Self { atime, mtime, ctime, uid, gid, mode }
    }
}

impl LastAttributes {
    /// The state of directory `id` after another mount removed it.
    pub(crate) fn removed_elsewhere(self, id: InodeId) -> RemovedDirectory {
        let Self { atime, mtime, ctime, uid, gid, mode } = self;
        let attr = Attr {
            id,
            kind: NodeKind::Directory,
            mode,
            uid,
            gid,
            nlink: 0,
            size: DIRECTORY_BYTES,
            device: 0,
            atime,
            mtime,
            ctime,
            btime: ctime,
            change: 0,
            layout: Layout::inline(0),
            spread: 1,
            has_xattrs: false,
            etag: Bytes::new(),
            implied: false,
        };
        RemovedDirectory { attr, xattrs: BTreeMap::new() }.after_removal()
    }
}

/// A removed directory.
#[derive(Debug, Clone)]
pub(crate) struct RemovedDirectory {
    pub(crate) attr: Attr,
    pub(crate) xattrs: BTreeMap<Bytes, Bytes>,
}

impl RemovedDirectory {
    /// Sets the link count and the time of change as a removal does.
    pub(crate) fn after_removal(self) -> Self {
        Self { attr: Attr { nlink: 0, ctime: now().max(self.attr.ctime), ..self.attr }, ..self }
    }

    pub(crate) fn change(&mut self, changes: &AttrChanges) -> Attr {
        let time = |set: &Option<SetTime>, before: Time| match set {
            None => before,
            Some(SetTime::Now) => now(),
            Some(SetTime::At { time }) => *time,
        };
        let attr = &mut self.attr;
        attr.mode = changes.mode.unwrap_or(attr.mode);
        attr.uid = changes.uid.unwrap_or(attr.uid);
        attr.gid = changes.gid.unwrap_or(attr.gid);
        (attr.atime, attr.mtime) = (time(&changes.atime, attr.atime), time(&changes.mtime, attr.mtime));
        attr.ctime = now().max(attr.ctime);
        attr.clone()
    }

    pub(crate) fn xattr(&self, name: &Bytes) -> Result<Bytes, Errno> {
        self.xattrs.get(name).cloned().ok_or(Errno::NODATA)
    }

    pub(crate) fn set_xattr(&mut self, name: Bytes, value: Bytes, how: SetXattr) -> Result<(), Errno> {
        match self.xattrs.contains_key(&name) {
            true if how.create => return Err(Errno::EXIST),
            false if how.replace => return Err(Errno::NODATA),
            _ => {}
        }
        self.xattrs.insert(name, value);
        self.attr.ctime = now().max(self.attr.ctime);
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, name: &Bytes) -> Result<(), Errno> {
        self.xattrs.remove(name).ok_or(Errno::NODATA)?;
        self.attr.ctime = now().max(self.attr.ctime);
        Ok(())
    }
}

fn now() -> Time {
    Time(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64)
}
