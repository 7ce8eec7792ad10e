//! Damaged blocks on one replica or on both.

use super::*;
use hekate_brick::Finding;
use hekate_control::brick::{BrickState, ScrubState};
use hekate_control::peer::Repaired;

/// Writes 16 blocks of a shard, which a checkpoint has written home, and returns the bricks of both members.
fn shard_at_home(served: &Served) -> (RingId, ShardId, Bytes, Vec<Arc<Brick>>) {
    let (ring, shard, bytes) = write_shard(served);
    served.node.checkpoint_all().unwrap();
    let members = ring.members(shard.position().partition(ring.count())).unwrap();
    (ring.ring, shard, bytes, members)
}

fn rot(served: &Served, brick: &Brick, shard: ShardId, byte: u64) {
    use std::os::unix::fs::FileExt;
    let path = served.directory.join(format!("b{}", brick.id().0)).join(hekate_brick::data_file_path(shard));
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0xEE; 3], byte).unwrap();
}

#[test]
fn a_bad_copy_is_answered_from_a_good_one_and_mended() {
    let served = Served::new("mended");
    let (ring, shard, bytes, members) = shard_at_home(&served);
    rot(&served, &members[0], shard, 5 * BLOCK_BYTES as u64 + 9);
    assert!(matches!(members[0].read_shard(ring, shard, 0, 1 << 20), Err(Error::Damaged { .. })));
    let (volume, session, map) = served.node.open(&Peer::Local { uid: 0 }, "v", None).unwrap();
    let map: map::VolumeMap = serde_json::from_str(&map).unwrap();
    let partition = shard.position().partition(map.views.len() as u32);
    let target = Target::Partition { ring, partition, epoch: map.view(partition).unwrap().epoch };
    let op = Op::Data { op: DataOp::ReadShard { data: shard.data, index: 0, offset: 0, length: 1 << 20 } };
    let request = Request { volume, target, session, op_id: OpId(0), durable: false, retry: false, pledge: false, op };
    let reply = served.node.call(session, vec![request]).pop().unwrap().unwrap();
    let answered = format!("{reply:?}");
    assert!(!answered.contains("238") && answered.len() > bytes.len(), "the good copy's bytes");
    assert_eq!(members[0].read_shard(ring, shard, 0, 1 << 20).unwrap(), bytes, "mended");
    served.node.checkpoint_all().unwrap();
    assert_eq!(members[0].read_home(shard, 5).unwrap(), bytes[..BLOCK_BYTES], "on the disk too");
}

#[test]
fn a_scrub_finds_and_repairs_damage_that_no_read_has_met() {
    let served = Served::new("scrubbed");
    served.node.stop_housekeeping();
    let (ring, shard, bytes, members) = shard_at_home(&served);
    let rotten = &members[1];
    rot(&served, rotten, shard, 0);
    rot(&served, rotten, shard, 15 * BLOCK_BYTES as u64);
    // On both members: no replica has the bytes any more.
    members.iter().for_each(|member| rot(&served, member, shard, 9 * BLOCK_BYTES as u64));
    served.node.maintenance.scrubs().ask(rotten.id(), None);
    let pass = || served.node.maintenance.scrubs().show(rotten.id());
    while pass().state == ScrubState::Runs {
        crate::maintenance::scrub::round(&served.node).unwrap();
    }
    let last = pass().last.unwrap().pass;
    assert_eq!((last.mended, last.damaged), (2, 1), "{last:?}");
    assert!(last.damage.first().unwrap().contains("block 9"), "{last:?}");
    assert_eq!(served.node.maintenance.damages().count(), 1);
    let block = |number: usize| rotten.read_shard(ring, shard, (number * BLOCK_BYTES) as u32, BLOCK_BYTES as u32);
    assert_eq!(block(0).unwrap(), bytes[..BLOCK_BYTES]);
    assert_eq!(block(15).unwrap(), bytes[..BLOCK_BYTES]);
    assert!(matches!(block(9), Err(Error::Damaged { .. })), "never zeros, never a guess");
}

#[test]
fn damage_on_a_brick_that_its_view_left_out_does_not_count_as_gone() {
    let served = Served::new("left-out");
    served.node.stop_housekeeping();
    let (ring, shard, bytes, members) = shard_at_home(&served);
    let (hosted, rotten) = (served.node.ring(ring).unwrap(), &members[1]);
    let at = shard.position().partition(hosted.count());
    let repair = |block: u32| {
        rot(&served, rotten, shard, u64::from(block) * BLOCK_BYTES as u64);
        crate::maintenance::repair::repair(&served.node, rotten, &Finding::Block { ring, shard, block })
    };
    assert_eq!(repair(1).unwrap(), Repaired::Yes, "a member's");
    let mut info = served.node.cluster.registry().ring(ring).unwrap().unwrap();
    let view = &mut info.views[at.0 as usize];
    view.epoch = Epoch(view.epoch.0 + 1);
    view.members.retain(|member| member.brick != rotten.id());
    assert!(hosted.take_views(&info, |_, _| ()));
    let outcome = repair(0);
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    assert_eq!(served.node.maintenance.damages().count(), 1);
    assert!(rotten.read_block(ring, shard, 0).is_err(), "as it was");
    assert_eq!(rotten.read_block(ring, shard, 1).unwrap().unwrap(), bytes[..BLOCK_BYTES]);
}

fn read(served: &Served, shard: ShardId) -> Result<Reply> {
    let (volume, session, map) = served.node.open(&Peer::Local { uid: 0 }, "v", None).unwrap();
    let map: map::VolumeMap = serde_json::from_str(&map).unwrap();
    let partition = shard.position().partition(map.views.len() as u32);
    let epoch = map.view(partition).unwrap().epoch;
    let target =
        Target::Partition { ring: served.node.cluster.registry().volume("v").unwrap().unwrap().ring, partition, epoch };
    let op = Op::Data { op: DataOp::ReadShard { data: shard.data, index: 0, offset: 0, length: 1 << 20 } };
    let request = Request { volume, target, session, op_id: OpId(0), durable: false, retry: false, pledge: false, op };
    served.node.call(session, vec![request]).pop().unwrap()
}

#[test]
fn damage_that_a_read_meets_is_counted_until_it_is_overwritten() {
    let served = Served::new("met-by-a-read");
    served.node.stop_housekeeping();
    let (ring, shard, bytes, members) = shard_at_home(&served);
    members.iter().for_each(|member| rot(&served, member, shard, 9 * BLOCK_BYTES as u64));
    for _ in 0..2 {
        assert!(matches!(read(&served, shard), Err(Error::Damaged { .. })), "never zeros, never a guess");
        assert_eq!(served.node.maintenance.damages().count(), 1, "each block once, however often it is read");
    }
    served.node.maintenance.damages().round(&served.node.bricks);
    let report = crate::control::own_report(&served.node);
    assert_eq!(report.damaged, 1);
    let item = &report.damage[0];
    assert_eq!((item.volume.as_str(), item.directory.is_some()), ("v", true), "{item:?}");
    assert!(item.what.contains("block 9 of data/"), "{item:?}");
    assert!(crate::reports::metrics::page(&served.node).contains("hekate_damaged 1"));
    let again = served.node.ring(ring).unwrap();
    let write = DataOp::WriteShard { data: shard.data, index: 0, offset: 0, bytes, follow: None, fast: false };
    execute(&served, &again, shard.position().partition(again.count()), Op::Data { op: write });
    served.node.maintenance.damages().round(&served.node.bricks);
    assert_eq!(served.node.maintenance.damages().count(), 0, "overwritten");
    assert!(read(&served, shard).is_ok());
}

#[test]
fn a_stopped_brick_is_reported_with_its_cause() {
    let served = Served::new("called-stopped");
    let stopped = [BrickId(1), BrickId(2)];
    for id in stopped {
        served.node.bricks.get(&id).unwrap().poison(&Error::Io { what: "fdatasync of the journal: EIO".into() });
        assert!(
            served.node.bricks.get(&id).unwrap().stopped().unwrap().contains(&id.text()),
            "the cause names its brick"
        );
    }
    let report = crate::control::own_report(&served.node);
    let rows: Vec<_> = report.bricks.iter().filter(|row| row.state == BrickState::Stopped).collect();
    assert_eq!(rows.len(), 2, "{report:?}");
    let names_cause = |reason: &Option<String>| reason.as_ref().unwrap().contains("fdatasync of the journal");
    assert!(rows.iter().all(|row| names_cause(&row.reason)), "{rows:?}");
}

/// The server died after the replicas had agreed on lost blocks, and before their list was cleared.
#[test]
fn blocks_that_were_written_since_they_were_lost_stay() {
    let served = Served::new("lost-before");
    let (ring, shard, bytes, members) = shard_at_home(&served);
    let lost = |block, brick: &Arc<Brick>| (hekate_brick::LostBlock { ring, shard, block }, brick.id());
    let all = (0..16).flat_map(|block| members.iter().map(move |brick| lost(block, brick))).collect();
    crate::hosting::start::record_lost(served.node.cluster.registry(), &all).unwrap();
    let ids: Vec<BrickId> = members.iter().map(|brick| brick.id()).collect();
    drop(members);
    let served = served.restart();
    for id in ids {
        let brick = served.node.bricks.get(&id).unwrap();
        assert_eq!(brick.read_shard(ring, shard, 0, 1 << 20).unwrap(), bytes, "on brick {id:?}");
    }
}
