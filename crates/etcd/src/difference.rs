//! What has changed since a reading: keys with a later revision, by one transaction of reads for all prefixes.
//!
//! etcd does not list removals, but counts the keys of a range. Every key that was made since the reading is among the
//! changes, so the count shows how many were removed; if any was, all keys of the range are read. The answer does not
//! depend on history that etcd may have discarded.

use crate::messages::{Pair, Range, Transacted, decoded, encoded, end_of};
use hekate_cluster::Revision;
use hekate_cluster::coordinator::{Changed, Known};
use hekate_proto::{Error, Result};
use serde_json::{Value, json};

/// Reads what has changed below prefixes. `read` executes a transaction of reads.
pub fn difference(known: &[Known<'_>], read: impl Fn(&Value) -> Result<Transacted>) -> Result<Vec<Changed>> {
    let mut after: Vec<Option<Revision>> = known.iter().map(|known| known.after).collect();
    // Each round reads all keys of at least one more prefix.
    loop {
        let ranges = known.iter().zip(&after).map(|(known, after)| range(known.prefix, *after));
        let done = read(&json!({ "success": ranges.collect::<Vec<_>>() }))?;
        let revision = Revision(done.header.revision);
        let found: Vec<Range> = done.responses.into_iter().filter_map(|response| response.response_range).collect();
        if found.len() != known.len() {
            return Err(Error::Protocol { what: "etcd leaves out an answer to a read".into() });
        }
        let mut is_complete = true;
        for ((known, after), found) in known.iter().zip(&mut after).zip(&found) {
            if after.is_some_and(|after| !is_sum(known.count, after, revision, found)) {
                (*after, is_complete) = (None, false);
            }
        }
        if is_complete {
            let parts = found.iter().zip(&after);
            return parts.map(|(found, after)| changed(found, revision, after.is_some())).collect();
        }
    }
}

fn range(prefix: &str, after: Option<Revision>) -> Value {
    let mut range = json!({ "key": encoded(prefix), "range_end": encoded(end_of(prefix)) });
    if let Some(Revision(after)) = after {
        range["min_mod_revision"] = after.saturating_add(1).to_string().into();
    }
    json!({ "request_range": range })
}

/// True if no key was removed: there are as many as before, and those that were made since. False also if the store has
/// not come as far as the reading: it is another one.
fn is_sum(count: usize, after: Revision, revision: Revision, found: &Range) -> bool {
    let made = found.kvs.iter().filter(|pair| pair.create_revision > after.0).count();
    revision >= after && (count + made) as u64 == found.count
}

fn changed(found: &Range, revision: Revision, is_partial: bool) -> Result<Changed> {
    let pair = |pair: &Pair| Ok((decoded(&pair.key)?, Some(decoded(&pair.value)?)));
    Ok(Changed { pairs: found.kvs.iter().map(pair).collect::<Result<_>>()?, revision, is_partial })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Response;
    use std::cell::RefCell;

    fn answer(revision: u64, ranges: Vec<(u64, Vec<Pair>)>) -> Transacted {
        let range = |(count, kvs): (u64, Vec<Pair>)| Range { kvs, count, ..Range::default() };
        let response = |found| Response { response_range: Some(range(found)), response_txn: None };
        let mut done = Transacted { responses: ranges.into_iter().map(response).collect(), ..Transacted::default() };
        done.header.revision = revision;
        done
    }

    fn pair(key: &str, create_revision: u64) -> Pair {
        Pair { key: encoded(key), value: encoded("v"), create_revision, mod_revision: 12 }
    }

    /// The results for `/a/` and `/b/`, which have two keys each at revision 10, and the number of requests.
    fn of(answers: Vec<Transacted>) -> (Result<Vec<Changed>>, usize) {
        let known = ["/a/", "/b/"].map(|prefix| Known { prefix, after: Some(Revision(10)), count: 2 });
        let (answers, asked) = (RefCell::new(answers.into_iter()), RefCell::new(0));
        let read = |_: &Value| {
            *asked.borrow_mut() += 1;
            Ok(answers.borrow_mut().next().unwrap())
        };
        let found = difference(&known, read);
        (found, asked.into_inner())
    }

    #[test]
    fn a_removal_has_all_keys_of_its_prefix_read() {
        let (found, asked) = of(vec![answer(12, vec![(2, vec![pair("/a/1", 5)]), (3, vec![pair("/b/3", 11)])])]);
        let found = found.unwrap();
        assert_eq!((asked, found[0].is_partial, found[1].is_partial), (1, true, true));
        assert_eq!(found[0].pairs, [("/a/1".to_string(), Some("v".to_string()))]);
        // One of /b/ was removed, and another one made: the number of keys is as before.
        let whole = || (2, vec![pair("/b/1", 3), pair("/b/3", 11)]);
        let first = answer(12, vec![(2, vec![]), (2, vec![pair("/b/3", 11)])]);
        let (found, asked) = of(vec![first, answer(13, vec![(2, vec![]), whole()])]);
        let found = found.unwrap();
        assert_eq!((asked, found[0].is_partial, found[1].is_partial), (2, true, false));
        assert_eq!((found[1].pairs.len(), found[1].revision), (2, Revision(13)));
    }

    #[test]
    fn a_store_that_is_not_that_far_is_read_in_whole() {
        let whole = || (2, vec![pair("/a/1", 3), pair("/a/2", 4)]);
        let (found, asked) = of(vec![answer(9, vec![(2, vec![]), (2, vec![])]), answer(9, vec![whole(), whole()])]);
        assert!(asked == 2 && found.unwrap().iter().all(|part| !part.is_partial && part.pairs.len() == 2));
    }

    #[test]
    fn an_answer_that_lacks_a_range_is_an_error() {
        let (found, _) = of(vec![answer(12, vec![(2, vec![])])]);
        assert!(found.unwrap_err().to_string().contains("leaves out an answer"));
    }
}
