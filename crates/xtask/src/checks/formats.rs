//! A format document carries a hash of the source that it describes, so that a change of the source fails until the
//! document has been reread.
//!
//! Its first line is `<!-- source: FILE FILE … sha256: HASH -->`; the hash is what
//! `cat FILE FILE … | sha256sum | cut -c1-16` prints.

use sha2::{Digest, Sha256};

use crate::report::Offence;
use crate::tree::Tree;

const HASH_DIGITS: usize = 16;

pub fn check(tree: &Tree) -> Vec<Offence> {
    documents(tree).filter_map(|(path, text)| offence(tree, path, text)).collect()
}

/// Path and new text of each document whose hash is out of date. A document that names a missing file is left out.
pub fn blessed(tree: &Tree) -> Vec<(String, String)> {
    let outdated = documents(tree).filter_map(|(path, text)| {
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let wanted = first_line(tree, &parse(first)?.sources).ok()?;
        (wanted != first).then(|| (path.to_string(), format!("{wanted}\n{rest}")))
    });
    outdated.collect()
}

fn documents(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.texts().filter(|(path, _)| path.starts_with("docs/format/") && path.ends_with(".md"))
}

fn offence(tree: &Tree, path: &str, text: &str) -> Option<Offence> {
    let first = text.lines().next().unwrap_or_default();
    let Some(header) = parse(first) else {
        let form =
            "the first line must be `<!-- source: FILE … sha256: HASH -->`; `cargo xtask tidy --bless` fills in HASH";
        return Some(Offence::at_line(path, 1, form));
    };
    match first_line(tree, &header.sources) {
        Err(missing) => Some(Offence::at_line(path, 1, format!("names {missing}, which is not in the repository"))),
        Ok(wanted) if wanted == first => None,
        Ok(wanted) => {
            let fix =
                "reread the document against them, then make this its first line (or run cargo xtask tidy --bless)";
            Some(Offence::at_line(path, 1, format!("the files that it describes have changed; {fix}:\n{wanted}")))
        }
    }
}

struct Header<'a> {
    sources: Vec<&'a str>,
}

fn parse(line: &str) -> Option<Header<'_>> {
    let inner = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim();
    let (sources, _hash) = inner.strip_prefix("source:")?.split_once("sha256:")?;
    let sources: Vec<&str> = sources.split_whitespace().collect();
    (!sources.is_empty()).then_some(Header { sources })
}

/// The line that the document should begin with, or the first named file that does not exist.
fn first_line<'a>(tree: &Tree, sources: &[&'a str]) -> Result<String, &'a str> {
    let mut hash = Sha256::new();
    for source in sources {
        hash.update(tree.text(source).ok_or(*source)?);
    }
    let mut digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(HASH_DIGITS);
    Ok(format!("<!-- source: {} sha256: {digits} -->", sources.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: [(&str, &str); 2] = [("a.rs", "ab"), ("b.rs", "c")];
    const SOUND: &str = "<!-- source: a.rs b.rs sha256: ba7816bf8f01cfea -->"; // sha256("abc"), FIPS 180-2

    fn tree(document: &str) -> Tree {
        Tree::of(&[SOURCES[0], SOURCES[1], ("docs/format/wire.md", document)])
    }

    #[test]
    fn a_document_with_the_right_hash_is_fine() {
        let tree = tree(&format!("{SOUND}\n# Wire\n"));
        assert!(check(&tree).is_empty() && blessed(&tree).is_empty());
    }

    #[test]
    fn a_stale_hash_is_shown_and_blessed() {
        let tree = tree("<!-- source: a.rs b.rs sha256: 0000 -->\n# Wire\n");
        assert!(check(&tree)[0].what.contains(SOUND));
        assert_eq!(blessed(&tree), [("docs/format/wire.md".to_string(), format!("{SOUND}\n# Wire\n"))]);
    }

    #[test]
    fn a_document_must_name_files_that_exist() {
        assert!(check(&tree("# Wire\n"))[0].what.contains("first line must be"));
        let missing = tree("<!-- source: a.rs gone.rs sha256: 00 -->");
        assert!(check(&missing)[0].what.contains("names gone.rs"));
        assert!(blessed(&missing).is_empty());
    }
}
