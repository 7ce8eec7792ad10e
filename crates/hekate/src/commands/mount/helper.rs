//! The mount helper, which mount(8) calls as `mount.hekate SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.

use super::{Wanted, change, start};
use crate::cli::{Cli, MountHelper, Options};
use crate::failure::Failure;

pub fn mount_helper(cli: &Cli, asked: &MountHelper) -> Result<(), Failure> {
    if let Some(namespace) = &asked.namespace {
        return Err(Failure::usage(format!(
            "-N {namespace} is not supported; instead: nsenter --mount={namespace} mount -t hekate ..."
        )));
    }
    let options = Options::parse(&asked.options.join(","), asked.sloppy).map_err(Failure::usage)?;
    let wanted = Wanted::new(cli, &asked.source, &asked.directory, options, false)?;
    if asked.fake {
        return Ok(());
    }
    if wanted.options.remount {
        return change(&wanted);
    }
    let started = start(&wanted)?;
    if asked.verbose {
        println!("{} is mounted at {} (process {})", wanted.source.text, wanted.directory.display(), started.pid);
    }
    Ok(())
}
