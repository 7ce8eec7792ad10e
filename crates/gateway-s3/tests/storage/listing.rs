//! Pages of keys, compared with a sorted list.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeSet;

/// What a listing of all keys has to say.
fn expected(all: &BTreeSet<String>, query: &ListQuery) -> (Vec<String>, Vec<String>) {
    let (mut keys, mut prefixes) = (Vec::new(), BTreeSet::new());
    let delimiter = query.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
    for key in all.iter().filter(|key| key.starts_with(&query.prefix)) {
        let rest = &key[query.prefix.len()..];
        match delimiter.and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len())) {
            Some(end) => {
                let prefix = format!("{}{}", query.prefix, &rest[..end]);
                if prefix > query.after {
                    prefixes.insert(prefix);
                }
            }
            None if *key > query.after => keys.push(key.clone()),
            None => {}
        }
    }
    (keys, prefixes.into_iter().collect())
}

fn put_all(store: &Fixture, keys: &[String]) {
    std::thread::scope(|scope| {
        for share in keys.chunks(keys.len().div_ceil(32).max(1)) {
            scope.spawn(move || share.iter().for_each(|key| drop(store.put(key, b""))));
        }
    });
}

#[test]
fn five_thousand_keys_in_pages_of_seven_are_the_sorted_list() {
    let store = Fixture::new("many");
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let odd = ["a", "a-", "a.", "a0", "b", "", ".", "..", "%~", "%~-a", "é", "x\u{1}", "z"];
    let mut all = BTreeSet::new();
    while all.len() < 5000 {
        let depth = random(4);
        let mut key = String::new();
        for _ in 0..depth {
            key += odd[random(odd.len() as u64) as usize];
            key += "/";
        }
        key += &match random(3) {
            0 => odd[random(odd.len() as u64) as usize].to_owned(),
            _ => format!("{:x}", random(1 << 20)),
        };
        if !key.is_empty() && !key.ends_with('/') {
            all.insert(key);
        }
    }
    put_all(&store, &all.iter().cloned().collect::<Vec<_>>());
    for max in [7, 1000] {
        let query = ListQuery { max, ..ListQuery::default() };
        assert!(store.list(&query) == expected(&all, &query), "pages of {max}");
    }
    for delimiter in ["/", "a"] {
        let query = ListQuery { max: 100, delimiter: Some(delimiter.into()), ..ListQuery::default() };
        assert!(store.list(&query) == expected(&all, &query), "delimiter {delimiter}");
    }
}

/// Keys of few letters, so that one is often the begin of another.
fn odd_keys() -> impl Strategy<Value = String> {
    let long = prop::sample::select(vec!["l".repeat(249), "l".repeat(253), "l".repeat(300)]);
    let piece = prop_oneof![
        8 => prop::sample::select(vec!["a", "b", "/", "/", "-", "0", ".", "%~", "\u{0}", "\u{1}", "\u{2}", "é", "%~-", "%~="]).prop_map(str::to_owned),
        1 => long,
    ];
    prop::collection::vec(piece, 1..7).prop_map(|pieces| pieces.concat()).prop_filter("a key", |key| key.len() <= 1024)
}

#[test]
fn pages_of_odd_keys_are_those_of_a_sorted_list() {
    let store = Fixture::with("odd-pages", 4, Limits::default());
    let delimiters =
        prop::sample::select(vec![None, Some("/"), Some("/"), Some("a"), Some("%~"), Some("//"), Some("\u{0}")]);
    let part = (0usize..40, 0usize..12);
    let query = (part.clone(), part, delimiters, 1usize..6);
    let cases = (prop::collection::btree_set(odd_keys(), 1..40), prop::collection::vec(query, 12));
    let config = Config { cases: 12, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&cases, |(all, queries)| {
            // A case that failed left its keys.
            store.keys().iter().for_each(|key| store.delete(key));
            let keys: Vec<String> = all.iter().cloned().collect();
            put_all(&store, &keys);
            for ((prefix, length), (after, end), delimiter, max) in queries {
                let begin = |at: usize, length: usize| keys[at % keys.len()].chars().take(length).collect::<String>();
                let (prefix, after) =
                    (begin(prefix, length % 6), if end > 8 { String::new() } else { begin(after, end) });
                let query = ListQuery { prefix, delimiter: delimiter.map(str::to_owned), after, max };
                prop_assert_eq!(store.list(&query), expected(&all, &query), "{:?} of {:?}", query, keys);
            }
            keys.iter().for_each(|key| store.delete(key));
            prop_assert_eq!(store.keys(), Vec::<String>::new());
            prop_assert_eq!(store.names(), Vec::<String>::new());
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_segment_and_longer_ones_that_begin_with_it_are_all_listed() {
    let store = Fixture::new("long-segments");
    let begin = "l".repeat(249);
    let below = ["", "\u{1}", "-", "-lll", "/f", "0", "lll", "lllx/y", "\u{0}", "\u{0}llll/z"];
    let all: BTreeSet<String> = below.iter().map(|end| format!("{begin}{end}")).collect();
    put_all(&store, &all.iter().cloned().collect::<Vec<_>>());
    for max in [1, 2, 1000] {
        let query = ListQuery { max, ..ListQuery::default() };
        assert_eq!(store.list(&query), expected(&all, &query));
    }
}

#[test]
fn a_page_says_whether_there_are_more() {
    let store = Fixture::new("pages");
    for key in ["a", "b/c", "b/d", "e"] {
        store.put(key, b"12345");
    }
    let list = |max, after: &str| {
        let query = ListQuery { max, after: after.into(), delimiter: Some("/".into()), ..ListQuery::default() };
        store.store.list(BUCKET, &query).unwrap()
    };
    let first = list(2, "");
    let keys: Vec<_> = first.objects.iter().map(|object| (&object.key[..], object.size)).collect();
    assert_eq!(
        (keys, &first.prefixes[..], first.next.as_deref()),
        (vec![("a", 5)], &["b/".to_owned()][..], Some("b/"))
    );
    let second = list(2, "b/");
    assert_eq!((&second.objects[0].key[..], second.prefixes.len(), second.next), ("e", 0, None));
    assert_eq!(list(3, "").next, None);
    assert_eq!(list(0, ""), Listed::default());
    assert_eq!(store.store.list("no-bucket", &ListQuery::default()), Err(Error::NoSuchBucket));
}
