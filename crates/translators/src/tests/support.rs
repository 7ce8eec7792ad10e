//! The volume of these tests, clients of it, and threads.

use super::scripted_servers::ScriptedServers;
use crate::replicate::Recipient;
use crate::{Distribute, Replicate};
use hekate_graph::Translator;
use hekate_proto::map::{BrickPlace, Member, Mode, ServerAddress, View, VolumeMap};
use hekate_proto::*;
use hekate_threads::{Condvar, Mutex, elapsed, now};
use hekate_transport::Servers;
use std::sync::Arc;
use std::time::Duration;

pub const SESSION: SessionId = SessionId(77);
pub const VOLUME: VolumeId = VolumeId(1);

/// A volume of 4 partitions on 3 servers with a brick each, which has the number of its server. The leaders are the
/// bricks 1, 2, 3 and 1, each with the next brick as its other member.
pub fn map() -> VolumeMap {
    let servers = [1, 2, 3];
    let address = |server| ServerAddress { server: ServerId(server), endpoints: Vec::new() };
    let place = |number| BrickPlace { brick: BrickId(number), server: ServerId(number as u32) };
    let map = VolumeMap {
        volume: VOLUME,
        name: "v".into(),
        ring: RingId(1),
        copies: 2,
        mode: Mode::Leader,
        views: [1, 2, 3, 1].map(|leader| view(5, leader)).into(),
        server: ServerId(1),
        servers: servers.map(address).into(),
        bricks: [1, 2, 3].map(place).into(),
        graph: Default::default(),
    };
    map.check().unwrap();
    map
}

/// A view with this leader and the next brick as members.
pub fn view(epoch: u64, leader: u128) -> View {
    let member = |brick| Member { brick: BrickId(brick), incarnation: Incarnation(1) };
    View::new(Epoch(epoch), BrickId(leader), vec![member(leader), member(leader % 3 + 1)])
}

/// Makes a brick the leader of a partition, in the next epoch.
pub fn lead(map: &mut VolumeMap, partition: u32, leader: u128) {
    let old = &map.views[partition as usize];
    map.views[partition as usize] = View { losses: old.losses, ..view(old.epoch.0 + 1, leader) };
}

pub fn leader(partition: u32) -> Recipient {
    Recipient::Leader(PartitionNumber(partition))
}

/// An inode in a partition.
pub const fn inode(partition: u32, number: u64) -> InodeId {
    InodeId::new(partition << 30 | 7, 1, number)
}

/// A data id whose first shard is in a partition.
pub fn data_in(partition: u32) -> DataId {
    let first = |data| ShardId { volume: VOLUME, data, index: 0 };
    (1..).map(DataId).find(|data| partition_of(first(*data)) == partition).unwrap()
}

pub fn partition_of(shard: ShardId) -> u32 {
    shard.position().partition(4).0
}

pub fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

pub fn get_attr(inode: InodeId) -> Op {
    Op::Inode { op: InodeOp::GetAttr { inode } }
}

/// A change of an inode.
pub fn chmod(inode: InodeId) -> Op {
    Op::Inode { op: InodeOp::SetAttr { inode, changes: AttrChanges { mode: Some(0o600), ..AttrChanges::default() } } }
}

pub fn unavailable() -> Error {
    Error::Unavailable { what: "scripted".into() }
}

/// True if the outcome is `Unavailable`, whatever its text.
pub fn is_unavailable<T>(outcome: &Result<T>) -> bool {
    matches!(outcome, Err(Error::Unavailable { .. }))
}

/// The attributes of an inode without content.
pub fn attr(id: InodeId, kind: NodeKind) -> Attr {
    let time = Time(0);
    Attr {
        id,
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        nlink: if kind == NodeKind::Directory { 2 } else { 1 },
        size: 0,
        device: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        change: 1,
        layout: Layout::inline(0),
        spread: 1,
        has_xattrs: false,
        etag: bytes::Bytes::new(),
        implied: false,
    }
}

pub fn node(attr: Attr) -> Result<Reply> {
    Ok(Reply::Node { attr, created: false })
}

/// A lock of bytes, as fcntl(2) takes it.
pub fn lock(kind: LockKind, owner: u64, start: u64, end: u64) -> Lock {
    Lock { kind, style: LockStyle::Posix, start, end, owner: LockOwner(owner), pid: 1 }
}

/// A routing layer over scripted servers.
pub struct Client {
    pub servers: Arc<ScriptedServers>,
    pub top: Arc<Distribute>,
}

impl Client {
    pub fn new(
        map: VolumeMap,
        execute: impl Fn(&ScriptedServers, ServerId, &Request) -> Result<Reply> + Send + Sync + 'static,
    ) -> Self {
        let servers = ScriptedServers::new(map.clone(), execute);
        let top = Arc::new(Distribute::new(Replicate::new(servers.clone(), SESSION, map)));
        Self { servers, top }
    }

    /// Executes an op that need not be durable.
    pub fn call(&self, op: Op) -> Result<Reply> {
        self.top.handle(&Default::default(), op)
    }

    pub fn data(&self, op: DataOp) -> Result<Reply> {
        self.call(Op::Data { op })
    }

    pub fn names(&self, op: NameOp) -> Result<Reply> {
        self.call(Op::Name { op })
    }

    pub fn lock(&self, op: LockOp) -> Result<Reply> {
        self.call(Op::Lock { op })
    }

    /// Takes or releases a lock without waiting for other holders.
    pub fn set_lock(&self, inode: InodeId, lock: Lock) -> Result<Reply> {
        self.lock(LockOp::Set { inode, lock, wait: false })
    }

    /// What the session reports of a partition, if its leader asks for it in a heartbeat.
    pub fn report(&self, partition: u32) -> Vec<(InodeId, Lock)> {
        self.servers.take_sent();
        self.top.locks().on_heartbeat(&[PartitionNumber(partition)]);
        let sent = self.servers.take_sent();
        let report = sent.iter().find_map(|sent| match &sent.request.op {
            Op::Lock { op: LockOp::Restore { locks, .. } } => Some(locks.clone()),
            _ => None,
        });
        report.unwrap()
    }
}

impl Drop for Client {
    /// Ends the threads that listen.
    fn drop(&mut self) {
        self.servers.close();
        self.top.locks().close();
    }
}

/// A function that runs on a thread of its own.
pub struct Task<T>(Arc<(Mutex<Option<T>>, Condvar)>);

/// Runs a function on a thread of its own.
pub fn start<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Task<T> {
    let task = Task(Arc::default());
    let result = task.0.clone();
    hekate_threads::spawn("test", move || {
        let value = body();
        *result.0.lock() = Some(value);
        result.1.notify_all();
    })
    .unwrap();
    task
}

impl<T> Task<T> {
    /// What the function returned.
    pub fn join(self) -> T {
        let begun = now();
        let mut value = self.0.0.lock();
        loop {
            if let Some(value) = value.take() {
                return value;
            }
            assert!(elapsed(begun) < Duration::from_secs(30), "the thread has panicked or waits without an end");
            self.0.1.wait_for(&mut value, Duration::from_millis(100));
        }
    }

    /// True if the function has not returned after a pause.
    pub fn is_waiting(&self) -> bool {
        hekate_threads::sleep(Duration::from_millis(30));
        self.0.0.lock().is_none()
    }
}

/// Holds threads until it is opened.
#[derive(Default)]
pub struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub fn pass(&self) {
        let begun = now();
        let mut open = self.0.lock();
        while !*open {
            assert!(elapsed(begun) < Duration::from_secs(30), "the gate stays closed");
            self.1.wait_for(&mut open, Duration::from_millis(100));
        }
    }

    pub fn open(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }
}
