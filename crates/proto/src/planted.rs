//! Bugs that the simulator's own test plants, to see that its checkers find them; from 101 on pieces of safety that a benchmark
//! switches off. Without the feature there are none.

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<u32> = std::cell::Cell::new(of_process());
}

/// What a whole process has planted: pieces of safety switched off, to measure what they cost (bench/pieces.sh).
#[cfg(feature = "planted")]
fn of_process() -> u32 {
    static BUG: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *BUG.get_or_init(|| std::env::var("HEKATE_PLANTED").ok().and_then(|text| text.parse().ok()).unwrap_or(0))
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
