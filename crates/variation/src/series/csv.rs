//! Series as CSV: lines that begin with # are remarks, the first other line names the columns (docs/variation.md).

use super::record::Sample;
use super::{Latencies, NUMBER_MAX, SAMPLES_MAX, Series, Unit};
use crate::error::{Error, Result};

/// The columns that `measure` writes.
pub const HEAD: &str = "time_s,seconds,operations,bytes,errors,iops,mb_per_s,p50_us,p90_us,p99_us,p999_us,max_us";

/// The line of one sample; `first_ms` is the start of the first sample.
pub fn line(sample: &Sample, first_ms: u64) -> String {
    let at =
        |share: f64| sample.latencies.quantile(share).map_or(String::new(), |ns| format!("{:.1}", ns as f64 / 1e3));
    format!(
        "{:.3},{:.3},{},{},{},{:.1},{:.3},{},{},{},{},{}",
        sample.start_ms.saturating_sub(first_ms) as f64 / 1e3,
        sample.seconds(),
        sample.operations,
        sample.bytes,
        sample.errors,
        sample.rate(Unit::Iops),
        sample.rate(Unit::MbPerS),
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0)
    )
}

/// Decodes a series; `path` is for errors.
///
/// # Errors
///
/// The text is not CSV, lacks the columns, or has a value that is out of range; the error names the line.
pub fn decode(path: &str, name: String, bytes: &[u8], unit: Option<Unit>) -> Result<Series> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::bad_data(path, "it is empty; measure with `hekate variation measure`"));
    }
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(bytes);
    let heads = reader.headers().map_err(|error| Error::bad_data(path, words(&error)))?.clone();
    let find = |head: &str| heads.iter().position(|it| it.eq_ignore_ascii_case(head));
    let (unit, column) = choose(path, &find, unit)?;
    let time = find("time_s");
    let (mut rates, mut times) = (Vec::new(), Vec::new());
    for row in reader.records() {
        let row = row.map_err(|error| Error::bad_data(path, words(&error)))?;
        let line = row.position().map_or(0, csv::Position::line);
        rates.push(number(path, line, unit.column(), row.get(column))?);
        times.push(match time {
            Some(time) => number(path, line, "time_s", row.get(time))?,
            None => times.len() as f64,
        });
        if rates.len() > SAMPLES_MAX {
            break;
        }
    }
    if rates.is_empty() {
        return Err(Error::bad_data(path, "it names columns and has no samples below them"));
    }
    let mut series = Series::new(name, unit, rates, times)?;
    if time.is_none() {
        series.notes.push("it has no column time_s: samples are taken to be a second apart".into());
    } else if series.times_s.windows(2).any(|pair| pair[1] < pair[0]) {
        return Err(Error::bad_data(path, "the times in column time_s go back; sort the lines by time_s"));
    }
    Ok(series)
}

/// The latencies in column `latency_us`, one operation a line.
///
/// # Errors
///
/// The text is not CSV, lacks the column, or has a value that is out of range; the error names the line.
pub fn latencies(path: &str, bytes: &[u8]) -> Result<Latencies> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(bytes);
    let heads = reader.headers().map_err(|error| Error::bad_data(path, words(&error)))?;
    let column = heads.iter().position(|head| head.eq_ignore_ascii_case("latency_us"));
    let column = column.ok_or_else(|| {
        let text = "it is not a recording (NAME.hvs), and its first line names no column latency_us; a CSV that was measured has only quantiles: name the recording beside it";
        Error::bad_data(path, text)
    })?;
    let mut found = Vec::new();
    for row in reader.records().take(SAMPLES_MAX) {
        let row = row.map_err(|error| Error::bad_data(path, words(&error)))?;
        let line = row.position().map_or(0, csv::Position::line);
        found.push(((number(path, line, "latency_us", row.get(column))? * 1e3) as u64, 1));
    }
    Ok(Latencies::of(found))
}

/// The unit asked for, else IOPS, else MB/s; and the column that has it.
fn choose(path: &str, find: &impl Fn(&str) -> Option<usize>, unit: Option<Unit>) -> Result<(Unit, usize)> {
    let wanted = unit.map_or(vec![Unit::Iops, Unit::MbPerS], |unit| vec![unit]);
    wanted.iter().find_map(|unit| Some((*unit, find(unit.column())?))).ok_or_else(|| {
        let columns: Vec<&str> = wanted.iter().map(|unit| unit.column()).collect();
        let text = format!("its first line names no column {}; name the column of the rates so", columns.join(" or "));
        Error::bad_data(path, text)
    })
}

/// A number from 0 to `NUMBER_MAX`.
fn number(path: &str, line: u64, head: &str, cell: Option<&str>) -> Result<f64> {
    let cell = cell.unwrap_or_default();
    match cell.parse::<f64>() {
        Ok(number) if (0.0..=NUMBER_MAX).contains(&number) => Ok(number),
        _ => {
            let fix = "a number is plain and from 0 to 1e15, without a unit; correct or remove the line";
            Err(Error::bad_data(path, format!("line {line}: {head} is {cell:?}; {fix}")))
        }
    }
}

fn words(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.as_ref().map_or(0, csv::Position::line);
            let cut = "it may be cut off; correct or remove the line";
            format!("line {line} has {len} fields, the first line names {expected_len}; {cut}")
        }
        csv::ErrorKind::Utf8 { pos, .. } => {
            format!("line {} is not text (UTF-8)", pos.as_ref().map_or(0, csv::Position::line))
        }
        _ => format!("it is not CSV: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Series> {
        decode("f.csv", "f".into(), text.as_bytes(), None)
    }

    #[test]
    fn columns_are_found_by_name_and_remarks_left_out() {
        let series = read("# a remark\ntime_s, IOPS ,more\n0,5,x\n# another\n10,7.5,y\n").unwrap();
        assert_eq!((series.rates, series.times_s, series.unit), (vec![5.0, 7.5], vec![0.0, 10.0], Unit::Iops));
        let both = "iops,mb_per_s\n1,2\n";
        assert_eq!(decode("f", "f".into(), both.as_bytes(), Some(Unit::MbPerS)).unwrap().rates, [2.0]);
    }

    #[test]
    fn bad_files_are_refused_with_the_line() {
        for (text, words) in [
            ("", "empty"),
            (" \n\n", "empty"),
            ("time_s,iops\n", "no samples"),
            ("time_s,rate\n0,1\n", "iops or mb_per_s"),
            ("time_s,iops\n0,1\n10,NaN\n", "line 3: iops is \"NaN\""),
            ("time_s,iops\n0,-4\n", "line 2"),
            ("time_s,iops\n0,12k\n", "without a unit"),
            ("time_s,iops\n0,1e999\n", "line 2"),
            ("time_s,iops\n0,1\n10\n", "line 3 has 1 fields"),
            ("time_s,iops\n10,1\n0,1\n", "go back"),
            ("time_s,iops\n0,\n", "line 2"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.text.contains(words), "{text:?}: {error}");
        }
        assert!(decode("f", "f".into(), b"iops\n\xff\n", None).unwrap_err().text.contains("line 2"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode("f", "f".into(), &bytes, None);
        }

        #[test]
        fn any_lines_are_read_or_refused(rest in "[0-9,.eE\n\"#-]{0,80}") {
            if let Ok(series) = read(&format!("time_s,iops\n{rest}")) {
                prop_assert!(!series.rates.is_empty() && series.rates.iter().all(|rate| *rate >= 0.0 && rate.is_finite()));
            }
        }
    }
}
