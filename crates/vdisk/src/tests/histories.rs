//! Random histories against arrays of bytes, with sessions that end in the middle of any change.

use super::*;
use crate::Change;
use crate::scrub::{Throttle, scrub};
use hekate_proto::Error;
use std::collections::BTreeMap;

const BLOCK: usize = 4096;
/// Blocks of the vDisk, and some bytes.
const SIZE: usize = 600 * BLOCK + 512;

/// xorshift64
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }
}

/// What a vDisk has to be.
#[derive(Clone)]
struct Expected {
    bytes: Vec<u8>,
    /// Changes that failed in the middle: each of their blocks may be old or new.
    doubtful: Vec<Vec<u8>>,
    /// What it was since the last flush.
    unflushed: Vec<Vec<u8>>,
    snapshots: BTreeMap<String, Vec<u8>>,
}

struct History {
    /// Power is lost with sessions: what was not flushed may be gone.
    loses: bool,
    random: Random,
    memory: Memory,
    disks: BTreeMap<String, Expected>,
    /// Snapshots that are open: vDisk, name.
    readers: Vec<(String, String, Disk)>,
    trace: Vec<String>,
    count: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.next();
        Self {
            loses: false,
            random,
            memory: Memory::default(),
            disks: BTreeMap::new(),
            readers: Vec::new(),
            trace: Vec::new(),
            count: 0,
        }
    }

    fn catalogue(&mut self) -> Catalogue {
        let seed = self.random.next();
        catalogue(&self.memory, seed)
    }

    fn run(&mut self, steps: u64, crashes: bool) {
        let catalogue = self.catalogue();
        catalogue.create("d", SIZE as u64, Durability::Replicated, Vec::new()).unwrap();
        let empty =
            Expected { bytes: vec![0; SIZE], doubtful: Vec::new(), unflushed: Vec::new(), snapshots: BTreeMap::new() };
        self.disks.insert("d".into(), empty);
        let mut steps_left = steps;
        while steps_left > 0 {
            self.memory.calm();
            let catalogue = self.catalogue();
            let names: Vec<String> = self.disks.keys().cloned().collect();
            let name = names[self.random.below(names.len() as u64) as usize].clone();
            let disk = Disk::open(&catalogue, &name, "test", SMALL).unwrap();
            self.settle(&name, &disk);
            if crashes {
                let after = self.random.below(60);
                self.memory.end_after(after);
                self.trace.push(format!("ends after {after} changes"));
            }
            let several = self.random.below(25) + 1;
            for _ in 0..several.min(steps_left) {
                steps_left -= 1;
                if let Err(error) = self.step(&catalogue, &name, &disk) {
                    assert_eq!(error, Error::SessionEnded, "{:#?}", self.trace);
                    break;
                }
            }
            self.memory.calm();
            if !disk.has_ended() {
                self.check(&name, &disk);
                if self.random.below(3) > 0 {
                    disk.close().unwrap();
                    self.disks.get_mut(&name).unwrap().unflushed.clear();
                } else {
                    self.trace.push("is given up without a word".into());
                }
            }
            if self.loses && disk.has_ended() {
                self.trace.push("power is lost".into());
                let mut coin = Random(self.random.next() | 1);
                let odds = self.random.below(4);
                self.memory.lose_unsynced(|| coin.below(3) < odds);
                for expected in self.disks.values_mut() {
                    let unflushed = std::mem::take(&mut expected.unflushed);
                    expected.doubtful.extend(unflushed);
                }
            }
            if let Some(holder) = self.catalogue().info(&name).unwrap().holder {
                self.memory.end(holder.session);
            }
            self.check_snapshots();
        }
        self.end();
    }

    /// Decides what a change that failed has left.
    fn settle(&mut self, name: &str, disk: &Disk) {
        let found = disk.read(0, SIZE as u32).unwrap();
        let expected = self.disks.get_mut(name).unwrap();
        for (at, now) in found.chunks(BLOCK).enumerate() {
            let range = at * BLOCK..at * BLOCK + now.len();
            let is_known = expected.bytes[range.clone()] == *now;
            let is_possible = expected.doubtful.iter().any(|bytes| bytes[range.clone()] == *now);
            assert!(is_known || is_possible, "block {at} of {name}: {} {:#?}", now[0], self.trace);
        }
        expected.bytes = found.to_vec();
        expected.doubtful.clear();
        expected.unflushed.clear();
    }

    fn check(&mut self, name: &str, disk: &Disk) {
        let found = disk.read(0, SIZE as u32).unwrap();
        let expected = &self.disks[name].bytes;
        let wrong = found.chunks(BLOCK).zip(expected.chunks(BLOCK)).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{name}: {:#?}", self.trace);
    }

    fn check_snapshots(&mut self) {
        let catalogue = self.catalogue();
        for (name, expected) in &self.disks {
            for (snapshot, bytes) in &expected.snapshots {
                let disk = Disk::open_snapshot(&catalogue, name, snapshot, SMALL).unwrap();
                assert_eq!(disk.read(0, SIZE as u32).unwrap(), *bytes, "{name}@{snapshot} {:#?}", self.trace);
                // It stays open while scrubs move its blocks.
                self.readers.retain(|(of, _, _)| self.disks.contains_key(of));
                if self.readers.len() < 3 {
                    self.readers.push((name.clone(), snapshot.clone(), disk));
                }
            }
        }
        for (name, snapshot, disk) in &self.readers {
            if let Some(bytes) = self.disks[name].snapshots.get(snapshot) {
                assert_eq!(disk.read(0, SIZE as u32).unwrap(), *bytes, "{name}@{snapshot} {:#?}", self.trace);
            }
        }
    }

    fn range(&mut self) -> (u64, u64) {
        let length = match self.random.below(4) {
            0 => 512,
            1 => 4096,
            2 => 512 * (self.random.below(40) + 1),
            _ => 4096 * (self.random.below(30) + 1),
        };
        let places = if self.random.below(2) == 0 { 80 } else { SIZE as u64 / 512 };
        let align = if self.random.below(2) == 0 { 4096 } else { 512 };
        let offset = (self.random.below(places) * 512 / align * align).min(SIZE as u64 - 512);
        (offset, length.min(SIZE as u64 - offset))
    }

    fn changes(&mut self, bytes: &mut [u8]) -> Vec<Change> {
        let count = self.random.below(4) + 1;
        (0..count)
            .map(|_| {
                let (offset, mut length) = self.range();
                self.count += 1;
                let fill = (self.count % 255 + 1) as u8;
                if self.random.below(4) == 0 {
                    if self.random.below(4) == 0 {
                        length = (length * 40).min(SIZE as u64 - offset);
                    }
                    bytes[offset as usize..(offset + length) as usize].fill(0);
                    return Change::Zero { offset, length };
                }
                bytes[offset as usize..(offset + length) as usize].fill(fill);
                Change::Write { offset, data: vec![fill; length as usize].into() }
            })
            .collect()
    }

    fn step(&mut self, catalogue: &Catalogue, name: &str, disk: &Disk) -> Result<(), Error> {
        self.count += 1;
        let mut bytes = self.disks[name].bytes.clone();
        match self.random.below(30) {
            0 => {
                let snapshot = format!("s{}", self.count);
                self.trace.push(format!("{name}: snapshot {snapshot}"));
                disk.snapshot(&snapshot, Vec::new())?;
                self.disks.get_mut(name).unwrap().snapshots.insert(snapshot, bytes);
            }
            1 => {
                let Some((snapshot, bytes)) = self.any_snapshot(name) else { return Ok(()) };
                self.trace.push(format!("{name}: back to {snapshot}"));
                self.disks.get_mut(name).unwrap().doubtful.push(bytes.clone());
                disk.roll_back(catalogue, &snapshot)?;
                let expected = self.disks.get_mut(name).unwrap();
                (expected.bytes, expected.doubtful) = (bytes, Vec::new());
            }
            2 => {
                let Some((snapshot, bytes)) = self.any_snapshot(name) else { return Ok(()) };
                if self.disks.len() < 4 {
                    let copy = format!("c{}", self.count);
                    self.trace.push(format!("{copy} is a clone of {name}@{snapshot}"));
                    catalogue.clone_disk(name, Some(&snapshot), &copy, Vec::new())?;
                    let expected =
                        Expected { bytes, doubtful: Vec::new(), unflushed: Vec::new(), snapshots: BTreeMap::new() };
                    self.disks.insert(copy, expected);
                }
            }
            3 => {
                let Some((snapshot, _)) = self.any_snapshot(name) else { return Ok(()) };
                self.trace.push(format!("{name}: without {snapshot}"));
                self.disks.get_mut(name).unwrap().snapshots.remove(&snapshot);
                catalogue.delete_snapshot(name, &snapshot)?;
            }
            4 => {
                self.trace.push("collect".into());
                catalogue.collect()?;
            }
            5 => {
                self.trace.push(format!("{name}: scrub"));
                scrub(catalogue, disk, &Throttle::new(0))?;
                self.check(name, disk);
            }
            7 | 8 => {
                disk.flush()?;
                self.disks.get_mut(name).unwrap().unflushed.clear();
            }
            6 => {
                let (offset, length) = self.range();
                let found = disk.read(offset, length as u32)?;
                assert_eq!(found, bytes[offset as usize..(offset + length) as usize], "{:#?}", self.trace);
            }
            _ => {
                let changes = self.changes(&mut bytes);
                let durable = self.random.below(4) == 0;
                self.trace.push(format!("{name}: {}", told(&changes)));
                // Each change of the batch may be the last that was made.
                let mut partial = self.disks[name].bytes.clone();
                let expected = self.disks.get_mut(name).unwrap();
                if self.loses {
                    expected.unflushed.push(partial.clone());
                }
                for change in &changes {
                    apply(change, &mut partial);
                    expected.doubtful.push(partial.clone());
                    if self.loses {
                        expected.unflushed.push(partial.clone());
                    }
                }
                disk.change(&changes, durable)?;
                let expected = self.disks.get_mut(name).unwrap();
                (expected.bytes, expected.doubtful) = (bytes, Vec::new());
                if durable {
                    expected.unflushed.clear();
                }
            }
        }
        Ok(())
    }

    fn any_snapshot(&mut self, name: &str) -> Option<(String, Vec<u8>)> {
        let snapshots = &self.disks[name].snapshots;
        let at = if snapshots.is_empty() { return None } else { self.random.below(snapshots.len() as u64) };
        let found = self.disks[name].snapshots.iter().nth(at as usize)?;
        Some((found.0.clone(), found.1.clone()))
    }

    /// Everything is deleted, and nothing is left.
    fn end(&mut self) {
        let catalogue = self.catalogue();
        self.readers.clear();
        for name in self.disks.keys() {
            catalogue.delete(name, "test").unwrap();
        }
        // Clones whose making was interrupted.
        for info in catalogue.list().unwrap() {
            catalogue.delete(&info.name, "test").unwrap();
        }
        catalogue.collect().unwrap();
        assert_eq!(self.memory.files(), 1, "{:#?}", self.trace);
    }
}

fn apply(change: &Change, bytes: &mut [u8]) {
    match change {
        Change::Write { offset, data } => {
            bytes[*offset as usize..*offset as usize + data.len()].copy_from_slice(data);
        }
        Change::Zero { offset, length } => bytes[*offset as usize..(offset + length) as usize].fill(0),
    }
}

fn told(changes: &[Change]) -> String {
    let text = |change: &Change| match change {
        Change::Write { offset, data } => format!("{}+{} = {}", offset / 512, data.len() / 512, data[0]),
        Change::Zero { offset, length } => format!("{}+{} = 0", offset / 512, length / 512),
    };
    changes.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Histories to run: `HEKATE_VDISK_HISTORIES`, or those of a short test.
fn histories(short: u64) -> u64 {
    std::env::var("HEKATE_VDISK_HISTORIES").ok().and_then(|count| count.parse().ok()).unwrap_or(short)
}

#[test]
fn a_history_without_crashes_is_that_of_arrays() {
    (0..histories(20)).for_each(|seed| History::new(seed).run(120, false));
}

#[test]
fn nothing_flushed_is_lost_when_all_replicas_lose_power() {
    let lossy = |seed| History { loses: true, ..History::new(2 << 32 | seed) };
    (0..histories(50)).for_each(|seed| lossy(seed).run(100, true));
}

#[test]
fn nothing_acknowledged_is_lost_when_a_session_ends_in_any_change() {
    (0..histories(75)).for_each(|seed| History::new(1 << 32 | seed).run(120, true));
}
