//! The one error type at the waist, and the one table that says what each error is to a kernel, a shell and a person.

use crate::ids::{Epoch, ServerId, Stamp};
use crate::wire_enum;

/// What every layer answers.
pub type Result<T> = std::result::Result<T, Error>;

wire_enum! {
    /// Why an op was not done. Each maps to one errno, one exit status and one piece of advice: [`Error::entry`].
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
        /// SEEK_DATA or SEEK_HOLE finds nothing.
        17 = NoData,
        /// As EACCES of the call's man page.
        18 = NoAccess { what: String },
        /// The inode is gone.
        20 = Stale,
        /// The partition's view is another one by now.
        21 = StaleView { epoch: Epoch },
        /// A conditional write met another stamp.
        22 = Conflict { stamp: Option<Stamp> },
        /// The file's bytes were given up or moved meanwhile.
        23 = LayoutChanged,
        /// An earlier op of the same batch failed, so this one was not tried.
        24 = Skipped,
        25 = SessionEnded,
        /// Another holds the lock.
        26 = WouldBlock,
        /// Waiting for the lock would wait for itself.
        27 = Deadlock,
        /// The op was cancelled while it waited.
        28 = Interrupted,
        /// A file or a session has as many locks as it may.
        29 = TooManyLocks { what: String },
        /// The partition's leader has begun anew and does not know this session's locks: `Restore` comes first.
        37 = LocksUntold,
        /// The partition's leader is at another server.
        36 = OtherServer { server: ServerId },
        /// The directory's names are shared by so many partitions, and this one has no such name.
        38 = OtherSpread { spread: u32 },
        /// Something that must answer is away; the same op may succeed later.
        30 = Unavailable { what: String },
        /// Stored bytes do not match their checksum.
        31 = Damaged { what: String },
        32 = Io { what: String },
        /// A brick stopped itself after a failed write or sync.
        33 = Poisoned { what: String },
        /// All replicas lost their memory before it was on stable storage.
        39 = Lost { what: String },
        /// What arrived is not what the protocol says.
        34 = Protocol { what: String },
        /// A broken invariant of ours.
        35 = Bug { what: String },
    }
}

/// Who can do something about an error, and what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Change the request.
    FixRequest,
    /// Look up or open again.
    Reopen,
    /// The client library sends it again by itself.
    Retry,
    /// Delete something or add a brick.
    MakeRoom,
    /// An operator looks at a disk or a server.
    Repair,
    /// Report a bug.
    Report,
}

/// A row of the error table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorEntry {
    /// As in errno(3) on Linux x86-64 and arm64.
    pub errno: i32,
    /// Exit status of the command line; those of sysexits(3) where one fits.
    pub exit: u8,
    /// What to do.
    pub advice: Advice,
    /// In words.
    pub text: &'static str,
}

const fn entry(errno: i32, exit: u8, advice: Advice, text: &'static str) -> ErrorEntry {
    ErrorEntry { errno, exit, advice, text }
}

impl Error {
    /// Whether it says nothing of what becomes of the op: the same request, under the same id, may succeed elsewhere or later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Error::StaleView { .. } | Error::OtherServer { .. } | Error::Unavailable { .. })
    }

    /// The row of this error.
    pub fn entry(&self) -> ErrorEntry {
        use Advice::*;
        match self {
            Error::NotFound => entry(2, 66, FixRequest, "no such name"),
            Error::Exists => entry(17, 73, FixRequest, "the name exists already"),
            Error::NotDirectory => entry(20, 65, FixRequest, "not a directory"),
            Error::IsDirectory => entry(21, 65, FixRequest, "is a directory"),
            Error::NotEmpty => entry(39, 65, FixRequest, "the directory is not empty"),
            Error::NameTooLong => entry(36, 65, FixRequest, "a name of over 255 bytes"),
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
            Error::NoData => entry(6, 65, FixRequest, "nothing there from that offset on"),
            Error::Stale => entry(116, 66, Reopen, "the file is gone"),
            Error::StaleView { .. } => entry(11, 75, Retry, "the partition's view has changed"),
            Error::Conflict { .. } => entry(11, 75, Retry, "another write came first"),
            Error::LayoutChanged => entry(11, 75, Retry, "the file was truncated meanwhile"),
            Error::Skipped => entry(11, 75, Retry, "an op before it failed"),
            Error::SessionEnded => entry(108, 75, Reopen, "the session has ended; mount again"),
            Error::WouldBlock => entry(11, 75, FixRequest, "another holds the lock"),
            Error::Deadlock => entry(35, 75, FixRequest, "waiting for the lock would be a deadlock"),
            Error::Interrupted => entry(4, 75, FixRequest, "interrupted while waiting"),
            Error::TooManyLocks { .. } => entry(37, 75, FixRequest, "too many locks"),
            Error::LocksUntold => entry(11, 75, Retry, "the locks must be told to the new leader first"),
            Error::OtherServer { .. } => entry(11, 75, Retry, "another server leads the partition"),
            Error::OtherSpread { .. } => entry(11, 75, Retry, "the name rests in another partition"),
            Error::Unavailable { .. } => entry(110, 69, Retry, "not available"),
            Error::Damaged { .. } => entry(5, 74, Repair, "stored bytes are damaged"),
            Error::Io { .. } => entry(5, 74, Repair, "input/output error"),
            Error::Poisoned { .. } => entry(5, 74, Repair, "the brick has stopped after a failed write"),
            Error::Lost { .. } => entry(5, 74, Repair, "what was written was lost before it was on stable storage"),
            Error::Protocol { .. } => entry(71, 76, Report, "protocol error"),
            Error::Bug { .. } => entry(5, 70, Report, "internal error"),
        }
    }

    /// As errno(3).
    pub fn errno(&self) -> i32 {
        self.entry().errno
    }

    /// `Invalid` with words.
    pub fn invalid(what: impl Into<String>) -> Self {
        Error::Invalid { what: what.into() }
    }

    /// `Io` from the system's error and what was being done.
    pub fn io(doing: impl std::fmt::Display, error: std::io::Error) -> Self {
        Error::Io { what: format!("{doing}: {error}") }
    }

    /// A broken invariant.
    pub fn bug(what: impl Into<String>) -> Self {
        Error::Bug { what: what.into() }
    }

    /// What the error says beyond its row.
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
