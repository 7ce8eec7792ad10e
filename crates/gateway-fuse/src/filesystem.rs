//! Requests to calls of the library, by inode.
//!
//! Invariants: what the kernel is told of is in [`Nodes`] before the answer goes out; an inode that is open here is
//! marked so, in the library too, before the servers are asked whether it is there; permissions are the kernel's
//! business (`default_permissions`).

mod attributes;
mod data;
mod directories;
mod export;
mod locks;
mod losses;
mod names;
mod privileges;
mod recent;
mod second_tries;
mod space;

use crate::MountOptions;
use crate::abi::*;
use crate::directory::Handles;
use crate::encode::{Outcome, attr_reply, bytes_of, entry_out};
use crate::in_flight::Signals;
use crate::nodes::Nodes;
use crate::removals::Removals;
use crate::request::{Body, Request};
use crate::session::Later;
use bytes::Bytes;
use hekate_client::{Context, Volume};
use hekate_proto::{Attr, InodeId, NodeKind};
use parking_lot::Mutex;
pub(crate) use privileges::has_lone_set_group;
use rustix::io::Errno;
use second_tries::Step;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Appends to the same file wait for each other; files share the locks by number.
const APPEND_LOCKS: usize = 64;

/// A volume as the kernel sees it.
pub(crate) struct Filesystem {
    volume: Arc<Volume>,
    /// How long the kernel may believe names and attributes without asking.
    cache: Duration,
    /// How long an op waits for a server that is away; without it for ever.
    soft: Option<Duration>,
    /// What bypasses the page cache can be mapped all the same.
    can_map: AtomicBool,
    nodes: Nodes,
    handles: Handles,
    removals: Removals,
    appends: [Mutex<()>; APPEND_LOCKS],
    locks: locks::Locks,
    losses: losses::Losses,
    recent: recent::Recent,
    second_tries: second_tries::SecondTries,
}

/// For whom, and about which inode.
struct Caller<'a> {
    inode: InodeId,
    uid: u32,
    gid: u32,
    /// 0: one that cannot be seen from here.
    thread: u32,
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

    /// What the kernel can do.
    pub(crate) fn agreed(&self, init: &InitOut) {
        let can_map = u64::from(init.flags2) << 32 & init::DIRECT_IO_ALLOW_MMAP != 0;
        self.can_map.store(can_map, Ordering::Relaxed);
    }

    /// Inodes that the kernel remembers.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.count()
    }

    /// An inode, told to the kernel.
    fn told(&self, attr: &Attr) -> EntryOut {
        self.nodes.told(attr.id, attr.kind, self.believed_plain(attr));
        self.nodes.saw(attr);
        entry_out(attr, self.cache)
    }

    /// For how long the kernel may believe that an inode has no extended attributes: it asks for some with each `ls -l` and
    /// each first write, and most inodes have none.
    fn believed_plain(&self, attr: &Attr) -> Option<Duration> {
        (!attr.has_xattrs && !self.cache.is_zero()).then_some(self.cache)
    }

    /// Attributes of an inode that the kernel knows.
    fn attributes(&self, attr: &Attr) -> Outcome {
        self.nodes.set_plain(attr.id.number(), self.believed_plain(attr));
        self.nodes.saw(attr);
        Ok(attr_reply(attr, self.cache))
    }

    fn entry(&self, attr: &Attr) -> Outcome {
        Ok(bytes_of(&self.told(attr)))
    }

    fn inode(&self, node: u64) -> Result<InodeId, Errno> {
        self.nodes.get(node).map(|(id, _)| id).ok_or(Errno::STALE)
    }
}

impl crate::session::Answers for Filesystem {
    fn answer(&self, request: Request, signals: &Signals, later: Later) -> Option<Outcome> {
        let inode = match self.inode(request.node) {
            Ok(inode) => inode,
            Err(_) if matches!(request.body, Body::Destroy) => return Some(Ok(Bytes::new())),
            Err(stale) => return Some(Err(stale.into())),
        };
        let deadline = self.soft.map(|soft| Instant::now() + soft);
        let context = Context { interrupt: Some(&signals.fatal), deadline, ..Context::default() };
        let Request { uid, gid, pid: thread, .. } = request;
        let caller = Caller { inode, uid, gid, thread, context, signals };
        match request.body {
            Body::SetLk { lk, wait: true } => self.lock_later(&caller, &lk, later),
            body => {
                let changes_directories = self.changes_directories(&caller, &body);
                let outcome = self.answer_in_try(&caller, body);
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
        forgotten.iter().for_each(|one| self.nodes.forget(one.node, one.count));
    }
}

impl Filesystem {
    /// Whether it may change what a directory is like, and brings nothing along that says how: all but what makes or removes
    /// names of files.
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

    /// Answers, as part of a try to resolve a path if it is one.
    fn answer_in_try(&self, caller: &Caller, body: Body) -> Outcome {
        let Some(step) = Step::of(&body) else { return self.answer_now(caller, body) };
        let second = self.is_second_try(caller);
        let outcome = self.answer_now(caller, body);
        self.settle_try(caller, second, step, outcome)
    }

    fn answer_now(&self, caller: &Caller, body: Body) -> Outcome {
        match body {
            Body::Lookup { name } => self.lookup(caller, name),
            Body::LookupSelf => self.lookup_self(caller),
            Body::LookupParent => self.lookup_parent(caller),
            Body::Mknod { name, mode, rdev, umask } => self.mknod(caller, name, (mode, umask), rdev),
            Body::Mkdir { name, mode, umask } => self.mkdir(caller, name, (mode, umask)),
            Body::Symlink { name, target } => self.symlink(caller, name, target),
            Body::Create { create, name } => self.create(caller, name, create),
            Body::CreateUnnamed { create } => self.create_unnamed(caller, create),
            Body::Link { inode, name } => self.link(caller, name, inode),
            Body::Unlink { name } => self.unlink(caller, name),
            Body::Rmdir { name } => self.rmdir(caller, name),
            Body::Rename { name, to_dir, to_name, flags } => self.rename(caller, name, to_dir, to_name, flags),
            Body::GetAttr => self.getattr(caller),
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
            Body::Read { offset, size, flags } => self.read(caller, offset, size, flags),
            Body::Write { offset, write_flags, flags, data } => self.write(caller, offset, write_flags, flags, data),
            Body::Fsync { handle } | Body::FsyncDir { handle } => self.fsync(caller, handle),
            Body::OpenDir => self.opendir(caller),
            Body::ReadDir { handle, offset, size, flags, plus } => {
                self.readdir(caller, handle, (offset, size), flags, plus)
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
    /// What a lost connection left open is closed.
    fn drop(&mut self) {
        self.nodes.clear().into_iter().for_each(|inode| self.volume.closed(inode));
    }
}
