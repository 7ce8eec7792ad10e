//! Directories whose names several partitions share, used by two clients of a real server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

include!("support/scratch.rs");

use bytes::Bytes;
use hekate_client::proto::*;
use hekate_client::{Context, New, OpenOptions, SetXattr, Volume};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const SPREAD: u32 = 8;

fn open(scratch: &Scratch) -> Volume {
    Volume::open(scratch.endpoint(), "v1", &OpenOptions::default()).unwrap()
}

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn new(node: NewNode) -> New {
    New { node, mode: 0o755, uid: 0, gid: 0, umask: 0, exclusive: true }
}

fn make(volume: &Volume, dir: InodeId, text: &str, node: NewNode) -> Result<Attr> {
    Ok(volume.create(&Context::default(), dir, name(text), new(node))?.0)
}

/// The names of a directory, listed `limit` at a time. They must come in byte order, each once.
fn listed(volume: &Volume, dir: InodeId, limit: u32) -> Vec<String> {
    let mut all: Vec<Name> = Vec::new();
    loop {
        let (entries, end) = volume.list(&Context::default(), dir, all.last().cloned(), limit, false).unwrap();
        assert!(entries.len() <= limit as usize && (end || !entries.is_empty()));
        all.extend(entries.into_iter().map(|entry| entry.name));
        if end {
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "out of order, or twice");
            return all.iter().map(|name| String::from_utf8(name.as_bytes().to_vec()).unwrap()).collect();
        }
    }
}

#[test]
fn names_are_listed_in_order_and_counted_whatever_partition_has_them() {
    let scratch = Scratch::wide("spread-list", SPREAD);
    let (one, two) = (open(&scratch), open(&scratch));
    let wide = make(&one, ROOT, "wide", NewNode::Directory).unwrap();
    assert_eq!((wide.spread, wide.nlink), (SPREAD, 2));
    let narrow = make(&one, wide.id, "narrow", NewNode::Directory).unwrap();
    assert_eq!(narrow.spread, 1, "only directories in the root begin wide");
    let names: BTreeSet<String> = (0..1000).map(|number| format!("{number:x}")).collect();
    for text in &names {
        // The other client learns from the server how many partitions share the directory.
        make(&two, wide.id, text, NewNode::File).unwrap();
    }
    let expected: Vec<&str> = names.iter().map(String::as_str).chain(["narrow"]).collect();
    for limit in [1024, 100, 7] {
        assert_eq!(listed(&one, wide.id, limit), expected, "{limit} at a time");
    }
    for text in names.iter().step_by(2) {
        one.unlink(&Context::default(), wide.id, name(text), None).unwrap();
        assert_eq!(two.lookup(&Context::default(), wide.id, name(text)), Err(Error::NotFound));
    }
    assert_eq!(listed(&two, wide.id, 100).len(), 501);
    make(&two, wide.id, "more", NewNode::Directory).unwrap();
    let (by_name, by_id) = (one.find("wide").unwrap(), two.getattr(&Context::default(), wide.id).unwrap());
    assert_eq!(by_name, by_id);
    assert_eq!(by_id.nlink, 4, "2, narrow and more");
    assert!(by_id.mtime > wide.mtime && by_id.ctime >= by_id.mtime && by_id.change > wide.change + 1500);
    let seen = one.read_directory("/").unwrap().into_iter().find(|entry| entry.name == name("wide")).unwrap();
    assert_eq!(seen.attr, Some(by_id), "as its parent lists it");
}

#[test]
fn keys_of_a_shared_directory_come_in_their_order_each_once() {
    let scratch = Scratch::wide("spread-keys", SPREAD);
    let volume = open(&scratch);
    let wide = make(&volume, ROOT, "wide", NewNode::Directory).unwrap().id;
    let mut expected = BTreeSet::new();
    for number in 0..60 {
        // Of a directory, "a/" stands between the files "a-b" and "a0".
        for (text, node) in [("", NewNode::Directory), ("-b", NewNode::File), ("0", NewNode::File)] {
            let text = format!("k{number:02}{text}");
            let key = if node == NewNode::Directory { format!("{text}/") } else { text.clone() };
            make(&volume, wide, &text, node).unwrap();
            expected.insert(key);
        }
    }
    let keys = |prefix: &'static str, after: &str, limit| {
        let (mut all, mut after) = (Vec::new(), Bytes::from(after.to_owned()));
        loop {
            let page = volume.list_keys(&Context::default(), wide, prefix.into(), after, limit).unwrap();
            assert!(page.entries.len() <= limit as usize && (page.end || !page.entries.is_empty()));
            assert_eq!(page.directory.id, wide);
            for entry in page.entries {
                let text = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
                all.push(if entry.kind == NodeKind::Directory { text + "/" } else { text });
            }
            if page.end {
                return all;
            }
            after = Bytes::from(all.last().unwrap().clone());
        }
    };
    let expected: Vec<String> = expected.into_iter().collect();
    for limit in [1, 7, 50, 1024] {
        assert_eq!(keys("", "", limit), expected, "{limit} at a time");
    }
    assert_eq!(keys("k07", "", 2), ["k07-b", "k07/", "k070"]);
    assert_eq!(keys("", "k58/", 10), ["k580", "k59-b", "k59/", "k590"]);
}

#[test]
fn a_change_of_a_shared_directory_is_seen_in_all_of_its_partitions() {
    let scratch = Scratch::wide("spread-change", SPREAD);
    let (one, two) = (open(&scratch), open(&scratch));
    let wide = make(&one, ROOT, "wide", NewNode::Directory).unwrap();
    let changes = AttrChanges { mode: Some(0o2770), gid: Some(77), ..Default::default() };
    let changed = one.setattr(&Context::default(), wide.id, changes).unwrap();
    assert_eq!((changed.mode, changed.gid), (0o2770, 77));
    for number in 0..50 {
        let made = make(&two, wide.id, &format!("f{number}"), NewNode::File).unwrap();
        assert_eq!(made.gid, 77, "the group is the directory's wherever the name rests");
    }
    let past = AttrChanges { mtime: Some(SetTime::At { time: Time(1_000) }), ..Default::default() };
    assert_eq!(one.setattr(&Context::default(), wide.id, past).unwrap().mtime, Time(1_000));
    assert_eq!(two.find("wide").unwrap().mtime, Time(1_000), "a time that is set shows, also if it is past");
    two.setxattr(&Context::default(), wide.id, "user.a".into(), "1".into(), SetXattr::default()).unwrap();
    assert_eq!(&one.getxattr(&Context::default(), wide.id, "user.a".into()).unwrap()[..], b"1");
}

#[test]
fn names_move_between_the_partitions_of_a_directory_and_out_of_it() {
    let scratch = Scratch::wide("spread-rename", SPREAD);
    let (one, two) = (open(&scratch), open(&scratch));
    let context = Context::default();
    let wide = make(&one, ROOT, "wide", NewNode::Directory).unwrap().id;
    let other = make(&one, ROOT, "other", NewNode::Directory).unwrap().id;
    let file = make(&one, wide, "n0", NewNode::File).unwrap();
    let sub = make(&one, wide, "d0", NewNode::Directory).unwrap();
    let rename = |volume: &Volume, from: (InodeId, &str), to: (InodeId, &str), mode| {
        volume.rename(&context, (from.0, name(from.1)), (to.0, name(to.1)), mode, None)
    };
    for number in 0..40 {
        let (from, to) = (format!("n{number}"), format!("n{}", number + 1));
        // A client that does not know that the directory is shared can rename out of it, too.
        rename(&open(&scratch), (wide, &from), (wide, &to), RenameMode::Replace).unwrap();
        assert_eq!(two.lookup(&context, wide, name(&to)).unwrap().id, file.id);
        assert_eq!(two.lookup(&context, wide, name(&from)), Err(Error::NotFound));
        let (from, to) = (format!("d{number}"), format!("d{}", number + 1));
        rename(&one, (wide, &from), (wide, &to), RenameMode::NoReplace).unwrap();
        assert_eq!(two.getattr(&context, wide).unwrap().nlink, 3);
    }
    rename(&two, (wide, "n40"), (wide, "d40"), RenameMode::Exchange).unwrap();
    assert_eq!(one.lookup(&context, wide, name("n40")).unwrap().id, sub.id);
    rename(&open(&scratch), (wide, "n40"), (other, "d"), RenameMode::Replace).unwrap();
    assert_eq!((two.getattr(&context, wide).unwrap().nlink, two.getattr(&context, other).unwrap().nlink), (2, 3));
    assert_eq!(rename(&two, (ROOT, "other"), (wide, "o"), RenameMode::Replace), Ok(()), "a shared one moves as any");
    assert_eq!(rename(&two, (ROOT, "wide"), (other, "w"), RenameMode::Replace), Err(Error::Loop));
    assert_eq!(one.find("wide/o/d").unwrap().id, sub.id);
    make(&one, ROOT, "third", NewNode::Directory).unwrap();
    assert_eq!(rename(&two, (ROOT, "third"), (ROOT, "wide"), RenameMode::Replace), Err(Error::NotEmpty));
    assert_eq!(rename(&two, (wide, "o"), (ROOT, "third"), RenameMode::Replace), Ok(()), "an empty one is replaced");
    assert_eq!(listed(&one, wide, 100), ["d40"]);
    assert_eq!(listed(&one, ROOT, 100), ["third", "wide"]);
}

/// Makes, looks up and removes files in a directory that another client removes whenever it is empty.
fn live_in(volume: &Volume, done: &AtomicBool, of: &str) -> u32 {
    let (context, mut made) = (Context::default(), 0);
    for number in 0.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let dir = match volume.find("d") {
            Ok(dir) => dir.id,
            Err(Error::NotFound | Error::Stale) => match make(volume, ROOT, "d", NewNode::Directory) {
                Ok(dir) => dir.id,
                Err(Error::Exists) => continue,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        let (first, second) = (format!("{of}-{number}"), format!("{of}-{number}-moved"));
        match make(volume, dir, &first, NewNode::File) {
            Ok(file) => {
                let ends = ((dir, name(&first)), (dir, name(&second)));
                assert_eq!(volume.lookup(&context, dir, name(&first)).unwrap().id, file.id, "a file that was lost");
                assert_eq!(volume.rename(&context, ends.0, ends.1, RenameMode::Replace, None), Ok(()));
                assert!(listed(volume, dir, 100).contains(&second));
                assert_eq!(volume.unlink(&context, dir, name(&second), Some(file.id)), Ok(()));
                made += 1;
            }
            Err(Error::NotFound | Error::Stale) => {}
            Err(error) => panic!("{error}"),
        }
    }
    made
}

#[test]
fn no_file_is_lost_to_a_removal_of_its_directory_and_not_with_a_server_that_dies() {
    let mut scratch = Scratch::wide("spread-race", SPREAD);
    let clients: Vec<Volume> = (0..3).map(|_| open(&scratch)).collect();
    let (done, removed) = (AtomicBool::new(false), AtomicU32::new(0));
    let made: u32 = std::thread::scope(|scope| {
        let living: Vec<_> = clients[..2]
            .iter()
            .zip(["a", "b"])
            .map(|(client, of)| scope.spawn(|| live_in(client, &done, of)))
            .collect();
        let remover = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                match clients[2].rmdir(&Context::default(), ROOT, name("d")) {
                    Ok(()) => drop(removed.fetch_add(1, Ordering::Relaxed)),
                    Err(Error::NotEmpty | Error::NotFound) => {}
                    Err(error) => panic!("{error}"),
                }
                let changes = AttrChanges { mode: Some(0o700), ..Default::default() };
                if let Ok(dir) = clients[2].find("d") {
                    match clients[2].setattr(&Context::default(), dir.id, changes) {
                        Ok(_) | Err(Error::Stale) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(700));
            scratch.stop();
            std::thread::sleep(Duration::from_millis(100));
            scratch.start();
        }
        let begun = Instant::now();
        while removed.load(Ordering::Relaxed) < 3 && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(100));
        }
        done.store(true, Ordering::Relaxed);
        remover.join().unwrap();
        living.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let removed = removed.into_inner();
    assert!(made >= 10 && removed >= 3, "{made} files were made and {removed} directories removed");
    if let Ok(dir) = clients[0].find("d") {
        assert_eq!(listed(&clients[0], dir.id, 100), [""; 0]);
        clients[0].rmdir(&Context::default(), ROOT, name("d")).unwrap();
    }
    assert_eq!(listed(&clients[1], ROOT, 100), [""; 0]);
}
