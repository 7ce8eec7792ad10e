//! Many lines on standard output, and now and then one on standard error that says how far things are.

use serde_json::Value;
use std::io::{BufWriter, ErrorKind, Stdout, Write};
use std::time::{Duration, Instant};

const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// EX_IOERR of sysexits(3).
const CANNOT_WRITE: i32 = 74;

/// Structures one after the other: a JSON object a line, or text.
pub struct Lines {
    json: bool,
    out: BufWriter<Stdout>,
}

impl Lines {
    pub fn new(json: bool) -> Self {
        Self { json, out: BufWriter::new(std::io::stdout()) }
    }

    /// One structure, in the form that was asked for.
    pub fn show(&mut self, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) {
        let line = if self.json { value().to_string() } else { text() };
        self.write(&line);
    }

    /// For people only.
    pub fn say(&mut self, text: &str) {
        if !self.json {
            self.write(text);
        }
    }

    fn write(&mut self, line: &str) {
        let written = writeln!(self.out, "{line}");
        self.judge(written);
    }

    /// What is written so far is on its way.
    pub fn flush(&mut self) {
        let flushed = self.out.flush();
        self.judge(flushed);
    }

    /// Whoever reads has gone away (`| head`), or the disk is full: reading on is for nobody.
    fn judge(&self, written: std::io::Result<()>) {
        let Err(error) = written else { return };
        if error.kind() != ErrorKind::BrokenPipe {
            eprintln!("hekate: write to standard output: {error}");
        }
        std::process::exit(CANNOT_WRITE);
    }
}

/// Says what is being done once it takes over two seconds, and every two seconds from then on.
pub struct ProgressLine {
    last: Instant,
}

impl ProgressLine {
    pub fn new() -> Self {
        Self { last: Instant::now() }
    }

    pub fn tick(&mut self, what: &str) {
        self.tick_with(|| what.into());
    }

    /// The same, with words that are made only if they are said.
    pub fn tick_with(&mut self, what: impl FnOnce() -> String) {
        if self.last.elapsed() > PROGRESS_EVERY {
            self.last = Instant::now();
            eprintln!("{}", what());
        }
    }
}
