//! `hekate plugin` and `hekate python`.

use crate::cli::{Cli, Plugin, Python};
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use hekate_plugins::Home;
use serde_json::{Value, json};
use std::path::Path;

/// Exit status of tests that fail.
const DIFFERENT: u8 = 1;

pub fn plugin(cli: &Cli, command: &Plugin) -> Result<(), Failure> {
    let home = Home::new(&Paths::of(cli)?.state);
    match command {
        Plugin::Install { file, name } => {
            let name = name.clone().unwrap_or_else(|| name_of(file));
            let kind = home.install_plugin(file, &name)?;
            told(cli, &name, "is installed", &kind.summary, &format!("hekate volume set VOLUME translators {name}"));
        }
        Plugin::Remove { name } => {
            home.remove_plugin(name)?;
            told(cli, name, "is removed", "", "");
        }
        Plugin::List => {
            let rows = home.plugins()?.into_iter().map(|plugin| {
                let (state, summary) = match plugin.kind {
                    Ok(kind) => ("good", kind.summary),
                    Err(error) => ("refused", error.to_string()),
                };
                [plugin.name, state.into(), summary]
            });
            listed(cli, rows.collect());
        }
    }
    Ok(())
}

/// The name of a library's file without `lib` and `.so`.
fn name_of(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    stem.strip_prefix("lib").unwrap_or(&stem).to_string()
}

pub fn python(cli: &Cli, command: &Python) -> Result<(), Failure> {
    let home = Home::new(&Paths::of(cli)?.state);
    match command {
        Python::New { directory } => {
            home.new_python(directory)?;
            let shown = directory.display().to_string();
            told(cli, &shown, "is made", "", &format!("edit {shown}/translator.py, then: hekate python test {shown}"));
        }
        Python::Test { directory, arguments } => test(&home, directory, arguments)?,
        Python::Install { directory, name } => {
            let own = std::path::absolute(directory).unwrap_or_default();
            let own = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = name.clone().unwrap_or(own);
            let is_there = home.python_directory(&name).is_ok();
            let kind = home.install_python(directory, &name)?;
            let next = format!("hekate volume set VOLUME translators python:translator={name}");
            let next = if is_there { "programs that use it load the new one within seconds" } else { &next };
            told(cli, &name, "is installed", &kind.summary, next);
        }
        Python::Remove { name } => {
            home.remove_python(name)?;
            told(
                cli,
                name,
                "is removed; a volume whose graph names it cannot be opened on this machine any more",
                "",
                "",
            );
        }
        Python::List => {
            let rows = home.pythons()?.into_iter().map(|python| {
                let state = if python.summary.starts_with("cannot be used") { "refused" } else { "good" };
                [python.name, state.into(), python.summary]
            });
            listed(cli, rows.collect());
        }
    }
    Ok(())
}

fn test(home: &Home, directory: &Path, arguments: &[String]) -> Result<(), Failure> {
    let directory = std::fs::canonicalize(directory)
        .map_err(|error| Failure::usage(format!("{}: {error}", directory.display())))?;
    let mut command = home.python_command()?;
    command.current_dir(&directory).args(["-m", "pytest", "-p", "hekate.testing", "-p", "no:cacheprovider"]);
    let ended = command.arg(".").args(arguments).status();
    let ended = ended.map_err(|error| Failure::new(69, format!("python3 does not start: {error}")))?;
    match ended.code() {
        Some(0) => Ok(()),
        Some(1) => Err(Failure::new(DIFFERENT, "tests have failed")),
        _ => Err(Failure::new(69, "the tests did not run; pytest comes with: apt install python3-pytest")),
    }
}

fn told(cli: &Cli, name: &str, what: &str, summary: &str, next: &str) {
    if cli.json {
        output::json(&json!({"name": name, "summary": summary}));
        return;
    }
    let summary = if summary.is_empty() { String::new() } else { format!(": {summary}") };
    println!("{name} {what}{summary}");
    if !next.is_empty() {
        println!("next: {next}");
    }
}

fn listed(cli: &Cli, rows: Vec<[String; 3]>) {
    if cli.json {
        let row = |[name, state, summary]: [String; 3]| json!({"name": name, "state": state, "summary": summary});
        output::json(&rows.into_iter().map(row).collect::<Vec<Value>>());
    } else {
        output::table(&["NAME", "STATE", "DOES"], &rows.into_iter().map(Vec::from).collect::<Vec<_>>());
    }
}
