//! The processes that use a mount, by the threads that send its ops.

use hekate_graph::Caller;
use hekate_threads::{HashMap, Mutex, elapsed, now};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which the process of a thread is looked up again: the id may be another process's by then.
const LOOK_UP_AGE_MAX: Duration = Duration::from_secs(1);
/// Threads that are remembered, about 100 bytes each.
const THREADS_MAX: usize = 4096;

/// A process that uses the mount.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Client {
    pub uid: u32,
    /// 0 if it is not known.
    pub process: u32,
    /// Its command, as /proc has it: 15 bytes.
    pub command: Arc<str>,
}

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.process {
            0 => write!(f, "uid {}, no known process", self.uid),
            process => write!(f, "uid {}, process {process} ({})", self.uid, self.command.escape_debug()),
        }
    }
}

/// The clients of threads that were seen in the last second.
#[derive(Default)]
pub(super) struct Threads {
    seen: Mutex<HashMap<Caller, (Client, Instant)>>,
}

impl Threads {
    /// The process of a caller whose op has not been answered yet.
    pub(super) fn client(&self, caller: Caller) -> Client {
        if let Some((client, at)) = self.seen.lock().get(&caller)
            && elapsed(*at) < LOOK_UP_AGE_MAX
        {
            return client.clone();
        }
        let (process, command) = process_of(caller.thread).unwrap_or_default();
        let client = Client { uid: caller.uid, process, command: command.into() };
        let mut seen = self.seen.lock();
        if seen.len() >= THREADS_MAX {
            seen.clear();
        }
        seen.insert(caller, (client.clone(), now()));
        client
    }
}

/// Id and command of the process of a thread. `None` if there is no such thread in this pid namespace.
fn process_of(thread: u32) -> Option<(u32, String)> {
    if thread == 0 {
        return None;
    }
    let status = std::fs::read(format!("/proc/{thread}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
    let command = std::fs::read(format!("/proc/{process}/comm")).ok()?;
    Some((process, String::from_utf8_lossy(&command).trim_end_matches('\n').to_string()))
}
