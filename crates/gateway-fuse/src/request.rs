//! Parses requests of the kernel: [`parse`] is a pure function and never panics, whatever the bytes are.
//!
//! Names are checked here, once. The data of a WRITE shares the buffer of the request.

use crate::abi::*;
use bytes::Bytes;
use hekate_proto::Name;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// A request of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The number that the reply must carry.
    pub unique: u64,
    /// The inode of the request; for requests that make or remove a name, the directory.
    pub node: u64,
    /// The caller's user id.
    pub uid: u32,
    /// The caller's group id.
    pub gid: u32,
    /// The caller's thread. 0 if it cannot be seen from this pid namespace.
    pub pid: u32,
    pub opcode: Opcode,
    /// Its arguments.
    pub body: Body,
}

/// Arguments of a request, by opcode.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Body {
    Init {
        init: InitIn,
        flags: u64,
    },
    Destroy,
    Interrupt {
        of: u64,
    },
    Forget {
        forgotten: Vec<ForgetOne>,
    },
    Lookup {
        name: Name,
    },
    /// LOOKUP of `.`: the node is known from a file handle.
    LookupSelf,
    /// LOOKUP of `..`.
    LookupParent,
    GetAttr {
        /// The open file through which the kernel is about to read, or to seek.
        handle: Option<u64>,
    },
    SetAttr {
        set: SetAttrIn,
    },
    ReadLink,
    Symlink {
        name: Name,
        target: Bytes,
    },
    Mknod {
        name: Name,
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: Name,
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: Name,
    },
    Rmdir {
        name: Name,
    },
    Rename {
        name: Name,
        to_dir: u64,
        to_name: Name,
        flags: u32,
    },
    Link {
        inode: u64,
        name: Name,
    },
    Open {
        open: OpenIn,
    },
    Create {
        create: CreateIn,
        name: Name,
    },
    /// O_TMPFILE.
    CreateUnnamed {
        create: CreateIn,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
        flags: u32,
        /// The bytes go to the page cache.
        is_page: bool,
    },
    Write {
        offset: u64,
        write_flags: u32,
        flags: u32,
        data: Bytes,
    },
    StatFs,
    Release {
        release: ReleaseIn,
    },
    /// A descriptor of an open file was closed; others may remain.
    Flush {
        handle: u64,
        owner: u64,
    },
    GetLk {
        lk: LkIn,
    },
    SetLk {
        lk: LkIn,
        wait: bool,
    },
    Fsync {
        handle: u64,
    },
    SetXattr {
        name: Bytes,
        value: Bytes,
        flags: u32,
        drop_set_group: bool,
    },
    GetXattr {
        name: Bytes,
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: Bytes,
    },
    OpenDir,
    ReadDir {
        handle: u64,
        offset: u64,
        size: u32,
        flags: u32,
        plus: bool,
    },
    ReleaseDir {
        handle: u64,
    },
    FsyncDir {
        handle: u64,
    },
    Fallocate {
        asked: FallocateIn,
    },
    Lseek {
        asked: LseekIn,
    },
    CopyFileRange {
        asked: CopyIn,
    },
    /// A request that is answered with ENOSYS. The kernel then works without it.
    Unserved,
}

/// Why a request could not be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    /// The request to answer, if its header could be read.
    pub unique: Option<u64>,
    /// The error of the reply.
    pub errno: Errno,
    /// The reason, for the log.
    pub what: &'static str,
}

type Bad = (Errno, &'static str);

/// Parses one request, which fills `bytes`.
///
/// # Errors
/// The bytes are not a request of FUSE 7.31 to 7.40, or a name in it is not a valid one. [`Malformed::errno`] is the
/// errno of the reply.
pub fn parse(bytes: &Bytes) -> Result<Request, Malformed> {
    let mut input = Input(bytes.clone());
    let refuse = |unique| move |(errno, what): Bad| Malformed { unique, errno, what };
    let header: InHeader = input.fixed().map_err(refuse(None))?;
    let refuse = refuse(Some(header.unique));
    if header.len as usize != bytes.len() {
        return Err(refuse((Errno::INVAL, "the length differs from the one in the header")));
    }
    let Some(opcode) = Opcode::from_number(header.opcode) else {
        return Err(refuse((Errno::NOSYS, "the opcode is unknown")));
    };
    let body = body(opcode, &mut input).map_err(refuse)?;
    let InHeader { unique, node, uid, gid, pid, .. } = header;
    Ok(Request { unique, node, uid, gid, pid, opcode, body })
}

fn body(opcode: Opcode, input: &mut Input) -> Result<Body, Bad> {
    match opcode {
        Opcode::Init | Opcode::Destroy | Opcode::Interrupt | Opcode::Forget | Opcode::BatchForget => {
            session_body(opcode, input)
        }
        Opcode::Read | Opcode::Write | Opcode::ReadDir | Opcode::ReadDirPlus | Opcode::ReleaseDir => {
            data_body(opcode, input)
        }
        Opcode::SetXattr | Opcode::GetXattr | Opcode::ListXattr | Opcode::RemoveXattr => xattr_body(opcode, input),
        Opcode::GetAttr => {
            let GetAttrIn { flags, handle, .. } = input.fixed()?;
            Ok(Body::GetAttr { handle: (flags & GETATTR_HANDLE != 0).then_some(handle) })
        }
        Opcode::SetAttr => Ok(Body::SetAttr { set: input.fixed()? }),
        Opcode::ReadLink => Ok(Body::ReadLink),
        Opcode::Open => Ok(Body::Open { open: input.fixed()? }),
        Opcode::Release => Ok(Body::Release { release: input.fixed()? }),
        Opcode::Flush => {
            let FlushIn { handle, lock_owner, .. } = input.fixed()?;
            Ok(Body::Flush { handle, owner: lock_owner })
        }
        Opcode::GetLk => Ok(Body::GetLk { lk: input.fixed()? }),
        Opcode::SetLk | Opcode::SetLkw => Ok(Body::SetLk { lk: input.fixed()?, wait: opcode == Opcode::SetLkw }),
        Opcode::Fsync => Ok(Body::Fsync { handle: input.fixed::<FsyncIn>()?.handle }),
        Opcode::OpenDir => Ok(Body::OpenDir),
        Opcode::FsyncDir => Ok(Body::FsyncDir { handle: input.fixed::<FsyncIn>()?.handle }),
        Opcode::StatFs => Ok(Body::StatFs),
        Opcode::Fallocate => Ok(Body::Fallocate { asked: input.fixed()? }),
        Opcode::Lseek => Ok(Body::Lseek { asked: input.fixed()? }),
        Opcode::CopyFileRange => Ok(Body::CopyFileRange { asked: input.fixed()? }),
        // The kernel sends a name that has no meaning.
        Opcode::TmpFile => Ok(Body::CreateUnnamed { create: input.fixed()? }),
        other => name_body(other, input),
    }
}

fn session_body(opcode: Opcode, input: &mut Input) -> Result<Body, Bad> {
    Ok(match opcode {
        Opcode::Init => init_body(input)?,
        Opcode::Interrupt => Body::Interrupt { of: input.fixed()? },
        // The node is in the header; `session.rs` fills it in.
        Opcode::Forget => Body::Forget { forgotten: vec![ForgetOne { node: 0, count: input.fixed()? }] },
        Opcode::BatchForget => {
            let BatchForgetIn { count, .. } = input.fixed()?;
            let fits = (input.0.len() / size_of::<ForgetOne>()).min(count as usize);
            Body::Forget { forgotten: (0..fits).map(|_| input.fixed()).collect::<Result<_, _>>()? }
        }
        _ => Body::Destroy,
    })
}

/// Since 7.36 the flags have a second word, if the first word says so.
fn init_body(input: &mut Input) -> Result<Body, Bad> {
    let init: InitIn = input.fixed()?;
    let mut flags = u64::from(init.flags);
    if flags & init::INIT_EXT != 0 {
        flags |= u64::from(input.fixed::<u32>()?) << 32;
    }
    Ok(Body::Init { init, flags })
}

fn data_body(opcode: Opcode, input: &mut Input) -> Result<Body, Bad> {
    if opcode == Opcode::ReleaseDir {
        let ReleaseIn { handle, .. } = input.fixed()?;
        return Ok(Body::ReleaseDir { handle });
    }
    if opcode == Opcode::Write {
        let WriteIn { offset, size, write_flags, flags, .. } = input.fixed()?;
        return Ok(Body::Write { offset, write_flags, flags, data: input.bytes(size)? });
    }
    let ReadIn { handle, offset, size, flags, read_flags, .. } = input.fixed()?;
    let is_page = read_flags & READ_LOCKOWNER == 0;
    Ok(match opcode {
        Opcode::Read => Body::Read { handle, offset, size, flags, is_page },
        _ => Body::ReadDir { handle, offset, size, flags, plus: opcode == Opcode::ReadDirPlus },
    })
}

fn xattr_body(opcode: Opcode, input: &mut Input) -> Result<Body, Bad> {
    Ok(match opcode {
        Opcode::SetXattr => {
            let SetXattrIn { size, flags } = input.fixed()?;
            let ext = if input.has_more_than(size)? { input.fixed()? } else { SetXattrExt::default() };
            let drop_set_group = ext.flags & SETXATTR_ACL_KILL_SGID != 0;
            Body::SetXattr { name: input.text()?, value: input.bytes(size)?, flags, drop_set_group }
        }
        Opcode::GetXattr => {
            let GetXattrIn { size, .. } = input.fixed()?;
            Body::GetXattr { name: input.text()?, size }
        }
        Opcode::ListXattr => Body::ListXattr { size: input.fixed::<GetXattrIn>()?.size },
        _ => Body::RemoveXattr { name: input.text()? },
    })
}

fn name_body(opcode: Opcode, input: &mut Input) -> Result<Body, Bad> {
    Ok(match opcode {
        Opcode::Lookup => lookup_body(input)?,
        Opcode::Unlink => Body::Unlink { name: input.name()? },
        Opcode::Rmdir => Body::Rmdir { name: input.name()? },
        Opcode::Symlink => Body::Symlink { name: input.name()?, target: input.text()? },
        Opcode::Link => Body::Link { inode: input.fixed()?, name: input.name()? },
        Opcode::Mknod => {
            let MknodIn { mode, rdev, umask, .. } = input.fixed()?;
            Body::Mknod { name: input.name()?, mode, rdev, umask }
        }
        Opcode::Mkdir => {
            let MkdirIn { mode, umask } = input.fixed()?;
            Body::Mkdir { name: input.name()?, mode, umask }
        }
        Opcode::Create => Body::Create { create: input.fixed()?, name: input.name()? },
        Opcode::Rename => {
            let to_dir = input.fixed()?;
            Body::Rename { name: input.name()?, to_dir, to_name: input.name()?, flags: 0 }
        }
        Opcode::Rename2 => {
            let Rename2In { to_dir, flags, .. } = input.fixed()?;
            Body::Rename { name: input.name()?, to_dir, to_name: input.name()?, flags }
        }
        _ => Body::Unserved,
    })
}

/// The kernel resolves `.` and `..` itself, except when it starts from a file handle.
fn lookup_body(input: &mut Input) -> Result<Body, Bad> {
    Ok(match &input.0[..] {
        b".\0" => Body::LookupSelf,
        b"..\0" => Body::LookupParent,
        _ => Body::Lookup { name: input.name()? },
    })
}

/// A cursor over a request.
struct Input(Bytes);

impl Input {
    fn fixed<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Bad> {
        let (value, _) = T::read_from_prefix(&self.0).map_err(|_| SHORT)?;
        self.0 = self.0.slice(size_of::<T>()..);
        Ok(value)
    }

    fn bytes(&mut self, count: u32) -> Result<Bytes, Bad> {
        if count as usize > self.0.len() {
            return Err(SHORT);
        }
        Ok(self.0.split_to(count as usize))
    }

    /// The bytes up to a NUL, which is skipped.
    fn text(&mut self) -> Result<Bytes, Bad> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(SHORT)?;
        let text = self.0.split_to(end);
        self.0 = self.0.slice(1..);
        Ok(text)
    }

    /// True if more is left than a name with its NUL and a value of `size` bytes. Kernels since 5.13 send flags
    /// before the name, and these begin with a NUL or contain one.
    fn has_more_than(&self, size: u32) -> Result<bool, Bad> {
        let before = self.0.len().checked_sub(size as usize).ok_or(SHORT)?;
        Ok(self.0[..before].iter().position(|byte| *byte == 0).is_some_and(|end| end + 1 < before))
    }

    fn name(&mut self) -> Result<Name, Bad> {
        let text = self.text()?;
        let errno = if text.len() > 255 { Errno::NAMETOOLONG } else { Errno::INVAL };
        Name::new(text).map_err(|malformed| (errno, malformed.0))
    }
}

const SHORT: Bad = (Errno::INVAL, "the request is shorter than its opcode requires");

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    /// A request as the kernel sends it.
    pub(crate) fn sample(opcode: u32, unique: u64, node: u64, parts: &[&[u8]]) -> Bytes {
        let rest = parts.concat();
        let len = (size_of::<InHeader>() + rest.len()) as u32;
        let header = InHeader { len, opcode, unique, node, uid: 1000, gid: 100, ..Default::default() };
        [header.as_bytes(), &rest].concat().into()
    }

    fn acl() -> Bytes {
        let ext = SetXattrExt { flags: SETXATTR_ACL_KILL_SGID, padding: 0 };
        sample(21, 21, 7, &[SetXattrIn { size: 3, flags: 0 }.as_bytes(), ext.as_bytes(), b"user.x\0\0\0a"])
    }

    #[test]
    fn a_setxattr_of_either_kernel_is_understood() {
        let body = |bytes: &Bytes| parse(bytes).unwrap().body;
        let Body::SetXattr { name, value, drop_set_group, .. } = body(&acl()) else { panic!("a setxattr") };
        assert_eq!((&name[..], &value[..], drop_set_group), (&b"user.x"[..], &b"\0\0a"[..], true));
        let none =
            sample(21, 21, 7, &[SetXattrIn::default().as_bytes(), SetXattrExt::default().as_bytes(), b"user.x\0"]);
        assert!(matches!(body(&none), Body::SetXattr { drop_set_group: false, value, .. } if value.is_empty()));
        let old = sample(21, 21, 7, &[SetXattrIn { size: 3, flags: 0 }.as_bytes(), b"user.x\0\0\0a"]);
        assert!(matches!(body(&old), Body::SetXattr { drop_set_group: false, value, .. } if value.len() == 3));
    }

    fn samples() -> Vec<Bytes> {
        let write = WriteIn { size: 5, offset: 8192, flags: 0x401, write_flags: 4, ..Default::default() };
        let rename = Rename2In { to_dir: 9, flags: 2, padding: 0 };
        let forget = [ForgetOne { node: 5, count: 1 }, ForgetOne { node: 6, count: 2 }];
        vec![
            sample(26, 1, 0, &[InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: !0 }.as_bytes(), &[0; 48]]),
            sample(1, 2, 1, &[b"name\0"]),
            sample(3, 3, 1, &[&[0; 16]]),
            sample(4, 4, 7, &[SetAttrIn { valid: 1, mode: 0o600, ..Default::default() }.as_bytes()]),
            sample(6, 5, 1, &[b"link\0target/of it\0"]),
            sample(8, 6, 1, &[MknodIn { mode: 0o10644, ..Default::default() }.as_bytes(), b"fifo\0"]),
            sample(12, 7, 1, &[9u64.as_bytes(), b"a\0b\0"]),
            sample(45, 8, 1, &[rename.as_bytes(), b"a\0b\0"]),
            sample(16, 9, 7, &[write.as_bytes(), b"hello"]),
            sample(21, 10, 7, &[SetXattrIn { size: 3, flags: 1 }.as_bytes(), b"user.x\0abc"]),
            acl(),
            sample(43, 17, 7, &[FallocateIn { offset: 3, length: 4, mode: 3, ..Default::default() }.as_bytes()]),
            sample(46, 18, 7, &[LseekIn { offset: 3, whence: 4, ..Default::default() }.as_bytes()]),
            sample(47, 19, 7, &[CopyIn { to_node: 9, length: 4, ..Default::default() }.as_bytes()]),
            sample(51, 20, 1, &[CreateIn { flags: 0x42, mode: 0o100644, ..Default::default() }.as_bytes(), b"/\0"]),
            sample(28, 11, 1, &[ReadIn { handle: 3, size: 4096, ..Default::default() }.as_bytes()]),
            sample(35, 12, 1, &[CreateIn { flags: 0x42, mode: 0o100644, ..Default::default() }.as_bytes(), b"f\0"]),
            sample(36, 13, 0, &[9u64.as_bytes()]),
            sample(33, 15, 7, &[LkIn { owner: 4, end: 9, kind: F_WRLCK, ..Default::default() }.as_bytes()]),
            sample(25, 16, 7, &[FlushIn { lock_owner: 4, ..Default::default() }.as_bytes()]),
            sample(42, 14, 0, &[BatchForgetIn { count: 2, padding: 0 }.as_bytes(), forget.as_bytes()]),
        ]
    }

    #[test]
    fn every_sample_is_understood() {
        let requests: Vec<_> = samples().iter().map(|bytes| parse(bytes).unwrap()).collect();
        assert_eq!(requests[0].opcode, Opcode::Init);
        assert_eq!(requests[1].body, Body::Lookup { name: Name::try_from("name").unwrap() });
        assert_eq!((requests[1].uid, requests[1].gid, requests[1].node), (1000, 100, 1));
        let target = Bytes::from_static(b"target/of it");
        assert_eq!(requests[4].body, Body::Symlink { name: Name::try_from("link").unwrap(), target });
        assert!(matches!(&requests[7].body, Body::Rename { to_dir: 9, flags: 2, .. }));
        assert!(matches!(&requests[8].body, Body::Write { offset: 8192, data, .. } if &data[..] == b"hello"));
        assert!(matches!(&requests[9].body, Body::SetXattr { value, .. } if &value[..] == b"abc"));
        assert!(matches!(&requests[18].body, Body::SetLk { lk: LkIn { owner: 4, end: 9, .. }, wait: true }));
        assert_eq!(requests[19].body, Body::Flush { handle: 0, owner: 4 });
        assert!(matches!(&requests[20].body, Body::Forget { forgotten } if forgotten.len() == 2));
    }

    #[test]
    fn dots_are_looked_up_and_nothing_else_is_done_with_them() {
        let body = |opcode, name: &[u8]| parse(&sample(opcode, 2, 7, &[name])).map(|request| request.body);
        assert_eq!(body(1, b".\0"), Ok(Body::LookupSelf));
        assert_eq!(body(1, b"..\0"), Ok(Body::LookupParent));
        assert_eq!(body(1, b"...\0"), Ok(Body::Lookup { name: Name::try_from("...").unwrap() }));
        assert_eq!(body(10, b".\0").unwrap_err().errno, Errno::INVAL);
        assert_eq!(body(11, b"..\0").unwrap_err().errno, Errno::INVAL);
    }

    #[test]
    fn the_bytes_of_a_write_are_not_copied() {
        let bytes = samples()[8].clone();
        let Body::Write { data, .. } = parse(&bytes).unwrap().body else { panic!("a write") };
        assert_eq!(data.as_ptr(), bytes[80..].as_ptr());
    }

    #[test]
    fn a_read_without_the_owner_of_its_file_is_for_the_page_cache() {
        let body = |read_flags| parse(&sample(15, 2, 7, &[ReadIn { read_flags, ..Default::default() }.as_bytes()]));
        let is_page = |read_flags| matches!(body(read_flags).unwrap().body, Body::Read { is_page: true, .. });
        assert_eq!([0, READ_LOCKOWNER].map(is_page), [true, false]);
    }

    #[test]
    fn bad_names_are_refused_with_the_errno_of_posix() {
        let refused = |name: &[u8]| parse(&sample(1, 2, 1, &[name])).unwrap_err().errno;
        assert_eq!(refused(&[&[b'x'; 256][..], b"\0"].concat()), Errno::NAMETOOLONG);
        assert_eq!(refused(b"a/b\0"), Errno::INVAL);
        assert_eq!(refused(b"\0"), Errno::INVAL);
        assert_eq!(refused(b"unended"), Errno::INVAL);
    }

    #[test]
    fn an_unknown_opcode_is_answered_and_a_torn_header_is_not() {
        assert_eq!(parse(&sample(4711, 2, 1, &[])).unwrap_err(), {
            Malformed { unique: Some(2), errno: Errno::NOSYS, what: "the opcode is unknown" }
        });
        assert_eq!(parse(&Bytes::from_static(&[1, 2, 3])).unwrap_err().unique, None);
    }

    #[test]
    fn truncated_and_mutated_requests_never_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let samples = samples();
        for _ in 0..10_000 {
            let mut bytes = samples[random(samples.len())].to_vec();
            for _ in 0..=random(4) {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            bytes.truncate(random(bytes.len() + 1));
            if random(2) == 0 && bytes.len() >= 4 {
                let len = bytes.len() as u32;
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
            }
            let _ = parse(&bytes.into());
        }
    }
}
