//! Reads of the vDisk and of its snapshots, as tags of cells.

use super::{NAME, READERS_MAX, User};
use crate::history::disks::{CELL_BYTES, Cell, DiskAnswer, DiskOp, TORN, Tag};
use crate::simulator::threads;
use hekate_proto::{Error, Result};
use hekate_vdisk::Disk;

/// Reads cells, each run of them with one call.
pub fn read_cells(disk: &Disk, cells: &[Cell]) -> Result<DiskAnswer> {
    let mut shown = Vec::with_capacity(cells.len());
    for run in cells.chunk_by(|one, next| one + 1 == *next) {
        let bytes = disk.read(run[0] * CELL_BYTES as u64, (run.len() * CELL_BYTES) as u32)?;
        if bytes.len() != run.len() * CELL_BYTES {
            return Err(Error::bug(format!("a read has {} bytes instead of {}", bytes.len(), run.len() * CELL_BYTES)));
        }
        shown.extend(run.iter().copied().zip(bytes.chunks_exact(CELL_BYTES).map(tag_of)));
    }
    Ok(DiskAnswer::Cells(shown))
}

/// The number that a cell repeats.
fn tag_of(bytes: &[u8]) -> Tag {
    let mut words =
        bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    let first = words.next().unwrap_or(TORN);
    if words.all(|word| word == first) { first } else { TORN }
}

impl User {
    /// Reads a snapshot: one that is open already, or another one.
    pub fn read_snapshot(&mut self) {
        if !self.readers.is_empty() && threads::below(2) == 0 {
            let (name, disk) = self.readers.swap_remove(threads::below(self.readers.len() as u64) as usize);
            let read = self.read_open_snapshot(&name, &disk);
            if threads::below(3) > 0 && read {
                self.readers.push((name, disk));
            }
            return;
        }
        let Some(name) = self.any_snapshot() else { return };
        self.open_and_read(&name);
    }

    /// Opens a snapshot and reads it.
    pub fn open_and_read(&mut self, name: &str) {
        let (catalogue, settings, cells) = (self.catalogue.clone(), self.settings.disk, self.cells());
        let mut opened = None;
        let op = DiskOp::ReadSnapshot { name: name.into() };
        self.call(None, op, || {
            let disk = Disk::open_snapshot(&catalogue, NAME, name, settings)?;
            let read = read_cells(&disk, &cells)?;
            opened = Some(disk);
            Ok(read)
        });
        if let Some(disk) = opened.filter(|_| self.readers.len() < READERS_MAX) {
            self.readers.push((name.into(), disk));
        }
    }

    fn read_open_snapshot(&self, name: &str, disk: &Disk) -> bool {
        let cells = self.cells();
        let read = self.call(None, DiskOp::ReadSnapshot { name: name.into() }, || read_cells(disk, &cells));
        matches!(read, Some((_, Ok(_))))
    }

    /// Names of snapshots, the oldest first.
    pub fn snapshots(&self) -> Result<Vec<String>> {
        Ok(self.catalogue.snapshots(NAME)?.into_iter().map(|(name, _)| name).collect())
    }

    fn any_snapshot(&self) -> Option<String> {
        let mut all = self.snapshots().ok().filter(|all| !all.is_empty())?;
        Some(all.swap_remove(threads::below(all.len() as u64) as usize))
    }

    pub fn delete_snapshot(&self) {
        let Some(name) = self.any_snapshot() else { return };
        let catalogue = self.catalogue.clone();
        let op = DiskOp::DeleteSnapshot { name: name.clone() };
        self.call(None, op, || catalogue.delete_snapshot(NAME, &name).map(|()| DiskAnswer::Done));
    }
}
