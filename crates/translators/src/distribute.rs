//! `distribute`: which partition executes an op, and which shards hold a range of a file's bytes.
//!
//! Invariants:
//! - A read of shards is valid only if the file's layout, requested after the shards, is the layout that the read
//!   used. For bytes beyond the size known before the read, it is valid only if the size has not changed either.
//! - A write to shards is acknowledged only after the inode's leader, asked after the shards, has confirmed the
//!   layout, or that no truncate since then can have removed bytes of the write.
//!
//! So a truncate that runs concurrently is noticed by both, an extending write is noticed by the read, and they are
//! repeated. A file never shrinks under one layout.

mod append;
mod bytes;
mod copy;
mod holes;
mod space;
mod syncing;
mod wide;

use crate::locks::Locks;
use crate::replicate::{Recipient, Replicate};
use crate::unsynced::{Losses, Unsynced};
use copy::FilePosition;
use hekate_graph::{Context, ReadsAfter, Translator};
use hekate_proto::map::VolumeMap;
use hekate_proto::*;
use hekate_threads::{HashMap, Mutex};

use std::sync::Arc;
pub use syncing::LossWatch;
use syncing::inodes_of;
use wide::{Wide, is_wide};

/// Limit of look-ups of one name that lead to an inode that no longer exists. More than 16 in a row mean damage, not
/// a race.
const STALE_MAX: usize = 16;
/// Layouts remembered; at the limit all are forgotten and requested again.
const LAYOUTS_MAX: usize = 50_000;

/// What the client knows of a file whose bytes are in shards: the file has at least `size` bytes while `layout` is
/// current.
#[derive(Clone)]
struct Shape {
    layout: Layout,
    size: u64,
}

impl From<Attr> for Shape {
    fn from(attr: Attr) -> Self {
        Self { layout: attr.layout, size: attr.size }
    }
}

/// A change that has no reply yet.
struct Changing {
    partition: PartitionNumber,
    /// Loss counter of the partition's view, read before the change was sent. A loss between then and the reply
    /// counts as a loss of the change.
    losses: u32,
    /// The inodes whose metadata the change affects.
    inodes: [Option<InodeId>; 2],
}

/// The routing layer. All its state can be requested again, except what an fsync has to cover.
pub struct Distribute {
    replicate: Arc<Replicate>,
    locks: Arc<Locks>,
    layouts: Mutex<HashMap<InodeId, Shape>>,
    unsynced: Arc<Mutex<Unsynced>>,
    wide: Mutex<Wide>,
}

impl Distribute {
    /// A routing layer above `replicate`.
    pub fn new(replicate: Replicate) -> Self {
        let replicate = Arc::new(replicate);
        let locks = Locks::new(replicate.clone());
        let (layouts, unsynced, wide) = Default::default();
        Self { replicate, locks, layouts, unsynced, wide }
    }

    pub(crate) fn replicate(&self) -> Arc<Replicate> {
        self.replicate.clone()
    }

    /// The session's locks.
    pub fn locks(&self) -> Arc<Locks> {
        self.locks.clone()
    }

    /// A function that returns the latest map that this client has.
    pub fn latest_map(&self) -> impl Fn() -> Arc<VolumeMap> + Send + Sync + 'static {
        let replicate = self.replicate.clone();
        move || replicate.map()
    }

    /// A handle that reports which inodes lost unsynced changes.
    pub fn loss_watch(&self) -> LossWatch {
        LossWatch::new(self.replicate.clone(), self.unsynced.clone())
    }

    fn partition(&self, position: Position) -> PartitionNumber {
        self.replicate.map().partition_of(position)
    }

    /// Partition that has a name, for the spread known so far. If the directory is shared by more partitions, the
    /// leader refuses the op, and its error has their number.
    fn name_partition(&self, dir: InodeId, name: &Name) -> PartitionNumber {
        self.partition(name_position(dir, name, self.spread_of(dir)))
    }

    /// Sends an op to one partition. Its change has to be synced by a later fsync, unless the op is durable.
    fn forward(&self, context: &Context, partition: PartitionNumber, op: Op) -> Result<Reply> {
        if let Some(after) = context.reads_after.filter(|_| !op.is_read()) {
            let attributes = changed_by(&op).map(|inode| Op::Inode { op: InodeOp::GetAttr { inode } });
            return self.forward_with_reads(context, partition, op, (attributes.into_iter().collect(), after));
        }
        let change = self.begin_change(context, partition, &op);
        let reply = self.replicate.send(context, Recipient::Leader(partition), op)?;
        self.record_reply(context, change, &reply)?;
        Ok(reply)
    }

    /// Prepares the bookkeeping of a change before it is sent. `None` if nothing has to be synced later.
    fn begin_change(&self, context: &Context, partition: PartitionNumber, op: &Op) -> Option<Changing> {
        if context.durable || op.is_read() {
            return None;
        }
        let losses = Losses(&self.replicate.map()).of(partition);
        Some(Changing { partition, losses, inodes: inodes_of(op) })
    }

    /// Sends an op on a name. If the caller wants the directory's attributes after the change, and one partition has
    /// both, the same batch requests them.
    fn forward_name_op(&self, context: &Context, dir: InodeId, name: &Name, op: NameOp) -> Result<Reply> {
        let partition = self.name_partition(dir, name);
        if let Some(after) = context.reads_after.filter(|_| !op.is_read()) {
            let mut reads = reads_after(&op);
            reads.retain(|read| !matches!(read, Op::Inode { op } if self.home(op.inode()) != partition));
            return self.forward_with_reads(context, partition, Op::Name { op }, (reads, after));
        }
        let op = Op::Name { op };
        let asks = context.directory_after.filter(|_| !op.is_read() && partition == self.home(dir));
        let Some(after) = asks else { return self.forward(context, partition, op) };
        let leader = Recipient::Leader(partition);
        let change = self.begin_change(context, partition, &op);
        let batch = vec![(leader, op), (leader, Op::Inode { op: InodeOp::GetAttr { inode: dir } })];
        let mut replies = self.replicate.send_all(context, batch)?.into_iter();
        let reply = replies.next().unwrap_or(Err(Error::Skipped))?;
        self.record_reply(context, change, &reply)?;
        if let Some(Ok(Reply::Node { attr, .. })) = replies.next()
            && !is_wide(&attr)
        {
            let _ = after.set(attr);
        }
        Ok(reply)
    }

    /// Sends a change to one partition, and reads behind it in the same batch. The leader answers these only if that
    /// needs no waiting.
    fn forward_with_reads(
        &self,
        context: &Context,
        partition: PartitionNumber,
        op: Op,
        (reads, after): (Vec<Op>, &ReadsAfter),
    ) -> Result<Reply> {
        // What was read behind an earlier change of the same op is too old.
        after.lock().clear();
        let (change, is_data) = (self.begin_change(context, partition, &op), matches!(op, Op::Data { .. }));
        let (reply, found) = self.replicate.send_with_reads(context, Recipient::Leader(partition), op, reads)?;
        self.record_reply(context, change, &reply)?;
        // The bytes do not lie beside the inode, and are still to be written.
        let is_to_be_done = is_data && matches!(reply, Reply::Node { .. });
        if !is_to_be_done {
            *after.lock() = found;
        }
        Ok(reply)
    }

    /// Records what a reply implies: layouts, and changes to sync. Syncs everything if the list of changes is full.
    fn record_reply(&self, context: &Context, change: Option<Changing>, reply: &Reply) -> Result<()> {
        let made = match reply {
            Reply::Node { attr, .. } => {
                self.learn(attr);
                Some(attr.id)
            }
            Reply::Fetched { object } => {
                self.learn(&object.attr);
                None
            }
            _ => None,
        };
        let Some(Changing { partition, losses, inodes }) = change else { return Ok(()) };
        let mut unsynced = self.unsynced.lock();
        unsynced.changed(partition, inodes.into_iter().flatten().chain(made), losses);
        let is_full = unsynced.is_full();
        drop(unsynced);
        if is_full { self.sync_everything(context) } else { Ok(()) }
    }

    /// Remembers the layout and spread of an inode.
    fn learn(&self, attr: &Attr) {
        if is_wide(attr) {
            // A spread that cannot be valid is refused when it is used.
            let _ = self.learn_spread(attr.id, 1, attr.spread);
        }
        let mut layouts = self.layouts.lock();
        if attr.layout.is_inline() {
            layouts.remove(&attr.id);
        } else {
            if layouts.len() >= LAYOUTS_MAX {
                layouts.clear();
            }
            layouts.insert(attr.id, Shape { layout: attr.layout.clone(), size: attr.size });
        }
    }

    /// A write under this layout was acknowledged, so the file ends at `end` or later.
    fn note_size(&self, inode: InodeId, layout: &Layout, end: u64) {
        if let Some(shape) = self.layouts.lock().get_mut(&inode).filter(|shape| shape.layout == *layout) {
            shape.size = shape.size.max(end);
        }
    }

    fn known_shape(&self, inode: InodeId) -> Option<Shape> {
        self.layouts.lock().get(&inode).cloned()
    }

    /// Partition of an inode.
    fn home(&self, inode: InodeId) -> PartitionNumber {
        self.partition(inode.position())
    }

    /// Requests the inode's current attributes.
    fn attr(&self, context: &Context, inode: InodeId) -> Result<Attr> {
        self.attr_by(context, InodeOp::GetAttr { inode })
    }

    fn attr_by(&self, context: &Context, op: InodeOp) -> Result<Attr> {
        match self.forward(context, self.home(op.inode()), Op::Inode { op })? {
            Reply::Node { attr, .. } => Ok(attr),
            _ => Err(unexpected()),
        }
    }

    fn name_op(&self, context: &Context, op: NameOp) -> Result<Reply> {
        let before = matches!(op, NameOp::Rename { .. }).then(|| self.replicate.map());
        let (dir, name) = match &op {
            NameOp::Lookup { dir, name }
            // The name that decides which partition executes the op.
            | NameOp::Create { dir, name, .. }
            | NameOp::Link { dir, name, .. }
            | NameOp::Unlink { dir, name, .. }
            | NameOp::Rmdir { dir, name }
            | NameOp::RemovePrefix { dir, name }
            | NameOp::Put { dir, name, .. }
            | NameOp::Remove { dir, name, .. }
            | NameOp::MakePrefix { dir, name, .. }
            | NameOp::Join { dir, to: name, .. }
            | NameOp::Fetch { dir, name, .. } => (*dir, name),
            NameOp::ListKeys { dir, prefix, after, limit, .. } => {
                return self.list_keys(context, *dir, prefix, after, *limit);
            }
            NameOp::CreateUnnamed { dir, .. } => return self.forward(context, self.home(*dir), Op::Name { op }),
            // The leader of the new name coordinates a rename.
            NameOp::Rename { to_dir, to_name, .. } => (*to_dir, to_name),
            NameOp::List { dir, after, limit, attributes, touch } => {
                return self.list(context, *dir, after.as_ref(), *limit, *attributes, *touch);
            }
            NameOp::ListPart { .. } | NameOp::Stub { .. } => return Err(not_for_this_layer()),
        };
        let mut tries = 0..STALE_MAX;
        let reply = loop {
            let asked = self.spread_of(dir);
            let found = match self.forward_name_op(context, dir, name, op.clone()) {
                Err(Error::OtherSpread { spread }) => {
                    self.learn_spread(dir, asked, spread)?;
                    continue;
                }
                outcome => outcome?,
            };
            let whole = match found {
                // A moved or linked name, or a directory: the inode's own leader has it. If the inode is gone, the
                // name has changed meanwhile and is looked up again.
                Reply::Elsewhere { inode, .. } => match &op {
                    NameOp::Fetch { attribute, content, .. } => self
                        .inode_op(context, InodeOp::Fetch { inode, attribute: attribute.clone(), content: *content }),
                    NameOp::Join { .. } => {
                        self.forward(context, self.home(inode), Op::Data { op: DataOp::Spill { inode } })?;
                        continue;
                    }
                    _ => self.inode_op(context, InodeOp::GetAttr { inode }),
                },
                Reply::Node { attr, created: false } if is_wide(&attr) => self.whole_directory(context, attr.id),
                here => break here,
            };
            match whole {
                Err(Error::Stale) if tries.next().is_some() => {}
                outcome => break outcome?,
            }
        };
        if let (NameOp::Rename { dir, name, .. }, Some(before)) = (&op, before)
            && !context.durable
        {
            let mut unsynced = self.unsynced.lock();
            for partition in self.possible_partitions(*dir, name) {
                unsynced.changed(partition, [*dir], Losses(&before).of(partition));
            }
        }
        Ok(reply)
    }

    fn inode_op(&self, context: &Context, op: InodeOp) -> Result<Reply> {
        let inode = op.inode();
        let changes = matches!(op, InodeOp::SetAttr { .. });
        match self.forward(context, self.home(inode), Op::Inode { op })? {
            Reply::Elsewhere { inode, .. } => self.inode_op(context, InodeOp::GetAttr { inode }),
            Reply::Node { attr, created } if is_wide(&attr) => match self.whole_directory(context, attr.id) {
                // After the change another client removed the directory, and with it the change counters of its other
                // parts, so the sum of the counters is unknown. A change counter must never decrease: the maximum is
                // not less than any value that was returned before.
                Err(Error::Stale) if changes => Ok(Reply::Node { attr: Attr { change: u64::MAX, ..attr }, created }),
                outcome => outcome,
            },
            reply => Ok(reply),
        }
    }

    fn data_op(&self, context: &Context, op: DataOp) -> Result<Reply> {
        match op {
            DataOp::Read { inode, offset, length, touch } => self.read(context, inode, offset, length, touch),
            DataOp::Write { inode, offset, data, drop_set_id } => self.write(context, inode, offset, data, drop_set_id),
            DataOp::Append { inode, data, drop_set_id } => self.append(context, inode, data, drop_set_id),
            DataOp::Allocate { inode, offset, length, mode, drop_set_id } => {
                self.allocate(context, inode, offset, length, mode, drop_set_id)
            }
            DataOp::Seek { inode, offset, hole } => self.seek(context, inode, offset, hole),
            DataOp::Copy { from, from_offset, to, to_offset, length, drop_set_id, touch } => {
                let (from, to) =
                    (FilePosition { inode: from, offset: from_offset }, FilePosition { inode: to, offset: to_offset });
                self.copy(context, from, to, length, drop_set_id, touch)
            }
            DataOp::Fsync { inode } => self.fsync(context, inode),
            DataOp::Spill { .. }
            | DataOp::ReadShard { .. }
            | DataOp::WriteShard { .. }
            | DataOp::FastWrite { .. }
            | DataOp::RawWrite { .. }
            | DataOp::AllocateShard { .. }
            | DataOp::SeekShard { .. }
            | DataOp::NextShard { .. }
            | DataOp::CopyShard { .. }
            | DataOp::EmptyShards { .. }
            | DataOp::Wrote { .. }
            | DataOp::FindEnd { .. }
            | DataOp::Sync { .. } => Err(not_for_this_layer()),
        }
    }

    /// Sends a volume op to all servers that hold the volume and combines their replies.
    fn query_all(&self, context: &Context, op: &VolumeOp) -> Result<Reply> {
        let mut answers = self.replicate.query_all(op).into_iter();
        let mut sum = answers.next().unwrap_or(Err(Error::bug("the map has no server that holds the volume")));
        for answer in answers {
            sum = match (sum, answer) {
                (Ok(sum), Ok(more)) => Ok(add(sum, more)?),
                // An unavailable server is left out of the result if another server replied.
                (Err(Error::Unavailable { .. }), other) | (other, Err(Error::Unavailable { .. })) => other,
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        match sum {
            // No server replied: wait for the server of the session, as any other op does.
            Err(Error::Unavailable { .. }) => {
                self.replicate.send(context, Recipient::Server, Op::Volume { op: op.clone() })
            }
            outcome => outcome,
        }
    }

    /// Requests the attributes that a directory's own partition does not have, in batches.
    fn fill_attributes(&self, context: &Context, entries: &mut [Entry]) -> Result<()> {
        let missing: Vec<usize> = (0..entries.len()).filter(|i| entries[*i].attr.is_none()).collect();
        for chunk in missing.chunks(hekate_transport::BATCH_MAX) {
            // A name that is removed meanwhile must not fail the rest of its batch, so the rest is sent again after
            // it.
            let ops: Vec<_> = chunk.iter().map(|i| entries[*i].inode).collect();
            let mut from = 0;
            while from < ops.len() {
                let batch = ops[from..].iter().map(|inode| {
                    let op = Op::Inode { op: InodeOp::GetAttr { inode: *inode } };
                    (Recipient::Leader(self.partition(inode.position())), op)
                });
                for reply in self.replicate.send_all(context, batch.collect())? {
                    match reply {
                        Ok(Reply::Node { attr, .. }) => entries[chunk[from]].attr = Some(attr),
                        Err(Error::Skipped) => break,
                        _ => {}
                    }
                    from += 1;
                }
            }
        }
        for entry in entries.iter_mut().filter(|entry| entry.attr.as_ref().is_some_and(is_wide)) {
            entry.attr = match self.whole_directory(context, entry.inode) {
                Ok(Reply::Node { attr, .. }) => Some(attr),
                _ => None,
            };
        }
        Ok(())
    }
}

impl Translator for Distribute {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        match op {
            Op::Name { op } => {
                let wants_attributes = matches!(op, NameOp::List { attributes: true, .. });
                let mut reply = self.name_op(context, op)?;
                match &mut reply {
                    Reply::List { entries, .. } if wants_attributes => self.fill_attributes(context, entries)?,
                    Reply::Keys { entries, .. } => self.fill_attributes(context, entries)?,
                    _ => {}
                }
                Ok(reply)
            }
            Op::Inode { op } => self.inode_op(context, op),
            Op::Lock { op } => self.locks.handle(context, op),
            Op::Data { op } => self.data_op(context, op),
            Op::Volume { op: VolumeOp::EndSession } => {
                self.replicate.release_raw_locks(context, true);
                self.replicate.send(context, Recipient::Server, op)
            }
            Op::Volume { op } => {
                self.replicate.release_raw_locks(context, false);
                let reply = self.query_all(context, &op)?;
                if let Reply::Orphans { unrestored, .. } = &reply {
                    self.locks.on_heartbeat(unrestored);
                }
                Ok(reply)
            }
            Op::Leg { .. } => Err(Error::invalid("an op leg comes from another server, not from a client")),
        }
    }
}

fn not_for_this_layer() -> Error {
    Error::invalid("the op is internal to the layers below distribute")
}

fn unexpected() -> Error {
    Error::Protocol { what: "the reply is of another kind than its op has".into() }
}

/// Combines the replies of two servers.
fn add(sum: Reply, more: Reply) -> Result<Reply> {
    match (sum, more) {
        (Reply::Space { space: a }, Reply::Space { space: b }) => Ok(Reply::Space { space: a.plus(&b) }),
        (
            Reply::Orphans { mut inodes, mut unrestored, graph },
            Reply::Orphans { inodes: more, unrestored: also, graph: other },
        ) => {
            inodes.extend(more);
            unrestored.extend(also);
            Ok(Reply::Orphans { inodes, unrestored, graph: graph.max(other) })
        }
        _ => Err(unexpected()),
    }
}
/// The inode that an op changes, if a client will ask for its attributes afterwards. A write to shards is told to the
/// inode's leader too often for that.
fn changed_by(op: &Op) -> Option<InodeId> {
    match op {
        Op::Inode {
            op: InodeOp::SetAttr { inode, .. } | InodeOp::SetXattr { inode, .. } | InodeOp::RemoveXattr { inode, .. },
        }
        | Op::Data { op: DataOp::Write { inode, .. } | DataOp::Append { inode, .. } } => Some(*inode),
        _ => None,
    }
}

/// What a client will ask for behind a change of a name: the directory's attributes, and what a name leads to that was
/// made.
fn reads_after(op: &NameOp) -> Vec<Op> {
    let (dirs, made) = match op {
        NameOp::Create { dir, name, .. } | NameOp::Link { dir, name, .. } => (vec![*dir], Some((*dir, name))),
        NameOp::Unlink { dir, .. } | NameOp::Rmdir { dir, .. } => (vec![*dir], None),
        NameOp::Rename { dir, to_dir, to_name, .. } if dir == to_dir => (vec![*dir], Some((*to_dir, to_name))),
        NameOp::Rename { dir, to_dir, to_name, .. } => (vec![*dir, *to_dir], Some((*to_dir, to_name))),
        _ => (Vec::new(), None),
    };
    let attributes = dirs.into_iter().map(|inode| Op::Inode { op: InodeOp::GetAttr { inode } });
    let names = made.map(|(dir, name)| Op::Name { op: NameOp::Lookup { dir, name: name.clone() } });
    attributes.chain(names).collect()
}
