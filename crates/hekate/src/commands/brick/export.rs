//! `hekate brick export`: the files of one stopped brick, without a cluster.
//!
//! Names, inodes and layouts are read through `inspect::Contents`, which continues behind a damaged entry; bytes
//! through an opened brick, which returns only blocks that match their checksums. What this brick does not have is
//! listed, never guessed.

mod catalog;
mod file;
mod known;
mod report;
mod target;
mod walk;

use super::lines::ProgressLine;
use crate::cli::{BrickExport, Cli};
use crate::daemon;
use crate::failure::Failure;
use catalog::Catalog;
use hekate_brick::inspect::{Contents, DamagedJournal, StoppedBrick, guarded};
use hekate_brick::{Brick, LostBlock};
use hekate_proto::VolumeId;
use known::Known;
use report::{Finding, Report};
use target::Target;

/// An export: the brick, and what is exported.
struct Source<'a> {
    contents: &'a Contents,
    brick: &'a Brick,
    /// Blocks that a power cut kept from the disk.
    lost: Vec<LostBlock>,
    known: Known,
}

pub fn export(cli: &Cli, options: &BrickExport) -> Result<(), Failure> {
    daemon::raise_file_limits();
    let stopped = StoppedBrick::take(&options.brick)?;
    Target::check_empty(&options.to)?;
    let damaged = if options.up_to_damage { DamagedJournal::ReadUpToIt } else { DamagedJournal::Refuse };
    let (brick, recovered) = stopped.open_to_read(damaged).map_err(|error| {
        let mut failure = Failure::from(error);
        if failure.text.contains("journal/") {
            failure.text += "; if there is no other replica, --up-to-damage uses the journal up to the damage";
        }
        failure
    })?;
    let mut progress = ProgressLine::new();
    let contents = Contents::read(&stopped, &mut |_| progress.tick("reading the journal"))?;
    let known = Known::of(cli, stopped.identity());
    let source = Source { contents: &contents, brick: &brick, lost: recovered.lost, known };
    let report = copy(cli, options, &source, &mut progress);
    drop(contents);
    // Closing reads pages of the index, and a damaged one must not end the process.
    let _ = guarded("closing the brick", || {
        drop(brick);
        Ok(())
    });
    report?.finish()
}

fn copy(cli: &Cli, options: &BrickExport, source: &Source, progress: &mut ProgressLine) -> Result<Report, Failure> {
    let mut report = Report::new(cli.json);
    for problem in source.contents.problems() {
        report.find(Finding::Damaged, None, &[], &problem.to_string());
    }
    let catalog = Catalog::read(source, progress, &mut report);
    let volumes = chosen(options, source, &catalog)?;
    let target = Target::make(&options.to)?;
    for volume in volumes {
        let name = source.known.directory_of(volume);
        report.begin_volume(volume, &name);
        walk::volume(source, &catalog, volume, &target.make_top(&name)?, progress, &mut report)?;
    }
    for problem in source.contents.wrong_index_blocks(source.brick) {
        report.find(Finding::Damaged, None, &[], &problem.to_string());
    }
    Ok(report)
}

/// The volumes that the options name.
fn chosen(options: &BrickExport, source: &Source, catalog: &Catalog) -> Result<Vec<VolumeId>, Failure> {
    let here = catalog.volumes();
    let Some(wanted) = &options.volume else { return Ok(here) };
    let by_name = here.iter().find(|volume| source.known.name_of(**volume) == Some(wanted));
    let by_number = || here.iter().find(|volume| volume.to_string() == *wanted);
    by_name.or_else(by_number).map(|volume| vec![*volume]).ok_or_else(|| {
        let all: Vec<String> = here.iter().map(|volume| source.known.words_of(*volume)).collect();
        let all = if all.is_empty() { "none".into() } else { all.join(", ") };
        Failure::new(66, format!("this brick has nothing of a volume {wanted}; there are: {all}"))
    })
}
