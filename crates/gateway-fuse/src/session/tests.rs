//! The session against a socket that keeps message boundaries, as /dev/fuse does.

use super::*;
use crate::abi::*;
use crate::negotiate::Wishes;
use crate::request::tests::sample;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::HashMap;
use zerocopy::{FromBytes, IntoBytes};

/// GETATTR waits until it is interrupted, and a lock until the test replies. MKDIR panics, READLINK and WRITE
/// succeed, other requests are refused.
#[derive(Default)]
struct Fake {
    forgotten: Mutex<Vec<ForgetOne>>,
    waiting: Mutex<HashMap<u64, PendingReply>>,
}

impl Handler for Fake {
    fn answer(&self, request: Request, signals: &Signals, later: PendingReply) -> Option<Outcome> {
        let outcome = match request.body {
            Body::SetLk { .. } => {
                self.waiting.lock().insert(later.unique(), later);
                return None;
            }
            Body::GetAttr { .. } => {
                while !signals.fatal.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Failed(Errno::TIMEDOUT))
            }
            Body::Mkdir { .. } => panic!("a bug"),
            Body::ReadLink => Ok(Bytes::from_static(b"target")),
            Body::Write { data, .. } => Ok(bytes::Bytes::copy_from_slice(&(data.len() as u64).to_ne_bytes())),
            _ => Err(Failed(Errno::NOSYS)),
        };
        Some(outcome)
    }

    fn is_later(&self, unique: u64) -> bool {
        self.waiting.lock().contains_key(&unique)
    }

    fn interrupt(&self, unique: u64) {
        if let Some(later) = self.waiting.lock().remove(&unique) {
            later.answer(&Err(Failed(Errno::INTR)));
        }
    }

    fn forget(&self, forgotten: &[ForgetOne]) {
        self.forgotten.lock().extend_from_slice(forgotten);
    }
}

struct Kernel(Device);

impl Kernel {
    fn send(&self, opcode: u32, unique: u64, parts: &[&[u8]]) {
        rustix::io::write(&self.0.0, &sample(opcode, unique, 7, parts)).unwrap();
    }

    /// The number, error and body of the next reply.
    fn answer(&self) -> (u64, i32, Vec<u8>) {
        let mut space = vec![0; 1 << 17];
        let Arrival::Request(filled) = self.0.read(&mut space) else { panic!("an answer") };
        let (header, body) = OutHeader::read_from_prefix(&space[..filled]).unwrap();
        assert_eq!(header.len as usize, filled);
        (header.unique, header.error, body.to_vec())
    }
}

fn with_session(workers_max: usize, test: impl FnOnce(&Kernel, &Session<Fake>)) {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let session = Session::new(Fake::default(), Device(ours), workers_max, Arc::default());
    let running = session.clone();
    let thread = std::thread::spawn(move || running.run());
    let kernel = Kernel(Device(theirs));
    test(&kernel, &session);
    rustix::net::shutdown(&kernel.0.0, rustix::net::Shutdown::Both).unwrap();
    thread.join().unwrap().unwrap();
    assert_eq!(session.worker_count(), 0);
}

#[test]
fn requests_are_answered_and_bugs_and_nonsense_are_errors() {
    with_session(4, |kernel, session| {
        kernel.send(5, 2, &[]);
        assert_eq!(kernel.answer(), (2, 0, b"target".to_vec()));
        kernel.send(9, 4, &[MkdirIn::default().as_bytes(), b"dir\0"]);
        assert_eq!(kernel.answer(), (4, -5, vec![]));
        kernel.send(1, 6, &[b"no end"]);
        assert_eq!(kernel.answer(), (6, -22, vec![]));
        kernel.send(4711, 8, &[]);
        assert_eq!(kernel.answer(), (8, -38, vec![]));
        assert_eq!(session.counters.requests(), [("ReadLink", 1), ("Mkdir", 1)]);
    });
}

#[test]
fn a_large_write_arrives_whole() {
    with_session(4, |kernel, _| {
        let write = WriteIn { size: 100_000, ..Default::default() };
        kernel.send(16, 2, &[write.as_bytes(), &[9; 100_000]]);
        assert_eq!(kernel.answer(), (2, 0, 100_000u64.to_ne_bytes().to_vec()));
    });
}

#[test]
fn an_interrupted_wait_is_eintr_even_when_all_workers_wait() {
    with_session(2, |kernel, session| {
        for unique in [2, 4, 6, 8] {
            kernel.send(3, unique, &[&[0; 16]]);
        }
        // 6 or 8 waits for a worker and is withdrawn; 2 is in execution.
        for unique in [8u64, 2, 4, 6] {
            kernel.send(36, unique | 1, &[unique.as_bytes()]);
            assert_eq!(kernel.answer(), (unique, -4, vec![]));
        }
        assert!(session.worker_count() <= 3);
    });
}

#[test]
fn locks_that_wait_occupy_no_worker_and_are_answered_by_whoever_can() {
    with_session(2, |kernel, session| {
        let lk = LkIn { end: 9, kind: F_WRLCK, ..Default::default() };
        for unique in [2, 4, 6, 8] {
            kernel.send(33, unique, &[lk.as_bytes()]);
        }
        kernel.send(5, 10, &[]);
        assert_eq!(kernel.answer(), (10, 0, b"target".to_vec()));
        while session.handler.waiting.lock().len() < 4 {
            std::thread::yield_now();
        }
        session.handler.waiting.lock().remove(&6).unwrap().answer(&Ok(Bytes::new()));
        assert_eq!(kernel.answer(), (6, 0, vec![]));
        kernel.send(36, 5, &[4u64.as_bytes()]);
        assert_eq!(kernel.answer(), (4, -4, vec![]));
        assert_eq!(session.handler.waiting.lock().len(), 2);
    });
}

#[test]
fn an_interrupt_that_comes_first_is_honoured() {
    with_session(4, |kernel, _| {
        kernel.send(36, 3, &[2u64.as_bytes()]);
        kernel.send(3, 2, &[&[0; 16]]);
        assert_eq!(kernel.answer(), (2, -4, vec![]));
    });
}

#[test]
fn forgetting_is_not_answered() {
    with_session(4, |kernel, session| {
        kernel.send(2, 2, &[3u64.as_bytes()]);
        let batch = [ForgetOne { node: 5, count: 1 }, ForgetOne { node: 6, count: 2 }];
        kernel.send(42, 4, &[BatchForgetIn { count: 2, padding: 0 }.as_bytes(), batch.as_bytes()]);
        kernel.send(5, 6, &[]);
        assert_eq!(kernel.answer().0, 6);
        // Another worker may still be executing the FORGET.
        while session.handler.forgotten.lock().len() < 3 {
            std::thread::yield_now();
        }
        assert!(session.handler.forgotten.lock().contains(&ForgetOne { node: 7, count: 3 }));
    });
}

#[test]
fn the_end_frees_workers_that_wait() {
    with_session(4, |kernel, _| kernel.send(3, 2, &[&[0; 16]]));
}

#[test]
fn init_is_agreed_upon() {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let session = Session::new(Fake::default(), Device(ours), 4, Arc::default());
    let kernel = Kernel(Device(theirs));
    let init = InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: init::MAX_PAGES as u32 };
    kernel.send(26, 2, &[init.as_bytes(), &[0; 48]]);
    session.handshake(&Wishes::default()).unwrap();
    let (unique, error, body) = kernel.answer();
    assert_eq!((unique, error, body.len()), (2, 0, size_of::<InitOut>()));
    kernel.send(26, 4, &[InitIn { minor: 12, ..init }.as_bytes()]);
    assert!(session.handshake(&Wishes::default()).is_err());
    assert_eq!(kernel.answer().1, -71);
}
