//! libFuzzer's way to `hekate_fuzz_targets::client_conversation`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hekate_fuzz_targets::client_conversation(bytes));
