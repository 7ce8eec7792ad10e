//! Links in *.md that stay in the repository lead to a file that is there, and to a heading that is in it.

use crate::markdown;
use crate::report::Offence;
use crate::rust::{join, split};
use crate::tree::Tree;

pub fn check(tree: &Tree) -> Vec<Offence> {
    let documents = tree.texts().filter(|(path, _)| path.ends_with(".md"));
    documents.flat_map(|(path, text)| offences_in(tree, path, text)).collect()
}

fn offences_in(tree: &Tree, path: &str, text: &str) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (line, text) in markdown::lines(text) {
        let broken = targets(&markdown::prose(text)).into_iter().filter_map(|target| why_broken(tree, path, &target));
        offences.extend(broken.map(|what| Offence::at_line(path, line, what)));
    }
    offences
}

/// Targets of `[text](target)`, `[name]: target`, `href="target"` and `src="target"`.
fn targets(line: &str) -> Vec<String> {
    let quoted = |mark| line.split(mark).skip(1).filter_map(|rest| rest.split('"').next());
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let definition =
        line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]:")).map(|(_, rest)| rest.trim());
    let definition = definition.and_then(|rest| rest.split(' ').next());
    let all = inline.chain(quoted("href=\"")).chain(quoted("src=\"")).chain(definition);
    all.map(|target| target.trim_matches(['<', '>']).to_string()).filter(|target| !target.is_empty()).collect()
}

fn why_broken(tree: &Tree, path: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let file = match file {
        "" => path.to_string(),
        _ => join(if file.starts_with('/') { "" } else { split(path).0 }, file),
    };
    if !tree.contains(&file) {
        return Some(format!("links to {target}, but {file} is not in the repository; correct or remove the link"));
    }
    let text = tree.text(&file).filter(|_| file.ends_with(".md") && !heading.is_empty())?;
    let there = headings(text).iter().any(|anchor| anchor == heading);
    (!there).then(|| format!("links to {target}, but {file} has no heading with the anchor #{heading}"))
}

/// The anchors of the headings, as GitHub makes them: lower case, spaces to hyphens, punctuation dropped; a repeated
/// one ends in -1, -2.
fn headings(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in markdown::lines(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().to_lowercase().replace(' ', "-");
        let slug: String = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let mut anchor = slug.clone();
        let mut repeated = 0;
        while anchors.contains(&anchor) {
            repeated += 1;
            anchor = format!("{slug}-{repeated}");
        }
        anchors.push(anchor);
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(text: &str) -> Vec<String> {
        let page = "# Words\n## The `Op` value, and more\n```\n# not one\n```\n## Words\n";
        let tree = Tree::of(&[("docs/adr/1.md", text), ("docs/words.md", page), ("Makefile", "")]);
        check(&tree).into_iter().map(|offence| offence.to_string()).collect()
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        for text in [
            "[a](../words.md), [b](../words.md#the-op-value-and-more) and [c](../words.md#words-1 \"title\")",
            "[a](/Makefile) [b](https://example.org/x) [c](mailto:a@b) [folder](../)",
            "# Here\n[a](#here) <img src=\"../words.md\">\n[ref]: ../words.md",
            "`[code](gone.md)`\n```\n[code](gone.md)\n```",
        ] {
            assert!(offences(text).is_empty(), "{:?}", offences(text));
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_offences() {
        for text in [
            "[a](words.md)",
            "[a](../words.md#not-one)",
            "[a](../../../shared/DESIGN.md)",
            "[a](#gone)",
            "<a href=\"gone.md\">",
            "[ref]: gone.md",
        ] {
            assert_eq!(offences(text).len(), 1, "{text}");
        }
    }
}
