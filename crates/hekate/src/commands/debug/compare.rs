//! `hekate debug compare`: a digest of each replica of each partition, from stopped bricks, and what differs.
//!
//! Each brick is read by a thread of its own, twice at most: once for the digests and, in partitions whose digests
//! differ, once more, replica beside replica, for what differs.

mod files;
mod plan;
mod report;
mod words;

use crate::cli::{Cli, DebugCompare};
use crate::commands::brick::lines::ProgressLine;
use crate::failure::Failure;
use hekate_brick::inspect::{Contents, Digest, Held, Problem, Replica, StoppedBrick, differences};
use hekate_proto::{BrickId, Key, Result};
use plan::{Known, Partition};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Number of keys that are shown for a partition.
const SHOWN_MAX: usize = 32;

/// A brick to compare.
struct Source {
    directory: PathBuf,
    id: BrickId,
    stopped: StoppedBrick,
}

/// A partition whose replicas were compared.
struct Compared {
    partition: Partition,
    /// One for each of the partition's replicas.
    digests: Vec<Digest>,
    /// Keys whose values differ.
    differ_count: u64,
    differ: Vec<Difference>,
}

/// A key, and the value of each replica.
struct Difference {
    key: Key,
    held: Vec<Option<Held>>,
    /// Path of the file from the root of its volume, if it was found.
    path: Option<String>,
}

pub fn compare(cli: &Cli, options: &DebugCompare) -> std::result::Result<(), Failure> {
    let known = Known::read(cli, options.directories.is_empty())?;
    let directories = match (&known, options.directories.is_empty()) {
        (Some(known), true) => known.directories(),
        _ => options.directories.clone(),
    };
    let sources = take(&directories)?;
    let known = known.filter(|known| known.is_of(&sources));
    let progress = Mutex::new(ProgressLine::new());
    let contents = side_by_side(&sources, |_, source| {
        let what = format!("{}: reading the journal", source.directory.display());
        Contents::read(&source.stopped, &mut |_| tick(&progress, || what.clone()))
    })?;
    let partitions = plan::partitions(known.as_ref(), &sources, &contents);
    let replicas: Vec<Replica> = contents.iter().map(Replica::new).collect();
    let digests = side_by_side(&replicas, |index, replica| {
        Ok(digests(replica, &partitions, index, &sources[index].directory, &progress))
    })?;
    let mut compared: Vec<Compared> = partitions
        .into_iter()
        .enumerate()
        .map(|(number, partition)| judge(partition, number, &digests, &replicas, &progress))
        .collect();
    files::find(&contents, &mut compared, &progress);
    let problems = problems(&sources, &contents, &compared);
    report::report(cli, &sources, known.as_ref(), &compared, &problems)
}

/// Locks the bricks, so that no server opens one of them meanwhile.
fn take(directories: &[PathBuf]) -> std::result::Result<Vec<Source>, Failure> {
    let mut sources: Vec<Source> = Vec::new();
    for directory in directories {
        let stopped = StoppedBrick::take(directory)?;
        if let Some(first) = sources.first()
            && first.stopped.identity().cluster != stopped.identity().cluster
        {
            let (one, other) = (first.directory.display(), directory.display());
            return Err(Failure::usage(format!("{one} and {other} are of different clusters; compare bricks of one")));
        }
        sources.push(Source { directory: directory.clone(), id: stopped.identity().brick_id()?, stopped });
    }
    Ok(sources)
}

/// Calls a function for each item, each in its own thread.
fn side_by_side<T: Sync, R: Send>(
    all: &[T],
    run: impl Fn(usize, &T) -> Result<R> + Sync,
) -> std::result::Result<Vec<R>, Failure> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().enumerate().map(|(index, one)| scope.spawn(move || run(index, one))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|outcome| {
                Ok(outcome.map_err(|_| Failure::new(70, "a thread that reads a brick panicked, which is a bug"))??)
            })
            .collect()
    })
}

fn tick(progress: &Mutex<ProgressLine>, what: impl Fn() -> String) {
    progress.lock().unwrap_or_else(PoisonError::into_inner).tick_with(what);
}

/// The digests of all partitions; those of partitions that have no replica on this brick are empty.
fn digests(
    replica: &Replica,
    partitions: &[Partition],
    index: usize,
    directory: &Path,
    progress: &Mutex<ProgressLine>,
) -> Vec<Digest> {
    let (count, directory) = (partitions.len(), directory.display());
    let mut bytes_before = 0;
    let digest = |(number, partition): (usize, &Partition)| {
        if !partition.replicas.contains(&index) {
            return Digest::default();
        }
        let found = replica.digest(partition.address, &mut |digest| {
            tick(progress, || {
                let mebibytes = (bytes_before + digest.shard_bytes) >> 20;
                format!("{directory}: partition {} of {count}, {mebibytes} MiB of shards", number + 1)
            });
        });
        bytes_before += found.shard_bytes;
        found
    };
    partitions.iter().enumerate().map(digest).collect()
}

/// Finds the keys that differ in partitions whose digests differ.
fn judge(
    partition: Partition,
    number: usize,
    digests: &[Vec<Digest>],
    replicas: &[Replica],
    progress: &Mutex<ProgressLine>,
) -> Compared {
    let digests: Vec<Digest> = partition.replicas.iter().map(|index| digests[*index][number].clone()).collect();
    let mut compared = Compared { partition, digests, differ_count: 0, differ: Vec::new() };
    if compared.is_equal() {
        return compared;
    }
    let members: Vec<&Replica> = compared.partition.replicas.iter().map(|index| &replicas[*index]).collect();
    let shown = compared.partition.words();
    let mut seen = 0u64;
    let found = differences(&members, compared.partition.address, SHOWN_MAX, &mut || {
        seen += 1;
        tick(progress, || format!("{shown}: looking for what differs, {seen} keys"));
    });
    compared.differ_count = found.count;
    let difference = |key: Key| {
        let held = members.iter().map(|member| member.held(&key)).collect();
        Difference { key, held, path: None }
    };
    compared.differ = found.first.into_iter().map(difference).collect();
    compared
}

impl Compared {
    fn is_equal(&self) -> bool {
        self.digests.windows(2).all(|pair| pair[0].sum == pair[1].sum)
    }

    /// The word in JSON and in tables.
    fn state(&self) -> &'static str {
        match self.digests.len() {
            0 => "missing",
            1 => "alone",
            _ if self.is_equal() => "equal",
            _ => "different",
        }
    }
}

/// What cannot be read, by brick, and the number of all such items.
struct Problems {
    named: Vec<(usize, Problem)>,
    count: u64,
}

fn problems(sources: &[Source], contents: &[Contents], compared: &[Compared]) -> Problems {
    let mut named = Vec::new();
    for (index, (source, contents)) in sources.iter().zip(contents).enumerate() {
        let of_brick = contents.problems().iter().chain(&source.stopped.life().problem);
        named.extend(of_brick.map(|problem| (index, problem.clone())));
    }
    let mut count = named.len() as u64;
    for one in compared {
        for (index, digest) in one.partition.replicas.iter().zip(&one.digests) {
            named.extend(digest.problems.iter().map(|problem| (*index, problem.clone())));
            count += digest.problem_count;
        }
    }
    Problems { named, count }
}
