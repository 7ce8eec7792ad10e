//! Licences, bans and sources of all dependencies obey `deny.toml`, the file that cargo-deny reads as well.
//!
//! cargo-deny (`make deny`) also checks advisories, licence texts and duplicates. This check needs only cargo, so it
//! runs with every `make test`.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

use crate::report::{Offence, Result, Trouble};
use crate::tree::Tree;

const FILE: &str = "deny.toml";

/// What this check reads of `deny.toml`. Unknown keys are ignored here, because cargo-deny refuses them.
#[derive(Deserialize)]
struct Policy {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    wildcards: String,
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

pub fn check(tree: &Tree, root: &Path) -> Result<Vec<Offence>> {
    let text = tree.text(FILE).ok_or_else(|| Trouble(format!("{FILE} is missing from the root of the repository")))?;
    let policy: Policy = toml::from_str(text).map_err(|error| Trouble(format!("{FILE}: {error}")))?;
    Ok(judge(&metadata(root, &policy.graph.targets)?, &policy))
}

/// `cargo metadata` of what is built for `targets`. Cargo.lock must be up to date: a check writes nothing.
fn metadata(root: &Path, targets: &[String]) -> Result<Value> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["metadata", "--format-version=1", "--locked"]).current_dir(root);
    for target in targets {
        cargo.args(["--filter-platform", target]);
    }
    let output = cargo.output().map_err(|error| Trouble(format!("cannot run cargo metadata: {error}")))?;
    if !output.status.success() {
        return Err(Trouble(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim())));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| Trouble(format!("cargo metadata wrote bad JSON: {error}")))
}

fn judge(metadata: &Value, policy: &Policy) -> Vec<Offence> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().flat_map(|package| offences_of(package, policy)).collect()
}

fn offences_of(package: &Value, policy: &Policy) -> Vec<Offence> {
    let name = package["name"].as_str().unwrap_or_default();
    let place = format!("{name} {}", package["version"].as_str().unwrap_or_default());
    let mut whats = Vec::new();
    whats.extend(licence(name, package["license"].as_str(), &policy.licenses));
    whats.extend(policy.bans.deny.iter().filter(|banned| banned.name == name).map(|banned| {
        format!("is banned by [bans] in {FILE}: {}; `cargo tree -i {name}` shows who asks for it", banned.reason)
    }));
    whats.extend(source(package["source"].as_str(), &policy.sources));
    if policy.bans.wildcards == "deny" {
        whats.extend(wildcards(package));
    }
    whats.into_iter().map(|what| Offence::new(place.clone(), what)).collect()
}

fn licence(name: &str, expression: Option<&str>, rules: &Licences) -> Option<String> {
    let Some(expression) = expression else {
        return Some("names no licence; write `license.workspace = true` if it is ours, else drop it".to_string());
    };
    let excepted = rules.exceptions.iter().filter(|exception| exception.name == name).flat_map(|it| &it.allow);
    let allowed: Vec<&str> = rules.allow.iter().chain(excepted).map(String::as_str).collect();
    match satisfied(expression, &allowed) {
        Some(true) => None,
        Some(false) => {
            Some(format!("has the licence \"{expression}\", which [licenses] in {FILE} does not allow; drop it"))
        }
        None => {
            Some(format!("has the licence \"{expression}\", which is no SPDX expression; add an exception or drop it"))
        }
    }
}

/// The offence of a package's source; none for a path of this repository.
fn source(source: Option<&str>, rules: &Sources) -> Option<String> {
    let source = source?;
    let known = source.strip_prefix("registry+").is_some_and(|url| rules.allow_registry.iter().any(|it| it == url));
    (!known).then(|| format!("comes from {source}, which [sources] in {FILE} does not allow; take it from crates.io"))
}

fn wildcards(package: &Value) -> Vec<String> {
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let wild = dependencies.iter().filter(|dependency| dependency["req"] == "*" && dependency["path"].is_null());
    wild.map(|dependency| format!("asks for any version of {}; name the version", dependency["name"])).collect()
}

/// True if the SPDX `expression` can be met with the `allowed` licences; None if it does not parse.
fn satisfied(expression: &str, allowed: &[&str]) -> Option<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (met, rest) = any_of(&words, allowed)?;
    rest.is_empty().then_some(met)
}

type Parsed<'a, 'b> = Option<(bool, &'a [&'b str])>;

fn any_of<'a, 'b>(words: &'a [&'b str], allowed: &[&str]) -> Parsed<'a, 'b> {
    let (mut met, mut rest) = all_of(words, allowed)?;
    while let Some(("OR", after)) = first(rest) {
        let (next, after) = all_of(after, allowed)?;
        (met, rest) = (met || next, after);
    }
    Some((met, rest))
}

fn all_of<'a, 'b>(words: &'a [&'b str], allowed: &[&str]) -> Parsed<'a, 'b> {
    let (mut met, mut rest) = one(words, allowed)?;
    while let Some(("AND", after)) = first(rest) {
        let (next, after) = one(after, allowed)?;
        (met, rest) = (met && next, after);
    }
    Some((met, rest))
}

fn one<'a, 'b>(words: &'a [&'b str], allowed: &[&str]) -> Parsed<'a, 'b> {
    match first(words)? {
        ("(", inner) => {
            let (met, rest) = any_of(inner, allowed)?;
            first(rest).filter(|(word, _)| *word == ")").map(|(_, rest)| (met, rest))
        }
        (")" | "AND" | "OR" | "WITH", _) => None,
        (licence, rest) => match first(rest) {
            Some(("WITH", after)) => {
                let (exception, rest) = first(after)?;
                Some((allowed.contains(&format!("{licence} WITH {exception}").as_str()), rest))
            }
            _ => Some((allowed.contains(&licence), rest)),
        },
    }
}

fn first<'a, 'b>(words: &'a [&'b str]) -> Option<(&'b str, &'a [&'b str])> {
    words.split_first().map(|(word, rest)| (*word, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_as_spdx_says() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
        for (expression, expected) in [
            ("MIT", Some(true)),
            ("GPL-3.0 OR MIT", Some(true)),
            ("Apache-2.0/MIT", Some(true)),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", Some(true)),
            ("MIT AND GPL-3.0", Some(false)),
            ("Apache-2.0 WITH LLVM-exception", Some(false)),
            ("Apache-2.0 WITH LLVM-exception OR MIT", Some(true)),
            ("MIT OR", None),
            ("(MIT", None),
            ("MIT MIT", None),
        ] {
            assert_eq!(satisfied(expression, &allowed), expected, "{expression}");
        }
    }

    fn offences(package: &str) -> Vec<String> {
        let policy = "
            graph = { targets = [] }
            licenses = { allow = ['MIT'], exceptions = [{ crate = 'odd', allow = ['MPL-2.0'] }] }
            bans = { wildcards = 'deny', deny = [{ crate = 'openssl', reason = 'we use rustls' }] }
            sources = { allow-registry = ['https://github.com/rust-lang/crates.io-index'] }";
        let metadata = serde_json::from_str(&format!("{{\"packages\": [{package}]}}")).unwrap();
        judge(&metadata, &toml::from_str(policy).unwrap()).into_iter().map(|offence| offence.to_string()).collect()
    }

    #[test]
    fn a_sound_package_is_fine() {
        let source = "registry+https://github.com/rust-lang/crates.io-index";
        let package = format!(r#"{{"name": "a", "version": "1.0.0", "license": "MIT", "source": "{source}"}}"#);
        assert!(offences(&package).is_empty());
        assert!(offences(r#"{"name": "odd", "license": "MPL-2.0", "source": null}"#).is_empty());
        let ours = r#"{"name": "b", "license": "MIT", "dependencies": [{"name": "a", "req": "*", "path": "/a"}]}"#;
        assert!(offences(ours).is_empty());
    }

    #[test]
    fn every_breach_is_named() {
        let wild = r#"{"name": "a", "license": "MIT", "dependencies": [{"name": "b", "req": "*"}]}"#;
        for (package, complaint) in [
            (r#"{"name": "a", "license": "GPL-3.0"}"#, "has the licence \"GPL-3.0\""),
            (r#"{"name": "a", "license": null}"#, "names no licence"),
            (r#"{"name": "openssl", "license": "MIT"}"#, "is banned by [bans] in deny.toml: we use rustls"),
            (r#"{"name": "a", "license": "MIT", "source": "git+https://example.org/a"}"#, "comes from git+https"),
            (wild, "asks for any version of \"b\""),
        ] {
            let found = offences(package);
            assert!(found.len() == 1 && found[0].contains(complaint), "{found:?}");
        }
    }
}
