//! A descriptor of `/dev/fuse`: requests are read from it, and each is answered on the descriptor that it was read
//! from.

use crate::abi::{
    EXPIRE_ONLY, InvalidateEntry, InvalidateInode, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NOTIFY_RETRIEVE, OutHeader,
    Retrieve,
};
use crate::encode::{Failed, Outcome};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::IoSlice;
use zerocopy::IntoBytes;

/// Path of the FUSE device.
pub(crate) const PATH: &str = "/dev/fuse";

/// `FUSE_DEV_IOC_CLONE`: attaches a new descriptor to an existing connection.
const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);

#[derive(Debug)]
pub(crate) struct Device(pub(crate) OwnedFd);

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A request with this number of bytes.
    Request(usize),
    /// No request: read again.
    Nothing,
    /// The file system is unmounted, or the connection aborted.
    Ended,
    /// The device failed.
    Failed(Errno),
}

impl Device {
    /// Waits for a request.
    pub(crate) fn read(&self, space: &mut [u8]) -> Arrival {
        match rustix::io::read(&self.0, space) {
            Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED) => Arrival::Ended,
            Ok(filled) => Arrival::Request(filled),
            // The request was cancelled while it was read, or a signal arrived.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => Arrival::Nothing,
            Err(errno) => Arrival::Failed(errno),
        }
    }

    /// Sends the reply to a request.
    pub(crate) fn reply(&self, unique: u64, outcome: &Outcome) {
        let (error, body) = match outcome {
            Ok(body) => (0, &body[..]),
            Err(Failed(errno)) => (-errno.raw_os_error(), &[][..]),
        };
        let len = (size_of::<OutHeader>() + body.len()) as u32;
        let header = OutHeader { len, error, unique };
        match rustix::io::writev(&self.0, &[IoSlice::new(header.as_bytes()), IoSlice::new(body)]) {
            // The request was aborted because its caller has ended, or the connection has ended.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(errno) => log::warn!("the kernel refuses the reply to request {unique}: {errno}"),
        }
    }

    /// Has the kernel forget an inode's attributes. Returns false if it does not have the inode.
    ///
    /// The kernel takes no lock for this that a request holds (`fuse_reverse_inval_inode` with a negative offset).
    pub(crate) fn invalidate_attributes(&self, node: u64) -> bool {
        self.invalidate(node, -1)
    }

    /// Has the kernel forget an inode's attributes and drop its pages.
    ///
    /// It waits for pages that it is reading, so the READs of the inode have to be answered meanwhile.
    pub(crate) fn drop_pages(&self, node: u64) {
        self.invalidate(node, 0);
    }

    fn invalidate(&self, node: u64, offset: i64) -> bool {
        let body = InvalidateInode { node, offset, length: 0 };
        let len = (size_of::<OutHeader>() + size_of::<InvalidateInode>()) as u32;
        let header = OutHeader { len, error: NOTIFY_INVAL_INODE, unique: 0 };
        match rustix::io::writev(&self.0, &[IoSlice::new(header.as_bytes()), IoSlice::new(body.as_bytes())]) {
            Ok(_) | Err(Errno::NODEV | Errno::CONNABORTED) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => {
                log::warn!("the kernel refuses to forget what it has of inode {node}: {errno}");
                true
            }
        }
    }

    /// Has the kernel ask before it uses a name again, whether it leads to an inode or is known to be missing.
    ///
    /// The kernel takes the lock of the directory exclusively (`fuse_reverse_inval_entry`), so this may wait until a
    /// request has been answered.
    pub(crate) fn expire_name(&self, parent: u64, name: &[u8]) {
        let body = InvalidateEntry { parent, name_length: name.len() as u32, flags: EXPIRE_ONLY };
        let len = (size_of::<OutHeader>() + size_of::<InvalidateEntry>() + name.len() + 1) as u32;
        let header = OutHeader { len, error: NOTIFY_INVAL_ENTRY, unique: 0 };
        let parts = [header.as_bytes(), body.as_bytes(), name, b"\0"].map(IoSlice::new);
        match rustix::io::writev(&self.0, &parts) {
            // NOENT: it has no such name.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::NOTDIR) => {}
            Err(errno) => log::warn!("the kernel refuses to forget a name in directory {parent}: {errno}"),
        }
    }

    /// Has the kernel send a NOTIFY_REPLY with this number and no data, as a request of the CPU that this runs on. It
    /// does so for regular files that it has, and for no other node.
    pub(crate) fn ask_for_notify_reply(&self, unique: u64, node: u64) {
        let body = Retrieve { unique, node, ..Default::default() };
        let len = (size_of::<OutHeader>() + size_of::<Retrieve>()) as u32;
        let header = OutHeader { len, error: NOTIFY_RETRIEVE, unique: 0 };
        match rustix::io::writev(&self.0, &[IoSlice::new(header.as_bytes()), IoSlice::new(body.as_bytes())]) {
            Ok(_) | Err(Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN | Errno::INVAL | Errno::NOENT) => {}
            Err(errno) => log::warn!("the kernel refuses to send a NOTIFY_REPLY: {errno}"),
        }
    }

    /// One more descriptor of the connection. `None` if the kernel or the permissions of the device do not allow it.
    pub(crate) fn another(&self) -> Option<Device> {
        let fresh = rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        // SAFETY: FUSE_DEV_IOC_CLONE reads a u32, the number of a descriptor, and writes none of our memory.
        let clone = unsafe { rustix::ioctl::Setter::<CLONE, u32>::new(self.0.as_raw_fd() as u32) };
        // SAFETY: as above; `fresh` is a descriptor of /dev/fuse, and any other device refuses the opcode.
        unsafe { rustix::ioctl::ioctl(&fresh, clone) }.ok()?;
        Some(Device(fresh))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clone_opcode_is_that_of_fuse_h() {
        assert_eq!(CLONE, 0x8004_e500);
    }
}
