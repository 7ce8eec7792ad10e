//! Bugs that the simulator's own test plants, to see that its checkers find them. Without the feature there are none.

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Plants a bug in this thread; 0: none.
#[cfg(feature = "planted")]
pub fn plant(bug: u32) {
    PLANTED.with(|planted| planted.set(bug));
}

/// Whether this bug is planted.
#[cfg(feature = "planted")]
pub fn is_planted(bug: u32) -> bool {
    PLANTED.with(|planted| planted.get() == bug)
}

/// Never.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is_planted(_bug: u32) -> bool {
    false
}
