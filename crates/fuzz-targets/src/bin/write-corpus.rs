//! Replaces `fuzz/corpus` by what the encoders make: `cargo run -p hekate-fuzz-targets --bin write-corpus`.

fn main() -> std::io::Result<()> {
    hekate_fuzz_targets::TARGETS.iter().try_for_each(hekate_fuzz_targets::write_corpus)
}
