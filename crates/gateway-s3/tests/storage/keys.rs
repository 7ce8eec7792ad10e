//! Keys that are no paths, and keys that begin others.

use super::*;

#[test]
fn a_key_and_keys_below_it_live_side_by_side() {
    let keys = ["a", "a/b", "a/b/c", "a/b/", "a/", "a//", "a//b", "a/.", "a/./x", "..", "../x", "%~-a", "%~-a/%~-a"];
    for (round, sizes) in [[10, 20_000], [20_000, 10]].into_iter().enumerate() {
        let store = Fixture::with(&format!("beside{round}"), 4, Limits::default());
        let content = |at: usize| pattern(sizes[at % 2] + at, at as u64);
        let mut order: Vec<usize> = (0..keys.len()).collect();
        if round == 1 {
            order.reverse();
        }
        for at in &order {
            store.put(keys[*at], &content(*at));
            assert!(
                order.iter().take_while(|one| *one != at).all(|one| store.get(keys[*one]).unwrap() == content(*one))
            );
        }
        let mut sorted = keys.to_vec();
        sorted.sort();
        assert_eq!(store.keys(), sorted);
        for at in &order {
            store.delete(keys[*at]);
            assert_eq!(store.get(keys[*at]), Err(Error::NoSuchKey), "{}", keys[*at]);
            sorted.retain(|key| *key != keys[*at]);
            assert_eq!(store.keys(), sorted);
        }
        assert!(store.names().is_empty());
        store.store.delete_bucket(BUCKET).unwrap();
    }
}

#[test]
fn every_key_reads_back_and_leaves_nothing() {
    let store = Fixture::new("odd");
    let long = "y".repeat(1024);
    let many = "/".repeat(40);
    let odd = [
        "\u{0}",
        "\u{1}",
        "a\u{0}b/\u{1}",
        "/",
        "//",
        "/a",
        "a//",
        ".",
        "./.",
        "%~",
        "%~+",
        "%~=x",
        "é/日本",
        "a\\b",
        "a\nb",
        &long,
        &long[..252],
        &long[..253],
        &long[..255],
        &long[..256],
        &many,
        "\u{10ffff}",
        "?*\"<>|:",
    ];
    for (at, key) in odd.iter().enumerate() {
        store.put(key, &pattern(at, 1));
    }
    let mut sorted = odd.to_vec();
    sorted.sort();
    assert_eq!(store.keys(), sorted);
    for (at, key) in odd.iter().enumerate() {
        assert!(store.get(key).unwrap() == pattern(at, 1), "{key:?}");
        assert_eq!(store.store.head(BUCKET, key).unwrap().key, *key);
        store.delete(key);
        assert_eq!(store.get(key), Err(Error::NoSuchKey), "{key:?}");
    }
    assert!(store.names().is_empty());
    assert!(store.volume.read_directory("").unwrap().len() == 1);
}

#[test]
fn what_is_no_key_is_refused() {
    let store = Fixture::new("no-key");
    assert_eq!(store.put_if("", b"", Condition::Always), Err(Error::InvalidKey));
    assert_eq!(store.put_if(&"x".repeat(1025), b"", Condition::Always), Err(Error::KeyTooLong));
    assert_eq!(store.get(""), Err(Error::InvalidKey));
}
