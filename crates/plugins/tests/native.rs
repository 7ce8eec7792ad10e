//! Libraries in C that do well, and those that do not: each is compiled and loaded.

#![allow(clippy::unwrap_used, reason = "a test; its helpers too")]

use bytes::Bytes;
use hekate_graph::{Catalogue, Context, GraphSpec, Next, RunningGraph, Translator, spec};
use hekate_plugins::Home;
use hekate_proto::{
    Condition, Error, InodeId, InodeOp, Name, NameOp, NewNode, Op, PutSource, RenameMode, Reply, Result, VolumeSpace,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const STAT: Op = Op::Inode { op: InodeOp::GetAttr { inode: InodeId::new(1, 2, 3) } };

#[derive(Default)]
struct Bottom(AtomicU64);

impl Translator for Bottom {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        assert_eq!(op, STAT);
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(Reply::Space { space: VolumeSpace { total: u64::from(context.durable), ..VolumeSpace::default() } })
    }
}

/// A directory for installed libraries, which goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hekate-plugins-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn home(&self) -> Home {
        Home::new(&self.0)
    }

    /// Compiles a variant of `odd.c`.
    fn library(&self, variant: &str) -> PathBuf {
        self.compiled(variant, "crates/plugins/tests/odd.c", &format!("-DVARIANT={variant}"))
    }

    fn compiled(&self, name: &str, source: &str, flag: &str) -> PathBuf {
        let out = self.0.join(format!("{name}.so"));
        let status = Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", flag])
            .args([format!("-I{ROOT}/include"), "-o".into()])
            .arg(&out)
            .arg(format!("{ROOT}/{source}"))
            .status()
            .unwrap();
        assert!(status.success());
        out
    }

    fn install(&self, variant: &str) -> Result<()> {
        self.home().install_plugin(&self.library(variant), "odd").map(drop)
    }

    fn open(&self, layers: &[&str]) -> Result<(RunningGraph, Arc<Bottom>)> {
        let bottom = Arc::new(Bottom::default());
        Ok((self.open_above(bottom.clone(), layers)?, bottom))
    }

    fn open_above(&self, bottom: Next, layers: &[&str]) -> Result<RunningGraph> {
        let catalogue = Catalogue::default().with_installed(self.home().finder());
        let layers = layers.iter().map(|text| spec::parse(text).unwrap()).collect();
        RunningGraph::open(catalogue, &GraphSpec { change: 1, layers }, bottom)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn space(total: u64) -> Result<Reply> {
    Ok(Reply::Space { space: VolumeSpace { total, ..VolumeSpace::default() } })
}

#[test]
fn a_library_passes_ops_and_counts() {
    let scratch = Scratch::new("passes");
    scratch.install("PASSES").unwrap();
    let (graph, bottom) = scratch.open(&["odd"]).unwrap();
    assert_eq!(graph.handle(&Context::DURABLE, STAT), space(1));
    assert_eq!((graph.handle(&Context::default(), STAT), bottom.0.load(Ordering::SeqCst)), (space(0), 2));
    drop(graph);
    // A library is initialised once.
    let (graph, _) = scratch.open(&["odd:word=perhaps"]).unwrap();
    assert_eq!(graph.report().layers[0].counters["inits"], "1");
    let refused = scratch.open(&["odd:word=never"]).err().unwrap().to_string();
    assert!(refused.contains("word takes one of yes, no, perhaps"), "{refused}");
    let listed = scratch.home().plugins().unwrap();
    assert_eq!((listed.len(), &listed[0].name[..]), (1, "odd"));
    scratch.home().remove_plugin("odd").unwrap();
    assert!(scratch.home().remove_plugin("odd").is_err() && scratch.home().plugins().unwrap().is_empty());
    assert_eq!(graph.handle(&Context::default(), STAT), space(0), "a graph that has it goes on");
}

#[test]
fn libraries_that_cannot_be_used_are_refused_with_the_reason() {
    let scratch = Scratch::new("refused");
    let said = |variant: &str| scratch.install(variant).unwrap_err().to_string();
    assert!(said("WRONG_ABI").contains("built for version 2"), "{}", said("WRONG_ABI"));
    assert!(said("SHORT_TABLE").contains("build it again"));
    let text = scratch.0.join("text.so");
    std::fs::write(&text, "no library").unwrap();
    assert!(scratch.home().install_plugin(&text, "odd").err().unwrap().to_string().contains("cannot be loaded"));
    assert!(
        scratch.home().install_plugin(Path::new("/nonesuch"), "odd").err().unwrap().to_string().contains("/nonesuch")
    );
    assert!(scratch.home().install_plugin(&text, "../odd").err().unwrap().to_string().contains("no name"));
    let empty = scratch.0.join("empty.c");
    std::fs::write(&empty, "int nothing;\n").unwrap();
    let library = scratch.0.join("empty.so");
    assert!(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &empty]).status().unwrap().success());
    let said = scratch.home().install_plugin(&library, "odd").err().unwrap().to_string();
    assert!(said.contains("no symbol hekate_translator"), "{said}");
    for (variant, words) in [("INIT_FAILS", "init has failed (7)"), ("CREATE_FAILS", "cannot be made: no luck")] {
        scratch.install(variant).unwrap();
        let said = scratch.open(&["odd"]).err().unwrap().to_string();
        assert!(said.contains(words), "{variant}: {said}");
    }
    assert!(scratch.open(&["missing"]).err().unwrap().to_string().contains("no translator is called \"missing\""));
    use std::os::unix::fs::PermissionsExt;
    let installed = scratch.0.join("plugins/odd.so");
    std::fs::set_permissions(&installed, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(scratch.open(&["odd"]).err().unwrap().to_string().contains("chmod go-w"));
}

#[test]
fn an_answer_may_come_from_another_thread() {
    let scratch = Scratch::new("thread");
    scratch.install("OTHER_THREAD").unwrap();
    let (graph, bottom) = scratch.open(&["odd"]).unwrap();
    let graph = Arc::new(graph);
    let ops = (0..8).map(|_| {
        let graph = graph.clone();
        std::thread::spawn(move || assert_eq!(graph.handle(&Context::DURABLE, STAT), space(1)))
    });
    ops.collect::<Vec<_>>().into_iter().for_each(|op| op.join().unwrap());
    assert_eq!(bottom.0.load(Ordering::SeqCst), 8);
}

#[test]
fn an_op_without_an_answer_fails_at_its_deadline() {
    let scratch = Scratch::new("never");
    scratch.install("NEVER").unwrap();
    let (graph, bottom) = scratch.open(&["odd:deadline=150ms"]).unwrap();
    let begun = Instant::now();
    let error = graph.handle(&Context::default(), STAT).unwrap_err();
    assert_eq!((error.errno(), bottom.0.load(Ordering::SeqCst)), (110, 0));
    assert!(begun.elapsed() >= Duration::from_millis(150));
}

#[test]
fn bytes_that_are_no_reply_are_an_error() {
    let scratch = Scratch::new("garbage");
    scratch.install("GARBAGE").unwrap();
    let (graph, _) = scratch.open(&["odd"]).unwrap();
    let error = graph.handle(&Context::default(), STAT).unwrap_err();
    assert!(matches!(error, Error::Refused { errno: 5, .. }), "{error}");
}

#[test]
fn a_library_may_send_several_ops_below() {
    let scratch = Scratch::new("twice");
    scratch.install("TWICE_BELOW").unwrap();
    let (graph, bottom) = scratch.open(&["odd"]).unwrap();
    assert_eq!((graph.handle(&Context::DURABLE, STAT), bottom.0.load(Ordering::SeqCst)), (space(1), 2));
}

#[test]
fn libraries_that_block_have_threads_of_their_own() {
    let scratch = Scratch::new("blocks");
    scratch.install("BLOCKS").unwrap();
    let (graph, _) = scratch.open(&["odd:threads=4"]).unwrap();
    let graph = Arc::new(graph);
    let ops = (0..4).map(|_| {
        let graph = graph.clone();
        std::thread::spawn(move || assert_eq!(graph.handle(&Context::default(), STAT).unwrap_err().errno(), 122))
    });
    ops.collect::<Vec<_>>().into_iter().for_each(|op| op.join().unwrap());
}

#[test]
fn other_options_are_taken_or_refused() {
    let scratch = Scratch::new("options");
    scratch.install("PASSES").unwrap();
    let (graph, _) = scratch.open(&["odd"]).unwrap();
    let change = |change, text| graph.replace(&GraphSpec { change, layers: vec![spec::parse(text).unwrap()] });
    change(2, "odd:word=perhaps").unwrap();
    assert!(change(3, "odd:word=no").unwrap_err().to_string().contains("refuses the options"));
    assert_eq!((graph.change(), &graph.report().layers[0].options["word"][..]), (2, "perhaps"));
}

/// Answers every op.
struct Willing;

impl Translator for Willing {
    fn handle(&self, _: &Context, _: Op) -> Result<Reply> {
        Ok(Reply::Done)
    }
}

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

/// Ops that make this name, each in another way. The lists of some are long.
fn makers(text: &str) -> Vec<NameOp> {
    let (dir, inode) = (hekate_proto::ROOT, InodeId::new(1, 2, 3));
    let (mode, uid, gid, umask) = (0o644, 0, 0, 0);
    let pairs = |count: usize| (0..count).map(|number| (Bytes::from(format!("user.{number}")), Bytes::new()));
    let attributes: Vec<_> = pairs(400).collect();
    let parts: Vec<_> = (0..2000).map(|number| (name(&number.to_string()), Bytes::new())).collect();
    let source = PutSource::Bytes { content: Bytes::new(), mode, uid, gid, attributes: attributes.clone() };
    let put = |at: &str, alternate: Option<&str>| NameOp::Put {
        dir,
        name: name(at),
        alternate: alternate.map(name),
        source: source.clone(),
        etag: Bytes::new(),
        condition: Condition::Always,
        keep: false,
        seed: 0,
    };
    let prefix = |at: &str, alternate: &str| NameOp::MakePrefix {
        dir,
        name: name(at),
        alternate: name(alternate),
        mode,
        uid,
        gid,
        seed: 0,
    };
    let etag = Bytes::new();
    vec![
        NameOp::Create { dir, name: name(text), node: NewNode::File, mode, uid, gid, umask, exclusive: false, seed: 0 },
        NameOp::Link { dir, name: name(text), inode },
        NameOp::Rename {
            dir,
            name: name("from"),
            to_dir: dir,
            to_name: name(text),
            mode: RenameMode::Replace,
            open_here: None,
        },
        put(text, None),
        put("other", Some(text)),
        prefix(text, "other"),
        prefix("other", text),
        NameOp::Join { dir, parts, to: name(text), mode, uid, gid, etag, attributes, seed: 0 },
    ]
}

#[test]
fn the_example_in_c_refuses_every_op_that_makes_such_a_name() {
    let scratch = Scratch::new("refuse-names");
    let library = scratch.compiled("refuse", "examples/plugins/refuse-names/refuse_names.c", "-g");
    scratch.home().install_plugin(&library, "refuse-names").unwrap();
    let graph = Arc::new(scratch.open_above(Arc::new(Willing), &["refuse-names:suffix=.exe"]).unwrap());
    let handle = |op| graph.handle(&Context::default(), Op::Name { op });
    for op in makers("virus.exe") {
        assert_eq!(handle(op.clone()).unwrap_err().errno(), 13, "{op:?}");
    }
    for op in makers("virus.txt") {
        assert_eq!(handle(op.clone()), Ok(Reply::Done), "{op:?}");
    }
    // While the suffix changes, an op meets one of the two.
    let change = |change, suffix| {
        let layers = vec![spec::parse(&format!("refuse-names:suffix={suffix}")).unwrap()];
        graph.replace(&GraphSpec { change, layers }).unwrap();
    };
    change(2, ".com");
    let looking = (0..2).map(|_| {
        let graph = graph.clone();
        std::thread::spawn(move || {
            let op = makers("virus.exe.com").remove(1);
            for _ in 0..2000 {
                let said = graph.handle(&Context::default(), Op::Name { op: op.clone() });
                assert_eq!(said.unwrap_err().errno(), 13);
            }
        })
    });
    let looking: Vec<_> = looking.collect();
    (3..200).for_each(|number| change(number, if number % 2 == 0 { ".com" } else { ".exe.com" }));
    looking.into_iter().for_each(|thread| thread.join().unwrap());
}
