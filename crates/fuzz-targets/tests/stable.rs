//! Every target on a stable toolchain: its corpus, its regressions, and 2,500 mutations of both.
//!
//! A failure prints the seed and leaves the input in a file; `HEKATE_FUZZ_SEED` chooses another seed,
//! `HEKATE_FUZZ_MUTATIONS` another number of mutations.

// A panic is how a test fails, in helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use hekate_fuzz_targets::mutate::{Random, mutate};
use hekate_fuzz_targets::{TARGETS, Target, corpus_of, folder, regressions_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// `HEKATE_FUZZ_MUTATIONS` overrides it.
const MUTATIONS: u64 = 2500;
/// Longest time that one run may take: far above the usual one, so that a busy machine does not fail the test.
const ONE_RUN_MAX: Duration = Duration::from_secs(5);
const TARGET_MAX: Duration = Duration::from_secs(300);

macro_rules! every_target {
    ($($(#[$meta:meta])* $name:ident)*) => {
        $(#[test] $(#[$meta])* fn $name() {
            survive(stringify!($name));
        })*

        #[test]
        fn every_target_has_its_test_and_its_fuzz_target() {
            let tested = [$(stringify!($name)),*];
            let manifest = std::fs::read_to_string(folder().join("Cargo.toml")).unwrap();
            for target in TARGETS {
                assert!(tested.contains(&target.name), "{} is missing above", target.name);
                let bin = format!("name = \"{}\"", target.name);
                assert!(manifest.contains(&bin), "fuzz/Cargo.toml has no [[bin]] with {bin}");
            }
        }
    };
}

every_target! {
    op request reply notification error record change key index_value
    frame_body server_conversation client_conversation packet link_received envelope fuse_request
    segment_header record_header mark journal
    meta checksum_group brick_record brick_toml life_toml
    map coordinator_record control_request etcd_answer etcd_stream s3_signature s3_chunks
    variation_recording variation_series variation_latencies nbd_conversation vdisk_append vdisk_record

    journal_any
    brick_record_any
}

/// The committed corpus is what the encoders of this tree make.
#[test]
fn the_corpus_is_that_of_the_encoders() {
    for target in TARGETS {
        let committed: Vec<Vec<u8>> = corpus_of(target).into_iter().map(|(_, bytes)| bytes).collect();
        let fresh = (target.seeds)();
        let fix = "cargo run -p hekate-fuzz-targets --bin write-corpus";
        assert!(committed == fresh, "fuzz/corpus/{} is not what the encoders make; run: {fix}", target.name);
    }
}

/// In a thread of its own, so that a run that does not end is reported with its seed.
fn survive(name: &'static str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (seed, mutations) = (number("HEKATE_FUZZ_SEED", 1), number("HEKATE_FUZZ_MUTATIONS", MUTATIONS));
    let (report, reports) = mpsc::channel();
    let runner = std::thread::spawn(move || {
        all_runs(target, seed, mutations, |run| report.send(run).unwrap());
    });
    let begun = Instant::now();
    let mut last = None;
    loop {
        match reports.recv_timeout(TARGET_MAX.saturating_sub(begun.elapsed())) {
            Ok(run) => last = Some(run),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name}, seed {seed}: still in the run after {last:?}"),
        }
    }
    if let Err(panic) = runner.join() {
        std::panic::resume_unwind(panic);
    }
}

fn all_runs(target: &Target, seed: u64, mutations: u64, mut done: impl FnMut(u64)) {
    let mut inputs = corpus_of(target);
    inputs.extend(regressions_of(target));
    assert!(!inputs.is_empty(), "{} has no corpus", target.name);
    for (path, bytes) in &inputs {
        run(target, bytes, &path.display().to_string());
    }
    let mut random = Random::new(seed);
    for number in 0..mutations {
        let bytes = &inputs[random.below(inputs.len())].1;
        let other = &inputs[random.below(inputs.len())].1;
        run(target, &mutate(bytes, other, &mut random), &format!("mutation {number} of seed {seed}"));
        done(number);
    }
}

fn run(target: &Target, bytes: &[u8], which: &str) {
    let begun = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    let slow = begun.elapsed() > ONE_RUN_MAX;
    if outcome.is_err() || slow {
        let kept = keep(target, bytes);
        let what = if slow { "takes longer than 5 s on" } else { "does not survive" };
        panic!(
            "{} {what} {which}, now in {}; once it does, that file belongs into fuzz/regressions/{}",
            target.name,
            kept.display(),
            target.name
        );
    }
}

fn keep(target: &Target, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", target.name));
    std::fs::write(&path, bytes).unwrap();
    path
}
