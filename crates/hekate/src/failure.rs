//! Why a command failed: the text for people and the exit status, by sysexits(3).

use hekate_proto::Error;
use std::path::Path;

/// What a command returns instead of its result.
#[derive(Debug)]
pub struct Failure {
    /// Empty if the command has already printed everything.
    pub text: String,
    pub exit: u8,
}

impl Failure {
    pub fn new(exit: u8, text: impl Into<String>) -> Self {
        Self { text: text.into(), exit }
    }

    /// For a command whose output already names the problem.
    pub fn printed(exit: u8) -> Self {
        Self::new(exit, "")
    }

    /// Wrong use: EX_USAGE.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(64, text)
    }
}

/// A path from the root, as text, for a server that runs elsewhere than the command.
///
/// # Errors
/// Wrong use, if it is not UTF-8.
pub fn whole_path(path: &Path) -> Result<String, Failure> {
    let whole = std::path::absolute(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
    whole.into_os_string().into_string().map_err(|_| Failure::usage("the name of a file is not UTF-8"))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.entry().exit, error.to_string())
    }
}

/// The exit status that mount(8) documents for an exit status of sysexits(3).
pub fn helper_exit(exit: u8) -> u8 {
    const WRONG_USE_OR_NOT_PERMITTED: u8 = 1;
    const MOUNT_FAILED: u8 = 32;
    match exit {
        64 | 77 => WRONG_USE_OR_NOT_PERMITTED,
        _ => MOUNT_FAILED,
    }
}
