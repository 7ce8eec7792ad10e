//! What the kernel remembers: for each node (`st_ino`) its inode id, how often the kernel was told of it, and how often
//! it is open here.
//!
//! Invariants: a node is known from the first answer that names it until the kernel has forgotten as often as it was
//! told; the root is always known. An entry takes 40 to 48 bytes. A node that is open is not forgotten, since the kernel holds
//! its inode until RELEASE is answered. A table that keeps all (for handles, which have only the node) forgets none until
//! it is gone. Of a directory the table also has the attributes that were answered last, 64 bytes, for as long as the
//! kernel remembers it: a process whose working directory is removed, or that has it open, still sees them.

use crate::abi::ROOT_NODE;
use crate::filesystem::has_lone_set_group;
use crate::removed_directory::{Gone, Seen};
use hekate_proto::{Attr, InodeId, NodeKind, ROOT};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SHARDS: usize = 16;
/// A part of the table of fewer places keeps its room.
const KEPT_PLACES: usize = 1024;
/// When one of more places, 768 KiB, becomes smaller it is worth some milliseconds to give the system its room.
const TRIMMED_PLACES: usize = 16_384;

/// Of an inode that was given extended attributes here.
const ASK_ALWAYS: u32 = u32::MAX;

/// The table.
#[derive(Debug)]
pub(crate) struct Nodes {
    shards: [Mutex<HashMap<u64, Node>>; SHARDS],
    /// Directories among them. Locked after the shard of the same number.
    directories: [Mutex<HashMap<u64, Directory>>; SHARDS],
    open: AtomicUsize,
    keeps_all: bool,
    made: Instant,
}

impl Default for Nodes {
    fn default() -> Self {
        let (shards, directories) = Default::default();
        Self { shards, directories, open: AtomicUsize::new(0), keeps_all: false, made: Instant::now() }
    }
}

/// A directory that the kernel knows: its attributes as they were last answered, or that it was found removed.
#[derive(Debug)]
enum Directory {
    Seen(Seen),
    Gone(Box<Gone>),
}

#[derive(Debug, Clone, Copy)]
struct Node {
    /// The upper half of the inode id; the lower is the node itself.
    upper: u64,
    told: u64,
    /// The change counter at the last open.
    change: u64,
    opens: u32,
    /// Until when it has no extended attributes, as far as the kernel may believe us; ms after the table was made. Or
    /// [`ASK_ALWAYS`].
    plain_until: u32,
    kind: NodeKind,
    /// A file with set-group-id that its group may not execute, as the kernel was answered last.
    set_group: bool,
}

impl Node {
    fn set_plain(&mut self, until: u32) {
        if self.plain_until != ASK_ALWAYS {
            self.plain_until = until;
        }
    }

    fn id(&self, node: u64) -> InodeId {
        InodeId::from_bits((u128::from(self.upper) << 64) | u128::from(node))
    }
}

impl Nodes {
    /// `keeps_all`: also what the kernel has forgotten.
    pub(crate) fn new(keeps_all: bool) -> Self {
        Self { keeps_all, ..Self::default() }
    }

    /// Counts that the kernel is told of an inode, which has no extended attributes if that is `believed` for a time.
    pub(crate) fn told(&self, id: InodeId, kind: NodeKind, believed: Option<Duration>) {
        let until = self.until(believed);
        let mut shard = self.shard(id.number()).lock();
        let fresh = Node {
            upper: (id.bits() >> 64) as u64,
            told: 0,
            change: 0,
            opens: 0,
            plain_until: 0,
            kind,
            set_group: false,
        };
        let known = shard.entry(id.number()).or_insert(fresh);
        known.told += 1;
        known.set_plain(until);
    }

    /// The same of an inode that the kernel knows.
    pub(crate) fn set_plain(&self, node: u64, believed: Option<Duration>) {
        let until = self.until(believed);
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.set_plain(until);
        }
    }

    /// It is given some here: an answer that is on its way still may say that it has none.
    pub(crate) fn is_given_attributes(&self, node: u64) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.plain_until = ASK_ALWAYS;
        }
    }

    fn until(&self, believed: Option<Duration>) -> u32 {
        let end = believed.map(|time| self.made.elapsed().saturating_add(time).as_millis());
        end.map_or(0, |end| end.min(u128::from(ASK_ALWAYS - 1)) as u32)
    }

    /// Whether it has no extended attributes, as far as the kernel may believe us.
    pub(crate) fn is_plain(&self, node: u64) -> bool {
        let now = self.made.elapsed().as_millis();
        let is_it = |known: &Node| known.plain_until != ASK_ALWAYS && u128::from(known.plain_until) > now;
        self.shard(node).lock().get(&node).is_some_and(is_it)
    }

    /// The kernel takes back `count` of what it was told.
    pub(crate) fn forget(&self, node: u64, count: u64) {
        let mut shard = self.shard(node).lock();
        if let Some(known) = shard.get_mut(&node) {
            known.told = known.told.saturating_sub(count);
            if known.told == 0 && known.kind == NodeKind::Directory {
                let mut directories = self.directories(node).lock();
                directories.remove(&node);
                give_room_back(&mut directories);
            }
            if known.told == 0 && known.opens == 0 && !self.keeps_all {
                shard.remove(&node);
                give_room_back(&mut shard);
            }
        }
    }

    /// Whether a file has set-group-id and its group may not execute it, as the kernel was answered last.
    pub(crate) fn is_set_group(&self, node: u64) -> bool {
        self.shard(node).lock().get(&node).is_some_and(|known| known.set_group)
    }

    /// Notes attributes that the kernel is answered of an inode that it knows.
    pub(crate) fn saw(&self, attr: &Attr) {
        let node = attr.id.number();
        let mut shard = self.shard(node).lock();
        if attr.kind != NodeKind::Directory {
            if let Some(known) = shard.get_mut(&node) {
                known.set_group = has_lone_set_group(attr);
            }
            return;
        }
        if shard.get(&node).is_some_and(|known| known.told > 0) {
            let mut directories = self.directories(node).lock();
            if !matches!(directories.get(&node), Some(Directory::Gone(_))) {
                directories.insert(node, Directory::Seen(Seen::from(attr)));
            }
        }
    }

    /// Notes what a directory was like when this mount removed it, if the kernel knows it.
    pub(crate) fn is_removed(&self, gone: Gone) {
        let node = gone.attr.id.number();
        if let Some(known) = self.directories(node).lock().get_mut(&node) {
            *known = Directory::Gone(Box::new(gone.removed()));
        }
    }

    /// Reads or changes a directory that the servers no longer have and the kernel still knows. `None`: it is no such
    /// directory. One that another mount removed has the attributes that were answered last, and no extended ones.
    pub(crate) fn with_gone<T>(&self, id: InodeId, act: impl FnOnce(&mut Gone) -> T) -> Option<T> {
        let mut directories = self.directories(id.number()).lock();
        let known = directories.get_mut(&id.number())?;
        if let Directory::Seen(seen) = known {
            *known = Directory::Gone(Box::new(seen.gone(id)));
        }
        match known {
            Directory::Gone(gone) => Some(act(gone)),
            Directory::Seen(_) => None,
        }
    }

    /// There is no such inode any more.
    pub(crate) fn gone(&self, node: u64) {
        let mut shard = self.shard(node).lock();
        if shard.get(&node).is_some_and(|known| known.told == 0 && known.opens == 0) {
            shard.remove(&node);
            give_room_back(&mut shard);
        }
    }

    /// The inode and its kind.
    pub(crate) fn get(&self, node: u64) -> Option<(InodeId, NodeKind)> {
        if node == ROOT_NODE {
            return Some((ROOT, NodeKind::Directory));
        }
        self.shard(node).lock().get(&node).map(|known| (known.id(node), known.kind))
    }

    /// Counts an open.
    pub(crate) fn opened(&self, node: u64) {
        self.open.fetch_add(1, Ordering::SeqCst);
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.opens += 1;
        }
    }

    /// Whether the file is as it was when this was asked last; `change` is its counter.
    pub(crate) fn unchanged(&self, node: u64, change: u64) -> bool {
        let mut shard = self.shard(node).lock();
        shard.get_mut(&node).is_some_and(|known| std::mem::replace(&mut known.change, change) == change)
    }

    /// Ends an open.
    pub(crate) fn closed(&self, node: u64) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.opens = known.opens.saturating_sub(1);
        }
    }

    /// Counts an inode that stays although no process has it open.
    pub(crate) fn held(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends that.
    pub(crate) fn unheld(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether any file is open or held here.
    pub(crate) fn any_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) > 0
    }

    /// Forgets everything; -> each inode that was still open, as often as it was.
    pub(crate) fn clear(&self) -> Vec<InodeId> {
        let mut open = Vec::new();
        self.directories.iter().for_each(|directories| directories.lock().clear());
        for shard in &self.shards {
            for (node, known) in shard.lock().drain() {
                open.extend(std::iter::repeat_n(known.id(node), known.opens as usize));
            }
        }
        self.open.store(0, Ordering::SeqCst);
        open
    }

    /// Nodes that the kernel remembers.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn shard(&self, node: u64) -> &Mutex<HashMap<u64, Node>> {
        &self.shards[node as usize % SHARDS]
    }

    fn directories(&self, node: u64) -> &Mutex<HashMap<u64, Directory>> {
        &self.directories[node as usize % SHARDS]
    }
}

/// What a tree once took is not kept for ever. Half of the room stays, so that this is rare.
fn give_room_back<T>(shard: &mut HashMap<u64, T>) {
    let places = shard.capacity();
    if places > KEPT_PLACES && shard.len() < places / 4 {
        shard.shrink_to(shard.len() * 2);
        if places > TRIMMED_PLACES {
            trim();
        }
    }
}

/// The allocator gives the system back what is free: else each thread's part of it keeps what some table once took there.
fn trim() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            /// malloc_trim(3)
            fn malloc_trim(pad: usize) -> c_int;
        }
        // SAFETY: it may be called at any time from any thread, and touches free memory only.
        let _ = unsafe { malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::Time;

    const ID: InodeId = InodeId::new(7, 8, 42);

    #[test]
    fn a_node_is_known_until_it_is_forgotten_as_often_as_it_was_told() {
        let nodes = Nodes::default();
        nodes.told(ID, NodeKind::File, None);
        nodes.told(ID, NodeKind::File, None);
        nodes.forget(42, 1);
        assert_eq!(nodes.get(42), Some((ID, NodeKind::File)));
        nodes.forget(42, 1);
        assert_eq!((nodes.get(42), nodes.count()), (None, 0));
        nodes.forget(42, 1);
        assert_eq!(nodes.get(ROOT_NODE), Some((ROOT, NodeKind::Directory)));
    }

    #[test]
    fn a_table_that_keeps_all_forgets_what_is_gone() {
        let nodes = Nodes::new(true);
        nodes.told(ID, NodeKind::File, None);
        nodes.gone(42);
        nodes.forget(42, 1);
        assert_eq!(nodes.get(42), Some((ID, NodeKind::File)));
        nodes.gone(42);
        assert_eq!(nodes.get(42), None);
    }

    fn directory(mode: u16) -> Attr {
        let seen = Seen { atime: Time(1), mtime: Time(2), ctime: Time(3), uid: 5, gid: 6, mode };
        Attr { nlink: 2, ..seen.gone(ID).attr }
    }

    #[test]
    fn a_removed_directory_has_the_attributes_that_were_answered_last_until_it_is_forgotten() {
        let nodes = Nodes::default();
        let mode = |nodes: &Nodes| nodes.with_gone(ID, |gone| (gone.attr.mode, gone.attr.nlink));
        nodes.saw(&directory(0o700));
        assert_eq!(mode(&nodes), None, "of a directory that the kernel does not know nothing is kept");
        nodes.told(ID, NodeKind::Directory, None);
        nodes.saw(&directory(0o700));
        nodes.saw(&directory(0o750));
        assert_eq!(mode(&nodes), Some((0o750, 0)));
        nodes.saw(&directory(0o777));
        assert_eq!(mode(&nodes), Some((0o750, 0)), "an answer that is late changes nothing");
        nodes.forget(ID.number(), 1);
        assert_eq!(mode(&nodes), None);
    }

    #[test]
    fn a_table_that_keeps_all_keeps_no_attributes_of_directories() {
        let nodes = Nodes::new(true);
        nodes.told(ID, NodeKind::Directory, None);
        nodes.saw(&directory(0o700));
        nodes.forget(ID.number(), 1);
        assert_eq!(nodes.with_gone(ID, |_| ()), None);
    }

    #[test]
    fn what_has_no_attributes_is_believed_for_a_time() {
        let nodes = Nodes::default();
        nodes.set_plain(42, Some(Duration::from_secs(60)));
        assert!(!nodes.is_plain(42), "of an inode that is not known nothing is");
        nodes.told(ID, NodeKind::File, None);
        assert!(!nodes.is_plain(42));
        nodes.set_plain(42, Some(Duration::from_secs(60)));
        assert!(nodes.is_plain(42));
        nodes.set_plain(42, None);
        assert!(!nodes.is_plain(42));
        nodes.set_plain(42, Some(Duration::ZERO));
        assert!(!nodes.is_plain(42), "a mount without a cache asks");
        nodes.set_plain(42, Some(Duration::MAX));
        assert!(nodes.is_plain(42));
        nodes.is_given_attributes(42);
        nodes.set_plain(42, Some(Duration::MAX));
        assert!(!nodes.is_plain(42), "an answer from before comes later");
    }

    #[test]
    fn room_is_given_back() {
        let nodes = Nodes::default();
        let places = || nodes.shards.iter().map(|shard| shard.lock().capacity()).sum::<usize>();
        let inode = |number| InodeId::new(7, 8, number);
        (2..200_002).for_each(|number| nodes.told(inode(number), NodeKind::File, None));
        assert!(places() >= 200_000);
        (2..199_002).for_each(|number| nodes.forget(number, 1));
        assert_eq!(nodes.count(), 1000);
        assert!(places() <= SHARDS * KEPT_PLACES, "{} places for 1000 nodes", places());
        assert!((199_002..200_002).all(|number| nodes.get(number).is_some()));
    }

    #[test]
    fn opens_are_counted() {
        let nodes = Nodes::default();
        nodes.told(ID, NodeKind::File, None);
        nodes.opened(42);
        nodes.opened(42);
        nodes.opened(42);
        nodes.closed(42);
        assert!(nodes.any_open());
        assert_eq!(nodes.clear(), [ID, ID]);
        assert!(!nodes.any_open());
    }

    #[test]
    fn a_file_is_unchanged_while_its_counter_stands() {
        let nodes = Nodes::default();
        nodes.told(ID, NodeKind::File, None);
        assert!(!nodes.unchanged(42, 5));
        assert!(nodes.unchanged(42, 5));
        assert!(!nodes.unchanged(42, 6));
    }

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<(u64, Node)>() <= 48);
        assert!(size_of::<(u64, Directory)>() <= 64);
    }
}
