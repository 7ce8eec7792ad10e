//! An open volume: its session, its graph, and the ops that gateways request by inode.

use crate::graph::VolumeGraph;
use crate::heartbeats::{HEARTBEAT, Shared};
use bytes::Bytes;
use hekate_graph::report::GraphReport;
use hekate_graph::{Catalogue, Context, LayerSpec, Translator};
use hekate_proto::map::{Mode, VolumeMap};
use hekate_proto::*;
use hekate_translators::{ContentUse, Distribute, Locks, LossWatch, Pledges, Pledging, Replicate, built_in};
use hekate_transport::TlsContext;
use hekate_transport::{Endpoint, Local, ServerPool, Servers, Welcome};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How to open a volume.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// Translators of this program above those of the volume; the first one sees ops first.
    pub layers: Vec<LayerSpec>,
    /// The translators that this program has. `None`: those that are built in.
    pub catalogue: Option<Catalogue>,
    /// Reads do not change times of access (noatime). Otherwise relatime applies (mount(8)).
    pub no_access_times: bool,
    /// Every look-up and every attribute is asked for anew: the session asks for no pledges.
    pub no_pledges: bool,
    /// What pledges on the bytes of longer files are asked for.
    pub contents: ContentUse,
    /// Set if the server runs in this process: ops are then function calls.
    pub local: Option<Local>,
    /// Of a session at a unix socket: the credential of the server there, to reach servers on other machines.
    pub elsewhere: Option<Arc<TlsContext>>,
}

/// An open volume, until it is dropped.
///
/// Every method may be called by any thread and blocks it. A method that changes something returns once all replicas
/// have the change, and with [`Context::durable`] once it is on stable storage of all of them.
///
/// # Errors
/// Every method that executes an op: `Unavailable` if the caller gave up ([`Context::interrupt`]), `SessionEnded` once
/// the session has ended, `Stale` if the inode no longer exists, `Damaged` or `Io` if no replica can read the data,
/// `NoSpace` if a brick has no room for a change. A method's own section names the others.
pub struct Volume {
    shared: Arc<Shared>,
    graph: Arc<VolumeGraph>,
    latest_map: Box<dyn Fn() -> Arc<VolumeMap> + Send + Sync>,
    pub(crate) locks: Arc<Locks>,
    pledging: Arc<Pledging>,
    pledges: Arc<Pledges>,
    losses: LossWatch,
    map: VolumeMap,
    session: SessionId,
    pub(crate) access_times: bool,
}

impl Volume {
    /// Opens the volume called `name` at a server, with a new session.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached, `NotFound` with the known names, `Denied` if this user may not
    /// use the volume, `NotSupported` if its mode needs the cargo feature `measuring` here or at the server.
    pub fn open(endpoint: Endpoint, name: &str, options: &OpenOptions) -> Result<Self> {
        let (servers, welcome) = ServerPool::open(endpoint, name, options.local.clone(), options.elsewhere.clone())?;
        Self::over(Arc::new(servers), welcome, options)
    }

    /// The volume of a session that was opened with these servers.
    ///
    /// # Errors
    /// `Invalid` if a translator is unknown, `NotSupported` if the volume's mode is, `Io` if no thread can be started.
    pub fn over(servers: Arc<dyn Servers>, welcome: Welcome, options: &OpenOptions) -> Result<Self> {
        if let Err(unknown) = hekate_translators::check_mode(welcome.map.mode) {
            end_session(&*servers, &welcome);
            return Err(unknown);
        }
        let (session, map) = (welcome.session, welcome.map.clone());
        let replicate = match options.no_pledges {
            false => Replicate::with_pledges(servers.clone(), session, map, options.contents),
            true => Replicate::new(servers.clone(), session, map),
        };
        let distribute = Arc::new(Distribute::new(replicate));
        let (locks, losses) = (distribute.locks(), distribute.loss_watch());
        let latest_map = Box::new(distribute.latest_map());
        let bottom = Arc::new(Pledging::new(distribute));
        let pledges = bottom.pledges();
        let catalogue = options.catalogue.clone().unwrap_or_else(built_in);
        let graph = VolumeGraph::open(catalogue, options.layers.clone(), &welcome.map.graph, bottom.clone())
            .inspect_err(|_| end_session(&*servers, &welcome))?;
        let shared = Arc::new(Shared::new(servers));
        let (beating, its_graph) = (shared.clone(), graph.clone());
        hekate_threads::spawn("hekate-beat", move || beating.send_heartbeats(&its_graph))
            .map_err(|e| Error::io("start a thread", e))?;
        let access_times = !options.no_access_times;
        Ok(Self {
            shared,
            graph,
            latest_map,
            locks,
            pledging: bottom,
            pledges,
            losses,
            map: welcome.map,
            session: welcome.session,
            access_times,
        })
    }

    /// True if ops pass translators.
    pub fn has_layers(&self) -> bool {
        self.graph.running().has_layers()
    }

    /// What the session may answer by itself.
    pub fn pledges(&self) -> &Arc<Pledges> {
        &self.pledges
    }

    /// The layer of the pledges, for the mapping rights of a mount.
    pub fn pledging(&self) -> &Pledging {
        &self.pledging
    }

    /// The map as of the opening of the volume.
    pub fn map(&self) -> &VolumeMap {
        &self.map
    }

    /// True if short overwrites go to all copies at once: the volume is in mode `hsr`, and several servers had bricks of
    /// it when it was opened.
    pub fn has_fast_lane(&self) -> bool {
        self.map.mode == Mode::Hsr && self.map.holders().len() > 1
    }

    pub fn session(&self) -> SessionId {
        self.session
    }

    /// True if servers have ended the session, because they heard nothing of it for 60 s or its client was revoked. Every
    /// op fails from then on; [`Volume::open`] begins another session.
    pub fn has_ended(&self) -> bool {
        self.shared.was_refused()
    }

    /// Notes that pages which a program changed through a shared mapping were written back. The next heartbeat
    /// reports the file, so that servers can warn of a file that two mounts map. For mounts without mapping rights.
    pub fn wrote_mapped(&self, inode: InodeId) {
        self.shared.wrote_mapped(inode);
    }

    /// Executes an op through the graph.
    pub fn call(&self, context: &Context, op: Op) -> Result<Reply> {
        self.graph.running().handle(context, op)
    }

    /// The translators in use with their counters, and the layers below.
    pub fn graph(&self) -> GraphReport {
        self.graph.report(&(self.latest_map)(), self.session)
    }

    pub(crate) fn node(&self, context: &Context, op: Op) -> Result<(Attr, bool)> {
        match self.call(context, op)? {
            Reply::Node { attr, created } => Ok((attr, created)),
            _ => Err(unexpected()),
        }
    }

    fn done(&self, context: &Context, op: Op) -> Result<()> {
        self.call(context, op).map(|_| ())
    }

    /// The inode that has a name.
    ///
    /// # Errors
    /// `NotFound` if there is no such name, `NotDirectory` if `dir` is not a directory.
    pub fn lookup(&self, context: &Context, dir: InodeId, name: Name) -> Result<Attr> {
        Ok(self.node(context, Op::Name { op: NameOp::Lookup { dir, name } })?.0)
    }

    /// Makes an inode with a new name. If a file has the name and `exclusive` is false, returns that file. The second
    /// value is true if the inode was made.
    ///
    /// # Errors
    /// `Exists` if the name exists and is not returned, `NotDirectory` if `dir` is not a directory; see open(2),
    /// mkdir(2), mknod(2) and symlink(2).
    pub fn create(&self, context: &Context, dir: InodeId, name: Name, new: New) -> Result<(Attr, bool)> {
        let New { node, mode, uid, gid, umask, exclusive } = new;
        let seed = seed()?;
        self.node(context, Op::Name { op: NameOp::Create { dir, name, node, mode, uid, gid, umask, exclusive, seed } })
    }

    /// Makes a file without a name, and counts it as open. It is removed after its last [`Volume::closed`], unless
    /// [`Volume::link`] gave it a name, which requires `linkable`. The kind in `new` is ignored.
    ///
    /// # Errors
    /// `NotDirectory` if `dir` is not a directory; see open(2), O_TMPFILE.
    pub fn create_unnamed(&self, context: &Context, dir: InodeId, new: New, linkable: bool) -> Result<Attr> {
        let New { mode, uid, gid, umask, .. } = new;
        let seed = seed()?;
        // The file must not be reported as unused before it is counted as open.
        let _unnamed = self.shared.unnamed.read();
        let op = NameOp::CreateUnnamed { dir, mode, uid, gid, umask, linkable, seed };
        let (attr, _) = self.node(context, Op::Name { op })?;
        self.opened(attr.id);
        Ok(attr)
    }

    /// Gives an inode one more name.
    ///
    /// # Errors
    /// `Exists` if the name exists, `TooManyLinks` if the inode has the greatest number of names; see link(2).
    pub fn link(&self, context: &Context, dir: InodeId, name: Name, inode: InodeId) -> Result<Attr> {
        Ok(self.node(context, Op::Name { op: NameOp::Link { dir, name, inode } })?.0)
    }

    /// Removes a name of an inode that is not a directory. `inode`: the inode of the name, if the caller knows it. It
    /// continues to exist while this volume has it open.
    ///
    /// # Errors
    /// `NotFound` if there is no such name, `IsDirectory` if it is that of a directory.
    pub fn unlink(&self, context: &Context, dir: InodeId, name: Name, inode: Option<InodeId>) -> Result<()> {
        let open_here = inode.filter(|inode| self.is_open(*inode));
        self.done(context, Op::Name { op: NameOp::Unlink { dir, name, open_here } })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound` if there is no such name, `NotDirectory` if it is not that of a directory, `NotEmpty` if the
    /// directory has names; see rmdir(2).
    pub fn rmdir(&self, context: &Context, dir: InodeId, name: Name) -> Result<()> {
        self.done(context, Op::Name { op: NameOp::Rmdir { dir, name } })
    }

    /// renameat2(2). `replaced`: the inode of the new name, as in [`Volume::unlink`].
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `NotEmpty`, `NotDirectory`, `IsDirectory` and `Loop` as in rename(2).
    pub fn rename(
        &self,
        context: &Context,
        from: (InodeId, Name),
        to: (InodeId, Name),
        mode: RenameMode,
        replaced: Option<InodeId>,
    ) -> Result<()> {
        let open_here = replaced.filter(|inode| self.is_open(*inode));
        let ((dir, name), (to_dir, to_name)) = (from, to);
        self.done(context, Op::Name { op: NameOp::Rename { dir, name, to_dir, to_name, mode, open_here } })
    }

    /// At most `limit` names after `after`, in byte order. The second value is true if these are the last ones.
    ///
    /// # Errors
    /// `NotDirectory` if `dir` is not a directory.
    pub fn list(
        &self,
        context: &Context,
        dir: InodeId,
        after: Option<Name>,
        limit: u32,
        attributes: bool,
    ) -> Result<(Vec<Entry>, bool)> {
        self.list_range(context, dir, after, limit, attributes, self.access_times)
    }

    /// As [`Volume::list`], without changing the time of access (O_NOATIME).
    ///
    /// # Errors
    /// As [`Volume::list`].
    pub fn list_quietly(
        &self,
        context: &Context,
        dir: InodeId,
        after: Option<Name>,
        limit: u32,
        attributes: bool,
    ) -> Result<(Vec<Entry>, bool)> {
        self.list_range(context, dir, after, limit, attributes, false)
    }

    fn list_range(
        &self,
        context: &Context,
        dir: InodeId,
        after: Option<Name>,
        limit: u32,
        attributes: bool,
        touch: bool,
    ) -> Result<(Vec<Entry>, bool)> {
        match self.call(context, Op::Name { op: NameOp::List { dir, after, limit, attributes, touch } })? {
            Reply::List { entries, end } => Ok((entries, end)),
            _ => Err(unexpected()),
        }
    }

    /// The inode's current attributes.
    pub fn getattr(&self, context: &Context, inode: InodeId) -> Result<Attr> {
        Ok(self.node(context, Op::Inode { op: InodeOp::GetAttr { inode } })?.0)
    }

    /// chmod, chown, utimens or truncate. Returns the new attributes.
    ///
    /// # Errors
    /// `TooLarge` for a size beyond the greatest one, `IsDirectory` or `Invalid` for the size of an inode that is not a
    /// regular file.
    pub fn setattr(&self, context: &Context, inode: InodeId, changes: AttrChanges) -> Result<Attr> {
        Ok(self.node(context, Op::Inode { op: InodeOp::SetAttr { inode, changes } })?.0)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` if the inode is not a symbolic link.
    pub fn readlink(&self, context: &Context, inode: InodeId) -> Result<Bytes> {
        self.bytes(context, Op::Inode { op: InodeOp::ReadLink { inode, touch: self.access_times } })
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute` if the inode does not have it.
    pub fn getxattr(&self, context: &Context, inode: InodeId, name: Bytes) -> Result<Bytes> {
        self.bytes(context, Op::Inode { op: InodeOp::GetXattr { inode, name } })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `Exists` or `NoAttribute` as `how` demands, `AttributeTooLarge` if the value is too long; see setxattr(2).
    pub fn setxattr(&self, context: &Context, inode: InodeId, name: Bytes, value: Bytes, how: SetXattr) -> Result<()> {
        let SetXattr { create, replace, drop_set_group } = how;
        self.done(context, Op::Inode { op: InodeOp::SetXattr { inode, name, value, create, replace, drop_set_group } })
    }

    /// The parent of a directory. The parent of the root is the root.
    ///
    /// # Errors
    /// `NotDirectory` if the inode is not a directory.
    pub fn parent(&self, context: &Context, directory: InodeId) -> Result<Attr> {
        Ok(self.node(context, Op::Inode { op: InodeOp::Parent { inode: directory } })?.0)
    }

    /// The names of all extended attributes.
    pub fn listxattr(&self, context: &Context, inode: InodeId) -> Result<Vec<Bytes>> {
        match self.call(context, Op::Inode { op: InodeOp::ListXattr { inode } })? {
            Reply::Names { names } => Ok(names),
            _ => Err(unexpected()),
        }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute` if the inode does not have it.
    pub fn removexattr(&self, context: &Context, inode: InodeId, name: Bytes) -> Result<()> {
        self.done(context, Op::Inode { op: InodeOp::RemoveXattr { inode, name } })
    }

    /// Writes all of `data` (at most `IO_BYTES_MAX`) at `offset`. `drop_set_id`: clear the set-user-id and
    /// set-group-id bits, because the writer is not privileged.
    ///
    /// # Errors
    /// `Invalid` if `data` is longer than `IO_BYTES_MAX`, `IsDirectory` or `Invalid` if the inode is not a regular
    /// file, `TooLarge` if the write ends beyond the greatest file size.
    pub fn write(&self, context: &Context, inode: InodeId, offset: u64, data: Bytes, drop_set_id: bool) -> Result<()> {
        check_length(&data)?;
        self.done(context, Op::Data { op: DataOp::Write { inode, offset, data, drop_set_id } })
    }

    /// Writes `data` at the end of the file. Appends of all clients run one after the other.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn append(&self, context: &Context, inode: InodeId, data: Bytes, drop_set_id: bool) -> Result<()> {
        check_length(&data)?;
        self.done(context, Op::Data { op: DataOp::Append { inode, data, drop_set_id } })
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// `Invalid` if the length is 0, `IsDirectory` or `Invalid` if the inode is not a regular file, `TooLarge` if the
    /// range ends beyond the greatest file size.
    pub fn allocate(
        &self,
        context: &Context,
        inode: InodeId,
        offset: u64,
        length: u64,
        mode: Allocate,
        drop_set_id: bool,
    ) -> Result<()> {
        self.done(context, Op::Data { op: DataOp::Allocate { inode, offset, length, mode, drop_set_id } })
    }

    /// lseek(2) with SEEK_DATA, or with `hole` SEEK_HOLE.
    ///
    /// # Errors
    /// `NoData` beyond the end of the file, or if no data follows.
    pub fn seek(&self, context: &Context, inode: InodeId, offset: u64, hole: bool) -> Result<u64> {
        match self.call(context, Op::Data { op: DataOp::Seek { inode, offset, hole } })? {
            Reply::Found { at: Some(at) } => Ok(at),
            _ => Err(unexpected()),
        }
    }

    /// copy_file_range(2). Returns the number of bytes copied, which may be lower than `length`: at the end of the
    /// source, or because one call copies a limited amount. `touch`: update the source's time of access, unless
    /// [`OpenOptions::no_access_times`] is set.
    ///
    /// # Errors
    /// `Invalid` if the ranges overlap in one file, `IsDirectory` or `Invalid` if an inode is not a regular file.
    pub fn copy(
        &self,
        context: &Context,
        from: FilePosition,
        to: FilePosition,
        length: u64,
        drop_set_id: bool,
        touch: bool,
    ) -> Result<u64> {
        let touch = touch && self.access_times;
        let (FilePosition { inode: from, offset: from_offset }, FilePosition { inode: to, offset: to_offset }) =
            (from, to);
        let op = DataOp::Copy { from, from_offset, to, to_offset, length, drop_set_id, touch };
        match self.call(context, Op::Data { op })? {
            Reply::Copied { bytes } => Ok(bytes),
            _ => Err(unexpected()),
        }
    }

    /// Puts this client's changes of the inode (bytes and attributes, for a directory also names) on stable storage
    /// of every replica.
    ///
    /// # Errors
    /// `Lost` if all replicas lost such changes before they were synced. It is reported once.
    pub fn fsync(&self, context: &Context, inode: InodeId) -> Result<()> {
        self.done(context, Op::Data { op: DataOp::Fsync { inode } })
    }

    /// True if changes of the inode are known to be lost, without a request to a server. Each loss is reported once: an
    /// fsync after a true does not fail because of it.
    pub fn is_lost(&self, inode: InodeId) -> bool {
        self.losses.is_lost(inode)
    }

    /// Space of the volume.
    pub fn statfs(&self, context: &Context) -> Result<VolumeSpace> {
        match self.call(context, Op::Volume { op: VolumeOp::StatFs })? {
            Reply::Space { space } => Ok(space),
            _ => Err(unexpected()),
        }
    }

    /// Counts an open. While an inode is open it exists, even without a name.
    pub fn opened(&self, inode: InodeId) {
        *self.shared.opens.lock().entry(inode).or_default() += 1;
    }

    /// Ends an open that [`Volume::opened`] counted.
    pub fn closed(&self, inode: InodeId) {
        let mut opens = self.shared.opens.lock();
        if let Some(count) = opens.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                opens.remove(&inode);
            }
        }
    }

    /// True if the inode is open.
    pub fn is_open(&self, inode: InodeId) -> bool {
        self.shared.opens.lock().contains_key(&inode)
    }

    /// True if any inode is open.
    pub(crate) fn has_open(&self) -> bool {
        !self.shared.opens.lock().is_empty()
    }

    fn bytes(&self, context: &Context, op: Op) -> Result<Bytes> {
        match self.call(context, op)? {
            Reply::Bytes { bytes } => Ok(bytes),
            _ => Err(unexpected()),
        }
    }
}

/// The inode to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct New {
    /// Kind of the inode: file, directory, …
    pub node: NewNode,
    /// Permission bits.
    pub mode: u16,
    pub uid: u32,
    /// Group. In a directory with set-group-id, the directory's group is used instead.
    pub gid: u32,
    /// Bits to clear in the mode, unless the directory has a default ACL.
    pub umask: u16,
    /// Fail if the name exists.
    pub exclusive: bool,
}

/// How to set an extended attribute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetXattr {
    /// Fail if the attribute exists.
    pub create: bool,
    /// Fail if the attribute does not exist.
    pub replace: bool,
    /// For an ACL: clear the set-group-id bit.
    pub drop_set_group: bool,
}

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePosition {
    pub inode: InodeId,
    pub offset: u64,
}

fn check_length(data: &Bytes) -> Result<()> {
    match data.len() {
        length if length > IO_BYTES_MAX => {
            Err(Error::invalid(format!("a write has {length} bytes, at most {IO_BYTES_MAX} are allowed; split it")))
        }
        _ => Ok(()),
    }
}

/// A random number from which servers make inode ids that cannot be guessed.
///
/// # Errors
/// `Bug` if the kernel returns no random bytes.
pub fn seed() -> Result<u64> {
    hekate_threads::random().map_err(|e| Error::bug(format!("getrandom: {e}")))
}

impl Volume {
    /// Ends the session now instead of when the volume is dropped. Later ops fail.
    pub fn end(&self) {
        if self.shared.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        // If a server is unavailable, the session expires there.
        let gave_up = AtomicBool::new(true);
        let context = Context { interrupt: Some(&gave_up), ..Context::default() };
        self.graph.end();
        let _ = self.graph.running().bottom().handle(&context, Op::Volume { op: VolumeOp::EndSession });
        self.shared.servers.close();
        self.locks.close();
    }
}

/// Ends a session whose volume could not be opened. If the server does not answer, the session expires there.
fn end_session(servers: &dyn Servers, welcome: &Welcome) {
    let (op, target) = (Op::Volume { op: VolumeOp::EndSession }, Target::Server);
    let (volume, session, op_id) = (welcome.map.volume, welcome.session, OpId(0));
    let request = Request { volume, target, session, op_id, durable: false, retry: false, pledge: false, op };
    let _ = servers.attempt(servers.first(), &mut [request], Some(HEARTBEAT), &|| false);
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn unexpected() -> Error {
    Error::Protocol { what: "the reply is of another kind than its op has".into() }
}
