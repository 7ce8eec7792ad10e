//! Cost of a hop through each kind of translator: `cargo bench -p hekate-plugins`. Run by hand, on a machine that does
//! nothing else. Needs cc, python3, and `cargo build --release -p count-names`; with `python-inside` built its row too.
//!
//! Prints the median of many rounds in nanoseconds: what a look-up and a write of 4 KiB cost more with the translator
//! above a bottom that answers at once.

#![allow(clippy::unwrap_used, reason = "a measurement")]

use hekate_graph::{Context, GraphSpec, Next, RunningGraph, Translator, spec};
use hekate_plugins::Home;
use hekate_proto::{DataOp, Name, NameOp, Op, ROOT, Reply, Result};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const ROUNDS: usize = 31;

struct Bottom;

impl Translator for Bottom {
    fn handle(&self, _: &Context, op: Op) -> Result<Reply> {
        match black_box(op) {
            Op::Name { .. } => Err(hekate_proto::Error::NotFound),
            _ => Ok(Reply::Done),
        }
    }
}

/// A translator in Python with this method for look-ups and writes.
fn python(scratch: &Path, name: &str, answer: &str) -> PathBuf {
    let directory = scratch.join(format!("sources/{name}"));
    std::fs::create_dir_all(&directory).unwrap();
    let text = format!(
        "from hekate import PASS, Translator\nclass T(Translator):\n    def lookup(self, op): return {answer}\n    \
         def write(self, op): return {answer}\n"
    );
    std::fs::write(directory.join("translator.py"), text).unwrap();
    directory
}

fn nanoseconds(graph: &RunningGraph, op: &Op, calls: usize) -> f64 {
    let context = Context::default();
    let round = || {
        let begun = Instant::now();
        for _ in 0..calls {
            black_box(graph.handle(black_box(&context), op.clone())).ok();
        }
        begun.elapsed().as_nanos() as f64 / calls as f64
    };
    round();
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() {
    let scratch = std::env::temp_dir().join(format!("hekate-hops-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let home = Home::new(&scratch);
    let library = scratch.join("librefuse.so");
    let compiled = Command::new("cc")
        .args(["-O2", "-std=c99", "-fPIC", "-shared", "-pthread", &format!("-I{SOURCE}/include"), "-o"])
        .args([&library, &Path::new(SOURCE).join("examples/plugins/refuse-names/refuse_names.c")])
        .status();
    assert!(compiled.unwrap().success());
    home.install_plugin(&library, "refuse-names").unwrap();
    let passes = scratch.join("passes.so");
    let compiled = Command::new("cc")
        .args([
            "-O2",
            "-std=c99",
            "-fPIC",
            "-shared",
            "-pthread",
            "-DVARIANT=PASSES",
            &format!("-I{SOURCE}/include"),
            "-o",
        ])
        .args([&passes, &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/odd.c")])
        .status();
    assert!(compiled.unwrap().success());
    home.install_plugin(&passes, "passes").unwrap();
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{SOURCE}/target"));
    home.install_plugin(Path::new(&format!("{target}/release/libcount_names.so")), "count-names").unwrap();
    home.install_python(&python(&scratch, "passing", "PASS"), "passing").unwrap();
    home.install_python(&python(&scratch, "nexting", "self.next(op)"), "nexting").unwrap();
    let mut rows = vec![
        ("built in: io-stats", "io-stats".to_string(), 20_000),
        ("built in: negative-lookup", "negative-lookup".to_string(), 20_000),
        ("C, passes the op on", "passes".to_string(), 20_000),
        ("C, not interested in the op", "refuse-names".to_string(), 20_000),
        ("Rust library, sends look-ups below itself", "count-names".to_string(), 20_000),
        ("Python worker, PASS", "python:translator=passing".to_string(), 300),
        ("Python worker, self.next", "python:translator=nexting".to_string(), 300),
    ];
    let inside = PathBuf::from(format!("{SOURCE}/python-inside/target/release/libhekate_python_inside.so"));
    if inside.exists() {
        home.install_plugin(&inside, "python-inside").unwrap();
        for (label, name) in [("Python inside, PASS", "passing"), ("Python inside, self.next", "nexting")] {
            let directory = scratch.join("sources").join(name);
            let layer = format!("python-inside:directory={},library={SOURCE}/python", directory.display());
            rows.push((label, layer, 5_000));
        }
    }
    let lookup = NameOp::Lookup { dir: ROOT, name: Name::try_from("some-file-name.txt").unwrap() };
    let write = DataOp::Write { inode: ROOT, offset: 0, data: vec![7; 4096].into(), drop_set_id: false };
    let (lookup, write) = (Op::Name { op: lookup }, Op::Data { op: write });
    let open = |layers: &[&str]| {
        let catalogue = hekate_translators::built_in().with_installed(home.finder());
        let layers = layers.iter().map(|text| spec::parse(text).unwrap()).collect();
        RunningGraph::open(catalogue, &GraphSpec { change: 1, layers }, Arc::new(Bottom) as Next).unwrap()
    };
    let bare = open(&[]);
    let (bare_lookup, bare_write) = (nanoseconds(&bare, &lookup, 20_000), nanoseconds(&bare, &write, 20_000));
    println!("without translators: look-up {bare_lookup:.0} ns, write of 4 KiB {bare_write:.0} ns");
    for (label, layer, calls) in rows {
        let graph = open(&[&layer]);
        let (lookup, write) = (nanoseconds(&graph, &lookup, calls), nanoseconds(&graph, &write, calls));
        println!("{label}: look-up {:.0} ns, write of 4 KiB {:.0} ns", lookup - bare_lookup, write - bare_write);
        graph.stop();
    }
    let _ = std::fs::remove_dir_all(&scratch);
}
