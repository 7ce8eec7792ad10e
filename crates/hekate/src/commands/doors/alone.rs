//! A door in a process of its own, which is opened again when its session has ended.

use crate::cli::Cli;
use crate::commands::way::Way;
use crate::commands::{graph, renewal};
use crate::daemon;
use crate::failure::Failure;
use crate::log_lines;
use crate::notify;
use crate::paths::Paths;
use hekate_client::Volume;
use hekate_proto::Error;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Exit status for servers that do not answer, and the time between two attempts to reach them.
const UNAVAILABLE: u8 = 69;
const AGAIN_PAUSE: Duration = Duration::from_secs(1);
const STOP_PAUSE: Duration = Duration::from_millis(50);

/// A door that runs alone.
pub struct Alone<'a> {
    pub process: &'static CStr,
    /// What people call it.
    pub door: &'static str,
    /// What it does when it is told to stop.
    pub stopping: &'static str,
    pub volume: &'a str,
}

/// An open door: where it listens, and how it is closed.
pub struct Opened {
    pub addresses: Vec<String>,
    pub stop: Box<dyn FnOnce()>,
}

impl Alone<'_> {
    /// Serves until a signal ends the process.
    ///
    /// # Errors
    /// If the volume cannot be reached at first, or the door cannot be opened.
    pub fn serve(
        &self,
        cli: &Cli,
        mut open: impl FnMut(&Way, Arc<Volume>) -> Result<Opened, Error>,
    ) -> Result<(), Failure> {
        daemon::name_process(self.process);
        daemon::raise_file_limits();
        log_lines::begin(self.process.to_str().unwrap_or("hekate"));
        let stop = daemon::stop_signals()?;
        let (way, paths) = (Way::of(cli)?, Paths::of(cli)?);
        let mut volume = way.open(cli, self.volume)?;
        renewal::start(&paths, way.endpoints.clone(), way.elsewhere.clone());
        loop {
            graph::let_see(&volume, self.door.into(), &paths);
            let opened = open(&way, volume.clone())?;
            let serving = format!("the {} of {} is open at {}", self.door, self.volume, opened.addresses.join(" "));
            log::info!("{serving}");
            notify::ready(&serving);
            while !stop.load(Ordering::Relaxed) && !volume.has_ended() {
                std::thread::sleep(STOP_PAUSE);
            }
            if stop.load(Ordering::Relaxed) {
                notify::stopping(self.stopping);
            }
            (opened.stop)();
            volume.end();
            volume = loop {
                if stop.load(Ordering::Relaxed) {
                    graph::remove_socket(&paths);
                    return Ok(());
                }
                log::warn!("the session has ended; the door is opened again, and clients have to connect again");
                match way.open(cli, self.volume) {
                    Err(away) if away.exit == UNAVAILABLE => std::thread::sleep(AGAIN_PAUSE),
                    opened => break opened?,
                }
            };
        }
    }
}
