//! `hekate mount` and `hekate umount`.

pub mod helper;

use crate::cli::{Cli, Mount, Options, Source, Umount};
use crate::commands::graph;
use crate::commands::renewal;
use crate::commands::state::random;
use crate::commands::translator;
use crate::commands::where_is::listed;
use crate::daemon;
use crate::failure::Failure;
use crate::log_lines;
use crate::notify;
use crate::output;
use crate::paths::{Paths, elsewhere, endpoints_of, plain_path, unreachable};
use hekate_client::{ContentUse, Endpoint, OpenOptions, Volume};
use hekate_gateway_fuse::{MountOptions, MountedVolume, is_mounted, mounted_volumes, remount, remove_dead, unmount};
use hekate_graph::LayerSpec;
use hekate_proto::Error;
use hekate_server::PROGRESS;
use hekate_transport::TlsContext;
use signal_hook::iterator::Signals;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause before a server that does not answer yet is tried again.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);

pub fn mount(cli: &Cli, asked: &Mount) -> Result<(), Failure> {
    let wanted = Wanted::new(cli, &asked.source, &asked.directory, asked.all(), asked.trace)?;
    let directory = &wanted.directory;
    if wanted.options.remount {
        change(&wanted)?;
        return say(cli, serde_json::json!({ "directory": directory, "mounted": true }), || {
            format!("{} is remounted", directory.display())
        });
    }
    if asked.foreground {
        return run(&wanted);
    }
    let started = start(&wanted)?;
    say(cli, serde_json::json!({ "pid": started.pid, "directory": directory, "log": started.log }), || {
        format!("{} is mounted at {} (process {})", wanted.source.text, directory.display(), started.pid)
    })
}

fn say(cli: &Cli, json: serde_json::Value, words: impl FnOnce() -> String) -> Result<(), Failure> {
    match cli.json {
        true => output::json(&json),
        false => println!("{}", words()),
    }
    Ok(())
}

/// A mount to be made: the source, the directory and the options, from `hekate mount` or the mount helper.
struct Wanted {
    source: Source,
    directory: PathBuf,
    options: Options,
    paths: Paths,
    /// True if the user named the state directory.
    state_is_named: bool,
    server: Option<String>,
    trace: bool,
}

impl Wanted {
    fn new(cli: &Cli, source: &Source, directory: &Path, options: Options, trace: bool) -> Result<Self, Failure> {
        let failed = |e: std::io::Error| Failure::usage(format!("{}: {e}", directory.display()));
        let options = options.settled();
        if source.server.is_some() && options.server.is_some() {
            return Err(Failure::usage(format!("{} names the server, so leave out server=", source.text)));
        }
        let server = source.server.clone().or(options.server.clone()).or(cli.server.clone());
        let state = options.state.clone().or(cli.state.clone());
        let credential = options.credential.clone().or(cli.credential.clone());
        let credential = credential.map(std::path::absolute).transpose().map_err(failed)?;
        Ok(Self {
            source: source.clone(),
            directory: plain_path(directory).map_err(failed)?,
            paths: Paths { credential, ..Paths::at(state.as_deref())? },
            state_is_named: state.is_some(),
            options,
            server,
            trace,
        })
    }

    /// The arguments of the process that serves the mount.
    fn arguments(&self) -> Vec<std::ffi::OsString> {
        let mut arguments: Vec<std::ffi::OsString> = Vec::new();
        if self.state_is_named {
            arguments.extend(["--state".into(), self.paths.state.clone().into_os_string()]);
        }
        if let Some(server) = &self.server {
            arguments.extend(["--server".into(), server.into()]);
        }
        if let Some(credential) = &self.paths.credential {
            arguments.extend(["--credential".into(), credential.clone().into_os_string()]);
        }
        arguments.extend(["mount".into(), "--foreground".into(), "-o".into(), self.options.words().into()]);
        if self.trace {
            arguments.push("--trace".into());
        }
        arguments.extend(["--".into(), self.source.text.clone().into(), self.directory.clone().into()]);
        arguments
    }

    /// The log's path. A user who cannot make a state directory gets a log in the temporary directory.
    fn log(&self) -> PathBuf {
        let volume = &self.source.volume;
        let own = self.paths.log(&format!("mount-{volume}"));
        let writable = self.paths.make_state_directory().is_ok()
            && std::fs::OpenOptions::new().append(true).create(true).open(&own).is_ok();
        if writable {
            return own;
        }
        // A random name, which no other user can have created in advance.
        let fresh = random::<8>().map(u64::from_le_bytes).unwrap_or_default();
        let uid = rustix::process::geteuid().as_raw();
        std::env::temp_dir().join(format!("hekate-{uid}-mount-{volume}-{fresh:016x}.log"))
    }
}

pub fn mount_options(options: &Options) -> MountOptions {
    let Options { change, cache, allow_other, export, soft, no_uring, .. } = options;
    let usual = MountOptions::default();
    MountOptions {
        cache: cache.unwrap_or(usual.cache),
        read_only: change.read_only.unwrap_or(usual.read_only),
        allow_other: *allow_other || rustix::process::geteuid().is_root(),
        set_id: change.set_id.unwrap_or(usual.set_id),
        devices: change.devices.unwrap_or(usual.devices),
        execute: change.execute.unwrap_or(usual.execute),
        access_times: change.access_times.unwrap_or(usual.access_times),
        export: *export,
        soft: *soft,
        rings: !no_uring,
        ..usual
    }
}

pub fn open_options(options: &Options) -> OpenOptions {
    let change = &options.change;
    let no_access_times = change.access_times == Some(false) || change.read_only == Some(true);
    // A mount that caches for a time shows what was before anyway.
    let no_pledges = options.no_pledges || options.cache.is_some_and(|cache| !cache.is_zero());
    OpenOptions { no_access_times, no_pledges, contents: ContentUse::Door, ..OpenOptions::default() }
}

/// The process of a mount.
struct Started {
    pid: u32,
    log: PathBuf,
}

/// Mounts in the background.
fn start(wanted: &Wanted) -> Result<Started, Failure> {
    let directory = &wanted.directory;
    make_way(directory)?;
    let log = wanted.log();
    let before = std::fs::metadata(directory).map(|found| found.dev()).ok();
    let mut child = daemon::spawn(&wanted.arguments(), &log)?;
    // The mount is ready once the directory is on another device than before.
    let is_other = || std::fs::metadata(directory).is_ok_and(|now| Some(now.dev()) != before);
    let ready = || is_mounted(directory).unwrap_or(false) && is_other();
    let outcome = daemon::wait_ready(&mut child, &log, "the mount", ready);
    if outcome.is_err() && !log.starts_with(&wanted.paths.state) {
        // The error has the log's last lines, so the file is not needed.
        let _ = std::fs::remove_file(&log);
    }
    outcome?;
    Ok(Started { pid: child.id(), log })
}

/// Detaches a mount whose process was killed: all access to it fails, and it hides the directory.
///
/// # Errors
///
/// The mount table cannot be read, or the mount cannot be detached.
pub fn make_way(directory: &Path) -> Result<(), Failure> {
    if remove_dead(directory)? {
        eprintln!("hekate: removed the mount at {}, whose process had ended", directory.display());
    }
    Ok(())
}

/// Changes the options of a mount.
fn change(wanted: &Wanted) -> Result<(), Failure> {
    let options = &wanted.options;
    let fixed = [
        ("cache", options.cache.is_some()),
        ("soft", options.soft.is_some()),
        ("export", options.export),
        ("nopledges", options.no_pledges),
        ("nouring", options.no_uring),
        ("wait", options.wait.is_some()),
    ];
    let fixed: Vec<_> = fixed.iter().filter_map(|(name, given)| given.then_some(*name)).collect();
    if !fixed.is_empty() {
        // mount(8) passes all options of /etc/fstab, so one that cannot be changed is no mistake.
        eprintln!("hekate: a remount leaves {} as when it was mounted", fixed.join(", "));
    }
    Ok(remount(&wanted.directory, &options.change)?)
}

fn run(wanted: &Wanted) -> Result<(), Failure> {
    daemon::name_process(c"hekate-mount");
    daemon::raise_file_limits();
    log_lines::begin("hekate-mount");
    make_way(&wanted.directory)?;
    let endpoints = endpoints_of(&wanted.paths, wanted.server.as_deref())?;
    let elsewhere = elsewhere(&wanted.paths, wanted.server.as_deref())?;
    let volume = Arc::new(open(wanted, &endpoints, elsewhere.as_ref())?);
    renewal::start(&wanted.paths, endpoints, elsewhere);
    // From here on a signal unmounts. Before, it ends the process, and nothing is mounted.
    let mut signals = Signals::new(daemon::ending_signals()).map_err(|e| Error::io("register signals", e))?;
    let mounted = hekate_gateway_fuse::mount(
        volume.clone(),
        &wanted.source.text,
        &wanted.directory,
        &mount_options(&wanted.options),
    )?;
    graph::let_see(&volume, format!("mount at {}", wanted.directory.display()), &wanted.paths);
    // Servers log a mount by this number.
    log::info!("{} is mounted as session {}", wanted.source.text, volume.session());
    notify::ready(&format!("{} is mounted at {}", wanted.source.text, wanted.directory.display()));
    let unmounter = mounted.unmounter();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            // In use: detached from the tree now, and released by the kernel with its last user.
            if unmounter.unmount(false).is_err() {
                let _ = unmounter.unmount(true);
            }
        }
    });
    let ran = mounted.run();
    // Worker threads may hold the volume until the process ends.
    volume.end();
    graph::remove_socket(&wanted.paths);
    Ok(ran?)
}

/// Opens the volume, and waits for a server that does not answer yet for the time of the options.
fn open(wanted: &Wanted, endpoints: &[Endpoint], elsewhere: Option<&Arc<TlsContext>>) -> Result<Volume, Failure> {
    let (elsewhere, catalogue) = (elsewhere.cloned(), Some(translator::catalogue(&wanted.paths)));
    let mut options = OpenOptions { elsewhere, catalogue, ..open_options(&wanted.options) };
    if wanted.trace {
        options.layers.push(LayerSpec { name: "trace".into(), ..LayerSpec::default() });
    }
    let (begun, wait) = (Instant::now(), wanted.options.wait());
    let mut said = false;
    loop {
        let mut what = String::new();
        for endpoint in endpoints {
            match Volume::open(endpoint.clone(), &wanted.source.volume, &options) {
                Err(Error::Unavailable { what: away }) => what = away,
                other => return Ok(other?),
            }
        }
        if begun.elapsed() >= wait {
            let after = if wait.is_zero() { String::new() } else { format!("waited for {} s: ", wait.as_secs_f64()) };
            let state = wanted.state_is_named.then_some(wanted.paths.state.as_path());
            return Err(unreachable(&wanted.paths, state, wanted.server.as_deref(), &format!("{after}{what}")));
        }
        if !said {
            log::info!(target: PROGRESS, "{what}; waiting for up to {} s", wait.as_secs_f64());
            said = true;
        }
        std::thread::sleep(AGAIN_PAUSE.min(wait));
    }
}

pub fn umount(cli: &Cli, options: &Umount) -> Result<(), Failure> {
    let directory = where_mounted(&options.directory)?;
    unmount(&directory, options.lazy)?;
    say(cli, serde_json::json!({ "directory": directory, "mounted": false }), || {
        format!("{} is unmounted", directory.display())
    })
}

/// The directory to unmount: that one, or the directory where the volume of that name is mounted.
fn where_mounted(called: &Path) -> Result<PathBuf, Failure> {
    let shown = called.display();
    let directory = std::path::absolute(called).map_err(|e| Failure::usage(format!("{shown}: {e}")))?;
    if is_mounted(&directory)? {
        return Ok(directory);
    }
    let mounts = mounted_volumes()?;
    let is_called = |mount: &&MountedVolume| {
        let volume = Source::from_str(&mount.source).map(|source| source.volume);
        Path::new(&mount.source) == called || volume.is_ok_and(|volume| Path::new(&volume) == called)
    };
    let found: Vec<&MountedVolume> = mounts.iter().filter(is_called).collect();
    match found[..] {
        [mount] => Ok(mount.directory.clone()),
        [] => {
            let what = format!(
                "no Hekate volume is mounted at {}, and no volume of the name {shown} is mounted",
                directory.display()
            );
            Err(Failure::new(66, format!("{what}{}", listed(&mounts))))
        }
        _ => {
            let places: Vec<String> = found.iter().map(|mount| mount.directory.display().to_string()).collect();
            Err(Failure::usage(format!(
                "{shown} is mounted at {}; name one of these directories",
                places.join(" and ")
            )))
        }
    }
}
