//! Operations on keys that begin others, side by side.

use super::*;

/// What every thread knows of its own key does not depend on the keys of the others, whose directories it shares.
fn each_has_its_own_key(name: &str, keys: &[&str], rounds: u64) {
    let store = Fixture::new(name);
    std::thread::scope(|scope| {
        for (thread, key) in keys.iter().enumerate() {
            let (store, key) = (&store, *key);
            scope.spawn(move || {
                for round in 0..rounds {
                    let content = pattern(if round % 5 == 0 { 20_000 } else { 10 }, round + thread as u64 * 1000);
                    store.put(key, &content);
                    assert!(store.get(key).unwrap() == content, "{key} in round {round}");
                    store.delete(key);
                    assert_eq!(store.get(key), Err(Error::NoSuchKey), "{key} in round {round}");
                }
                store.put(key, key.as_bytes());
            });
        }
    });
    let mut sorted = keys.to_vec();
    sorted.sort();
    assert_eq!(store.keys(), sorted);
    for key in keys {
        assert_eq!(store.get(key).unwrap(), key.as_bytes());
        store.delete(key);
    }
    assert!(store.names().is_empty(), "{:?}", store.names());
}

#[test]
fn keys_that_begin_others_come_and_go_side_by_side() {
    each_has_its_own_key("races", &["x", "x/y", "x/y/z", "x/other"], 40);
}

#[test]
fn directories_and_keys_below_them_come_and_go_side_by_side() {
    let store = Fixture::new("races-directories");
    std::thread::scope(|scope| {
        for key in ["d/", "d/e/f", "d/g"] {
            let store = &store;
            scope.spawn(move || {
                for round in 0..40 {
                    store.put(key, b"");
                    assert_eq!(store.get(key).as_deref(), Ok(&b""[..]), "{key} in round {round}");
                    store.delete(key);
                    assert_eq!(store.get(key), Err(Error::NoSuchKey), "{key} in round {round}");
                }
            });
        }
    });
    assert!(store.names().is_empty(), "{:?}", store.names());
}

#[test]
fn one_of_many_conditional_puts_wins() {
    let store = Fixture::new("races-conditions");
    for key in ["a", "b/c", "d/"] {
        for round in 0..10 {
            let won = std::thread::scope(|scope| {
                let put = |thread: u64| {
                    let store = &store;
                    move || store.put_if(key, &pattern((thread % 2) as usize * 20_000, thread), Condition::Absent)
                };
                let threads: Vec<_> = (0..4).map(|thread| scope.spawn(put(thread))).collect();
                let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
                assert!(
                    outcomes.iter().all(|one| one.is_ok() || *one == Err(Error::PreconditionFailed)),
                    "{outcomes:?}"
                );
                outcomes.into_iter().flatten().map(|made| made.etag).collect::<Vec<_>>()
            });
            assert_eq!(won, [store.store.head(BUCKET, key).unwrap().etag], "{key} in round {round}");
            store.delete(key);
        }
    }
}

#[test]
fn parts_and_completions_side_by_side_make_one_object() {
    let store = Fixture::with("races-parts", 1, Limits { part_bytes_min: 1, ..Limits::default() });
    for round in 0..5 {
        let id = store.store.create_upload(BUCKET, "k", &ACTOR, Metadata::default(), None).unwrap();
        let part = |content: &[u8]| {
            let upload = store.store.begin_part(BUCKET, "k", &id, 1)?;
            let made = send(upload, content, Metadata::default(), Condition::Always)?;
            Ok::<_, Error>(CompletedPart { number: 1, etag: made.etag, checksum: None })
        };
        let first = part(&pattern(30_000, 1)).unwrap();
        std::thread::scope(|scope| {
            let again = scope.spawn(|| part(&pattern(30_000, 2)));
            let complete =
                || store.store.complete(BUCKET, "k", &id, std::slice::from_ref(&first), None, Condition::Always);
            let completions: Vec<_> = (0..3).map(|_| scope.spawn(complete)).collect();
            let outcomes: Vec<_> = completions.into_iter().map(|one| one.join().unwrap()).collect();
            let replaced = again.join().unwrap();
            if outcomes.iter().any(Result::is_ok) {
                assert!(store.get("k").unwrap() == pattern(30_000, 1), "round {round}");
            } else {
                assert!(replaced.is_ok() && outcomes.iter().all(|one| *one == Err(Error::InvalidPart { number: 1 })));
                store.store.abort(BUCKET, "k", &id).unwrap();
            }
        });
        store.delete("k");
    }
}
