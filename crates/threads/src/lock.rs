//! Locks. A simulated thread that finds a lock held lets other threads run until the lock is free.

use crate::scheduler::current;
pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutual exclusion lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Takes the lock, once it is free.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        take(|| self.0.try_lock(), || self.0.lock())
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// A lock that readers share.
#[derive(Debug, Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Takes the lock for reading, once no writer holds it.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        take(|| self.0.try_read(), || self.0.read())
    }

    /// Takes the lock for reading if no writer holds it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read()
    }

    /// Takes the lock for writing, once it is free.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        take(|| self.0.try_write(), || self.0.write())
    }

    /// Takes the lock for writing if it is free.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write()
    }
}

fn take<G>(mut attempt: impl FnMut() -> Option<G>, block: impl FnOnce() -> G) -> G {
    let Some(scheduler) = current() else { return block() };
    scheduler.before_lock();
    loop {
        match attempt() {
            Some(guard) => return guard,
            None => scheduler.contended(),
        }
    }
}
