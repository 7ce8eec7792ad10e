//! The calls of clients: on a small tree that they share, so that their calls conflict.

use crate::simulator::settings::workload::Workload;
use bytes::Bytes;
use hekate_brick::storage::Random;
use hekate_proto::*;
use std::collections::BTreeMap;

/// The clients' knowledge of the tree, from answers.
#[derive(Debug)]
pub struct Known {
    directories: Vec<InodeId>,
    files: Vec<InodeId>,
    /// Where the next write begins that makes a file longer.
    ends: BTreeMap<InodeId, u64>,
    /// Limit for both: the newest are kept.
    count_max: usize,
}

impl Known {
    pub fn new(settings: &Workload) -> Self {
        Self { directories: vec![ROOT], files: Vec::new(), ends: BTreeMap::new(), count_max: settings.directories }
    }

    /// Learns the inodes in an answer.
    pub fn learn(&mut self, reply: &Reply) {
        match reply {
            Reply::Node { attr, .. } => self.saw(attr.id, attr.kind),
            Reply::List { entries, .. } => entries.iter().for_each(|entry| self.saw(entry.inode, entry.kind)),
            _ => {}
        }
    }

    fn saw(&mut self, id: InodeId, kind: NodeKind) {
        let (all, keep) = match kind {
            NodeKind::Directory => (&mut self.directories, 1),
            NodeKind::File => (&mut self.files, 0),
            _ => return,
        };
        if all.contains(&id) {
            return;
        }
        all.push(id);
        if all.len() > keep + self.count_max {
            all.remove(keep);
        }
    }

    pub fn first_file(&self) -> Option<InodeId> {
        self.files.first().copied()
    }

    fn directory(&self, random: &mut Random) -> InodeId {
        self.directories[random.below(self.directories.len() as u64) as usize]
    }

    /// Usually the client's own file, as far as there are enough; sometimes another one's.
    fn file_of(&self, client: u32, random: &mut Random) -> Option<InodeId> {
        if random.once_in(16) {
            return self.file(random);
        }
        self.files.get(client as usize % self.files.len().max(1)).copied()
    }

    fn file(&self, random: &mut Random) -> Option<InodeId> {
        self.files.get(random.below(self.files.len() as u64) as usize).copied()
    }
}

fn name(settings: &Workload, random: &mut Random) -> Name {
    let letter = b'a' + random.below(settings.names) as u8;
    match Name::new(Bytes::copy_from_slice(&[letter])) {
        Ok(name) => name,
        Err(_) => unreachable!("a letter is a name"),
    }
}

/// A client's next call, and whether it must be on stable storage.
pub fn next_op(settings: &Workload, known: &mut Known, client: u32, random: &mut Random) -> (Op, bool) {
    if settings.grows > 0 && random.below(100) < settings.grows {
        return match known.file_of(client, random) {
            Some(inode) => (grow(known, inode, random), random.below(100) < settings.durable_share),
            None => (Op::Name { op: create(ROOT, name(settings, random), NewNode::File, random) }, false),
        };
    }
    if settings.looks > 0 && random.below(100) < settings.looks {
        return (look_op(settings, known, random), false);
    }
    if settings.overwrites > 0 && random.below(100) < settings.overwrites {
        return match known.file_of(client, random) {
            Some(inode) => (overwrite(settings, inode, random), random.below(100) < settings.durable_overwrites),
            None => (Op::Name { op: create(ROOT, name(settings, random), NewNode::File, random) }, false),
        };
    }
    let op = some_op(settings, known, random);
    let durable = !op.is_read() && random.below(100) < settings.durable_share;
    (op, durable)
}

/// A write behind the end of the file, mostly, as of one who writes a long file.
fn grow(known: &mut Known, inode: InodeId, random: &mut Random) -> Op {
    let end = known.ends.entry(inode).or_insert(16_000);
    if random.once_in(24) {
        let changes = AttrChanges { size: Some(random.below(*end)), ..AttrChanges::default() };
        return Op::Inode { op: InodeOp::SetAttr { inode, changes } };
    }
    if *end > 400_000 {
        *end = if random.once_in(3) { SHARD_BYTES - 20_000 } else { 16_000 };
    }
    let gap = if random.once_in(8) { random.below(9_000) } else { 0 };
    let (offset, length) = (*end + gap, 1 + random.below(9_000));
    *end = offset + length;
    Op::Data { op: write_at(inode, offset, length, random) }
}

fn overwrite(settings: &Workload, inode: InodeId, random: &mut Random) -> Op {
    if settings.reads > 0 && random.below(100) < settings.reads {
        let (offset, length) = (random.below(settings.blocks) * 4096, 4096);
        return Op::Data { op: DataOp::Read { inode, offset, length, touch: false } };
    }
    let (offset, length) = match random.below(if settings.visitors { 60 } else { 20 }) {
        0 => return Op::Inode { op: inode_op(inode, random) },
        1 => return Op::Data { op: DataOp::Fsync { inode } },
        2..=5 => {
            let (offset, length) = (random.below(settings.blocks) * 4096, 4096 * (1 + random.below(4) as u32));
            return Op::Data { op: DataOp::Read { inode, offset, length, touch: false } };
        }
        6 | 7 | 20..=24 => (0, 24_576),
        8..=17 | 25.. => (random.below(settings.blocks) * 4096, 4096 * (1 + random.below(2))),
        _ => (random.below(20_000), 1 + random.below(4_000)),
    };
    Op::Data { op: write_at(inode, offset, length, random) }
}

/// A look at a name or at attributes, which a client may answer from memory.
pub fn look_op(settings: &Workload, known: &Known, random: &mut Random) -> Op {
    let (dir, name_at) = (known.directory(random), name(settings, random));
    let inode = known.file(random).filter(|_| !random.once_in(3)).unwrap_or(dir);
    let op = match random.below(20) {
        0..=8 => return Op::Name { op: NameOp::Lookup { dir, name: name_at } },
        9 => {
            let attributes = !random.once_in(3);
            return Op::Name { op: NameOp::List { dir, after: None, limit: 100, attributes, touch: false } };
        }
        10 => InodeOp::ListXattr { inode },
        11 => InodeOp::GetXattr { inode, name: xattr_name(random) },
        // The content of a small file is answered from memory, too.
        12 | 13 if inode != dir => {
            return Op::Data { op: DataOp::Read { inode, offset: 0, length: 200_000, touch: false } };
        }
        // So is what was read before of a longer one.
        14..=16 if inode != dir => {
            let (offset, length) = (random.below(settings.blocks.max(1)) * 4096, 4096);
            return Op::Data { op: DataOp::Read { inode, offset, length, touch: false } };
        }
        _ => InodeOp::GetAttr { inode },
    };
    Op::Inode { op }
}

fn some_op(settings: &Workload, known: &Known, random: &mut Random) -> Op {
    if settings.looks > 0
        && random.once_in(12)
        && let Some(inode) = known.file(random)
    {
        return change_of(inode, random);
    }
    match known.file(random).filter(|_| random.below(100) < settings.data_share) {
        Some(inode) => data_op(inode, random),
        None if random.once_in(10) => change_of(known.directory(random), random),
        None => Op::Name { op: name_op(settings, known, random) },
    }
}

fn name_op(settings: &Workload, known: &Known, random: &mut Random) -> NameOp {
    let (dir, name_at) = (known.directory(random), name(settings, random));
    match random.below(20) {
        0..=4 => create(dir, name_at, NewNode::File, random),
        5..=7 => create(dir, name_at, NewNode::Directory, random),
        8 => create(dir, name_at, NewNode::Symlink { target: Bytes::from_static(b"there") }, random),
        9 | 10 => NameOp::Unlink { dir, name: name_at, open_here: None },
        11 => NameOp::Rmdir { dir, name: name_at },
        12..=15 => {
            let (to_dir, to_name) = (known.directory(random), name(settings, random));
            let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            let mode = modes[random.below(4) as usize];
            NameOp::Rename { dir, name: name_at, to_dir, to_name, mode, open_here: None }
        }
        16 => match known.file(random) {
            Some(inode) => NameOp::Link { dir, name: name_at, inode },
            None => NameOp::Lookup { dir, name: name_at },
        },
        17 | 18 => NameOp::Lookup { dir, name: name_at },
        _ => NameOp::List { dir, after: None, limit: 100, attributes: random.once_in(2), touch: false },
    }
}

fn create(dir: InodeId, name: Name, node: NewNode, random: &mut Random) -> NameOp {
    let exclusive = node != NewNode::File || random.once_in(2);
    NameOp::Create { dir, name, node, mode: 0o755, uid: 1, gid: 1, umask: 0, exclusive, seed: random.number() }
}

fn data_op(inode: InodeId, random: &mut Random) -> Op {
    let op = match random.below(16) {
        0..=4 => write(inode, random),
        5..=8 => DataOp::Read { inode, offset: offset(random), length: 1 + random.below(150_000) as u32, touch: false },
        9 => DataOp::Fsync { inode },
        _ => return Op::Inode { op: inode_op(inode, random) },
    };
    Op::Data { op }
}

/// Mostly near the beginning; sometimes at the border of two shards.
fn offset(random: &mut Random) -> u64 {
    match random.below(12) {
        0 => SHARD_BYTES - 3_000 + random.below(6_000),
        1..=3 => random.below(100_000),
        4..=6 => 0,
        _ => random.below(12_000),
    }
}

fn write(inode: InodeId, random: &mut Random) -> DataOp {
    let offset = offset(random);
    let length = match random.below(8) {
        0 => 33_000 + random.below(60_000),
        1 => 10_000 + random.below(20_000),
        _ => 1 + random.below(6_000),
    };
    write_at(inode, offset, length, random)
}

pub fn write_at(inode: InodeId, offset: u64, length: u64, random: &mut Random) -> DataOp {
    let tag = random.number().to_le_bytes();
    let data: Bytes = tag.iter().copied().cycle().take(length as usize).collect::<Vec<u8>>().into();
    DataOp::Write { inode, offset, data, drop_set_id: random.once_in(8) }
}

fn xattr_name(random: &mut Random) -> Bytes {
    Bytes::copy_from_slice(&[b'u', b'.', b'a' + random.below(2) as u8])
}

fn inode_op(inode: InodeId, random: &mut Random) -> InodeOp {
    let name = xattr_name(random);
    match random.below(10) {
        0..=2 => InodeOp::GetAttr { inode },
        3 | 4 => {
            let sizes = [0, random.below(5_000), random.below(30_000), random.below(100_000), SHARD_BYTES + 100];
            let size = Some(sizes[random.below(5) as usize]);
            InodeOp::SetAttr { inode, changes: AttrChanges { size, ..AttrChanges::default() } }
        }
        5 => {
            let mode = Some(0o600 + random.below(64) as u16);
            InodeOp::SetAttr { inode, changes: AttrChanges { mode, ..AttrChanges::default() } }
        }
        6 => {
            let value = Bytes::from(vec![7; random.below(3_000) as usize]);
            InodeOp::SetXattr { inode, name, value, create: random.once_in(4), replace: false, drop_set_group: false }
        }
        7 => InodeOp::GetXattr { inode, name },
        8 => InodeOp::ListXattr { inode },
        _ => InodeOp::RemoveXattr { inode, name },
    }
}

/// A change of several attributes, which all partitions that share a directory's names must know.
fn change_of(inode: InodeId, random: &mut Random) -> Op {
    let mode = random.once_in(2).then(|| 0o2700 + random.below(64) as u16);
    let mtime = random.once_in(2).then(|| SetTime::At { time: Time(random.below(1_000_000) as i64) });
    let changes = AttrChanges { mode, gid: Some(random.below(4) as u32), mtime, ..AttrChanges::default() };
    Op::Inode { op: InodeOp::SetAttr { inode, changes } }
}

/// A list of all names of a directory.
pub fn list(dir: InodeId) -> Op {
    Op::Name { op: NameOp::List { dir, after: None, limit: 100, attributes: false, touch: false } }
}

/// A look at each inode that a list shows, into each directory and at the bytes of each file.
pub fn looks_into(op: &Op, reply: &Reply) -> Vec<Op> {
    let (Op::Name { op: NameOp::List { .. } }, Reply::List { entries, .. }) = (op, reply) else { return Vec::new() };
    let mut looks = Vec::new();
    for entry in entries {
        let inode = entry.inode;
        looks.push(Op::Inode { op: InodeOp::GetAttr { inode } });
        let read = |(offset, length)| Op::Data { op: DataOp::Read { inode, offset, length, touch: false } };
        match entry.kind {
            NodeKind::Directory => looks.push(list(inode)),
            NodeKind::File => looks.extend([(0, 200_000), (SHARD_BYTES - 8_000, 16_000)].map(read)),
            _ => {}
        }
    }
    looks
}
