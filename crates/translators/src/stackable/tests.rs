//! The stackable translators over a bottom that answers from a table.

use super::built_in;
use hekate_graph::{Caller, Context, GraphSpec, RunningGraph, Translator, spec};
use hekate_proto::*;
use hekate_threads::{Mutex, sleep, spawn_joined};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const DIR: InodeId = InodeId::new(1, 1, 5);

/// A directory of names.
#[derive(Default)]
struct Bottom {
    names: Mutex<BTreeSet<Vec<u8>>>,
    lookups: AtomicU64,
    reads: Mutex<Vec<u32>>,
    /// Look-ups have found their answer, and wait to give it.
    holds: AtomicBool,
}

impl Translator for Bottom {
    fn handle(&self, _: &Context, op: Op) -> Result<Reply> {
        match op {
            Op::Name { op: NameOp::Lookup { name, .. } } => {
                let is_there = self.names.lock().contains(name.as_bytes());
                self.lookups.fetch_add(1, Ordering::SeqCst);
                while self.holds.load(Ordering::SeqCst) {
                    sleep(Duration::from_millis(1));
                }
                if is_there { Ok(Reply::Done) } else { Err(Error::NotFound) }
            }
            Op::Name { op: NameOp::Create { name, .. } } => {
                self.names.lock().insert(name.as_bytes().to_vec());
                Ok(Reply::Done)
            }
            Op::Name { op: NameOp::Rename { name, to_name, .. } } => {
                let mut names = self.names.lock();
                names.remove(name.as_bytes());
                names.insert(to_name.as_bytes().to_vec());
                Ok(Reply::Done)
            }
            Op::Data { op: DataOp::Read { length, .. } } => {
                self.reads.lock().push(length);
                Ok(Reply::Done)
            }
            _ => Ok(Reply::Done),
        }
    }
}

fn graph(layers: &[&str]) -> (Arc<RunningGraph>, Arc<Bottom>) {
    let bottom = Arc::new(Bottom::default());
    let spec = GraphSpec { change: 1, layers: layers.iter().map(|text| spec::parse(text).unwrap()).collect() };
    (Arc::new(RunningGraph::open(built_in(), &spec, bottom.clone()).unwrap()), bottom)
}

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn lookup(graph: &RunningGraph, text: &str) -> Result<Reply> {
    graph.handle(&Context::default(), Op::Name { op: NameOp::Lookup { dir: DIR, name: name(text) } })
}

fn create(text: &str) -> Op {
    let (name, node) = (name(text), NewNode::File);
    let op = NameOp::Create { dir: DIR, name, node, mode: 0, uid: 0, gid: 0, umask: 0, exclusive: true, seed: 1 };
    Op::Name { op }
}

fn counters(graph: &RunningGraph) -> BTreeMap<String, String> {
    graph.report().layers[0].counters.clone()
}

#[test]
fn a_missing_name_is_asked_for_once_and_found_when_it_is_made() {
    let (graph, bottom) = graph(&["negative-lookup:lifetime=1h"]);
    let lookups = || bottom.lookups.load(Ordering::SeqCst);
    (0..3).for_each(|_| assert_eq!(lookup(&graph, "a"), Err(Error::NotFound)));
    assert_eq!(lookups(), 1);
    graph.handle(&Context::default(), create("a")).unwrap();
    assert_eq!((lookup(&graph, "a"), lookups()), (Ok(Reply::Done), 2));
    assert_eq!(lookup(&graph, "b"), Err(Error::NotFound));
    let mode = RenameMode::Replace;
    let rename = NameOp::Rename { dir: DIR, name: name("a"), to_dir: DIR, to_name: name("b"), mode, open_here: None };
    graph.handle(&Context::default(), Op::Name { op: rename }).unwrap();
    assert_eq!((lookup(&graph, "b"), lookup(&graph, "a")), (Ok(Reply::Done), Err(Error::NotFound)));
    let counters = counters(&graph);
    assert_eq!((&counters["hits"][..], &counters["misses"][..], &counters["names"][..]), ("2", "5", "1"));
}

#[test]
fn every_op_that_makes_a_name_is_known() {
    let (graph, bottom) = graph(&["negative-lookup:lifetime=1h"]);
    let (dir, owner) = (DIR, (0u32, 0u32));
    let bytes =
        PutSource::Bytes { content: Default::default(), mode: 0, uid: owner.0, gid: owner.1, attributes: Vec::new() };
    let etag = bytes::Bytes::new();
    let put = NameOp::Put {
        dir,
        name: name("x"),
        alternate: Some(name("y")),
        source: bytes,
        etag: etag.clone(),
        condition: Condition::Always,
        keep: false,
        seed: 0,
    };
    let ops = [
        NameOp::Link { dir, name: name("x"), inode: DIR },
        put,
        NameOp::MakePrefix { dir, name: name("z"), alternate: name("x"), mode: 0, uid: 0, gid: 0, seed: 0 },
        NameOp::Join {
            dir,
            parts: Vec::new(),
            to: name("x"),
            mode: 0,
            uid: 0,
            gid: 0,
            etag,
            attributes: Vec::new(),
            seed: 0,
        },
    ];
    for op in ops {
        assert_eq!(lookup(&graph, "x"), Err(Error::NotFound));
        let before = bottom.lookups.load(Ordering::SeqCst);
        graph.handle(&Context::default(), Op::Name { op: op.clone() }).unwrap();
        assert_eq!(lookup(&graph, "x"), Err(Error::NotFound));
        assert_eq!(bottom.lookups.load(Ordering::SeqCst), before + 1, "{op:?} makes the name x");
    }
}

#[test]
fn a_look_up_beside_a_create_leaves_no_stale_answer() {
    let (graph, bottom) = graph(&["negative-lookup:lifetime=1h"]);
    bottom.holds.store(true, Ordering::SeqCst);
    let running = graph.clone();
    let slow = spawn_joined("lookup", move || assert_eq!(lookup(&running, "a"), Err(Error::NotFound))).unwrap();
    while bottom.lookups.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_millis(1));
    }
    graph.handle(&Context::default(), create("a")).unwrap();
    bottom.holds.store(false, Ordering::SeqCst);
    slow.join();
    assert_eq!(lookup(&graph, "a"), Ok(Reply::Done));
}

#[test]
fn missing_names_expire_are_bounded_and_forgotten_on_recall() {
    let (graph, bottom) = graph(&["negative-lookup:lifetime=20ms,entries=16"]);
    let lookups = || bottom.lookups.load(Ordering::SeqCst);
    assert!(lookup(&graph, "a").is_err() && lookup(&graph, "a").is_err());
    sleep(Duration::from_millis(30));
    assert!(lookup(&graph, "a").is_err());
    assert_eq!(lookups(), 2);
    graph.recall(None);
    assert!(lookup(&graph, "a").is_err());
    assert_eq!(lookups(), 3);
    (0..100).for_each(|number| assert!(lookup(&graph, &format!("n{number}")).is_err()));
    let names: u64 = counters(&graph)["names"].parse().unwrap();
    assert!((1..=16).contains(&names), "{names}");
}

#[test]
fn traced_ops_are_lines_of_json() {
    let path = std::env::temp_dir().join(format!("hekate-trace-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let (graph, _) = graph(&[&format!("trace:file={},ops=lookup+create,errors=true", path.display())]);
    graph.handle(&Context::default(), create("a")).unwrap();
    assert!(lookup(&graph, "b\u{1}").is_err());
    let text = std::fs::read_to_string(&path).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!((&line["op"], &line["name"], &line["errno"]), (&"lookup".into(), &"b\u{1}".into(), &2.into()));
    std::fs::remove_file(&path).unwrap();
    let refused = RunningGraph::open(
        built_in(),
        &GraphSpec { change: 1, layers: vec![spec::parse("trace:file=/nonesuch/x").unwrap()] },
        Arc::new(Bottom::default()),
    );
    assert!(refused.err().unwrap().to_string().contains("/nonesuch/x"));
}

#[test]
fn io_stats_have_the_curve_of_each_op_and_the_busiest_files() {
    let (graph, _) = graph(&["io-stats:top=1"]);
    let write = |number, count: usize| {
        let inode = InodeId::new(0, 0, number);
        let op = DataOp::Write { inode, offset: 0, data: vec![0; count].into(), drop_set_id: false };
        graph.handle(&Context::default(), Op::Data { op }).unwrap();
    };
    write(7, 100);
    write(8, 10);
    write(8, 10);
    assert!(lookup(&graph, "a").is_err());
    let counters = counters(&graph);
    assert_eq!((&counters["bytes written"][..], &counters["top file 001"][..]), ("120", "inode 8: 2 ops, 20 bytes"));
    assert!(counters["op write"].starts_with("3 ops, 0 errors: 50 % in "));
    assert!(counters["op lookup"].starts_with("1 ops, 1 errors: "));
    assert!(!counters.contains_key("top file 002"));
}

#[test]
fn io_stats_name_the_processes_with_the_most_ops() {
    let (graph, _) = graph(&["io-stats:top=2"]);
    let write = |uid, thread, count: usize| {
        let op = DataOp::Write { inode: DIR, offset: 0, data: vec![0; count].into(), drop_set_id: false };
        let context = Context { caller: Some(Caller { uid, thread }), ..Context::default() };
        graph.handle(&context, Op::Data { op }).unwrap();
    };
    let process = std::process::id();
    let command = std::fs::read_to_string("/proc/self/comm").unwrap();
    (0..3).for_each(|_| write(1000, process, 5));
    (0..2).for_each(|_| write(0, 0, 7));
    write(1000, u32::MAX, 1);
    assert!(lookup(&graph, "a").is_err(), "an op without a caller is not counted here");
    let counters = counters(&graph);
    let busiest = format!("uid 1000, process {process} ({}): 3 ops, 15 bytes", command.trim_end());
    assert_eq!(counters["top client 001"], busiest);
    assert_eq!(counters["top client 002"], "uid 0, no known process: 2 ops, 14 bytes");
    assert!(!counters.contains_key("top client 003"));
}

#[test]
fn faults_hit_the_chosen_ops() {
    let read = |graph: &RunningGraph| {
        let op = DataOp::Read { inode: DIR, offset: 0, length: 100, touch: false };
        graph.handle(&Context::default(), Op::Data { op })
    };
    let (always, bottom) = graph(&["fault:ops=create,share=100,error=ENOSPC"]);
    let error = always.handle(&Context::default(), create("a")).unwrap_err();
    assert_eq!((error.errno(), bottom.names.lock().len()), (28, 0));
    assert_eq!(read(&always), Ok(Reply::Done));
    let (after, bottom) = graph(&["fault:ops=create,share=100,after=true"]);
    assert_eq!(after.handle(&Context::default(), create("a")).unwrap_err().errno(), 5);
    assert_eq!(bottom.names.lock().len(), 1, "it was executed");
    let (short, bottom) = graph(&["fault:ops=read,share=100,error=none,short-reads=true"]);
    read(&short).unwrap();
    assert_eq!(*bottom.reads.lock(), [50]);
    let (some, _) = graph(&["fault:share=30"]);
    let hits = (0..1000).filter(|_| read(&some).is_err()).count();
    assert!((200..400).contains(&hits), "{hits} of 1000");
    let (none, _) = graph(&["fault:share=0"]);
    assert!((0..100).all(|_| read(&none).is_ok()));
}

#[test]
fn the_page_has_the_options_of_all_translators() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/translators.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- begin: built in -->\n", "<!-- end: built in -->");
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let wanted = format!("{before}{begin}{}{end}{after}", built_in_page());
    if std::env::var_os("HEKATE_WRITE_PAGES").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    assert!(page == wanted, "write it: HEKATE_WRITE_PAGES=1 cargo test -p hekate-translators the_page_has");
}

fn built_in_page() -> String {
    let mut out = String::new();
    for kind in built_in().built_in() {
        let place = if kind.side == hekate_graph::Side::Leader { "in the servers" } else { "in clients" };
        let changes = if kind.is_transparent { ", transparent" } else { "" };
        out += &format!("\n**`{}`** ({place}{changes}) {}.", kind.name, kind.summary);
        if !kind.help.is_empty() {
            out += "\n\n>";
            let mut column = 1;
            for word in kind.help.split_whitespace() {
                if column + 1 + word.len() > 120 {
                    out += "\n>";
                    column = 1;
                }
                out += &format!(" {word}");
                column += 1 + word.len();
            }
        }
        out += "\n";
        if !kind.options.is_empty() {
            out += "\n| option | default | takes | |\n|---|---|---|---|\n";
        }
        for option in &kind.options {
            let default = if option.default.is_empty() { String::new() } else { format!("`{}`", option.default) };
            let takes = option.kind.text();
            let takes = if takes.starts_with("all, or ops") {
                "`all`, or labels of ops with `+` between them".into()
            } else {
                takes
            };
            out += &format!("| `{}` | {default} | {takes} | {} |\n", option.name, option.help);
        }
    }
    out + "\n"
}
