//! Why a command failed: the text for people and the exit status, by sysexits(3).

use hekate_proto::Error;

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
