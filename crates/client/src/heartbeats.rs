//! The heartbeats of a volume's session: they keep it, learn that it has ended, and name orphans and mapped files.

use crate::graph::VolumeGraph;
use hekate_graph::Context;
use hekate_proto::*;
use hekate_threads::{HashMap, HashSet, Mutex, RwLock};
use hekate_transport::Servers;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Interval of the session's heartbeats. A server ends a session after 60 s without one.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// Heartbeats in a row after which a session that servers do not know has ended. A server that has not read the record of
/// a new session yet answers the same.
const REFUSED_MAX: u32 = 5;

/// Most files with mapped pages that a heartbeat names, 16 bytes each. Further files are named after their next
/// write-back.
const MAPPED_MAX: usize = 1024;

/// What the heartbeats of a session and the ops of its volume share.
pub(crate) struct Shared {
    pub(crate) servers: Arc<dyn Servers>,
    /// Files whose mapped pages were written back since the last heartbeat that a server answered.
    mapped: Mutex<HashSet<InodeId>>,
    /// Number of opens by inode.
    pub(crate) opens: Mutex<HashMap<InodeId, u32>>,
    /// Held shared while a file without a name is being made, and exclusively (without waiting) while the orphans are
    /// chosen that a heartbeat reports as unused.
    pub(crate) unnamed: RwLock<()>,
    pub(crate) ended: AtomicBool,
    /// Heartbeats in a row that were answered that the session has ended.
    refused: AtomicU32,
}

impl Shared {
    pub(crate) fn new(servers: Arc<dyn Servers>) -> Self {
        Self {
            servers,
            mapped: Mutex::default(),
            opens: Mutex::default(),
            unnamed: RwLock::default(),
            ended: AtomicBool::new(false),
            refused: AtomicU32::new(0),
        }
    }

    /// True if servers have ended the session.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed) >= REFUSED_MAX
    }

    /// Notes a file for the next heartbeat to name.
    pub(crate) fn wrote_mapped(&self, inode: InodeId) {
        let mut mapped = self.mapped.lock();
        if mapped.len() < MAPPED_MAX {
            mapped.insert(inode);
        }
    }

    /// Body of the heartbeat thread: sends the servers a heartbeat every second, with the orphans that the session does
    /// not have open. Heartbeats pass by the translators, which could hold them back.
    pub(crate) fn send_heartbeats(&self, graph: &Arc<VolumeGraph>) {
        let mut unused = Vec::new();
        while !self.ended.load(Ordering::SeqCst) {
            let context = Context { interrupt: Some(&self.ended), ..Context::default() };
            let mapped: Vec<InodeId> = std::mem::take(&mut *self.mapped.lock()).into_iter().collect();
            let running = graph.running();
            let heartbeat = VolumeOp::Heartbeat { unused, mapped: mapped.clone(), graph: running.change() };
            let asked = running.bottom().handle(&context, Op::Volume { op: heartbeat });
            match asked {
                Err(Error::SessionEnded) => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
                _ => self.refused.store(0, Ordering::Relaxed),
            }
            unused = match asked {
                Ok(Reply::Orphans { inodes, graph: known, .. }) => {
                    graph.follow(known, &self.servers);
                    self.unused_of(inodes)
                }
                _ => {
                    // The servers may not have received the names of the files.
                    let mut waiting = self.mapped.lock();
                    let room = MAPPED_MAX.saturating_sub(waiting.len());
                    waiting.extend(mapped.into_iter().take(room));
                    Vec::new()
                }
            };
            if unused.is_empty() {
                hekate_threads::sleep(HEARTBEAT);
            } else {
                hekate_threads::sleep(HEARTBEAT / 20);
            }
        }
    }

    /// Those of the orphans that are not open here. None while an unnamed file is being made, which may be one of
    /// them.
    fn unused_of(&self, orphans: Vec<InodeId>) -> Vec<InodeId> {
        let Some(_no_unnamed_file) = self.unnamed.try_write() else { return Vec::new() };
        let opens = self.opens.lock();
        orphans.into_iter().filter(|inode| !opens.contains_key(inode)).collect()
    }
}
