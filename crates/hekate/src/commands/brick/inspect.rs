//! `hekate brick inspect`: the contents of a stopped brick, and the problems in it.

use super::lines::{Lines, ProgressLine};
use super::{json, words};
use crate::cli::{BrickInspect, Cli};
use crate::failure::Failure;
use crate::output::bytes;
use hekate_brick::inspect::{
    Contents, Counts, DamagedJournal, DataFile, Entry, Problem, Segment, SegmentUse, StoppedBrick, Watch, check,
    guarded,
};
use hekate_proto::{Error, Result};
use serde_json::json;

pub fn inspect(cli: &Cli, options: &BrickInspect) -> std::result::Result<(), Failure> {
    let stopped = StoppedBrick::take(&options.directory)?;
    let mut inspection = Inspection {
        options,
        stopped: &stopped,
        lines: Lines::new(cli.json),
        progress: ProgressLine::new(),
        problems: Vec::new(),
    };
    inspection.all()?;
    match inspection.problems.len() {
        0 => Ok(()),
        count => {
            let exit = Error::Damaged { what: String::new() }.entry().exit;
            if cli.json {
                return Err(Failure::printed(exit));
            }
            Err(Failure::new(exit, format!("{count} problem(s) in {}", options.directory.display())))
        }
    }
}

struct Inspection<'a> {
    options: &'a BrickInspect,
    stopped: &'a StoppedBrick,
    lines: Lines,
    progress: ProgressLine,
    problems: Vec<Problem>,
}

impl Inspection<'_> {
    fn all(&mut self) -> Result<()> {
        self.brick();
        let contents = self.journal()?;
        if self.options.index || self.options.all {
            self.index(&contents);
        }
        let Self { progress, problems, .. } = self;
        let mut watch = Watch {
            progress: &mut |what| progress.tick(&format!("checking: {what}")),
            problem: &mut |problem| problems.push(problem),
        };
        let counts = check(&contents, self.options.check, &mut watch)?;
        self.data(&contents)?;
        drop(contents);
        if self.options.check {
            self.opening();
        }
        self.summary(&counts);
        for problem in &self.problems {
            self.lines.show(|| json::problem(problem), || words::problem(problem));
        }
        self.lines.flush();
        Ok(())
    }

    fn brick(&mut self) {
        let (identity, life) = (self.stopped.identity(), self.stopped.life());
        self.problems.extend(life.problem.clone());
        let value = || {
            json!({
                "type": "brick", "directory": self.options.directory.to_string_lossy(), "format": identity.format,
                "brick": identity.brick, "cluster": identity.cluster, "settings": identity.settings,
            })
        };
        let text = || format!("brick {} of cluster {}, format {}", identity.brick, identity.cluster, identity.format);
        self.lines.show(value, text);
        let (incarnation, reborn) = (life.incarnation.0, life.reborn);
        let text = || {
            let means = if reborn { "a new one: what was not synced may be lost" } else { "the one that it was in" };
            format!("life {incarnation} if opened now, {means}")
        };
        self.lines.show(|| json!({ "type": "life", "incarnation": incarnation, "reborn": reborn }), text);
    }

    fn journal(&mut self) -> Result<Contents> {
        let full = self.options.journal || self.options.all;
        let Self { lines, progress, .. } = self;
        let mut records = 0u64;
        let contents = Contents::read(self.stopped, &mut |record| {
            records += 1;
            progress.tick(&format!("reading the journal: {records} records"));
            if full {
                lines.show(|| json::record(record), || words::record(record));
            }
        })?;
        self.segments(contents.segments(), full);
        let end = contents.log_end();
        let damage = end.damage.as_ref().map(|problem| problem.to_string());
        let value = || {
            json!({
                "type": "log_end", "lsn": end.at.0, "file": end.file, "offset": end.offset, "why": end.why,
                "torn": end.torn, "damage": damage, "applied": contents.applied().0, "records": contents.records(),
            })
        };
        let text = || {
            let torn = match (&end.damage, end.torn) {
                (Some(_), _) => "damage: ",
                (None, true) => "a torn tail: ",
                (None, false) => "",
            };
            format!(
                "log: {} records beyond the checkpoint at {}; it ends at {}, {} at offset {} ({torn}{})",
                contents.records(),
                contents.applied().0,
                end.at.0,
                end.file,
                end.offset,
                end.why
            )
        };
        self.lines.show(value, text);
        if let Some(meta) = contents.meta() {
            let log = |log: &hekate_brick::PartitionLog| json!({ "ring": log.ring, "partition": log.partition, "epoch": log.epoch, "sequence": log.sequence });
            let logs: Vec<_> = meta.logs.iter().map(log).collect();
            let value = || json!({ "type": "meta", "applied": meta.applied, "generation": meta.generation, "resumed": meta.resumed, "logs": logs });
            let text = || {
                let mut text =
                    format!("checkpoint: generation {}, logs of {} partitions", meta.generation, meta.logs.len());
                for log in meta.logs.iter().filter(|_| full) {
                    let (ring, partition, epoch, sequence) = (log.ring, log.partition, log.epoch, log.sequence);
                    text += &format!("\n    ring {ring} partition {partition}: epoch {epoch} sequence {sequence}");
                }
                text
            };
            self.lines.show(value, text);
        }
        Ok(contents)
    }

    fn segments(&mut self, segments: &[Segment], full: bool) {
        for segment in segments.iter().filter(|_| full) {
            let number = segment.number.map_or("-".into(), |number| number.to_string());
            let text = || format!("{} number {number} {}", segment.file, json::segment_use(&segment.used));
            self.lines.show(|| json::segment(segment), text);
        }
        for segment in segments {
            if let SegmentUse::Unreadable(why) = &segment.used {
                let what = format!("the segment's header cannot be read: {why}");
                self.problems.push(Problem { file: segment.file.clone(), offset: Some(0), what });
            }
        }
        let count = |state: &str| segments.iter().filter(|it| json::segment_use(&it.used) == state).count();
        let states = ["in use", "recyclable", "zero", "stale", "unreadable"];
        let counts: Vec<String> = states
            .into_iter()
            .filter(|state| count(state) > 0)
            .map(|state| format!("{} {state}", count(state)))
            .collect();
        let each = bytes(self.stopped.identity().settings.segment_bytes);
        self.lines.say(&format!("journal: {} segments of {each}: {}", segments.len(), counts.join(", ")));
    }

    fn index(&mut self, contents: &Contents) {
        let Self { lines, progress, .. } = self;
        let (from, to) = Contents::all_keys();
        // Errors of it are among those that the check finds.
        let _ = contents.scan_index(&from, &to, &mut |key, value| {
            progress.tick("reading the index");
            let decoded = value.map_err(|error| error.to_string()).and_then(|value| Entry::decode(key, value));
            match decoded {
                Ok((place, entry)) => lines.show(|| json::entry(place, &entry), || words::entry(place, &entry)),
                Err(why) => lines.show(
                    || json!({ "type": "entry", "key": format!("{key:?}"), "malformed": why }),
                    || format!("{key:?} is malformed: {why}"),
                ),
            }
            true
        });
    }

    fn data(&mut self, contents: &Contents) -> Result<()> {
        let shards = contents.shards();
        if self.options.data || self.options.all {
            for (number, (ring, shard)) in shards.iter().enumerate() {
                self.progress.tick(&format!("reading shard {} of {}", number + 1, shards.len()));
                let Ok(Some(found)) = contents.shard_blocks(*ring, *shard) else { continue };
                self.lines.show(|| json::shard_blocks(&found), || words::shard_blocks(&found));
                if !self.options.check {
                    self.problems.extend(found.problems);
                }
            }
        }
        let (files, _) = contents.data_files(&shards);
        for file in files.iter().filter(|file| !file.referred) {
            let DataFile { file, bytes, shard, .. } = file;
            let what = if shard.is_some() { "nothing refers to it" } else { "no data file by its name" };
            self.lines.show(
                || json!({ "type": "unreferenced_file", "file": file, "bytes": bytes, "what": what }),
                || format!("{file} ({bytes} bytes): {what}"),
            );
        }
        let (count, all) = (files.len(), files.iter().map(|file| file.bytes).sum());
        self.lines.show(
            || json!({ "type": "data_files", "files": count, "bytes": all, "shards": shards.len() }),
            || format!("data: {} shards, {count} files of {}", shards.len(), bytes(all)),
        );
        Ok(())
    }

    /// Whether a server could open the brick.
    fn opening(&mut self) {
        self.progress.tick("opening");
        match self.stopped.open_to_read(DamagedJournal::Refuse) {
            Ok((brick, report)) => {
                let lost = report.lost.len();
                self.lines.show(
                    || json!({ "type": "opening", "opens": true, "records": report.records, "lost_blocks": lost }),
                    || format!("opening: {} records are taken, {lost} blocks were lost to a power cut", report.records),
                );
                let _ = guarded("closing", || {
                    drop(brick);
                    Ok(())
                });
            }
            Err(error) => {
                let what = error.to_string();
                self.lines.show(
                    || json!({ "type": "opening", "opens": false, "why": what }),
                    || format!("opening: refused: {what}"),
                );
                let named = self.problems.iter().any(|problem| problem.file.starts_with("journal/"));
                if !named {
                    self.problems.push(Problem {
                        file: ".".into(),
                        offset: None,
                        what: format!("cannot be opened: {what}"),
                    });
                }
            }
        }
    }

    fn summary(&mut self, counts: &Counts) {
        let kinds = || counts.entries.iter().map(|(kind, count)| (format!("{kind:?}"), *count));
        let value = || {
            json!({
                "type": "summary", "entries": kinds().map(|(kind, count)| (kind, json!(count))).collect::<serde_json::Map<_, _>>(),
                "shards": counts.shards, "blocks": counts.blocks, "checked": self.options.check,
                "problems": self.problems.len(),
            })
        };
        let text = || {
            let entries: Vec<String> = kinds().map(|(kind, count)| format!("{count} {kind}")).collect();
            let blocks: Vec<String> = counts.blocks.iter().map(|(state, count)| format!("{count} {state}")).collect();
            let mut text = format!("entries: {}", if entries.is_empty() { "none".into() } else { entries.join(", ") });
            if self.options.check {
                text += &format!("\nblocks: {}", if blocks.is_empty() { "none".into() } else { blocks.join(", ") });
            }
            let unread = if self.options.check { "" } else { " (data files were not read; --check reads them)" };
            format!("{text}\nproblems: {}{unread}", self.problems.len())
        };
        self.lines.show(value, text);
    }
}
