//! What a client does while it has the vDisk.

use super::reading::read_cells;
use super::{User, confirmed, random, recorded};
use crate::history::disks::{CELL_BYTES, Cell, DiskAnswer, DiskCallNumber, DiskOp, Tag};
use crate::simulator::settings::{CELLS_PER_BLOCK, DiskSettings};
use crate::simulator::threads;
use crate::simulator::world::World;
use bytes::Bytes;
use hekate_brick::storage::Random;
use hekate_client::Volume;
use hekate_proto::{Error, Result};
use hekate_vdisk::scrub::{Throttle, scrub};
use hekate_vdisk::{Change, Disk};
use std::sync::Arc;

/// Most changes of one call.
const CHANGES_MAX: u64 = 3;

impl User {
    /// One call, or several at a time. The vDisk stays open unless it is given up, or lost.
    pub fn step_inside(&mut self, disk: Disk, number: DiskCallNumber) {
        if disk.is_read_only() {
            return self.resume_or_leave(disk, number);
        }
        match threads::below(100) {
            0..=4 => drop(self.snapshot(&disk, number)),
            5..=8 => self.delete_snapshot(),
            9..=11 => self.read_snapshot(),
            12..=15 => drop(self.scrub(&disk, number)),
            16..=19 => {
                self.call(Some(number), DiskOp::Close, || disk.close().map(|()| DiskAnswer::Done));
                return;
            }
            // Given up without a word.
            20 | 21 => return,
            22..=27 => drop(self.read_all(&disk, number)),
            _ => self.several_calls(&disk, number),
        }
        if !disk.has_ended() {
            self.open = Some((disk, number));
        }
    }

    /// Changes were lost: an operator resumes the vDisk, or the client gives it up.
    fn resume_or_leave(&mut self, disk: Disk, number: DiskCallNumber) {
        // The session that lost the changes is told so.
        self.call(Some(number), DiskOp::Flush, || disk.flush().map(|()| DiskAnswer::Done));
        if threads::below(3) == 0 {
            return;
        }
        let resumed = self.resume(&disk, number);
        match resumed {
            Some(number) => self.open = Some((disk, number)),
            None => hekate_threads::sleep(super::RETRY),
        }
    }

    pub fn resume(&self, disk: &Disk, number: DiskCallNumber) -> Option<DiskCallNumber> {
        let resumed = self.call(Some(number), DiskOp::Resume, || {
            disk.resume()?;
            Ok(DiskAnswer::Opened { confirmed: confirmed(disk)?, read_only: false })
        });
        resumed.filter(|(_, outcome)| outcome.is_ok()).map(|(number, _)| number)
    }

    fn snapshot(&self, disk: &Disk, number: DiskCallNumber) -> Option<Result<DiskAnswer>> {
        let client = self.client;
        let tag = threads::in_world(move |world: &mut World| world.disks.new_tag(client))?;
        let name = format!("s{tag:x}");
        let op = DiskOp::Snapshot { name: name.clone() };
        let made = self.call(Some(number), op, || disk.snapshot(&name, Vec::new()).map(|()| DiskAnswer::Done));
        made.map(|(_, outcome)| outcome)
    }

    pub fn scrub(&self, disk: &Disk, number: DiskCallNumber) -> Option<Result<DiskAnswer>> {
        let catalogue = self.catalogue.clone();
        let scrubs = || {
            let done = scrub(&catalogue, disk, &Throttle::new(0))?;
            let (moved, merged) = (done.moved / 4096, done.merged);
            threads::in_world(move |world: &mut World| {
                world.report.add("vDisk: blocks that scrubs moved", moved);
                world.report.add("vDisk: layers that were merged", merged);
            });
            Ok(DiskAnswer::Done)
        };
        self.call(Some(number), DiskOp::Scrub, scrubs).map(|(_, outcome)| outcome)
    }

    pub fn read_all(&self, disk: &Disk, number: DiskCallNumber) -> Option<Result<DiskAnswer>> {
        let cells = self.cells();
        self.call(Some(number), DiskOp::Read, || read_cells(disk, &cells)).map(|(_, outcome)| outcome)
    }

    /// Calls that overlap.
    fn several_calls(&self, disk: &Disk, number: DiskCallNumber) {
        let count = 1 + threads::below(self.settings.calls_at_once);
        let mut started = Vec::new();
        for _ in 1..count {
            let (disk, volume, settings, client) =
                (disk.clone(), self.volume.clone(), self.settings.clone(), self.client);
            let body = move || one_call(client, &volume, &settings, &disk, number);
            started.extend(hekate_threads::spawn_joined("disk-call", body).ok());
        }
        one_call(self.client, &self.volume, &self.settings, disk, number);
        started.into_iter().for_each(|thread| thread.join());
    }
}

fn one_call(client: u32, volume: &Arc<Volume>, settings: &DiskSettings, disk: &Disk, number: DiskCallNumber) {
    let random = &mut random();
    match random.below(20) {
        0..=12 => change(client, volume, settings, disk, number, random),
        13..=17 => {
            let cells = some_cells(settings, random);
            recorded(client, volume, Some(number), DiskOp::Read, || read_cells(disk, &cells));
        }
        _ => {
            recorded(client, volume, Some(number), DiskOp::Flush, || disk.flush().map(|()| DiskAnswer::Done));
        }
    }
}

fn change(
    client: u32,
    volume: &Arc<Volume>,
    settings: &DiskSettings,
    disk: &Disk,
    number: DiskCallNumber,
    random: &mut Random,
) {
    let (mut told, mut changes): (Vec<(Vec<Cell>, Tag)>, Vec<Change>) = Default::default();
    let is_trim = random.once_in(8);
    for _ in 0..1 + random.below(CHANGES_MAX) {
        let range = if is_trim { trimmed_range(settings, random) } else { written_range(settings, random) };
        let cells: Vec<Cell> = settings.cells().into_iter().filter(|cell| range.contains(cell)).collect();
        if cells.is_empty() || told.iter().any(|(known, _)| known.iter().any(|cell| cells.contains(cell))) {
            continue;
        }
        let (offset, length) = (range.start * CELL_BYTES as u64, (range.end - range.start) * CELL_BYTES as u64);
        if is_trim {
            changes.push(Change::Zero { offset, length });
            told.push((cells, 0));
            continue;
        }
        let Some(tag) = threads::in_world(move |world: &mut World| world.disks.new_tag(client)) else { return };
        let data: Bytes = tag.to_le_bytes().repeat(length as usize / 8).into();
        changes.push(Change::Write { offset, data });
        told.push((cells, tag));
    }
    let durable = random.below(100) < settings.durable_share;
    let op = DiskOp::Change { changes: told, durable };
    recorded(client, volume, Some(number), op, || disk.change(&changes, durable).map(|()| DiskAnswer::Done));
}

/// Some blocks of a region, or some cells of it.
fn written_range(settings: &DiskSettings, random: &mut Random) -> std::ops::Range<Cell> {
    let first = settings.region(random) * CELLS_PER_BLOCK;
    let cells = settings.region_blocks * CELLS_PER_BLOCK;
    match random.below(4) {
        0 => {
            let from = random.below(cells);
            first + from..first + (from + 1 + random.below(12)).min(cells)
        }
        1 => first..first + cells,
        _ => {
            let from = random.below(settings.region_blocks) * CELLS_PER_BLOCK;
            first + from..first + (from + CELLS_PER_BLOCK * (1 + random.below(3))).min(cells)
        }
    }
}

/// As a write, or from one region to another.
fn trimmed_range(settings: &DiskSettings, random: &mut Random) -> std::ops::Range<Cell> {
    if random.once_in(2) {
        return written_range(settings, random);
    }
    let (one, other) = (settings.region(random), settings.region(random));
    one.min(other) * CELLS_PER_BLOCK..(one.max(other) + settings.region_blocks) * CELLS_PER_BLOCK
}

fn some_cells(settings: &DiskSettings, random: &mut Random) -> Vec<Cell> {
    if random.once_in(4) {
        return settings.cells();
    }
    let first = settings.region(random) * CELLS_PER_BLOCK;
    (first..first + settings.region_blocks * CELLS_PER_BLOCK).collect()
}

/// True if a second attempt may succeed.
pub fn is_for_now(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. } | Error::SessionEnded | Error::Lost { .. })
}
