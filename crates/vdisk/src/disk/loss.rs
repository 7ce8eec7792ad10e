//! What happens when all replicas have lost changes that were acknowledged and not flushed: the next flush fails, and the
//! vDisk is read-only until an operator resumes it. It then is as its log says, which ends where the first lost change
//! would be.

use super::{Core, Disk};
use crate::format::Health;
use crate::layer::Stack;
use hekate_proto::{Error, Result};
use std::sync::atomic::Ordering;

impl Core {
    pub(super) fn note_loss(&self, what: &str) {
        log::error!("vDisk {}: changes were lost before they were flushed, it is read-only: {what}", self.name);
        self.lost.store(true, Ordering::Release);
        self.owes_error.store(true, Ordering::Release);
        self.read_only.store(true, Ordering::Release);
        let since = self.store.time();
        if let Err(error) = self.put_record(|record| record.health = Health::Lost { since }) {
            log::error!("vDisk {}: that it is read-only could not be recorded: {error}", self.name);
        }
    }

    /// Fails after a loss, also one of which another flush or checkpoint was told: a sync tells it once.
    pub(super) fn check_not_lost(&self) -> Result<()> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Error::Lost { what: format!("vDisk {}: changes that were not flushed", self.name) });
        }
        Ok(())
    }

    /// Reads state and log again, and forgets everything else. The state has to be this owner's: with that of the next
    /// one this process would go on as if it had opened the vDisk later, beside the writes of the other.
    ///
    /// # Errors
    /// `SessionEnded` if another process has the vDisk; those of reading.
    pub(super) fn reload(&self) -> Result<()> {
        let _checkpoint = self.checkpointing.lock();
        let mut log = self.log.lock();
        let head = self.record.lock().0.head;
        let (stack, state) = Stack::open(&*self.store, head)?;
        if !stack.head().has_state_of(self.stack().head()) {
            return Err(self.depose());
        }
        self.lost.store(false, Ordering::Release);
        self.set_stack(stack);
        self.begin_log(&mut log, &state);
        self.unsynced.lock().clear();
        self.replay(&mut log)
    }
}

impl Disk {
    /// Allows writes again after changes were lost. What was lost is missing; everything before it is there.
    ///
    /// # Errors
    /// `Invalid` if no changes were lost; `Lost` if more were lost meanwhile, and a second resume goes on; those of reading
    /// the log.
    pub fn resume(&self) -> Result<()> {
        let core = &self.core;
        if core.record.lock().0.health == Health::Good {
            return Err(Error::invalid(format!("vDisk {} has lost nothing; it needs no resume", core.name)));
        }
        core.reload()?;
        core.keep_replayed()?;
        core.begin_writing()?;
        core.put_record(|record| record.health = Health::Good)?;
        core.owes_error.store(false, Ordering::Release);
        core.read_only.store(false, Ordering::Release);
        Ok(())
    }
}
