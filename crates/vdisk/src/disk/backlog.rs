//! Writes that were acknowledged and are not in the log yet, of a vDisk whose durability is `async`: a bounded number of
//! bytes, which a thread appends in their order. A flush waits for all of them.

use super::append::Change;
use super::{Core, Disk, is_async};
use hekate_proto::{Error, Result};
use hekate_threads::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that may wait.
const LIMIT_BYTES: u64 = 64 << 20;
/// Bytes of changes that are appended together.
const TOGETHER_BYTES: u64 = 1 << 20;
/// What a change without data counts as.
const CHANGE_BYTES: u64 = 64;

#[derive(Default)]
pub(super) struct Backlog {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    changes: VecDeque<Change>,
    /// Changes that are being appended.
    taken: Vec<Change>,
    bytes: u64,
    is_running: bool,
}

impl Change {
    /// Offset of the first byte, and of the one behind the last.
    fn range(&self) -> (u64, u64) {
        match self {
            Change::Write { offset, data } => (*offset, offset + data.len() as u64),
            Change::Zero { offset, length } => (*offset, offset + length),
        }
    }

    fn cost(&self) -> u64 {
        match self {
            Change::Write { data, .. } => CHANGE_BYTES + data.len() as u64,
            Change::Zero { .. } => CHANGE_BYTES,
        }
    }
}

impl Queue {
    fn overlaps(&self, offset: u64, end: u64) -> bool {
        let does = |change: &Change| {
            let (from, to) = change.range();
            from < end && offset < to
        };
        self.changes.iter().any(does) || self.taken.iter().any(does)
    }
}

impl Backlog {
    /// Bytes that wait, or are being appended.
    pub(super) fn bytes(&self) -> u64 {
        self.queue.lock().bytes
    }
}

impl Core {
    /// Takes changes of a vDisk that acknowledges them at once. False if this one does not.
    pub(super) fn take_later(self: &Arc<Self>, changes: &[Change]) -> Result<bool> {
        if !is_async(&self.record.lock().0) {
            return Ok(false);
        }
        let mut queue = self.backlog.queue.lock();
        while queue.bytes > LIMIT_BYTES {
            self.backlog.changed.wait(&mut queue);
        }
        queue.bytes += changes.iter().map(Change::cost).sum::<u64>();
        queue.changes.extend(changes.iter().cloned());
        if !std::mem::replace(&mut queue.is_running, true) {
            let core = self.clone();
            if let Err(error) = hekate_threads::spawn("vdisk-backlog", move || core.drain()) {
                // Nothing was waiting before these.
                (queue.is_running, queue.bytes) = (false, 0);
                queue.changes.clear();
                return Err(Error::io("start a thread", error));
            }
        }
        Ok(true)
    }

    fn drain(self: &Arc<Self>) {
        loop {
            let taken = {
                let mut queue = self.backlog.queue.lock();
                queue.bytes -= queue.taken.iter().map(Change::cost).sum::<u64>();
                queue.taken.clear();
                let mut bytes = 0;
                while let Some(change) = queue.changes.front().filter(|_| bytes < TOGETHER_BYTES) {
                    bytes += change.cost();
                    let change = change.clone();
                    queue.changes.pop_front();
                    queue.taken.push(change);
                }
                queue.is_running = !queue.taken.is_empty();
                self.backlog.changed.notify_all();
                queue.taken.clone()
            };
            if taken.is_empty() {
                return;
            }
            if let Err(error) = self.change_anywhere(&taken, false) {
                // They were acknowledged.
                self.note_loss(&error.to_string());
            }
        }
    }

    /// Waits for the changes of a range that are not in the log yet.
    pub(super) fn wait_for_changes(&self, offset: u64, length: u64) {
        let mut queue = self.backlog.queue.lock();
        while queue.is_running && queue.overlaps(offset, offset + length) {
            self.backlog.changed.wait(&mut queue);
        }
    }

    pub(super) fn wait_for_all_changes(&self) {
        let mut queue = self.backlog.queue.lock();
        while queue.is_running {
            self.backlog.changed.wait(&mut queue);
        }
    }
}

impl Disk {
    /// Bytes that were acknowledged and are not in the log yet.
    pub fn backlog_bytes(&self) -> u64 {
        self.core.backlog.queue.lock().bytes
    }
}
