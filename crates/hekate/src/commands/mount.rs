//! `hekate mount` and `hekate umount`.

use crate::cli::{Cli, Mount, Umount};
use crate::commands::Failure;
use crate::daemon;
use crate::output;
use crate::paths::{Paths, endpoint, plain_path};
use hekate_client::{OpenOptions, Volume};
use hekate_gateway_fuse::{MountOptions, unmount};
use hekate_graph::LayerSpec;
use hekate_proto::Error;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub fn mount(cli: &Cli, options: &Mount) -> Result<(), Failure> {
    let directory =
        plain_path(&options.directory).map_err(|e| Failure::usage(format!("{}: {e}", options.directory.display())))?;
    if !(0.0..=86_400.0).contains(&options.cache) {
        return Err(Failure::usage(format!("--cache {}: 0 to 86400 seconds", options.cache)));
    }
    if options.foreground { run(cli, options, &directory) } else { detach(cli, options, &directory) }
}

fn detach(cli: &Cli, options: &Mount, directory: &Path) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    let mut arguments: Vec<std::ffi::OsString> = Vec::new();
    if cli.state.is_some() {
        arguments.extend(["--state".into(), paths.state.clone().into_os_string()]);
    }
    if let Some(server) = &cli.server {
        arguments.extend(["--server".into(), server.into()]);
    }
    arguments.extend(["mount".into(), "--foreground".into()]);
    arguments.extend(["--cache".into(), options.cache.to_string().into()]);
    for (flag, set) in
        [("--read-only", options.read_only), ("--allow-other", options.allow_other), ("--trace", options.trace)]
    {
        if set {
            arguments.push(flag.into());
        }
    }
    arguments.extend(["--".into(), options.volume.clone().into(), directory.into()]);
    let log = log_path(&paths, &options.volume);
    let before = std::fs::metadata(directory).map(|found| found.dev()).ok();
    let mut child = daemon::spawn(&arguments, &log)?;
    // The mount answers once its root is another device than the directory was.
    let ready = || is_mounted(directory) && std::fs::metadata(directory).is_ok_and(|now| Some(now.dev()) != before);
    daemon::wait_ready(&mut child, &log, "the mount", ready)?;
    if cli.json {
        output::json(&serde_json::json!({ "pid": child.id(), "directory": directory, "log": log }));
    } else {
        println!("{} is mounted at {} (process {})", options.volume, directory.display(), child.id());
    }
    Ok(())
}

/// A user without a state directory of their own still gets a log.
fn log_path(paths: &Paths, volume: &str) -> PathBuf {
    let own = paths.log(&format!("mount-{volume}"));
    let writable = std::fs::create_dir_all(&paths.state).is_ok()
        && std::fs::OpenOptions::new().append(true).create(true).open(&own).is_ok();
    if writable {
        return own;
    }
    let uid = rustix::process::geteuid().as_raw();
    std::env::temp_dir().join(format!("hekate-{uid}-mount-{volume}.log"))
}

fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // Blanks and the like are octal in mountinfo (proc(5)); such a path is taken as mounted and checked by device.
    let path = directory.to_string_lossy();
    path.contains([' ', '\t', '\n', '\\'])
        || table.lines().any(|line| line.split(' ').nth(4) == Some(&path) && line.contains("hekate"))
}

fn run(cli: &Cli, options: &Mount, directory: &Path) -> Result<(), Failure> {
    daemon::name_process(c"hekate-mount");
    daemon::raise_file_limit();
    let mut open = OpenOptions::default();
    if options.trace {
        open.layers.push(LayerSpec { name: "trace".into() });
    }
    let volume = match Volume::open(endpoint(cli)?, &options.volume, &open) {
        Err(Error::Unavailable { what }) => {
            return Err(Failure::new(69, format!("{what}; is it running? `hekate serve --detach` starts it")));
        }
        other => Arc::new(other?),
    };
    let mount_options = MountOptions {
        cache: Duration::from_secs_f64(options.cache),
        read_only: options.read_only,
        allow_other: options.allow_other || rustix::process::geteuid().is_root(),
        ..MountOptions::default()
    };
    let mounted = hekate_gateway_fuse::mount(volume.clone(), &options.volume, directory, &mount_options)?;
    let unmounter = mounted.unmounter();
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(|e| Error::io("register signals", e))?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            // In use: gone from the tree at once, and from the kernel with the last user.
            if unmounter.unmount(false).is_err() {
                let _ = unmounter.unmount(true);
            }
        }
    });
    let ran = mounted.run();
    // Worker threads may hold the volume until the process ends.
    volume.end();
    Ok(ran?)
}

pub fn umount(cli: &Cli, options: &Umount) -> Result<(), Failure> {
    let directory = std::path::absolute(&options.directory)
        .map_err(|e| Failure::usage(format!("{}: {e}", options.directory.display())))?;
    // Not resolved through a mount that is dead, which would answer with an error.
    let directory = match is_mounted(&directory) {
        true => directory,
        false => plain_path(&directory).unwrap_or(directory),
    };
    if !is_mounted(&directory) {
        return Err(Failure::new(66, format!("no Hekate volume is mounted at {}", directory.display())));
    }
    unmount(&directory, options.lazy)?;
    if cli.json {
        output::json(&serde_json::json!({ "directory": directory, "mounted": false }));
    } else {
        println!("{} is unmounted", directory.display());
    }
    Ok(())
}
