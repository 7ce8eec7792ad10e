//! libFuzzer's way to `hekate_fuzz_targets::notification`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hekate_fuzz_targets::notification(bytes));
