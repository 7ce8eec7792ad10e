//! The files of samples: a recording, which is authoritative, and a CSV file beside it for people, made from it.

use super::target::check_room;
use crate::error::{Error, Kind, Result};
use crate::series::record::{Job, Recording, Sample, encode_header, encode_sample};
use crate::series::{csv, read_bounded, with_ending};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Usual upper bound of a sample in both files together, in bytes.
const SAMPLE_BYTES: u64 = 16 << 10;

/// Files that samples are appended to.
pub struct Store {
    recording: (PathBuf, File),
    csv: (PathBuf, File),
    first_ms: Option<u64>,
}

/// `NAME.hvs`, for a name with or without that ending, or with that of the table beside it. Any other ending is part of
/// the name: disk.1 and disk.2 are different.
pub fn recording_path(name: &Path) -> PathBuf {
    match name.extension().is_some_and(|ending| ending == "hvs" || ending == "csv") {
        true => name.with_extension("hvs"),
        false => with_ending(name),
    }
}

impl Store {
    /// New files, or those of an interrupted recording of the same job, with its samples.
    ///
    /// # Errors
    ///
    /// A file exists already, belongs to another job, or cannot be made.
    pub fn open(name: &Path, job: &Job, samples: u64, resume: bool) -> Result<(Self, Vec<Sample>)> {
        let path = recording_path(name);
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !directory.is_dir() {
            let text = format!("{} is not a directory; make it, or choose another --output", directory.display());
            return Err(Error::new(Kind::CannotCreate, text));
        }
        check_room(directory, samples.saturating_mul(SAMPLE_BYTES))?;
        let there = |path: &Path, fix: &str| {
            Err(Error::new(Kind::CannotCreate, format!("{} exists already; {fix}", path.display())))
        };
        let table = path.with_extension("csv");
        match (path.exists(), resume) {
            (true, false) => there(&path, "add --resume to continue it, or choose another --output"),
            // The table does not belong to a recording here.
            (false, _) if table.exists() => there(&table, "it would be overwritten; choose another name"),
            (false, _) => Self::create(&path, job).map(|store| (store, Vec::new())),
            (true, true) => Self::resume(&path, job),
        }
    }

    fn create(path: &Path, job: &Job) -> Result<Self> {
        let mut file = open(path, OpenOptions::new().append(true).create_new(true))?;
        append(path, &mut file, &encode_header(job)?)?;
        let csv = write_csv(path, &Recording { job: job.clone(), samples: Vec::new(), whole_bytes: 0, torn_bytes: 0 })?;
        Ok(Self { recording: (path.into(), file), csv, first_ms: None })
    }

    fn resume(path: &Path, job: &Job) -> Result<(Self, Vec<Sample>)> {
        let found = Recording::decode(&path.display().to_string(), &read_bounded(path)?)?;
        if found.job != *job {
            let text = format!(
                "{} is of another job: {}; resume with the same options",
                path.display(),
                difference(&found.job, job)
            );
            return Err(Error::wrong_use(text));
        }
        let file = open(path, OpenOptions::new().append(true))?;
        // A record that was cut off in writing is removed, so that the next record follows a whole one.
        file.set_len(found.whole_bytes as u64).map_err(|error| Error::file("cut", path, error))?;
        let csv = write_csv(path, &found)?;
        let first_ms = found.samples.first().map(|sample| sample.start_ms);
        Ok((Self { recording: (path.into(), file), csv, first_ms }, found.samples))
    }

    /// Appends a sample to both.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn append(&mut self, sample: &Sample) -> Result<()> {
        let first_ms = *self.first_ms.get_or_insert(sample.start_ms);
        append(&self.recording.0, &mut self.recording.1, &encode_sample(sample))?;
        append(&self.csv.0, &mut self.csv.1, format!("{}\n", csv::line(sample, first_ms)).as_bytes())
    }

    /// Syncs both files; files without a sample are removed, so that the next attempt can use the name.
    ///
    /// # Errors
    ///
    /// A file cannot be synced or removed.
    pub fn close(self) -> Result<()> {
        if self.first_ms.is_none() {
            return [self.recording, self.csv].iter().try_for_each(|(path, _)| {
                std::fs::remove_file(path).map_err(|error| Error::file("remove", path, error))
            });
        }
        for (path, file) in [self.recording, self.csv] {
            file.sync_all().map_err(|error| Error::file("sync", &path, error))?;
        }
        Ok(())
    }
}

/// Writes a recording and its CSV file as new files.
///
/// # Errors
///
/// A file exists already or cannot be written.
pub fn write(name: &Path, recording: &Recording) -> Result<()> {
    let path = recording_path(name);
    if path.exists() {
        let text = format!("{} exists already; choose another name for the new recording", path.display());
        return Err(Error::new(Kind::CannotCreate, text));
    }
    let mut store = Store::open(name, &recording.job, recording.samples.len() as u64, false)?.0;
    recording.samples.iter().try_for_each(|sample| store.append(sample))?;
    store.close()
}

/// Writes the CSV file of a recording again; it is open to append to.
fn write_csv(recording_path: &Path, recording: &Recording) -> Result<(PathBuf, File)> {
    let path = recording_path.with_extension("csv");
    let mut text = format!("# hekate variation measure {}\n", remark(&recording.job));
    if let Some(first) = recording.samples.first() {
        text.push_str(&format!("# began {} ms after 1970-01-01 UTC\n", first.start_ms));
    }
    text.push_str(csv::HEAD);
    text.push('\n');
    let first_ms = recording.samples.first().map_or(0, |sample| sample.start_ms);
    recording.samples.iter().for_each(|sample| text.push_str(&format!("{}\n", csv::line(sample, first_ms))));
    let mut file = open(&path, OpenOptions::new().write(true).create(true).truncate(true))?;
    append(&path, &mut file, text.as_bytes())?;
    Ok((path, file))
}

/// A job in one line.
fn remark(job: &Job) -> String {
    serde_json::to_string(job).unwrap_or_default()
}

/// The fields in which two jobs differ, as text.
fn difference(one: &Job, other: &Job) -> String {
    let fields =
        |job: &Job| serde_json::to_value(job).ok().and_then(|value| value.as_object().cloned()).unwrap_or_default();
    let (one, other) = (fields(one), fields(other));
    let differs = one.iter().filter(|(name, value)| other.get(*name) != Some(value));
    let words = differs.map(|(name, value)| format!("{name} was {value} and is {}", other.get(name).unwrap_or(value)));
    words.collect::<Vec<_>>().join(", ")
}

fn open(path: &Path, options: &OpenOptions) -> Result<File> {
    options
        .open(path)
        .map_err(|error| Error::new(Kind::CannotCreate, format!("cannot make {}: {error}", path.display())))
}

fn append(path: &Path, file: &mut File, bytes: &[u8]) -> Result<()> {
    file.write_all(bytes).map_err(|error| Error::file("write", path, error))
}
