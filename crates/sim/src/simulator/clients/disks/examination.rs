//! The last user: takes the vDisk away, and reads it and its snapshots before and after a scrub.

use super::owning::is_for_now;
use super::{RETRY, User};
use crate::history::disks::{DiskAnswer, DiskCallNumber, DiskOp};
use crate::simulator::threads;
use crate::simulator::world::World;
use hekate_proto::{Error, Result};
use hekate_vdisk::Disk;

/// Attempts, with pauses of a second.
const TRIES: u32 = 20;

impl User {
    /// Complains of what fails though all faults have ended.
    pub fn examine(&mut self) {
        self.examine_owned();
        self.examine_snapshots();
        self.examine_owned();
        self.examine_snapshots();
    }

    /// Reads the vDisk, scrubs it, and reads it again.
    fn examine_owned(&mut self) {
        for _ in 0..TRIES {
            self.open(true);
            let Some((disk, mut number)) = self.open.take() else {
                hekate_threads::sleep(3 * RETRY);
                continue;
            };
            if disk.is_read_only() {
                match self.resume(&disk, number) {
                    Some(resumed) => number = resumed,
                    None => continue,
                }
            }
            self.expect("a read", self.read_all(&disk, number));
            self.expect("a scrub", self.scrub_at_last(&disk, number));
            self.expect("a read after a scrub", self.read_all(&disk, number));
            let closed = self.call(Some(number), DiskOp::Close, || disk.close().map(|()| DiskAnswer::Done));
            self.expect("closing", closed.map(|(_, outcome)| outcome));
            return;
        }
        self.complain("the vDisk cannot be opened".into());
    }

    /// Scrubs the vDisk. The lock on the layers that a dead client held ends with its session, after 60 s of silence; a
    /// scrub waits 30 s for it.
    fn scrub_at_last(&self, disk: &Disk, number: DiskCallNumber) -> Option<Result<DiskAnswer>> {
        for _ in 1..TRIES {
            match self.scrub(disk, number) {
                Some(Err(Error::Unavailable { .. })) => hekate_threads::sleep(3 * RETRY),
                scrubbed => return scrubbed,
            }
        }
        self.scrub(disk, number)
    }

    fn examine_snapshots(&mut self) {
        self.readers.clear();
        for _ in 0..TRIES {
            match self.snapshots() {
                Ok(all) => {
                    all.iter().for_each(|name| self.open_and_read(name));
                    return;
                }
                Err(error) if !is_for_now(&error) => return self.complain(format!("no list of snapshots: {error}")),
                Err(_) => hekate_threads::sleep(3 * RETRY),
            }
        }
        self.complain("the snapshots cannot be listed".into());
    }

    fn expect(&self, what: &str, outcome: Option<Result<DiskAnswer>>) {
        if let Some(Err(error)) = outcome {
            self.complain(format!("{what} of the vDisk fails at the end: {error}"));
        }
    }

    fn complain(&self, what: String) {
        threads::in_world(move |world: &mut World| world.wrong.push(what));
    }
}
