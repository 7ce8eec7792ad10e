//! Replaces names, paths and addresses by tokens: the same text has the same token everywhere.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Beginnings of paths that are the same on every machine, and stay.
const PUBLIC: &[&str] = &["/dev/", "/proc", "/sys/", "/usr/", "/etc/", "/lib", "/bin/", "/sbin/", "/metrics", "/tmp"];

pub struct Redactor {
    on: bool,
    /// Texts and their tokens.
    known: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
}

impl Redactor {
    pub fn new(on: bool) -> Self {
        Self { on, known: BTreeMap::new(), counts: BTreeMap::new() }
    }

    /// Replaces this text by a token of this kind from now on.
    pub fn know(&mut self, kind: &'static str, text: &str) {
        if self.on && !text.is_empty() && text != "/" && !self.known.contains_key(text) {
            let count = self.counts.entry(kind).or_default();
            *count += 1;
            self.known.insert(text.into(), format!("{kind}-{count}"));
        }
    }

    /// The tokens, and the text of each.
    pub fn tokens(&self) -> Vec<(String, String)> {
        let mut tokens: Vec<_> = self.known.iter().map(|(text, token)| (token.clone(), text.clone())).collect();
        tokens.sort();
        tokens
    }

    /// The name of a file in the bundle: the name of a mount's log contains that of its volume.
    pub fn file_name(&mut self, name: &str) -> String {
        let Some(rest) = name.strip_prefix("logs/mount-").filter(|_| self.on) else { return name.into() };
        self.know("mount-log", rest.strip_suffix(".log").unwrap_or(rest));
        let stem = rest.strip_suffix(".log").unwrap_or(rest);
        format!("logs/{}.log", self.known.get(stem).map_or("mount", String::as_str))
    }

    /// The text with known names, and all other paths and addresses, replaced.
    pub fn text(&mut self, text: &str) -> String {
        if !self.on {
            return text.into();
        }
        let mut out = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let line = self.without_known(line);
            out += &self.without_places(&line);
        }
        out
    }

    /// Replaces known texts, the longest first, since one path may begin with another. A name is replaced only as a
    /// whole word.
    fn without_known(&self, line: &str) -> String {
        let mut known: Vec<(&String, &String)> = self.known.iter().collect();
        known.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        let mut line = line.to_string();
        for (text, token) in known {
            let mut out = String::with_capacity(line.len());
            let mut rest = &line[..];
            while let Some(at) = rest.find(text.as_str()) {
                let (before, after) = (&rest[..at], &rest[at + text.len()..]);
                let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == '.';
                let begun = out.chars().next_back().filter(|_| before.is_empty()).or(before.chars().next_back());
                // A dot behind the word may end the sentence.
                let ends_word = |rest: &str| rest.starts_with('.') && !rest[1..].starts_with(char::is_alphanumeric);
                let alone = !begun.is_some_and(is_part) && (!after.starts_with(is_part) || ends_word(after));
                out += before;
                out += if alone { token } else { text };
                rest = after;
            }
            out += rest;
            line = out;
        }
        line
    }

    fn without_places(&mut self, line: &str) -> String {
        let is_word = |c: char| c.is_ascii_graphic() && !"\"'(),;<>[]{}=`".contains(c) || !c.is_ascii();
        let mut out = String::with_capacity(line.len());
        let mut rest = line;
        while let Some(at) = rest.find(is_word) {
            out += &rest[..at];
            let word = &rest[at..];
            let end = word.find(|c| !is_word(c)).unwrap_or(word.len());
            out += &self.place(&word[..end]);
            rest = &word[end..];
        }
        out + rest
    }

    /// The token of a word that is a path or an address; any other word as it is.
    fn place(&mut self, word: &str) -> String {
        let plain = word.trim_end_matches([':', '.']);
        let tail = &word[plain.len()..];
        if plain.starts_with('/') && plain.len() > 1 && !PUBLIC.iter().any(|public| plain.starts_with(public)) {
            self.know("path", plain);
            return self.known[plain].clone() + tail;
        }
        let host = plain.rsplit_once(':').map_or(plain, |(host, _)| host);
        let is_address = |text: &str| {
            text.parse::<Ipv4Addr>().is_ok_and(|ip| !ip.is_loopback() && !ip.is_unspecified())
                || text.contains("::")
                    && text.parse::<Ipv6Addr>().is_ok_and(|ip| !ip.is_loopback() && !ip.is_unspecified())
        };
        for found in [plain, host] {
            if is_address(found) {
                self.know("address", found);
                return word.replacen(found, &self.known[found], 1);
            }
        }
        word.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        let mut redactor = Redactor::new(true);
        redactor.know("volume", "photos");
        redactor.know("brick", "/srv/d");
        redactor.know("brick", "/srv/d/deep");
        redactor.know("host", "h1");
        redactor
    }

    #[test]
    fn names_are_replaced_where_they_stand_alone() {
        let mut redactor = redactor();
        assert_eq!(redactor.text("volume photos, \"photos\": photos.\n"), "volume volume-1, \"volume-1\": volume-1.\n");
        assert_eq!(redactor.text("telephotos photos2 photos.old my-photos"), "telephotos photos2 photos.old my-photos");
        assert_eq!(redactor.text("h1 h1.example h12"), "host-1 h1.example h12");
    }

    #[test]
    fn paths_and_addresses_are_replaced_whoever_names_them() {
        let mut redactor = redactor();
        assert_eq!(redactor.text("opening /srv/d/deep and /srv/d/x: fails"), "opening brick-2 and brick-1/x: fails");
        assert_eq!(redactor.text("read /home/ann/secret.txt: gone, /home/ann/secret.txt"), "read path-1: gone, path-1");
        assert_eq!(
            redactor.text("from 10.1.2.3:7100 and 2001:db8::1, not 127.0.0.1:7100"),
            "from address-1:7100 and address-2, not 127.0.0.1:7100"
        );
        assert_eq!(redactor.text("/dev/fuse 1.5 1.2.3 12:30:15"), "/dev/fuse 1.5 1.2.3 12:30:15");
        assert!(redactor.tokens().contains(&("path-1".into(), "/home/ann/secret.txt".into())));
    }

    #[test]
    fn with_names_all_stays() {
        let mut redactor = Redactor::new(false);
        redactor.know("volume", "photos");
        assert_eq!(redactor.text("photos /home/ann 10.1.2.3"), "photos /home/ann 10.1.2.3");
        assert_eq!(redactor.file_name("logs/mount-photos.log"), "logs/mount-photos.log");
        assert!(redactor.tokens().is_empty());
    }

    #[test]
    fn logs_of_mounts_do_not_name_their_volumes() {
        let mut redactor = redactor();
        assert_eq!(redactor.file_name("logs/mount-photos.log"), "logs/volume-1.log");
        assert_eq!(redactor.file_name("logs/serve.log"), "logs/serve.log");
    }
}
