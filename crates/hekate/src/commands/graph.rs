//! `hekate graph`: the live graphs of the programs on this machine. Each program that has a volume open answers at a
//! socket in the directory of sockets, with its graph as JSON.
//!
//! What `hekate graph` prints is also kept in [`HEKATE_GRAPH_TEXT`], where a debugger finds it in a core file
//! (`scripts/gdb/hekate.py`).

use crate::cli::{Cli, Graph};
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use hekate_client::Volume;
use hekate_graph::report::GraphReport;
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, Weak};
use std::time::Duration;

/// Limit for the answer of one program.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Time between two copies of the text for debuggers.
const TEXT_PAUSE: Duration = Duration::from_secs(1);
/// Most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
const TEXT_BYTES: usize = 64 << 10;

/// The graphs of this process as text, which ends with a zero byte.
#[unsafe(no_mangle)]
pub static HEKATE_GRAPH_TEXT: [AtomicU8; TEXT_BYTES] = [const { AtomicU8::new(0) }; TEXT_BYTES];

/// The volumes of this process whose graphs can be seen, with what uses each.
static SHOWN: Mutex<Vec<(Weak<Volume>, String)>> = Mutex::new(Vec::new());

/// A thread of this process answers.
static IS_SEEN: AtomicBool = AtomicBool::new(false);

/// Where the sockets are: beside the server's, or where this user may write.
fn directories(paths: &Paths) -> Vec<PathBuf> {
    let beside = paths.socket.parent().map(|directory| directory.join("graphs"));
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|directory| Path::new(&directory).join("hekate/graphs"));
    beside.into_iter().chain(own).collect()
}

/// Lets `hekate graph` see the graph of a volume from now on, for as long as it is open. What goes wrong is logged: the
/// volume serves without.
pub fn let_see(volume: &std::sync::Arc<Volume>, program: String, paths: &Paths) {
    {
        let mut shown = SHOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shown.push((std::sync::Arc::downgrade(volume), program));
    }
    if IS_SEEN.swap(true, Ordering::SeqCst) {
        return;
    }
    match listen(paths) {
        Ok(listener) => {
            let run = move || answer(&listener);
            if std::thread::Builder::new().name("hekate-graphs".into()).spawn(run).is_err() {
                log::warn!("`hekate graph` does not see this program: it has no thread for that");
            }
        }
        Err(error) => log::warn!("`hekate graph` does not see this program: {error}"),
    }
}

fn listen(paths: &Paths) -> std::io::Result<UnixListener> {
    let mut last = std::io::Error::other("there is no directory for its socket");
    for directory in directories(paths) {
        let make = || {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
            let path = directory.join(format!("{}.sock", std::process::id()));
            let _ = std::fs::remove_file(&path);
            UnixListener::bind(&path)
        };
        match make() {
            Ok(made) => return Ok(made),
            Err(error) => last = std::io::Error::new(error.kind(), format!("{}: {error}", directory.display())),
        }
    }
    Err(last)
}

/// Answers until the process ends.
fn answer(listener: &UnixListener) {
    loop {
        let mut ready = [rustix::event::PollFd::new(listener, rustix::event::PollFlags::IN)];
        let pause = rustix::event::Timespec { tv_sec: TEXT_PAUSE.as_secs() as i64, tv_nsec: 0 };
        let is_asked = rustix::event::poll(&mut ready, Some(&pause)).is_ok_and(|count| count > 0);
        let reports = reports();
        keep_text(&reports);
        if !is_asked {
            continue;
        }
        let Ok((mut stream, _)) = listener.accept() else { continue };
        let _ = stream.set_write_timeout(Some(ANSWER_LIMIT));
        let text = serde_json::to_string(&reports).unwrap_or_default();
        let _ = stream.write_all(text.as_bytes());
    }
}

fn reports() -> Vec<GraphReport> {
    let mut shown = SHOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    shown.retain(|(volume, _)| volume.strong_count() > 0);
    let report = |(volume, program): &(Weak<Volume>, String)| {
        Some(GraphReport { program: program.clone(), ..volume.upgrade()?.graph() })
    };
    shown.iter().filter_map(report).collect()
}

fn keep_text(reports: &[GraphReport]) {
    let text: String = reports.iter().map(GraphReport::text).collect();
    let bytes = text.as_bytes().iter().copied().take(TEXT_BYTES - 1).chain([0]);
    HEKATE_GRAPH_TEXT.iter().zip(bytes).for_each(|(at, byte)| at.store(byte, Ordering::Relaxed));
}

/// The socket of this process goes with it.
pub fn remove_socket(paths: &Paths) {
    for directory in directories(paths) {
        let _ = std::fs::remove_file(directory.join(format!("{}.sock", std::process::id())));
    }
}

pub fn graph(cli: &Cli, options: &Graph) -> Result<(), Failure> {
    let mut found = Vec::new();
    for directory in directories(&Paths::of(cli)?) {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for path in paths {
            match ask(&path) {
                Ok(reports) => found.extend(reports),
                // Its program was killed.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => _ = std::fs::remove_file(&path),
                Err(error) => eprintln!("hekate: {}: {error}", path.display()),
            }
        }
    }
    let others: Vec<String> = found.iter().map(|report: &GraphReport| report.volume.clone()).collect();
    let is_wanted = |session: u64| options.session.is_none_or(|wanted| wanted == session);
    found.retain(|report| report.volume == options.volume && is_wanted(report.session));
    if found.is_empty() {
        let known = if others.is_empty() {
            "no volume is used here".into()
        } else {
            format!("used here: {}", others.join(", "))
        };
        return Err(Failure::new(
            66,
            format!("no program of this user on this machine uses volume {}; {known}", options.volume),
        ));
    }
    match (options.svg, cli.json) {
        (true, _) => print!("{}", found[0].svg()),
        (false, true) => output::json(&found),
        (false, false) => found.iter().for_each(|report| print!("{}", report.text())),
    }
    Ok(())
}

fn ask(path: &Path) -> std::io::Result<Vec<GraphReport>> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut text = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut text)?;
    serde_json::from_str(&text).map_err(std::io::Error::other)
}
