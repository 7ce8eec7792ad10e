//! Flushes and checkpoints. A checkpoint writes the changed pages of the map and then the layer's state, so that a
//! recovery reads only what the log has got since.

use super::{Core, Disk, Log};
use crate::format::{BLOCK_BYTES, LayerState, SegmentUse};
use crate::layer::Layer;
use crate::map::Place;
use bytes::{Bytes, BytesMut};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of the map in one write.
const WRITE_BYTES: usize = 1 << 20;

/// What a checkpoint writes.
pub(super) struct Captured {
    layer: Arc<Layer>,
    depth: u64,
    pages: Vec<(u64, Box<[Place]>)>,
    pub state: LayerState,
    /// Segments that nothing leads to any more.
    dead: Vec<SegmentUse>,
    bytes: u64,
}

impl Disk {
    /// Puts all changes that were acknowledged on stable storage.
    ///
    /// # Errors
    /// `Lost`, once, if all replicas lost some of them; the vDisk is read-only then. Those of the store otherwise: the
    /// changes are still to be flushed.
    pub fn flush(&self) -> Result<()> {
        self.core.counts.flushes.fetch_add(1, Ordering::Relaxed);
        self.core.flush()
    }
}

impl Core {
    pub(super) fn flush(&self) -> Result<()> {
        self.wait_for_all_changes();
        let flushed = self.sync_and_confirm();
        if self.owes_error.swap(false, Ordering::AcqRel) {
            let what = format!("vDisk {}: changes that were acknowledged and not flushed", self.name);
            return Err(Error::Lost { what });
        }
        flushed
    }

    /// Syncs the segments that were written, and checks that the next owner will read them. A flush that finds nothing to
    /// sync, because another flush or a checkpoint did it, does not end before that check.
    pub(super) fn sync_and_confirm(&self) -> Result<()> {
        let _one = self.flushing.lock();
        let is_due = self.unconfirmed.swap(false, Ordering::AcqRel) || self.deposed.load(Ordering::Acquire);
        let asks = is_due && !is_planted(Bug::DiskFlushUnconfirmed);
        let confirmed = self.sync_due().and_then(|()| if asks { self.check_owner() } else { Ok(()) });
        if is_due && confirmed.is_err() {
            self.unconfirmed.store(true, Ordering::Release);
        }
        confirmed
    }

    /// Syncs the segments that were written. A loss is noted, and is the error of the next flush.
    pub(super) fn sync_segments(&self) -> Result<()> {
        let _one = self.flushing.lock();
        self.sync_due()
    }

    /// Requires `flushing`.
    fn sync_due(&self) -> Result<()> {
        let appended = self.appended.load(Ordering::Acquire);
        let mut due = std::mem::take(&mut *self.unsynced.lock());
        while let Some((id, file)) = due.pop_first() {
            match self.store.sync(id) {
                Ok(()) => {}
                Err(Error::Lost { .. }) if is_planted(Bug::DiskLossIgnored) => {}
                Err(Error::Lost { what }) => {
                    self.note_loss(&what);
                    return Err(Error::Lost { what });
                }
                Err(error) => {
                    let mut unsynced = self.unsynced.lock();
                    unsynced.insert(id, file);
                    unsynced.append(&mut due);
                    return Err(error);
                }
            }
        }
        // Appends of another layer, after a snapshot, count anew.
        let _ = self.stable.fetch_update(Ordering::AcqRel, Ordering::Acquire, |stable| {
            (appended <= self.appended.load(Ordering::Acquire)).then_some(stable.max(appended))
        });
        Ok(())
    }

    /// Makes a checkpoint if the log or the changed pages are long enough.
    pub(super) fn checkpoint_if_due(self: &Arc<Self>) -> Result<()> {
        let is_due = self.map.lock().is_full() || self.log.lock().bytes >= self.settings.checkpoint_bytes;
        if !is_due {
            return Ok(());
        }
        if !self.settings.background {
            return self.checkpoint();
        }
        if self.checkpoint_runs.swap(true, Ordering::AcqRel) {
            // Writers wait for a checkpoint that falls far behind them.
            let is_behind = self.log.lock().bytes >= 2 * self.settings.checkpoint_bytes;
            return if is_behind { self.checkpoint() } else { Ok(()) };
        }
        let core = self.clone();
        let spawned = hekate_threads::spawn("vdisk-checkpoint", move || {
            if let Err(error) = core.checkpoint() {
                log::warn!("vDisk {}: a checkpoint failed and is tried again: {error}", core.name);
            }
            core.checkpoint_runs.store(false, Ordering::Release);
        });
        if let Err(error) = spawned {
            self.checkpoint_runs.store(false, Ordering::Release);
            return Err(Error::io("start a thread", error));
        }
        Ok(())
    }

    /// Makes a checkpoint.
    ///
    /// # Errors
    /// Those of the store; nothing is lost, and the next one writes what this one has not.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one = self.checkpointing.lock();
        let captured = {
            let mut log = self.log.lock();
            if let Some(error) = &log.failed {
                return Err(error.clone());
            }
            self.capture(&mut log)
        };
        self.write_captured(captured)
    }

    /// The changed pages and the state as of now.
    pub(super) fn capture(&self, log: &mut Log) -> Captured {
        let stack = self.stack();
        let layer = stack.head().clone();
        let pages = self.map.lock().begin_writes();
        let current = log.position.segment;
        let dead: Vec<SegmentUse> =
            log.uses.values().filter(|segment| segment.live == 0 && segment.number != current).copied().collect();
        log.uses.retain(|_, segment| segment.live > 0 || segment.number == current);
        let known = layer.pages();
        let mut present = (*known).clone();
        pages.iter().for_each(|(number, _)| present.set(*number));
        let state = LayerState {
            layer: layer.id,
            parent: log.parent,
            writing: false,
            sealed: false,
            segment_blocks: log.segment_blocks,
            map: layer.map_number(),
            next_segment: log.next_segment,
            log: log.position,
            segments: log.uses.values().copied().collect(),
            pages: present.to_bytes(),
        };
        let bytes = std::mem::take(&mut log.bytes);
        Captured { layer, depth: stack.head_depth(), pages, state, dead, bytes }
    }

    fn write_captured(&self, captured: Captured) -> Result<()> {
        let written = self.try_write(&captured);
        self.end_write(captured, written, None)
    }

    /// As a checkpoint, while the caller has the log.
    pub(super) fn write_sealed(&self, log: &mut Log, captured: Captured) -> Result<()> {
        let written = self.try_write(&captured);
        self.end_write(captured, written, Some(log))
    }

    /// After a failure everything is due again.
    fn end_write(&self, captured: Captured, written: Result<()>, log: Option<&mut Log>) -> Result<()> {
        self.map.lock().written(captured.pages.iter().map(|(number, _)| *number), written.is_ok());
        let Err(error) = written else {
            self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
            for segment in &captured.dead {
                // A segment that stays is removed with its layer.
                if let Err(error) = captured.layer.remove_segment(&*self.store, segment.number) {
                    log::warn!("vDisk {}: segment {} is left: {error}", self.name, segment.number);
                }
            }
            return Ok(());
        };
        let restore = |log: &mut Log| {
            log.bytes += captured.bytes;
            log.uses.extend(captured.dead.iter().map(|segment| (segment.number, *segment)));
        };
        match log {
            Some(log) => restore(log),
            None => restore(&mut self.log.lock()),
        }
        Err(error)
    }

    fn try_write(&self, captured: &Captured) -> Result<()> {
        // The map must not lead to blocks that a crash can take away.
        self.sync_segments()?;
        self.check_not_lost()?;
        if !captured.pages.is_empty() {
            // The next owner reads here that pages may still be written; only the present one can say so.
            let intent = LayerState { writing: true, ..self.recorded.lock().clone() };
            self.put_state(&captured.layer, &intent)?;
            let file = captured.layer.map_file(&self.store, true)?;
            for (at, bytes) in runs_of(&captured.pages, captured.depth) {
                self.store.write(file.id, at, bytes, false)?;
            }
            self.store.sync(file.id)?;
        }
        self.put_state(&captured.layer, &captured.state)?;
        captured.layer.add_pages(captured.pages.iter().map(|(number, _)| *number));
        Ok(())
    }
}

/// The layer's own entries of pages, gathered into writes: each an offset and bytes.
fn runs_of(pages: &[(u64, Box<[Place]>)], depth: u64) -> Vec<(u64, Bytes)> {
    let mut runs: Vec<(u64, BytesMut)> = Vec::new();
    for (number, entries) in pages {
        let at = number * BLOCK_BYTES;
        let follows = runs.last().is_some_and(|(from, bytes)| {
            from + bytes.len() as u64 == at && bytes.len() + BLOCK_BYTES as usize <= WRITE_BYTES
        });
        if !follows {
            runs.push((at, BytesMut::new()));
        }
        if let Some((_, bytes)) = runs.last_mut() {
            entries.iter().for_each(|place| bytes.extend_from_slice(&place.entry_at(depth).to_le_bytes()));
        }
    }
    runs.into_iter().map(|(at, bytes)| (at, bytes.freeze())).collect()
}
