//! Many lines on standard output, and lines of progress on standard error.

use serde_json::Value;
use std::io::{BufWriter, ErrorKind, Stdout, Write};
use std::time::{Duration, Instant};

const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// EX_IOERR of sysexits(3).
const CANNOT_WRITE: i32 = 74;

/// Writes structures one after the other: a JSON object a line, or text.
pub struct Lines {
    json: bool,
    out: BufWriter<Stdout>,
}

impl Lines {
    pub fn new(json: bool) -> Self {
        Self { json, out: BufWriter::new(std::io::stdout()) }
    }

    /// Writes one structure in the chosen form.
    pub fn show(&mut self, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) {
        let line = if self.json { value().to_string() } else { text() };
        self.write(&line);
    }

    /// Writes a line, unless the output is JSON.
    pub fn say(&mut self, text: &str) {
        if !self.json {
            self.write(text);
        }
    }

    fn write(&mut self, line: &str) {
        let written = writeln!(self.out, "{line}");
        self.judge(written);
    }

    /// Flushes the lines written so far.
    pub fn flush(&mut self) {
        let flushed = self.out.flush();
        self.judge(flushed);
    }

    /// Ends the process if a write to standard output failed: the reader has closed the pipe (`| head`), or the disk is
    /// full.
    fn judge(&self, written: std::io::Result<()>) {
        let Err(error) = written else { return };
        if error.kind() != ErrorKind::BrokenPipe {
            eprintln!("hekate: write to standard output: {error}");
        }
        std::process::exit(CANNOT_WRITE);
    }
}

/// Prints progress on standard error every `PROGRESS_EVERY`, first after that time.
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

    /// As `tick`, with a text that is made only if it is printed.
    pub fn tick_with(&mut self, what: impl FnOnce() -> String) {
        if self.last.elapsed() > PROGRESS_EVERY {
            self.last = Instant::now();
            eprintln!("{}", what());
        }
    }
}
