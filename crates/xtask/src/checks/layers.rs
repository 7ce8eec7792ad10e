//! Dependencies point down the list in `tidy.toml`. Reserved and forbidden dependencies stay where it allows them.

use std::collections::BTreeMap;

use super::manifests::{self, Dependency};
use crate::report::{Offence, Result};
use crate::settings::{Layers, Settings};
use crate::tree::Tree;

pub fn check(tree: &Tree, settings: &Settings) -> Result<Vec<Offence>> {
    let folders = manifests::folders(tree)?;
    let dependencies = manifests::dependencies(tree)?;
    let strangers = tree.crates().into_iter().filter(|name| rank(&settings.layers, name).is_none());
    let mut offences: Vec<Offence> =
        strangers.filter(|name| !stands_alone(&settings.layers, name)).map(unlisted).collect();
    for dependency in &dependencies {
        offences.extend(direction(&settings.layers, &folders, dependency));
        offences.extend(misplaced(settings, dependency));
    }
    Ok(offences)
}

fn direction(layers: &Layers, folders: &BTreeMap<String, String>, dependency: &Dependency) -> Option<Offence> {
    let (from, to) = (&dependency.of, folders.get(&dependency.package)?);
    if stands_alone(layers, from) || stands_alone(layers, to) {
        return Some(offence(
            dependency,
            "one of the two stands alone ([layers] alone in tidy.toml); remove the dependency",
        ));
    }
    let (above, below) = (rank(layers, from)?, rank(layers, to)?);
    (below <= above).then(|| {
        let relation = if below == above { "beside it" } else { "above it" };
        let rule = "a crate may depend only on crates in later rows of [layers] order in tidy.toml";
        offence(dependency, &format!("{to} stands {relation}: {rule}; move the code down, or pass it in from above"))
    })
}

fn misplaced(settings: &Settings, dependency: &Dependency) -> Vec<Offence> {
    let asked = |list: &[String]| list.contains(&dependency.package);
    let reserved =
        settings.reserved.iter().filter(|rule| asked(&rule.dependencies) && !rule.crates.contains(&dependency.of));
    let forbidden =
        settings.forbidden.iter().filter(|rule| asked(&rule.dependencies) && rule.crates.contains(&dependency.of));
    let reserved = reserved.map(|rule| format!("only {} may: {}", rule.crates.join(", "), rule.why));
    let forbidden = forbidden.map(|rule| format!("it may not: {}", rule.why));
    reserved.chain(forbidden).map(|rule| offence(dependency, &rule)).collect()
}

fn offence(dependency: &Dependency, rule: &str) -> Offence {
    let what = format!("{} depends on {}, but {rule}", dependency.of, dependency.package);
    Offence::new(manifests::manifest_of(&dependency.of), what)
}

fn unlisted(name: &str) -> Offence {
    let what = format!("the crate {name} has no place in [layers] of tidy.toml; add it to the row where it belongs");
    Offence::new(manifests::manifest_of(name), what)
}

fn rank(layers: &Layers, name: &str) -> Option<usize> {
    layers.order.iter().position(|row| row.iter().any(|listed| listed == name))
}

fn stands_alone(layers: &Layers, name: &str) -> bool {
    layers.alone.iter().any(|listed| listed == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: &str = "
        layers = { order = [['door', 'gate'], ['brick'], ['proto']], alone = ['xtask'] }
        limits = { file_lines = 600, function_lines = 70 }
        reserved = [{ dependencies = ['fuser'], crates = ['door'], why = 'heavy' }]
        forbidden = [{ crates = ['proto'], dependencies = ['tokio'], why = 'proto does no IO' }]";

    fn offences(manifests: &[(&str, &str)]) -> Vec<String> {
        let texts: Vec<(String, String)> = manifests
            .iter()
            .map(|(name, dependencies)| {
                let text = format!("[package]\nname = 'hekate-{name}'\n[dependencies]\n{dependencies}");
                (format!("crates/{name}/Cargo.toml"), text)
            })
            .collect();
        let mut files: Vec<(&str, &str)> = texts.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        files.push(("Cargo.toml", ""));
        let found = check(&Tree::of(&files), &toml::from_str(SETTINGS).unwrap()).unwrap();
        found.into_iter().map(|offence| offence.to_string()).collect()
    }

    #[test]
    fn pointing_down_is_fine() {
        let door = "hekate-brick = { path = '../brick' }\nfuser = '1'";
        assert!(offences(&[("door", door), ("brick", "hekate-proto = '1'\ntokio = '1'"), ("proto", "")]).is_empty());
    }

    #[test]
    fn pointing_up_or_sideways_is_not() {
        let up = offences(&[("brick", ""), ("proto", "hekate-brick = '1'")]);
        assert!(up[0].contains("proto depends on hekate-brick, but brick stands above it"), "{up:?}");
        let sideways = offences(&[("door", "hekate-gate = '1'"), ("gate", "")]);
        assert!(sideways[0].contains("gate stands beside it"), "{sideways:?}");
    }

    #[test]
    fn a_crate_that_stands_alone_neither_uses_nor_is_used() {
        let both = offences(&[("xtask", "hekate-proto = '1'"), ("proto", "hekate-xtask = '1'")]);
        assert_eq!(both.iter().filter(|text| text.contains("stands alone")).count(), 2, "{both:?}");
    }

    #[test]
    fn every_crate_has_its_place() {
        assert!(offences(&[("utils", "")])[0].contains("the crate utils has no place"));
    }

    #[test]
    fn reserved_and_forbidden_dependencies_are_named_with_the_reason() {
        let found = offences(&[("proto", "fuser = '1'\ntokio = '1'")]);
        assert!(found[0].contains("depends on fuser, but only door may: heavy"), "{found:?}");
        assert!(found[1].contains("depends on tokio, but it may not: proto does no IO"), "{found:?}");
    }
}
