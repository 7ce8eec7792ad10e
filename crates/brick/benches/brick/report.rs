//! Tables for people, JSON for programs.

use serde_json::Value;

/// Rows under a headline, each column as wide as it must be.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these columns.
    pub fn new(columns: &[&str]) -> Self {
        Self { rows: vec![columns.iter().map(ToString::to_string).collect()] }
    }

    /// One more row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints it.
    pub fn print(&self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate();
            let line: Vec<String> = cells
                .map(
                    |(column, (cell, width))| {
                        if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                    },
                )
                .collect();
            println!("{}", line.join("  ").trim_end());
        }
    }
}

/// Three significant figures are all that such a reading is worth.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Nanoseconds as microseconds.
pub fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// One object on one line.
pub fn json(value: &Value) {
    println!("{value}");
}

/// What the machine was when this was measured.
pub fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
    serde_json::json!({
        "processors": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "kernel": read("/proc/sys/kernel/osrelease"),
        "load": read("/proc/loadavg"),
    })
}
