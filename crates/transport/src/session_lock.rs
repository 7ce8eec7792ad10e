//! A file for each session, which the session's process keeps locked. The kernel releases the lock when the last
//! process that has the file open has ended, and not before, so a server on the same machine can prove that a
//! session's process has ended (`docs/adr/0028-sessions-whose-process-has-ended.md`).
//!
//! Invariant: a free lock proves that the process has ended only if the server has itself observed a lock on the same
//! file since the machine booted. The proof depends on no message of a client.

use hekate_proto::{Error, Result, SessionId};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{Mode, OFlags, XattrFlags, fsetxattr, fstat, open};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Name of the directory of the lock files, which is beside the server's socket.
const DIRECTORY: &str = "session-locks";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Limit of the length of the note in a lock file, in bytes: the boot id has 36, the device and inode number at most 20
/// digits each.
const NOTE_BYTES_MAX: u64 = 128;

fn path_of(directory: &Path, session: SessionId) -> PathBuf {
    directory.join(session.0.to_string())
}

/// Lets a user read a file of this process's own user. The file keeps its owner: as the owner, the user could grow it
/// without limit.
fn grant_read(file: &File, uid: u32) -> std::io::Result<()> {
    if uid == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let acl = reader_acl(uid);
    Ok(fsetxattr(file, "system.posix_acl_access", &acl, XattrFlags::empty())?)
}

/// An ACL by which the owner reads and writes and one other user reads, in the kernel's format
/// (linux/posix_acl_xattr.h): the version, then tag, permissions and id of each entry.
fn reader_acl(uid: u32) -> Vec<u8> {
    const VERSION: u32 = 2;
    const NOBODY: u32 = u32::MAX;
    let (owner, user, group, mask, other) = (0x01, 0x02, 0x04, 0x10, 0x20);
    let entries: [(u16, u16, u32); 5] =
        [(owner, 6, NOBODY), (user, 4, uid), (group, 0, NOBODY), (mask, 4, NOBODY), (other, 0, NOBODY)];
    let mut acl = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    acl
}

/// A lock of an open file description (fcntl(2)) on the whole file.
fn whole_file(kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// A session's lock, held while this value and its process live.
#[derive(Debug)]
pub(crate) struct SessionLock {
    _file: rustix::fd::OwnedFd,
}

impl SessionLock {
    /// Takes the lock. `None` if this process cannot reach the server's file: the session then expires only after its
    /// idle time.
    pub fn take(socket: &Path, session: SessionId) -> Option<Self> {
        let path = path_of(&socket.parent()?.join(DIRECTORY), session);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = open(&path, flags, Mode::empty()).ok()?;
        fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_RDLCK))).ok()?;
        Some(Self { _file: file })
    }
}

/// State of a session's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionProcess {
    /// It has never been seen to hold the lock, or the file cannot be read.
    Unknown,
    /// It holds the lock.
    Lives,
    /// It was seen to hold the lock, and the lock is free.
    Ended,
}

/// The lock files of a server's sessions.
#[derive(Debug)]
pub struct SessionLocks {
    directory: PathBuf,
    boot: String,
}

impl SessionLocks {
    /// The lock files beside this socket.
    ///
    /// # Errors
    /// The directory cannot be made, or other users may write to it.
    pub fn beside(socket: &Path) -> Result<Self> {
        let directory = socket.parent().unwrap_or(Path::new("/")).join(DIRECTORY);
        let failed = |e| Error::io(format!("make the directory {}", directory.display()), e);
        match DirBuilder::new().mode(0o700).create(&directory) {
            // A user who can reach the socket can reach the lock files, whatever the umask; no other user can.
            Ok(()) => {
                let parent = std::fs::metadata(socket.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
                let mode = 0o700 | parent.mode() & 0o011;
                std::fs::set_permissions(&directory, Permissions::from_mode(mode)).map_err(failed)?;
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(e)),
        }
        let found = std::fs::symlink_metadata(&directory).map_err(failed)?;
        let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        if !is_own || found.mode() & 0o022 != 0 {
            let what = format!("{} is writable by others; remove it and start the server again", directory.display());
            return Err(Error::Denied { what });
        }
        let boot = std::fs::read_to_string(BOOT_ID).map_err(|e| Error::io(format!("read {BOOT_ID}"), e))?;
        Ok(Self { directory, boot: boot.trim().into() })
    }

    /// Makes the file of a new session of this user. No other user may open it: a user who takes and releases the
    /// lock of a session whose process does not reach the file would be mistaken for that process.
    ///
    /// # Errors
    /// The file cannot be made, or the file system has no ACLs (acl(5)), which let the user read it. No file is left
    /// then.
    pub fn begin(&self, session: SessionId, uid: u32) -> Result<()> {
        let path = path_of(&self.directory, session);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        made.and_then(|file| grant_read(&file, uid).inspect_err(|_| self.end(session)))
            .map_err(|e| Error::io(format!("make {} for user {uid}", path.display()), e))
    }

    /// Removes the file of a session that has ended.
    pub fn end(&self, session: SessionId) {
        // A file that remains belongs to no session and proves nothing.
        let _ = std::fs::remove_file(path_of(&self.directory, session));
    }

    /// Removes the files of all sessions for which `is_living` returns false.
    pub fn keep_only(&self, is_living: impl Fn(SessionId) -> bool) {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let sessions = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(SessionId));
        sessions.filter(|session| !is_living(*session)).for_each(|session| self.end(session));
    }

    /// State of the session's process. A lock that is held is noted in the file, so that a restarted server knows it.
    pub fn look(&self, session: SessionId) -> SessionProcess {
        self.try_look(session).unwrap_or(SessionProcess::Unknown)
    }

    fn try_look(&self, session: SessionId) -> std::io::Result<SessionProcess> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(path_of(&self.directory, session))?;
        let is_noted = self.is_noted(&mut file)?;
        let mut found = whole_file(libc::F_WRLCK);
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut found))?;
        let is_held = i32::from(found.l_type) != libc::F_UNLCK;
        if is_held && !is_noted {
            file.set_len(0)?;
            file.write_all(self.note(&file)?.as_bytes())?;
        }
        Ok(match (is_held, is_noted) {
            (true, _) => SessionProcess::Lives,
            (false, true) => SessionProcess::Ended,
            (false, false) => SessionProcess::Unknown,
        })
    }

    /// The note names this boot of the machine and this file: a copy of the file has never been locked.
    fn note(&self, file: &File) -> std::io::Result<String> {
        let found = fstat(file)?;
        Ok(format!("{} {} {}\n", self.boot, found.st_dev, found.st_ino))
    }

    fn is_noted(&self, file: &mut File) -> std::io::Result<bool> {
        let mut text = String::new();
        file.take(NOTE_BYTES_MAX).read_to_string(&mut text)?;
        let is_noted = text == self.note(file)?;
        if !is_noted {
            std::io::Seek::rewind(file)?;
        }
        Ok(is_noted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestDirectory(PathBuf);

    impl TestDirectory {
        fn new(name: &str) -> Self {
            let directory = std::env::temp_dir().join(format!("hekate-session-lock-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::create_dir_all(&directory).unwrap();
            Self(directory)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("server.sock")
        }

        fn locks(&self) -> SessionLocks {
            SessionLocks::beside(&self.socket()).unwrap()
        }
    }

    impl Drop for TestDirectory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const SESSION: SessionId = SessionId(7);

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    impl SessionLocks {
        fn has_ended(&self, session: SessionId) -> bool {
            self.look(session) == SessionProcess::Ended
        }
    }

    #[test]
    fn a_lock_that_was_seen_and_is_free_proves_the_end_also_to_the_next_server() {
        let place = TestDirectory::new("seen");
        let locks = place.locks();
        assert!(!locks.has_ended(SESSION), "there is no file");
        locks.begin(SESSION, own_uid()).unwrap();
        assert!(!locks.has_ended(SESSION), "nobody has locked it yet");
        let held = SessionLock::take(&place.socket(), SESSION).unwrap();
        assert!(!locks.has_ended(SESSION) && !place.locks().has_ended(SESSION), "it is held");
        drop(held);
        assert!(place.locks().has_ended(SESSION) && locks.has_ended(SESSION));
        let again = SessionLock::take(&place.socket(), SESSION).unwrap();
        assert!(!locks.has_ended(SESSION), "held again");
        drop(again);
        locks.end(SESSION);
        assert!(!locks.has_ended(SESSION), "the file is gone");
    }

    #[test]
    fn a_lock_that_was_never_seen_proves_nothing() {
        let place = TestDirectory::new("unseen");
        let locks = place.locks();
        locks.begin(SESSION, own_uid()).unwrap();
        drop(SessionLock::take(&place.socket(), SESSION).unwrap());
        assert!(!locks.has_ended(SESSION));
    }

    /// A user who locks and releases the file of another user's session would prove that its process has ended. Root
    /// tries as other users.
    #[test]
    fn nobody_but_the_user_of_a_session_can_lock_its_file() {
        let place = TestDirectory::new("private");
        let locks = place.locks();
        let (user, stranger) = (12_345, 12_346);
        locks.begin(SESSION, user).unwrap();
        let found = std::fs::metadata(path_of(&locks.directory, SESSION)).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o007), (own_uid(), 0));
        if own_uid() != 0 {
            return;
        }
        let takes = |uid: u32| {
            let socket = place.socket();
            let take = move || {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
                SessionLock::take(&socket, SESSION)
            };
            std::thread::spawn(take).join().unwrap()
        };
        assert!(takes(stranger).is_none());
        let held = takes(user).unwrap();
        assert!(!locks.has_ended(SESSION));
        drop(held);
        assert!(locks.has_ended(SESSION));
    }

    #[test]
    fn a_copy_and_another_boot_prove_nothing() {
        let place = TestDirectory::new("copy");
        let locks = place.locks();
        locks.begin(SESSION, own_uid()).unwrap();
        let held = SessionLock::take(&place.socket(), SESSION).unwrap();
        assert!(!locks.has_ended(SESSION));
        let (from, to) = (path_of(&locks.directory, SESSION), path_of(&locks.directory, SessionId(8)));
        std::fs::copy(from, to).unwrap();
        assert!(!locks.has_ended(SessionId(8)), "the copy is not locked, and never was");
        drop(held);
        let rebooted = SessionLocks { boot: "another".into(), ..place.locks() };
        assert!(!rebooted.has_ended(SESSION) && locks.has_ended(SESSION));
    }

    /// A child process of a mount inherits the descriptor and may still use the session.
    #[test]
    fn a_lock_is_held_until_the_last_descriptor_is_closed() {
        let place = TestDirectory::new("dup");
        let locks = place.locks();
        locks.begin(SESSION, own_uid()).unwrap();
        let held = SessionLock::take(&place.socket(), SESSION).unwrap();
        let copy = held._file.try_clone().unwrap();
        assert!(!locks.has_ended(SESSION));
        drop(held);
        assert!(!locks.has_ended(SESSION));
        drop(copy);
        assert!(locks.has_ended(SESSION));
    }

    #[test]
    fn files_of_other_sessions_are_removed_and_a_place_of_others_is_refused() {
        let place = TestDirectory::new("keep");
        let locks = place.locks();
        (1..4).for_each(|number| locks.begin(SessionId(number), own_uid()).unwrap());
        locks.keep_only(|session| session == SessionId(2));
        let left: Vec<_> =
            std::fs::read_dir(&locks.directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["2"]);
        std::fs::set_permissions(&locks.directory, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(SessionLocks::beside(&place.socket()), Err(Error::Denied { .. })));
    }
}
