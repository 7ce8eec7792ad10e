//! The inodes that the kernel knows: for each node (`st_ino`) its inode id, its lookup count, and how often it is
//! open here.
//!
//! Invariants: a node is in the table from the first reply that contains it until the kernel has forgotten it as
//! often as replies contained it (its lookup count is 0); the root is always known. An entry takes 40 to 48 bytes. A
//! node that is open is not removed, since the kernel holds its inode until RELEASE is answered. A table for file
//! handles, which contain only the node, removes nothing until the inode is removed. For directories the table also
//! has the attributes that were last sent to the kernel, 64 bytes, while the kernel knows the directory: processes
//! that have a removed directory open, or work in it, still see them.

use crate::abi::ROOT_NODE;
use crate::filesystem::has_lone_set_group;
use crate::removed_directory::{LastAttributes, RemovedDirectory};
use hekate_proto::{Attr, InodeId, NodeKind, ROOT};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Parts of the table, each with its own lock.
const SHARDS: usize = 16;
/// A part with a lower capacity, in entries, is not shrunk.
const SHRINK_CAPACITY_MIN: usize = 1024;
/// When a part with a higher capacity (768 KiB) is shrunk, malloc_trim(3) is called, which takes milliseconds.
const TRIM_CAPACITY_MIN: usize = 16_384;

/// Time after which the kernel's attributes of an inode have expired, in ms: what [`Watcher`](hekate_client::Watcher)
/// says a door may pass on, and a second for the kernel to take it.
const PASSED_MS: u32 = 2000;

/// Value of [`Node::no_xattrs_until`] for an inode that got extended attributes from this mount.
const ASK_ALWAYS: u32 = u32::MAX;

/// The inodes that the kernel knows.
#[derive(Debug)]
pub(crate) struct Nodes {
    shards: [Mutex<HashMap<u64, Node>>; SHARDS],
    /// Directories among the nodes. Locked after the part with the same number in `shards`.
    directories: [Mutex<HashMap<u64, Directory>>; SHARDS],
    /// Opens and holds of all nodes.
    open: AtomicUsize,
    /// As [`Node::passed_at`], of the root, which is in no part.
    root_passed_at: AtomicU32,
    /// As [`Node::has_acl`], of the root.
    root_has_acl: AtomicBool,
    /// True if nodes that the kernel has forgotten are kept, for file handles.
    keeps_all: bool,
    /// Origin of the times in [`Node::no_xattrs_until`].
    made: Instant,
}

impl Default for Nodes {
    fn default() -> Self {
        let (shards, directories) = Default::default();
        let (open, root_passed_at, root_has_acl) = Default::default();
        Self { shards, directories, open, root_passed_at, root_has_acl, keeps_all: false, made: Instant::now() }
    }
}

/// A directory that the kernel knows: the attributes that were last sent to the kernel, or its state after its
/// removal.
#[derive(Debug)]
enum Directory {
    Seen(LastAttributes),
    Removed(Box<RemovedDirectory>),
}

#[derive(Debug, Clone, Copy)]
struct Node {
    /// The upper half of the inode id; the lower is the node itself.
    upper: u64,
    /// Lookup count: replies that contained the node, less those that the kernel has forgotten.
    lookups: u64,
    /// The inode's change counter at its last open.
    change: u64,
    opens: u32,
    /// Time until which requests for extended attributes are answered with none, in ms since the table was made, or
    /// [`ASK_ALWAYS`].
    no_xattrs_until: u32,
    /// Time at which the kernel was last given attributes that it may use without a request, in ms since the table was
    /// made. 0: never.
    passed_at: u32,
    kind: NodeKind,
    /// The kernel may keep an ACL of the inode for as long as it knows it.
    has_acl: bool,
    /// True for a file with set-group-id that its group may not execute, as last sent to the kernel.
    set_group: bool,
}

impl Node {
    fn set_no_xattrs(&mut self, until: u32) {
        if self.no_xattrs_until != ASK_ALWAYS {
            self.no_xattrs_until = until;
        }
    }

    fn id(&self, node: u64) -> InodeId {
        InodeId::from_bits((u128::from(self.upper) << 64) | u128::from(node))
    }
}

impl Nodes {
    /// `keeps_all`: keep nodes that the kernel has forgotten.
    pub(crate) fn new(keeps_all: bool) -> Self {
        Self { keeps_all, ..Self::default() }
    }

    /// Counts a reply that contains an inode. `no_xattrs_for`: how long the inode can be taken to have no extended
    /// attributes.
    pub(crate) fn count_lookup(&self, id: InodeId, kind: NodeKind, no_xattrs_for: Option<Duration>) {
        let until = self.until(no_xattrs_for);
        let mut shard = self.shard(id.number()).lock();
        let fresh = Node {
            upper: (id.bits() >> 64) as u64,
            lookups: 0,
            change: 0,
            opens: 0,
            no_xattrs_until: 0,
            passed_at: 0,
            has_acl: false,
            kind,
            set_group: false,
        };
        let known = shard.entry(id.number()).or_insert(fresh);
        known.lookups += 1;
        known.set_no_xattrs(until);
    }

    /// Notes that the kernel is about to be given attributes that it may use without a request. False for a node that it
    /// does not know.
    pub(crate) fn note_passed(&self, node: u64) -> bool {
        let now = (self.made.elapsed().as_millis() as u32).max(1);
        if node == ROOT_NODE {
            self.root_passed_at.store(now, Ordering::SeqCst);
            return true;
        }
        let mut shard = self.shard(node).lock();
        let known = shard.get_mut(&node).filter(|known| known.lookups > 0);
        known.map(|known| known.passed_at = now).is_some()
    }

    /// When the kernel was given such attributes, if it may still have them.
    pub(crate) fn passed_at(&self, node: u64) -> Option<u32> {
        let passed_at = match node {
            ROOT_NODE => self.root_passed_at.load(Ordering::SeqCst),
            _ => self.shard(node).lock().get(&node).filter(|known| known.lookups > 0)?.passed_at,
        };
        self.is_recent(passed_at).then_some(passed_at)
    }

    fn is_recent(&self, passed_at: u32) -> bool {
        let now = self.made.elapsed().as_millis() as u32;
        passed_at != 0 && now.wrapping_sub(passed_at) <= PASSED_MS
    }

    /// Notes that the kernel is about to be given an ACL, or to learn that there is none.
    pub(crate) fn note_acl(&self, node: u64) {
        if node == ROOT_NODE {
            self.root_has_acl.store(true, Ordering::SeqCst);
        } else if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.has_acl = true;
        }
    }

    /// The kernel is about to forget it. Returns whether it may have had one.
    pub(crate) fn take_acl(&self, node: u64) -> bool {
        match node {
            ROOT_NODE => self.root_has_acl.swap(false, Ordering::SeqCst),
            _ => self.shard(node).lock().get_mut(&node).is_some_and(|known| std::mem::take(&mut known.has_acl)),
        }
    }

    /// The kernel has forgotten the attributes that it was given then.
    pub(crate) fn note_forgotten(&self, node: u64, passed_at: u32) {
        if node == ROOT_NODE {
            let _ = self.root_passed_at.compare_exchange(passed_at, 0, Ordering::SeqCst, Ordering::SeqCst);
        } else if let Some(known) = self.shard(node).lock().get_mut(&node)
            && known.passed_at == passed_at
        {
            known.passed_at = 0;
        }
    }

    /// The nodes of which the kernel may have such attributes, or an ACL.
    pub(crate) fn passed(&self) -> Vec<u64> {
        let of_part = |part: &Mutex<HashMap<u64, Node>>| {
            let part = part.lock();
            let passed = part.iter().filter(|(_, known)| self.is_recent(known.passed_at) || known.has_acl);
            passed.map(|(node, _)| *node).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_part).chain([ROOT_NODE]).collect()
    }

    /// Notes how long an inode that the kernel knows can be taken to have no extended attributes.
    pub(crate) fn set_no_xattrs(&self, node: u64, no_xattrs_for: Option<Duration>) {
        let until = self.until(no_xattrs_for);
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.set_no_xattrs(until);
        }
    }

    /// Records that this mount sets an extended attribute. From then on requests are always sent: a reply in flight may
    /// report that the inode has none.
    pub(crate) fn note_xattr_set(&self, node: u64) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.no_xattrs_until = ASK_ALWAYS;
        }
    }

    fn until(&self, no_xattrs_for: Option<Duration>) -> u32 {
        let end = no_xattrs_for.map(|time| self.made.elapsed().saturating_add(time).as_millis());
        end.map_or(0, |end| end.min(u128::from(ASK_ALWAYS - 1)) as u32)
    }

    /// True if the inode can be taken to have no extended attributes.
    pub(crate) fn has_no_xattrs(&self, node: u64) -> bool {
        let now = self.made.elapsed().as_millis();
        let is_it = |known: &Node| known.no_xattrs_until != ASK_ALWAYS && u128::from(known.no_xattrs_until) > now;
        self.shard(node).lock().get(&node).is_some_and(is_it)
    }

    /// The kernel forgets `count` replies that contained the node. True if the node is not in the table any more.
    pub(crate) fn forget(&self, node: u64, count: u64) -> bool {
        let mut shard = self.shard(node).lock();
        if let Some(known) = shard.get_mut(&node) {
            known.lookups = known.lookups.saturating_sub(count);
            if known.lookups == 0 && known.kind == NodeKind::Directory {
                let mut directories = self.directories(node).lock();
                directories.remove(&node);
                shrink(&mut directories);
            }
            if known.lookups == 0 && known.opens == 0 && !self.keeps_all {
                shard.remove(&node);
                shrink(&mut shard);
                return true;
            }
        }
        false
    }

    /// True if a file has set-group-id and its group may not execute it, as last sent to the kernel.
    pub(crate) fn is_set_group(&self, node: u64) -> bool {
        self.shard(node).lock().get(&node).is_some_and(|known| known.set_group)
    }

    /// Notes attributes that are sent to the kernel.
    pub(crate) fn note_attr(&self, attr: &Attr) {
        let node = attr.id.number();
        let mut shard = self.shard(node).lock();
        if attr.kind != NodeKind::Directory {
            if let Some(known) = shard.get_mut(&node) {
                known.set_group = has_lone_set_group(attr);
            }
            return;
        }
        if shard.get(&node).is_some_and(|known| known.lookups > 0) {
            let mut directories = self.directories(node).lock();
            if !matches!(directories.get(&node), Some(Directory::Removed(_))) {
                directories.insert(node, Directory::Seen(LastAttributes::from(attr)));
            }
        }
    }

    /// Notes the state of a directory that this mount removed, if the kernel knows it.
    pub(crate) fn note_removed(&self, removed: RemovedDirectory) {
        let node = removed.attr.id.number();
        if let Some(known) = self.directories(node).lock().get_mut(&node) {
            *known = Directory::Removed(Box::new(removed.after_removal()));
        }
    }

    /// Reads or changes a directory that the servers no longer have and the kernel still knows. `None` if it is not
    /// such a directory. A directory that another mount removed has the attributes that were last sent, and no
    /// extended ones.
    pub(crate) fn with_removed<T>(&self, id: InodeId, act: impl FnOnce(&mut RemovedDirectory) -> T) -> Option<T> {
        let mut directories = self.directories(id.number()).lock();
        let known = directories.get_mut(&id.number())?;
        if let Directory::Seen(seen) = known {
            *known = Directory::Removed(Box::new(seen.removed_elsewhere(id)));
        }
        match known {
            Directory::Removed(removed) => Some(act(removed)),
            Directory::Seen(_) => None,
        }
    }

    /// Removes a node whose inode no longer exists.
    pub(crate) fn remove_gone(&self, node: u64) {
        let mut shard = self.shard(node).lock();
        if shard.get(&node).is_some_and(|known| known.lookups == 0 && known.opens == 0) {
            shard.remove(&node);
            shrink(&mut shard);
        }
    }

    /// The inode id and kind of a node.
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

    /// True if the file has not changed since the last call; `change` is its current counter.
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

    /// Counts an inode that must not be removed although no process has it open.
    pub(crate) fn held(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends what [`Nodes::held`] counted.
    pub(crate) fn unheld(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    /// True if any file is open or held here.
    pub(crate) fn any_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) > 0
    }

    /// Removes everything. Returns each inode that was open, once for each open.
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

    /// Number of nodes in the table.
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

/// Returns memory after a large tree was forgotten. Half of the capacity stays, so that this is rare.
fn shrink<T>(shard: &mut HashMap<u64, T>) {
    let places = shard.capacity();
    if places > SHRINK_CAPACITY_MIN && shard.len() < places / 4 {
        shard.shrink_to(shard.len() * 2);
        if places > TRIM_CAPACITY_MIN {
            trim();
        }
    }
}

/// Makes the allocator return free memory to the system. Otherwise each of its arenas keeps what a table once used
/// there.
fn trim() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            /// malloc_trim(3)
            fn malloc_trim(pad: usize) -> c_int;
        }
        // SAFETY: it may be called at any time by any thread, and touches free memory only.
        let _ = unsafe { malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::Time;

    const ID: InodeId = InodeId::new(7, 8, 42);

    #[test]
    fn a_node_is_known_until_it_is_forgotten_as_often_as_it_was_looked_up() {
        let nodes = Nodes::default();
        nodes.count_lookup(ID, NodeKind::File, None);
        nodes.count_lookup(ID, NodeKind::File, None);
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
        nodes.count_lookup(ID, NodeKind::File, None);
        nodes.remove_gone(42);
        nodes.forget(42, 1);
        assert_eq!(nodes.get(42), Some((ID, NodeKind::File)));
        nodes.remove_gone(42);
        assert_eq!(nodes.get(42), None);
    }

    fn directory(mode: u16) -> Attr {
        let seen = LastAttributes { atime: Time(1), mtime: Time(2), ctime: Time(3), uid: 5, gid: 6, mode };
        Attr { nlink: 2, ..seen.removed_elsewhere(ID).attr }
    }

    #[test]
    fn a_removed_directory_has_the_attributes_that_were_answered_last_until_it_is_forgotten() {
        let nodes = Nodes::default();
        let mode = |nodes: &Nodes| nodes.with_removed(ID, |removed| (removed.attr.mode, removed.attr.nlink));
        nodes.note_attr(&directory(0o700));
        assert_eq!(mode(&nodes), None, "of a directory that the kernel does not know nothing is kept");
        nodes.count_lookup(ID, NodeKind::Directory, None);
        nodes.note_attr(&directory(0o700));
        nodes.note_attr(&directory(0o750));
        assert_eq!(mode(&nodes), Some((0o750, 0)));
        nodes.note_attr(&directory(0o777));
        assert_eq!(mode(&nodes), Some((0o750, 0)), "an answer that is late changes nothing");
        nodes.forget(ID.number(), 1);
        assert_eq!(mode(&nodes), None);
    }

    #[test]
    fn a_table_that_keeps_all_keeps_no_attributes_of_directories() {
        let nodes = Nodes::new(true);
        nodes.count_lookup(ID, NodeKind::Directory, None);
        nodes.note_attr(&directory(0o700));
        nodes.forget(ID.number(), 1);
        assert_eq!(nodes.with_removed(ID, |_| ()), None);
    }

    #[test]
    fn what_has_no_attributes_is_believed_for_a_time() {
        let nodes = Nodes::default();
        nodes.set_no_xattrs(42, Some(Duration::from_secs(60)));
        assert!(!nodes.has_no_xattrs(42), "of an inode that is not known nothing is");
        nodes.count_lookup(ID, NodeKind::File, None);
        assert!(!nodes.has_no_xattrs(42));
        nodes.set_no_xattrs(42, Some(Duration::from_secs(60)));
        assert!(nodes.has_no_xattrs(42));
        nodes.set_no_xattrs(42, None);
        assert!(!nodes.has_no_xattrs(42));
        nodes.set_no_xattrs(42, Some(Duration::ZERO));
        assert!(!nodes.has_no_xattrs(42), "a mount without a cache asks");
        nodes.set_no_xattrs(42, Some(Duration::MAX));
        assert!(nodes.has_no_xattrs(42));
        nodes.note_xattr_set(42);
        nodes.set_no_xattrs(42, Some(Duration::MAX));
        assert!(!nodes.has_no_xattrs(42), "an answer from before comes later");
    }

    #[test]
    fn room_is_given_back() {
        let nodes = Nodes::default();
        let places = || nodes.shards.iter().map(|shard| shard.lock().capacity()).sum::<usize>();
        let inode = |number| InodeId::new(7, 8, number);
        (2..200_002).for_each(|number| nodes.count_lookup(inode(number), NodeKind::File, None));
        assert!(places() >= 200_000);
        (2..199_002).for_each(|number| _ = nodes.forget(number, 1));
        assert_eq!(nodes.count(), 1000);
        assert!(places() <= SHARDS * SHRINK_CAPACITY_MIN, "{} places for 1000 nodes", places());
        assert!((199_002..200_002).all(|number| nodes.get(number).is_some()));
    }

    #[test]
    fn opens_are_counted() {
        let nodes = Nodes::default();
        nodes.count_lookup(ID, NodeKind::File, None);
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
        nodes.count_lookup(ID, NodeKind::File, None);
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
