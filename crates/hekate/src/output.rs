//! Answers: JSON as it is, or tables and lines for people.

use serde_json::Value;

/// Prints JSON.
pub fn json(value: &Value) {
    println!("{}", serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string()));
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

/// A field as text for people.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// A name as it is, or quoted if it would drive the terminal.
pub fn name(name: &str) -> String {
    if name.contains(char::is_control) { format!("{name:?}") } else { name.into() }
}

/// Bytes as people read them: binary units (IEC 80000-13).
pub fn bytes(value: &Value) -> String {
    let Some(mut number) = value.as_f64() else { return "-".into() };
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if number < 1024.0 {
            return format!("{number:.1} {unit}");
        }
        number /= 1024.0;
    }
    format!("{number:.1} PiB")
}

/// A time as people read it: its greatest two units.
pub fn seconds(value: &Value) -> String {
    let Some(number) = value.as_f64() else { return "-".into() };
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
    use serde_json::json;

    #[test]
    fn bytes_have_binary_units() {
        assert_eq!(super::bytes(&json!(512)), "512.0 B");
        assert_eq!(super::bytes(&json!(3 << 29)), "1.5 GiB");
    }

    #[test]
    fn times_have_two_units() {
        let all = [(json!(0.2), "1 s"), (json!(75), "1 min 15 s"), (json!(7260), "2 h 1 min"), (json!(null), "-")];
        all.iter().for_each(|(value, text)| assert_eq!(super::seconds(value), *text));
    }
}
