//! The keys below some prefixes as a process has last read them: only what has changed is read again.

use super::{Changed, Coordinator, Known, Revision};
use hekate_proto::{Error, Result};
use hekate_threads::{elapsed, now};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time after a reading of all keys after which all are read again, so that a change that was missed for whatever reason
/// is known then. One such reading takes what some hundred readings of changes take.
const WHOLE_AGE_MAX: Duration = Duration::from_secs(5 * 60);

/// The keys below some prefixes, as they were last read.
#[derive(Debug)]
pub struct Mirror {
    parts: Vec<Part>,
    read: Option<Instant>,
    /// When all keys were last read.
    whole: Option<Instant>,
    age_max: Duration,
}

#[derive(Debug)]
struct Part {
    prefix: &'static str,
    pairs: BTreeMap<String, String>,
    revision: Option<Revision>,
}

impl Mirror {
    /// Of prefixes none of which begins with another one. Nothing has been read. `age_max`: time after a reading after
    /// which all keys are read. In a shorter time no store is restored from an older copy and gets as far as it was
    /// before, with other changes at the revisions that were read.
    pub fn new(prefixes: &[&'static str], age_max: Duration) -> Self {
        let part = |prefix: &&'static str| Part { prefix, pairs: BTreeMap::new(), revision: None };
        Self { parts: prefixes.iter().map(part).collect(), read: None, whole: None, age_max }
    }

    /// The keys with a prefix, in order, with their values.
    pub fn pairs(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> + Clone {
        let part = self.parts.iter().find(|part| prefix.starts_with(part.prefix));
        let found = part.into_iter().flat_map(move |part| part.pairs.range(prefix.to_string()..));
        found.take_while(move |(key, _)| key.starts_with(prefix)).map(|(key, value)| (&key[..], &value[..]))
    }

    /// The revision as of which the keys below a prefix are known.
    pub fn revision(&self, prefix: &str) -> Option<Revision> {
        self.parts.iter().find(|part| part.prefix == prefix)?.revision
    }

    /// True if the next reading is one of all keys.
    fn is_old(&self) -> bool {
        let is_older = |read: Option<Instant>, age| read.is_none_or(|read| elapsed(read) > age);
        is_older(self.read, self.age_max) || is_older(self.whole, WHOLE_AGE_MAX)
    }

    /// Reads what has changed, or all keys. Returns the keys that have other values than before, or were removed, in order for each
    /// prefix.
    ///
    /// # Errors
    /// Those of the coordinator. Nothing is changed then.
    pub fn refresh(&mut self, coordinator: &dyn Coordinator) -> Result<Vec<String>> {
        let is_old = self.is_old();
        let known = |part: &'_ Part| (part.prefix, part.revision.filter(|_| !is_old), part.pairs.len());
        let known: Vec<_> = self.parts.iter().map(known).collect();
        let known: Vec<_> = known.into_iter().map(|(prefix, after, count)| Known { prefix, after, count }).collect();
        let begun = now();
        let changes = coordinator.changes(&known)?;
        if changes.len() != self.parts.len() {
            let (answers, asked) = (changes.len(), self.parts.len());
            return Err(Error::bug(format!("a coordinator answers for {answers} prefixes of {asked}")));
        }
        self.read = Some(begun);
        if is_old {
            self.whole = Some(begun);
        }
        Ok(self.parts.iter_mut().zip(changes).flat_map(|(part, changed)| part.take(changed)).collect())
    }
}

impl Part {
    /// Takes over an answer. Returns the keys that have changed.
    fn take(&mut self, changed: Changed) -> Vec<String> {
        let mut keys = Vec::new();
        if !changed.is_partial {
            let is_there = |key: &String| changed.pairs.binary_search_by(|(known, _)| known.cmp(key)).is_ok();
            keys.extend(self.pairs.keys().filter(|key| !is_there(key)).cloned());
            keys.iter().for_each(|key| _ = self.pairs.remove(key));
        }
        for (key, value) in changed.pairs {
            let before = match &value {
                Some(value) => self.pairs.insert(key.clone(), value.clone()),
                None => self.pairs.remove(&key),
            };
            keys.extend((before != value).then_some(key));
        }
        keys.sort_unstable();
        self.revision = Some(changed.revision);
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(pairs: &[(&str, &str)]) -> Part {
        let pairs = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Part { prefix: "/a/", pairs, revision: Some(Revision(7)) }
    }

    fn changed(pairs: &[(&str, Option<&str>)], is_partial: bool) -> Changed {
        let pairs = pairs.iter().map(|(key, value)| (key.to_string(), value.map(String::from))).collect();
        Changed { pairs, revision: Revision(9), is_partial }
    }

    #[test]
    fn changes_are_applied_and_named() {
        let mut known = part(&[("/a/1", "x"), ("/a/2", "y"), ("/a/3", "z")]);
        let keys =
            known.take(changed(&[("/a/1", Some("x")), ("/a/2", None), ("/a/4", Some("n")), ("/a/5", None)], true));
        assert_eq!(keys, ["/a/2", "/a/4"]);
        assert_eq!(known.pairs, part(&[("/a/1", "x"), ("/a/3", "z"), ("/a/4", "n")]).pairs);
        assert_eq!(known.revision, Some(Revision(9)));
        let keys = known.take(changed(&[("/a/0", Some("n")), ("/a/3", Some("z")), ("/a/4", Some("m"))], false));
        assert_eq!(keys, ["/a/0", "/a/1", "/a/4"]);
        assert_eq!(known.pairs, part(&[("/a/0", "n"), ("/a/3", "z"), ("/a/4", "m")]).pairs);
    }

    #[test]
    fn all_keys_are_read_after_a_gap_and_now_and_then() {
        let of = |read: Option<u64>, whole: Option<u64>| {
            let ago = |seconds: u64| now().checked_sub(Duration::from_secs(seconds)).unwrap();
            let (read, whole) = (read.map(ago), whole.map(ago));
            Mirror { parts: vec![part(&[])], read, whole, age_max: Duration::from_secs(6) }.is_old()
        };
        assert!(of(None, None), "nothing has been read");
        assert!(!of(Some(1), Some(1)) && !of(Some(1), Some(290)));
        assert!(of(Some(7), Some(7)), "a gap");
        assert!(of(Some(1), Some(301)), "only changes have been read for long");
    }

    #[test]
    fn keys_are_found_by_prefixes() {
        let mirror = Mirror {
            parts: vec![part(&[("/a/1", "x"), ("/a/1/b", "y"), ("/a/2", "z")])],
            read: None,
            whole: None,
            age_max: Duration::MAX,
        };
        let keys = |prefix: &'static str| mirror.pairs(prefix).map(|(key, _)| key).collect::<Vec<_>>();
        assert_eq!(keys("/a/"), ["/a/1", "/a/1/b", "/a/2"]);
        assert_eq!(keys("/a/1"), ["/a/1", "/a/1/b"]);
        assert!(keys("/b/").is_empty() && keys("/a/3").is_empty());
    }
}
