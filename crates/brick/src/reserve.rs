//! The reserve: a file of bytes that are really allocated and only there to be given up.
//!
//! When the file system is nearly full, a checkpoint gives it up before it writes, so that it never fails for want of
//! room, and takes it back afterwards. `machine::Room` promises no more than that. On a file system that compresses or
//! does not allocate zeros it is worth nothing (`docs/format/brick.md`).

use crate::journal::write_zeros;
use crate::storage::Storage;
use hekate_proto::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const FILE: &str = "reserve";

/// See the module.
pub struct Reserve {
    storage: Arc<dyn Storage>,
    wanted: u64,
    /// Bytes of the file; who looks does not wait for it to be written.
    has: AtomicU64,
    writing: Mutex<()>,
}

impl Reserve {
    /// Makes the file of a new brick.
    pub fn create(storage: &dyn Storage, bytes: u64) -> Result<()> {
        let make = || {
            let file = storage.open(FILE, true)?;
            write_zeros(&*file, 0, bytes).and_then(|()| file.sync())
        };
        make().map_err(|e| Error::io("make the reserve", e))
    }

    /// Of a brick that is opened; [`Reserve::restore`] finds out what there is.
    pub fn new(storage: Arc<dyn Storage>, wanted: u64) -> Self {
        Self { storage, wanted, has: AtomicU64::new(0), writing: Mutex::new(()) }
    }

    /// Bytes that can be given up.
    pub fn bytes(&self) -> u64 {
        self.has.load(Ordering::Relaxed)
    }

    /// Gives the space to a checkpoint.
    pub fn give_up(&self) -> Result<()> {
        let _alone = self.writing.lock();
        let cut = || self.storage.open(FILE, true)?.set_length(0);
        cut().map_err(|e| Error::io("give up the reserve", e))?;
        self.has.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Takes space back, if the file system has twice as much as is missing. Best effort: what it gets counts.
    pub fn restore(&self) -> Result<()> {
        let _alone = self.writing.lock();
        if self.bytes() >= self.wanted {
            return Ok(());
        }
        let failed = |e| Error::io("restore the reserve", e);
        let file = self.storage.open(FILE, true).map_err(failed)?;
        let has = file.length().map_err(failed)?.min(self.wanted);
        let (missing, (_, free)) = (self.wanted - has, self.storage.space().map_err(failed)?);
        let restored = missing > 0 && free / 2 >= missing && write_zeros(&*file, has, self.wanted).is_ok();
        self.has.store(if restored { self.wanted } else { has }, Ordering::Relaxed);
        Ok(())
    }
}
