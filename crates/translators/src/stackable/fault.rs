//! `fault`: lets a share of the ops fail, wait, or read less than they asked for, to try what programs do then.

use super::{kind as plain, made_by};
use hekate_graph::{Context, Event, LayerKind, Next, OpSet, OptionKind, OptionSpec, Options, Translator};
use hekate_proto::{DataOp, Error, Op, Reply, Result};
use hekate_threads::{RwLock, random, sleep};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Errors that can be chosen.
const ERRORS: [(&str, u32); 8] = [
    ("EIO", 5),
    ("ENOSPC", 28),
    ("EAGAIN", 11),
    ("ETIMEDOUT", 110),
    ("EACCES", 13),
    ("EDQUOT", 122),
    ("EROFS", 30),
    ("ESTALE", 116),
];

pub fn kind() -> LayerKind {
    let errors = ["none"].into_iter().chain(ERRORS.map(|(name, _)| name)).map(String::from).collect();
    let options = vec![
        OptionSpec::new("ops", OptionKind::Ops, "all", "the ops that may be hit"),
        OptionSpec::new("share", OptionKind::Percent, "1", "how many of a hundred are hit"),
        OptionSpec::new("error", OptionKind::Choice(errors), "EIO", "the error of an op that is hit"),
        OptionSpec::new(
            "after",
            OptionKind::Flag,
            "false",
            "the op is executed, and its reply replaced by the error: as if the reply was lost",
        ),
        OptionSpec::new(
            "delay",
            OptionKind::Time { max: Duration::from_secs(600) },
            "0",
            "time that an op that is hit waits first",
        ),
        OptionSpec::new("short-reads", OptionKind::Flag, "false", "a read that is hit asks for half of its bytes"),
    ];
    LayerKind {
        is_repeatable: true,
        help:
            "With error=none an op that is hit only waits, or reads less. A short read of a mount looks like the end \
               of the file to programs."
                .into(),
        make: made_by(Fault::make),
        ..plain("fault", "lets a share of the ops fail or wait", options)
    }
}

struct Fault {
    next: Next,
    settings: RwLock<Settings>,
    hits: AtomicU64,
}

#[derive(Clone, Copy)]
struct Settings {
    ops: OpSet,
    share: f64,
    errno: Option<u32>,
    after: bool,
    delay: Duration,
    short_reads: bool,
}

impl Settings {
    fn of(options: &Options) -> Self {
        let error = options.text("error");
        Self {
            ops: options.ops("ops"),
            share: options.share("share"),
            errno: ERRORS.iter().find(|(name, _)| *name == error).map(|(_, errno)| *errno),
            after: options.flag("after"),
            delay: options.time("delay"),
            short_reads: options.flag("short-reads"),
        }
    }

    fn hits(&self, op: &Op) -> Result<bool> {
        if !self.ops.has(op.label()) || self.share <= 0.0 {
            return Ok(false);
        }
        let drawn = random().map_err(|error| Error::bug(format!("getrandom: {error}")))?;
        Ok((drawn >> 11) as f64 / (1u64 << 53) as f64 <= self.share)
    }
}

impl Fault {
    fn make(options: &Options, next: Next) -> Result<Self> {
        Ok(Self { next, settings: RwLock::new(Settings::of(options)), hits: AtomicU64::new(0) })
    }
}

impl Translator for Fault {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        let settings = *self.settings.read();
        if !settings.hits(&op)? {
            return self.next.handle(context, op);
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        if !settings.delay.is_zero() {
            sleep(settings.delay);
        }
        let error = settings
            .errno
            .map(|errno| Error::Refused { errno, what: format!("the translator fault has hit this {}", op.label()) });
        if let (Some(error), false) = (&error, settings.after) {
            return Err(error.clone());
        }
        let op = match op {
            Op::Data { op: DataOp::Read { inode, offset, length, touch } } if settings.short_reads && length > 1 => {
                Op::Data { op: DataOp::Read { inode, offset, length: length / 2, touch } }
            }
            other => other,
        };
        let reply = self.next.handle(context, op);
        error.map_or(reply, Err)
    }

    fn event(&self, event: &Event<'_>) -> Result<()> {
        if let Event::Reconfigure(options) = event {
            *self.settings.write() = Settings::of(options);
        }
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, String> {
        [("hits".into(), self.hits.load(Ordering::Relaxed).to_string())].into()
    }
}
