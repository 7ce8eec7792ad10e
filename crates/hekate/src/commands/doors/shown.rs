//! How commands show the doors of volumes.

use crate::failure::Failure;
use hekate_control::nbd::NbdDoorStatus;
use hekate_control::s3::S3DoorStatus;
use std::time::{Duration, Instant};

/// How long a server may take to open its door.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// How a door stands at the server that was asked.
pub trait Shown: Sized {
    /// What people call such doors.
    const DOOR: &'static str;

    fn volume(&self) -> &str;
    /// Where it listens.
    fn open(&self) -> &[String];
    /// Why it does not.
    fn failure(&self) -> Option<&str>;

    /// In a word, or why it is closed.
    fn state(&self) -> String {
        match (self.failure(), self.open().is_empty()) {
            (Some(why), _) => format!("closed: {why}"),
            (None, true) => "opening".into(),
            (None, false) => "open".into(),
        }
    }

    /// Waits a while until the door is open. `list` asks for all doors.
    ///
    /// # Errors
    /// If the server cannot open it; those of `list`.
    fn once_open(self, list: impl Fn() -> Result<Vec<Self>, Failure>) -> Result<Self, Failure> {
        let (mut status, begun) = (self, Instant::now());
        while status.open().is_empty() && begun.elapsed() < OPEN_PATIENCE {
            std::thread::sleep(PAUSE);
            let found = list()?.into_iter().find(|door| door.volume() == status.volume());
            status = found.unwrap_or(status);
            if let Some(why) = status.failure() {
                return Err(Failure::new(
                    69,
                    format!("the {} of {} is not open here: {why}", Self::DOOR, status.volume()),
                ));
            }
        }
        Ok(status)
    }
}

macro_rules! shown {
    ($status:ty, $door:literal) => {
        impl Shown for $status {
            const DOOR: &'static str = $door;

            fn volume(&self) -> &str {
                &self.volume
            }

            fn open(&self) -> &[String] {
                &self.open
            }

            fn failure(&self) -> Option<&str> {
                self.failure.as_deref()
            }
        }
    };
}

shown!(S3DoorStatus, "S3 door");
shown!(NbdDoorStatus, "block door");
