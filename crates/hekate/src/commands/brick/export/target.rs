//! The target of an export: an empty directory. Everything is made by name in an open directory, never over something
//! that exists, and no link is followed, so that no name on a brick leads out of it.

use crate::failure::Failure;
use hekate_proto::{Error, InodeRecord, Name, NodeKind, Time};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use std::path::Path;

pub struct Target {
    root: OwnedFd,
}

/// Why something was not made: the export continues, or ends because nothing more can be made.
#[derive(Debug)]
pub enum NotMade {
    Said(String),
    Ends(Failure),
}

impl NotMade {
    fn of(doing: &str, error: Errno) -> Self {
        let text = format!("{doing}: {}", std::io::Error::from(error));
        match error {
            Errno::NOSPC | Errno::DQUOT => Self::Ends(Error::NoSpace { what: text }.into()),
            Errno::IO | Errno::ROFS | Errno::MFILE | Errno::NFILE => Self::Ends(Error::Io { what: text }.into()),
            _ => Self::Said(text),
        }
    }
}

pub type Made<T> = Result<T, NotMade>;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// EX_CANTCREAT of sysexits(3).
const CANNOT_CREATE: u8 = 73;

impl Target {
    /// A missing directory counts as empty: [`Target::make`] makes it.
    ///
    /// # Errors
    ///
    /// The directory has entries, or cannot be read.
    pub fn check_empty(path: &Path) -> Result<(), Failure> {
        let shown = path.display();
        let mut entries = match std::fs::read_dir(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Failure::new(CANNOT_CREATE, format!("{shown}: {error}"))),
            Ok(entries) => entries,
        };
        // mkfs makes `lost+found` in a new file system.
        if entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found")) {
            let text = format!("{shown} is not empty; name an empty directory, or one that does not exist yet");
            return Err(Failure::new(CANNOT_CREATE, text));
        }
        Ok(())
    }

    /// Makes the directory, unless it exists.
    ///
    /// # Errors
    ///
    /// The directory cannot be made or opened.
    pub fn make(path: &Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(CANNOT_CREATE, format!("make {}: {error}", path.display()));
        std::fs::create_dir_all(path).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        // The umask would change the modes of the originals.
        rustix::process::umask(Mode::empty());
        Ok(Self { root })
    }

    /// Makes the directory of a volume.
    ///
    /// # Errors
    ///
    /// The directory cannot be made.
    pub fn make_top(&self, name: &str) -> Result<OwnedFd, Failure> {
        let made =
            Name::try_from(name).map_err(Error::from).map(|name| make_directory(self.root.as_fd(), name.as_bytes()));
        made?.map_err(|error| match error {
            NotMade::Said(text) => Failure::new(CANNOT_CREATE, format!("{name}: {text}")),
            NotMade::Ends(failure) => failure,
        })
    }
}

/// Makes a directory, for the owner alone until [`finish`].
pub fn make_directory(within: BorrowedFd, name: &[u8]) -> Made<OwnedFd> {
    rustix::fs::mkdirat(within, name, Mode::RWXU).map_err(|error| NotMade::of("mkdir", error))?;
    rustix::fs::openat(within, name, DIRECTORY, Mode::empty()).map_err(|error| NotMade::of("open", error))
}

/// Makes a file.
pub fn make_file(within: BorrowedFd, name: &[u8]) -> Made<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(within, name, flags, Mode::RUSR | Mode::WUSR).map_err(|error| NotMade::of("create", error))
}

/// Makes a further name, in `within`, of the file at `old` below `top`.
pub fn make_link(top: BorrowedFd, old: &[u8], within: BorrowedFd, name: &[u8]) -> Made<()> {
    let cut = old.iter().rposition(|byte| *byte == b'/');
    let (directory, file) = cut.map_or((&b"."[..], old), |at| (&old[..at], &old[at + 1..]));
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(top, directory, DIRECTORY, Mode::empty(), resolve)
        .and_then(|directory| rustix::fs::linkat(directory, file, within, name, AtFlags::empty()))
        .map_err(|error| NotMade::of("link", error))
}

/// Makes a symbolic link.
pub fn make_symlink(within: BorrowedFd, name: &[u8], to: &[u8], record: &InodeRecord) -> Made<()> {
    rustix::fs::symlinkat(to, within, name).map_err(|error| NotMade::of("symlink", error))?;
    finish_by_name(within, name, record)
}

/// Makes a FIFO, socket or device node.
pub fn make_node(within: BorrowedFd, name: &[u8], record: &InodeRecord) -> Made<()> {
    let kind = match record.kind {
        NodeKind::Fifo => FileType::Fifo,
        NodeKind::Socket => FileType::Socket,
        NodeKind::CharDevice => FileType::CharacterDevice,
        NodeKind::BlockDevice => FileType::BlockDevice,
        NodeKind::File | NodeKind::Directory | NodeKind::Symlink => {
            return Err(NotMade::Said("its kind is not that of a special file".into()));
        }
    };
    let mode = Mode::from_raw_mode(u32::from(record.mode));
    rustix::fs::mknodat(within, name, kind, mode, record.device).map_err(|error| NotMade::of("mknod", error))?;
    finish_by_name(within, name, record)
}

fn finish_by_name(within: BorrowedFd, name: &[u8], record: &InodeRecord) -> Made<()> {
    let failed = |doing| move |error| NotMade::of(doing, error);
    if is_root() {
        let (uid, gid) = owner(record)?;
        rustix::fs::chownat(within, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("chown"))?;
    }
    rustix::fs::utimensat(within, name, &times(record), AtFlags::SYMLINK_NOFOLLOW).map_err(failed("set times"))
}

/// Sets owner (as root), mode and times of a file or directory, once its contents are complete.
pub fn finish(file: BorrowedFd, record: &InodeRecord) -> Made<()> {
    let failed = |doing| move |error| NotMade::of(doing, error);
    let mut mode = u32::from(record.mode) & 0o7777;
    if is_root() {
        let (uid, gid) = owner(record)?;
        rustix::fs::fchown(file, uid, gid).map_err(failed("chown"))?;
    } else if record.kind != NodeKind::Directory {
        // The copy belongs to the user who exports: a set-user-ID bit would let others act as that user.
        mode &= 0o1777;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(failed("chmod"))?;
    rustix::fs::futimens(file, &times(record)).map_err(failed("set times"))
}

/// Sets an extended attribute.
pub fn set_attribute(file: BorrowedFd, name: &[u8], value: &[u8]) -> Made<()> {
    rustix::fs::fsetxattr(file, name, value, rustix::fs::XattrFlags::empty())
        .map_err(|error| NotMade::of("set the attribute", error))
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// chown(2) takes -1 for "unchanged", so no user has that number.
fn owner(record: &InodeRecord) -> Made<(Option<Uid>, Option<Gid>)> {
    if record.uid == u32::MAX || record.gid == u32::MAX {
        return Err(NotMade::Said("its owner is the number -1, which no user has".into()));
    }
    Ok((Some(Uid::from_raw(record.uid)), Some(Gid::from_raw(record.gid))))
}

fn times(record: &InodeRecord) -> Timestamps {
    const SECOND: i64 = 1_000_000_000;
    let spec = |Time(time): Time| Timespec { tv_sec: time.div_euclid(SECOND), tv_nsec: time.rem_euclid(SECOND) };
    Timestamps { last_access: spec(record.atime), last_modification: spec(record.mtime) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<T>(made: Made<T>) -> bool {
        matches!(made, Err(NotMade::Said(_)))
    }

    #[test]
    fn nothing_is_made_outside_or_over_what_is_there() {
        let base = std::env::temp_dir().join(format!("hekate-target-{}", std::process::id()));
        let outside = base.join("outside");
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("precious"), "p").unwrap();
        let target = Target::make(&base.join("to")).unwrap();
        let top = target.make_top("v").unwrap();
        let to_outside = outside.to_str().unwrap().as_bytes();
        rustix::fs::symlinkat(to_outside, &top, "link").unwrap();
        rustix::fs::symlinkat(outside.join("precious").to_str().unwrap(), &top, "file").unwrap();
        assert!(said(make_directory(top.as_fd(), b"link")), "a directory over a link");
        assert!(said(make_file(top.as_fd(), b"file")), "a file over a link");
        make_file(top.as_fd(), b"own").unwrap();
        assert!(said(make_link(top.as_fd(), b"link/precious", top.as_fd(), b"stolen")), "through a link");
        assert!(said(make_link(top.as_fd(), b"../../outside/precious", top.as_fd(), b"stolen")), "out of the top");
        make_link(top.as_fd(), b"own", top.as_fd(), b"second").unwrap();
        for name in ["..", ".", "", "a/b", "/tmp/x"] {
            assert!(target.make_top(name).is_err(), "{name:?}");
        }
        assert!(Target::check_empty(&base.join("to")).is_err());
        assert!(Target::check_empty(&base.join("missing")).is_ok());
        assert_eq!(std::fs::read_to_string(outside.join("precious")).unwrap(), "p");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
