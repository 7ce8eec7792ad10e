//! Files that `hekate variation` reads: recordings, and tables of other programs.

use crate::allocation::bounded;
use hekate_variation::series::record::{Access, Job, Pattern, Recording, Sample, Sync, merge};
use hekate_variation::series::{Latencies, NUMBER_MAX, Series, Unit};
use hekate_variation::show::{or_better, summary, terminal};
use hekate_variation::{latency, measure::store};

/// Memory that a reader may take besides its input, in bytes: columns, buffers and messages.
const FIXED_BYTES: usize = 1 << 20;

/// A recording that was read is unchanged after it was written and read again. The next writer cuts off a torn end.
/// Merging a recording with itself adds nothing.
pub fn recording(bytes: &[u8]) {
    let Ok(read) = bounded(bytes.len(), FIXED_BYTES, || Recording::decode("f", bytes)) else { return };
    assert_eq!(read.whole_bytes + read.torn_bytes, bytes.len());
    let written = read.encode().unwrap();
    let again = Recording::decode("f", &written).unwrap();
    assert_eq!((&again.job, &again.samples, again.torn_bytes), (&read.job, &read.samples, 0));
    let whole = Recording::decode("f", &bytes[..read.whole_bytes]).unwrap();
    assert_eq!((whole.samples.len(), whole.torn_bytes), (read.samples.len(), 0));
    let _ = store::recording_path(read.job.target.as_ref());
    if let Ok(merged) = merge(&[("a".into(), read.clone()), ("b".into(), again)]) {
        assert!(merged.samples.len() <= read.samples.len());
        assert!(merged.samples.windows(2).all(|pair| pair[0].start_ms <= pair[1].start_ms));
    }
    for unit in [Unit::Iops, Unit::MbPerS] {
        if let Ok(series) = read.series("f".into(), unit) {
            shown(&series);
        }
    }
}

/// Any series that can be read can be shown, and meets the planner's requirements.
pub fn series(bytes: &[u8]) {
    for unit in [None, Some(Unit::MbPerS)] {
        if let Ok(series) = bounded(bytes.len(), FIXED_BYTES, || Series::decode("f", "f".into(), bytes, unit)) {
            shown(&series);
        }
    }
}

fn shown(series: &Series) {
    assert!(!series.rates.is_empty() && series.rates.len() == series.times_s.len());
    assert!(series.rates.iter().all(|rate| (0.0..=NUMBER_MAX).contains(rate)));
    let found = summary(series);
    assert!(found.least <= found.most && (0.0..=1.0 + 1e-9).contains(&found.flatness), "{found:?}");
    assert!(found.mean.is_finite() && found.standard_deviation.is_finite(), "{found:?}");
    assert!((-1.0..=1.0).contains(&found.autocorrelation_1), "{found:?}");
    let picture = or_better(std::slice::from_ref(series));
    assert!(picture.lines[0].points.windows(2).all(|pair| pair[1].1 <= pair[0].1));
    assert!(terminal::chart(&picture, 60, 12).iter().all(|line| line.chars().count() <= 60));
}

/// Latencies of single operations: the slowest of several servers is never faster than one server.
pub fn latencies(bytes: &[u8]) {
    let Ok(read) = bounded(bytes.len(), FIXED_BYTES, || latency::decode("f", bytes)) else { return };
    assert!(read.count() > 0);
    let part = latency::Part { name: "f".into(), latencies: read, count: 3 };
    for quantile in latency::whole(&[part], 3).unwrap().quantiles {
        assert!(quantile.whole_us >= quantile.part_us && quantile.whole_us.is_finite(), "{quantile:?}");
    }
}

fn sample(at: u64, operations: u64, pairs: &[(u64, u64)]) -> Sample {
    Sample {
        start_ms: 1_800_000_000_000 + at * 10_000,
        length_ns: 10_000_000_000,
        operations,
        bytes: operations * 4096,
        errors: at,
        latencies: Latencies::of(pairs.iter().copied()),
    }
}

pub fn recording_seeds() -> Vec<Vec<u8>> {
    let job = Job {
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
    };
    let samples = [
        sample(0, 100, &[(500_000, 90), (2_000_000, 10)]),
        sample(1, 0, &[]),
        sample(2, 7, &[(1, 3), (3_600_000_000_000, 4)]),
    ];
    let of = |count: usize| {
        let samples = samples[..count].to_vec();
        Recording { job: job.clone(), samples, whole_bytes: 0, torn_bytes: 0 }.encode().unwrap()
    };
    let torn = of(3)[..of(3).len() - 5].to_vec();
    let mut lengthened = of(1);
    lengthened.extend([0; 40]);
    vec![of(0), of(3), torn, lengthened]
}

pub fn series_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "# a remark\ntime_s,iops\n0,16000\n10,15000.5\n20,0\n",
        "mb_per_s\n1\n2.5\n1e3\n",
        "time_s,seconds,operations,bytes,errors,iops,mb_per_s,p50_us\n0.000,10.000,1,4096,0,0.1,0.000,\"12,5\"\n",
    ];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    seeds.push(recording_seeds()[1].clone());
    seeds
}

pub fn latencies_seeds() -> Vec<Vec<u8>> {
    vec![
        b"latency_us\n120\n130.5\n90000\n".to_vec(),
        b"at,LATENCY_US\n1, 0.001\n2,1e15\n".to_vec(),
        recording_seeds()[1].clone(),
    ]
}
