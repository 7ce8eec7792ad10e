//! `hekate translator` and `hekate volume set V translators`.

use crate::cli::{Cli, SetTranslators, Translator};
use crate::commands::control::{ask, look};
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use hekate_control::volume::VolumeStatus;
use hekate_control::{VolumeList, VolumeSetGraph};
use hekate_graph::{Catalogue, LayerKind, LayerSpec, Side, spec};
use hekate_plugins::Home;
use hekate_translators::built_in;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time that `volume set` waits for the programs that use the volume: their heartbeats come once a second.
const APPLIED_PATIENCE: Duration = Duration::from_secs(5);
const APPLIED_PAUSE: Duration = Duration::from_millis(200);

/// The translators that programs on this machine have.
pub fn catalogue(paths: &Paths) -> Catalogue {
    let home = Home::new(&paths.state);
    built_in().with_installed(home.finder())
}

pub fn translator(cli: &Cli, command: &Translator) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    match command {
        Translator::List => list(cli, &paths),
        Translator::Show { name } => {
            let kind = match name.strip_prefix("python:") {
                Some(name) => {
                    let name = name.strip_prefix("translator=").unwrap_or(name);
                    Home::new(&paths.state).python_kind(name)?
                }
                None => catalogue(&paths).find(name)?,
            };
            show(cli, &kind);
            Ok(())
        }
    }
}

fn list(cli: &Cli, paths: &Paths) -> Result<(), Failure> {
    let home = Home::new(&paths.state);
    let mut kinds: Vec<(String, &'static str, String)> =
        built_in().built_in().iter().map(|kind| (kind.name.clone(), side(kind), kind.summary.clone())).collect();
    for plugin in home.plugins()? {
        let summary = plugin.kind.map_or_else(|error| format!("cannot be used: {error}"), |kind| kind.summary);
        kinds.push((plugin.name, "client", summary));
    }
    for installed in home.pythons()? {
        kinds.push((format!("python:translator={}", installed.name), "client", installed.summary));
    }
    if cli.json {
        let rows = kinds.iter().map(|(name, side, summary)| json!({"name": name, "side": side, "summary": summary}));
        output::json(&rows.collect::<Vec<Value>>());
    } else {
        let rows = kinds.into_iter().map(|(name, side, summary)| vec![name, side.into(), summary]);
        output::table(&["TRANSLATOR", "RUNS IN", "DOES"], &rows.collect::<Vec<_>>());
    }
    Ok(())
}

fn side(kind: &LayerKind) -> &'static str {
    match kind.side {
        Side::Client => "client",
        Side::Leader => "servers",
    }
}

fn show(cli: &Cli, kind: &LayerKind) {
    if cli.json {
        let options = kind.options.iter().map(|option| {
            json!({"name": option.name, "default": option.default, "takes": option.kind.text(), "help": option.help})
        });
        output::json(&json!({
            "name": kind.name, "summary": kind.summary, "help": kind.help, "side": side(kind),
            "transparent": kind.is_transparent, "repeatable": kind.is_repeatable,
            "options": options.collect::<Vec<Value>>(),
        }));
        return;
    }
    println!("{}: {}", kind.name, kind.summary);
    if !kind.help.is_empty() {
        println!("{}", kind.help);
    }
    let where_ = match kind.side {
        Side::Client => "runs in each program that uses the volume",
        Side::Leader => "runs in the servers",
    };
    let changes = if kind.is_transparent { "changes neither ops nor replies" } else { "changes ops or replies" };
    println!("{where_}; {changes}");
    for option in &kind.options {
        let default = if option.default.is_empty() { "none".into() } else { option.default.clone() };
        println!("  {}  {}\n      takes {} [default: {default}]", option.name, option.help, option.kind.text());
    }
}

pub fn set(cli: &Cli, volume: &str, wanted: &SetTranslators) -> Result<(), Failure> {
    let layers = layers_of(wanted)?;
    let paths = Paths::of(cli)?;
    catalogue(&paths).check(&layers)?;
    for layer in layers.iter().filter(|layer| layer.name == "python") {
        Home::new(&paths.state).check_python(&layer.options)?;
    }
    if wanted.dry_run {
        let known = look(cli, VolumeList {})?;
        if !known.iter().any(|known| known.name == volume) {
            return Err(Failure::new(66, format!("there is no volume called {volume}")));
        }
        print_graph(cli, volume, &layers);
        return Ok(());
    }
    let set = ask(cli, VolumeSetGraph { name: volume.into(), layers: layers.clone() })?;
    let status = wait_until_applied(cli, set)?;
    if cli.json {
        output::json(&status);
        return Ok(());
    }
    print_graph(cli, volume, &layers);
    let (applied, sessions) = (status.sessions_on_graph, status.sessions);
    println!("change {}: used by {applied} of {sessions} programs that have the volume open", status.graph.change);
    if applied < sessions {
        println!(
            "the others have not taken it within {} s; one that lacks a translator goes on without the change: its log, and \
             `hekate graph {volume}` there, say why",
            APPLIED_PATIENCE.as_secs()
        );
    }
    Ok(())
}

fn wait_until_applied(cli: &Cli, mut status: VolumeStatus) -> Result<VolumeStatus, Failure> {
    let begun = Instant::now();
    while status.sessions_on_graph < status.sessions && begun.elapsed() < APPLIED_PATIENCE {
        std::thread::sleep(APPLIED_PAUSE);
        let all = look(cli, VolumeList {})?;
        status = all.into_iter().find(|known| known.volume == status.volume).unwrap_or(status);
    }
    Ok(status)
}

fn print_graph(cli: &Cli, volume: &str, layers: &[LayerSpec]) {
    if cli.json {
        output::json(&json!({"volume": volume, "layers": layers}));
        return;
    }
    println!("volume {volume}");
    layers.iter().for_each(|layer| println!("  {}", spec::text(layer)));
    println!("  distribute\n  replicate\n  transport");
}

fn layers_of(wanted: &SetTranslators) -> Result<Vec<LayerSpec>, Failure> {
    match &wanted.file {
        Some(file) => from_file(file),
        None if wanted.layers.is_empty() && !wanted.none => {
            Err(Failure::usage("name the translators, or say --none for no translators"))
        }
        None => Ok(wanted.layers.iter().map(|text| spec::parse(text)).collect::<hekate_proto::Result<_>>()?),
    }
}

fn from_file(file: &Path) -> Result<Vec<LayerSpec>, Failure> {
    let shown = file.display();
    let read = || match file == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin().take(1 << 20)),
        false => std::fs::read_to_string(file),
    };
    let text = read().map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    parse_toml(&text).map_err(|what| Failure::usage(format!("{shown}: {what}")))
}

fn parse_toml(text: &str) -> Result<Vec<LayerSpec>, String> {
    let whole: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
    if let Some(other) = whole.keys().find(|key| *key != "translator") {
        return Err(format!("{other} is not known; each translator is a table [[translator]]"));
    }
    let Some(toml::Value::Array(tables)) = whole.get("translator") else { return Ok(Vec::new()) };
    tables.iter().map(layer_of).collect()
}

fn layer_of(table: &toml::Value) -> Result<LayerSpec, String> {
    let table = table.as_table().ok_or("[[translator]] is a table")?;
    let name = table.get("name").and_then(toml::Value::as_str).ok_or("each [[translator]] has a name")?;
    let name = spec::parse(name).map_err(|error| error.to_string())?.name;
    let mut options = BTreeMap::new();
    for (option, value) in table.iter().filter(|(option, _)| *option != "name") {
        let value = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            toml::Value::Boolean(flag) => flag.to_string(),
            _ => return Err(format!("{name}: {option} is a text, a number, true or false")),
        };
        options.insert(option.clone(), value);
    }
    Ok(LayerSpec { name, options })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_translators_in_order() {
        let text = "[[translator]]\nname = \"fault\"\nshare = 2.5\nafter = true\n[[translator]]\nname = \"io-stats\"\n";
        let layers = parse_toml(text).unwrap();
        assert_eq!(layers.iter().map(spec::text).collect::<Vec<_>>(), ["fault:after=true,share=2.5", "io-stats"]);
        assert!(built_in().check(&layers).is_ok());
        for (text, words) in [
            ("[translator]\nname = 1", "Ok"),
            ("[[translator]]\nshare = 1", "has a name"),
            ("[[translator]]\nname = \"a\"\nb = [1]", "b is a text"),
            ("[[layer]]", "layer is not known"),
            ("x", "expected"),
        ] {
            let said = parse_toml(text).map_or_else(|what| what, |_| "Ok".into());
            assert!(said.contains(words), "{text}: {said}");
        }
    }
}
