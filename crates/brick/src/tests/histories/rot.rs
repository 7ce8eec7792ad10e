//! Flipped bits in the journal, behind its end, and in data files.

use super::model::*;
use super::run::{Runner, SEGMENT_BYTES, new_machine, open};
use super::steps::Step;
use crate::Lsn;
use crate::storage::PowerCutStorage;
use hekate_proto::{BLOCK_BYTES, Error};
use std::sync::Arc;

fn runner() -> Runner {
    let mut runner = Runner::new(new_machine(), Box::new(|machine| Arc::new(machine)));
    runner.open().unwrap();
    runner
}

fn take(runner: &mut Runner, steps: &[Step]) {
    steps.iter().for_each(|step| runner.step(step).unwrap());
}

/// A brick with a checkpoint and, behind it, records that were synced one by one. Returns the position of each, and the
/// log's end.
fn journal() -> (PowerCutStorage, Vec<Lsn>) {
    let mut runner = runner();
    let put = |name| Step::Put { partition: 0, name, bytes: 50 };
    take(&mut runner, &[put(0), Step::Write { shard: 0, first: 0, count: 1, short: 0 }, Step::Checkpoint]);
    let mut begins = vec![runner.end];
    let more = [
        put(1),
        Step::Delete { partition: 0, name: 1 },
        Step::Write { shard: 0, first: 0, count: 1, short: 0 },
        Step::Cut { shard: 0, bytes: 0 },
        put(2),
    ];
    for step in more {
        take(&mut runner, &[step, Step::Sync]);
        begins.push(runner.end);
    }
    (runner.machine.copy(), begins)
}

#[test]
fn rot_in_the_synced_journal_is_refused_with_its_place_and_a_torn_tail_is_cut() {
    let (machine, begins) = journal();
    let (last, end) = (begins[begins.len() - 2], begins[begins.len() - 1]);
    for at in begins[0].0..end.0 {
        // Some bytes of a block.
        if (begins[2].0 + 400..begins[3].0).contains(&at) && at % 29 != 0 {
            continue;
        }
        let damaged = machine.copy();
        damaged.flip_bits("journal/segment-001", at % SEGMENT_BYTES, 1 << (at % 8));
        let opened = open(Arc::new(damaged), true);
        let record = begins.iter().rev().find(|begin| begin.0 <= at).unwrap();
        if at >= last.0 {
            // No later record shows that it had been synced.
            let (brick, report) = opened.unwrap();
            assert_eq!((report.end, report.records), (last, begins.len() as u64 - 2), "bit {at}");
            assert_eq!(brick.get(&key(0, "n2")).unwrap(), None);
            continue;
        }
        let Err(Error::Damaged { what }) = opened.map(|_| ()) else { panic!("byte {at} was not missed") };
        let place = format!("journal/segment-001 at offset {}:", record.0 % SEGMENT_BYTES);
        assert!(what.starts_with(&place), "byte {at}: {what}, not {place}");
    }
}

/// All blocks of shard 0 can be read but `damaged_block`, which is reported as damaged.
fn only_this_is_damaged(machine: PowerCutStorage, damaged_block: u32, blocks: u32) {
    let (brick, report) = open(Arc::new(machine), true).unwrap();
    assert_eq!(report.lost, []);
    for block in 0..blocks {
        let read = brick.read_shard(RING, shard_of(0), block * B, B);
        match read {
            Err(Error::Damaged { what }) => {
                assert!(block == damaged_block && what.contains(&format!("block {block} ")))
            }
            Ok(bytes) => assert!(block != damaged_block && bytes.len() == BLOCK_BYTES),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn rot_in_a_data_file_is_damage_of_that_block_alone() {
    const BLOCKS: u32 = 5;
    let fresh = Step::Fresh { shard: 0, gap: 0, count: BLOCKS, short: 0 };
    // Blocks that a mark covers, and blocks that a checkpoint covers.
    for durable in [Step::SyncShards { shards: 1 }, Step::Checkpoint] {
        let mut runner = runner();
        take(&mut runner, &[fresh.clone(), durable]);
        let path = runner.machine.paths().into_iter().find(|path| path.starts_with("data/")).unwrap();
        for at in (0..u64::from(BLOCKS * B)).step_by(509) {
            let damaged = runner.machine.copy();
            damaged.flip_bits(&path, at, 1 << (at % 8));
            only_this_is_damaged(damaged, at as u32 / B, BLOCKS);
        }
    }
}

#[test]
fn a_wrong_fresh_block_above_the_mark_is_lost_and_a_hole() {
    let mut runner = runner();
    take(&mut runner, &[Step::Fresh { shard: 0, gap: 0, count: 3, short: 0 }, Step::Sync]);
    let path = runner.machine.paths().into_iter().find(|path| path.starts_with("data/")).unwrap();
    runner.machine.flip_bits(&path, u64::from(B) + 77, 4);
    let (brick, report) = open(Arc::new(runner.machine.copy()), true).unwrap();
    assert_eq!(report.lost.iter().map(|lost| lost.block).collect::<Vec<_>>(), [1]);
    let bytes = brick.read_shard(RING, shard_of(0), 0, 3 * B).unwrap();
    let zeros: Vec<bool> = bytes.chunks(BLOCK_BYTES).map(|block| block.iter().all(|byte| *byte == 0)).collect();
    assert_eq!(zeros, [false, true, false]);
}
