//! Executes the kernel's requests as calls of the client library, by inode.
//!
//! Invariants: an inode is in [`Nodes`] before the reply that gives it to the kernel is sent; an inode is marked open
//! here and in the library before the servers are asked whether it exists; permissions are checked by the kernel
//! (`default_permissions`).

mod attributes;
mod data;
mod directories;
mod export;
mod locks;
mod losses;
mod mappings;
mod names;
mod pages;
mod privileges;
mod recent;
mod second_tries;
mod space;

use crate::MountOptions;
use crate::abi::*;
use crate::directory::Handles;
use crate::encode::{Outcome, attr_reply, bytes_of};
use crate::in_flight::Signals;
use crate::kept_pages::KeptPages;
use crate::nodes::Nodes;
use crate::passed_names::{NAMES_PASSED_MAX, PassedNames};
use crate::removals::Removals;
use crate::request::{Body, Request};
use crate::session::PendingReply;
use bytes::Bytes;
use hekate_client::{Context, NameAt, Volume};
use hekate_proto::{Attr, InodeId, NodeKind};
use names::NewMode;
use parking_lot::Mutex;
pub(crate) use privileges::has_lone_set_group;
use rustix::io::Errno;
use second_tries::Step;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Locks that serialize appends to a file; files share them by inode number.
const APPEND_LOCKS: usize = 64;

/// Lowest minor version of a kernel whose caches of attributes can be cleared beside requests: Linux 5.10.
const RECALL_MINOR_MIN: u32 = 32;

/// Has the kernel forget something of a node.
pub(crate) type OfNode = Box<dyn Fn(u64) + Send + Sync>;

/// A volume as the kernel sees it.
pub(crate) struct Filesystem {
    volume: Arc<Volume>,
    /// How long the kernel may use names and attributes without a request.
    cache: Duration,
    /// How long an op waits for an unavailable server. `None`: without limit.
    soft: Option<Duration>,
    /// True if the kernel can map files that bypass the page cache.
    can_map: AtomicBool,
    /// True if the kernel takes no attributes from replies to requests from before they were invalidated.
    can_recall: AtomicBool,
    /// True if the kernel can let names expire.
    can_expire: AtomicBool,
    nodes: Nodes,
    names: PassedNames,
    pages: KeptPages,
    forget_node: OnceLock<OfNode>,
    drop_pages: OnceLock<OfNode>,
    /// How often the kernel was given a time of modification that a file does not have.
    forged_times: AtomicU32,
    handles: Handles,
    removals: Removals,
    appends: [Mutex<()>; APPEND_LOCKS],
    locks: locks::Locks,
    losses: losses::Losses,
    recent: recent::Recent,
    second_tries: second_tries::SecondTries,
}

/// The inode and the caller of a request.
struct Caller<'a> {
    inode: InodeId,
    uid: u32,
    gid: u32,
    /// 0 if the thread cannot be seen from this pid namespace.
    thread: u32,
    /// The kernel's number of the request.
    request: u64,
    context: Context<'a>,
    signals: &'a Signals,
}

impl Filesystem {
    pub(crate) fn new(volume: Arc<Volume>, options: &MountOptions) -> Self {
        Self {
            volume,
            cache: options.cache,
            soft: options.soft,
            can_map: AtomicBool::new(false),
            can_recall: AtomicBool::new(false),
            can_expire: AtomicBool::new(false),
            names: PassedNames::default(),
            pages: KeptPages::default(),
            forget_node: OnceLock::new(),
            drop_pages: OnceLock::new(),
            forged_times: AtomicU32::new(0),
            nodes: Nodes::new(options.export),
            handles: Handles::default(),
            removals: Removals::default(),
            appends: std::array::from_fn(|_| Mutex::default()),
            locks: locks::Locks::default(),
            losses: losses::Losses::default(),
            recent: recent::Recent::default(),
            second_tries: second_tries::SecondTries::default(),
        }
    }

    /// Stores the capabilities that the kernel agreed to.
    pub(crate) fn note_agreed(&self, init: &InitOut) {
        let can_map = u64::from(init.flags2) << 32 & init::DIRECT_IO_ALLOW_MMAP != 0;
        self.can_map.store(can_map, Ordering::Relaxed);
        self.can_recall.store(init.minor >= RECALL_MINOR_MIN, Ordering::Relaxed);
        self.can_expire.store(init.minor >= EXPIRE_MINOR_MIN, Ordering::Relaxed);
    }

    /// Number of inodes that the kernel knows.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.count()
    }

    /// The entry for an inode that the kernel now knows. `name`: how long it may use the name without a request.
    fn entry_out(&self, attr: &Attr, name: Duration) -> EntryOut {
        self.nodes.count_lookup(attr.id, attr.kind, self.no_xattrs_for(attr));
        self.nodes.note_attr(attr);
        crate::encode::entry_out(attr, name, self.validity(attr))
    }

    /// How long the kernel may use what a name leads to without a request. `None`: that it is missing.
    fn name_validity(&self, name: &NameAt, target: Option<InodeId>) -> Duration {
        if !self.cache.is_zero() || !self.can_expire.load(Ordering::Relaxed) {
            return self.cache;
        }
        let pledges = self.volume.pledges();
        if pledges.name_validity(name, target).is_zero() {
            return Duration::ZERO;
        }
        // As in `validity`.
        if !self.names.note(name, target) {
            return Duration::ZERO;
        }
        pledges.name_validity(name, target).min(NAMES_PASSED_MAX)
    }

    /// How long the kernel may use attributes without a request.
    fn validity(&self, attr: &Attr) -> Duration {
        if !self.cache.is_zero() || !self.can_recall.load(Ordering::Relaxed) {
            return self.cache;
        }
        let pledges = self.volume.pledges();
        if pledges.validity(attr).is_zero() {
            return Duration::ZERO;
        }
        // Noted before it is asked again: a recall that comes meanwhile is then passed on to the kernel.
        if !self.nodes.note_passed(attr.id.number()) || !self.may_use_pages(attr) {
            return Duration::ZERO;
        }
        pledges.validity(attr)
    }

    /// `forget_node`: has the kernel forget attributes and ACLs. `drop_pages`: has it write back and drop pages.
    pub(crate) fn watch(&self, watcher: Arc<dyn hekate_client::Watcher>, forget_node: OfNode, drop_pages: OfNode) {
        self.volume.pledges().watch(watcher);
        let _ = (self.forget_node.set(forget_node), self.drop_pages.set(drop_pages));
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(crate) fn pages(&self) -> &KeptPages {
        &self.pages
    }

    pub(crate) fn names(&self) -> &PassedNames {
        &self.names
    }

    /// How long the kernel's requests for extended attributes of an inode without any are answered here: the kernel
    /// sends one for each `ls -l` and each first write, and most inodes have none.
    fn no_xattrs_for(&self, attr: &Attr) -> Option<Duration> {
        (!attr.has_xattrs && !self.cache.is_zero()).then_some(self.cache)
    }

    /// Reply with attributes of an inode that the kernel knows.
    fn attributes(&self, attr: &Attr) -> Outcome {
        self.nodes.set_no_xattrs(attr.id.number(), self.no_xattrs_for(attr));
        self.nodes.note_attr(attr);
        Ok(attr_reply(attr, self.validity(attr)))
    }

    /// Reply with an inode whose name is not pledged.
    fn entry(&self, attr: &Attr) -> Outcome {
        Ok(bytes_of(&self.entry_out(attr, self.cache)))
    }

    pub(crate) fn inode(&self, node: u64) -> Result<InodeId, Errno> {
        self.nodes.get(node).map(|(id, _)| id).ok_or(Errno::STALE)
    }
}

impl crate::session::Handler for Filesystem {
    fn answer(&self, request: Request, signals: &Signals, later: PendingReply) -> Option<Outcome> {
        let inode = match self.inode(request.node) {
            Ok(inode) => inode,
            Err(_) if matches!(request.body, Body::Destroy) => return Some(Ok(Bytes::new())),
            Err(stale) => return Some(Err(stale.into())),
        };
        let deadline = self.soft.map(|soft| Instant::now() + soft);
        let Request { uid, gid, pid: thread, .. } = request;
        let sender = Some(hekate_client::Caller { uid, thread });
        let context = Context { interrupt: Some(&signals.fatal), deadline, caller: sender, ..Context::default() };
        let caller = Caller { inode, uid, gid, thread, request: request.unique, context, signals };
        match request.body {
            Body::SetLk { lk, wait: true } => self.lock_later(&caller, &lk, later),
            body => {
                let changes_directories = self.changes_directories(&caller, &body);
                let outcome = self.execute_in_attempt(&caller, body);
                if changes_directories && !self.cache.is_zero() {
                    self.recent.forget();
                }
                Some(outcome)
            }
        }
    }

    fn is_later(&self, unique: u64) -> bool {
        self.locks.is_waiting(unique)
    }

    fn interrupt(&self, unique: u64) {
        self.cancel_lock(unique);
    }

    fn forget(&self, forgotten: &[ForgetOne]) {
        for one in forgotten {
            if self.nodes.forget(one.node, one.count) {
                self.pages.remove(one.node);
            }
        }
    }
}

impl Filesystem {
    /// True for requests that may change attributes of a directory, and whose reply does not contain the new ones:
    /// all but those that make or remove names of files.
    fn changes_directories(&self, caller: &Caller, body: &Body) -> bool {
        match body {
            Body::SetAttr { .. } | Body::SetXattr { .. } | Body::RemoveXattr { .. } => {
                let kind = self.nodes.get(caller.inode.number()).map(|(_, kind)| kind);
                kind.is_none_or(|kind| kind == NodeKind::Directory)
            }
            Body::Mknod { .. }
            | Body::Mkdir { .. }
            | Body::Symlink { .. }
            | Body::Link { .. }
            | Body::Rmdir { .. }
            | Body::Rename { .. }
            | Body::ReadDir { .. } => true,
            _ => false,
        }
    }

    /// Executes a request, as part of a second attempt to resolve a path if it is one.
    fn execute_in_attempt(&self, caller: &Caller, body: Body) -> Outcome {
        let Some(step) = Step::of(&body) else { return self.execute(caller, body) };
        let second = self.is_second_try(caller);
        let outcome = self.execute(caller, body);
        self.finish_attempt(caller, second, step, outcome)
    }

    fn execute(&self, caller: &Caller, body: Body) -> Outcome {
        match body {
            Body::Lookup { name } => self.lookup(caller, name),
            Body::LookupSelf => self.lookup_self(caller),
            Body::LookupParent => self.lookup_parent(caller),
            Body::Mknod { name, mode, rdev, umask } => self.mknod(caller, name, NewMode { mode, umask }, rdev),
            Body::Mkdir { name, mode, umask } => self.mkdir(caller, name, NewMode { mode, umask }),
            Body::Symlink { name, target } => self.symlink(caller, name, target),
            Body::Create { create, name } => self.create(caller, name, create),
            Body::CreateUnnamed { create } => self.create_unnamed(caller, create),
            Body::Link { inode, name } => self.link(caller, name, inode),
            Body::Unlink { name } => self.unlink(caller, name),
            Body::Rmdir { name } => self.rmdir(caller, name),
            Body::Rename { name, to_dir, to_name, flags } => self.rename(caller, name, to_dir, to_name, flags),
            Body::GetAttr { handle } => self.getattr(caller, handle),
            Body::SetAttr { set } => self.setattr(caller, &set),
            Body::ReadLink => self.readlink(caller),
            Body::SetXattr { name, value, flags, drop_set_group } => {
                self.setxattr(caller, name, value, flags, drop_set_group)
            }
            Body::GetXattr { name, size } => self.getxattr(caller, name, size),
            Body::ListXattr { size } => self.listxattr(caller, size),
            Body::RemoveXattr { name } => self.removexattr(caller, name),
            Body::StatFs => self.statfs(caller),
            Body::Open { open } => self.open(caller, open),
            Body::Release { release } => self.release(caller, &release),
            Body::Flush { handle, owner } => self.flush(caller, handle, owner),
            Body::GetLk { lk } => self.test_lock(caller, &lk),
            Body::SetLk { lk, .. } => self.lock(caller, &lk),
            Body::Read { handle, offset, size, flags, is_page } => {
                self.read(caller, handle, (offset, size), flags, is_page)
            }
            Body::Write { offset, write_flags, flags, data } => self.write(caller, offset, write_flags, flags, data),
            Body::Fsync { handle } | Body::FsyncDir { handle } => self.fsync(caller, handle),
            Body::OpenDir => self.opendir(caller),
            Body::ReadDir { handle, offset, size, flags, plus } => {
                self.readdir(caller, handle, offset, size, flags, plus)
            }
            Body::ReleaseDir { handle } => self.releasedir(caller, handle),
            Body::Fallocate { asked } => self.fallocate(caller, &asked),
            Body::Lseek { asked } => self.lseek(caller, &asked),
            Body::CopyFileRange { asked } => self.copy_file_range(caller, &asked),
            Body::Destroy | Body::Forget { .. } | Body::Interrupt { .. } => Ok(Bytes::new()),
            Body::Init { .. } => Err(Errno::INVAL.into()),
            Body::Unserved => Err(Errno::NOSYS.into()),
        }
    }
}

impl Drop for Filesystem {
    /// Closes the files that were open when the connection ended.
    fn drop(&mut self) {
        self.nodes.clear().into_iter().for_each(|inode| self.volume.closed(inode));
    }
}
