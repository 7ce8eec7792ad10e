//! Output of commands: a reply as JSON, or tables and lines for people.

use hekate_proto::BrickId;
use serde::Serialize;
use std::fmt::Display;

/// Prints a reply as JSON, its fields in alphabetical order.
pub fn json(reply: &impl Serialize) {
    let value = serde_json::to_value(reply).unwrap_or_default();
    println!("{}", serde_json::to_string_pretty(&value).unwrap_or_else(|_| value.to_string()));
}

/// Prints rows under heads, columns aligned.
pub fn table(heads: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        println!("{}", padded.join("  ").trim_end());
    };
    line(heads.to_vec());
    rows.iter().for_each(|row| line(row.iter().map(String::as_str).collect()));
}

/// The value, or a dash if there is none.
pub fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// The first 8 digits of a brick's id.
pub fn short(brick: BrickId) -> String {
    brick.text().chars().take(8).collect()
}

/// A name as it is, or quoted if it has control characters, which would drive the terminal.
pub fn name(name: &str) -> String {
    if name.contains(char::is_control) { format!("{name:?}") } else { name.into() }
}

/// Bytes in binary units (IEC 80000-13).
pub fn bytes(count: u64) -> String {
    let mut number = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if number < 1024.0 {
            return format!("{number:.1} {unit}");
        }
        number /= 1024.0;
    }
    format!("{number:.1} PiB")
}

/// A time in its two largest units, or a dash if it is not known.
pub fn seconds(time: Option<f64>) -> String {
    let Some(number) = time else { return "-".into() };
    let whole = number.ceil() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_have_binary_units() {
        assert_eq!(super::bytes(512), "512.0 B");
        assert_eq!(super::bytes(3 << 29), "1.5 GiB");
    }

    #[test]
    fn times_have_two_units() {
        let all = [(Some(0.2), "1 s"), (Some(75.0), "1 min 15 s"), (Some(7260.0), "2 h 1 min"), (None, "-")];
        all.iter().for_each(|(value, text)| assert_eq!(super::seconds(*value), *text));
    }
}
