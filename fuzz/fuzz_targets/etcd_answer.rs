//! libFuzzer's way to `hekate_fuzz_targets::etcd_answer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hekate_fuzz_targets::etcd_answer(bytes));
