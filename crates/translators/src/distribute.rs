//! `distribute`: which partition answers an op, and how a file's bytes are cut into shards.
//!
//! Invariants: a read of shards counts only if the file's layout, asked after it, is the one that it used, and of bytes
//! beyond the size that was known before it, only if the size is that one still; a write to shards counts only once the
//! inode's leader, told after it, has agreed that the layout still stands, or that no truncate since can have taken of it. So a truncate that comes between is seen by
//! both, a write that makes the file longer by the read, and they are done again. Under one layout a file never shrinks.

mod append;
mod bytes;
mod copy;
mod holes;
mod space;
mod syncing;
mod wide;

use crate::locks::Locks;
use crate::replicate::{Replicate, Whom};
use crate::unsynced::{Losses, Unsynced};
use hekate_graph::{Context, Translator};
use hekate_proto::*;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
pub use syncing::LossWatch;
use syncing::inodes_of;
use wide::{Wide, is_wide};

/// How often a name may lead to an inode that is gone by then; more often is damage.
const STALE_MAX: usize = 16;
/// Layouts remembered; more are forgotten all at once, and asked for again.
const LAYOUTS_MAX: usize = 50_000;

/// What is known of a file whose bytes are in shards: it is this long at least, as long as the layout stands.
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

/// A change that is not answered yet.
struct Changing {
    partition: PartitionNumber,
    /// Of the partition's view, before it was sent.
    losses: u32,
    inodes: [Option<InodeId>; 2],
}

/// The routing layer; holds nothing that cannot be asked for again, but for what is yet to be synced.
pub struct Distribute {
    replicate: Arc<Replicate>,
    locks: Arc<Locks>,
    layouts: Mutex<HashMap<InodeId, Shape>>,
    unsynced: Arc<Mutex<Unsynced>>,
    wide: Mutex<Wide>,
}

impl Distribute {
    /// On top of `replicate`.
    pub fn new(replicate: Replicate) -> Self {
        let replicate = Arc::new(replicate);
        let locks = Locks::new(replicate.clone());
        let (layouts, unsynced, wide) = Default::default();
        Self { replicate, locks, layouts, unsynced, wide }
    }

    /// The session's locks.
    pub fn locks(&self) -> Arc<Locks> {
        self.locks.clone()
    }

    /// Of what was lost before it was synced.
    pub fn loss_watch(&self) -> LossWatch {
        LossWatch::new(self.replicate.clone(), self.unsynced.clone())
    }

    fn partition(&self, position: Position) -> PartitionNumber {
        self.replicate.map().partition_of(position)
    }

    /// As far as it is known how many partitions share the directory's names; their leaders know better.
    fn name_partition(&self, dir: InodeId, name: &Name) -> PartitionNumber {
        self.partition(name_position(dir, name, self.spread_of(dir)))
    }

    /// Sends an op to one partition; what it changed is to be synced, unless it is durable already.
    fn pass(&self, context: &Context, partition: PartitionNumber, op: Op) -> Result<Reply> {
        let change = self.begin_change(context, partition, &op);
        let reply = self.replicate.send(context, Whom::Leader(partition), op)?;
        self.passed(context, change, &reply)?;
        Ok(reply)
    }

    /// What is to be synced once the op is answered. Its view's losses are those of before: a loss on the way counts.
    fn begin_change(&self, context: &Context, partition: PartitionNumber, op: &Op) -> Option<Changing> {
        if context.durable || op.is_read() {
            return None;
        }
        let losses = Losses(&self.replicate.map()).of(partition);
        Some(Changing { partition, losses, inodes: inodes_of(op) })
    }

    /// With it goes the question what the directory is like after a change, if somebody wants to know and it is all in one
    /// partition.
    fn pass_name_op(&self, context: &Context, (dir, name): (InodeId, &Name), op: NameOp) -> Result<Reply> {
        let (partition, op) = (self.name_partition(dir, name), Op::Name { op });
        let asks = context.directory_after.filter(|_| !op.is_read() && partition == self.home(dir));
        let Some(after) = asks else { return self.pass(context, partition, op) };
        let leader = Whom::Leader(partition);
        let change = self.begin_change(context, partition, &op);
        let batch = vec![(leader, op), (leader, Op::Inode { op: InodeOp::GetAttr { inode: dir } })];
        let mut replies = self.replicate.send_all(context, batch)?.into_iter();
        let reply = replies.next().unwrap_or(Err(Error::Skipped))?;
        self.passed(context, change, &reply)?;
        if let Some(Ok(Reply::Node { attr, .. })) = replies.next()
            && !is_wide(&attr)
        {
            let _ = after.set(attr);
        }
        Ok(reply)
    }

    /// What an answer tells.
    fn passed(&self, context: &Context, change: Option<Changing>, reply: &Reply) -> Result<()> {
        let made = match reply {
            Reply::Node { attr, .. } => {
                self.learn(attr);
                Some(attr.id)
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

    fn learn(&self, attr: &Attr) {
        if is_wide(attr) && attr.spread > self.spread_of(attr.id) {
            // One that cannot be is refused when it is used.
            let _ = self.learn_spread(attr.id, attr.spread);
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

    /// A write under this layout counts: the file is so long at least.
    fn grow(&self, inode: InodeId, layout: &Layout, end: u64) {
        if let Some(shape) = self.layouts.lock().get_mut(&inode).filter(|shape| shape.layout == *layout) {
            shape.size = shape.size.max(end);
        }
    }

    fn known_shape(&self, inode: InodeId) -> Option<Shape> {
        self.layouts.lock().get(&inode).cloned()
    }

    fn home(&self, inode: InodeId) -> PartitionNumber {
        self.partition(inode.position())
    }

    /// The inode as it is now.
    fn attr(&self, context: &Context, inode: InodeId) -> Result<Attr> {
        self.attr_by(context, InodeOp::GetAttr { inode })
    }

    fn attr_by(&self, context: &Context, op: InodeOp) -> Result<Attr> {
        match self.pass(context, self.home(op.inode()), Op::Inode { op })? {
            Reply::Node { attr, .. } => Ok(attr),
            _ => Err(unexpected()),
        }
    }

    fn name_op(&self, context: &Context, op: NameOp) -> Result<Reply> {
        let before = matches!(op, NameOp::Rename { .. }).then(|| self.replicate.map());
        let (dir, name) = match &op {
            NameOp::Lookup { dir, name }
            | NameOp::Create { dir, name, .. }
            | NameOp::Link { dir, name, .. }
            | NameOp::Unlink { dir, name, .. }
            | NameOp::Rmdir { dir, name } => (*dir, name),
            NameOp::CreateUnnamed { dir, .. } => return self.pass(context, self.home(*dir), Op::Name { op }),
            // The new name's leader drives a rename.
            NameOp::Rename { to_dir, to_name, .. } => (*to_dir, to_name),
            NameOp::List { dir, after, limit, attributes, touch } => {
                return self.list(context, *dir, after.as_ref(), *limit, (*attributes, *touch));
            }
            NameOp::ListPart { .. } | NameOp::Stub { .. } => return Err(below()),
        };
        let mut tries = 0..STALE_MAX;
        let reply = loop {
            let found = match self.pass_name_op(context, (dir, name), op.clone()) {
                Err(Error::OtherSpread { spread }) => {
                    self.learn_spread(dir, spread)?;
                    continue;
                }
                settled => settled?,
            };
            let whole = match found {
                // A name that was moved or linked here, or a directory: the inode's own leader knows it. If it is gone
                // by then, the name leads somewhere else by now, or nowhere.
                Reply::Elsewhere { inode, .. } => self.inode_op(context, InodeOp::GetAttr { inode }),
                Reply::Node { attr, created: false } if is_wide(&attr) => self.whole(context, attr.id),
                here => break here,
            };
            match whole {
                Err(Error::Stale) if tries.next().is_some() => {}
                settled => break settled?,
            }
        };
        if let (NameOp::Rename { dir, name, .. }, Some(before)) = (&op, before)
            && !context.durable
        {
            let mut unsynced = self.unsynced.lock();
            for partition in self.may_rest_in(*dir, name) {
                unsynced.changed(partition, [*dir], Losses(&before).of(partition));
            }
        }
        Ok(reply)
    }

    fn inode_op(&self, context: &Context, op: InodeOp) -> Result<Reply> {
        let inode = op.inode();
        let changes = matches!(op, InodeOp::SetAttr { .. });
        match self.pass(context, self.home(inode), Op::Inode { op })? {
            Reply::Elsewhere { inode, .. } => self.inode_op(context, InodeOp::GetAttr { inode }),
            Reply::Node { attr, created } if is_wide(&attr) => match self.whole(context, inode) {
                // It was changed, and removed right after it.
                Err(Error::Stale) if changes => Ok(Reply::Node { attr, created }),
                settled => settled,
            },
            reply => Ok(reply),
        }
    }

    fn data_op(&self, context: &Context, op: DataOp) -> Result<Reply> {
        match op {
            DataOp::Read { inode, offset, length, touch } => self.read(context, inode, (offset, length), touch),
            DataOp::Write { inode, offset, data, drop_set_id } => self.write(context, inode, offset, data, drop_set_id),
            DataOp::Append { inode, data, drop_set_id } => self.append(context, inode, data, drop_set_id),
            DataOp::Allocate { inode, offset, length, mode, drop_set_id } => {
                self.allocate(context, inode, (offset, length), mode, drop_set_id)
            }
            DataOp::Seek { inode, offset, hole } => self.seek(context, inode, offset, hole),
            DataOp::Copy { from, from_offset, to, to_offset, length, drop_set_id, touch } => {
                self.copy(context, (from, from_offset), (to, to_offset), length, (drop_set_id, touch))
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
            | DataOp::Sync { .. } => Err(below()),
        }
    }

    /// What all servers that hold the volume answer together.
    fn ask_all(&self, context: &Context, op: &VolumeOp) -> Result<Reply> {
        let mut answers = self.replicate.ask_all(op).into_iter();
        let mut sum = answers.next().unwrap_or(Err(Error::bug("a volume without a server")));
        for answer in answers {
            sum = match (sum, answer) {
                (Ok(sum), Ok(more)) => Ok(add(sum, more)?),
                // A server that is away has nothing to say; the others have.
                (Err(Error::Unavailable { .. }), other) | (other, Err(Error::Unavailable { .. })) => other,
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        match sum {
            // Nobody answers: as long as any other op this one waits for the first that does.
            Err(Error::Unavailable { .. }) => self.replicate.send(context, Whom::Server, Op::Volume { op: op.clone() }),
            settled => settled,
        }
    }

    /// Attributes of what a directory's own partition does not have: one batch.
    fn fill_attributes(&self, context: &Context, entries: &mut [Entry]) -> Result<()> {
        let missing: Vec<usize> = (0..entries.len()).filter(|i| entries[*i].attr.is_none()).collect();
        for chunk in missing.chunks(hekate_transport::BATCH_MAX) {
            // A name that goes meanwhile must not fail its neighbours, so each is asked on its own terms.
            let ops: Vec<_> = chunk.iter().map(|i| entries[*i].inode).collect();
            let mut from = 0;
            while from < ops.len() {
                let batch = ops[from..].iter().map(|inode| {
                    let op = Op::Inode { op: InodeOp::GetAttr { inode: *inode } };
                    (Whom::Leader(self.partition(inode.position())), op)
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
            entry.attr = match self.whole(context, entry.inode) {
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
                if let Reply::List { entries, .. } = &mut reply
                    && wants_attributes
                {
                    self.fill_attributes(context, entries)?;
                }
                Ok(reply)
            }
            Op::Inode { op } => self.inode_op(context, op),
            Op::Lock { op } => self.locks.handle(context, op),
            Op::Data { op } => self.data_op(context, op),
            Op::Volume { op: VolumeOp::EndSession } => {
                self.replicate.let_go_of_raw_locks(context, true);
                self.replicate.send(context, Whom::Server, op)
            }
            Op::Volume { op } => {
                self.replicate.let_go_of_raw_locks(context, false);
                let reply = self.ask_all(context, &op)?;
                if let Reply::Orphans { untold, .. } = &reply {
                    self.locks.beat(untold);
                }
                Ok(reply)
            }
            Op::Leg { .. } => Err(Error::invalid("legs are for servers")),
        }
    }
}

fn below() -> Error {
    Error::invalid("an op of the layers below distribute")
}

fn unexpected() -> Error {
    Error::Protocol { what: "a reply of another kind than the op's".into() }
}

/// Two servers' answers as one.
fn add(sum: Reply, more: Reply) -> Result<Reply> {
    match (sum, more) {
        (Reply::Space { space: a }, Reply::Space { space: b }) => Ok(Reply::Space { space: a.plus(&b) }),
        (Reply::Orphans { mut inodes, mut untold }, Reply::Orphans { inodes: more, untold: also }) => {
            inodes.extend(more);
            untold.extend(also);
            Ok(Reply::Orphans { inodes, untold })
        }
        _ => Err(unexpected()),
    }
}
