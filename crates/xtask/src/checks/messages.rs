//! The table of messages in `docs/replication.md` has a row for each variant of `Message`, and the rules that
//! `crates/replica` asserts are rules of the two protocol pages.

use std::collections::BTreeSet;

use crate::report::Offence;
use crate::tree::Tree;

const PAGE: &str = "docs/replication.md";
const LANE_PAGE: &str = "docs/fast-lane.md";
const SOURCE: &str = "crates/replica/src/message.rs";

pub fn check(tree: &Tree) -> Vec<Offence> {
    let page = tree.text(PAGE).unwrap_or_default();
    let variants = variants(tree.text(SOURCE).unwrap_or_default());
    let rows: BTreeSet<&str> = section(page, "## Messages").filter_map(row_name).collect();
    let missing = variants.iter().filter(|name| !rows.contains(name.as_str())).map(|name| {
        Offence::new(PAGE, format!("has no row for the message {name}; add \"| `{name}` | from | to | says |\""))
    });
    let stale = rows.iter().filter(|name| !variants.contains(**name)).map(|name| {
        Offence::new(PAGE, format!("has a row for the message {name}, which {SOURCE} does not have; remove it"))
    });
    missing.chain(stale).chain(unknown_rules(tree, page)).collect()
}

/// Names of the variants of `enum Message`, which are written `1 = Append { … },` or `17 = WantStable,`.
fn variants(source: &str) -> BTreeSet<String> {
    let Some((_, after)) = source.split_once("pub enum Message {") else { return BTreeSet::new() };
    let body = after.split("\n    }\n").next().unwrap_or_default();
    let name = |line: &str| {
        let (number, rest) = line.trim().split_once(" = ")?;
        number.parse::<u32>().ok()?;
        Some(rest.split(|c: char| !c.is_alphanumeric()).next()?.to_string())
    };
    body.lines().filter_map(name).collect()
}

fn section<'a>(page: &'a str, heading: &'a str) -> impl Iterator<Item = &'a str> {
    page.lines().skip_while(move |line| *line != heading).skip(1).take_while(|line| !line.starts_with("## "))
}

fn row_name(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("| `")?.split_once('`')?;
    Some(name)
}

/// Rules that a `require(…, "R2", …)` of the replica names, and no page has as a row ("| R2 |") or an item ("**L16**").
fn unknown_rules(tree: &Tree, page: &str) -> Vec<Offence> {
    let lane = tree.text(LANE_PAGE).unwrap_or_default();
    let is_known = |rule: &str| {
        [page, lane].iter().any(|text| text.contains(&format!("| {rule} |")) || text.contains(&format!("**{rule}**")))
    };
    let mut offences = Vec::new();
    for (path, text) in
        tree.texts().filter(|(path, _)| path.starts_with("crates/replica/src/") && path.ends_with(".rs"))
    {
        let labels = text.split("require(").skip(1).filter_map(|call| call.split('"').nth(1)).filter(|it| is_label(it));
        for rule in labels.filter(|rule| !is_known(rule)) {
            let what = format!("asserts rule {rule}, which neither {PAGE} nor {LANE_PAGE} has");
            offences.push(Offence::new(path, what));
        }
    }
    offences
}

/// R, F or L and a number.
fn is_label(text: &str) -> bool {
    let digits = text.strip_prefix(['R', 'F', 'L']).unwrap_or_default();
    !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENUM: &str = "    pub enum Message {\n        /// Leader.\n        1 = Append { entry: u8 },\n        17 = WantStable,\n    }\n";

    fn offences(page: &str, code: &str) -> Vec<String> {
        let tree =
            Tree::of(&[(SOURCE, ENUM), (PAGE, page), (LANE_PAGE, "- **L16** x"), ("crates/replica/src/a.rs", code)]);
        check(&tree).into_iter().map(|offence| offence.what).collect()
    }

    #[test]
    fn a_row_for_each_message_is_fine() {
        let page = "## Messages\n| `Append` | x |\n| `WantStable` | y |\n## Rules\n| R2 | z |\n| `other` | |\n";
        assert!(offences(page, "require(true, \"R2\", x); require(a, \"L16\", y)").is_empty());
    }

    #[test]
    fn missing_and_stale_rows_and_unknown_rules_are_offences() {
        let found =
            offences("## Messages\n| `Append` | x |\n| `Held` | y |\n", "require(true, \"R3\", || String::new())");
        assert!(found[0].contains("no row for the message WantStable"), "{found:?}");
        assert!(found[1].contains("a row for the message Held"), "{found:?}");
        assert!(found[2].contains("asserts rule R3"), "{found:?}");
    }
}
