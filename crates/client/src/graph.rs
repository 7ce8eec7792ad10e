//! The graph of an open volume: it follows the volume's record, of whose changes servers tell in their replies to
//! heartbeats. A thread of its own tells the translators of the time: one that blocks keeps no heartbeat.

use hekate_graph::report::{FixedLayer, GraphReport, PartitionReport};
use hekate_graph::{Catalogue, GraphSpec, LayerSpec, Next, RunningGraph};
use hekate_proto::map::{READ_ONLY, VolumeMap};
use hekate_proto::{BrickId, Error, Result, SessionId};
use hekate_threads::{Mutex, elapsed, now};
use hekate_transport::Servers;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval of `Event::Timer`.
const TICK: Duration = Duration::from_secs(1);
/// Time without an answer to a heartbeat after which translators forget what they remember of the volume.
const RECALL_AFTER: Duration = Duration::from_secs(5);

/// The graph, and what is needed to replace it.
pub(crate) struct VolumeGraph {
    running: Arc<RunningGraph>,
    /// Translators of this program above those of the volume.
    extra: Vec<LayerSpec>,
    change: Mutex<Change>,
    /// When a server last answered a heartbeat.
    heard: Mutex<Instant>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Change {
    /// The last change that was read: used, or refused.
    tried: u64,
    is_under_way: bool,
    /// The thread that tells translators of the time runs. Without translators there is none.
    is_ticking: bool,
}

impl VolumeGraph {
    pub(crate) fn open(
        catalogue: Catalogue,
        extra: Vec<LayerSpec>,
        spec: &GraphSpec,
        bottom: Next,
    ) -> Result<Arc<Self>> {
        let running = Arc::new(RunningGraph::open(catalogue, &with(&extra, spec), bottom)?);
        let change = Mutex::new(Change { tried: spec.change, ..Change::default() });
        let (heard, is_over) = (Mutex::new(now()), AtomicBool::new(false));
        let graph = Arc::new(Self { running, extra, change, heard, is_over });
        graph.begin_ticking()?;
        Ok(graph)
    }

    /// Starts the thread that tells translators of the time, if there are any and it does not run.
    fn begin_ticking(self: &Arc<Self>) -> Result<()> {
        let mut change = self.change.lock();
        if change.is_ticking || self.running.is_empty() {
            return Ok(());
        }
        let graph = self.clone();
        hekate_threads::spawn("hekate-tick", move || graph.tick()).map_err(|e| Error::io("start a thread", e))?;
        change.is_ticking = true;
        Ok(())
    }

    /// Runs until the volume is closed, or has no translators any more.
    fn tick(&self) {
        let mut is_recalled = false;
        while !self.is_over.load(Ordering::SeqCst) {
            hekate_threads::sleep(TICK);
            self.running.tick();
            let is_unheard = elapsed(*self.heard.lock()) > RECALL_AFTER;
            if is_unheard && !is_recalled {
                self.running.recall(None);
            }
            is_recalled = is_unheard;
            let mut change = self.change.lock();
            if self.running.is_empty() && !change.is_under_way {
                change.is_ticking = false;
                return;
            }
        }
    }

    /// Ends the translators.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.running.stop();
    }

    pub(crate) fn running(&self) -> &Arc<RunningGraph> {
        &self.running
    }

    /// Takes note of the change that servers know. A newer one is read and used by a thread of its own: to start a
    /// translator may take seconds.
    pub(crate) fn follow(self: &Arc<Self>, known: u64, servers: &Arc<dyn Servers>) {
        *self.heard.lock() = now();
        {
            let mut change = self.change.lock();
            if known <= change.tried || change.is_under_way {
                return;
            }
            change.is_under_way = true;
        }
        let (graph, servers) = (self.clone(), servers.clone());
        let run = move || {
            let before = graph.change.lock().tried;
            let tried = match servers.map() {
                // Another server has answered, which has not heard of the change yet.
                Ok(map) if map.graph.change <= before => before,
                Ok(map) => {
                    graph.use_graph(&map.graph);
                    map.graph.change
                }
                Err(error) => {
                    log::warn!("the volume's graph cannot be read: {error}");
                    before
                }
            };
            let mut change = graph.change.lock();
            (change.tried, change.is_under_way) = (tried, false);
        };
        if hekate_threads::spawn("hekate-graph", run).is_err() {
            self.change.lock().is_under_way = false;
        }
    }

    fn use_graph(self: &Arc<Self>, spec: &GraphSpec) {
        let outcome = self.running.replace(&with(&self.extra, spec)).and_then(|()| self.begin_ticking());
        match outcome {
            Ok(()) => log::info!("the volume's graph is that of change {}", spec.change),
            Err(error) => log::error!("the volume's graph stays as it was: {error}"),
        }
    }

    /// What runs, and the layers below.
    pub(crate) fn report(&self, map: &VolumeMap, session: SessionId) -> GraphReport {
        let server_of =
            |brick: BrickId| map.bricks.iter().find(|place| place.brick == brick).map_or(0, |place| place.server.0);
        let partitions = map.views.iter().enumerate().map(|(number, view)| PartitionReport {
            number: number as u32,
            epoch: view.epoch.0,
            leader: server_of(view.leader),
            members: view.members.iter().map(|member| server_of(member.brick)).collect(),
        });
        let in_servers = map.graph.layers.iter().filter(|layer| layer.name == READ_ONLY);
        let mut fixed = vec![
            fixed_layer("distribute", format!("{} partitions", map.views.len())),
            fixed_layer("replicate", format!("{} copies, mode {}", map.copies, map.mode.text())),
            fixed_layer("transport", format!("{} servers", map.servers.len())),
        ];
        fixed.extend(in_servers.map(|layer| fixed_layer(&layer.name, "in the servers".into())));
        GraphReport {
            volume: map.name.clone(),
            session: session.0,
            process: std::process::id(),
            fixed,
            partitions: partitions.collect(),
            ..self.running.report()
        }
    }
}

fn fixed_layer(name: &str, text: String) -> FixedLayer {
    FixedLayer { name: name.into(), text }
}

fn with(extra: &[LayerSpec], spec: &GraphSpec) -> GraphSpec {
    GraphSpec { change: spec.change, layers: extra.iter().chain(&spec.layers).cloned().collect() }
}
