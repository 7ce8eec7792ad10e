//! A directory that was removed while a process had it open: what that process, and nobody else, still sees and changes.

use bytes::Bytes;
use hekate_client::SetXattr;
use hekate_proto::{Attr, AttrChanges, SetTime, Time};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Gone {
    pub(crate) attr: Attr,
    pub(crate) xattrs: BTreeMap<Bytes, Bytes>,
}

impl Gone {
    /// It was like that when it was removed.
    pub(crate) fn removed(self) -> Self {
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
