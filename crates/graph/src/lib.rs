//! The common interface of the client's layers: each layer of a volume is a [`Translator`], and a volume's graph is a
//! chain of them.
//!
//! `handle` is the whole interface: match the ops of interest and pass the others to `next`. Ops are data, so a layer
//! needs no method for each op. A chain ends in the fixed layers: distribute over replicate over transport.
//! `docs/translators.md` is the guide for authors.

pub mod catalogue;
pub mod options;
pub mod report;
mod running;
pub mod spec;
mod statistics;

pub use catalogue::{Catalogue, LayerKind, Side};
pub use hekate_proto::map::{GraphSpec, LayerSpec};
pub use options::{OpSet, OptionKind, OptionSpec, Options};
pub use running::RunningGraph;
pub use statistics::{Histogram, LayerCounts};

use hekate_proto::{Attr, InodeId, Op, Reply, Result};
use hekate_threads::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Reads that a client sends in the same batch with a change, after it, and the leader's replies to them. An op of several
/// steps keeps those of its last change.
pub type ReadsAfter = Mutex<Vec<(Op, Result<Reply>)>>;

/// Parameters that accompany an op through the layers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context<'a> {
    /// Reply only when the change is on stable storage of every replica.
    pub durable: bool,
    /// Set when the caller gives up (a signal). An op that waits for a server then fails with `Unavailable`.
    pub interrupt: Option<&'a AtomicBool>,
    /// The caller gives up at this time.
    pub deadline: Option<Instant>,
    /// Receives the attributes of the directory after a change of its names, if that needs no additional message.
    pub directory_after: Option<&'a OnceLock<Attr>>,
    /// Receives what was read behind a change, if that needs no additional message.
    pub reads_after: Option<&'a ReadsAfter>,
    /// Receives what stands for the bytes that were read, if leaders tell of their changes: the number changes with them.
    /// Set only if the graph has no layers.
    pub content: Option<&'a AtomicU64>,
    /// The program that sent the op, as far as a mount knows it. `None` at other doors, and for what a mount does by itself.
    pub caller: Option<Caller>,
}

/// A program that uses a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    pub uid: u32,
    /// Id of the thread in the pid namespace of the mount. 0 if it cannot be seen from there, or is the kernel's.
    pub thread: u32,
}

impl Context<'_> {
    /// A context for changes that must be on stable storage when they return.
    pub const DURABLE: Context<'static> = Context { durable: true, ..Context::NONE };
    const NONE: Context<'static> = Context {
        durable: false,
        interrupt: None,
        deadline: None,
        directory_after: None,
        reads_after: None,
        content: None,
        caller: None,
    };

    /// True if the caller gave up.
    pub fn interrupted(&self) -> bool {
        self.interrupt.is_some_and(|flag| flag.load(Ordering::Relaxed))
            || self.deadline.is_some_and(|deadline| hekate_threads::now() >= deadline)
    }
}

/// The layer below.
pub type Next = Arc<dyn Translator>;

/// A layer that sees every op of a volume.
pub trait Translator: Send + Sync {
    /// Answers the op, or passes it on to the next layer, changed or not.
    ///
    /// # Errors
    /// Those of the op.
    fn handle(&self, context: &Context, op: Op) -> Result<Reply>;

    /// Takes note of an event of the layer's life.
    ///
    /// # Errors
    /// Only for [`Event::Reconfigure`], if the layer cannot use the options: it goes on with those it had.
    fn event(&self, event: &Event<'_>) -> Result<()> {
        let _ = event;
        Ok(())
    }

    /// Counters of the layer's own, by name.
    fn counters(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

/// What happens to a layer. A layer gets `Start` first and `Stop` last, unless its graph never ran.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// Every op of the volume passes the layer from now on. Ops that pass it before may run beside ops of the graph that
    /// was there before: a cache remembers nothing of them.
    Start,
    /// No op passes the layer any more.
    Stop,
    /// Use these options instead.
    Reconfigure(&'a Options),
    /// About a second has gone.
    Timer,
    /// Forget what the layer remembers of the inode (`None`: of all inodes): servers may have changed it since.
    Recall(Option<InodeId>),
}

/// Builds a chain of layers above `bottom`. The first layer sees ops first. Layers of servers are left out.
///
/// # Errors
/// As [`Catalogue::check`]; the error of a layer that cannot be made.
pub fn build(catalogue: &Catalogue, layers: &[LayerSpec], bottom: Next) -> Result<RunningGraph> {
    let spec = GraphSpec { change: 0, layers: layers.into() };
    RunningGraph::open(catalogue.clone(), &spec, bottom)
}

#[cfg(test)]
mod tests;
