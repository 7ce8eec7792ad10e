//! Objects: content, metadata, conditions.

use super::*;
use std::time::Duration;

#[test]
fn objects_of_every_size_read_back_with_their_md5() {
    let store = Fixture::new("sizes");
    let sizes = [0, 1, 16_383, 16_384, 16_385, 100_000, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 9 << 20];
    for (seed, size) in sizes.into_iter().enumerate() {
        let content = pattern(size, seed as u64);
        let key = format!("dir/{size}");
        let made = store.put(&key, &content);
        assert_eq!((made.size, &made.etag), (size as u64, &md5_of(&content)));
        assert!(store.get(&key).unwrap() == content, "{size} bytes");
        assert_eq!(store.store.head(BUCKET, &key).unwrap(), made);
    }
    let object = store.store.open(BUCKET, "dir/9437184").unwrap();
    let content = pattern(9 << 20, 9);
    assert!(object.read(4_194_000, 1000).unwrap() == content[4_194_000..4_195_000]);
    assert!(object.read((9 << 20) - 5, 100).unwrap() == content[(9 << 20) - 5..]);
    assert_eq!(object.read(10 << 20, 10).unwrap().len(), 0);
    let listed = store.store.list(BUCKET, &ListQuery { max: 1000, ..ListQuery::default() }).unwrap();
    for object in listed.objects {
        let head = store.store.head(BUCKET, &object.key).unwrap();
        assert_eq!((object.size, object.etag, object.modified), (head.size, head.etag, head.modified));
    }
}

#[test]
fn an_upload_needs_no_memory_of_the_others() {
    for (name, memory) in [("none", 0), ("little", 5 << 20)] {
        let limits = Limits { upload_memory_bytes: memory, threads: 3, ..Limits::default() };
        let store = Fixture::with(name, 1, limits);
        let content = pattern(13 << 20, 1);
        std::thread::scope(|scope| {
            for number in 0..3 {
                let (store, content) = (&store, &content);
                scope.spawn(move || store.put(&format!("k{number}"), content));
            }
        });
        for number in 0..3 {
            assert!(store.get(&format!("k{number}")).unwrap() == content);
        }
    }
}

#[test]
fn what_is_not_finished_leaves_nothing() {
    let store = Fixture::new("dropped");
    for size in [100, 9 << 20] {
        let mut upload = store.store.begin(BUCKET, "a/b", &ACTOR, None).unwrap();
        upload.write(pattern(size, 1).into()).unwrap();
        drop(upload);
    }
    assert!(store.names().is_empty());
    assert_eq!(store.get("a/b"), Err(Error::NoSuchKey));
}

#[test]
fn an_open_object_keeps_its_bytes() {
    let store = Fixture::new("open");
    let content = pattern(6 << 20, 1);
    store.put("a", &content);
    let first = store.store.open(BUCKET, "a").unwrap();
    let second = store.put("a", &pattern(5 << 20, 2));
    let replaced = store.store.open(BUCKET, "a").unwrap();
    store.delete("a");
    std::thread::sleep(Duration::from_millis(2500));
    assert!(first.read(0, 7 << 20).unwrap() == content);
    assert_eq!(replaced.info(), &second);
    assert!(replaced.read(0, 7 << 20).unwrap() == pattern(5 << 20, 2));
    assert_eq!(store.get("a"), Err(Error::NoSuchKey));
}

#[test]
fn metadata_tags_and_acl_stay_with_the_object() {
    let store = Fixture::new("metadata");
    let metadata = Metadata {
        content_type: Some("text/plain; charset=utf-8".into()),
        cache_control: Some("no-cache".into()),
        user: [("Name".to_owned(), "Grüße".to_owned())].into(),
        tags: vec![("a".into(), "1".into())],
        checksum: Some(Checksum { algorithm: Algorithm::Sha256, value: "aGFsbG8=".into(), kind: ChecksumKind::Full }),
        ..Metadata::default()
    };
    for size in [10, 100_000] {
        let upload = store.store.begin(BUCKET, "a", &ACTOR, None).unwrap();
        let content = pattern(size, 1);
        let made = send(upload, &content, metadata.clone(), Condition::Always).unwrap();
        assert_eq!(made.metadata, metadata);
        assert_eq!(store.store.head(BUCKET, "a").unwrap(), made);
        store.store.set_tags(BUCKET, "a", vec![("b".into(), "2".into())]).unwrap();
        store.store.set_acl(BUCKET, "a", CannedAcl::PublicRead).unwrap();
        let now = store.store.head(BUCKET, "a").unwrap();
        let (tags, acl) = (vec![("b".to_owned(), "2".to_owned())], Some(CannedAcl::PublicRead));
        assert_eq!(now, ObjectInfo { metadata: Metadata { tags, acl, ..metadata.clone() }, ..made });
        assert!(store.get("a").unwrap() == content);
    }
    store.put("a", b"");
    assert_eq!(store.store.head(BUCKET, "a").unwrap().metadata, Metadata::default());
    let upload = store.store.begin(BUCKET, "b", &ACTOR, None).unwrap();
    let large = Metadata { content_type: Some("x".repeat(70_000)), ..Metadata::default() };
    assert_eq!(send(upload, b"", large, Condition::Always), Err(Error::MetadataTooLarge));
}

#[test]
fn conditions_hold_for_put_delete_and_copy() {
    let store = Fixture::new("conditions");
    let matches = |etag: &str| Condition::Matches { etag: Bytes::copy_from_slice(etag.as_bytes()) };
    for (key, size) in [("small", 10), ("p/large", 50_000)] {
        assert_eq!(store.put_if(key, b"x", matches("e")), Err(Error::NoSuchKey));
        assert_eq!(store.put_if(key, b"x", Condition::Exists), Err(Error::NoSuchKey));
        let first = store.put_if(key, &pattern(size, 1), Condition::Absent).unwrap();
        assert_eq!(store.put_if(key, b"x", Condition::Absent), Err(Error::PreconditionFailed));
        assert_eq!(store.put_if(key, b"x", matches("e")), Err(Error::PreconditionFailed));
        let second = store.put_if(key, &pattern(size, 2), matches(&first.etag)).unwrap();
        assert_eq!(store.put_if(key, b"x", matches(&first.etag)), Err(Error::PreconditionFailed));
        let object = store.store.open(BUCKET, key).unwrap();
        let copy = |condition| store.store.copy(&object, BUCKET, key, &ACTOR, Metadata::default(), condition);
        assert_eq!(copy(matches(&first.etag)), Err(Error::PreconditionFailed));
        assert_eq!(copy(matches(&second.etag)).unwrap().etag, second.etag);
        let delete = |condition| store.store.delete(BUCKET, key, condition);
        assert_eq!(delete(matches(&first.etag)), Err(Error::PreconditionFailed));
        assert!(store.get(key).unwrap() == pattern(size, 2));
        delete(matches(&second.etag)).unwrap();
        assert_eq!(delete(matches(&second.etag)), Err(Error::NoSuchKey));
        delete(Condition::Always).unwrap();
    }
    assert!(store.names().is_empty());
}

#[test]
fn copies_have_the_bytes_and_the_etag() {
    let store = Fixture::new("copies");
    for size in [0, 10_000, 20_000, 21 << 20] {
        let content = pattern(size, 3);
        let made = store.put("from", &content);
        let object = store.store.open(BUCKET, "from").unwrap();
        let metadata = Metadata { content_type: Some("a/b".into()), ..Metadata::default() };
        let copy = store.store.copy(&object, BUCKET, "d/to", &ACTOR, metadata.clone(), Condition::Always).unwrap();
        assert_eq!((copy.size, &copy.etag, &copy.metadata), (size as u64, &made.etag, &metadata));
        assert!(store.get("d/to").unwrap() == content, "{size} bytes");
        store.store.copy(&object, BUCKET, "from", &ACTOR, metadata, Condition::Always).unwrap();
        assert!(store.get("from").unwrap() == content, "{size} bytes, onto itself");
    }
}

#[test]
fn buckets_are_directories_of_the_root() {
    let store = Fixture::new("buckets");
    let create = |name: &str| store.store.create_bucket(name, &ACTOR, &BucketSettings::default());
    assert_eq!(create(BUCKET), Err(Error::BucketAlreadyOwnedByYou));
    assert_eq!(create("Not_a_bucket"), Err(Error::InvalidBucketName));
    store.volume.write_file("afile", b"x").unwrap();
    assert_eq!(create("afile"), Err(Error::BucketAlreadyExists));
    assert_eq!(store.store.bucket("afile"), Err(Error::NoSuchBucket));
    store.volume.make_directory("made-by-hand").unwrap();
    store.volume.make_directory("No Bucket").unwrap();
    let names: Vec<String> = store.store.buckets().unwrap().into_iter().map(|bucket| bucket.name).collect();
    assert_eq!(names, [BUCKET, "made-by-hand"]);
    let owner = Some(Actor { uid: 5, gid: 6 });
    let settings = BucketSettings {
        owner,
        file_mode: Some(0o600),
        directory_mode: Some(0o700),
        acl: CannedAcl::PublicRead,
        cors: vec![CorsRule { allowed_methods: vec!["GET".into()], ..CorsRule::default() }],
    };
    store.store.set_settings("made-by-hand", &settings).unwrap();
    assert_eq!(store.store.bucket("made-by-hand").unwrap().settings, settings);
    let upload = store.store.begin("made-by-hand", "d/f", &ACTOR, None).unwrap();
    send(upload, &pattern(20_000, 1), Metadata::default(), Condition::Always).unwrap();
    let (d, f) = (store.volume.find("made-by-hand/d").unwrap(), store.volume.find("made-by-hand/d/f").unwrap());
    assert_eq!((d.uid, d.gid, d.mode, f.uid, f.gid, f.mode), (5, 6, 0o700, 5, 6, 0o600));
    assert_eq!(store.store.delete_bucket("made-by-hand"), Err(Error::BucketNotEmpty));
    store.store.delete("made-by-hand", "d/f", Condition::Always).unwrap();
    store.store.delete_bucket("made-by-hand").unwrap();
    assert_eq!(store.store.delete_bucket("made-by-hand"), Err(Error::NoSuchBucket));
    assert_eq!(store.store.head("made-by-hand", "d/f"), Err(Error::NoSuchBucket));
    assert_eq!(store.put("f", b"x").size, 1);
    let f = store.volume.find("bucket/f").unwrap();
    assert_eq!((f.uid, f.gid, f.mode), (ACTOR.uid, ACTOR.gid, 0o644));
}
