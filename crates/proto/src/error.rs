//! The one error type of all layers, and the one table that maps each error to an errno, an exit status and an
//! advice.

use crate::ids::{Epoch, ServerId, Stamp};
use crate::wire_enum;

/// Result of an op in every layer.
pub type Result<T> = std::result::Result<T, Error>;

wire_enum! {
    /// Why an op was not executed. Each error maps to one errno, one exit status and one advice: [`Error::entry`].
    pub enum Error {
        1 = NotFound,
        2 = Exists,
        3 = NotDirectory,
        4 = IsDirectory,
        5 = NotEmpty,
        6 = NameTooLong,
        7 = Invalid { what: String },
        8 = NoSpace { what: String },
        9 = TooLarge,
        10 = TooManyLinks,
        11 = NoAttribute,
        12 = AttributeTooLarge,
        13 = Denied { what: String },
        14 = Loop,
        15 = ReadOnly,
        16 = NotSupported { what: String },
        /// SEEK_DATA or SEEK_HOLE found nothing.
        17 = NoData,
        /// EACCES, as in the man page of the system call.
        18 = NoAccess { what: String },
        /// The inode no longer exists.
        20 = Stale,
        /// The partition has another view, of this epoch.
        21 = StaleView { epoch: Epoch },
        /// A conditional write was refused. `stamp`: that of the shard's last write, if the replica has looked it up
        /// and the shard exists.
        22 = Conflict { stamp: Option<Stamp> },
        /// Bytes of the file were removed or moved since the client read its layout.
        23 = LayoutChanged,
        /// An earlier op of the batch failed, so this one was not executed.
        24 = Skipped,
        25 = SessionEnded,
        /// Another owner holds a conflicting lock, and the request does not wait.
        26 = WouldBlock,
        /// The wait for the lock would close a cycle of waits.
        27 = Deadlock,
        /// The op was cancelled while it waited.
        28 = Interrupted,
        /// A file or a session has reached its limit of locks.
        29 = TooManyLocks { what: String },
        /// The partition has a new leader, to which this session has not reported its locks: the session sends
        /// `Restore` first.
        37 = LocksNotRestored,
        /// The partition's leader is at another server.
        36 = OtherServer { server: ServerId },
        /// `spread` partitions share the names of the directory, and the name is in another one of them.
        38 = OtherSpread { spread: u32 },
        /// A server or replica that the op needs does not answer. The same op may succeed later.
        30 = Unavailable { what: String },
        /// Stored bytes do not match their checksum.
        31 = Damaged { what: String },
        32 = Io { what: String },
        /// The brick stopped itself after a failed write or sync.
        33 = Poisoned { what: String },
        /// All replicas lost acknowledged changes before these were on stable storage.
        39 = Lost { what: String },
        /// The file under the name is not as the request demands.
        40 = ConditionFailed,
        /// A translator of the volume's graph refused the op with this errno (errno(3)).
        41 = Refused { errno: u32, what: String },
        /// Received data violates the protocol.
        34 = Protocol { what: String },
        /// An invariant of ours does not hold.
        35 = Bug { what: String },
    }
}

/// What can be done about an error, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Change the request.
    FixRequest,
    /// Look up or open the file again.
    Reopen,
    /// Nothing: the client library repeats the op.
    Retry,
    /// Remove data or add a brick.
    MakeRoom,
    /// An operator must check a disk or a server.
    Repair,
    Report,
}

/// A row of the error table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorEntry {
    /// The errno (errno(3)) on Linux x86-64 and arm64.
    pub errno: i32,
    /// Exit status of the command line, from sysexits(3) where one fits.
    pub exit: u8,
    pub advice: Advice,
    /// The error in words, for people. The detail of the error value names the thing and the fix.
    pub text: &'static str,
}

const fn entry(errno: i32, exit: u8, advice: Advice, text: &'static str) -> ErrorEntry {
    ErrorEntry { errno, exit, advice, text }
}

/// What a translator gave, if it is an errno; EIO otherwise.
const fn refused_errno(errno: u32) -> i32 {
    const EIO: i32 = 5;
    const ERRNO_MAX: u32 = 133;
    if errno >= 1 && errno <= ERRNO_MAX { errno as i32 } else { EIO }
}

impl Error {
    /// True if the error leaves open whether the op was executed. The client sends the same request again, with the
    /// same op id, later or to another server.
    pub fn is_passing(&self) -> bool {
        matches!(self, Error::StaleView { .. } | Error::OtherServer { .. } | Error::Unavailable { .. })
    }

    /// This error's row of the table.
    pub fn entry(&self) -> ErrorEntry {
        use Advice::*;
        match self {
            Error::NotFound => entry(2, 66, FixRequest, "no such name"),
            Error::Exists => entry(17, 73, FixRequest, "the name exists already"),
            Error::NotDirectory => entry(20, 65, FixRequest, "not a directory"),
            Error::IsDirectory => entry(21, 65, FixRequest, "is a directory"),
            Error::NotEmpty => entry(39, 65, FixRequest, "the directory is not empty"),
            Error::NameTooLong => entry(36, 65, FixRequest, "the name is longer than 255 bytes"),
            Error::Invalid { .. } => entry(22, 64, FixRequest, "invalid"),
            Error::NoSpace { .. } => entry(28, 74, MakeRoom, "no space left"),
            Error::TooLarge => entry(27, 65, FixRequest, "beyond the greatest file size"),
            Error::TooManyLinks => entry(31, 65, FixRequest, "too many links"),
            Error::NoAttribute => entry(61, 66, FixRequest, "no such extended attribute"),
            Error::AttributeTooLarge => entry(7, 65, FixRequest, "the extended attribute is too large"),
            Error::Denied { .. } => entry(1, 77, FixRequest, "not permitted"),
            Error::Loop => entry(22, 65, FixRequest, "a directory cannot be moved into itself"),
            Error::ReadOnly => entry(30, 77, FixRequest, "read-only"),
            Error::NotSupported { .. } => entry(95, 69, FixRequest, "not supported"),
            Error::NoAccess { .. } => entry(13, 77, FixRequest, "permission denied"),
            Error::NoData => entry(6, 65, FixRequest, "no data at or after that offset"),
            Error::Stale => entry(116, 66, Reopen, "the file was removed; open it again"),
            Error::StaleView { .. } => entry(11, 75, Retry, "the partition's view has changed"),
            Error::Conflict { .. } => entry(11, 75, Retry, "another write came first"),
            Error::LayoutChanged => entry(11, 75, Retry, "bytes of the file were removed or moved meanwhile"),
            Error::Skipped => entry(11, 75, Retry, "an op before it failed"),
            Error::SessionEnded => entry(108, 75, Reopen, "the session has ended; mount again"),
            Error::WouldBlock => entry(11, 75, FixRequest, "another owner holds a conflicting lock"),
            Error::Deadlock => entry(35, 75, FixRequest, "waiting for the lock would be a deadlock"),
            Error::Interrupted => entry(4, 75, FixRequest, "interrupted while waiting"),
            Error::TooManyLocks { .. } => entry(37, 75, FixRequest, "too many locks"),
            Error::LocksNotRestored => {
                entry(11, 75, Retry, "the session must report its locks to the new leader first")
            }
            Error::OtherServer { .. } => entry(11, 75, Retry, "another server leads the partition"),
            Error::OtherSpread { .. } => entry(11, 75, Retry, "the name belongs to another partition"),
            Error::Unavailable { .. } => entry(110, 69, Retry, "not available"),
            Error::Damaged { .. } => entry(5, 74, Repair, "stored bytes are damaged"),
            Error::Io { .. } => entry(5, 74, Repair, "input/output error"),
            Error::Poisoned { .. } => entry(5, 74, Repair, "the brick has stopped after a failed write"),
            Error::Lost { .. } => entry(5, 74, Repair, "changes were lost before they were on stable storage"),
            Error::Refused { errno, .. } => entry(refused_errno(*errno), 65, FixRequest, "refused by a translator"),
            Error::ConditionFailed => entry(125, 65, FixRequest, "the file is not as the request demands"),
            Error::Protocol { .. } => entry(71, 76, Report, "protocol error"),
            Error::Bug { .. } => entry(5, 70, Report, "internal error"),
        }
    }

    /// The errno (errno(3)).
    pub fn errno(&self) -> i32 {
        self.entry().errno
    }

    /// `Invalid` with an explanation.
    pub fn invalid(what: impl Into<String>) -> Self {
        Error::Invalid { what: what.into() }
    }

    /// `Io` from an error of the system and the action that failed.
    pub fn io(doing: impl std::fmt::Display, error: std::io::Error) -> Self {
        Error::Io { what: format!("{doing}: {error}") }
    }

    /// `Bug` with an explanation.
    pub fn bug(what: impl Into<String>) -> Self {
        Error::Bug { what: what.into() }
    }

    /// `NotSupported`: only a program that is built with the cargo feature `measuring` has `what`.
    pub fn needs_measuring(what: impl std::fmt::Display) -> Self {
        let what = format!(
            "{what} needs a program that is built for measuring: cargo build --release -p hekate --features measuring"
        );
        Error::NotSupported { what }
    }

    /// The explanation that this error carries, beyond its row.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Error::Invalid { what }
            | Error::NoSpace { what }
            | Error::Denied { what }
            | Error::NotSupported { what }
            | Error::TooManyLocks { what }
            | Error::Unavailable { what }
            | Error::Damaged { what }
            | Error::Io { what }
            | Error::Poisoned { what }
            | Error::Lost { what }
            | Error::Refused { what, .. }
            | Error::Protocol { what }
            | Error::Bug { what } => Some(what),
            _ => None,
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.entry().text;
        match (self.detail(), self) {
            (Some(what), _) => write!(f, "{text}: {what}"),
            (None, Error::OtherServer { server }) => write!(f, "{text}: server {server}"),
            (None, _) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

impl From<crate::codec::Malformed> for Error {
    fn from(error: crate::codec::Malformed) -> Self {
        Error::Protocol { what: error.0.into() }
    }
}
