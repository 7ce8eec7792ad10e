//! Log lines of a server or a mount, on standard error: a terminal, a log file or journald.
//!
//! The crates below log through the macros of `log`. If standard error is journald's own stream (JOURNAL_STREAM,
//! systemd.exec(5)) each line begins with its priority (sd-daemon(3)), because the journal records time and program
//! itself; otherwise it begins with the program's name.

use crate::notify;
use hekate_server::PROGRESS;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::io::Write;
use std::sync::OnceLock;

/// Priority `critical` of syslog(3), for a thread that panics.
const CRITICAL: u8 = 2;

static LINES: OnceLock<Lines> = OnceLock::new();

struct Lines {
    /// The program's name. None: the journal records it.
    name: &'static str,
    to_journal: bool,
}

/// Begins to write what is logged.
pub fn begin(name: &'static str) {
    let lines = LINES.get_or_init(|| Lines { name, to_journal: is_journal() });
    // A second call finds the logger that the first has set.
    if log::set_logger(lines).is_ok() {
        log::set_max_level(LevelFilter::Info);
        if lines.to_journal {
            std::panic::set_hook(Box::new(|panic| write(&with_priority(CRITICAL, &panic.to_string()))));
        }
    }
}

/// Prints why a command failed.
pub fn failure(text: &str) {
    let error = priority(Level::Error);
    write(&if is_journal() { with_priority(error, text) } else { named("hekate", text) });
}

impl Log for Lines {
    fn enabled(&self, asked: &Metadata<'_>) -> bool {
        asked.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = record.args().to_string();
        if record.target() == PROGRESS {
            notify::status(&text);
        }
        write(&if self.to_journal { with_priority(priority(record.level()), &text) } else { named(self.name, &text) });
    }

    fn flush(&self) {}
}

/// Writes a line with one call, so that lines of several threads do not mix. A failure is ignored: standard error is
/// where it would be reported.
fn write(lines: &str) {
    let _ = std::io::stderr().lock().write_all(lines.as_bytes());
}

fn named(name: &str, text: &str) -> String {
    format!("{name}: {text}\n")
}

fn with_priority(priority: u8, text: &str) -> String {
    text.lines().map(|line| format!("<{priority}>{line}\n")).collect()
}

fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// True if standard error is the stream that systemd has connected to the journal, not a file or pipe in its place.
fn is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    rustix::fs::fstat(std::io::stderr()).is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_priority() {
        assert_eq!(with_priority(priority(Level::Warn), "one\ntwo"), "<4>one\n<4>two\n");
        assert_eq!(named("hekate-serve", "one"), "hekate-serve: one\n");
    }
}
