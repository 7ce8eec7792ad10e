//! Files and objects of one volume: what programs do to files, as S3 sees it.

use super::*;
use hekate_client::proto::{Name, NewNode, ROOT};
use hekate_client::{Context, New};
use std::collections::BTreeSet;

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn make(store: &Fixture, directory: &str, text: &str, node: NewNode) {
    let dir = store.volume.find(directory).unwrap().id;
    let new = New { node, mode: 0o644, uid: 0, gid: 0, umask: 0, exclusive: true };
    store.volume.create(&Context::default(), dir, name(text), new).unwrap();
}

#[test]
fn a_write_to_an_object_gives_it_an_etag_that_none_had_before() {
    let store = Fixture::new("etags");
    let context = Context::default();
    let checksum = Some(Checksum { algorithm: Algorithm::Crc32, value: "AAAAAA==".into(), kind: ChecksumKind::Full });
    for size in [100, 50_000] {
        let content = pattern(size, 1);
        let upload = store.store.begin(BUCKET, "f", &ACTOR, None).unwrap();
        let metadata = Metadata { checksum: checksum.clone(), content_type: Some("a/b".into()), ..Metadata::default() };
        let first = send(upload, &content, metadata, Condition::Always).unwrap();
        let mut seen = BTreeSet::from([first.etag.clone()]);
        let file = store.volume.find("bucket/f").unwrap().id;
        for round in 0..10 {
            // The second of two equal writes changes no byte.
            let bytes = pattern(10, round / 2);
            store.volume.write(&context, file, 0, bytes.clone().into(), false).unwrap();
            let now = store.store.head(BUCKET, "f").unwrap();
            assert!(seen.insert(now.etag.clone()), "round {round}: {}", now.etag);
            assert_eq!((now.metadata.checksum, now.metadata.content_type.as_deref()), (None, Some("a/b")));
            assert!(store.get("f").unwrap()[..10] == bytes);
        }
        let etag = Bytes::from(first.etag);
        assert_eq!(store.put_if("f", b"x", Condition::Matches { etag }), Err(Error::PreconditionFailed));
        let etag = Bytes::from(store.store.head(BUCKET, "f").unwrap().etag);
        let again = store.put_if("f", &content, Condition::Matches { etag }).unwrap();
        assert_eq!(again.etag, md5_of(&content));
    }
}

#[test]
fn files_and_directories_of_programs_are_objects() {
    let store = Fixture::new("files");
    store.volume.make_directory("bucket/empty").unwrap();
    store.volume.make_directory("bucket/d").unwrap();
    store.volume.write_file("bucket/d/f", &pattern(30_000, 1)).unwrap();
    store.volume.write_file("bucket/%~x", b"no key leads here").unwrap();
    assert_eq!(store.keys(), ["d/", "d/f", "empty/"]);
    assert!(store.get("d/f").unwrap() == pattern(30_000, 1));
    assert_eq!(store.store.head(BUCKET, "empty/").unwrap().size, 0);
    store.delete("d/f");
    assert_eq!(store.keys(), ["d/", "empty/"]);
    store.put("d/g", b"x");
    store.volume.rename_path("bucket/d/g", "bucket/empty/h").unwrap();
    assert_eq!(
        (store.keys(), store.get("empty/h").unwrap()),
        (vec!["d/".into(), "empty/".into(), "empty/h".into()], b"x".to_vec())
    );
    assert_eq!(store.store.head(BUCKET, "empty/h").unwrap().etag, md5_of(b"x"));
    store.volume.rename_path("bucket/empty", "bucket/full").unwrap();
    assert_eq!(store.keys(), ["d/", "full/", "full/h"]);
    store.volume.remove("bucket/full/h").unwrap();
    assert_eq!(store.get("full/h"), Err(Error::NoSuchKey));
    assert_eq!(store.store.delete_bucket(BUCKET), Err(Error::BucketNotEmpty));
}

#[test]
fn links_and_devices_are_neither_listed_nor_followed() {
    let store = Fixture::new("links");
    store.put("target/f", b"x");
    for (text, target) in [("link", "target"), ("file-link", "target/f"), ("out", "/etc/passwd")] {
        make(&store, BUCKET, text, NewNode::Symlink { target: Bytes::from(target) });
    }
    make(&store, BUCKET, "fifo", NewNode::Fifo);
    assert_eq!(store.keys(), ["target/f"]);
    for key in ["link", "link/f", "file-link", "out", "fifo", "link/"] {
        assert_eq!(store.get(key), Err(Error::NoSuchKey), "{key}");
        store.delete(key);
    }
    assert_eq!(store.names(), ["fifo", "file-link", "link", "out", "target"]);
    assert!(matches!(store.put_if("link/f", b"y", Condition::Always), Err(Error::Volume(_))));
    store.put("file-link", b"new");
    assert_eq!((store.get("file-link").unwrap(), store.get("target/f").unwrap()), (b"new".to_vec(), b"x".to_vec()));
}

#[test]
fn names_that_keys_would_escape_are_found_as_they_are() {
    let store = Fixture::new("foreign");
    let long = "n".repeat(254);
    let odd = "a\u{1}b";
    store.volume.make_directory(&format!("bucket/{long}")).unwrap();
    store.volume.write_file(&format!("bucket/{long}/{odd}"), b"by hand").unwrap();
    let key = format!("{long}/{odd}");
    assert_eq!(store.keys(), [format!("{long}/"), key.clone()]);
    assert_eq!(store.get(&key).unwrap(), b"by hand");
    store.put(&key, b"by key");
    assert_eq!(store.volume.read_file(&format!("bucket/{key}")).unwrap(), "by key");
    store.put(&long, b"beside");
    assert_eq!(store.keys(), [long.clone(), format!("{long}/"), key.clone()]);
    assert_eq!((store.get(&key).unwrap(), store.get(&long).unwrap()), (b"by key".to_vec(), b"beside".to_vec()));
    store.delete(&key);
    assert_eq!(store.keys(), [long.clone(), format!("{long}/")]);
    store.volume.write_file("bucket/%~-%~-x", b"of others").unwrap();
    assert_eq!(store.get("%~-x").unwrap(), b"of others");
    assert_eq!(store.volume.find("").unwrap().id, ROOT);
}
