//! Measuring real files: samples are right, no file is left, interrupted recordings are continued.

use super::store::{Store, recording_path};
use super::target::{FileTarget, Nothing, Which, Worker};
use super::*;
use crate::series::record::{Access, Recording, Sync};
use std::path::{Path, PathBuf};

/// A directory that is removed when it is dropped.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hekate-variation-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn job(access: Access, sync: Sync) -> Job {
    Job {
        target: "here".into(),
        kind: "directory".into(),
        access,
        pattern: Pattern::Random,
        block_bytes: 4096,
        threads: 2,
        sync,
        direct: false,
        size_bytes: 1 << 20,
        interval_ms: 60,
        host: "here".into(),
    }
}

fn measure(job: &Job, target: &dyn Target, samples: u64) -> Vec<Sample> {
    let mut taken = Vec::new();
    run(job, target, samples, &AtomicBool::new(false), &mut |sample| {
        taken.push(sample);
        Ok(())
    })
    .unwrap();
    taken
}

fn file_in(place: &TestDirectory, job: &Job) -> FileTarget {
    FileTarget::in_directory(&place.0, job, &AtomicBool::new(false), &mut |_| ()).unwrap().unwrap()
}

#[test]
fn a_directory_is_measured_and_left_as_it_was() {
    let place = TestDirectory::new("files");
    for (access, sync, pattern) in [
        (Access::Write, Sync::Sync, Pattern::Random),
        (Access::Write, Sync::Fdatasync, Pattern::Sequential),
        (Access::Read, Sync::None, Pattern::Random),
    ] {
        let job = Job { pattern, ..job(access, sync) };
        let target = file_in(&place, &job);
        assert_eq!(std::fs::metadata(target.path()).unwrap().len(), job.size_bytes);
        let samples = measure(&job, &target, 3);
        assert_eq!(samples.len(), 3);
        assert!(samples.iter().map(|sample| sample.operations).sum::<u64>() > 0, "{samples:?}");
        for sample in &samples {
            assert_eq!((sample.bytes, sample.latencies.count()), (sample.operations * 4096, sample.operations));
            assert!(sample.seconds() > 0.0 && sample.errors == 0, "{sample:?}");
        }
        // A late sample makes the next one shorter.
        assert!(samples.iter().map(Sample::seconds).sum::<f64>() > 0.17, "{samples:?}");
        assert_eq!(std::fs::metadata(target.path()).unwrap().len(), job.size_bytes);
        drop(target);
        assert_eq!(place.names(), Vec::<String>::new());
    }
}

#[test]
fn files_of_a_killed_process_are_removed_and_files_in_use_stay() {
    let place = TestDirectory::new("left");
    let job = job(Access::Write, Sync::None);
    std::fs::write(place.0.join(".hekate-variation-1.tmp"), "left").unwrap();
    let first = file_in(&place, &job);
    assert_eq!(place.names().len(), 1);
    // The second file has the same name, because it is of the same process: it must not replace the first one.
    assert!(FileTarget::in_directory(&place.0, &job, &AtomicBool::new(false), &mut |_| ()).is_err());
    assert!(first.path().exists());
    // The file of a process that has just died.
    std::fs::write(place.0.join(".hekate-variation-2.tmp"), "left").unwrap();
    let mut first = first;
    first.clean().unwrap();
    assert_eq!(place.names(), Vec::<String>::new());
}

#[test]
fn a_disk_is_not_filled_and_a_file_not_overwritten_unasked() {
    let place = TestDirectory::new("room");
    let huge = Job { size_bytes: 1 << 60, ..job(Access::Write, Sync::None) };
    let refused = FileTarget::in_directory(&place.0, &huge, &AtomicBool::new(false), &mut |_| ());
    let error = refused.err().unwrap();
    assert!(error.exit() == 73 && error.text.contains("--size") && place.names().is_empty(), "{error}");
    let path = place.0.join("precious");
    std::fs::write(&path, vec![7; 8192]).unwrap();
    let write = job(Access::Write, Sync::None);
    assert!(FileTarget::existing(&path, Which::File, &write, false).err().unwrap().text.contains("--overwrite"));
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 7));
    FileTarget::existing(&path, Which::File, &Job { access: Access::Read, ..write }, false).unwrap();
    assert!(path.exists());
}

#[test]
fn a_stop_ends_at_once_and_the_broken_interval_does_not_count() {
    let job = Job { interval_ms: 60_000, ..job(Access::Write, Sync::None) };
    let (stop, began) = (AtomicBool::new(true), Instant::now());
    run(&job, &Nothing, 10, &stop, &mut |_| panic!("no interval ended")).unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
}

struct Broken;

impl Target for Broken {
    fn worker(&self, _: u32) -> Result<Box<dyn Worker>> {
        Ok(Box::new(Broken))
    }
}

impl Worker for Broken {
    fn operate(&mut self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        Err(std::io::Error::other("it is broken"))
    }
}

#[test]
fn a_target_that_never_works_is_an_error_and_no_series_of_zeros() {
    let error =
        run(&job(Access::Write, Sync::None), &Broken, 10, &AtomicBool::new(false), &mut |_| Ok(())).unwrap_err();
    assert!(error.text.contains("it is broken") && error.exit() == 74, "{error}");
}

fn read(path: &Path) -> Recording {
    Recording::decode("f", &std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn an_interrupted_recording_is_gone_on_with() {
    let place = TestDirectory::new("resume");
    let name = place.0.join("series");
    let job = job(Access::Write, Sync::Sync);
    let sample = |at: u64| Sample { start_ms: at, length_ns: 1_000_000, operations: at, ..Sample::default() };
    let (mut store, _) = Store::open(&name, &job, 4, false).unwrap();
    store.append(&sample(100)).unwrap();
    store.append(&sample(200)).unwrap();
    drop(store);
    let path = recording_path(&name);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    assert!(Store::open(&name, &job, 4, false).err().unwrap().text.contains("--resume"));
    let other = Job { threads: 1, ..job.clone() };
    assert!(Store::open(&name, &other, 4, true).err().unwrap().text.contains("threads was 2 and is 1"));
    let (mut store, known) = Store::open(&name, &job, 4, true).unwrap();
    assert_eq!(known, [sample(100)]);
    store.append(&sample(300)).unwrap();
    store.close().unwrap();
    assert_eq!(read(&path).samples, [sample(100), sample(300)]);
    let csv = std::fs::read_to_string(path.with_extension("csv")).unwrap();
    let times: Vec<&str> =
        csv.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(',').next()).collect();
    assert_eq!(times, ["time_s", "0.000", "0.200"]);
}

#[test]
fn a_recording_without_a_sample_is_not_in_the_way() {
    let place = TestDirectory::new("empty");
    let name = place.0.join("series");
    for _ in 0..2 {
        let (store, _) = Store::open(&name, &job(Access::Write, Sync::Sync), 4, false).unwrap();
        store.close().unwrap();
        assert_eq!(place.names(), Vec::<String>::new());
    }
}

#[test]
fn nothing_that_is_there_is_overwritten() {
    let place = TestDirectory::new("there");
    let job = job(Access::Write, Sync::Sync);
    let refusal = |name: &str, resume| Store::open(&place.0.join(name), &job, 4, resume).err().unwrap();
    std::fs::write(place.0.join("mine.csv"), "precious").unwrap();
    for resume in [false, true] {
        let error = refusal("mine", resume);
        assert!(error.exit() == 73 && error.text.contains("would be overwritten"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(place.0.join("mine.csv")).unwrap(), "precious");
    assert!(refusal("missing/name", false).text.contains("is not a directory; make it"));
    std::fs::write(place.0.join("merged.hvs"), "precious").unwrap();
    let recording = Recording { job: job.clone(), samples: Vec::new(), whole_bytes: 0, torn_bytes: 0 };
    let error = super::store::write(&place.0.join("merged"), &recording).unwrap_err();
    assert!(error.exit() == 73 && error.text.contains("another name"), "{error}");
}

#[test]
fn an_ending_of_its_own_stays_in_the_name() {
    let names = ["disk", "disk.hvs", "disk.csv", "disk.1", "2026.11.22"];
    let paths = names.map(|name| recording_path(Path::new(name)).display().to_string());
    assert_eq!(paths, ["disk.hvs", "disk.hvs", "disk.hvs", "disk.1.hvs", "2026.11.22.hvs"]);
}

#[test]
fn names_on_the_command_line_are_distinguished() {
    let place = TestDirectory::new("which");
    std::fs::write(place.0.join("file"), "x").unwrap();
    let of = |path: PathBuf| Which::of(&path.display().to_string());
    assert_eq!(of(place.0.clone()).unwrap(), Which::Directory);
    assert_eq!(of(place.0.join("file")).unwrap(), Which::File);
    assert_eq!(Which::of("s3://bucket/x").unwrap(), Which::S3);
    assert!(of(place.0.join("missing")).unwrap_err().exit() == 66);
    assert!(Which::of("/dev/null").unwrap_err().text.contains("neither"));
}
