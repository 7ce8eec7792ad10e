//! Recordings: what was written is read, a torn end is left out, and no bytes make the decoder panic.

use super::*;
use proptest::prelude::*;

pub fn job() -> Job {
    Job {
        target: "/srv/disk".into(),
        kind: "directory".into(),
        access: Access::Write,
        pattern: Pattern::Random,
        block_bytes: 4096,
        threads: 8,
        sync: Sync::Sync,
        direct: false,
        size_bytes: 1 << 30,
        interval_ms: 10_000,
        host: "here".into(),
    }
}

fn sample(index: u64) -> Sample {
    Sample {
        start_ms: 1_000 + index * 10_000,
        length_ns: 10_000_000_000,
        operations: 100 + index,
        bytes: (100 + index) * 4096,
        errors: 0,
        latencies: Latencies::of([(1_000, 90), (2_000_000 + index, 10 + index)]),
    }
}

fn recording(count: u64) -> Recording {
    let mut recording =
        Recording { job: job(), samples: (0..count).map(sample).collect(), whole_bytes: 0, torn_bytes: 0 };
    recording.whole_bytes = recording.encode().unwrap().len();
    recording
}

#[test]
fn a_recording_that_is_written_is_read() {
    let written = recording(3);
    assert_eq!(Recording::decode("f", &written.encode().unwrap()).unwrap(), written);
    let series = written.series("f".into(), Unit::Iops).unwrap();
    assert_eq!((series.rates, series.times_s), (vec![10.0, 10.1, 10.2], vec![0.0, 10.0, 20.0]));
}

#[test]
fn a_file_cut_anywhere_keeps_its_whole_samples() {
    let bytes = recording(3).encode().unwrap();
    let lengths: Vec<usize> = (0..=3).map(|count| recording(count).encode().unwrap().len()).collect();
    for end in 0..bytes.len() {
        match Recording::decode("f", &bytes[..end]) {
            Ok(read) => {
                assert_eq!(read.samples.len(), lengths.iter().filter(|length| **length <= end).count() - 1);
                assert_eq!(
                    (read.whole_bytes, read.torn_bytes),
                    (lengths[read.samples.len()], end - lengths[read.samples.len()])
                );
            }
            Err(error) => assert!(end < lengths[0] && error.exit() == 65, "{end}: {error}"),
        }
    }
}

#[test]
fn damage_before_the_end_is_refused_by_its_place() {
    let mut bytes = recording(3).encode().unwrap();
    let second = recording(1).encode().unwrap().len();
    bytes[second + RECORD_HEADER_BYTES + 3] ^= 1;
    let error = Recording::decode("f", &bytes).unwrap_err();
    assert!(error.text.contains(&format!("byte {second}")), "{error}");
}

#[test]
fn another_version_is_refused_by_name() {
    let mut bytes = recording(1).encode().unwrap();
    bytes[7] = b'9';
    assert!(is_recording(&bytes));
    assert!(Recording::decode("f", &bytes).unwrap_err().text.contains("version '9'"));
}

#[test]
fn reads_that_may_be_those_of_memory_say_so() {
    let notes = |access, direct, kind: &str| {
        let job = Job { access, direct, kind: kind.into(), ..job() };
        Recording { job, ..recording(2) }.series("f".into(), Unit::Iops).unwrap().notes
    };
    assert!(notes(Access::Read, false, "directory")[0].contains("page cache"));
    for (access, direct, kind) in
        [(Access::Read, true, "file"), (Access::Write, false, "file"), (Access::Read, false, "s3")]
    {
        assert!(notes(access, direct, kind).is_empty());
    }
}

#[test]
fn recordings_are_merged_in_time_and_once() {
    let (early, late) = (recording(2), recording(4));
    let merged = merge(&[("b".into(), late.clone()), ("a".into(), early)]).unwrap();
    assert_eq!(merged.samples, late.samples);
    let mut other = recording(1);
    other.job.threads = 1;
    assert!(merge(&[("a".into(), recording(1)), ("b".into(), other)]).unwrap_err().text.contains("another job"));
    assert!(merge(&[("a".into(), recording(0))]).unwrap_err().text.contains("nothing to merge"));
    let mut beside = recording(1);
    beside.samples[0].start_ms += 5_000;
    assert!(merge(&[("a".into(), recording(1)), ("b".into(), beside)]).unwrap_err().text.contains("overlap"));
}

proptest! {
    #[test]
    fn garbled_files_are_read_or_refused(flips in prop::collection::vec((0usize..2000, any::<u8>()), 1..8), end in 0usize..2000) {
        let mut bytes = recording(5).encode().unwrap();
        for (at, mask) in flips {
            let at = at % bytes.len();
            bytes[at] ^= mask;
        }
        bytes.truncate(end);
        let _ = Recording::decode("f", &bytes).map(|read| read.series("f".into(), Unit::MbPerS));
    }

    #[test]
    fn any_sound_looking_record_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = encode_header(&job()).unwrap();
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(crc32c::crc32c(&body).to_le_bytes());
        bytes.extend(&body);
        let read = Recording::decode("f", &bytes).unwrap();
        let _ = read.series("f".into(), Unit::Iops);
    }

    #[test]
    fn samples_survive_the_file(pairs in prop::collection::vec((any::<u64>(), any::<u64>()), 0..50), words in any::<[u64; 4]>(), length in 1u64..) {
        let [start_ms, operations, bytes, errors] = words;
        let sample = Sample { start_ms, length_ns: length, operations, bytes, errors, latencies: Latencies::of(pairs) };
        prop_assert_eq!(Sample::decode(&sample.encode()), Some(sample));
    }
}
