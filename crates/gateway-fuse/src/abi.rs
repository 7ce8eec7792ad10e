//! The structures, opcodes and flags that the kernel and a FUSE server exchange: the part of
//! `linux/include/uapi/linux/fuse.h`, protocol 7.31 to 7.40, that Hekate uses.
//!
//! Invariants: every structure has the layout of the header (sizes are asserted below) and no hidden padding, so that
//! it can be read from and written as bytes. The byte order is the machine's, as the kernel's is.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol's major version.
pub const MAJOR: u32 = 7;
/// Lowest minor version that is supported: Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// Highest minor version that is known.
pub const MINOR_MAX: u32 = 40;
/// The root directory's node.
pub const ROOT_NODE: u64 = 1;

macro_rules! opcodes {
    ($($number:literal = $name:ident,)*) => {
        /// Kind of a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Opcode { $($name = $number,)* }

        impl Opcode {
            /// All known opcodes, in order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            /// The opcode with this number.
            pub fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Opcode::$name),)*
                    _ => None,
                }
            }

            /// Name for people.
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => stringify!($name),)* }
            }
        }
    };
}

opcodes! {
    1 = Lookup, 2 = Forget, 3 = GetAttr, 4 = SetAttr, 5 = ReadLink, 6 = Symlink, 8 = Mknod, 9 = Mkdir, 10 = Unlink,
    11 = Rmdir, 12 = Rename, 13 = Link, 14 = Open, 15 = Read, 16 = Write, 17 = StatFs, 18 = Release, 20 = Fsync,
    21 = SetXattr, 22 = GetXattr, 23 = ListXattr, 24 = RemoveXattr, 25 = Flush, 26 = Init, 27 = OpenDir,
    28 = ReadDir, 29 = ReleaseDir, 30 = FsyncDir, 31 = GetLk, 32 = SetLk, 33 = SetLkw, 34 = Access, 35 = Create,
    36 = Interrupt, 37 = Bmap, 38 = Destroy, 39 = Ioctl, 40 = Poll, 41 = NotifyReply, 42 = BatchForget,
    43 = Fallocate, 44 = ReadDirPlus, 45 = Rename2, 46 = Lseek, 47 = CopyFileRange, 48 = SetupMapping,
    49 = RemoveMapping, 50 = SyncFs, 51 = TmpFile, 52 = Statx,
}

/// Flags of INIT.
pub mod init {
    /// Several reads of one file at once.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// fcntl locks are handled by the server.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// LOOKUP of `.` and `..`, by which the kernel finds inodes that it has forgotten.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes longer than 4 KiB.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The server applies the umask.
    pub const DONT_MASK: u64 = 1 << 6;
    /// flock locks are handled by the server.
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// The kernel drops cached pages when the size or mtime has changed.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    /// READDIRPLUS.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// READDIRPLUS only when the names are looked up.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Several direct requests of one file at once.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// LOOKUP and READDIR in one directory at once.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel enforces ACLs and sends changes of them to the server.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// Requests longer than 32 pages.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The server clears set-user-id and set-group-id bits.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR has extension flags.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// The flags have more than 32 bits.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Shared mappings of files that are open with FOPEN_DIRECT_IO.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests over io_uring ([`crate::ring`]); protocol 7.42. The kernel takes it from a server of a lower version too.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `FUSE_NOTIFY_INVAL_INODE`, in [`OutHeader::error`] of a message that answers no request.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// `FUSE_NOTIFY_RETRIEVE`, likewise. The kernel sends a NOTIFY_REPLY.
pub const NOTIFY_RETRIEVE: i32 = 5;

/// `FUSE_IO_URING_CMD_REGISTER`: adds an entry to a queue of the kernel.
pub const RING_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: replies to the request of an entry, and waits for its next one.
pub const RING_COMMIT_AND_FETCH: u32 = 2;

/// `FUSE_NOTIFY_INVAL_ENTRY`, as [`NOTIFY_INVAL_INODE`].
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// `FUSE_EXPIRE_ONLY`, in [`InvalidateEntry::flags`]: the kernel asks before it uses the name again, and keeps what is
/// mounted below it.
pub const EXPIRE_ONLY: u32 = 1;
/// Lowest minor version of a kernel that knows [`EXPIRE_ONLY`]: Linux 6.2.
pub const EXPIRE_MINOR_MIN: u32 = 38;

/// Bits of [`SetAttrIn::valid`].
pub mod fattr {
    /// `mode` is set.
    pub const MODE: u32 = 1 << 0;
    /// `uid` is set.
    pub const UID: u32 = 1 << 1;
    /// `gid` is set.
    pub const GID: u32 = 1 << 2;
    /// `size` is set.
    pub const SIZE: u32 = 1 << 3;
    /// `atime` is set.
    pub const ATIME: u32 = 1 << 4;
    /// `mtime` is set.
    pub const MTIME: u32 = 1 << 5;
    /// `atime` is the server's current time.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// `mtime` is the server's current time.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// Clear set-user-id and set-group-id: the caller is not privileged.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `GetAttrIn.flags`: `handle` is set.
pub const GETATTR_HANDLE: u32 = 1;
/// In the reply to OPEN: bypass the page cache.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// In the reply to OPEN: the cached pages are still valid.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// In the reply to OPEN: direct writes of one file may run at once.
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// In READ: it names the lock owner of the open file, so it is for a read(2), not for a page of the page cache.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// In WRITE: pages of the page cache are written back, and the writer is not known.
pub const WRITE_CACHE: u32 = 1 << 0;
/// In WRITE: clear set-user-id and set-group-id, since the caller is not privileged.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// In SETXATTR of an ACL: clear set-group-id.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// In GETLK, SETLK and SETLKW: a flock lock, not an fcntl lock.
pub const LK_FLOCK: u32 = 1 << 0;
/// In RELEASE: release the flock lock of the open file.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// Read lock, in the numbering of fcntl.
pub const F_RDLCK: u32 = 0;
/// Write lock.
pub const F_WRLCK: u32 = 1;
/// Unlock, or no lock.
pub const F_UNLCK: u32 = 2;

macro_rules! structures {
    ($($(#[$meta:meta])* pub struct $name:ident[$size:literal] { $(pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

structures! {
    /// `fuse_in_header`: precedes every request.
    pub struct InHeader[40] {
        pub len: u32,
        pub opcode: u32,
        pub unique: u64,
        pub node: u64,
        pub uid: u32,
        pub gid: u32,
        pub pid: u32,
        pub extensions: u16,
        pub padding: u16,
    }
    /// `fuse_out_header`: precedes every reply. `error` is 0 or a negative errno.
    pub struct OutHeader[16] {
        pub len: u32,
        pub error: i32,
        pub unique: u64,
    }
    /// `fuse_notify_inval_inode_out`: the body of a notification. A negative offset: attributes only.
    pub struct InvalidateInode[24] {
        pub node: u64,
        pub offset: i64,
        pub length: i64,
    }
    /// `fuse_getattr_in`.
    pub struct GetAttrIn[16] {
        pub flags: u32,
        pub padding: u32,
        pub handle: u64,
    }
    /// `fuse_notify_inval_entry_out`. The name follows, and a zero byte.
    pub struct InvalidateEntry[16] {
        pub parent: u64,
        pub name_length: u32,
        pub flags: u32,
    }
    /// `fuse_notify_retrieve_out`: the body of a notification.
    pub struct Retrieve[32] {
        pub unique: u64,
        pub node: u64,
        pub offset: u64,
        pub size: u32,
        pub padding: u32,
    }
    /// `fuse_uring_cmd_req`: the arguments of a command to a ring, in the 80 bytes that an SQE has for them.
    pub struct RingCommand[80] {
        pub flags: u64,
        pub commit: u64,
        pub queue: u16,
        pub padding: [u16; 3],
        pub unused: [u64; 7],
    }
    /// `fuse_uring_ent_in_out`: the last part of the header of a ring's entry.
    pub struct EntryInOut[32] {
        pub flags: u64,
        pub commit: u64,
        pub payload_bytes: u32,
        pub padding: u32,
        pub reserved: u64,
    }
    /// `fuse_attr`.
    pub struct AttrOut[88] {
        pub ino: u64,
        pub size: u64,
        pub blocks: u64,
        pub atime: u64,
        pub mtime: u64,
        pub ctime: u64,
        pub atime_ns: u32,
        pub mtime_ns: u32,
        pub ctime_ns: u32,
        pub mode: u32,
        pub nlink: u32,
        pub uid: u32,
        pub gid: u32,
        pub rdev: u32,
        pub blksize: u32,
        pub flags: u32,
    }
    /// `fuse_entry_out`: reply to LOOKUP and to requests that make a name. Node 0: the name does not exist.
    pub struct EntryOut[128] {
        pub node: u64,
        pub generation: u64,
        pub entry_valid: u64,
        pub attr_valid: u64,
        pub entry_valid_ns: u32,
        pub attr_valid_ns: u32,
        pub attr: AttrOut,
    }
    /// `fuse_attr_out`: GETATTR, SETATTR.
    pub struct AttrReply[104] {
        pub attr_valid: u64,
        pub attr_valid_ns: u32,
        pub padding: u32,
        pub attr: AttrOut,
    }
    /// `fuse_open_out`: OPEN, OPENDIR.
    pub struct OpenOut[16] {
        pub handle: u64,
        pub flags: u32,
        pub padding: u32,
    }
    /// Reply to CREATE.
    pub struct CreateOut[144] {
        pub entry: EntryOut,
        pub open: OpenOut,
    }
    /// `fuse_write_out`.
    pub struct WriteOut[8] {
        pub size: u32,
        pub padding: u32,
    }
    /// `fuse_statfs_out`.
    pub struct StatFsOut[80] {
        pub blocks: u64,
        pub blocks_free: u64,
        pub blocks_available: u64,
        pub files: u64,
        pub files_free: u64,
        pub block_size: u32,
        pub name_max: u32,
        pub fragment_size: u32,
        pub padding: u32,
        pub spare: [u32; 6],
    }
    /// `fuse_getxattr_out`: the size that the buffer must have.
    pub struct XattrSizeOut[8] {
        pub size: u32,
        pub padding: u32,
    }
    /// `fuse_init_in` up to 7.35.
    pub struct InitIn[16] {
        pub major: u32,
        pub minor: u32,
        pub max_readahead: u32,
        pub flags: u32,
    }
    /// `fuse_init_out`.
    pub struct InitOut[64] {
        pub major: u32,
        pub minor: u32,
        pub max_readahead: u32,
        pub flags: u32,
        pub max_background: u16,
        pub congestion_threshold: u16,
        pub max_write: u32,
        pub time_granularity: u32,
        pub max_pages: u16,
        pub map_alignment: u16,
        pub flags2: u32,
        pub unused: [u32; 7],
    }
    /// `fuse_dirent` without its name.
    pub struct Dirent[24] {
        pub ino: u64,
        pub offset: u64,
        pub name_length: u32,
        pub kind: u32,
    }
    /// `fuse_forget_one`.
    pub struct ForgetOne[16] {
        pub node: u64,
        pub count: u64,
    }
    /// `fuse_batch_forget_in`.
    pub struct BatchForgetIn[8] {
        pub count: u32,
        pub padding: u32,
    }
    /// `fuse_mknod_in`.
    pub struct MknodIn[16] {
        pub mode: u32,
        pub rdev: u32,
        pub umask: u32,
        pub padding: u32,
    }
    /// `fuse_mkdir_in`.
    pub struct MkdirIn[8] {
        pub mode: u32,
        pub umask: u32,
    }
    /// `fuse_rename2_in`.
    pub struct Rename2In[16] {
        pub to_dir: u64,
        pub flags: u32,
        pub padding: u32,
    }
    /// `fuse_setattr_in`.
    pub struct SetAttrIn[88] {
        pub valid: u32,
        pub padding: u32,
        pub handle: u64,
        pub size: u64,
        pub lock_owner: u64,
        pub atime: u64,
        pub mtime: u64,
        pub ctime: u64,
        pub atime_ns: u32,
        pub mtime_ns: u32,
        pub ctime_ns: u32,
        pub mode: u32,
        pub unused4: u32,
        pub uid: u32,
        pub gid: u32,
        pub unused5: u32,
    }
    /// `fuse_open_in`: OPEN, OPENDIR.
    pub struct OpenIn[8] {
        pub flags: u32,
        pub open_flags: u32,
    }
    /// `fuse_create_in`.
    pub struct CreateIn[16] {
        pub flags: u32,
        pub mode: u32,
        pub umask: u32,
        pub open_flags: u32,
    }
    /// `fuse_release_in`: RELEASE, RELEASEDIR.
    pub struct ReleaseIn[24] {
        pub handle: u64,
        pub flags: u32,
        pub release_flags: u32,
        pub lock_owner: u64,
    }
    /// `fuse_read_in`: READ, READDIR, READDIRPLUS.
    pub struct ReadIn[40] {
        pub handle: u64,
        pub offset: u64,
        pub size: u32,
        pub read_flags: u32,
        pub lock_owner: u64,
        pub flags: u32,
        pub padding: u32,
    }
    /// `fuse_write_in`.
    pub struct WriteIn[40] {
        pub handle: u64,
        pub offset: u64,
        pub size: u32,
        pub write_flags: u32,
        pub lock_owner: u64,
        pub flags: u32,
        pub padding: u32,
    }
    /// `fuse_lk_in`: GETLK, SETLK, SETLKW. `kind`: see `F_RDLCK`. `end` is inclusive, `i64::MAX` for the end of the
    /// file.
    pub struct LkIn[48] {
        pub handle: u64,
        pub owner: u64,
        pub start: u64,
        pub end: u64,
        pub kind: u32,
        pub pid: u32,
        pub lk_flags: u32,
        pub padding: u32,
    }
    /// `fuse_lk_out`: GETLK.
    pub struct LkOut[24] {
        pub start: u64,
        pub end: u64,
        pub kind: u32,
        pub pid: u32,
    }
    /// `fuse_flush_in`.
    pub struct FlushIn[24] {
        pub handle: u64,
        pub unused: u32,
        pub padding: u32,
        pub lock_owner: u64,
    }
    /// `fuse_fsync_in`: FSYNC, FSYNCDIR.
    pub struct FsyncIn[16] {
        pub handle: u64,
        pub fsync_flags: u32,
        pub padding: u32,
    }
    /// `fuse_setxattr_in` without FUSE_SETXATTR_EXT.
    pub struct SetXattrIn[8] {
        pub size: u32,
        pub flags: u32,
    }
    /// Extension of it with FUSE_SETXATTR_EXT.
    pub struct SetXattrExt[8] {
        pub flags: u32,
        pub padding: u32,
    }
    /// `fuse_fallocate_in`.
    pub struct FallocateIn[32] {
        pub handle: u64,
        pub offset: u64,
        pub length: u64,
        pub mode: u32,
        pub padding: u32,
    }
    /// `fuse_lseek_in`.
    pub struct LseekIn[24] {
        pub handle: u64,
        pub offset: u64,
        pub whence: u32,
        pub padding: u32,
    }
    /// `fuse_lseek_out`.
    pub struct LseekOut[8] {
        pub offset: u64,
    }
    /// `fuse_copy_file_range_in`.
    pub struct CopyIn[56] {
        pub from_handle: u64,
        pub from_offset: u64,
        pub to_node: u64,
        pub to_handle: u64,
        pub to_offset: u64,
        pub length: u64,
        pub flags: u64,
    }
    /// `fuse_getxattr_in`: GETXATTR, LISTXATTR.
    pub struct GetXattrIn[8] {
        pub size: u32,
        pub padding: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_have_the_numbers_and_names_of_fuse_h() {
        assert_eq!(Opcode::from_number(45), Some(Opcode::Rename2));
        assert_eq!(Opcode::Rename2.name(), "Rename2");
        assert_eq!(Opcode::from_number(7), None);
        assert!(Opcode::ALL.iter().all(|opcode| Opcode::from_number(*opcode as u32) == Some(*opcode)));
    }

    #[test]
    fn fields_are_where_fuse_h_has_them() {
        assert_eq!(std::mem::offset_of!(SetAttrIn, mode), 68);
        assert_eq!(std::mem::offset_of!(SetAttrIn, uid), 76);
        assert_eq!(std::mem::offset_of!(AttrOut, mode), 60);
        assert_eq!(std::mem::offset_of!(EntryOut, attr), 40);
        assert_eq!(std::mem::offset_of!(InitOut, flags2), 32);
        assert_eq!(std::mem::offset_of!(StatFsOut, name_max), 44);
        assert_eq!(std::mem::offset_of!(RingCommand, queue), 16);
        assert_eq!(std::mem::offset_of!(EntryInOut, payload_bytes), 16);
    }
}
