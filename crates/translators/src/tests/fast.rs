//! `replicate`: fast writes, which go to all members of a view at once.

use super::files::FileClient;
use super::scripted_servers::{Fate, ScriptedServers};
use super::support::*;
use super::virtual_time::in_virtual_time;
use crate::Replicate;
use crate::replicate::Flight;
use bytes::Bytes;
use hekate_graph::Context;
use hekate_proto::map::{Mode, VolumeMap};
use hekate_proto::*;
use std::sync::Arc;
use std::time::Duration;

/// The term of the permission in `allowed`, and the one in the leader's reply to a write.
const TERMS: [u64; 2] = [7, 8];

fn hsr() -> VolumeMap {
    VolumeMap { mode: Mode::Hsr, ..map() }
}

fn shard(index: u64) -> ShardId {
    ShardId { volume: VOLUME, data: data_in(0), index }
}

/// The partition of the first shard, of the bricks 1 and 2.
fn first() -> (Arc<ScriptedServers>, Replicate) {
    let servers = ScriptedServers::new(hsr(), |_, _, request| answer(request));
    (servers.clone(), Replicate::new(servers, SESSION, hsr()))
}

/// The reply of a member that accepts a fast write, and of a leader that allows the next one.
fn answer(request: &Request) -> Result<Reply> {
    match &request.op {
        Op::Data { op: DataOp::FastWrite { follow, .. } } => {
            Ok(Reply::Written { stamp: stamp(follow.count + 1, request.op_id), fast: None })
        }
        Op::Data { op: DataOp::WriteShard { .. } } => {
            Ok(Reply::Written { stamp: stamp(50, request.op_id), fast: Some(TERMS[1]) })
        }
        _ => Ok(Reply::Done),
    }
}

fn stamp(count: u64, op: OpId) -> Stamp {
    Stamp { count, session: SESSION, op }
}

/// A leader has written stamp 3, and allows fast writes that follow it.
fn allow(replicate: &Replicate, shard: ShardId) {
    let reply = Reply::Written { stamp: stamp(3, OpId(9)), fast: Some(TERMS[0]) };
    replicate.note_allowed(shard, &reply);
}

fn begin(replicate: &Replicate, index: u64) -> Option<Flight<'_>> {
    replicate.begin_fast(&Context::DURABLE, shard(index), 8, &Bytes::from_static(b"bytes"))
}

fn finish(flight: Flight<'_>) -> Result<bool> {
    flight.finish(&Context::DURABLE, 8, &Bytes::from_static(b"bytes"))
}

/// Which write each fast write follows, whether that is settled, and its term.
fn follows(servers: &ScriptedServers) -> Vec<(Stamp, bool, u64)> {
    let follow = |request: &Request| match &request.op {
        Op::Data { op: DataOp::FastWrite { follow, settled, term, .. } } => Some((*follow, *settled, *term)),
        _ => None,
    };
    servers.take_sent().iter().filter_map(|sent| follow(&sent.request)).collect()
}

#[test]
fn a_fast_write_goes_to_all_members_and_names_the_stamp_that_it_follows() {
    in_virtual_time(|| {
        let (servers, replicate) = first();
        assert!(begin(&replicate, 0).is_none(), "no leader has allowed it");
        allow(&replicate, shard(0));
        assert_eq!(finish(begin(&replicate, 0).unwrap()), Ok(true));
        let sent = servers.take_sent();
        let seen: Vec<_> = sent.iter().map(|sent| (sent.server.0, sent.request.target)).collect();
        let (ring, partition, epoch) = (RingId(1), PartitionNumber(0), Epoch(5));
        let member = |brick| Target::Replica { ring, partition, epoch, brick: BrickId(brick) };
        assert_eq!(seen, [(1, member(1)), (2, member(2))]);
        let op_id = sent[0].request.op_id;
        assert!(sent.iter().all(|sent| sent.request.op_id == op_id && sent.request.durable && !sent.request.retry));
        let op = DataOp::FastWrite {
            data: data_in(0),
            index: 0,
            offset: 8,
            bytes: Bytes::from_static(b"bytes"),
            follow: stamp(3, OpId(9)),
            settled: true,
            term: TERMS[0],
        };
        assert_eq!(sent[0].request.op, Op::Data { op });
        assert_eq!(finish(begin(&replicate, 0).unwrap()), Ok(true));
        assert_eq!(follows(&servers), [(stamp(4, op_id), true, TERMS[0]); 2]);
    });
}

#[test]
fn only_one_fast_write_of_a_shard_is_in_flight() {
    let (servers, replicate) = first();
    let replicate = Arc::new(replicate);
    let other = (1..).find(|index| partition_of(shard(*index)) == 0).unwrap();
    allow(&replicate, shard(0));
    allow(&replicate, shard(other));
    let flight = begin(&replicate, 0).unwrap();
    let second = replicate.clone();
    let waiting = start(move || finish(begin(&second, 0).unwrap()));
    assert_eq!(finish(begin(&replicate, other).unwrap()), Ok(true), "other shards do not wait");
    // A permission from an earlier reply does not replace the one that the flight will leave.
    allow(&replicate, shard(0));
    assert!(waiting.is_waiting());
    let op_id = servers.take_sent()[0].request.op_id;
    assert_eq!(finish(flight), Ok(true));
    assert_eq!(waiting.join(), Ok(true));
    assert_eq!(follows(&servers), [(stamp(4, op_id), true, TERMS[0]); 2]);
}

/// One of two members does not accept a write, so the leader determines its outcome.
fn asks_the_leader(prepare: impl Fn(&ScriptedServers)) {
    in_virtual_time(|| {
        let (servers, replicate) = first();
        allow(&replicate, shard(0));
        prepare(&servers);
        assert_eq!(finish(begin(&replicate, 0).unwrap()), Ok(false));
        let sent = servers.take_sent();
        assert_eq!(sent.len(), 3);
        let (fast, again) = (&sent[0].request, &sent[2].request);
        assert_eq!((sent[2].server, again.op_id, again.retry, again.durable), (ServerId(1), fast.op_id, true, true));
        let (bytes, follow) = (Bytes::from_static(b"bytes"), None);
        let op = DataOp::WriteShard { data: data_in(0), index: 0, offset: 8, bytes, follow, fast: true };
        assert_eq!(again.op, Op::Data { op });
        assert_eq!(finish(begin(&replicate, 0).unwrap()), Ok(true));
        assert_eq!(follows(&servers), [(stamp(50, fast.op_id), true, TERMS[1]); 2], "as the leader's reply allows");
    });
}

/// One of the members replies this to fast writes until the leader is asked.
fn refuse(servers: &ScriptedServers, by: ServerId, refusal: impl Fn(OpId) -> Result<Reply> + Send + Sync + 'static) {
    servers.execute_with(move |servers, server, request| {
        if servers.count("write-shard") > 0 {
            servers.execute_with(|_, _, request| answer(request));
            return answer(request);
        }
        if server == by { refusal(request.op_id) } else { answer(request) }
    });
}

#[test]
fn a_write_that_one_member_refuses_is_decided_by_the_leader() {
    for member in [1, 2] {
        asks_the_leader(|servers| refuse(servers, ServerId(member), |_| Err(Error::Conflict { stamp: None })));
    }
}

#[test]
fn a_write_whose_replies_are_lost_is_decided_by_the_leader() {
    asks_the_leader(|servers| servers.next_fates([Fate::Answered, Fate::RepliesLost]));
    asks_the_leader(|servers| servers.next_fates([Fate::RepliesLost]));
}

#[test]
fn a_write_that_does_not_reach_a_member_is_decided_by_the_leader() {
    asks_the_leader(|servers| servers.next_fates([Fate::Answered, Fate::NotReached]));
}

#[test]
fn a_write_that_a_member_has_under_another_stamp_is_decided_by_the_leader() {
    let other = |op_id| Ok(Reply::Written { stamp: stamp(6, op_id), fast: None });
    asks_the_leader(|servers| refuse(servers, ServerId(2), other));
}

#[test]
fn a_silent_member_is_given_up_once_the_view_has_changed() {
    in_virtual_time(|| {
        let (servers, replicate) = first();
        allow(&replicate, shard(0));
        servers.set_fate(ServerId(2), Fate::Silent);
        servers.change_map(|map| lead(map, 0, 3));
        assert_eq!(finish(begin(&replicate, 0).unwrap()), Ok(false));
        assert_eq!(servers.take_sent().last().unwrap().server, ServerId(3));
    });
}

#[test]
fn a_permission_of_another_view_is_not_used() {
    in_virtual_time(|| {
        let (servers, replicate) = first();
        allow(&replicate, shard(0));
        servers.change_map(|map| lead(map, 0, 2));
        servers.next_fates([Fate::NotReached; 6]);
        replicate.send(&Context::default(), leader(0), get_attr(inode(0, 1))).unwrap();
        servers.take_sent();
        assert!(begin(&replicate, 0).is_none());
        assert!(servers.take_sent().is_empty());
        allow(&replicate, shard(0));
        assert_eq!(finish(begin(&replicate, 0).unwrap()), Ok(true), "the new view's leader has allowed it");
    });
}

#[test]
fn a_permission_ends_when_the_leader_has_closed_the_shard() {
    in_virtual_time(|| {
        let (servers, replicate) = first();
        allow(&replicate, shard(0));
        replicate.note_allowed(shard(0), &Reply::Written { stamp: stamp(4, OpId(5)), fast: None });
        assert!(begin(&replicate, 0).is_none());
        allow(&replicate, shard(0));
        refuse(&servers, ServerId(1), |_| Err(Error::Conflict { stamp: None }));
        let flight = begin(&replicate, 0).unwrap();
        servers.execute_with(|_, _, request| Ok(Reply::Written { stamp: stamp(6, request.op_id), fast: None }));
        assert_eq!(finish(flight), Ok(false));
        assert!(begin(&replicate, 0).is_none(), "the leader has executed the write and allows no next one");
    });
}

#[test]
fn a_write_of_unknown_outcome_leaves_no_permission() {
    in_virtual_time(|| {
        let (servers, replicate) = first();
        allow(&replicate, shard(0));
        servers.next_fates([Fate::Answered, Fate::NotReached, Fate::NotReached]);
        let flight = begin(&replicate, 0).unwrap();
        let context = Context { deadline: Some(hekate_threads::now()), ..Context::DURABLE };
        assert!(is_unavailable(&flight.finish(&context, 8, &Bytes::from_static(b"bytes"))));
        assert!(begin(&replicate, 0).is_none());
    });
}

#[test]
fn a_flight_that_is_dropped_leaves_no_permission() {
    in_virtual_time(|| {
        let (_, replicate) = first();
        allow(&replicate, shard(0));
        drop(begin(&replicate, 0).unwrap());
        assert!(begin(&replicate, 0).is_none());
    });
}

#[test]
fn short_writes_of_a_whole_view_on_several_servers_may_be_fast() {
    let eligible = |change: fn(&mut VolumeMap), bytes| {
        let mut map = hsr();
        change(&mut map);
        let servers = ScriptedServers::new(map.clone(), |_, _, request| answer(request));
        Replicate::new(servers, SESSION, map).may_be_fast(shard(0), bytes)
    };
    assert!(eligible(|_| (), 64 << 10));
    assert!(!eligible(|_| (), (64 << 10) + 1));
    assert!(!eligible(|map| map.views[0].whole = false, 1));
    assert!(!eligible(|map| map.bricks[1].server = ServerId(1), 1), "one server has both members");
    assert!(!eligible(|map| map.views[0].members.truncate(1), 1));
    for mode in [Mode::Leader, Mode::Async, Mode::Bypass] {
        let map = VolumeMap { mode, ..map() };
        let servers = ScriptedServers::new(map.clone(), |_, _, request| answer(request));
        assert!(!Replicate::new(servers, SESSION, map).may_be_fast(shard(0), 1), "{mode:?}");
    }
}

/// Overwrites a file of 1 MiB twice, and returns the labels of the requests.
fn overwrite(client: &FileClient, inode: InodeId, offset: u64, bytes: usize) -> Vec<&'static str> {
    client.servers.take_sent();
    for byte in [b'x', b'y'] {
        client.write(inode, offset, &vec![byte; bytes]).unwrap();
    }
    assert_eq!(client.content(inode)[offset as usize..][..bytes], vec![b'y'; bytes]);
    client.servers.labels()
}

#[test]
fn an_overwrite_is_fast_once_the_leader_has_allowed_it() {
    in_virtual_time(|| {
        let client = FileClient::of(hsr());
        let file = client.file_in_shards(inode(3, 1), 1 << 20);
        assert_eq!(overwrite(&client, file, 100, 5), ["write-shard", "wrote", "fast-write", "fast-write", "wrote"]);
        let sent = client.servers.take_sent();
        let wrote = DataOp::Wrote {
            inode: file,
            layout_version: 1,
            end: 105,
            reach: 105,
            drop_set_id: false,
            fast: true,
            age: 0,
        };
        assert_eq!(sent[4].request.op, Op::Data { op: wrote });
        let ids = [sent[2].request.op_id, sent[4].request.op_id].map(|op_id| op_id.0 & 0xff);
        assert_ne!(ids[0], ids[1], "each has a slot of its own");
        assert!(matches!(&sent[0].request.op, Op::Data { op: DataOp::WriteShard { fast: true, .. } }));
        let (limit, long) = (["fast-write", "fast-write", "wrote"].repeat(2), ["write-shard", "wrote"].repeat(2));
        assert_eq!(overwrite(&client, file, 0, 64 << 10), limit);
        client.servers.take_sent();
        client.write(file, (1 << 20) - 1, b"ab").unwrap();
        assert_eq!(client.servers.labels(), long[..2], "it extends the file");
        client.write(file, 0, b"ab").unwrap();
        assert_eq!(overwrite(&client, file, 0, (64 << 10) + 1), long);
    });
}

/// Each write needs two slots: for itself, and for what the inode's leader learns of it.
#[test]
fn more_fast_writes_at_once_than_slots_all_end() {
    let client = Arc::new(FileClient::of(hsr()));
    let files: Vec<InodeId> = (0..256).map(|number| client.file_in_shards(inode(3, number), 1 << 20)).collect();
    files.iter().for_each(|file| _ = client.write(*file, 0, b"first").unwrap());
    let gate = Arc::new(Gate::default());
    let closed = gate.clone();
    client.servers.take_sent();
    client.servers.execute_with(move |_, _, request| {
        if request.op.label() == "fast-write" {
            closed.pass();
        }
        answer(request)
    });
    let write = |file| {
        let client = client.clone();
        start(move || client.write(file, 0, b"other"))
    };
    let writes: Vec<_> = files.into_iter().map(write).collect();
    client.servers.wait_until(|sent| sent.len() >= 128);
    // Time for as many as possible to begin.
    hekate_threads::sleep(Duration::from_millis(100));
    gate.open();
    assert!(writes.into_iter().all(|write| write.join() == Ok(Reply::Done)));
}

#[test]
fn a_volume_of_another_mode_has_no_fast_writes() {
    in_virtual_time(|| {
        let client = FileClient::of(map());
        let file = client.file_in_shards(inode(3, 1), 1 << 20);
        assert_eq!(overwrite(&client, file, 100, 5), ["write-shard", "wrote"].repeat(2));
        let sent = client.servers.take_sent();
        assert!(matches!(&sent[0].request.op, Op::Data { op: DataOp::WriteShard { fast: false, .. } }));
    });
}

#[test]
fn after_a_fast_write_that_the_leader_decided_the_inodes_leader_is_asked_again() {
    in_virtual_time(|| {
        let client = FileClient::of(hsr());
        let file = client.file_in_shards(inode(3, 1), 1 << 20);
        client.write(file, 0, b"first").unwrap();
        client.before("fast-write", |_| Some(Err(Error::Conflict { stamp: None })));
        client.servers.take_sent();
        client.write(file, 0, b"other").unwrap();
        let labels = ["fast-write", "fast-write", "wrote", "write-shard", "wrote"];
        assert_eq!(client.servers.labels(), labels);
    });
}

#[test]
fn a_fast_write_under_a_layout_that_has_changed_is_repeated() {
    in_virtual_time(|| {
        let client = FileClient::of(hsr());
        let file = client.file_in_shards(inode(3, 1), 1 << 20);
        client.write(file, 0, b"first").unwrap();
        client.before("fast-write", move |files| {
            files.truncate(file, 0);
            Some(Err(Error::Conflict { stamp: None }))
        });
        client.write(file, 3, b"other").unwrap();
        assert_eq!(client.content(file), b"\0\0\0other");
    });
}
