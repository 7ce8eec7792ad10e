//! Keys that end in `/`.

use super::*;

const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e";

#[test]
fn a_key_that_ends_in_a_slash_is_the_directory() {
    let store = Fixture::new("slash");
    let metadata = Metadata { content_type: Some("application/x-directory".into()), ..Metadata::default() };
    let upload = store.store.begin(BUCKET, "a/b/", &ACTOR, Some(0)).unwrap();
    let made = send(upload, b"", metadata.clone(), Condition::Always).unwrap();
    assert_eq!((&made.etag[..], made.size, &made.metadata), (EMPTY, 0, &metadata));
    assert!(store.volume.read_directory("bucket/a/b").unwrap().is_empty());
    assert_eq!(store.store.head(BUCKET, "a/b/").unwrap().metadata, metadata);
    assert_eq!(store.get("a/b/").unwrap(), b"");
    assert_eq!(store.get("a/"), Err(Error::NoSuchKey));
    assert_eq!(store.get("a/b"), Err(Error::NoSuchKey));
    store.put("a/b/c", b"x");
    assert_eq!(store.keys(), ["a/b/", "a/b/c"]);
    store.delete("a/b/c");
    assert_eq!(store.keys(), ["a/b/"]);
    store.put("a/b/c", b"x");
    store.delete("a/b/");
    assert_eq!(store.keys(), ["a/b/c"]);
    assert_eq!(store.get("a/b/"), Err(Error::NoSuchKey));
    store.delete("a/b/c");
    assert!(store.names().is_empty());
}

#[test]
fn an_object_with_bytes_can_end_in_a_slash() {
    let store = Fixture::new("slash-bytes");
    for size in [5, 30_000] {
        store.put("a/", b"");
        let content = pattern(size, 1);
        let made = store.put("a/", &content);
        assert_eq!((store.keys(), made.etag), (vec!["a/".to_owned()], md5_of(&content)));
        assert!(store.get("a/").unwrap() == content);
        let listed = store.store.list(BUCKET, &ListQuery { max: 9, ..ListQuery::default() }).unwrap();
        assert_eq!((listed.objects[0].size, &listed.objects[0].etag), (size as u64, &md5_of(&content)));
        let empty = store.put("a/", b"");
        assert_eq!((empty.etag, store.get("a/").unwrap()), (EMPTY.to_owned(), Vec::new()));
        store.put("a/", &content);
        store.delete("a/");
        assert_eq!(store.get("a/"), Err(Error::NoSuchKey));
        assert!(store.names().is_empty());
    }
}

#[test]
fn conditions_hold_for_directories() {
    let store = Fixture::new("slash-conditions");
    let matches = |etag: &str| Condition::Matches { etag: Bytes::copy_from_slice(etag.as_bytes()) };
    for (first, second) in [(&b""[..], &b"x"[..]), (b"x", b"")] {
        assert_eq!(store.put_if("a/", first, Condition::Exists), Err(Error::NoSuchKey));
        store.put("a/other", b"");
        let made = store.put_if("a/", first, Condition::Absent).unwrap();
        for content in [first, second] {
            assert_eq!(store.put_if("a/", content, Condition::Absent), Err(Error::PreconditionFailed));
            assert_eq!(store.put_if("a/", content, matches("e")), Err(Error::PreconditionFailed));
        }
        let now = store.put_if("a/", second, matches(&made.etag)).unwrap();
        assert_eq!(store.get("a/").unwrap(), second);
        let delete = |condition| store.store.delete(BUCKET, "a/", condition);
        assert_eq!(delete(matches(&made.etag)), Err(Error::PreconditionFailed));
        delete(matches(&now.etag)).unwrap();
        assert_eq!(delete(matches(&now.etag)), Err(Error::NoSuchKey));
        assert_eq!(store.keys(), ["a/other"]);
        store.delete("a/other");
    }
}
