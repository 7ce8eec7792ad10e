//! The records of creates, as a server's leaders make them (`replica::names::create`, `replica::data::write`, and the
//! session's slot that `server::locked` adds), for a volume of one session on a ring of 16 partitions.
//!
//! A create is one record: inode, name, the directory's stub, the session's slot; every 4,096th of a partition reserves
//! numbers. Content is a second one: the bytes, the inode again, the slot. A directory is two records in two
//! partitions; the intent around them, gone by the next sweep, is left out.

use crate::measure::Random;
use bytes::Bytes;
use hekate_proto::*;

const RING: RingId = RingId(1);
const VOLUME: VolumeId = VolumeId(1);
const SESSION: SessionId = SessionId(9);
const PARTITIONS: u32 = 16;
/// Numbers that one record reserves; a server reserves 16,384 (`replica/log/number_allocator.rs`).
const NUMBERS_AT_ONCE: u64 = 4096;
const COUNTER_BITS: u32 = 40;
const CONTENT_BYTES: usize = 1024;
const FILES_OF_A_TREE_DIRECTORY: u64 = 100;

/// Where the files go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Directories in turn.
    Random,
    /// One directory.
    Big,
    /// Directory after directory.
    Tree,
}

impl std::str::FromStr for Shape {
    type Err = ();
    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "random" => Ok(Shape::Random),
            "big" => Ok(Shape::Big),
            "tree" => Ok(Shape::Tree),
            _ => Err(()),
        }
    }
}

/// What the leader of a directory keeps of it.
struct Directory {
    id: InodeId,
    stub: StubRecord,
}

/// A partition's log and numbers.
#[derive(Clone, Copy, Default)]
struct Log {
    sequence: u64,
    number: u64,
}

/// A stream of creates.
pub struct Creates {
    shape: Shape,
    random_names: bool,
    directories: Vec<Directory>,
    logs: [Log; PARTITIONS as usize],
    random: Random,
    made: u64,
    op_id: u64,
    now: Time,
}

impl Creates {
    /// In `directories` directories, where the shape asks for them.
    pub fn new(shape: Shape, directories: u64, random_names: bool) -> (Self, Vec<Record>) {
        let mut creates = Self {
            shape,
            random_names,
            directories: Vec::new(),
            logs: Default::default(),
            random: Random(7),
            made: 0,
            op_id: 0,
            now: Time(1_700_000_000_000_000_000),
        };
        let root = new_inode(NodeKind::Directory, creates.now);
        let mut records = Vec::new();
        let changes = creates.new_directory(ROOT, &root);
        let record = creates.record(ROOT.position(), changes, None);
        records.push(record);
        let first = match shape {
            Shape::Random => directories,
            Shape::Big => 1,
            Shape::Tree => 0,
        };
        (0..first).for_each(|_| creates.make_directory(&mut records));
        (creates, records)
    }

    /// The records of the next create.
    pub fn next(&mut self, out: &mut Vec<Record>) {
        let at = match self.shape {
            Shape::Random => 1 + self.made as usize % (self.directories.len() - 1),
            Shape::Big => 1,
            Shape::Tree => {
                if self.made.is_multiple_of(FILES_OF_A_TREE_DIRECTORY) {
                    self.make_directory(out);
                }
                self.directories.len() - 1
            }
        };
        let name = match self.random_names {
            true => format!("{:016x}.dat", self.random.next()),
            false => format!("file-{:011}.dat", self.made),
        };
        self.now.0 += 20_000;
        let (id, mut inode, mut changes) = self.new_node(at, &name, NodeKind::File);
        changes.insert(0, put(id, Kind::Inode, &inode));
        let reply = Reply::Node { attr: attr_of(id, &inode), created: true };
        out.push(self.record(id.position(), changes, Some(reply)));
        if self.made.is_multiple_of(2) {
            let bytes = Bytes::from(vec![self.made as u8; CONTENT_BYTES]);
            (inode.size, inode.size_high, inode.change) = (CONTENT_BYTES as u64, CONTENT_BYTES as u64, 2);
            let content = Change::Put { key: Key::inode(RING, VOLUME, id, Kind::Content), value: bytes };
            let changes = vec![content, put(id, Kind::Inode, &inode)];
            out.push(self.record(id.position(), changes, Some(Reply::Done)));
        }
        self.made += 1;
    }

    /// A name in the directory: number, name and stub.
    fn new_node(&mut self, at: usize, name: &str, kind: NodeKind) -> (InodeId, InodeRecord, Vec<Change>) {
        let position = self.directories[at].id.position();
        let mut changes = Vec::new();
        let number = self.next_number(position, &mut changes);
        // A directory is on another partition than its name.
        let place = if kind == NodeKind::Directory { self.random.next() as u32 } else { position.0 };
        let id = InodeId::new(place, self.random.next() as u32, number);
        let (now, directory) = (self.now, &mut self.directories[at]);
        let place = KeyPrefix { ring: RING, position, volume: VOLUME };
        let key = Key::name(place, directory.id, name.as_bytes());
        changes.push(Change::Put { key, value: NameRecord { inode: id, kind }.to_bytes() });
        directory.stub.entries += 1;
        directory.stub.directories += u32::from(kind == NodeKind::Directory);
        directory.stub.mtime = now;
        directory.stub.change += 1;
        changes.push(put(directory.id, Kind::Stub, &directory.stub));
        (id, new_inode(kind, now), changes)
    }

    fn make_directory(&mut self, out: &mut Vec<Record>) {
        let name = format!("directory-{:08}", self.directories.len());
        let (id, inode, changes) = self.new_node(0, &name, NodeKind::Directory);
        let inode = InodeRecord { parent: ROOT, ..inode };
        let own = self.new_directory(id, &inode);
        out.push(self.record(id.position(), own, None));
        let reply = Reply::Node { attr: attr_of(id, &inode), created: true };
        out.push(self.record(ROOT.position(), changes, Some(reply)));
    }

    fn new_directory(&mut self, id: InodeId, inode: &InodeRecord) -> Vec<Change> {
        let stub = StubRecord {
            alive: true,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            spread: 1,
            entries: 0,
            directories: 0,
            mtime: self.now,
            ctime: self.now,
            change: 0,
            default_acl: Bytes::new(),
        };
        let changes = vec![put(id, Kind::Inode, inode), put(id, Kind::Stub, &stub)];
        self.directories.push(Directory { id, stub });
        changes
    }

    fn next_number(&mut self, position: Position, changes: &mut Vec<Change>) -> u64 {
        let partition = position.partition(PARTITIONS);
        let log = &mut self.logs[partition.0 as usize];
        if log.number.is_multiple_of(NUMBERS_AT_ONCE) {
            let value = PartitionRecord { numbers_reserved: log.number + NUMBERS_AT_ONCE }.to_bytes();
            changes.push(Change::Put { key: Key::partition(RING, partition.first_position(PARTITIONS)), value });
        }
        log.number += 1;
        (u64::from(PARTITIONS | partition.0) << COUNTER_BITS) | log.number
    }

    fn record(&mut self, position: Position, mut changes: Vec<Change>, reply: Option<Reply>) -> Record {
        let partition = position.partition(PARTITIONS);
        self.op_id += 1;
        let op_id = OpId(self.op_id);
        if let Some(reply) = reply {
            let slot = (self.op_id % SESSION_SLOTS as u64) as u16;
            let key = Key::session(RING, partition.first_position(PARTITIONS), SESSION, slot);
            let value = SessionRecord { op_id, reply: reply.to_bytes() }.to_bytes();
            changes.push(Change::Put { key, value });
        }
        let log = &mut self.logs[partition.0 as usize];
        log.sequence += 1;
        let (epoch, sequence) = (Epoch(1), Sequence(log.sequence));
        Record { ring: RING, partition, epoch, sequence, session: SESSION, op_id, changes }
    }
}

fn put(id: InodeId, kind: Kind, value: &impl Wire) -> Change {
    Change::Put { key: Key::inode(RING, VOLUME, id, kind), value: value.to_bytes() }
}

fn new_inode(kind: NodeKind, now: Time) -> InodeRecord {
    InodeRecord {
        kind,
        mode: 0o644,
        uid: 1000,
        gid: 1000,
        nlink: 1,
        size: 0,
        device: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        change: 1,
        layout: Layout::inline(0),
        spread: 1,
        parent: InodeId::from_bits(0),
        size_high: 0,
        grant_limit: 0,
        has_capability: false,
        has_xattrs: false,
        etag: Bytes::new(),
        implied: false,
    }
}

fn attr_of(id: InodeId, inode: &InodeRecord) -> Attr {
    Attr {
        id,
        kind: inode.kind,
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.nlink,
        size: inode.size,
        device: inode.device,
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        btime: inode.btime,
        change: inode.change,
        layout: inode.layout.clone(),
        spread: inode.spread,
        has_xattrs: inode.has_xattrs,
        etag: inode.etag.clone(),
        implied: inode.implied,
    }
}
