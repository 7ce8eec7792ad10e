//! Snapshots, rollback, templates and sizes: what changes the vDisk's record.

use super::append::Change;
use super::{Core, Disk, Log, check_size};
use crate::catalogue::{Catalogue, SNAPSHOTS, check_name, making};
use crate::format::{DiskKind, LayerId, LayerState, Record, SnapshotRecord};
use crate::layer::{Layer, Stack};
use hekate_proto::{Condition, Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Disk {
    /// Makes a snapshot of everything that was acknowledged. Writes wait for a moment.
    ///
    /// # Errors
    /// `Invalid` for a name that cannot be one or is used; `Denied` if the vDisk is read-only; those of a flush.
    pub fn snapshot(&self, name: &str, labels: Vec<(String, String)>) -> Result<()> {
        let core = &self.core;
        check_name(name)?;
        core.check_writable()?;
        let directory = core.store.find(core.directory, SNAPSHOTS)?;
        if core.store.find(directory, name).is_ok() {
            return Err(Error::invalid(format!("vDisk {} has a snapshot {name} already", core.name)));
        }
        // Most of the map is written while writes go on.
        core.wait_for_all_changes();
        core.checkpoint()?;
        let _tree = making(&*core.store)?;
        let _checkpoint = core.checkpointing.lock();
        let mut log = core.log.lock();
        let layer = core.seal(&mut log)?;
        core.begin_layer(&mut log)?;
        let record = SnapshotRecord { layer, size: self.size(), created: core.store.time(), labels };
        match core.store.put(directory, name, record.seal(), Condition::Absent) {
            Err(Error::ConditionFailed) => {
                Err(Error::invalid(format!("vDisk {} has a snapshot {name} already", core.name)))
            }
            put => put.map(|_| ()),
        }
    }

    /// Makes the vDisk what it was when a snapshot was made. What came later is gone, but for other snapshots.
    ///
    /// # Errors
    /// `Invalid` if there is no such snapshot; `Denied` if the vDisk is read-only.
    pub fn roll_back(&self, catalogue: &Catalogue, snapshot: &str) -> Result<()> {
        let core = &self.core;
        core.check_writable()?;
        core.wait_for_all_changes();
        let SnapshotRecord { layer, size, .. } = catalogue.snapshot(core.directory, &core.name, snapshot)?;
        let _tree = making(&*core.store)?;
        let _checkpoint = core.checkpointing.lock();
        let mut log = core.log.lock();
        let (mut stack, _) = Stack::open(&*core.store, layer)?;
        let (head, state) = Layer::make(&*core.store, Some(layer), log.segment_blocks)?;
        core.put_record(|record| (record.head, record.size) = (head.id, size))?;
        stack.0.push(Arc::new(head));
        core.size.store(size, Ordering::Release);
        core.set_stack(stack);
        core.unsynced.lock().clear();
        core.begin_log(&mut log, &state);
        Ok(())
    }

    /// Makes the vDisk a template: it is never written again, and clones are made of it.
    ///
    /// # Errors
    /// `Denied` if it is read-only already; those of a flush.
    pub fn make_template(&self) -> Result<()> {
        let core = &self.core;
        core.check_writable()?;
        core.wait_for_all_changes();
        core.checkpoint()?;
        let _checkpoint = core.checkpointing.lock();
        let mut log = core.log.lock();
        core.seal(&mut log)?;
        core.put_record(|record| record.kind = DiskKind::Template)?;
        core.read_only.store(true, Ordering::Release);
        Ok(())
    }

    /// Changes the size. Beyond a smaller size everything is gone.
    ///
    /// # Errors
    /// `Invalid` for a size that cannot be; `Denied` if the vDisk is read-only.
    pub fn resize(&self, size: u64) -> Result<()> {
        let core = &self.core;
        check_size(size)?;
        core.check_writable()?;
        let before = self.size();
        if size < before {
            core.size.store(size, Ordering::Release);
            // A larger size later must not show what was there.
            let zeroed = core.change_anywhere(&[Change::Zero { offset: size, length: before - size }], true);
            if let Err(error) = zeroed.and_then(|()| core.put_record(|record| record.size = size)) {
                core.size.store(before, Ordering::Release);
                return Err(error);
            }
            return Ok(());
        }
        core.put_record(|record| record.size = size)?;
        core.size.store(size, Ordering::Release);
        Ok(())
    }
}

impl Core {
    /// Ends the log of the layer that is written.
    fn seal(&self, log: &mut Log) -> Result<LayerId> {
        if let Some(error) = &log.failed {
            return Err(error.clone());
        }
        let mut captured = self.capture(log);
        captured.state.sealed = true;
        let layer = captured.state.layer;
        let bytes = log.bytes;
        self.write_sealed(log, captured)?;
        log.bytes = bytes;
        Ok(layer)
    }

    /// Goes on in a new layer above the sealed one.
    fn begin_layer(&self, log: &mut Log) -> Result<()> {
        let stack = self.stack();
        let (layer, state) = Layer::make(&*self.store, Some(stack.head().id), log.segment_blocks)?;
        self.put_record(|record| record.head = layer.id)?;
        let mut layers = stack.0.clone();
        layers.push(Arc::new(layer));
        *self.stack.write() = Arc::new(Stack(layers));
        self.begin_log(log, &state);
        Ok(())
    }

    pub(super) fn begin_log(&self, log: &mut Log, state: &LayerState) {
        *self.recorded.lock() = state.clone();
        *log = Log::of(state);
        self.appended.store(state.log.sequence, Ordering::Release);
        self.stable.store(0, Ordering::Release);
    }
}
