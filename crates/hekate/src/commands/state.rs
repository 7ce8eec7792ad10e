//! A new server's state directory and bricks.

use crate::cli::Cli;
use crate::failure::Failure;
use crate::paths::{Paths, plain_path};
use hekate_brick::{Identity, check_own};
use hekate_cluster::BrickInfo;
use hekate_proto::Error;
use hekate_server::{Keys, NewBrick, make_brick};
use hekate_tls::{Credential, SealKey};
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The plain paths of directories, if each can become a brick.
///
/// # Errors
///
/// One is not empty, is named twice or lies in another one.
pub fn brick_directories(bricks: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut directories = Vec::new();
    for brick in bricks {
        let absolute = plain_path(brick).map_err(|e| Failure::usage(format!("the brick {}: {e}", brick.display())))?;
        if directories.contains(&absolute) {
            return Err(Failure::usage(format!("{} is named twice; each brick needs its own", absolute.display())));
        }
        if let Some(other) =
            directories.iter().find(|other| absolute.starts_with(other) || other.starts_with(&absolute))
        {
            let (one, two) = (absolute.display(), other.display());
            return Err(Failure::usage(format!("one of {one} and {two} lies in the other; bricks lie side by side")));
        }
        if let Ok(other) = Identity::read(&absolute) {
            let shown = absolute.display();
            return Err(Failure::usage(format!(
                "{shown} is not empty: it is a brick of cluster {} already; a new one needs a directory of its own",
                other.cluster
            )));
        }
        Identity::check_empty(&absolute)?;
        directories.push(absolute);
    }
    Ok(directories)
}

/// Makes the state directory, for its owner alone.
///
/// # Errors
///
/// The directory cannot be made, or is another user's.
pub fn make_state(paths: &Paths) -> Result<(), Failure> {
    let failed = |what: &Path, e: std::io::Error| Failure::from(Error::io(format!("make {}", what.display()), e));
    paths.make_state_directory()?;
    check_own(&paths.state)?;
    let own = Permissions::from_mode(0o700);
    std::fs::set_permissions(&paths.state, own).map_err(|e| failed(&paths.state, e))?;
    Ok(())
}

/// Makes the state directory of a server with its keys.
///
/// # Errors
///
/// The directory or a file cannot be written.
pub fn make_state_with(paths: &Paths, credential: &Credential, seal: &SealKey) -> Result<(), Failure> {
    make_state(paths)?;
    Ok(Keys::write(&paths.state, credential, seal)?)
}

/// Makes bricks, one after the other.
///
/// # Errors
///
/// A directory is not empty or cannot be written; bricks that were made before remain.
pub fn make_bricks(cli: &Cli, directories: &[PathBuf], wanted: &NewBrick) -> Result<Vec<BrickInfo>, Failure> {
    let mut bricks = Vec::new();
    for directory in directories {
        if !cli.json {
            eprintln!("making brick {} (journal of {} MiB)", directory.display(), wanted.journal_mib);
        }
        bricks.push(make_brick(directory, wanted)?);
    }
    warn_of_shared_disks(cli, directories);
    Ok(bricks)
}

fn warn_of_shared_disks(cli: &Cli, directories: &[PathBuf]) {
    let devices: BTreeSet<u64> =
        directories.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|found| found.dev()).collect();
    if devices.len() < directories.len() && !cli.json {
        eprintln!(
            "warning: {} bricks are on {} file system(s); copies on one disk are lost together",
            directories.len(),
            devices.len()
        );
    }
}

/// Bytes from the kernel's random source.
///
/// # Errors
///
/// getrandom(2) failed.
pub fn random<const COUNT: usize>() -> Result<[u8; COUNT], Failure> {
    let mut bytes = [0u8; COUNT];
    getrandom::fill(&mut bytes).map_err(|e| Failure::new(71, format!("getrandom: {e}")))?;
    Ok(bytes)
}
