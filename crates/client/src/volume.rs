//! A volume that is open: its session, its graph, and the ops that doors ask for, by inode.

use bytes::Bytes;
use hekate_graph::{Context, LayerSpec, Translator};
use hekate_proto::map::VolumeMap;
use hekate_proto::*;
use hekate_translators::{Distribute, Locks, LossWatch, REGISTRY, Replicate};
use hekate_transport::{Endpoint, Local, Servers};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a session says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Files with mapped pages that a heartbeat names, 16 bytes each; further ones are named when they are written back again.
const MAPPED_MAX: usize = 1024;

/// How to open a volume.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Translators on top of the fixed bottom; the first sees ops first.
    pub layers: Vec<LayerSpec>,
    /// Reading leaves times of access as they are (noatime); else they follow relatime (mount(8)).
    pub no_access_times: bool,
    /// The server is of this process: ops are calls of it.
    pub local: Option<Local>,
}

/// A volume, open until it is dropped.
///
/// Every method may be called from any thread and blocks it. A method returns once all replicas hold the change; with
/// [`Context::durable`] once it is on stable storage of all of them.
pub struct Volume {
    shared: Arc<Shared>,
    top: Arc<dyn Translator>,
    pub(crate) locks: Arc<Locks>,
    losses: LossWatch,
    map: VolumeMap,
    session: SessionId,
    access_times: bool,
}

struct Shared {
    servers: Arc<Servers>,
    /// Files whose mapped pages were written back since the last heartbeat that was answered.
    mapped: Mutex<HashSet<InodeId>>,
    opens: Mutex<HashMap<InodeId, u32>>,
    /// Held while a file without a name is being made.
    unnamed: RwLock<()>,
    ended: AtomicBool,
}

impl Volume {
    /// Opens the volume called `name` at a server.
    pub fn open(endpoint: Endpoint, name: &str, options: &OpenOptions) -> Result<Self> {
        let (servers, welcome) = Servers::open(endpoint, name, options.local.clone())?;
        let servers = Arc::new(servers);
        let replicate = Replicate::new(servers.clone(), welcome.session, welcome.map.clone());
        let bottom = Arc::new(Distribute::new(replicate));
        let (locks, losses) = (bottom.locks(), bottom.loss_watch());
        let top = hekate_graph::build(&options.layers, REGISTRY, bottom)?;
        let shared = Arc::new(Shared {
            servers,
            mapped: Mutex::default(),
            opens: Mutex::default(),
            unnamed: RwLock::default(),
            ended: AtomicBool::new(false),
        });
        let (beating, graph) = (shared.clone(), top.clone());
        std::thread::Builder::new()
            .name("hekate-beat".into())
            .spawn(move || beating.beat(&*graph))
            .map_err(|e| Error::io("start a thread", e))?;
        let access_times = !options.no_access_times;
        Ok(Self { shared, top, locks, losses, map: welcome.map, session: welcome.session, access_times })
    }

    /// The map as it was handed out.
    pub fn map(&self) -> &VolumeMap {
        &self.map
    }

    /// The session's number.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Pages of the file that a program stored to through a shared mapping were written back. The servers are told with the next
    /// heartbeat, so that they can warn of a file that two mounts map.
    pub fn wrote_mapped(&self, inode: InodeId) {
        let mut mapped = self.shared.mapped.lock();
        if mapped.len() < MAPPED_MAX {
            mapped.insert(inode);
        }
    }

    /// Passes an op to the graph.
    pub fn call(&self, context: &Context, op: Op) -> Result<Reply> {
        self.top.handle(context, op)
    }

    fn node(&self, context: &Context, op: Op) -> Result<(Attr, bool)> {
        match self.call(context, op)? {
            Reply::Node { attr, created } => Ok((attr, created)),
            _ => Err(unexpected()),
        }
    }

    fn done(&self, context: &Context, op: Op) -> Result<()> {
        self.call(context, op).map(|_| ())
    }

    /// The inode under a name.
    pub fn lookup(&self, context: &Context, dir: InodeId, name: Name) -> Result<Attr> {
        Ok(self.node(context, Op::Name { op: NameOp::Lookup { dir, name } })?.0)
    }

    /// Makes an inode under a new name. If it is a file, is there already and `exclusive` is false: that file.
    /// -> the inode, and whether it was made.
    pub fn create(&self, context: &Context, dir: InodeId, name: Name, new: New) -> Result<(Attr, bool)> {
        let New { node, mode, uid, gid, umask, exclusive } = new;
        let seed = seed()?;
        self.node(context, Op::Name { op: NameOp::Create { dir, name, node, mode, uid, gid, umask, exclusive, seed } })
    }

    /// Makes a file without a name, which counts as open from now on; with its last [`Volume::closed`] it goes, unless
    /// [`Volume::link`] gave it a name (which it may if it is `linkable`). Of `new` the kind is not looked at.
    pub fn create_unnamed(&self, context: &Context, dir: InodeId, new: New, linkable: bool) -> Result<Attr> {
        let New { mode, uid, gid, umask, .. } = new;
        let seed = seed()?;
        // Until it is counted as open, no orphan is said to be unused.
        let _unnamed = self.shared.unnamed.read();
        let op = NameOp::CreateUnnamed { dir, mode, uid, gid, umask, linkable, seed };
        let (attr, _) = self.node(context, Op::Name { op })?;
        self.opened(attr.id);
        Ok(attr)
    }

    /// A further name for an inode.
    pub fn link(&self, context: &Context, dir: InodeId, name: Name, inode: InodeId) -> Result<Attr> {
        Ok(self.node(context, Op::Name { op: NameOp::Link { dir, name, inode } })?.0)
    }

    /// Removes a name of anything but a directory. `inode`: what the caller believes is there.
    pub fn unlink(&self, context: &Context, dir: InodeId, name: Name, inode: Option<InodeId>) -> Result<()> {
        let open_here = inode.filter(|inode| self.is_open(*inode));
        self.done(context, Op::Name { op: NameOp::Unlink { dir, name, open_here } })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, context: &Context, dir: InodeId, name: Name) -> Result<()> {
        self.done(context, Op::Name { op: NameOp::Rmdir { dir, name } })
    }

    /// renameat2. `replaced`: what the caller believes is under the new name.
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

    /// Names after `after` in byte order, at most `limit`; and whether these were the last.
    pub fn list(
        &self,
        context: &Context,
        dir: InodeId,
        after: Option<Name>,
        limit: u32,
        attributes: bool,
    ) -> Result<(Vec<Entry>, bool)> {
        self.list_range(context, dir, after, limit, (attributes, self.access_times))
    }

    /// The same; the time of access stays (O_NOATIME).
    pub fn list_quietly(
        &self,
        context: &Context,
        dir: InodeId,
        after: Option<Name>,
        limit: u32,
        attributes: bool,
    ) -> Result<(Vec<Entry>, bool)> {
        self.list_range(context, dir, after, limit, (attributes, false))
    }

    fn list_range(
        &self,
        context: &Context,
        dir: InodeId,
        after: Option<Name>,
        limit: u32,
        (attributes, touch): (bool, bool),
    ) -> Result<(Vec<Entry>, bool)> {
        match self.call(context, Op::Name { op: NameOp::List { dir, after, limit, attributes, touch } })? {
            Reply::List { entries, end } => Ok((entries, end)),
            _ => Err(unexpected()),
        }
    }

    /// Attributes.
    pub fn getattr(&self, context: &Context, inode: InodeId) -> Result<Attr> {
        Ok(self.node(context, Op::Inode { op: InodeOp::GetAttr { inode } })?.0)
    }

    /// chmod, chown, utimens, truncate. -> the attributes after it.
    pub fn setattr(&self, context: &Context, inode: InodeId, changes: AttrChanges) -> Result<Attr> {
        Ok(self.node(context, Op::Inode { op: InodeOp::SetAttr { inode, changes } })?.0)
    }

    /// A symlink's target.
    pub fn readlink(&self, context: &Context, inode: InodeId) -> Result<Bytes> {
        self.bytes(context, Op::Inode { op: InodeOp::ReadLink { inode, touch: self.access_times } })
    }

    /// An extended attribute's value.
    pub fn getxattr(&self, context: &Context, inode: InodeId, name: Bytes) -> Result<Bytes> {
        self.bytes(context, Op::Inode { op: InodeOp::GetXattr { inode, name } })
    }

    /// Sets an extended attribute.
    pub fn setxattr(&self, context: &Context, inode: InodeId, name: Bytes, value: Bytes, how: SetXattr) -> Result<()> {
        let SetXattr { create, replace, drop_set_group } = how;
        self.done(context, Op::Inode { op: InodeOp::SetXattr { inode, name, value, create, replace, drop_set_group } })
    }

    /// The directory that a directory is in; of the root, the root.
    pub fn parent(&self, context: &Context, directory: InodeId) -> Result<Attr> {
        Ok(self.node(context, Op::Inode { op: InodeOp::Parent { inode: directory } })?.0)
    }

    /// Names of extended attributes.
    pub fn listxattr(&self, context: &Context, inode: InodeId) -> Result<Vec<Bytes>> {
        match self.call(context, Op::Inode { op: InodeOp::ListXattr { inode } })? {
            Reply::Names { names } => Ok(names),
            _ => Err(unexpected()),
        }
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, context: &Context, inode: InodeId, name: Bytes) -> Result<()> {
        self.done(context, Op::Inode { op: InodeOp::RemoveXattr { inode, name } })
    }

    /// At most `length` bytes from `offset`; fewer only at the end of the file.
    pub fn read(&self, context: &Context, inode: InodeId, offset: u64, length: u32) -> Result<Bytes> {
        self.read_range(context, inode, (offset, length), self.access_times)
    }

    /// The same; the time of access stays (O_NOATIME).
    pub fn read_quietly(&self, context: &Context, inode: InodeId, offset: u64, length: u32) -> Result<Bytes> {
        self.read_range(context, inode, (offset, length), false)
    }

    fn read_range(
        &self,
        context: &Context,
        inode: InodeId,
        (offset, length): (u64, u32),
        touch: bool,
    ) -> Result<Bytes> {
        match self.call(context, Op::Data { op: DataOp::Read { inode, offset, length, touch } })? {
            Reply::FileData { bytes, .. } => Ok(bytes),
            _ => Err(unexpected()),
        }
    }

    /// Writes all of `data` (at most `IO_BYTES_MAX`) at `offset`. `drop_set_id`: the writer is not privileged to keep
    /// set-user-id and set-group-id.
    pub fn write(&self, context: &Context, inode: InodeId, offset: u64, data: Bytes, drop_set_id: bool) -> Result<()> {
        if data.len() > IO_BYTES_MAX {
            return Err(Error::invalid(format!("a write of {} bytes; the greatest is {IO_BYTES_MAX}", data.len())));
        }
        self.done(context, Op::Data { op: DataOp::Write { inode, offset, data, drop_set_id } })
    }

    /// The same at the end of the file, wherever that is by then: appends of all clients come one after the other.
    pub fn append(&self, context: &Context, inode: InodeId, data: Bytes, drop_set_id: bool) -> Result<()> {
        if data.len() > IO_BYTES_MAX {
            return Err(Error::invalid(format!("a write of {} bytes; the greatest is {IO_BYTES_MAX}", data.len())));
        }
        self.done(context, Op::Data { op: DataOp::Append { inode, data, drop_set_id } })
    }

    /// fallocate(2).
    pub fn allocate(
        &self,
        context: &Context,
        inode: InodeId,
        (offset, length): (u64, u64),
        mode: Allocate,
        drop_set_id: bool,
    ) -> Result<()> {
        self.done(context, Op::Data { op: DataOp::Allocate { inode, offset, length, mode, drop_set_id } })
    }

    /// lseek(2) with SEEK_DATA, or (`hole`) SEEK_HOLE; `NoData` beyond the end or the last data.
    pub fn seek(&self, context: &Context, inode: InodeId, offset: u64, hole: bool) -> Result<u64> {
        match self.call(context, Op::Data { op: DataOp::Seek { inode, offset, hole } })? {
            Reply::Found { at: Some(at) } => Ok(at),
            _ => Err(unexpected()),
        }
    }

    /// copy_file_range(2): -> how many bytes were copied; fewer than `length` at the end of the source, or if it is long.
    /// If `touch`, the source's time of access moves as the mount has it (O_NOATIME says no).
    pub fn copy(
        &self,
        context: &Context,
        (from, from_offset): (InodeId, u64),
        (to, to_offset): (InodeId, u64),
        length: u64,
        (drop_set_id, touch): (bool, bool),
    ) -> Result<u64> {
        let touch = touch && self.access_times;
        let op = DataOp::Copy { from, from_offset, to, to_offset, length, drop_set_id, touch };
        match self.call(context, Op::Data { op })? {
            Reply::Copied { bytes } => Ok(bytes),
            _ => Err(unexpected()),
        }
    }

    /// Puts what this client changed in the inode (bytes and attributes) on stable storage of every replica. Of a
    /// directory: its names. `Lost`, once, if all replicas lost their memory before: some of it is gone.
    pub fn fsync(&self, context: &Context, inode: InodeId) -> Result<()> {
        self.done(context, Op::Data { op: DataOp::Fsync { inode } })
    }

    /// Whether an fsync of the inode would say `Lost` as far as it is known without asking; then the next one does not.
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

    /// Counts an open: while it lasts the inode stays, even without a name.
    pub fn opened(&self, inode: InodeId) {
        *self.shared.opens.lock().entry(inode).or_default() += 1;
    }

    /// Ends an open that `opened` counted.
    pub fn closed(&self, inode: InodeId) {
        let mut opens = self.shared.opens.lock();
        if let Some(count) = opens.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                opens.remove(&inode);
            }
        }
    }

    /// Whether one of them lasts.
    pub fn is_open(&self, inode: InodeId) -> bool {
        self.shared.opens.lock().contains_key(&inode)
    }

    fn bytes(&self, context: &Context, op: Op) -> Result<Bytes> {
        match self.call(context, op)? {
            Reply::Bytes { bytes } => Ok(bytes),
            _ => Err(unexpected()),
        }
    }
}

/// What to make under a new name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct New {
    /// File, directory, …
    pub node: NewNode,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group; that of the directory if it has set-group-id.
    pub gid: u32,
    /// Bits that the mode loses, unless the directory has a default ACL.
    pub umask: u16,
    /// It must not be there yet.
    pub exclusive: bool,
}

/// How to set an extended attribute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetXattr {
    /// It must be new.
    pub create: bool,
    /// It must exist.
    pub replace: bool,
    /// With an ACL: set-group-id goes.
    pub drop_set_group: bool,
}

/// A random number, of which servers make an id that nobody can guess.
pub fn seed() -> Result<u64> {
    getrandom::u64().map_err(|e| Error::bug(format!("getrandom: {e}")))
}

impl Volume {
    /// Ends the session now, rather than when the last owner of the volume drops it. Later ops fail.
    pub fn end(&self) {
        if self.shared.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        // A server that is away learns from the session's silence.
        let gave_up = AtomicBool::new(true);
        let context = Context { interrupt: Some(&gave_up), ..Context::default() };
        let _ = self.call(&context, Op::Volume { op: VolumeOp::EndSession });
        self.shared.servers.close();
        self.locks.close();
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Tells the servers every second that the session lives, and which orphans it does not need.
    fn beat(&self, graph: &dyn Translator) {
        let mut unused = Vec::new();
        while !self.ended.load(Ordering::SeqCst) {
            let context = Context { interrupt: Some(&self.ended), ..Context::default() };
            let mapped: Vec<InodeId> = std::mem::take(&mut *self.mapped.lock()).into_iter().collect();
            let heartbeat = VolumeOp::Heartbeat { unused, mapped: mapped.clone() };
            let asked = graph.handle(&context, Op::Volume { op: heartbeat });
            unused = match asked {
                Ok(Reply::Orphans { inodes, .. }) => self.unused_of(inodes),
                _ => {
                    // Nobody may have heard of them.
                    let mut waiting = self.mapped.lock();
                    let room = MAPPED_MAX.saturating_sub(waiting.len());
                    waiting.extend(mapped.into_iter().take(room));
                    Vec::new()
                }
            };
            if unused.is_empty() {
                std::thread::sleep(HEARTBEAT);
            } else {
                std::thread::sleep(HEARTBEAT / 20);
            }
        }
    }
}

impl Shared {
    /// Of these orphans, those that are not open here; none while one may just have been made.
    fn unused_of(&self, orphans: Vec<InodeId>) -> Vec<InodeId> {
        let Some(_none_is_made) = self.unnamed.try_write() else { return Vec::new() };
        let opens = self.opens.lock();
        orphans.into_iter().filter(|inode| !opens.contains_key(inode)).collect()
    }
}

pub(crate) fn unexpected() -> Error {
    Error::Protocol { what: "a reply of another kind than the op's".into() }
}
