//! The machine with IO that ends in any order, or never: what it reported as written and stable holds after the death
//! of the process and after a power cut.

use super::*;
use crate::storage::MemoryStorage;
use crate::tests::support::{RING, identity_with, new_storage_with, shard};
use crate::{Brick, block_checksum};

const SEGMENT: u64 = 64 << 10;

/// Random numbers from a seed (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn open(storage: &MemoryStorage, after_power_cut: bool) -> Brick {
    Brick::open_on(std::sync::Arc::new(storage.clone()), &identity_with(SEGMENT), Incarnation(1), after_power_cut)
        .unwrap()
        .0
}

/// A random run. Record n of the run puts the key n, in any partition.
struct Run {
    brick: Brick,
    storage: MemoryStorage,
    dice: Dice,
    flying: Vec<(IoId, Io)>,
    /// The end of each record of the run.
    ends: Vec<Lsn>,
    writes: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let storage = new_storage_with(SEGMENT);
        let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self { brick: open(&storage, false), storage, dice, flying: Vec::new(), ends: Vec::new(), writes: 0 }
    }

    fn key(number: usize) -> Key {
        let place = KeyPrefix { ring: RING, position: Position(0), volume: VolumeId(1) };
        Key::name(place, ROOT, format!("{number:06}").as_bytes())
    }

    fn changes(&mut self) -> Vec<Change> {
        let filler = vec![7u8; self.dice.below(3000) as usize];
        let mut changes = vec![Change::Put { key: Self::key(self.ends.len()), value: filler.into() }];
        if self.dice.below(3) == 0 {
            self.writes += 1;
            let first = self.dice.below(30) as u32;
            let bytes = vec![self.writes as u8; BLOCK_BYTES];
            let stamp = Stamp { count: self.writes, session: SessionId(1), op: OpId(1) };
            let record = ShardRecord { stamp, length: 30 * BLOCK_BYTES as u32, home_blocks: 30, reserved_blocks: 0 };
            let run = BlockRun { first, checksums: vec![block_checksum(shard(0), first, &bytes)] };
            changes.push(Change::WriteBlocks { shard: shard(0), record, run, bytes: bytes.into() });
        }
        changes
    }

    fn append(&mut self) {
        let partition = PartitionNumber(self.dice.below(3) as u32);
        let changes = self.changes();
        let mut machine = self.brick.machine.write();
        let sequence = Sequence(machine.state().position(RING, partition).sequence.0 + 1);
        let (epoch, session, op_id) = (Epoch(1), SessionId(1), OpId(sequence.0));
        let entry = LogEntry::new(Record { ring: RING, partition, epoch, sequence, session, op_id, changes });
        let mut step = machine.append(&entry).unwrap();
        if let Append::NeedShards(shards) = step {
            shards.iter().for_each(|(_, shard)| machine.supply_shard(*shard, Before::Is(None)));
            step = machine.append(&entry).unwrap();
        }
        if let Append::At { end, io } = step {
            self.flying.extend(io);
            self.ends.push(end);
        }
    }

    fn sync(&mut self) {
        if self.flying.iter().any(|(_, io)| matches!(io, Io::SyncJournal { .. })) {
            return;
        }
        let begun = self.brick.machine.write().sync().unwrap();
        self.flying.extend(begun);
    }

    fn checkpoint(&mut self) {
        let next = self.brick.machine.write().checkpoint().unwrap();
        match next {
            Next::Do(id, io) => self.flying.push((id, io)),
            Next::Sync(_) => self.sync(),
            Next::Wait | Next::Done => {}
        }
    }

    /// Ends one of the IOs in flight.
    fn end_one(&mut self) {
        if self.flying.is_empty() {
            return;
        }
        let at = self.dice.below(self.flying.len() as u64) as usize;
        let (id, io) = self.flying.swap_remove(at);
        let outcome = self.brick.disk.perform(&io, &[]);
        self.brick.machine.write().done(id, outcome).unwrap();
    }

    fn step(&mut self) {
        match self.dice.below(12) {
            0..3 => self.append(),
            3 => self.sync(),
            4 => drop(self.brick.machine.write().begin_checkpoint().unwrap()),
            5..7 => self.checkpoint(),
            _ => self.end_one(),
        }
    }

    /// Checks that the records that end at or before `upto` are there, in order and without a gap.
    fn check(&self, storage: &MemoryStorage, after_power_cut: bool, upto: Lsn, what: &str) {
        let at_least = self.ends.iter().filter(|end| **end <= upto).count();
        let opened = Brick::open_on(
            std::sync::Arc::new(storage.clone()),
            &identity_with(SEGMENT),
            Incarnation(1),
            after_power_cut,
        );
        let brick = opened.unwrap_or_else(|error| panic!("{what}: {error}")).0;
        let found = brick.scan(&Self::key(0), &Self::key(999_999), 1_000_000).unwrap();
        let numbers: Vec<Key> = found.into_iter().map(|(key, _)| key).collect();
        assert!(numbers.len() >= at_least, "{what}: {} of {at_least} records", numbers.len());
        assert_eq!(numbers, (0..numbers.len()).map(Self::key).collect::<Vec<_>>(), "{what}: a gap");
        brick.read_shard(RING, shard(0), 0, 1 << 22).unwrap();
    }
}

/// Seeds of the runs: `HEKATE_RUNS` of them, beginning with `HEKATE_RUN`.
fn runs() -> std::ops::RangeInclusive<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let first = number("HEKATE_RUN").unwrap_or(1);
    first..=first + number("HEKATE_RUNS").unwrap_or(150) - 1
}

#[test]
fn io_may_end_in_any_order_and_never() {
    // The last four check that no record claims stable storage for an end record that is not written yet.
    for seed in runs().chain([999, 6031, 10_163, 15_329]) {
        let mut run = Run::new(seed);
        for _ in 0..400 {
            run.step();
            if run.dice.below(40) == 0 {
                let stable = run.brick.machine.read().stable();
                run.check(&run.storage.after_power_cut(), true, stable, &format!("seed {seed}, power cut"));
            }
        }
        let written = run.brick.machine.read().written();
        run.check(&run.storage.copy(), false, written, &format!("seed {seed}, killed"));
    }
}

#[test]
fn nothing_is_acknowledged_after_an_io_that_failed() {
    for seed in 1..=40 {
        let mut run = Run::new(seed);
        (0..100).for_each(|_| run.step());
        run.append();
        let (id, _) = run.flying.pop().unwrap();
        let mut machine = run.brick.machine.write();
        let before = (machine.written(), machine.stable());
        let failed = Err(Error::Io { what: "the disk is gone".into() });
        assert!(matches!(machine.done(id, failed), Err(Error::Poisoned { .. })));
        for (id, _) in run.flying.drain(..) {
            assert!(
                matches!(machine.done(id, Ok(())), Err(Error::Poisoned { .. })),
                "IO that was in flight no longer counts"
            );
        }
        assert_eq!((machine.written(), machine.stable()), before, "seed {seed}");
        assert!(machine.sync().is_err() && machine.begin_checkpoint().is_err() && machine.mark().is_err());
        assert!(machine.done(id, Ok(())).is_err(), "an IO ends once");
    }
}

#[test]
fn a_checkpoint_pauses_only_while_it_will_end_before_the_journal_is_65_percent_full() {
    let mut run = Run::new(1);
    run.append();
    let mut machine = run.brick.machine.write();
    machine.begin_checkpoint().unwrap();
    // 65 % of four segments are 170,393 bytes: from `begin` 100,000 bytes are left, and 100 blocks have to be written.
    let begin = 70_393;
    let mut is_ahead = |step, begin, grown, written| {
        machine.log.end = Lsn(machine.log.oldest * SEGMENT + begin + grown);
        let running = machine.running.as_mut().unwrap();
        (running.step, running.fill_at_begin, running.blocks_written) = (step, begin, written);
        running.frozen = std::sync::Arc::new(Overlay { pending_blocks: 100, ..Overlay::default() });
        machine.checkpoint_is_ahead()
    };
    let writing = checkpoint::Step::Home;
    for (grown, written, ahead) in
        [(0, 0, false), (0, 1, true), (50_000, 50, false), (50_000, 51, true), (100_000, 99, false)]
    {
        assert_eq!(is_ahead(writing, begin, grown, written), ahead, "{grown} bytes appended, {written} blocks written");
    }
    assert!(!is_ahead(writing, 200_000, 0, 50), "it begins late");
    assert!(!is_ahead(checkpoint::Step::SyncHome, begin, 0, 100), "syncs and the index do not pause");
}

#[test]
fn neighbours_go_home_together_64_blocks_at_a_time() {
    let mut run = Run::new(1);
    run.append();
    let mut machine = run.brick.machine.write();
    machine.begin_checkpoint().unwrap();
    let mut overlay = Overlay::default();
    let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(1) };
    overlay.shard(
        RING,
        shard(0),
        Before::Is(Some(ShardRecord { stamp, length: 0, home_blocks: 300, reserved_blocks: 0 })),
    );
    (1..101).chain(200..202).for_each(|block| overlay.set_pending(shard(0), block, Bytes::new()));
    machine.running.as_mut().unwrap().frozen = std::sync::Arc::new(overlay);
    machine.log.stable = machine.log.end;
    let mut runs = Vec::new();
    while let Next::Do(_, Io::WriteHome { first, blocks, .. }) = machine.checkpoint().unwrap() {
        runs.push((first, blocks.len()));
    }
    assert_eq!(runs, [(1, 64), (65, 36), (200, 2)]);
}
