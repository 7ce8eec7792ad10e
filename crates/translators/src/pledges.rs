//! `pledges`: answers look-ups and attributes from what leaders have pledged to tell of before it changes
//! (`docs/coherence.md`, rules C1 to C10), and writes under grants (G1 to G7).
//!
//! The layer stands above `distribute`, whose own questions always go to the leaders. A thread for each server listens
//! for recalls. What a recall is about is dropped first, then from what a door has passed on (`Watcher`), and only then
//! is it returned.

pub(crate) mod cache;
mod contents;
mod dropped;
mod generations;
pub(crate) mod grants;
mod listening;
mod lists;
pub(crate) mod made;
pub(crate) mod mappings;
mod misses;
mod rights;
pub(crate) mod shards;
pub(crate) mod touched;

use crate::distribute::Distribute;
use crate::replicate::{Recipient, Replicate};
use cache::{Cache, Change, DoorForgets, DoorRecalls};
use grants::{Grant, Untold};
use hekate_graph::{Context, ReadsAfter, Translator};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_threads::{Condvar, HashSet, Mutex, boot_time, now};
use made::Naming;
use shards::{NOT_PLEDGED, ShardRead};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use touched::{Touched, touched_by};

/// How long a door may pass on what is pledged.
pub const PASSED_ON_MAX: Duration = Duration::from_secs(1);
/// Names of a directory that are listed because others were missing.
const LISTED_AHEAD: u32 = 1024;
/// Time that this may take.
const LISTED_WITHIN: Duration = Duration::from_millis(20);
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

    /// Returns once nothing below answers by old bytes of these files any more. False if that takes too long: it is asked
    /// for again.
    fn forget_contents(&self, files: &[InodeId]) -> bool;

    /// As `forget_contents`, of all files.
    fn forget_all_contents(&self) -> bool;

    /// Returns once the kernel has written back and dropped all pages of the file. Called by a thread of its own: pages are
    /// written back by ops of the volume. `is_busy` is to be called every 500 ms meanwhile.
    fn drop_mapped(&self, file: InodeId, is_busy: &dyn Fn());

    /// This session is about to change the bytes of these files. `None`: of any. Their attributes are to be forgotten next.
    fn expect_contents(&self, files: Option<&[InodeId]>);
}

/// What a session does with the contents of files that are longer than those beside their inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContentUse {
    /// Reads ask for no pledges.
    #[default]
    None,
    /// Its door keeps them.
    Door,
    /// It remembers what was read, and answers from memory.
    Memory,
}

/// A read of shards for which pledges are asked.
pub(crate) struct Reading<'a> {
    pub inode: InodeId,
    pub layout: &'a Layout,
    /// What stands for the content, once the replies have come. 0: not all of it is pledged.
    pub number: Option<u64>,
    /// The last op of the batch reads behind a change of the time of access. Its reply goes here as it comes.
    pub behind: Option<&'a ReadsAfter>,
}

impl Reading<'_> {
    fn note(&mut self, number: u64) {
        let is_same = self.number.is_none_or(|known| known == number);
        self.number = Some(if is_same { number } else { NOT_PLEDGED });
    }
}

/// The pledges of a session, shared by the layer, by `replicate` and by doors.
pub struct Pledges {
    cache: Mutex<Cache>,
    watcher: OnceLock<Arc<dyn Watcher>>,
    /// Servers that a thread listens to.
    listening: Mutex<HashSet<ServerId>>,
    is_used: bool,
    contents: ContentUse,
    /// Notified when a mapping right comes or goes, and when a leader has been told of writes.
    changed: Condvar,
}

/// A moment in the life of the cache: what was dropped since is not taken from a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskedAt(u64);

impl Pledges {
    /// `is_used`: false for a session that asks for no pledges.
    pub(crate) fn new(is_used: bool, contents: ContentUse) -> Arc<Self> {
        let (cache, watcher, listening, changed) = Default::default();
        Arc::new(Self { cache, watcher, listening, is_used, contents, changed })
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

    /// Stands for the content of a file with these attributes: as long as it is the same, so are the bytes. `None` if
    /// leaders would not tell of a change.
    pub fn content_number(&self, attr: &Attr) -> Option<u64> {
        self.is_used.then(|| self.cache.lock().content_number(attr, boot_time())).flatten()
    }

    /// True if a door may keep contents.
    pub fn keeps_contents(&self) -> bool {
        self.is_used && self.contents == ContentUse::Door
    }

    /// True if the session asks for pledges.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Number of names and of attributes that are remembered, and of answers from memory so far.
    pub fn counts(&self) -> (usize, usize, u64) {
        self.cache.lock().counts()
    }

    /// The moment at which a request is sent that asks for pledges. `None`: it asks for none. `reading`: the file whose
    /// shard is read.
    pub(crate) fn ask(&self, op: &Op, reading: Option<&Reading>) -> Option<AskedAt> {
        if let (Op::Data { op: DataOp::ReadShard { data, index, .. } }, Some(reading)) = (op, reading) {
            let about = Pledged::Shard { data: *data, index: *index };
            let may_ask = self.is_used && self.contents != ContentUse::None;
            return may_ask.then(|| self.cache.lock().ask_shard(reading.inode, &about)).flatten().map(AskedAt);
        }
        if let Op::Data { op: DataOp::Wrote { inode, fast, end, reach, drop_set_id: false, .. } } = op {
            let may_ask = self.is_used && end == reach;
            let ask = |cache: &mut Cache| if *fast { cache.ask_grant(*inode) } else { cache.ask_size(*inode) };
            return may_ask.then(|| ask(&mut self.cache.lock())).flatten().map(AskedAt);
        }
        let may_ask = self.is_used
            && matches!(
                op,
                Op::Name { op: NameOp::Lookup { .. } | NameOp::List { .. } }
                    | Op::Inode { op: InodeOp::GetAttr { .. } | InodeOp::Map { .. } }
            );
        may_ask.then(|| self.cache.lock().ask(op)).flatten().map(AskedAt)
    }

    /// Takes the pledges of a reply. Returns the reply itself. `durable`: the request was to be on stable storage.
    pub(crate) fn take(&self, asked: Option<AskedAt>, op: &Op, reply: Result<Reply>, durable: bool) -> Result<Reply> {
        let Ok(Reply::Pledged { found, pledges }) = reply else { return reply };
        match (asked, op) {
            (Some(AskedAt(asked)), Op::Data { op: DataOp::Wrote { inode, layout_version, end, .. } }) => {
                let (file, mut cache) = ((*inode, *layout_version, *end), self.cache.lock());
                pledges.iter().for_each(|given| cache.take_grant(asked, file, durable, given, boot_time()));
            }
            (Some(AskedAt(asked)), Op::Inode { op: InodeOp::Map { inode } }) => {
                let mut cache = self.cache.lock();
                pledges.iter().for_each(|given| cache.take_mapping(asked, *inode, given, boot_time()));
            }
            (Some(AskedAt(asked)), _) => self.cache.lock().take(asked, op, &found, &pledges, boot_time()),
            (None, _) => {}
        }
        match found {
            Found::Node { attr } => Ok(Reply::Node { attr: *attr, created: false }),
            Found::Elsewhere { inode, kind } => Ok(Reply::Elsewhere { inode, kind }),
            Found::Missing => Err(Error::NotFound),
            Found::List { entries, end } => Ok(Reply::List { entries, end }),
            Found::Data { bytes } => Ok(Reply::Data { bytes }),
            Found::Done => Ok(Reply::Done),
        }
    }

    /// The grant under which a write to the file may be made now, if any.
    pub(crate) fn grant(&self, inode: InodeId, layout_version: u32, durable: bool) -> Option<Grant> {
        self.is_used.then(|| self.cache.lock().grant(inode, layout_version, durable, boot_time())).flatten()
    }

    /// A write under this grant, which ends at `end`, has been made. False if the grant is over: then the leader has to
    /// be told.
    pub(crate) fn wrote(&self, inode: InodeId, grant: &Grant, end: u64) -> bool {
        self.cache.lock().wrote(inode, grant, end, boot_time())
    }

    /// The leader was told that a write ends here.
    pub(crate) fn grew(&self, inode: InodeId, layout_version: u32, end: u64) {
        if self.is_used {
            self.cache.lock().grants.grew(inode, layout_version, end);
        }
    }

    /// The end of a file that nobody but this session can move.
    pub(crate) fn end_of(&self, inode: InodeId, layout_version: u32) -> Option<u64> {
        self.is_used.then(|| self.cache.lock().end_of(inode, layout_version, boot_time())).flatten()
    }

    /// Tells leaders what was written under grants to this file, or to any, before the session sees it.
    ///
    /// # Errors
    ///
    /// The leader was not told: the client was interrupted, for instance, or its disk is full.
    pub(crate) fn tell_of_writes(
        &self,
        replicate: &Replicate,
        context: &Context,
        inode: Option<InodeId>,
    ) -> Result<()> {
        let mut untold = self.cache.lock().grants.untold_of(inode);
        untold.dedup_by_key(|one| one.inode);
        for inode in untold.into_iter().map(|one| one.inode) {
            self.begin_telling(context, inode)?;
            let told = self.tell_of(replicate, context, inode);
            self.cache.lock().grants.end_telling(inode);
            self.changed.notify_all();
            told?;
        }
        Ok(())
    }

    /// Waits until no other thread is telling the leader of writes to this file.
    fn begin_telling(&self, context: &Context, inode: InodeId) -> Result<()> {
        let mut cache = self.cache.lock();
        while !cache.grants.begin_telling(inode) {
            self.changed.wait_for(&mut cache, mappings::LOOK_AGAIN);
            if context.interrupted() {
                return Err(Error::Unavailable {
                    what: "the caller gave up while a leader was told of a write".into(),
                });
            }
        }
        Ok(())
    }

    fn tell_of(&self, replicate: &Replicate, context: &Context, inode: InodeId) -> Result<()> {
        let untold = self.cache.lock().grants.untold_of(Some(inode));
        for one in untold {
            let (inode, layout_version, end) = (one.inode, one.grant.layout_version, one.end);
            let (reach, drop_set_id, fast, age) = (end, false, true, age(&one));
            let op = DataOp::Wrote { inode, layout_version, end, reach, drop_set_id, fast, age };
            let told = replicate.send(context, Recipient::Leader(one.grant.partition), Op::Data { op });
            match told {
                // Somebody has changed the file since, which took the grant, and the word, first.
                Ok(_) | Err(Error::NotFound | Error::Stale | Error::LayoutChanged) => {}
                Err(error) => return Err(error),
            }
            self.cache.lock().told(&one);
        }
        Ok(())
    }

    /// As `take`, for the reply to a read of a shard of this file.
    pub(crate) fn take_shard(
        &self,
        asked: Option<AskedAt>,
        op: &Op,
        reply: Result<Reply>,
        (reading, volume): (&mut Reading, VolumeId),
    ) -> Result<Reply> {
        let Op::Data { op: DataOp::ReadShard { data, index, offset, .. } } = op else {
            return self.take(asked, op, reply, false);
        };
        let Ok(Reply::Pledged { found: Found::Data { bytes }, pledges }) = reply else {
            reading.note(NOT_PLEDGED);
            return reply;
        };
        let read = ShardRead {
            volume,
            inode: reading.inode,
            layout: reading.layout,
            shard: (*data, *index),
            offset: *offset,
            bytes: (self.contents == ContentUse::Memory).then_some(&bytes),
        };
        let number = match (asked, &pledges[..]) {
            (Some(AskedAt(asked)), [given]) => self.cache.lock().take_shard(asked, &read, given, boot_time()),
            _ => NOT_PLEDGED,
        };
        reading.note(number);
        Ok(Reply::Data { bytes })
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

    fn begin_change(&self, touched: &Touched, op: &Op) -> (Change, Naming) {
        let mut cache = self.cache.lock();
        let (change, forgets) = cache.begin_change(touched, boot_time());
        let naming = cache.made.begin(op);
        drop(cache);
        if let Some(watcher) = self.watcher.get().filter(|_| !touched.contents.is_empty() || touched.any_content) {
            watcher.expect_contents((!touched.any_content).then_some(&touched.contents[..]));
        }
        self.tell_watcher(&forgets);
        (change, naming)
    }

    /// Has the door forget contents, and those that were forgotten here for want of room. False if that takes too long.
    fn forget_contents(&self, contents: &[InodeId]) -> bool {
        let mut all = self.cache.lock().take_evicted();
        all.extend(contents);
        let Some(watcher) = self.watcher.get().filter(|_| !all.is_empty()) else { return true };
        let is_done = watcher.forget_contents(&all);
        if !is_done {
            self.cache.lock().evict_again(all);
        }
        is_done
    }

    /// Forgets what is recalled. Returns what is to be returned, unless a door has yet to forget it: then it is recalled
    /// again.
    fn recalled(&self, partition: PartitionNumber, term: u64, pledges: Vec<Pledge>) -> Option<Returned> {
        let mut untold = Vec::new();
        if !is_planted(Bug::RecallIgnored) {
            let recalls = self.cache.lock().drop_recalled(partition, &pledges);
            let DoorRecalls { attributes, names, contents, written } = recalls;
            untold = written;
            self.tell_watcher(&attributes);
            self.tell_of_names(&names);
            if let (Some(watcher), DoorForgets::These(inodes)) = (self.watcher.get(), &attributes) {
                watcher.expire(inodes);
            }
            if !self.forget_contents(&contents) {
                return None;
            }
        }
        Some(Returned { partition, term, pledges, untold })
    }

    /// Returns pledges to their leader. If this fails, they are recalled again. Returns true if the server has taken them.
    fn give_back(&self, replicate: &Replicate, server: ServerId, returned: Returned) -> bool {
        let Returned { partition, term, pledges, untold } = returned;
        let report = |one: &Untold| {
            let end = if is_planted(Bug::EndNotReported) { 0 } else { one.end };
            Report { inode: one.inode, age: age(one), end, layout_version: one.grant.layout_version }
        };
        let reports = untold.iter().map(report).collect();
        let is_told = replicate.tell(server, VolumeOp::Return { partition, term, pledges, reports }).is_ok();
        if is_told {
            self.cache.lock().grants.told(&untold);
        }
        is_told
    }

    /// Returns grants of a server's leaders that were not used lately.
    fn return_idle_grants(&self, replicate: &Replicate, server: ServerId) {
        let is_there = |partition| replicate.server_of(Recipient::Leader(partition)).is_ok_and(|at| at == server);
        let idle = self.cache.lock().end_idle_grants(boot_time(), is_there);
        for (inode, Grant { partition, term, number, .. }, untold) in idle {
            let pledges = vec![Pledge { about: Pledged::Times { inode }, number }];
            self.give_back(replicate, server, Returned { partition, term, pledges, untold: Vec::from_iter(untold) });
        }
    }
}

/// Pledges that are to be returned, with the writes under grants that their leader was not told of.
struct Returned {
    partition: PartitionNumber,
    term: u64,
    pledges: Vec<Pledge>,
    untold: Vec<Untold>,
}

/// Time since the write, in ns.
fn age(untold: &Untold) -> u64 {
    u64::try_from(boot_time().saturating_sub(untold.wrote_at).as_nanos()).unwrap_or(u64::MAX)
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

impl Pledging {
    /// The answer to an op, if it is pledged.
    fn answer(&self, context: &Context, op: &Op) -> Option<Result<Reply>> {
        let mut cache = self.pledges.cache.lock();
        let now = boot_time();
        let reply = cache.answer(op, now)?;
        if let (Some(number), Ok(Reply::FileData { attr, .. })) = (context.content, &reply) {
            number.store(cache.content_number(attr, now).unwrap_or(NOT_PLEDGED), Ordering::Relaxed);
        }
        Some(reply)
    }

    /// Tells leaders what was written under grants, before an op that may show it to this session: its own leader's word
    /// counts for it, and the leader does not ask it (G3).
    ///
    /// # Errors
    ///
    /// The leader was not told: the client was interrupted, for instance, or its disk is full.
    fn tell_before(&self, context: &Context, op: &Op) -> Result<()> {
        let tell = |inode| self.pledges.tell_of_writes(&self.replicate, context, inode);
        match op {
            Op::Name { .. } => tell(None),
            Op::Inode { op } => tell(Some(op.inode())),
            // An append asks for the end of the file only if it is not this session's to move.
            Op::Data { op: DataOp::Write { .. } | DataOp::Append { .. } | DataOp::Fsync { .. } } => Ok(()),
            Op::Data { op: DataOp::Copy { from, to, .. } } => tell(Some(*from)).and_then(|()| tell(Some(*to))),
            Op::Data { op } => tell(op.inode()),
            Op::Lock { .. } | Op::Volume { .. } | Op::Leg { .. } => Ok(()),
        }
    }

    /// Looks up a name. If it leads to a file of which the leader was not told all when this began, the leader is told,
    /// and asked again (G3).
    fn look_up(&self, context: &Context, op: &Op) -> Result<Reply> {
        let mut untold = self.pledges.cache.lock().grants.all_untold();
        loop {
            let reply = self.next.handle(context, op.clone());
            let shown = match &reply {
                Ok(Reply::Node { attr, .. }) => untold.iter().position(|inode| *inode == attr.id),
                _ => None,
            };
            let Some(shown) = shown else { return reply };
            let inode = untold.swap_remove(shown);
            self.pledges.tell_of_writes(&self.replicate, context, Some(inode))?;
        }
    }

    /// Lists a directory in which a few names were missing. Nothing depends on the answer, which is remembered (C10): the
    /// caller does not wait for it if others change the directory, or the leader is away.
    fn list_if_missed(&self, context: &Context, op: &Op, reply: &Result<Reply>) {
        if let (Op::Name { op: NameOp::Lookup { dir, .. } }, Err(Error::NotFound)) = (op, reply)
            && self.pledges.cache.lock().wants_list(*dir, boot_time())
        {
            let (after, limit) = (None, LISTED_AHEAD);
            let op = NameOp::List { dir: *dir, after, limit, attributes: false, touch: false };
            let soon = now() + LISTED_WITHIN;
            let deadline = Some(context.deadline.map_or(soon, |deadline| deadline.min(soon)));
            let _ = self.next.handle(&Context { deadline, ..*context }, Op::Name { op });
        }
    }

    /// Tells the caller what stands for the bytes that were read.
    fn number_content(&self, context: &Context, reply: &Result<Reply>) {
        let (Some(number), Ok(Reply::FileData { attr, .. })) = (context.content, reply) else { return };
        let pledged = self.pledges.content_number(attr).unwrap_or(NOT_PLEDGED);
        // The bytes of shards have a number of their own, from the replies that carried them.
        if attr.layout.is_inline() || number.load(Ordering::Relaxed) != pledged {
            number.store(if attr.layout.is_inline() { pledged } else { NOT_PLEDGED }, Ordering::Relaxed);
        }
    }
}

impl Translator for Pledging {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        if let Op::Volume { .. } = op {
            // Heartbeats come each second. A new leader waits for sessions without pledges, too.
            self.listen_to_all();
            self.pledges.drop_lost(&self.replicate);
            return self.next.handle(context, op);
        }
        if !self.pledges.is_used {
            return self.next.handle(context, op);
        }
        if let Some(reply) = self.answer(context, &op) {
            return reply;
        }
        // A look-up shows one inode, which is not known before.
        let is_lookup = matches!(op, Op::Name { op: NameOp::Lookup { .. } });
        if !is_lookup {
            self.tell_before(context, &op)?;
        }
        let touched = touched_by(&op, |inode| self.pledges.cache.lock().attributes(inode));
        let Some(touched) = touched else {
            let reply = if is_lookup { self.look_up(context, &op) } else { self.next.handle(context, op.clone()) };
            self.list_if_missed(context, &op, &reply);
            self.pledges.remember_content(&op, &reply);
            self.number_content(context, &reply);
            return reply;
        };
        let ((change, naming), after) = (self.pledges.begin_change(&touched, &op), ReadsAfter::default());
        let reply = self.next.handle(&Context { reads_after: Some(&after), ..*context }, op.clone());
        let is_known = reply.as_ref().err().is_none_or(is_final);
        let reads = std::mem::take(&mut *after.lock());
        let mut cache = self.pledges.cache.lock();
        cache.end_change(change, is_known, &reads, boot_time());
        cache.made.end(naming, &op, &reply);
        drop(cache);
        self.pledges.remember_content(&op, &reply);
        self.number_content(context, &reply);
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
