//! Why something could not be done: words that name the thing and the fix, and whose fault it is.

use std::fmt;
use std::path::Path;

/// What every function of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Whose fault it is; the number is the exit status (sysexits(3)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Options that do not go together, or ask for what cannot be.
    WrongUse = 64,
    /// A file does not hold what it should.
    BadData = 65,
    /// A file cannot be opened.
    NoInput = 66,
    /// A program or server that is needed is not there.
    Unavailable = 69,
    /// A bug of ours.
    Ours = 70,
    /// There is no room, or what would be made is there already.
    CannotCreate = 73,
    /// Reading or writing failed.
    InputOutput = 74,
}

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub kind: Kind,
    pub text: String,
}

impl Error {
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    pub fn wrong_use(text: impl Into<String>) -> Self {
        Self::new(Kind::WrongUse, text)
    }

    /// `file` does not hold what it should.
    pub fn bad_data(file: impl fmt::Display, text: impl fmt::Display) -> Self {
        Self::new(Kind::BadData, format!("{file}: {text}"))
    }

    /// `verb` (open, write …) of the file failed.
    pub fn file(verb: &str, path: &Path, error: std::io::Error) -> Self {
        let kind = if verb == "open" { Kind::NoInput } else { Kind::InputOutput };
        Self::new(kind, format!("cannot {verb} {}: {error}", path.display()))
    }

    /// The exit status.
    pub fn exit(&self) -> u8 {
        self.kind as u8
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
