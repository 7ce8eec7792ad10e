//! Buffers that requests are read into, 1 MiB each, since any request may have the greatest length.
//!
//! Invariants: a buffer is owned by one reader, by the bytes of one request, or by the pool; the pool keeps at most
//! [`FREE_MAX`] free buffers and unmaps the rest. The pages of a buffer cost memory only once a long request has
//! touched them: the buffers are mapped rather than allocated, because malloc keeps freed memory and zeroes it again.

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;
use std::sync::Arc;

/// Free buffers kept for the next reader: one is in use by each reader, and two absorb a burst.
const FREE_MAX: usize = 2;
/// Longest request that is copied out of its buffer, in bytes. The copy costs no more than passing the buffer on, and
/// the reader keeps its buffer.
pub(crate) const COPIED_MAX: usize = 16 << 10;

/// A pool of buffers.
#[derive(Debug)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Pages>>,
    bytes_each: usize,
}

/// Mapped memory, zeroed at first.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to this value alone, as a Box's does.
unsafe impl Send for Pages {}

impl Pages {
    /// # Errors
    /// The system has no memory.
    pub(crate) fn map(length: usize) -> rustix::io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: without a requested address the kernel chooses one where nothing is mapped.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, flags) }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?, length })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `length` bytes from `start` are mapped, initialised (as zeros) and owned by this value until the
        // drop.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// Returns the memory to the system. The bytes are zeros afterwards.
    pub(crate) fn clear(&mut self) {
        // SAFETY: the pages are this value's alone, and zeros are as good as any bytes; the borrow is exclusive.
        let cleared = unsafe { madvise(self.start.as_ptr().cast(), self.length, Advice::LinuxDontNeed) };
        cleared.unwrap_or_else(|errno| log::warn!("cannot return {} bytes to the system: {errno}", self.length));
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what was mapped; no borrow of it is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A buffer that requests are read into, one at a time.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// `None` only during the drop.
    pages: Option<Pages>,
    pool: Arc<Buffers>,
}

/// The buffer of a request whose bytes are still in use.
struct RequestBuffer {
    buffer: Buffer,
    filled: usize,
}

impl AsRef<[u8]> for RequestBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer.bytes()[..self.filled]
    }
}

impl Buffers {
    pub(crate) fn new(bytes_each: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), bytes_each })
    }

    /// A free buffer, or a new one.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn take(self: &Arc<Self>) -> rustix::io::Result<Buffer> {
        let free = self.free.lock().pop();
        let pages = free.map_or_else(|| Pages::map(self.bytes_each), Ok)?;
        Ok(Buffer { pages: Some(pages), pool: self.clone() })
    }
}

impl Buffer {
    /// The space to read into.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.pages.as_mut().map_or(&mut [], Pages::bytes_mut)
    }

    fn bytes(&self) -> &[u8] {
        self.pages.as_ref().map_or(&[], Pages::bytes)
    }

    /// The first `filled` bytes, as the bytes of a request. A long request keeps the buffer; otherwise it is
    /// returned.
    pub(crate) fn request(self, filled: usize) -> (Bytes, Option<Buffer>) {
        let filled = filled.min(self.bytes().len());
        if filled <= COPIED_MAX {
            return (Bytes::copy_from_slice(&self.bytes()[..filled]), Some(self));
        }
        (Bytes::from_owner(RequestBuffer { buffer: self, filled }), None)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock();
        if free.len() < FREE_MAX {
            free.extend(self.pages.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_request_keeps_its_buffer_and_returns_it_to_the_pool() {
        let pool = Buffers::new(1 << 20);
        let mut buffer = pool.take().unwrap();
        let address = buffer.space().as_ptr();
        buffer.space()[70_000] = 7;
        let (request, kept) = buffer.request(80_000);
        let tail = request.slice(70_000..);
        drop(request);
        assert!(kept.is_none());
        assert_eq!((tail[0], tail.as_ptr()), (7, address.wrapping_add(70_000)));
        assert_eq!(pool.free.lock().len(), 0);
        drop(tail);
        assert_eq!(pool.take().unwrap().space().as_ptr(), address);
    }

    #[test]
    fn a_small_request_is_copied_and_free_buffers_are_few() {
        let pool = Buffers::new(1 << 20);
        let mut buffers: Vec<_> = (0..8).map(|_| pool.take().unwrap()).collect();
        let (request, kept) = buffers.remove(0).request(100);
        assert_eq!((request.len(), kept.is_some()), (100, true));
        drop((buffers, kept));
        assert_eq!(pool.free.lock().len(), FREE_MAX);
    }
}
