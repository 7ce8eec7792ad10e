//! Files as correct servers hold them, and a client of these servers.

use super::scripted_servers::ScriptedServers;
use super::support::*;
use bytes::Bytes;
use hekate_proto::map::VolumeMap;
use hekate_proto::*;
use hekate_threads::Mutex;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// What all servers of a volume hold. A byte of 0 in a shard counts as a hole.
#[derive(Default)]
pub struct Files {
    inodes: BTreeMap<InodeId, (Attr, Vec<u8>)>,
    pub shards: BTreeMap<(DataId, u64), Vec<u8>>,
    layouts: u32,
    writes: u64,
}

impl Files {
    /// Makes a file with its bytes in shards, of zeros.
    fn add(&mut self, inode: InodeId, size: u64, layout: Layout) {
        let attr = Attr { size, layout, ..attr(inode, NodeKind::File) };
        self.inodes.insert(inode, (attr, Vec::new()));
    }

    pub fn attr(&self, inode: InodeId) -> Attr {
        self.inodes[&inode].0.clone()
    }

    /// A new layout in one piece, whose shards belong to the partition 0 and others.
    pub fn new_layout(&mut self) -> Layout {
        self.layouts += 1;
        let shard = |data| ShardId { volume: VOLUME, data, index: 0 };
        let mut in_first = (1..).map(DataId).filter(|data| partition_of(shard(*data)) == 0);
        let data = in_first.nth(self.layouts as usize - 1).unwrap();
        Layout { version: self.layouts, pieces: vec![Piece { data, length: u64::MAX }] }
    }

    /// Cuts a file; its bytes move, so that its layout is another one. An empty file has its bytes beside its inode.
    pub fn truncate(&mut self, inode: InodeId, size: u64) {
        let mut bytes = self.first_bytes(inode, size);
        bytes.resize(size as usize, 0);
        self.layouts += 1;
        let layout = if size == 0 { Layout::inline(self.layouts) } else { self.new_layout() };
        self.add(inode, size, layout.clone());
        if size > 0 {
            self.change(&layout, 0, &bytes);
        }
    }

    /// Writes to shards and to the inode, as another client does.
    pub fn write(&mut self, inode: InodeId, offset: u64, bytes: &[u8]) {
        let layout = self.attr(inode).layout;
        self.change(&layout, offset, bytes);
        let attr = &mut self.inodes.get_mut(&inode).unwrap().0;
        attr.size = attr.size.max(offset + bytes.len() as u64);
    }

    fn change(&mut self, layout: &Layout, offset: u64, bytes: &[u8]) {
        let mut taken = 0;
        for (shard, offset, count) in layout.shard_runs(VOLUME, offset, bytes.len()) {
            self.put(shard.data, shard.index, offset as usize, &bytes[taken..taken + count]);
            taken += count;
        }
    }

    pub fn content(&self, inode: InodeId) -> Vec<u8> {
        self.first_bytes(inode, u64::MAX)
    }

    /// The first `most` bytes of a file, or all if it has fewer.
    fn first_bytes(&self, inode: InodeId, most: u64) -> Vec<u8> {
        let (attr, inline) = &self.inodes[&inode];
        let length = attr.size.min(most) as usize;
        if attr.layout.is_inline() {
            return inline[..length].to_vec();
        }
        let run = |(shard, from, count): ShardRun| self.get(shard.data, shard.index, from, count);
        attr.layout.shard_runs(VOLUME, 0, length).into_iter().map(run).collect::<Vec<_>>().concat()
    }

    fn put(&mut self, data: DataId, index: u64, offset: usize, bytes: &[u8]) {
        let shard = self.shards.entry((data, index)).or_default();
        shard.resize(shard.len().max(offset + bytes.len()), 0);
        shard[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn get(&self, data: DataId, index: u64, offset: u64, length: usize) -> Vec<u8> {
        let shard = self.shards.get(&(data, index)).map(Vec::as_slice).unwrap_or_default();
        let (from, to) = (shard.len().min(offset as usize), shard.len().min(offset as usize + length));
        let mut bytes = shard[from..to].to_vec();
        bytes.resize(length, 0);
        bytes
    }

    pub fn execute(&mut self, request: &Request) -> Result<Reply> {
        match &request.op {
            Op::Inode { op } => node(self.inodes.get(&op.inode()).ok_or(Error::Stale)?.0.clone()),
            Op::Lock { .. } => Ok(Reply::Done),
            Op::Data { op } => match op.inode() {
                Some(inode) => self.on_inode(inode, op),
                None => self.on_shard(request, op),
            },
            _ => Err(Error::bug("scripted")),
        }
    }

    fn on_inode(&mut self, inode: InodeId, op: &DataOp) -> Result<Reply> {
        let (attr, bytes) = self.inodes.get(&inode).cloned().ok_or(Error::Stale)?;
        let is_inline = |end: u64| attr.layout.is_inline() && end <= INLINE_MAX;
        match op {
            DataOp::Read { offset, length, .. } if is_inline(0) => {
                let bytes = bytes.iter().skip(*offset as usize).take(*length as usize).copied().collect();
                Ok(Reply::FileData { bytes, attr })
            }
            DataOp::Write { offset, data, .. } if is_inline(offset + data.len() as u64) => {
                self.put_inline(inode, *offset as usize, data)
            }
            DataOp::Append { data, .. } if is_inline((bytes.len() + data.len()) as u64) => {
                self.put_inline(inode, bytes.len(), data)
            }
            DataOp::Allocate { offset, length, .. } if is_inline(offset + length) => Ok(Reply::Done),
            DataOp::Seek { hole, offset, .. } if is_inline(0) => {
                Ok(Reply::Found { at: Some(if *hole { attr.size } else { *offset }) })
            }
            DataOp::Spill { .. } if is_inline(0) => {
                let layout = self.new_layout();
                self.add(inode, attr.size, layout.clone());
                self.change(&layout, 0, &bytes);
                node(self.attr(inode))
            }
            DataOp::Wrote { layout_version, .. } if *layout_version != attr.layout.version => Err(Error::LayoutChanged),
            DataOp::Wrote { end, .. } => {
                self.inodes.entry(inode).and_modify(|(attr, _)| attr.size = attr.size.max(*end));
                Ok(Reply::Done)
            }
            _ => node(attr),
        }
    }

    fn put_inline(&mut self, inode: InodeId, offset: usize, data: &[u8]) -> Result<Reply> {
        let (attr, bytes) = self.inodes.get_mut(&inode).ok_or(Error::Stale)?;
        bytes.resize(bytes.len().max(offset + data.len()), 0);
        bytes[offset..offset + data.len()].copy_from_slice(data);
        attr.size = bytes.len() as u64;
        Ok(Reply::Done)
    }

    fn on_shard(&mut self, request: &Request, op: &DataOp) -> Result<Reply> {
        self.writes += 1;
        let stamp = Stamp { count: self.writes, session: request.session, op: request.op_id };
        match op {
            DataOp::ReadShard { data, index, offset, length } => {
                Ok(Reply::Data { bytes: self.get(*data, *index, (*offset).into(), *length as usize).into() })
            }
            DataOp::WriteShard { data, index, offset, bytes, fast, .. } => {
                self.put(*data, *index, *offset as usize, bytes);
                Ok(Reply::Written { stamp, fast: fast.then_some(1) })
            }
            DataOp::FastWrite { data, index, offset, bytes, follow, .. } => {
                self.put(*data, *index, *offset as usize, bytes);
                Ok(Reply::Written { stamp: Stamp { count: follow.count + 1, ..stamp }, fast: None })
            }
            DataOp::CopyShard { from, data, index, offset } => {
                let bytes = self.get(from.data, from.index, from.offset.into(), from.length as usize);
                self.put(*data, *index, *offset as usize, &bytes);
                Ok(Reply::Written { stamp, fast: None })
            }
            DataOp::AllocateShard { data, index, offset, length, fill } => {
                let range = *offset as usize..(*offset + *length) as usize;
                if *fill != Fill::Holes
                    && let Some(shard) = self.shards.get_mut(&(*data, *index))
                {
                    shard.iter_mut().enumerate().filter(|(at, _)| range.contains(at)).for_each(|(_, byte)| *byte = 0);
                }
                Ok(Reply::Done)
            }
            DataOp::SeekShard { data, index, offset, hole } => {
                let shard = self.shards.get(&(*data, *index)).map(Vec::as_slice).unwrap_or_default();
                let wanted = |at: &usize| (shard[*at] == 0) == *hole;
                let end = hole.then_some(shard.len().max(*offset as usize));
                let at = (*offset as usize..shard.len()).find(wanted).or(end);
                Ok(Reply::Found { at: at.map(|at| at as u64) })
            }
            DataOp::NextShard { data, from, to } => {
                Ok(Reply::Found { at: self.with_data(request.target, *data, *from..*to) })
            }
            // One shard at a time, as if one record held no more.
            DataOp::EmptyShards { data, from, to } => {
                let first = self.with_data(request.target, *data, *from..*to);
                first.map(|index| self.shards.remove(&(*data, index)));
                Ok(Reply::Found { at: self.with_data(request.target, *data, *from..*to) })
            }
            DataOp::Sync { .. } => Ok(Reply::Done),
            _ => Err(Error::bug("scripted")),
        }
    }

    /// The first of these shards that has data and belongs to the target's partition.
    fn with_data(&self, target: Target, data: DataId, range: Range<u64>) -> Option<u64> {
        let Target::Partition { partition, .. } = target else { return None };
        let belongs = |index: u64| partition_of(ShardId { volume: VOLUME, data, index }) == partition.0;
        let shards = self.shards.range((data, range.start)..(data, range.end));
        let with_data = shards.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        with_data.map(|((_, index), _)| *index).find(|index| belongs(*index))
    }
}

type Act = Box<dyn FnOnce(&mut Files) -> Option<Result<Reply>> + Send>;

/// A client of servers with files.
pub struct FileClient {
    pub client: Client,
    pub files: Arc<Mutex<Files>>,
    /// Done once, before a request with this label is executed. It may replace the reply.
    acts: Arc<Mutex<Vec<(&'static str, Act)>>>,
}

impl Deref for FileClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl FileClient {
    pub fn new() -> Self {
        Self::of(map())
    }

    pub fn of(map: VolumeMap) -> Self {
        let files: Arc<Mutex<Files>> = Arc::default();
        let acts: Arc<Mutex<Vec<(&'static str, Act)>>> = Arc::default();
        let (held, due) = (files.clone(), acts.clone());
        let client = Client::new(map, move |_: &ScriptedServers, _, request| {
            let mut files = held.lock();
            let mut due = due.lock();
            let next = due.iter().position(|(label, _)| *label == request.op.label());
            let replaced = next.and_then(|next| (due.remove(next).1)(&mut files));
            replaced.unwrap_or_else(|| files.execute(request))
        });
        Self { client, files, acts }
    }

    /// Does something before the next request with this label is executed. Several for one label are done in order,
    /// one at each request.
    pub fn before(&self, label: &'static str, act: impl FnOnce(&mut Files) -> Option<Result<Reply>> + Send + 'static) {
        self.acts.lock().push((label, Box::new(act)));
    }

    /// Makes an empty file.
    pub fn file(&self, inode: InodeId) -> InodeId {
        self.files.lock().add(inode, 0, Layout::inline(0));
        inode
    }

    /// Makes a file of zeros in shards, whose size the client does not know.
    pub fn new_in_shards(&self, inode: InodeId, size: u64) -> InodeId {
        let mut files = self.files.lock();
        let layout = files.new_layout();
        files.add(inode, size, layout);
        inode
    }

    /// Makes a file of zeros in shards, which the client knows.
    pub fn file_in_shards(&self, inode: InodeId, size: u64) -> InodeId {
        self.new_in_shards(inode, size);
        self.call(get_attr(inode)).unwrap();
        inode
    }

    /// Makes a file of these pieces.
    pub fn file_of_pieces(&self, inode: InodeId, size: u64, pieces: Vec<Piece>) -> InodeId {
        self.files.lock().add(inode, size, Layout { version: 100, pieces });
        inode
    }

    pub fn content(&self, inode: InodeId) -> Vec<u8> {
        self.files.lock().content(inode)
    }

    pub fn size(&self, inode: InodeId) -> u64 {
        self.files.lock().attr(inode).size
    }

    pub fn write(&self, inode: InodeId, offset: u64, bytes: &[u8]) -> Result<Reply> {
        self.data(DataOp::Write { inode, offset, data: Bytes::copy_from_slice(bytes), drop_set_id: false })
    }

    pub fn read(&self, inode: InodeId, offset: u64, length: u32) -> Vec<u8> {
        match self.data(DataOp::Read { inode, offset, length, touch: false }) {
            Ok(Reply::FileData { bytes, .. }) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// The requests that `act` sends, by label.
    pub fn sent_by<T>(&self, act: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
        self.servers.take_sent();
        let outcome = act();
        (outcome, self.servers.labels())
    }
}
