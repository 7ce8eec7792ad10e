//! The library against a real server in this process: bricks on a real file system, a real socket.

#![allow(clippy::unwrap_used, reason = "tests")]

include!("support/scratch.rs");

use hekate_client::proto::*;
use hekate_client::{Context, New, OpenOptions, Volume};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn open(scratch: &Scratch) -> Volume {
    Volume::open(scratch.endpoint(), "v1", &OpenOptions::default()).unwrap()
}

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn new_file() -> New {
    New { node: NewNode::File, mode: 0o644, uid: 0, gid: 0, umask: 0, exclusive: true }
}

/// Bytes that differ by position and seed.
fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 7) >> 13) as u8).collect()
}

#[test]
fn files_of_every_size_read_back_as_written() {
    let scratch = Scratch::new("sizes");
    let volume = open(&scratch);
    let sizes = [0, 1, 4095, 4096, 16_384, 16_385, 100_000, (4 << 20) - 1, (4 << 20) + 1, 9 << 20];
    for (seed, size) in sizes.into_iter().enumerate() {
        let content = pattern(size, seed as u64);
        let path = format!("f{size}");
        let attr = volume.write_file(&path, &content).unwrap();
        assert_eq!(attr.size, size as u64);
        assert!(volume.read_file(&path).unwrap() == content, "{size} bytes");
    }
    drop(volume);
    let volume = open(&scratch);
    for (seed, size) in sizes.into_iter().enumerate() {
        assert!(
            volume.read_file(&format!("f{size}")).unwrap() == pattern(size, seed as u64),
            "{size} bytes, opened anew"
        );
    }
}

#[test]
fn random_writes_and_truncates_leave_what_a_plain_buffer_has() {
    let scratch = Scratch::new("random");
    let volume = open(&scratch);
    let context = Context::default();
    let (file, _) = volume.create(&context, ROOT, name("f"), new_file()).unwrap();
    let mut expected: Vec<u8> = Vec::new();
    let mut state = 42u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..300 {
        if random(6) == 0 {
            let size = random(9 << 20) >> random(10);
            let changes = AttrChanges { size: Some(size), ..Default::default() };
            assert_eq!(volume.setattr(&context, file.id, changes).unwrap().size, size);
            expected.resize(size as usize, 0);
        } else {
            let offset = (random(9 << 20) >> random(12)) as usize;
            let data = pattern((random(200_000) >> random(14)) as usize + 1, round);
            volume.write(&context, file.id, offset as u64, data.clone().into(), false).unwrap();
            if expected.len() < offset + data.len() {
                expected.resize(offset + data.len(), 0);
            }
            expected[offset..offset + data.len()].copy_from_slice(&data);
        }
        if round % 20 == 19 {
            assert!(volume.read_file("f").unwrap() == expected, "round {round}");
        }
    }
}

#[test]
fn one_client_sees_at_once_what_another_has_done() {
    let scratch = Scratch::new("two");
    let (one, two) = (open(&scratch), open(&scratch));
    let context = Context::default();
    let (file, _) = one.create(&context, ROOT, name("f"), new_file()).unwrap();
    for round in 0..50u64 {
        let content = pattern(1000 * round as usize + 1, round);
        one.write(&context, file.id, 0, content.clone().into(), false).unwrap();
        assert!(two.read(&context, file.id, 0, 1 << 20).unwrap() == content, "round {round}");
        if round % 10 == 9 {
            two.setattr(&context, file.id, AttrChanges { size: Some(0), ..Default::default() }).unwrap();
            assert_eq!(one.read(&context, file.id, 0, 10).unwrap().len(), 0);
        }
    }
    two.remove("f").unwrap();
    assert_eq!(one.lookup(&context, ROOT, name("f")), Err(Error::NotFound));
}

#[test]
fn an_open_file_outlives_its_name_and_goes_when_it_is_closed() {
    let scratch = Scratch::new("orphan");
    let (holder, remover) = (open(&scratch), open(&scratch));
    let context = Context::default();
    let (file, _) = holder.create(&context, ROOT, name("f"), new_file()).unwrap();
    holder.opened(file.id);
    holder.write(&context, file.id, 0, pattern(50_000, 1).into(), false).unwrap();
    remover.unlink(&context, ROOT, name("f"), Some(file.id)).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert!(holder.read(&context, file.id, 0, 1 << 20).unwrap() == pattern(50_000, 1));
    holder.closed(file.id);
    let begun = Instant::now();
    while holder.getattr(&context, file.id) != Err(Error::Stale) {
        assert!(begun.elapsed() < Duration::from_secs(20), "the orphan is not collected");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn ops_wait_for_a_server_that_is_away_and_are_done_once() {
    let mut scratch = Scratch::new("away");
    let volume = Arc::new(open(&scratch));
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let (volume, stop) = (volume.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut made = 0;
                while !stop.load(Ordering::Relaxed) {
                    // An exclusive create or a rename that is executed twice fails.
                    let (from, to) = (format!("w{worker}-{made}-new"), format!("w{worker}-{made}"));
                    volume.create(&Context::default(), ROOT, name(&from), new_file()).unwrap();
                    let ends = ((ROOT, name(&from)), (ROOT, name(&to)));
                    volume.rename(&Context::default(), ends.0, ends.1, RenameMode::NoReplace, None).unwrap();
                    made += 1;
                }
                made
            })
        })
        .collect();
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(200));
        scratch.stop();
        scratch.start();
    }
    std::thread::sleep(Duration::from_millis(200));
    stop.store(true, Ordering::Relaxed);
    let made: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    let listed = volume.read_directory("").unwrap();
    assert!(made > 0);
    assert_eq!(listed.len(), made);
    assert!(listed.iter().all(|entry| !entry.name.as_bytes().ends_with(b"new")));
}

#[test]
fn a_caller_that_gives_up_does_not_wait_for_an_unavailable_server() {
    let mut scratch = Scratch::new("giveup");
    let volume = open(&scratch);
    scratch.stop();
    let gave_up = AtomicBool::new(true);
    let context = Context { interrupt: Some(&gave_up), ..Context::default() };
    let refused = volume.getattr(&context, ROOT).unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused}");
    assert!(refused.to_string().contains("server.sock"), "{refused}");
    scratch.start();
    assert_eq!(volume.getattr(&Context::default(), ROOT).unwrap().kind, NodeKind::Directory);
}

#[test]
fn an_unknown_volume_is_refused_with_the_known_ones() {
    let scratch = Scratch::new("unknown");
    let refused = Volume::open(scratch.endpoint(), "nonesuch", &OpenOptions::default()).err().unwrap();
    assert!(refused.to_string().contains("nonesuch") && refused.to_string().contains("v1"), "{refused}");
}

#[test]
fn directories_move_but_never_below_themselves() {
    let scratch = Scratch::new("move");
    let volume = open(&scratch);
    for path in ["a", "a/b", "a/b/c", "z"] {
        volume.make_directory(path).unwrap();
    }
    assert_eq!(volume.rename_path("a", "a/b/c/a"), Err(Error::Loop));
    volume.rename_path("a/b", "z/b").unwrap();
    assert_eq!(volume.find("z/b/c").unwrap().kind, NodeKind::Directory);
    assert_eq!(volume.rename_path("z", "z/b/z"), Err(Error::Loop));
    assert_eq!((volume.find("a").unwrap().nlink, volume.find("z").unwrap().nlink), (2, 3));
    assert_eq!(volume.remove("z"), Err(Error::NotEmpty));
}

#[test]
fn a_reader_beside_a_writer_never_sees_zeros_that_nobody_wrote() {
    let scratch = Scratch::new("zeros");
    let (writer, reader) = (open(&scratch), open(&scratch));
    let file = writer.write_file("f", &vec![9u8; 20_000]).unwrap().id;
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = stop.clone();
    let appending = std::thread::spawn(move || {
        let mut at = 20_000u64;
        while !stopping.load(Ordering::Relaxed) && at < 30_000_000 {
            writer.write(&Context::default(), file, at, vec![9u8; 3000].into(), false).unwrap();
            at += 3000;
        }
    });
    let begun = Instant::now();
    let mut from = 16_000u64;
    while begun.elapsed() < Duration::from_secs(2) {
        let got = reader.read(&Context::default(), file, from, 1 << 20).unwrap();
        assert!(got.iter().all(|byte| *byte == 9), "zeros after {from}, in {} bytes", got.len());
        from = (from + got.len() as u64).saturating_sub(4000);
    }
    stop.store(true, Ordering::Relaxed);
    appending.join().unwrap();
}

#[test]
fn what_a_truncate_took_does_not_come_back() {
    let scratch = Scratch::new("truncate");
    let volume = open(&scratch);
    let context = Context::default();
    let file = volume.write_file("f", &vec![1u8; 9 << 20]).unwrap().id;
    scratch.checkpoint();
    let cut = |size| volume.setattr(&context, file, AttrChanges { size: Some(size), ..Default::default() }).unwrap();
    cut(1 << 20);
    volume.write(&context, file, (8 << 20) + (512 << 10), vec![2u8].into(), false).unwrap();
    let hole = volume.read(&context, file, 8 << 20, 512 << 10).unwrap();
    assert!(hole.iter().all(|byte| *byte == 0));
    // Bytes written beyond a truncated end survive the checkpoint that frees the truncated blocks.
    cut(8 << 10);
    volume.write(&context, file, 40 << 10, vec![3u8; 64 << 10].into(), false).unwrap();
    volume.write(&context, file, 120 << 10, vec![4u8; 4 << 10].into(), false).unwrap();
    volume.fsync(&context, file).unwrap();
    scratch.checkpoint();
    let kept = volume.read(&context, file, 40 << 10, 64 << 10).unwrap();
    assert!(kept.iter().all(|byte| *byte == 3));
}

#[test]
fn a_connection_speaks_only_for_its_own_session_and_volume() {
    let scratch = Scratch::new("foreign");
    let victim = open(&scratch);
    let (remote, welcome) = hekate_transport::Remote::open(scratch.endpoint(), "v1").unwrap();
    let own = Request {
        volume: welcome.map.volume,
        target: Target::Server,
        session: welcome.session,
        op_id: OpId(0),
        durable: false,
        retry: false,
        pledge: false,
        op: Op::Volume { op: VolumeOp::StatFs },
    };
    let leg = Op::Leg { intent: IntentId(1), number: 0, leg: Box::new(Leg::DropDirectory { inode: ROOT }) };
    let foreign = [
        Request { session: victim.session(), op: Op::Volume { op: VolumeOp::EndSession }, ..own.clone() },
        Request { volume: VolumeId(own.volume.0 + 1), ..own.clone() },
        Request { op: leg, ..own.clone() },
    ];
    for request in foreign {
        let replies = remote.call(&mut [request.clone()], &|| true).unwrap();
        assert!(matches!(replies[0], Err(Error::Denied { .. })), "{request:?}: {replies:?}");
    }
    assert!(remote.call(&mut [own], &|| true).unwrap()[0].is_ok());
    assert!(victim.getattr(&Context::default(), ROOT).is_ok());
}
