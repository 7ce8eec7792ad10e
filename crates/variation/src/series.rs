//! A series: rates over time, read from a file that was measured by this program or any other.

pub(crate) mod csv;
pub mod latencies;
pub mod record;

pub use latencies::Latencies;
pub use record::{Recording, Sample};

use crate::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most samples of a series: 5 years of one every ten seconds. It limits memory to 128 MiB of rates.
pub const SAMPLES_MAX: usize = 1 << 24;
/// The greatest rate, and the latest time: a value far above any machine's is a mistake, and sums of it would overflow.
pub const NUMBER_MAX: f64 = 1e15;
/// Largest file of a series, in bytes.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// The unit of a series' rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Operations a second.
    Iops,
    /// Megabytes (10^6 bytes) a second.
    MbPerS,
}

impl Unit {
    /// The name of the CSV column.
    pub fn column(self) -> &'static str {
        match self {
            Unit::Iops => "iops",
            Unit::MbPerS => "mb_per_s",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Unit::Iops => "IOPS",
            Unit::MbPerS => "MB/s",
        })
    }
}

/// Rates over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub name: String,
    pub unit: Unit,
    /// From 0 to `NUMBER_MAX`, in the order of time; at least one.
    pub rates: Vec<f64>,
    /// Start of each sample, in seconds from the first; as many as there are rates.
    pub times_s: Vec<f64>,
    /// Latencies of all operations, if the file has them.
    pub latencies: Option<Latencies>,
    /// Remarks about the file: a torn end, failed operations.
    pub notes: Vec<String>,
}

impl Series {
    /// A series of these rates.
    ///
    /// # Errors
    ///
    /// There are no samples, too many, or one that is out of range.
    pub fn new(name: impl Into<String>, unit: Unit, rates: Vec<f64>, times_s: Vec<f64>) -> Result<Self> {
        let name = name.into();
        if rates.is_empty() {
            return Err(Error::bad_data(&name, "it has no samples; measure with `hekate variation measure`"));
        }
        if rates.len() > SAMPLES_MAX {
            return Err(Error::bad_data(&name, format!("it has more than {SAMPLES_MAX} samples; cut it into parts")));
        }
        if let Some(at) = rates.iter().position(|rate| !(0.0..=NUMBER_MAX).contains(rate)) {
            let text =
                format!("sample {} is {} {unit}; a rate is a number from 0 to 1e15; remove it", at + 1, rates[at]);
            return Err(Error::bad_data(&name, text));
        }
        assert_eq!(rates.len(), times_s.len(), "each rate has its time");
        Ok(Self { name, unit, rates, times_s, latencies: None, notes: Vec::new() })
    }

    /// Reads a file of either kind. `unit` chooses the column of a file that has several [default: IOPS, if it has
    /// them].
    ///
    /// # Errors
    ///
    /// The file cannot be read, or its content is invalid.
    pub fn read(path: &Path, unit: Option<Unit>) -> Result<Self> {
        let name = path.file_stem().map_or_else(|| path.display().to_string(), |stem| stem.to_string_lossy().into());
        Self::decode(&path.display().to_string(), name, &read_bounded(path)?, unit)
    }

    /// Decodes a file's bytes; errors call the file `shown`.
    ///
    /// # Errors
    ///
    /// The content is invalid.
    pub fn decode(shown: &str, name: String, bytes: &[u8], unit: Option<Unit>) -> Result<Self> {
        match record::is_recording(bytes) {
            true => Recording::decode(shown, bytes)?.series(name, unit.unwrap_or(Unit::Iops)),
            false => csv::decode(shown, name, bytes, unit),
        }
    }

    /// Rates from the least to the greatest.
    pub fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.rates.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted
    }
}

/// The unit of all series, which must be the same because their rates are added or compared.
///
/// # Errors
///
/// There is no series, or two have different units.
pub fn same_unit(all: &[Series]) -> Result<Unit> {
    let Some(first) = all.first() else { return Err(Error::wrong_use("name at least one series")) };
    match all.iter().find(|other| other.unit != first.unit) {
        None => Ok(first.unit),
        Some(other) => Err(Error::new(
            Kind::BadData,
            format!(
                "{} is in {} and {} in {}; choose one that both have with --unit iops or --unit mb-per-s",
                first.name, first.unit, other.name, other.unit
            ),
        )),
    }
}

/// `NAME.hvs` for any name.
pub(crate) fn with_ending(name: &Path) -> PathBuf {
    let mut name = name.as_os_str().to_owned();
    name.push(".hvs");
    name.into()
}

/// The file's bytes, if there are not too many; from pipes and the like too.
///
/// # Errors
///
/// The file cannot be read, or is too large.
pub fn read_bounded(path: &Path) -> Result<Vec<u8>> {
    let file = std::fs::File::open(path).map_err(|error| Error::file("open", path, error));
    // `measure` is given a name without the ending.
    let meant = with_ending(path);
    let is_other = path.is_dir() || file.is_err();
    if is_other && meant.is_file() {
        let text = format!("{} is not a recording; did you mean {}?", path.display(), meant.display());
        return Err(Error::new(Kind::NoInput, text));
    }
    if path.is_dir() {
        return Err(Error::new(Kind::NoInput, format!("{} is a directory; name files in it", path.display())));
    }
    let file = file?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| Error::file("read", path, error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::bad_data(path.display(), "it has more than 2 GiB; cut it into parts"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_rate_is_refused_with_its_place() {
        for (rates, word) in [
            (vec![], "no samples"),
            (vec![1.0, f64::NAN], "sample 2 is NaN"),
            (vec![-1.0], "sample 1 is -1"),
            (vec![f64::INFINITY], "inf"),
            (vec![1e16], "to 1e15"),
        ] {
            let times = vec![0.0; rates.len()];
            let error = Series::new("x", Unit::Iops, rates, times).unwrap_err();
            assert!(error.text.contains(word) && error.exit() == 65, "{error}");
        }
    }

    #[test]
    fn a_name_without_its_ending_is_recognized() {
        let place = std::env::temp_dir().join(format!("hekate-variation-name-{}", std::process::id()));
        std::fs::create_dir_all(place.join("disk")).unwrap();
        let refusal = |name: &str| Series::read(&place.join(name), None).unwrap_err();
        assert!(refusal("disk").text.contains("is a directory") && refusal("other").text.contains("cannot open"));
        for name in ["disk", "other"] {
            std::fs::write(place.join(format!("{name}.hvs")), "x").unwrap();
            let error = refusal(name);
            assert!(error.text.contains(&format!("did you mean {}", place.join(name).display())), "{error}");
            assert_eq!(error.exit(), 66);
        }
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn units_are_not_mixed() {
        let of = |unit| Series::new("x", unit, vec![1.0], vec![0.0]).unwrap();
        assert_eq!(same_unit(&[of(Unit::Iops), of(Unit::Iops)]).unwrap(), Unit::Iops);
        assert!(same_unit(&[of(Unit::Iops), of(Unit::MbPerS)]).unwrap_err().text.contains("--unit"));
        assert!(same_unit(&[]).is_err());
    }
}
