//! Cost of one pass through a translator that changes nothing: `cargo bench -p hekate-graph`. Run by hand.
//!
//! Compares a chain of 16 such layers, each counted and timed as in a mount, with the bottom alone, for ops of different sizes. Prints the median of many
//! rounds, in nanoseconds for each layer. `Op` and `Reply` are moved through the layers; their bytes are not copied.
//! Target: 300 ns.

use bytes::Bytes;
use hekate_graph::catalogue::MakeLayer;
use hekate_graph::{Catalogue, Context, GraphSpec, LayerKind, LayerSpec, Next, RunningGraph, Side, Translator};
use hekate_proto::*;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const LAYERS: usize = 16;
const ROUNDS: usize = 200;
const CALLS: usize = 2_000;

struct Bottom;

impl Translator for Bottom {
    fn handle(&self, _: &Context, op: Op) -> Result<Reply> {
        match black_box(op) {
            Op::Data { op: DataOp::Write { data, .. } } => Ok(Reply::Bytes { bytes: data }),
            _ => Ok(Reply::Done),
        }
    }
}

/// A typical layer: inspects the op, and passes on all but one kind.
struct Pass(Arc<dyn Translator>);

impl Translator for Pass {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        match op {
            Op::Volume { op: VolumeOp::EndSession } => Err(Error::ReadOnly),
            other => self.0.handle(context, other),
        }
    }
}

fn nanoseconds(graph: &dyn Translator, op: &Op) -> f64 {
    let context = Context::default();
    let round = || {
        let begun = Instant::now();
        for _ in 0..CALLS {
            black_box(graph.handle(black_box(&context), op.clone())).ok();
        }
        begun.elapsed().as_nanos() as f64 / CALLS as f64
    };
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() -> Result<()> {
    let make: MakeLayer = Arc::new(|_, next| Ok(Arc::new(Pass(next)) as Next));
    let kind = LayerKind {
        name: "pass".into(),
        summary: String::new(),
        help: String::new(),
        side: Side::Client,
        is_transparent: true,
        is_repeatable: true,
        options: Vec::new(),
        is_open: false,
        make: Some(make),
    };
    let catalogue = Catalogue::new(vec![kind]);
    let chain = |count: usize| {
        let layers = vec![LayerSpec { name: "pass".into(), ..LayerSpec::default() }; count];
        RunningGraph::open(catalogue.clone(), &GraphSpec { change: 0, layers }, Arc::new(Bottom))
    };
    let (bare, layered) = (chain(0)?, chain(LAYERS)?);
    let write = DataOp::Write { inode: ROOT, offset: 0, data: Bytes::from(vec![7; 64 << 10]), drop_set_id: false };
    let lookup = NameOp::Lookup { dir: ROOT, name: Name::try_from("some-file-name.txt")? };
    let ops = [
        ("look-up", Op::Name { op: lookup }),
        ("getattr", Op::Inode { op: InodeOp::GetAttr { inode: ROOT } }),
        ("write of 64 KiB", Op::Data { op: write }),
    ];
    println!("size of Op {} bytes, of Reply {}", size_of::<Op>(), size_of::<Result<Reply>>());
    for (name, op) in ops {
        let (bare, layered) = (nanoseconds(&bare, &op), nanoseconds(&layered, &op));
        println!(
            "{name}: {:.1} ns a hop ({bare:.0} ns without layers, {layered:.0} ns through {LAYERS})",
            (layered - bare) / LAYERS as f64
        );
    }
    Ok(())
}
