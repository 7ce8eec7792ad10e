//! `distribute`: appends.

use super::files::FileClient;
use super::scripted_servers::Fate;
use super::support::*;
use super::virtual_time::in_virtual_time;
use bytes::Bytes;
use hekate_graph::{Context, Translator};
use hekate_proto::*;
use hekate_threads::now;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const FILE: InodeId = inode(3, 1);

fn append(data: &'static [u8]) -> Op {
    Op::Data { op: DataOp::Append { inode: FILE, data: Bytes::from_static(data), drop_set_id: false } }
}

#[test]
fn an_append_to_a_small_file_is_one_request() {
    in_virtual_time(|| {
        let client = FileClient::new();
        client.file(FILE);
        let (_, sent) = client.sent_by(|| client.call(append(b"ab")).unwrap());
        assert_eq!(sent, ["append"]);
        client.call(append(b"cd")).unwrap();
        assert_eq!(client.content(FILE), b"abcd");
    });
}

#[test]
fn an_append_that_fills_a_small_file_moves_its_bytes_to_shards() {
    in_virtual_time(|| {
        let client = FileClient::new();
        client.file(FILE);
        client.write(FILE, 0, &vec![b'a'; INLINE_MAX as usize - 1]).unwrap();
        let (_, sent) = client.sent_by(|| client.call(append(b"bc")).unwrap());
        assert_eq!(sent, ["append", "spill", "set-lock", "getattr", "write-shard", "wrote", "set-lock"]);
        assert_eq!(client.content(FILE)[INLINE_MAX as usize - 2..], *b"abc");
    });
}

#[test]
fn an_append_to_shards_asks_for_the_end_of_the_file_under_a_lock() {
    in_virtual_time(|| {
        let client = FileClient::new();
        client.file_in_shards(FILE, 3);
        // Another client has appended since this one asked last.
        client.before("set-lock", |files| {
            files.write(FILE, 3, b"ab");
            None
        });
        client.servers.take_sent();
        client.call(append(b"cd")).unwrap();
        assert_eq!(client.content(FILE), b"\0\0\0abcd");
        let sent = client.servers.take_sent();
        let kind = |op: &Op| match op {
            Op::Lock { op: LockOp::Set { lock, wait, .. } } => Some((lock.kind, lock.style, *wait)),
            _ => None,
        };
        assert_eq!(kind(&sent[0].request.op), Some((LockKind::Write, LockStyle::Append, true)));
        assert_eq!(kind(&sent.last().unwrap().request.op), Some((LockKind::Unlock, LockStyle::Append, false)));
    });
}

#[test]
fn an_append_that_met_a_truncate_is_repeated() {
    in_virtual_time(|| {
        let client = FileClient::new();
        client.file_in_shards(FILE, 3);
        client.before("wrote", |files| {
            files.truncate(FILE, 1);
            None
        });
        client.call(append(b"ab")).unwrap();
        assert_eq!(client.content(FILE), b"\0ab");
        // The bytes are beside the inode when the lock is held.
        client.before("set-lock", |files| {
            files.truncate(FILE, 0);
            None
        });
        client.call(append(b"cd")).unwrap();
        assert_eq!(client.content(FILE), b"cd");
    });
}

/// The lock does not keep the session itself out.
#[test]
fn appends_of_one_mount_to_a_file_run_one_after_the_other() {
    let client = Arc::new(FileClient::new());
    client.file_in_shards(FILE, 3);
    let gate = Arc::new(Gate::default());
    let (files, closed, is_first) = (client.files.clone(), gate.clone(), AtomicBool::new(true));
    client.servers.execute_with(move |_, _, request| {
        if request.op.label() == "write-shard" && is_first.swap(false, Ordering::Relaxed) {
            closed.pass();
        }
        files.lock().execute(request)
    });
    let run = |data| {
        let client = client.clone();
        start(move || client.call(append(data)))
    };
    let first = run(b"ab");
    client.servers.wait_until(|sent| sent.iter().any(|sent| sent.label() == "write-shard"));
    let second = run(b"cd");
    assert!(second.is_waiting());
    gate.open();
    assert_eq!((first.join(), second.join()), (Ok(Reply::Done), Ok(Reply::Done)));
    assert_eq!(client.content(FILE), b"\0\0\0abcd");
}

#[test]
fn an_append_that_waits_for_another_one_ends_with_an_interrupt() {
    let client = Arc::new(FileClient::new());
    client.file_in_shards(FILE, 3);
    let gate = Arc::new(Gate::default());
    let (files, closed) = (client.files.clone(), gate.clone());
    client.servers.execute_with(move |_, _, request| {
        if request.op.label() == "write-shard" {
            closed.pass();
        }
        files.lock().execute(request)
    });
    let other = client.clone();
    let first = start(move || other.call(append(b"ab")));
    client.servers.wait_until(|sent| sent.iter().any(|sent| sent.label() == "write-shard"));
    let context = Context { deadline: Some(now()), ..Context::default() };
    assert!(is_unavailable(&client.top.handle(&context, append(b"cd"))));
    gate.open();
    assert_eq!(first.join(), Ok(Reply::Done));
    assert_eq!(client.content(FILE), b"\0\0\0ab");
}

#[test]
fn the_lock_of_an_append_is_released_also_after_an_error() {
    in_virtual_time(|| {
        let client = FileClient::new();
        client.file_in_shards(FILE, 3);
        client.before("write-shard", |_| Some(Err(Error::NoSpace { what: "scripted".into() })));
        let (outcome, sent) = client.sent_by(|| client.call(append(b"ab")));
        assert!(matches!(outcome, Err(Error::NoSpace { .. })));
        assert_eq!((sent.len(), sent.last()), (5, Some(&"set-lock")));
        client.file_in_shards(FILE, FILE_BYTES_MAX - 1);
        let (outcome, sent) = client.sent_by(|| client.call(append(b"ab")));
        assert_eq!((outcome, sent), (Err(Error::TooLarge), vec!["set-lock", "getattr", "set-lock"]));
    });
}

#[test]
fn the_lock_of_an_append_whose_caller_gave_up_is_released_with_one_attempt() {
    in_virtual_time(|| {
        let client = FileClient::new();
        client.file_in_shards(FILE, 3);
        let context = Context { deadline: Some(now()), ..Context::default() };
        client.servers.next_fates([Fate::Answered, Fate::NotReached, Fate::NotReached]);
        let (outcome, sent) = client.sent_by(|| client.top.handle(&context, append(b"ab")));
        assert!(is_unavailable(&outcome));
        assert_eq!(sent, ["set-lock", "getattr", "set-lock", "release-locks"]);
    });
}
