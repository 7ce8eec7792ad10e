//! Graphs that are built, replaced under load, and reconfigured.

use crate::catalogue::{Catalogue, LayerKind, Side};
use crate::{Context, Event, Next, OptionKind, OptionSpec, Options, RunningGraph, Translator, spec};
use hekate_proto::map::{GraphSpec, LAYERS_MAX, LayerSpec};
use hekate_proto::{Error, InodeId, InodeOp, LockOp, LockOwner, Op, Reply, Result, VolumeOp};
use hekate_threads::{Mutex, sleep, spawn_joined};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(1);

/// What layers have said.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn add(&self, line: String) {
        self.0.lock().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The end of a chain, which may hold ops.
#[derive(Default)]
struct Bottom {
    ops: AtomicU64,
    /// The next op waits until this is false.
    holds: AtomicBool,
}

impl Translator for Bottom {
    fn handle(&self, _: &Context, _: Op) -> Result<Reply> {
        let is_first = self.ops.fetch_add(1, Ordering::SeqCst) == 0;
        while is_first && self.holds.load(Ordering::SeqCst) {
            sleep(PAUSE);
        }
        Ok(Reply::Done)
    }
}

/// Notes what happens to it.
struct Noting {
    name: String,
    said: Said,
    next: Next,
}

impl Translator for Noting {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        match op {
            Op::Volume { .. } => Err(Error::ReadOnly),
            op => self.next.handle(context, op),
        }
    }

    fn event(&self, event: &Event<'_>) -> Result<()> {
        let what = match event {
            Event::Start => "start".into(),
            Event::Stop => "stop".into(),
            Event::Timer => "timer".into(),
            Event::Recall(_) => "recall".into(),
            Event::Reconfigure(options) if options.text("say") == "no" => {
                return Err(Error::invalid("no"));
            }
            Event::Reconfigure(options) => format!("say {}", options.text("say")),
        };
        self.said.add(format!("{} {what}", self.name));
        Ok(())
    }
}

fn kind(name: &str, side: Side, said: &Said) -> LayerKind {
    let (named, said) = (name.to_string(), said.clone());
    let make = move |_: &Options, next: Next| -> Result<Arc<dyn Translator>> {
        Ok(Arc::new(Noting { name: named.clone(), said: said.clone(), next }))
    };
    LayerKind {
        name: name.into(),
        summary: String::new(),
        help: String::new(),
        side,
        is_transparent: true,
        is_repeatable: name == "b",
        options: vec![OptionSpec::new("say", OptionKind::Text, "", "")],
        is_open: false,
        make: (side == Side::Client).then(|| Arc::new(make) as crate::catalogue::MakeLayer),
    }
}

fn catalogue() -> (Catalogue, Said) {
    let said = Said::default();
    let kinds = [("a", Side::Client), ("b", Side::Client), ("below", Side::Leader)];
    (Catalogue::new(kinds.map(|(name, side)| kind(name, side, &said)).into()), said)
}

fn graph_of(change: u64, layers: &[&str]) -> GraphSpec {
    GraphSpec { change, layers: layers.iter().map(|text| spec::parse(text).unwrap()).collect() }
}

const STAT: Op = Op::Inode { op: InodeOp::GetAttr { inode: InodeId::new(1, 1, 1) } };

#[test]
fn the_first_layer_sees_an_op_first_and_wrong_graphs_are_refused_with_the_fix() {
    let (catalogue, said) = catalogue();
    let graph = crate::build(&catalogue, &[spec::parse("a").unwrap()], Arc::new(Bottom::default())).unwrap();
    assert_eq!(graph.handle(&Context::default(), Op::Volume { op: VolumeOp::StatFs }), Err(Error::ReadOnly));
    assert_eq!(graph.handle(&Context::default(), STAT), Ok(Reply::Done));
    assert_eq!(said.take(), ["a start"]);
    let refusal = |layers: &[&str]| {
        let specs: Vec<LayerSpec> = layers.iter().map(|text| spec::parse(text).unwrap()).collect();
        catalogue.check(&specs).err().unwrap().to_string()
    };
    assert!(refusal(&["nonesuch"]).contains("built in are a, b, below"));
    assert!(refusal(&["a:what=1"]).contains("translator a has no option \"what\"; it has say"));
    assert!(refusal(&["a", "a"]).contains("remove the other"));
    assert!(refusal(&["below", "a"]).contains("name it after a"));
    assert!(refusal(&["b"; LAYERS_MAX + 1]).contains("at most 16"));
    assert!(catalogue.check(&graph_of(1, &["a", "b", "b", "below"]).layers).is_ok());
}

#[test]
fn a_replaced_graph_ends_its_ops_before_the_new_one_starts() {
    let (catalogue, said) = catalogue();
    let bottom = Arc::new(Bottom::default());
    let graph = Arc::new(RunningGraph::open(catalogue, &graph_of(1, &["a"]), bottom.clone()).unwrap());
    bottom.holds.store(true, Ordering::SeqCst);
    let running = graph.clone();
    let op =
        spawn_joined("op", move || assert_eq!(running.handle(&Context::default(), STAT), Ok(Reply::Done))).unwrap();
    while bottom.ops.load(Ordering::SeqCst) == 0 {
        sleep(PAUSE);
    }
    graph.replace(&graph_of(2, &["b"])).unwrap();
    graph.tick();
    assert_eq!(graph.report().replaced, 1);
    assert_eq!(graph.handle(&Context::default(), STAT), Ok(Reply::Done), "the new graph serves meanwhile");
    assert_eq!(said.take(), ["a start", "b timer"]);
    bottom.holds.store(false, Ordering::SeqCst);
    op.join();
    graph.tick();
    assert_eq!(said.take(), ["b start", "a stop", "b timer"]);
    assert_eq!((bottom.ops.load(Ordering::SeqCst), graph.report().replaced, graph.change()), (2, 0, 2));
}

#[test]
fn a_graph_is_shown_while_a_layer_of_the_next_one_starts() {
    let (_, said) = catalogue();
    let (is_made, may_end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut slow = kind("b", Side::Client, &said);
    let (make, begun, end) = (slow.make.take().unwrap(), is_made.clone(), may_end.clone());
    slow.make = Some(Arc::new(move |options: &Options, next: Next| {
        begun.store(true, Ordering::SeqCst);
        while !end.load(Ordering::SeqCst) {
            sleep(PAUSE);
        }
        make(options, next)
    }));
    let catalogue = Catalogue::new(vec![kind("a", Side::Client, &said), slow]);
    let graph = RunningGraph::open(catalogue, &graph_of(1, &["a"]), Arc::new(Bottom::default())).unwrap();
    let graph = Arc::new(graph);
    let changed = graph.clone();
    let change = spawn_joined("change", move || changed.replace(&graph_of(2, &["b"])).unwrap()).unwrap();
    while !is_made.load(Ordering::SeqCst) {
        sleep(PAUSE);
    }
    assert_eq!((graph.report().layers[0].name.as_str(), graph.change(), graph.is_empty()), ("a", 1, false));
    may_end.store(true, Ordering::SeqCst);
    change.join();
    assert_eq!((graph.report().layers[0].name.as_str(), graph.change()), ("b", 2));
}

#[test]
fn a_lock_that_waits_does_not_hold_back_the_next_graph() {
    let (catalogue, said) = catalogue();
    let bottom = Arc::new(Bottom::default());
    let graph = Arc::new(RunningGraph::open(catalogue, &graph_of(1, &["a"]), bottom.clone()).unwrap());
    bottom.holds.store(true, Ordering::SeqCst);
    let running = graph.clone();
    let lock = Op::Lock { op: LockOp::Release { inode: InodeId::new(1, 1, 1), owner: LockOwner(1) } };
    let op = spawn_joined("op", move || assert!(running.handle(&Context::default(), lock).is_ok())).unwrap();
    while bottom.ops.load(Ordering::SeqCst) == 0 {
        sleep(PAUSE);
    }
    graph.replace(&graph_of(2, &["b"])).unwrap();
    assert_eq!(said.take(), ["a start", "b start"]);
    bottom.holds.store(false, Ordering::SeqCst);
    op.join();
    graph.tick();
    assert_eq!(said.take(), ["a stop", "b timer"]);
}

#[test]
fn other_options_reach_the_layers_and_a_refusal_leaves_all_as_it_was() {
    let (catalogue, said) = catalogue();
    let bottom = Arc::new(Bottom::default());
    let graph = RunningGraph::open(catalogue, &graph_of(1, &["a:say=1", "b:say=1"]), bottom).unwrap();
    graph.replace(&graph_of(2, &["a:say=2", "b:say=1"])).unwrap();
    assert_eq!(said.take(), ["a start", "b start", "a say 2"]);
    let refused = graph.replace(&graph_of(3, &["a:say=3", "b:say=no"])).unwrap_err();
    assert_eq!(refused, Error::invalid("no"));
    assert_eq!(said.take(), ["a say 3", "a say 2"]);
    assert_eq!((graph.change(), graph.report().refused.unwrap()), (2, format!("change 3: {refused}")));
    assert!(graph.replace(&graph_of(4, &["nonesuch"])).is_err());
    graph.replace(&graph_of(5, &[])).unwrap();
    assert_eq!(said.take(), ["a stop", "b stop"]);
    assert_eq!((graph.report().layers.len(), graph.report().refused), (0, None));
}
