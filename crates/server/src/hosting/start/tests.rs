//! A server whose machine has restarted compares its replicas before it serves; a start does not wait for its clients.

use crate::tests::Served;
use crate::{Node, NodeSettings};
use bytes::Bytes;
use hekate_brick::{Brick, LogEntry, LogPosition, block_checksum};
use hekate_cluster::VolumeInfo;
use hekate_proto::*;
use hekate_threads::{elapsed, now};
use hekate_transport::{Peer, Service};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const NUMBER: PartitionNumber = PartitionNumber(0);

/// The bricks of a partition's members, the leader's first.
fn members(node: &Node) -> (RingId, u32, Vec<Arc<Brick>>) {
    let ring = node.ring(node.cluster.registry().volume("v").unwrap().unwrap().ring).unwrap();
    (ring.ring, ring.count(), ring.members(NUMBER).unwrap())
}

/// Appends a record to the logs of both members, which differs in what it changes.
fn append(node: &Node, changes: [Change; 2]) {
    let (ring, _, members) = members(node);
    for (brick, change) in members.iter().zip(changes) {
        let LogPosition { epoch, sequence } = brick.position(ring, NUMBER);
        let (sequence, changes) = (Sequence(sequence.0 + 1), vec![change]);
        let (session, op_id) = (SYSTEM_SESSION, OpId(0));
        brick
            .append(&LogEntry::new(Record { ring, partition: NUMBER, epoch, sequence, session, op_id, changes }))
            .unwrap();
    }
}

/// Lets the bricks appear to have been opened before the machine's last boot.
fn reboot(directory: &Path) {
    for brick in 1..=3 {
        let path = directory.join(format!("b{brick}/life.toml"));
        let life = std::fs::read_to_string(&path).unwrap();
        let other = life.lines().map(|line| if line.starts_with("boot") { "boot = \"another\"" } else { line });
        std::fs::write(&path, other.collect::<Vec<_>>().join("\n")).unwrap();
    }
}

#[test]
fn an_entry_that_differs_is_made_even_after_a_restart_of_the_machine() {
    let served = Served::new("compared");
    served.node.stop_housekeeping();
    let (ring, count, _) = members(&served.node);
    let volume = served.node.cluster.registry().volume("v").unwrap().unwrap().volume;
    let position = NUMBER.first_position(count);
    let key = Key::name(KeyPrefix { ring, position, volume }, InodeId::new(position.0, 5, 77), b"flipped");
    let put = |value: &'static str| Change::Put { key: key.clone(), value: Bytes::from_static(value.as_bytes()) };
    append(&served.node, [put("as it was"), put("as it wbs")]);
    let held = |node: &Node| members(node).2.iter().map(|brick| brick.get(&key).unwrap()).collect::<Vec<_>>();
    // Only the process was killed: the page cache has what it wrote.
    let served = served.restart();
    assert_ne!(held(&served.node)[0], held(&served.node)[1], "nothing was compared");
    reboot(&served.directory);
    let served = served.restart();
    let wanted = Some(Bytes::from_static(b"as it was"));
    assert_eq!(held(&served.node), [wanted.clone(), wanted], "as the leader had it");
}

#[test]
fn a_server_whose_replicas_differ_in_shards_does_not_start() {
    let served = Served::new("differing");
    served.node.stop_housekeeping();
    let (_, count, bricks) = members(&served.node);
    let volume = served.node.cluster.registry().volume("v").unwrap().unwrap().volume;
    let shard = |index| ShardId { volume, data: DataId(9), index };
    let shard = (0..).map(shard).find(|shard| shard.position().partition(count) == NUMBER).unwrap();
    let write = |count: u64| {
        let bytes = Bytes::from(vec![7; BLOCK_BYTES]);
        let run = BlockRun { first: 0, checksums: vec![block_checksum(shard, 0, &bytes)] };
        let stamp = Stamp { count, session: SessionId(1), op: OpId(1) };
        let record = ShardRecord { stamp, length: BLOCK_BYTES as u32, home_blocks: 1, reserved_blocks: 0 };
        Change::WriteBlocks { shard, record, run, bytes }
    };
    append(&served.node, [write(1), write(2)]);
    let ids: Vec<String> = bricks.iter().map(|brick| brick.id().text()).collect();
    drop(bricks);
    reboot(&served.directory);
    let directory = served.stopped();
    let refused = Node::start(&NodeSettings { state: directory.clone(), without: Vec::new() }, &|_| ())
        .err()
        .expect("it serves")
        .to_string();
    for word in ["partition 0 of ring", &ids[0], &ids[1], "shards", "hekate debug compare"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A crash may come between the record of a new volume and its root. The root is a change, so it waits for the sessions of
/// the other volumes of its ring.
#[test]
fn a_server_starts_though_a_missing_root_waits_for_its_clients() {
    let served = Served::new("rootless");
    served.node.stop_housekeeping();
    let (_, session, _) = served.node.open(&Peer::Local { uid: 0 }, "v", None).unwrap();
    let volume = served.node.cluster.registry().volume("v").unwrap().unwrap();
    let rootless = VolumeInfo { volume: VolumeId(0), name: "w".into(), ..volume };
    let rootless = served.node.cluster.registry().create_volume(rootless).unwrap();
    let served = served.restart();
    served.node.end_session(session).unwrap();
    served.node.wake_records();
    let key = Key::inode(rootless.ring, rootless.volume, ROOT, Kind::Inode);
    let since = now();
    while members(&served.node).2[0].get(&key).unwrap().is_none() {
        assert!(elapsed(since) < Duration::from_secs(20), "the root is not made");
        hekate_threads::sleep(Duration::from_millis(10));
    }
}
