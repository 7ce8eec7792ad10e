//! Volumes that a server mounts itself: the mount's threads call the server's code, so an op wakes no other process.

use crate::cli::{OwnMount, Serve};
use crate::commands::{graph, mount, translator};
use crate::failure::Failure;
use crate::paths::Paths;
use hekate_client::{Endpoint, Local, OpenOptions, Volume};
use hekate_gateway_fuse::Mounted;
use hekate_proto::Error;
use hekate_transport::TlsContext;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that a stopping server waits for programs that use one of its mounts.
const USERS_PATIENCE: Duration = Duration::from_secs(2);
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// The mounts of a server, until `stop`.
pub struct Mounts(Vec<Served>);

struct Served {
    mounted: Arc<Mounted>,
    volume: Arc<Volume>,
    thread: JoinHandle<()>,
}

/// Checks the options of all mounts before a brick is opened.
///
/// # Errors
///
/// A directory is missing, unsuitable or in use as a mount point.
pub fn check(options: &Serve) -> Result<(), Failure> {
    for wanted in &options.mounts {
        mount::make_way(&wanted.directory)?;
        hekate_gateway_fuse::check(&wanted.directory)?;
    }
    Ok(())
}

/// True if all mounts answer.
pub fn are_there(options: &Serve) -> bool {
    let is_there = |directory: &Path| {
        hekate_gateway_fuse::is_mounted(directory).unwrap_or(false) && std::fs::metadata(directory).is_ok()
    };
    options.mounts.iter().all(|wanted| is_there(&wanted.directory))
}

impl Mounts {
    /// Mounts the volumes that the options name. The server answers at its socket already.
    pub fn start(
        options: &Serve,
        paths: &Paths,
        local: &Local,
        elsewhere: Option<&Arc<TlsContext>>,
    ) -> Result<Self, Failure> {
        let mut all = Self(Vec::new());
        for wanted in &options.mounts {
            let failed = |error: Error| {
                let failure = Failure::from(error);
                Failure { text: format!("--mount {}: {}", wanted.text, failure.text), ..failure }
            };
            match serve(wanted, paths, local, elsewhere) {
                Ok(served) => {
                    let (directory, session) = (wanted.directory.display(), served.volume.session());
                    log::info!("{} is mounted at {directory} as session {session}", wanted.volume);
                    all.0.push(served);
                }
                Err(error) => {
                    all.stop();
                    return Err(failed(error));
                }
            }
        }
        Ok(all)
    }

    /// Unmounts all; one in use is detached. Waits for the threads of the mounts, `USERS_PATIENCE` at most.
    pub fn stop(self) {
        for Served { mounted, .. } in &self.0 {
            let unmounter = mounted.unmounter();
            if unmounter.unmount(false).is_err() {
                let _ = unmounter.unmount(true);
            }
        }
        let begun = Instant::now();
        for Served { mounted, volume, thread } in self.0 {
            while !thread.is_finished() && begun.elapsed() < USERS_PATIENCE {
                std::thread::sleep(LOOK_PAUSE);
            }
            if thread.is_finished() {
                let _ = thread.join();
            } else {
                log::warn!(
                    "the mount at {} is still in use and is detached; open files in it fail from now on",
                    mounted.mount_point().display()
                );
                volume.end();
            }
        }
    }
}

fn serve(
    wanted: &OwnMount,
    paths: &Paths,
    local: &Local,
    elsewhere: Option<&Arc<TlsContext>>,
) -> Result<Served, Error> {
    let (local, elsewhere) = (Some(local.clone()), elsewhere.cloned());
    let catalogue = Some(translator::catalogue(paths));
    let options = OpenOptions { local, elsewhere, catalogue, ..mount::open_options(&wanted.options) };
    let volume = Arc::new(Volume::open(Endpoint::Unix(paths.socket.clone()), &wanted.volume, &options)?);
    let mount_options = mount::mount_options(&wanted.options);
    let mounted =
        Arc::new(hekate_gateway_fuse::mount(volume.clone(), &wanted.volume, &wanted.directory, &mount_options)?);
    graph::let_see(&volume, format!("mount at {}", wanted.directory.display()), paths);
    let (running, its_volume) = (mounted.clone(), volume.clone());
    let run = move || {
        if let Err(error) = running.run() {
            log::error!("the mount at {} has ended: {error}", running.mount_point().display());
        }
        its_volume.end();
    };
    let thread = std::thread::Builder::new()
        .name("hekate-mount".into())
        .spawn(run)
        .map_err(|error| Error::io("start a thread", error))?;
    Ok(Served { mounted, volume, thread })
}
