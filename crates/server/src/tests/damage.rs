//! Blocks that rot on one replica or on both.

use super::*;

/// A shard with 16 blocks on both members, at home, and who these are.
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
    let (volume, session, map) = served.node.open(Peer::Secret, "v", None).unwrap();
    let map: map::VolumeMap = serde_json::from_str(&map).unwrap();
    let partition = shard.position().partition(map.views.len() as u32);
    let target = Target::Partition { ring, partition, epoch: map.view(partition).unwrap().epoch };
    let op = Op::Data { op: DataOp::ReadShard { data: shard.data, index: 0, offset: 0, length: 1 << 20 } };
    let request = Request { volume, target, session, op_id: OpId(0), durable: false, retry: false, op };
    let reply = served.node.call(session, vec![request]).pop().unwrap().unwrap();
    let answered = format!("{reply:?}");
    assert!(!answered.contains("238") && answered.len() > bytes.len(), "the good copy's bytes");
    assert_eq!(members[0].read_shard(ring, shard, 0, 1 << 20).unwrap(), bytes, "mended");
    served.node.checkpoint_all().unwrap();
    assert_eq!(members[0].read_home(shard, 5).unwrap(), bytes[..BLOCK_BYTES], "on the disk too");
}

#[test]
fn a_scrub_finds_and_mends_what_nobody_reads() {
    let served = Served::new("scrubbed");
    served.node.stop_housekeeping();
    let (ring, shard, bytes, members) = shard_at_home(&served);
    let rotten = &members[1];
    rot(&served, rotten, shard, 0);
    rot(&served, rotten, shard, 15 * BLOCK_BYTES as u64);
    // On both: nobody has the bytes any more.
    members.iter().for_each(|member| rot(&served, member, shard, 9 * BLOCK_BYTES as u64));
    served.node.scrubs.ask(rotten.id(), None);
    let pass = || served.node.scrubs.show(rotten.id());
    while pass()["state"] == "runs" {
        crate::scrub::round(&served.node).unwrap();
    }
    let last = pass()["last"].clone();
    assert_eq!((&last["mended"], &last["damaged"]), (&2.into(), &1.into()), "{last}");
    assert!(last["damage"][0].as_str().unwrap().contains("block 9"), "{last}");
    assert_eq!(served.node.scrubs.damaged(), 1);
    let block = |number: usize| rotten.read_shard(ring, shard, (number * BLOCK_BYTES) as u32, BLOCK_BYTES as u32);
    assert_eq!(block(0).unwrap(), bytes[..BLOCK_BYTES]);
    assert_eq!(block(15).unwrap(), bytes[..BLOCK_BYTES]);
    assert!(matches!(block(9), Err(Error::Damaged { .. })), "never zeros, never a guess");
}
