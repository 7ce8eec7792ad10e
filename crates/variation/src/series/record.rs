//! A recording: a job and its samples, as the compact file that survives interruption (docs/variation.md has its
//! bytes).
//!
//! A file is only ever appended to. A process that dies in mid-write leaves a last record that is short or does not
//! match its checksum. Readers leave it out and report it, and the next writer cuts it off. Any other mismatch is
//! damage, and is refused with its place.

use super::{Latencies, SAMPLES_MAX, Series, Unit};
use crate::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

const MAGIC: &[u8; 8] = b"HEKVARS1";
const HEADER_BYTES: usize = 16;
const RECORD_HEADER_BYTES: usize = 8;
const JOB_BYTES_MAX: usize = 1 << 16;
/// Largest record, in bytes: more than a histogram of all buckets takes.
const RECORD_BYTES_MAX: usize = 1 << 18;

/// The job of a measurement: recordings of equal jobs may be resumed and merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The target's name on the command line.
    pub target: String,
    /// directory, file, device, s3, nothing.
    pub kind: String,
    pub access: Access,
    pub pattern: Pattern,
    pub block_bytes: u64,
    pub threads: u32,
    pub sync: Sync,
    pub direct: bool,
    pub size_bytes: u64,
    pub interval_ms: u64,
    /// The machine's name.
    pub host: String,
}

impl Job {
    /// True if the rates may be those of the page cache.
    fn may_read_memory(&self) -> bool {
        self.access == Access::Read && !self.direct && ["directory", "file", "device"].contains(&self.kind.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    Random,
    /// Each thread goes through a part of its own repeatedly.
    Sequential,
}

/// When a write is on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// At any time.
    None,
    /// Before it returns, with all that is needed to read it (O_DSYNC).
    Dsync,
    /// Before it returns, with all metadata (O_SYNC).
    Sync,
    /// fdatasync(2) after each write.
    Fdatasync,
    /// fsync(2) after each write.
    Fsync,
}

/// The operations of one interval.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    /// Start, in milliseconds since 1970 (UTC).
    pub start_ms: u64,
    pub length_ns: u64,
    /// Operations that ended in it, without failed ones.
    pub operations: u64,
    pub bytes: u64,
    pub errors: u64,
    /// Latencies of these operations.
    pub latencies: Latencies,
}

impl Sample {
    pub fn seconds(&self) -> f64 {
        self.length_ns as f64 / 1e9
    }

    pub fn rate(&self, unit: Unit) -> f64 {
        let amount = match unit {
            Unit::Iops => self.operations as f64,
            Unit::MbPerS => self.bytes as f64 / 1e6,
        };
        amount / self.seconds().max(1e-9)
    }

    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(48 + 4 * self.latencies.pairs().len());
        for word in [self.start_ms, self.length_ns, self.operations, self.bytes, self.errors] {
            body.extend_from_slice(&word.to_le_bytes());
        }
        body.extend_from_slice(&(self.latencies.pairs().len() as u32).to_le_bytes());
        let mut before = 0;
        for (value, count) in self.latencies.pairs() {
            put_varint(&mut body, value - before);
            put_varint(&mut body, *count);
            before = *value;
        }
        body
    }

    /// None: these bytes are not a sample.
    fn decode(mut body: &[u8]) -> Option<Self> {
        let mut word = || take(&mut body).map(u64::from_le_bytes);
        let (start_ms, length_ns, operations, bytes, errors) = (word()?, word()?, word()?, word()?, word()?);
        let count = u32::from_le_bytes(take(&mut body)?) as usize;
        // Each pair has two bytes at least.
        if count > body.len() / 2 {
            return None;
        }
        let mut pairs = Vec::with_capacity(count);
        let mut value = 0u64;
        for _ in 0..count {
            value = value.checked_add(take_varint(&mut body)?)?;
            pairs.push((value, take_varint(&mut body)?));
        }
        let is_sound = body.is_empty() && length_ns > 0;
        is_sound.then(|| Self { start_ms, length_ns, operations, bytes, errors, latencies: Latencies::of(pairs) })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

/// LEB128: seven bits a byte, the least significant first; the top bit marks that more follow.
fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let [byte] = take::<1>(bytes)?;
        let part = u64::from(byte & 0x7F);
        if shift == 63 && part > 1 {
            return None;
        }
        value |= part << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// A job and its samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    pub job: Job,
    pub samples: Vec<Sample>,
    /// Bytes of the file up to the end of the last whole record.
    pub whole_bytes: usize,
    /// Bytes behind them, left by a process that died in mid-write.
    pub torn_bytes: usize,
}

/// True if these bytes begin as a recording, of this version or another.
pub fn is_recording(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC[..7])
}

/// The header of a file.
///
/// # Errors
///
/// The job's names are too long.
pub fn encode_header(job: &Job) -> Result<Vec<u8>> {
    let text =
        serde_json::to_vec(job).map_err(|error| Error::new(Kind::Ours, format!("cannot encode the job: {error}")))?;
    if text.len() > JOB_BYTES_MAX {
        return Err(Error::wrong_use("the name of the target is too long for the file; use a shorter path"));
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&text).to_le_bytes());
    bytes.extend_from_slice(&text);
    Ok(bytes)
}

/// The bytes of one sample's record.
pub fn encode_sample(sample: &Sample) -> Vec<u8> {
    let body = sample.encode();
    assert!(body.len() <= RECORD_BYTES_MAX, "a histogram has no more buckets than that");
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

impl Recording {
    /// Decodes a whole file; `path` is for errors.
    ///
    /// # Errors
    ///
    /// The header or a record is damaged, or of another version.
    pub fn decode(path: &str, bytes: &[u8]) -> Result<Self> {
        let (job, header_bytes) = decode_header(path, bytes)?;
        let (mut samples, mut at) = (Vec::new(), header_bytes);
        while at < bytes.len() {
            match decode_record(&bytes[at..]) {
                Found::Sample(sample, length) => {
                    samples.push(sample);
                    at += length;
                }
                Found::Torn => break,
                Found::Damaged => {
                    let text = format!(
                        "the record at byte {at} is damaged; the {} samples before it are sound: cut the file there",
                        samples.len()
                    );
                    return Err(Error::bad_data(path, text));
                }
            }
            if samples.len() > SAMPLES_MAX {
                return Err(Error::bad_data(path, format!("it has more than {SAMPLES_MAX} samples")));
            }
        }
        Ok(Self { job, samples, whole_bytes: at, torn_bytes: bytes.len() - at })
    }

    /// The whole file.
    ///
    /// # Errors
    ///
    /// The job's names are too long.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = encode_header(&self.job)?;
        self.samples.iter().for_each(|sample| bytes.extend(encode_sample(sample)));
        Ok(bytes)
    }

    /// The rates of the samples.
    ///
    /// # Errors
    ///
    /// There are no samples.
    pub fn series(&self, name: String, unit: Unit) -> Result<Series> {
        let first = self.samples.first().map_or(0, |sample| sample.start_ms);
        let rates = self.samples.iter().map(|sample| sample.rate(unit)).collect();
        let time = |sample: &Sample| sample.start_ms.saturating_sub(first) as f64 / 1e3;
        let mut series = Series::new(name, unit, rates, self.samples.iter().map(time).collect())?;
        let latencies: Vec<&Latencies> = self.samples.iter().map(|sample| &sample.latencies).collect();
        series.latencies = Some(Latencies::merge(&latencies)).filter(|latencies| latencies.count() > 0);
        if self.torn_bytes > 0 {
            series.notes.push(format!("its last {} bytes were cut off in writing and are left out", self.torn_bytes));
        }
        if self.job.may_read_memory() {
            series.notes.push("reads without --direct may have come from the page cache, not from the disk".into());
        }
        let errors: u64 = self.samples.iter().fold(0, |sum: u64, sample| sum.saturating_add(sample.errors));
        if errors > 0 {
            series.notes.push(format!("{errors} operations failed; they are not in the rates"));
        }
        Ok(series)
    }
}

fn decode_header(path: &str, bytes: &[u8]) -> Result<(Job, usize)> {
    let short = || Error::bad_data(path, "it is cut off within its header; it holds no sample");
    let Some((head, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Err(short()) };
    if &head[..8] != MAGIC {
        let (theirs, ours) = (char::from(head[7]), char::from(MAGIC[7]));
        let text =
            format!("it has format version {theirs:?}, this program reads {ours:?}; use the program that wrote it");
        return Err(Error::bad_data(path, text));
    }
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let length = word(8) as usize;
    if length > JOB_BYTES_MAX {
        return Err(Error::bad_data(path, "its header is damaged; it cannot be read"));
    }
    let text = rest.get(..length).ok_or_else(short)?;
    if crc32c::crc32c(text) != word(12) {
        return Err(Error::bad_data(path, "its header does not match its checksum; it cannot be read"));
    }
    let job = serde_json::from_slice(text);
    let job =
        job.map_err(|error| Error::bad_data(path, format!("its job is not one that this program knows: {error}")))?;
    Ok((job, HEADER_BYTES + length))
}

enum Found {
    Sample(Sample, usize),
    /// A record that a process left in mid-write.
    Torn,
    Damaged,
}

fn decode_record(bytes: &[u8]) -> Found {
    let Some((head, rest)) = bytes.split_at_checked(RECORD_HEADER_BYTES) else { return Found::Torn };
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let sum = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    // A file system may have lengthened the file before it wrote the bytes.
    if bytes.iter().take(RECORD_BYTES_MAX).all(|byte| *byte == 0) {
        return Found::Torn;
    }
    if length > RECORD_BYTES_MAX {
        return Found::Damaged;
    }
    let Some(body) = rest.get(..length) else { return Found::Torn };
    let is_last = rest.len() == length;
    match Sample::decode(body).filter(|_| crc32c::crc32c(body) == sum) {
        Some(sample) => Found::Sample(sample, RECORD_HEADER_BYTES + length),
        None if is_last => Found::Torn,
        None => Found::Damaged,
    }
}

/// Joins recordings of one job, in the order of time; a sample that is in several is taken once.
///
/// # Errors
///
/// The jobs differ, there is no sample, or two recordings overlap.
pub fn merge(all: &[(String, Recording)]) -> Result<Recording> {
    let Some(((first_path, first), others)) = all.split_first() else {
        return Err(Error::wrong_use("name the recordings to merge"));
    };
    if let Some((path, _)) = others.iter().find(|(_, other)| other.job != first.job) {
        let text = format!("{path} is of another job than {first_path}; show both, but do not merge them");
        return Err(Error::new(Kind::BadData, text));
    }
    let mut samples: Vec<Sample> = all.iter().flat_map(|(_, recording)| recording.samples.iter().cloned()).collect();
    if samples.is_empty() {
        return Err(Error::new(Kind::BadData, "none of the recordings has a sample; there is nothing to merge"));
    }
    samples.sort_by_key(|sample| sample.start_ms);
    samples.dedup();
    let overlaps = |pair: &[Sample]| {
        // Two clocks are read for a sample, so neighbours may overlap slightly.
        const SLACK_MS: u64 = 10;
        pair[0].start_ms.saturating_add(pair[0].length_ns / 1_000_000) > pair[1].start_ms.saturating_add(SLACK_MS)
    };
    if let Some(pair) = samples.windows(2).find(|pair| overlaps(pair)) {
        let text = format!("two recordings overlap at {} ms since 1970; they cannot be one series", pair[1].start_ms);
        return Err(Error::new(Kind::BadData, text));
    }
    Ok(Recording { job: first.job.clone(), samples, whole_bytes: 0, torn_bytes: 0 })
}

#[cfg(test)]
mod tests;
