//! Uploads of parts: joined, repeated after a crash, listed, collected.

use super::*;
use hekate_client::proto::{AttrChanges, InodeId, Name, NewNode, SYSTEM, etag_of};
use hekate_client::{Context, Joined, New, ObjectName, Owner};
use std::time::Duration;

/// Parts may have this size.
const PART: usize = 20_000;

fn fixture(name: &str) -> Fixture {
    Fixture::with(&format!("parts-{name}"), 1, Limits { part_bytes_min: PART as u64, ..Limits::default() })
}

fn begin(store: &Fixture, key: &str) -> String {
    let metadata = Metadata { content_type: Some("a/b".into()), ..Metadata::default() };
    store.store.create_upload(BUCKET, key, &ACTOR, metadata, None).unwrap()
}

fn part(store: &Fixture, key: &str, id: &str, number: u16, content: &[u8]) -> CompletedPart {
    let upload = store.store.begin_part(BUCKET, key, id, number).unwrap();
    let made = send(upload, content, Metadata::default(), Condition::Always).unwrap();
    CompletedPart { number, etag: made.etag, checksum: None }
}

fn complete(store: &Fixture, key: &str, id: &str, parts: &[CompletedPart]) -> Result<ObjectInfo> {
    store.store.complete(BUCKET, key, id, parts, None, Condition::Always)
}

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

/// The inode at a path of the system directory.
fn hidden(store: &Fixture, path: &[&str]) -> Option<InodeId> {
    path.iter().try_fold(SYSTEM, |at, text| Some(store.volume.lookup(&Context::default(), at, name(text)).ok()?.id))
}

fn etag_of_parts(parts: &[CompletedPart]) -> String {
    let sums: Vec<u8> = parts
        .iter()
        .flat_map(|part| (0..16).map(|at| u8::from_str_radix(&part.etag[2 * at..2 * at + 2], 16).unwrap()))
        .collect();
    format!("{}-{}", md5_of(&sums), parts.len())
}

#[test]
fn parts_become_one_object() {
    let store = fixture("joined");
    let key = "d/e";
    let id = begin(&store, key);
    assert!(store.keys().is_empty());
    let contents = [pattern(PART, 1), pattern(5 << 20, 2), pattern(3, 3)];
    part(&store, key, &id, 2, b"sent again below");
    part(&store, key, &id, 9, b"not used");
    let parts: Vec<_> =
        [1, 2, 7].into_iter().zip(&contents).map(|(at, content)| part(&store, key, &id, at, content)).collect();
    let page = store.store.parts(BUCKET, key, &id, 1, 2).unwrap();
    assert_eq!(page.parts.iter().map(|part| (part.number, part.size)).collect::<Vec<_>>(), [(2, 5 << 20), (7, 3)]);
    assert_eq!((page.next, store.store.parts(BUCKET, key, &id, 7, 2).unwrap().next), (Some(7), None));
    let made = complete(&store, key, &id, &parts).unwrap();
    assert_eq!((&made.etag, made.size), (&etag_of_parts(&parts), (PART + (5 << 20) + 3) as u64));
    assert_eq!(made.metadata.content_type.as_deref(), Some("a/b"));
    let sizes: Vec<_> = made.metadata.parts.iter().map(|part| (part.number, part.size)).collect();
    assert_eq!(sizes, [(1, PART as u64), (2, 5 << 20), (7, 3)]);
    assert!(store.get(key).unwrap() == contents.concat());
    assert_eq!(complete(&store, key, &id, &parts).unwrap(), made);
    assert_eq!(hidden(&store, &["uploads", BUCKET, &id]), None);
    let listed = store.store.list(BUCKET, &ListQuery { max: 9, ..ListQuery::default() }).unwrap();
    assert_eq!((listed.objects[0].size, &listed.objects[0].etag), (made.size, &made.etag));
    let object = store.store.open(BUCKET, key).unwrap();
    let copy = store.store.copy(&object, BUCKET, "copy", &ACTOR, Metadata::default(), Condition::Always).unwrap();
    assert_eq!((copy.etag, copy.size), (made.etag, made.size));
    assert!(store.get("copy").unwrap() == contents.concat());
    store.put(key, b"other");
    assert_eq!(complete(&store, key, &id, &parts), Err(Error::NoSuchUpload));
}

#[test]
fn what_does_not_match_is_refused_and_the_upload_goes_on() {
    let store = fixture("refused");
    let id = begin(&store, "k");
    let one = part(&store, "k", &id, 1, &pattern(PART, 1));
    let two = part(&store, "k", &id, 2, &pattern(5, 1));
    let three = part(&store, "k", &id, 3, &pattern(5, 1));
    let wrong = CompletedPart { etag: three.etag.replace('a', "b"), ..one.clone() };
    let refused = |parts: &[&CompletedPart]| {
        let parts: Vec<CompletedPart> = parts.iter().map(|part| (*part).clone()).collect();
        complete(&store, "k", &id, &parts).unwrap_err()
    };
    assert_eq!(refused(&[&wrong, &two]), Error::InvalidPart { number: 1 });
    assert_eq!(refused(&[&two, &one]), Error::InvalidPartOrder);
    assert_eq!(refused(&[&one, &one]), Error::InvalidPartOrder);
    assert_eq!(refused(&[&one, &two, &three]), Error::EntityTooSmall { number: 2, size: 5 });
    assert_eq!(refused(&[&one, &CompletedPart { number: 4, ..two.clone() }]), Error::InvalidPart { number: 4 });
    assert!(matches!(refused(&[]), Error::InvalidArgument { .. }));
    let summed = CompletedPart { checksum: Some("AAAAAA==".into()), ..one.clone() };
    assert_eq!(refused(&[&summed]), Error::InvalidPart { number: 1 });
    assert_eq!(complete(&store, "other", &id, std::slice::from_ref(&one)), Err(Error::NoSuchUpload));
    assert_eq!(complete(&store, "k", "../../x", std::slice::from_ref(&one)), Err(Error::NoSuchUpload));
    for number in [0, 10_001] {
        assert!(matches!(store.store.begin_part(BUCKET, "k", &id, number), Err(Error::InvalidArgument { .. })));
    }
    store.put("k", b"there");
    let parts = [one, two];
    let absent = store.store.complete(BUCKET, "k", &id, &parts, None, Condition::Absent);
    assert_eq!(absent, Err(Error::PreconditionFailed));
    assert_eq!(store.store.parts(BUCKET, "k", &id, 0, 9).unwrap().parts.len(), 3);
    let etag = Bytes::from(md5_of(b"there"));
    let made = store.store.complete(BUCKET, "k", &id, &parts, None, Condition::Matches { etag }).unwrap();
    assert_eq!(made.size, PART as u64 + 5);
}

#[test]
fn a_completion_goes_on_where_a_crash_ended_it() {
    let store = fixture("crash");
    for names_key in [false, true] {
        let key = "p/k";
        let id = begin(&store, key);
        let parts = [part(&store, key, &id, 1, &pattern(PART, 1)), part(&store, key, &id, 2, &pattern(50_000, 2))];
        let directory = hidden(&store, &["uploads", BUCKET, &id]).unwrap();
        let joined = Joined {
            name: name("joined"),
            owner: Owner { mode: 0o644, uid: 0, gid: 0 },
            etag: etag_of_parts(&parts).into(),
            attributes: vec![],
        };
        let names = [1, 2].map(|number| (name(&format!("part-0000{number}")), Bytes::new())).to_vec();
        let joined = store.volume.join(&Context::DURABLE, directory, names, joined).unwrap();
        if names_key {
            store.put("p/other", b"");
            let dir = store.volume.find("bucket/p").unwrap().id;
            let at = ObjectName { dir, name: name("k"), alternate: None };
            let source = hekate_client::proto::PutSource::Inode { inode: joined.id };
            store.volume.put(&Context::DURABLE, &at, source, etag_of(&joined), Condition::Always).unwrap();
        }
        let other = [parts[0].clone()];
        assert_eq!(complete(&store, key, &id, &other), Err(Error::InvalidPart { number: 1 }));
        let made = complete(&store, key, &id, &parts).unwrap();
        assert_eq!(made.etag, etag_of_parts(&parts));
        assert!(store.get(key).unwrap() == [pattern(PART, 1), pattern(50_000, 2)].concat());
        assert_eq!(hidden(&store, &["uploads", BUCKET, &id]), None);
        assert_eq!(store.volume.find("bucket/p/k").unwrap().nlink, 1);
        store.delete(key);
    }
}

#[test]
fn ten_thousand_parts_are_joined() {
    let store = fixture("many");
    let id = begin(&store, "k");
    let directory = hidden(&store, &["uploads", BUCKET, &id]).unwrap();
    let make = |number: u16| {
        let (context, mode) = (Context::default(), 0o644);
        let new = New { node: NewNode::File, mode, uid: 0, gid: 0, umask: 0, exclusive: true };
        let made = store.volume.create(&context, directory, name(&format!("part-{number:05}")), new).unwrap().0;
        let changes = AttrChanges { size: Some(PART as u64), ..AttrChanges::default() };
        let grown = store.volume.setattr(&context, made.id, changes).unwrap();
        if number.is_multiple_of(1000) {
            store.volume.write(&context, made.id, 0, Bytes::from(format!("part {number}")), false).unwrap();
        }
        assert_eq!(grown.size, PART as u64);
    };
    std::thread::scope(|scope| {
        for thread in 0..16 {
            scope.spawn(move || (1..=10_000).filter(|number| number % 16 == thread).for_each(make));
        }
    });
    let (mut parts, mut after) = (Vec::new(), 0);
    loop {
        let page = store.store.parts(BUCKET, "k", &id, after, 1000).unwrap();
        parts.extend(page.parts.into_iter().map(|part| CompletedPart {
            number: part.number,
            etag: part.etag,
            checksum: None,
        }));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(parts.len(), 10_000);
    let made = complete(&store, "k", &id, &parts).unwrap();
    assert_eq!((made.size, made.metadata.parts.len()), (10_000 * PART as u64, 10_000));
    let object = store.store.open(BUCKET, "k").unwrap();
    for number in [1000, 5000, 10_000] {
        let expected = format!("part {number}");
        let read = object.read((number - 1) * PART as u64, PART).unwrap();
        assert!(read.starts_with(expected.as_bytes()) && read[expected.len()..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(hidden(&store, &["uploads", BUCKET, &id]), None);
}

#[test]
fn parts_can_be_copies() {
    let store = fixture("copies");
    let content = pattern(6 << 20, 1);
    store.put("from", &content);
    store.put("small", b"0123456789");
    let (from, small) = (store.store.open(BUCKET, "from").unwrap(), store.store.open(BUCKET, "small").unwrap());
    let id = begin(&store, "to");
    let copy = |object: &Object, range: std::ops::Range<u64>, number| {
        store.store.copy_part(object, range, BUCKET, "to", &id, number)
    };
    let made =
        [copy(&from, 100..5_000_100, 1).unwrap(), copy(&from, 0..30_000, 2).unwrap(), copy(&small, 2..5, 3).unwrap()];
    assert_eq!(copy(&from, 0..(6 << 20) + 1, 4), Err(Error::InvalidRange));
    let completed = |part: PartInfo| CompletedPart { number: part.number, etag: part.etag, checksum: None };
    assert_eq!(made[2].etag, md5_of(b"234"));
    let parts: Vec<CompletedPart> = made.into_iter().map(completed).collect();
    complete(&store, "to", &id, &parts).unwrap();
    assert!(store.get("to").unwrap() == [&content[100..5_000_100], &content[..30_000], b"234"].concat());
}

#[test]
fn checksums_of_parts_are_listed_compared_and_kept() {
    let store = fixture("checksums");
    let algorithm = Some((Algorithm::Crc32, ChecksumKind::Composite));
    let id = store.store.create_upload(BUCKET, "k", &ACTOR, Metadata::default(), algorithm).unwrap();
    let info = store.store.upload(BUCKET, "k", &id).unwrap();
    assert_eq!((&info.key[..], info.algorithm, info.actor), ("k", algorithm, ACTOR));
    let mut parts = Vec::new();
    for (number, value) in [(1, "AAAAAA=="), (2, "AQIDBA==")] {
        let checksum = Some(Checksum { algorithm: Algorithm::Crc32, value: value.into(), kind: ChecksumKind::Full });
        let upload = store.store.begin_part(BUCKET, "k", &id, number).unwrap();
        let metadata = Metadata { checksum: checksum.clone(), ..Metadata::default() };
        let made = send(upload, &pattern(PART, 1), metadata, Condition::Always).unwrap();
        assert_eq!(made.metadata.checksum, checksum);
        parts.push(CompletedPart { number, etag: made.etag, checksum: Some(value.into()) });
    }
    let listed = store.store.parts(BUCKET, "k", &id, 0, 9).unwrap().parts;
    assert!(
        listed
            .iter()
            .zip(&parts)
            .all(|(one, two)| one.checksum.as_ref().map(|sum| &sum.value) == two.checksum.as_ref())
    );
    let wrong = [parts[0].clone(), CompletedPart { checksum: parts[0].checksum.clone(), ..parts[1].clone() }];
    assert_eq!(complete(&store, "k", &id, &wrong), Err(Error::InvalidPart { number: 2 }));
    let whole = Some(Checksum { algorithm: Algorithm::Crc32, value: "xxx-2".into(), kind: ChecksumKind::Composite });
    let made = store.store.complete(BUCKET, "k", &id, &parts, whole.clone(), Condition::Always).unwrap();
    assert_eq!(made.metadata.checksum, whole);
    assert!(made.metadata.parts.iter().zip(&parts).all(|(one, two)| one.checksum == two.checksum));
}

#[test]
fn uploads_are_listed_by_key_and_id() {
    let store = fixture("uploads");
    let mut all: Vec<(String, String)> = Vec::new();
    for key in ["b", "a/x", "a/x", "a", "a/y", "é", "b"] {
        all.push((key.to_owned(), begin(&store, key)));
    }
    all.sort();
    let pages = |max, delimiter: Option<&str>, prefix: &str| {
        let (mut found, mut prefixes, mut marker) = (Vec::new(), Vec::new(), (String::new(), String::new()));
        loop {
            let query =
                ListQuery { prefix: prefix.into(), delimiter: delimiter.map(str::to_owned), after: marker.0, max };
            let page = store.store.uploads(BUCKET, &query, &marker.1).unwrap();
            found.extend(page.uploads.into_iter().map(|upload| (upload.key, upload.id)));
            prefixes.extend(page.prefixes);
            match page.next {
                Some(next) => marker = next,
                None => return (found, prefixes),
            }
        }
    };
    for max in [1, 2, 3, 100] {
        assert_eq!(pages(max, None, ""), (all.clone(), vec![]), "pages of {max}");
        let below: Vec<_> = all.iter().filter(|(key, _)| key.starts_with("a/")).cloned().collect();
        assert_eq!(pages(max, None, "a/"), (below, vec![]));
        let plain: Vec<_> = all.iter().filter(|(key, _)| !key.contains('/')).cloned().collect();
        assert_eq!(pages(max, Some("/"), ""), (plain, vec!["a/".to_owned()]));
    }
    for (key, id) in &all[1..] {
        store.store.abort(BUCKET, key, id).unwrap();
        assert_eq!(store.store.abort(BUCKET, key, id), Err(Error::NoSuchUpload));
    }
    assert_eq!(pages(9, None, ""), (vec![all[0].clone()], vec![]));
    store.store.delete_bucket(BUCKET).unwrap();
    assert_eq!(hidden(&store, &["uploads", BUCKET]), None);
}

#[test]
fn what_was_left_is_collected() {
    let store = fixture("collected");
    let id = begin(&store, "k");
    part(&store, "k", &id, 1, &pattern(PART, 1));
    store.put("kept/f", b"x");
    let bucket = store.volume.find(BUCKET).unwrap().id;
    let owner = Owner { mode: 0o755, uid: 0, gid: 0 };
    let made = store.volume.make_prefix(&Context::DURABLE, bucket, name("left"), name("%~-left"), owner).unwrap();
    store.volume.make_prefix(&Context::DURABLE, made.id, name("below"), name("%~-below"), owner).unwrap();
    store.volume.make_directory("bucket/by-hand").unwrap();
    assert_eq!(store.store.collect(Duration::from_secs(3600)).unwrap(), Collected::default());
    let collected = store.store.collect(Duration::ZERO).unwrap();
    assert_eq!(collected.uploads, 1);
    store.store.collect(Duration::ZERO).unwrap();
    assert_eq!(store.names(), ["by-hand", "kept"]);
    assert_eq!(store.store.parts(BUCKET, "k", &id, 0, 9), Err(Error::NoSuchUpload));
    assert_eq!(hidden(&store, &["uploads", BUCKET, &id]), None);
}
