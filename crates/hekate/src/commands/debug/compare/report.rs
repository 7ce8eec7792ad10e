//! The output of `hekate debug compare`: lines for people, or one JSON object.

use super::plan::Known;
use super::{Compared, Difference, Problems, Source, words};
use crate::cli::Cli;
use crate::failure::Failure;
use crate::output;
use hekate_brick::inspect::Digest;
use serde_json::{Value, json};

/// Exit status if something differs, as of diff(1) and cmp(1).
const DIFFERENT: u8 = 1;
/// EX_IOERR of sysexits(3), the exit status of all damage.
const DAMAGED: u8 = 74;
/// Most problems that are shown.
const PROBLEMS_SHOWN_MAX: usize = 100;

/// Prints the result.
///
/// # Errors
///
/// `DIFFERENT` or `DAMAGED`, as exit status.
pub fn report(
    cli: &Cli,
    sources: &[Source],
    known: Option<&Known>,
    compared: &[Compared],
    problems: &Problems,
) -> Result<(), Failure> {
    let different = compared.iter().filter(|one| one.state() == "different").count();
    if cli.json {
        output::json(&object(sources, known, compared, problems));
    } else {
        compared.iter().for_each(|one| say(one, sources, known));
        for (index, problem) in problems.named.iter().take(PROBLEMS_SHOWN_MAX) {
            println!("problem: {}: {problem}", sources[*index].directory.display());
        }
        summary(known, compared, problems);
    }
    match (different, problems.count) {
        (0, 0) => Ok(()),
        (0, _) if cli.json => Err(Failure::printed(DAMAGED)),
        (0, count) => Err(Failure::new(DAMAGED, format!("no replicas differ, but there are {count} problem(s)"))),
        (_, _) if cli.json => Err(Failure::printed(DIFFERENT)),
        (_, _) => Err(Failure::new(DIFFERENT, format!("{different} of {} partitions differ", compared.len()))),
    }
}

fn summary(known: Option<&Known>, compared: &[Compared], problems: &Problems) {
    let count = |state: &str| compared.iter().filter(|one| one.state() == state).count();
    println!(
        "{} partitions: {} equal, {} different, {} with one replica here, {} with none; {} problem(s)",
        compared.len(),
        count("equal"),
        count("different"),
        count("alone"),
        count("missing"),
        problems.count
    );
    if known.is_none() {
        println!("no state of this cluster here: a brick counts as replica of the partitions that it has a log of");
    }
}

fn say(one: &Compared, sources: &[Source], known: Option<&Known>) {
    let names: Vec<String> = one.partition.replicas.iter().map(|index| directory(&sources[*index])).collect();
    let title = one.partition.words();
    match (one.state(), one.digests.first()) {
        ("different", _) => {
            println!("{title}: DIFFERENT");
            say_replicas(one, sources);
            println!(
                "    {} keys differ{}",
                one.differ_count,
                if one.differs_more() { ", the first of them:" } else { ":" }
            );
            one.differ.iter().for_each(|differs| say_difference(differs, &names, known));
        }
        ("equal", Some(digest)) => println!("{title}: equal, {}, on {}", short(digest), names.join(" ")),
        (_, Some(digest)) => println!("{title}: nothing to compare with, {}, on {}", short(digest), names.join(" ")),
        (_, None) => println!("{title}: no replica here"),
    }
    if !one.partition.missing.is_empty() {
        println!("    not looked at: {}", one.partition.missing.join(" "));
    }
    for index in &one.partition.former {
        println!("    not compared, since it is no member of the view: {}", directory(&sources[*index]));
    }
}

fn say_replicas(one: &Compared, sources: &[Source]) {
    for ((index, digest), log) in one.partition.replicas.iter().zip(&one.digests).zip(&one.partition.logs) {
        let log = log.map_or("no log".into(), |(epoch, sequence)| format!("log at record {sequence} of epoch {epoch}"));
        let source = &sources[*index];
        let leader = if one.partition.leader == Some(source.id) { " (leader)" } else { "" };
        println!("    {}, {log}, on {}{leader}", short(digest), directory(source));
    }
}

fn say_difference(differs: &Difference, names: &[String], known: Option<&Known>) {
    let path = differs.path.as_ref().map_or(String::new(), |path| format!(", {path:?}"));
    println!("    {}{path}:", words::title(&differs.key, known));
    for (name, has) in names.iter().zip(words::each(differs)) {
        println!("        {name}: {}", has.unwrap_or("nothing".into()));
    }
    let runs = words::bytes_that_differ(differs);
    if !runs.is_empty() {
        let runs: Vec<String> = runs.iter().map(|(from, to)| format!("{from}-{to}")).collect();
        println!("        bytes of the shard that differ: {}", runs.join(", "));
    }
}

fn directory(source: &Source) -> String {
    source.directory.display().to_string()
}

fn short(digest: &Digest) -> String {
    format!("digest {:032x}, {} entries, {} shards", digest.sum, digest.entries, digest.shards)
}

impl Compared {
    fn differs_more(&self) -> bool {
        self.differ_count > self.differ.len() as u64
    }
}

fn object(sources: &[Source], known: Option<&Known>, compared: &[Compared], problems: &Problems) -> Value {
    let brick = |source: &Source| json!({ "brick": source.id, "directory": directory(source) });
    let shown = problems.named.iter().take(PROBLEMS_SHOWN_MAX);
    json!({
        "equal": compared.iter().all(|one| one.state() != "different"),
        "views_known": known.is_some(),
        "bricks": sources.iter().map(brick).collect::<Vec<_>>(),
        "partitions": compared.iter().map(|one| partition(one, sources, known)).collect::<Vec<_>>(),
        "problem_count": problems.count,
        "problems": shown.map(|(index, problem)| json!({
            "directory": directory(&sources[*index]), "file": problem.file, "offset": problem.offset, "what": problem.what,
        })).collect::<Vec<_>>(),
    })
}

fn partition(one: &Compared, sources: &[Source], known: Option<&Known>) -> Value {
    let all = one.partition.replicas.iter().zip(&one.digests).zip(&one.partition.logs);
    let replicas = all.map(|((index, digest), log)| {
        let source = &sources[*index];
        json!({
            "brick": source.id, "directory": directory(source), "leader": one.partition.leader == Some(source.id),
            "digest": format!("{:032x}", digest.sum), "entries": digest.entries, "shards": digest.shards,
            "shard_bytes": digest.shard_bytes, "problems": digest.problem_count,
            "log": log.map(|(epoch, sequence)| json!({ "epoch": epoch, "sequence": sequence })),
        })
    });
    json!({
        "ring": one.partition.address.ring,
        "partition": one.partition.address.number,
        "epoch": one.partition.epoch,
        "state": one.state(),
        "replicas": replicas.collect::<Vec<_>>(),
        "not_given": one.partition.missing,
        "not_members": one.partition.former.iter().map(|index| directory(&sources[*index])).collect::<Vec<_>>(),
        "keys_that_differ": one.differ_count,
        "differences": one.differ.iter().map(|differs| difference(differs, one, sources, known)).collect::<Vec<_>>(),
    })
}

fn difference(differs: &Difference, one: &Compared, sources: &[Source], known: Option<&Known>) -> Value {
    let has = one.partition.replicas.iter().zip(words::each(differs));
    let place = differs.key.prefix();
    json!({
        "what": words::title(&differs.key, known),
        "kind": differs.key.kind().map(|kind| format!("{kind:?}").to_lowercase()),
        "volume": place.map(|place| place.volume),
        "path": differs.path,
        "replicas": has.map(|(index, has)| json!({ "directory": directory(&sources[*index]), "has": has })).collect::<Vec<_>>(),
        "bytes_that_differ": words::bytes_that_differ(differs),
    })
}
