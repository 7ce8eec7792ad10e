//! A volume's graph while it is used: it can be replaced under load, and counts what its layers do.
//!
//! Invariants: an op passes the layers of one graph, from top to bottom, and reaches the fixed layers once. A layer gets
//! `Start` when no op of an earlier graph is under way, and `Stop` when no op passes it any more; lock ops, which may
//! wait for long and which no cache remembers, do not count.

use crate::catalogue::{Catalogue, LayerKind, Side};
use crate::options::Options;
use crate::report::{GraphReport, LayerReport};
use crate::statistics::LayerStatistics;
use crate::{Context, Event, Next, Translator};
use hekate_proto::map::{GraphSpec, LayerSpec};
use hekate_proto::{Error, InodeId, Op, Reply, Result};
use hekate_threads::{Mutex, RwLock, elapsed, now};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The graph of a volume.
pub struct RunningGraph {
    catalogue: Catalogue,
    bottom: Next,
    current: RwLock<Arc<Chain>>,
    /// Held while layers are made, started, stopped or given options, which may take seconds.
    replacing: Mutex<()>,
    change: Mutex<Change>,
}

/// What changes of the graph leave to do.
#[derive(Default)]
struct Change {
    /// Chains that were replaced and may have ops under way.
    replaced: Vec<Arc<Chain>>,
    /// Why the last change was refused.
    refused: Option<String>,
}

/// One list of layers.
struct Chain {
    /// Changes when layers take other options.
    spec: Mutex<GraphSpec>,
    top: Next,
    /// From top to bottom.
    layers: Vec<Arc<Measured>>,
    /// Ops under way.
    under_way: AtomicU64,
    is_started: AtomicBool,
}

/// A layer that is counted.
struct Measured {
    spec: Mutex<LayerSpec>,
    kind: LayerKind,
    layer: Next,
    statistics: LayerStatistics,
}

impl Translator for Measured {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        let begun = now();
        let reply = self.layer.handle(context, op);
        self.statistics.add(elapsed(begun), reply.is_err());
        reply
    }
}

impl Chain {
    fn build(catalogue: &Catalogue, spec: &GraphSpec, bottom: &Next) -> Result<Self> {
        let mut top = bottom.clone();
        let mut layers = Vec::new();
        for ((kind, options), spec) in catalogue.check(&spec.layers)?.into_iter().zip(&spec.layers).rev() {
            let (Side::Client, Some(make)) = (kind.side, kind.make.clone()) else { continue };
            let layer = make(&options, top).inspect_err(|_| stop(&layers))?;
            let measured = Arc::new(Measured {
                spec: Mutex::new(spec.clone()),
                kind,
                layer,
                statistics: LayerStatistics::default(),
            });
            top = measured.clone();
            layers.insert(0, measured);
        }
        let (under_way, is_started) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Self { spec: Mutex::new(spec.clone()), top, layers, under_way, is_started })
    }

    fn start(&self) {
        if !self.is_started.swap(true, Ordering::SeqCst) {
            self.tell(&Event::Start);
        }
    }

    fn tell(&self, event: &Event<'_>) {
        for measured in &self.layers {
            if let Err(error) = measured.layer.event(event) {
                log::warn!("translator {}: {event:?}: {error}", measured.kind.name);
            }
        }
    }
}

/// Stops layers that were made.
fn stop(layers: &[Arc<Measured>]) {
    for measured in layers {
        let _ = measured.layer.event(&Event::Stop);
    }
}

/// An op that counts as under way, until it is dropped.
struct UnderWay<'a>(&'a AtomicU64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RunningGraph {
    /// Builds the graph above the fixed layers, and starts it.
    ///
    /// # Errors
    /// As [`Catalogue::check`]; the error of a layer that cannot be made.
    pub fn open(catalogue: Catalogue, spec: &GraphSpec, bottom: Next) -> Result<Self> {
        let chain = Chain::build(&catalogue, spec, &bottom)?;
        chain.start();
        let current = RwLock::new(Arc::new(chain));
        Ok(Self { catalogue, bottom, current, replacing: Mutex::default(), change: Mutex::default() })
    }

    /// The layers below the graph.
    pub fn bottom(&self) -> &Next {
        &self.bottom
    }

    /// True if ops pass layers above the fixed ones.
    pub fn has_layers(&self) -> bool {
        !self.current.read().layers.is_empty()
    }

    /// Number of the change that is in use.
    pub fn change(&self) -> u64 {
        self.current.read().spec.lock().change
    }

    /// Uses another graph from now on. Ops that are under way end in the one where they began. If only options differ,
    /// the layers stay and take them.
    ///
    /// # Errors
    /// As [`RunningGraph::open`], or a layer refuses its options: the old graph runs on.
    pub fn replace(&self, spec: &GraphSpec) -> Result<()> {
        let _replacing = self.replacing.lock();
        let outcome = self.replace_with(spec);
        self.change.lock().refused = outcome.as_ref().err().map(|error| format!("change {}: {error}", spec.change));
        outcome
    }

    fn replace_with(&self, spec: &GraphSpec) -> Result<()> {
        let old = self.current.read().clone();
        let before = old.spec.lock().clone();
        let names = |spec: &GraphSpec| spec.layers.iter().map(|layer| layer.name.clone()).collect::<Vec<_>>();
        if names(&before) == names(spec) && self.reconfigure(&old, &before, spec)? {
            let of_clients =
                spec.layers.iter().filter(|layer| old.layers.iter().any(|known| known.kind.name == layer.name));
            old.layers.iter().zip(of_clients).for_each(|(measured, layer)| *measured.spec.lock() = layer.clone());
            *old.spec.lock() = spec.clone();
            return Ok(());
        }
        let new = Arc::new(Chain::build(&self.catalogue, spec, &self.bottom)?);
        {
            let mut change = self.change.lock();
            *self.current.write() = new;
            change.replaced.push(old);
        }
        self.settle();
        Ok(())
    }

    /// Gives the layers other options. False if a layer has to be made anew for them.
    fn reconfigure(&self, chain: &Chain, before: &GraphSpec, after: &GraphSpec) -> Result<bool> {
        let options = |spec: &GraphSpec| -> Result<Vec<Options>> {
            let clients = self.catalogue.check(&spec.layers)?.into_iter().filter(|(kind, _)| kind.side == Side::Client);
            Ok(clients.map(|(_, options)| options).collect())
        };
        let (before, after) = (options(before)?, options(after)?);
        assert_eq!((before.len(), after.len()), (chain.layers.len(), chain.layers.len()), "graphs of the same names");
        for (at, measured) in chain.layers.iter().enumerate().filter(|(at, _)| before[*at] != after[*at]) {
            if let Err(error) = measured.layer.event(&Event::Reconfigure(&after[at])) {
                for (back, measured) in chain.layers.iter().enumerate().take(at) {
                    let _ = measured.layer.event(&Event::Reconfigure(&before[back]));
                }
                let is_made_anew = matches!(error, Error::NotSupported { .. });
                return if is_made_anew { Ok(false) } else { Err(error) };
            }
        }
        Ok(true)
    }

    /// Starts the present chain once no op of another one is under way, and stops those that nothing uses any more. The
    /// caller holds `replacing`.
    fn settle(&self) {
        let is_idle = |chain: &Arc<Chain>| chain.under_way.load(Ordering::SeqCst) == 0;
        if self.change.lock().replaced.iter().all(is_idle) {
            self.current.read().clone().start();
        }
        let mut over = Vec::new();
        self.change.lock().replaced.retain(|chain| {
            let is_over = is_idle(chain) && Arc::strong_count(chain) == 1;
            over.extend(is_over.then(|| chain.clone()));
            !is_over
        });
        over.iter().for_each(|chain| chain.tell(&Event::Stop));
    }

    /// True without translators, also of graphs that were replaced and have ops under way.
    pub fn is_empty(&self) -> bool {
        self.change.lock().replaced.is_empty() && self.current.read().layers.is_empty()
    }

    /// To be called about once a second.
    pub fn tick(&self) {
        {
            let _replacing = self.replacing.lock();
            self.settle();
        }
        self.current.read().clone().tell(&Event::Timer);
    }

    /// Lets all layers forget what they know of an inode, or of all.
    pub fn recall(&self, inode: Option<InodeId>) {
        self.current.read().clone().tell(&Event::Recall(inode));
    }

    /// Ends the layers.
    pub fn stop(&self) {
        let _replacing = self.replacing.lock();
        let replaced = std::mem::take(&mut self.change.lock().replaced);
        for chain in replaced.iter().chain([&self.current.read().clone()]) {
            chain.tell(&Event::Stop);
        }
    }

    /// The layers of the present graph, with their options and counters. Does not wait for layers that start.
    pub fn report(&self) -> GraphReport {
        let (chain, replaced, refused) = {
            let change = self.change.lock();
            (self.current.read().clone(), change.replaced.len(), change.refused.clone())
        };
        let layers = chain.layers.iter().map(|measured| LayerReport {
            name: measured.kind.name.clone(),
            options: measured.spec.lock().options.clone(),
            is_transparent: measured.kind.is_transparent,
            counts: measured.statistics.counts(),
            counters: measured.layer.counters(),
        });
        GraphReport {
            change: chain.spec.lock().change,
            layers: layers.collect(),
            replaced,
            refused,
            ..GraphReport::default()
        }
    }
}

impl Translator for RunningGraph {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        let current = self.current.read();
        let chain = current.clone();
        let _under_way = (!matches!(op, Op::Lock { .. })).then(|| {
            chain.under_way.fetch_add(1, Ordering::SeqCst);
            UnderWay(&chain.under_way)
        });
        drop(current);
        chain.top.handle(context, op)
    }
}
