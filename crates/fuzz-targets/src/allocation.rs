//! The memory that a decoder allocates: a global allocator that counts bytes per thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes that a decoder may allocate for each byte that it is given. The greatest amplification is a list of small
/// changes: 9 bytes become a value of some 200, twice while the list grows.
const FACTOR: usize = 96;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Adds to the thread's counter. Nothing is counted after the thread's counters have been destroyed.
fn count(bytes: isize) {
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old and the new block exist side by side while the bytes are copied.
        count(size as isize);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        count(-(layout.size() as isize));
        moved
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs `decode` on an input of `given` bytes. Panics if it allocates more than `fixed` bytes plus [`FACTOR`] for each
/// byte of the input.
pub fn bounded<T>(given: usize, fixed: usize, decode: impl FnOnce() -> T) -> T {
    let before = LIVE.get();
    PEAK.set(before);
    let value = decode();
    let taken = (PEAK.get() - before).max(0) as usize;
    let limit = given * FACTOR + fixed;
    assert!(taken <= limit, "{taken} bytes were allocated to decode {given}; the limit is {limit}");
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_freed_again_counts_too() {
        bounded(10, 0, || drop(vec![0u8; 900]));
        let caught = std::panic::catch_unwind(|| bounded(10, 0, || drop(vec![0u8; 100_000])));
        assert!(caught.is_err());
    }
}
