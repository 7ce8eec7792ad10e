//! `pledges`: answers look-ups and attributes from what leaders have pledged to tell of before it changes
//! (`docs/coherence.md`, rules C1 to C8).
//!
//! The layer stands above `distribute`, whose own questions always go to the leaders. A thread for each server listens
//! for recalls. What a recall is about is dropped first, then from what a door has passed on (`Watcher`), and only then
//! is it returned.

pub(crate) mod cache;
mod contents;
pub(crate) mod touched;

use crate::distribute::Distribute;
use crate::replicate::Replicate;
use cache::{Cache, Change, DoorForgets};
use hekate_graph::{Context, ReadsAfter, Translator};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_threads::{HashSet, Mutex, boot_time, elapsed, now};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use touched::{Touched, touched_by};

/// How long a door may pass on what is pledged.
pub const PASSED_ON_MAX: Duration = Duration::from_secs(1);
/// Interval at which pledges are renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a connection to a server is opened again.
const LISTEN_PAUSE: Duration = Duration::from_millis(100);

/// A name in a directory.
pub type NameAt = (InodeId, Name);

/// What a door has passed on, to a kernel for instance. None of these functions may wait for an op of the volume.
pub trait Watcher: Send + Sync {
    /// Returns once nothing below answers by old attributes of these inodes any more.
    fn forget_attributes(&self, inodes: &[InodeId]);

    /// Others change these inodes: what is known of them besides is asked anew, soon.
    fn expire(&self, inodes: &[InodeId]);

    /// As `forget_attributes`, of all inodes.
    fn forget_all_attributes(&self);

    /// Returns once nothing below answers by what these names led to.
    fn forget_names(&self, names: &[NameAt]);

    /// As `forget_names`, of all names.
    fn forget_all_names(&self);
}

/// The pledges of a session, shared by the layer, by `replicate` and by doors.
pub struct Pledges {
    cache: Mutex<Cache>,
    watcher: OnceLock<Arc<dyn Watcher>>,
    /// Servers that a thread listens to.
    listening: Mutex<HashSet<ServerId>>,
    is_used: bool,
}

/// A moment in the life of the cache: what was dropped since is not taken from a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskedAt(u64);

impl Pledges {
    /// `is_used`: false for a session that asks for no pledges.
    pub(crate) fn new(is_used: bool) -> Arc<Self> {
        let (cache, watcher, listening) = Default::default();
        Arc::new(Self { cache, watcher, listening, is_used })
    }

    /// Sets what is told before a pledge is returned. Only the first counts.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        let _ = self.watcher.set(watcher);
    }

    /// How long a door may pass on these attributes. Zero if they are not pledged. The door has noted before that it is
    /// about to, so that it is told of a recall (`Watcher`).
    pub fn validity(&self, attr: &Attr) -> Duration {
        if !self.is_used {
            return Duration::ZERO;
        }
        self.cache.lock().validity(attr, boot_time()).min(PASSED_ON_MAX)
    }

    /// As `validity`, of what a name leads to. `None`: that it is missing.
    pub fn name_validity(&self, name: &NameAt, target: Option<InodeId>) -> Duration {
        if !self.is_used {
            return Duration::ZERO;
        }
        self.cache.lock().name_validity(name, target, boot_time()).min(PASSED_ON_MAX)
    }

    /// True if the attributes of this inode are pledged.
    pub fn has_attributes(&self, inode: InodeId) -> bool {
        self.cache.lock().has_attributes(inode, boot_time())
    }

    /// True if the session asks for pledges.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Number of names and of attributes that are remembered, and of answers from memory so far.
    pub fn counts(&self) -> (usize, usize, u64) {
        self.cache.lock().counts()
    }

    /// The moment at which a request is sent that asks for pledges. `None`: it asks for none.
    pub(crate) fn ask(&self, op: &Op) -> Option<AskedAt> {
        let may_ask = self.is_used
            && matches!(
                op,
                Op::Name { op: NameOp::Lookup { .. } | NameOp::List { attributes: true, .. } }
                    | Op::Inode { op: InodeOp::GetAttr { .. } }
            );
        may_ask.then(|| self.cache.lock().ask(op)).flatten().map(AskedAt)
    }

    /// Takes the pledges of a reply. Returns the reply itself.
    pub(crate) fn take(&self, asked: Option<AskedAt>, op: &Op, reply: Result<Reply>) -> Result<Reply> {
        let Ok(Reply::Pledged { found, pledges }) = reply else { return reply };
        if let Some(AskedAt(asked)) = asked {
            self.cache.lock().take(asked, op, &found, &pledges, boot_time());
        }
        match found {
            Found::Node { attr } => Ok(Reply::Node { attr: *attr, created: false }),
            Found::Elsewhere { inode, kind } => Ok(Reply::Elsewhere { inode, kind }),
            Found::Missing => Err(Error::NotFound),
            Found::List { entries, end } => Ok(Reply::List { entries, end }),
        }
    }

    fn tell_watcher(&self, forgets: &DoorForgets) {
        match (self.watcher.get(), forgets) {
            (Some(watcher), DoorForgets::All) => watcher.forget_all_attributes(),
            (Some(watcher), DoorForgets::These(inodes)) => watcher.forget_attributes(inodes),
            (None, _) => {}
        }
    }

    fn tell_of_names(&self, names: &[NameAt]) {
        if let Some(watcher) = self.watcher.get().filter(|_| !names.is_empty()) {
            watcher.forget_names(names);
        }
    }

    /// Remembers the content of a small file that was read.
    fn remember_content(&self, op: &Op, reply: &Result<Reply>) {
        if let (Op::Data { op: DataOp::Read { offset, .. } }, Ok(Reply::FileData { bytes, attr })) = (op, reply) {
            self.cache.lock().remember_content(*offset, bytes, attr);
        }
    }

    fn begin_change(&self, touched: &Touched) -> Change {
        let (change, forgets) = self.cache.lock().begin_change(touched, boot_time());
        self.tell_watcher(&forgets);
        change
    }

    /// Forgets what is recalled. Returns what is to be returned.
    fn recalled(&self, partition: PartitionNumber, term: u64, pledges: Vec<Pledge>) -> VolumeOp {
        if !is_planted(Bug::RecallIgnored) {
            let (forgets, names) = self.cache.lock().drop_recalled(partition, &pledges);
            self.tell_watcher(&forgets);
            self.tell_of_names(&names);
            if let (Some(watcher), DoorForgets::These(inodes)) = (self.watcher.get(), &forgets) {
                watcher.expire(inodes);
            }
        }
        VolumeOp::Return { partition, term, pledges }
    }
}

/// The layer.
pub struct Pledging {
    pledges: Arc<Pledges>,
    replicate: Arc<Replicate>,
    next: Arc<Distribute>,
}

impl Pledging {
    /// The layer above `next`.
    pub fn new(next: Arc<Distribute>) -> Self {
        let replicate = next.replicate();
        Self { pledges: replicate.pledges(), replicate, next }
    }

    /// The session's pledges.
    pub fn pledges(&self) -> Arc<Pledges> {
        self.pledges.clone()
    }

    /// Starts a thread for each server of the volume that has none.
    fn listen_to_all(&self) {
        for server in self.replicate.map().holders() {
            if !self.pledges.listening.lock().insert(server) {
                continue;
            }
            let (pledges, replicate) = (self.pledges.clone(), self.replicate.clone());
            let listen = move || {
                pledges.listen(&replicate, server);
                pledges.listening.lock().remove(&server);
            };
            if let Err(error) = hekate_threads::spawn("hekate-recall", listen) {
                log::warn!("cannot start a thread that listens for recalls, the next heartbeat tries again: {error}");
                self.pledges.listening.lock().remove(&server);
            }
        }
    }
}

impl Pledges {
    /// Body of a listening thread: renews the pledges of a server's leaders, and returns what they recall, until the
    /// volume is closed or the server has nothing of it any more.
    fn listen(&self, replicate: &Replicate, server: ServerId) {
        while !replicate.servers().is_closed() && replicate.map().holders().contains(&server) {
            let mut notifications = match replicate.servers().listen(server) {
                Ok(notifications) => notifications,
                Err(Error::SessionEnded) => return,
                Err(_) => {
                    hekate_threads::sleep(LISTEN_PAUSE);
                    continue;
                }
            };
            let mut renewed_at = None;
            while !replicate.servers().is_closed() {
                let due = renewed_at.map_or(Duration::ZERO, |at| RENEW_INTERVAL.saturating_sub(elapsed(at)));
                if due.is_zero() {
                    renewed_at = Some(now());
                    self.renew(replicate, server);
                    continue;
                }
                match notifications.next(due) {
                    Ok(None) => {}
                    Ok(Some(Notification::Recall { pledges, .. })) if pledges.is_empty() => renewed_at = None,
                    Ok(Some(Notification::Recall { partition, term, pledges })) => {
                        // One that is lost is recalled again.
                        let _ = replicate.tell(server, self.recalled(partition, term, pledges));
                    }
                    Ok(Some(Notification::Answered { .. })) => {}
                    Err(_) => break,
                }
            }
        }
    }

    /// Renews the pledges of a server's leaders. Leaders of which nothing was known learn at once that the session has
    /// forgotten those before them.
    fn renew(&self, replicate: &Replicate, server: ServerId) {
        for _ in 0..2 {
            let (sent, forgot) = (boot_time(), self.cache.lock().forgot());
            let Ok(Reply::Terms { terms }) = replicate.tell(server, VolumeOp::Renew { forgot }) else { return };
            if !self.cache.lock().renew(sent, boot_time(), &terms) {
                return;
            }
            if let Some(watcher) = self.watcher.get() {
                watcher.forget_all_attributes();
                watcher.forget_all_names();
            }
            self.cache.lock().doors_forgot(&terms);
        }
    }
}

impl Translator for Pledging {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        if let Op::Volume { .. } = op {
            // Heartbeats come each second. A new leader waits for sessions without pledges, too.
            self.listen_to_all();
            return self.next.handle(context, op);
        }
        if !self.pledges.is_used {
            return self.next.handle(context, op);
        }
        if let Some(reply) = self.pledges.cache.lock().answer(&op, boot_time()) {
            return reply;
        }
        let touched = touched_by(&op, |inode| self.pledges.cache.lock().attributes(inode));
        let Some(touched) = touched else {
            let reply = self.next.handle(context, op.clone());
            self.pledges.remember_content(&op, &reply);
            return reply;
        };
        let (change, after) = (self.pledges.begin_change(&touched), ReadsAfter::default());
        let reply = self.next.handle(&Context { reads_after: Some(&after), ..*context }, op.clone());
        let is_known = reply.as_ref().err().is_none_or(is_final);
        let reads = std::mem::take(&mut *after.lock());
        self.pledges.cache.lock().end_change(change, is_known, &reads, boot_time());
        self.pledges.remember_content(&op, &reply);
        if !is_known {
            // The caller learns that it failed, and a server may execute it.
            self.pledges.tell_of_names(&touched.names);
        }
        reply
    }
}

/// True if an op that ended with this error will not be executed any more.
fn is_final(error: &Error) -> bool {
    !matches!(error, Error::Unavailable { .. } | Error::Interrupted | Error::Io { .. } | Error::Poisoned { .. })
}
