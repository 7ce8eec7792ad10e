//! The comments of Rust source, without what looks like one inside a string.

/// Lines of comment that follow each other and are of one kind (`//`, `///` or `//!`), as one text.
#[derive(Debug, PartialEq, Eq)]
pub struct Comment {
    /// Line of its beginning, from 1.
    pub line: usize,
    pub text: String,
}

/// All comments of a source file, in order.
pub fn comments(source: &str) -> Vec<Comment> {
    let mut found: Vec<Comment> = Vec::new();
    let mut before: Option<(usize, &str)> = None;
    for (line, alone, raw) in line_comments(source) {
        let text = raw.trim_start_matches(['/', '!']);
        let kind = &raw[..raw.len() - text.len()];
        let goes_on = alone && before == Some((line, kind));
        match found.last_mut().filter(|_| goes_on) {
            Some(last) => last.text = format!("{} {}", last.text, text.trim()),
            None => found.push(Comment { line, text: text.trim().to_string() }),
        }
        before = alone.then_some((line + 1, kind));
    }
    found
}

/// Each `//` comment: its line from 1, whether nothing else is on that line, and its text with the slashes.
fn line_comments(source: &str) -> Vec<(usize, bool, &str)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        at += match first {
            '/' if rest.starts_with("//") => {
                let text = rest.lines().next().unwrap_or_default();
                let line_begin = source[..at].rfind('\n').map_or(0, |newline| newline + 1);
                let line = source[..at].matches('\n').count() + 1;
                found.push((line, source[line_begin..at].trim().is_empty(), text));
                text.len()
            }
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            'r' => raw_string_bytes(rest).unwrap_or(1),
            '"' => string_bytes(rest),
            '\'' => character_bytes(rest).unwrap_or(1),
            other => other.len_utf8(),
        };
    }
    found
}

/// Bytes of `r"…"` or `r#"…"#`; none if this is another word that begins with r.
fn raw_string_bytes(rest: &str) -> Option<usize> {
    let hashes = rest[1..].len() - rest[1..].trim_start_matches('#').len();
    let body = rest[1 + hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let begin = 2 + hashes;
    Some(body.find(&close).map_or(rest.len(), |end| begin + end + close.len()))
}

/// Bytes of `"…"`.
fn string_bytes(rest: &str) -> usize {
    let mut escaped = true; // the opening quote closes nothing
    for (at, character) in rest.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Bytes of `'x'` or `'\n'`; none if this is a lifetime.
fn character_bytes(rest: &str) -> Option<usize> {
    let mut characters = rest.char_indices().skip(1);
    match characters.next()? {
        (_, '\\') => characters.skip(1).find(|(_, character)| *character == '\'').map(|(at, _)| at + 1),
        _ => characters.next().filter(|(_, character)| *character == '\'').map(|(at, _)| at + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(usize, String)> {
        comments(source).into_iter().map(|comment| (comment.line, comment.text)).collect()
    }

    #[test]
    fn lines_of_one_kind_are_one_comment() {
        let source =
            "//! The journal,\n//! in short.\n\n/// Why.\n// because\nfn f() {} // so\n// again\n// and again\n";
        let expected = [(1, "The journal, in short."), (4, "Why."), (5, "because"), (6, "so"), (7, "again and again")];
        assert_eq!(found(source), expected.map(|(line, text)| (line, text.to_string())));
    }

    #[test]
    fn strings_and_characters_hold_no_comments() {
        let source = r####"
            const A: [&str; 3] = ["// a \" // b", r"\", r#"" // c"#];
            fn f<'a>(c: char) -> &'a str { if c == '"' || c == '\'' || c == '\\' { "/" } else { "" } } // d
            /* e */ let url = "https://example.org";
        "####;
        assert_eq!(found(source), [(3, "d".to_string())]);
    }
}
