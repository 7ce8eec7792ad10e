//! `trace`: a line of JSON for every op and its outcome, as the layer above sends and gets them.

use super::details::details;
use super::{kind as plain, made_by};
use hekate_graph::{Context, Event, LayerKind, Next, OpSet, OptionKind, OptionSpec, Options, Translator};
use hekate_proto::{Error, Op, Reply, Result};
use hekate_threads::{RwLock, elapsed, now, time_of_day};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

pub fn kind() -> LayerKind {
    let options = vec![
        OptionSpec::new("ops", OptionKind::Ops, "all", "the ops that are traced"),
        OptionSpec::new("file", OptionKind::Text, "", "file that lines are added to; without one the program's log"),
        OptionSpec::new(
            "slower-than",
            OptionKind::Time { max: Duration::from_secs(3600) },
            "0",
            "only ops that take at least this time",
        ),
        OptionSpec::new("errors", OptionKind::Flag, "false", "only ops that fail"),
    ];
    LayerKind {
        is_transparent: true,
        is_repeatable: true,
        make: made_by(Trace::make),
        ..plain("trace", "writes a line of JSON for every op", options)
    }
}

struct Trace {
    next: Next,
    settings: RwLock<Settings>,
    lines: AtomicU64,
    /// Lines that could not be written.
    lost: AtomicU64,
}

struct Settings {
    ops: OpSet,
    slower_than: Duration,
    errors: bool,
    file: Option<File>,
}

impl Settings {
    fn of(options: &Options) -> Result<Self> {
        let path = options.text("file");
        let open = || OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        let failed = |error| Error::io(format!("translator trace: open {path}"), error);
        Ok(Self {
            ops: options.ops("ops"),
            slower_than: options.time("slower-than"),
            errors: options.flag("errors"),
            file: if path.is_empty() { None } else { Some(open().map_err(failed)?) },
        })
    }
}

impl Trace {
    fn make(options: &Options, next: Next) -> Result<Self> {
        let settings = RwLock::new(Settings::of(options)?);
        Ok(Self { next, settings, lines: AtomicU64::new(0), lost: AtomicU64::new(0) })
    }

    fn write(&self, line: &serde_json::Value) {
        let settings = self.settings.read();
        let written = match settings.file.as_ref() {
            Some(mut file) => file.write_all(format!("{line}\n").as_bytes()).is_ok(),
            None => {
                log::info!("trace: {line}");
                true
            }
        };
        let counter = if written { &self.lines } else { &self.lost };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Translator for Trace {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        let label = op.label();
        let (is_chosen, slower_than, errors) = {
            let settings = self.settings.read();
            (settings.ops.has(label), settings.slower_than, settings.errors)
        };
        if !is_chosen {
            return self.next.handle(context, op);
        }
        let (mut line, begun) = (details(&op), now());
        let reply = self.next.handle(context, op);
        let took = elapsed(begun);
        if took >= slower_than && (reply.is_err() || !errors) {
            let since_1970 = time_of_day().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            line.insert("op".into(), json!(label));
            line.insert("time".into(), json!(since_1970.as_secs_f64()));
            line.insert("us".into(), json!(took.as_micros() as u64));
            line.insert("durable".into(), json!(context.durable));
            if let Err(error) = &reply {
                line.insert("error".into(), json!(error.to_string()));
                line.insert("errno".into(), json!(error.errno()));
            }
            self.write(&line.into());
        }
        reply
    }

    fn event(&self, event: &Event<'_>) -> Result<()> {
        if let Event::Reconfigure(options) = event {
            *self.settings.write() = Settings::of(options)?;
        }
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, String> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed).to_string();
        [("lines".into(), count(&self.lines)), ("lines lost".into(), count(&self.lost))].into()
    }
}
