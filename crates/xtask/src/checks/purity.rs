//! Pure crates name no socket, thread, clock or random source: their callers pass these in.
//!
//! Works on tokens, so comments and strings do not count and macros and `use` groups do. It sees names as they are
//! written: a renamed import (`use … as …`) hides what follows, the import itself is seen.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::report::Offence;
use crate::settings::Purity;
use crate::tree::Tree;

pub fn check(tree: &Tree, rules: &[Purity]) -> Vec<Offence> {
    let mut offences = Vec::new();
    for rule in rules {
        for (path, text) in rule.crates.iter().flat_map(|name| tree.sources_of(name)) {
            if !concerns(rule, path) {
                continue;
            }
            match text.parse::<TokenStream>() {
                Ok(tokens) => offences.extend(offences_in(path, tokens, rule)),
                Err(error) => offences.push(Offence::new(path, format!("does not parse: {error}"))),
            }
        }
    }
    offences
}

fn concerns(rule: &Purity, path: &str) -> bool {
    let named = rule.files.is_empty() || rule.files.iter().any(|begin| path.starts_with(begin));
    named && !rule.but.iter().any(|end| path.ends_with(end))
}

fn offences_in(path: &str, tokens: TokenStream, rule: &Purity) -> Vec<Offence> {
    let mut names = Vec::new();
    collect(tokens, &[], &mut names);
    let mut offences: Vec<Offence> = Vec::new();
    for name in names {
        for pattern in rule.paths.iter().filter(|pattern| matches(pattern, &name.segments)) {
            let written = name.segments.join("::");
            let offence = Offence::at_line(path, name.line, format!("names {written} ({pattern}): {}", rule.why));
            if !offences.contains(&offence) {
                offences.push(offence);
            }
        }
    }
    offences
}

/// `a::b::c` as written, wherever it stands.
struct Name {
    line: usize,
    segments: Vec<String>,
}

/// Every path in `tokens`; those in the braces of a `use a::{…}` begin with its `prefix`.
fn collect(tokens: TokenStream, prefix: &[String], names: &mut Vec<Name>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(first) => {
                let mut segments = prefix.to_vec();
                segments.push(first.to_string());
                let line = first.span().start().line;
                at = collect_path(&tokens, at + 1, &mut segments, names);
                names.push(Name { line, segments });
            }
            TokenTree::Group(group) => {
                collect(group.stream(), &[], names);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Extends `segments` by what follows in `::` steps; the position after it.
fn collect_path(tokens: &[TokenTree], mut at: usize, segments: &mut Vec<String>, names: &mut Vec<Name>) -> usize {
    while is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1)) {
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(next)) => segments.push(next.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                collect(group.stream(), segments, names);
                return at + 3;
            }
            _ => return at + 2,
        }
        at += 3;
    }
    at
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}

/// See [`Purity`] for what a pattern means.
fn matches(pattern: &str, segments: &[String]) -> bool {
    match pattern.strip_suffix("::") {
        Some(first) => segments.len() > 1 && segments[0] == first,
        None => {
            let wanted: Vec<&str> = pattern.split("::").collect();
            segments.windows(wanted.len()).any(|window| window.iter().zip(&wanted).all(|(have, want)| have == want))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(text: &str) -> Vec<String> {
        let rule = Purity {
            crates: vec!["proto".into()],
            files: Vec::new(),
            but: Vec::new(),
            paths: ["std::net", "Instant::now", "rand::", "async"].map(String::from).to_vec(),
            why: "it is given them".into(),
        };
        let tree =
            Tree::of(&[("crates/proto/src/lib.rs", text), ("crates/client/src/lib.rs", "use std::net::TcpStream;")]);
        check(&tree, &[rule]).into_iter().map(|offence| offence.to_string()).collect()
    }

    #[test]
    fn comments_strings_and_lookalikes_are_fine() {
        let text =
            "//! std::net\nuse core::net::IpAddr; const A: &str = \"std::net\"; fn rand(now: Instant) { rand(now) }";
        assert!(offences(text).is_empty(), "{:?}", offences(text));
    }

    #[test]
    fn an_impure_name_is_found_in_groups_macros_and_bodies() {
        let found = offences("use std::{fmt,\n net::{self, TcpStream}};\nfn f() { assert!(time::Instant::now() > x) }");
        assert!(found[0].starts_with("crates/proto/src/lib.rs:2: names std::net"), "{found:?}");
        assert!(found.last().unwrap().starts_with("crates/proto/src/lib.rs:3: names time::Instant::now"), "{found:?}");
        assert_eq!(offences("fn f() -> u8 { rand::random::<u8>() }").len(), 1);
        assert_eq!(offences("async fn f() {}").len(), 1);
    }
}
