//! Errors of this crate: a text that names the thing and the fix, and a kind that names the cause.

use std::fmt;
use std::path::Path;

/// The result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The cause of an error; the number is the exit status (sysexits(3)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Options contradict each other, or ask for something impossible.
    WrongUse = 64,
    /// A file's content is invalid.
    BadData = 65,
    /// A file cannot be opened.
    NoInput = 66,
    /// A required program or server is missing.
    Unavailable = 69,
    /// A bug of this program.
    Ours = 70,
    /// There is no room, or the file to be made exists already.
    CannotCreate = 73,
    /// Reading or writing failed.
    InputOutput = 74,
}

/// An error: its kind and its text.
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

    /// The content of `file` is invalid.
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
