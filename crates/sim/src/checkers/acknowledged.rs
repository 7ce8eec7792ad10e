//! Acknowledged calls: after all faults have ended and the cluster has recovered, the effect of every acknowledged call
//! is present (contract, sections 1 and 6).
//!
//! The final state is appended to the history as reads, and the linearizability checkers judge the whole. A missing
//! acknowledged change, a refused change that is present, or half a change leaves the final reads without a place.
//! After a power cut ([`History::power_cut`]) a change that was acknowledged but not secured ([`History::secured_at`])
//! may be lost, as part of a tail of its file or directory.

use crate::checkers::{Complaint, contents, names, xattrs};
use crate::history::{CallNumber, History};
use bytes::Bytes;
use hekate_proto::*;
use std::collections::BTreeMap;

/// The state of the volume after the run.
#[derive(Debug, Clone, Default)]
pub struct FinalState {
    /// All directories with their names, the root among them.
    pub directories: BTreeMap<InodeId, BTreeMap<Name, (InodeId, NodeKind)>>,
    /// The bytes of all files that have a name.
    pub files: BTreeMap<InodeId, Bytes>,
    /// The extended attributes of all inodes that have a name.
    pub xattrs: BTreeMap<InodeId, BTreeMap<Bytes, Bytes>>,
}

/// The client that reads the final state.
const READER: u32 = u32::MAX;

/// Complaints about the history together with its final state.
pub fn check(history: &History, last: &FinalState) -> Vec<Complaint> {
    let mut complaints = last.holes();
    let whole = with_final_reads(history, last);
    complaints.extend(names::check(&whole));
    complaints.extend(contents::check(&whole));
    complaints.extend(xattrs::check(&whole));
    complaints
}

/// The history, followed by a list of each directory, a read of each file, and its attributes.
pub fn with_final_reads(history: &History, last: &FinalState) -> History {
    let mut whole = history.clone();
    for (dir, names) in &last.directories {
        let entry = |(name, (inode, kind)): (&Name, &(InodeId, NodeKind))| {
            let (name, inode, kind) = (name.clone(), *inode, *kind);
            Entry { name, inode, kind, attr: None }
        };
        let entries = names.iter().map(entry).collect();
        let op = NameOp::List { dir: *dir, after: None, limit: u32::MAX, attributes: false, touch: false };
        read(&mut whole, Op::Name { op }, Reply::List { entries, end: true });
    }
    for (inode, bytes) in &last.files {
        // One byte more than the file has, so that the read also observes the end.
        let length = u32::try_from(bytes.len() + 1).unwrap_or(u32::MAX);
        let op = DataOp::Read { inode: *inode, offset: 0, length, touch: false };
        let attr = plain_file(*inode, bytes.len() as u64);
        read(&mut whole, Op::Data { op }, Reply::FileData { bytes: bytes.clone(), attr });
    }
    for (inode, xattrs) in &last.xattrs {
        let op = InodeOp::ListXattr { inode: *inode };
        read(&mut whole, Op::Inode { op }, Reply::Names { names: xattrs.keys().cloned().collect() });
        for (name, bytes) in xattrs {
            let op = InodeOp::GetXattr { inode: *inode, name: name.clone() };
            read(&mut whole, Op::Inode { op }, Reply::Bytes { bytes: bytes.clone() });
        }
    }
    whole
}

fn read(history: &mut History, op: Op, reply: Reply) -> CallNumber {
    let at = history.end();
    let call = history.invoke(READER, SYSTEM_SESSION, op, false, at);
    history.answer(call, at, Ok(reply));
    call
}

/// The attributes in the answer of a final read. The checkers used here look at the bytes only.
fn plain_file(id: InodeId, size: u64) -> Attr {
    let time = Time(0);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let (mode, uid, gid, nlink, device, change, spread) = (0, 0, 0, 1, 0, 0, 1);
    let (kind, layout, has_xattrs) = (NodeKind::File, Layout::inline(0), false);
    Attr {
        id,
        kind,
        mode,
        uid,
        gid,
        nlink,
        size,
        device,
        atime,
        mtime,
        ctime,
        btime,
        change,
        layout,
        spread,
        has_xattrs,
        etag: Bytes::new(),
        implied: false,
    }
}

impl FinalState {
    /// Names that lead to an inode that was not read: the final state proves nothing about it.
    fn holes(&self) -> Vec<Complaint> {
        let is_read = |inode: &InodeId, kind: NodeKind| match kind {
            NodeKind::Directory => self.directories.contains_key(inode),
            NodeKind::File => self.files.contains_key(inode),
            _ => true,
        };
        let names = self.directories.iter().flat_map(|(dir, names)| names.iter().map(move |name| (dir, name)));
        let unread = names.filter(|(_, (_, (inode, kind)))| !is_read(inode, *kind));
        let complaint = |(dir, (name, (inode, kind))): (&InodeId, (&Name, &(InodeId, NodeKind)))| {
            let what = format!("{name:?} in {dir:?} leads to the {kind:?} {inode:?}, which was not read");
            Complaint::new("final state", what)
        };
        unread.map(complaint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::scenario::*;

    /// `f` with "abc" and an attribute, secured; then "d" appended, which is not secured.
    fn run(power_cut: bool) -> History {
        let mut scenario = Scenario::default();
        let (mode, uid, gid, exclusive, seed) = (0o644, 0, 0, true, 1);
        let create = NameOp::Create {
            dir: ROOT,
            name: name("f"),
            node: NewNode::File,
            mode,
            uid,
            gid,
            umask: 0,
            exclusive,
            seed,
        };
        let made = Reply::Node { attr: attr(FILE, NodeKind::File), created: true };
        scenario.did(0, 1, Op::Name { op: create }, Ok(made));
        scenario.wrote(2, 3, 0, b"abc");
        let (name, value) = (Bytes::from_static(b"user.a"), Bytes::from_static(b"1"));
        let set = InodeOp::SetXattr { inode: FILE, name, value, create: false, replace: false, drop_set_group: false };
        scenario.did(4, 5, Op::Inode { op: set }, Ok(Reply::Done));
        scenario.synced(6, 7, FILE);
        scenario.synced(8, 9, ROOT);
        scenario.wrote(10, 11, 3, b"d");
        if power_cut {
            scenario.history.power_cut(12);
        }
        scenario.history
    }

    fn state(bytes: &'static [u8]) -> FinalState {
        let names = BTreeMap::from([(name("f"), (FILE, NodeKind::File))]);
        let xattrs = BTreeMap::from([(Bytes::from_static(b"user.a"), Bytes::from_static(b"1"))]);
        FinalState {
            directories: BTreeMap::from([(ROOT, names)]),
            files: BTreeMap::from([(FILE, Bytes::from_static(bytes))]),
            xattrs: BTreeMap::from([(FILE, xattrs)]),
        }
    }

    #[test]
    fn without_a_power_cut_everything_acknowledged_is_there() {
        assert_eq!(check(&run(false), &state(b"abcd")), []);
        let lost = check(&run(false), &state(b"abc"));
        assert!(lost[0].to_string().contains("the file has [4] bytes then"), "{}", lost[0]);
    }

    #[test]
    fn a_power_cut_takes_only_what_was_not_secured() {
        assert_eq!(check(&run(true), &state(b"abcd")), []);
        assert_eq!(check(&run(true), &state(b"abc")), []);
        assert!(!check(&run(true), &state(b"ab")).is_empty());
        let nothing = FinalState { directories: BTreeMap::from([(ROOT, BTreeMap::new())]), ..FinalState::default() };
        assert!(!check(&run(true), &nothing).is_empty(), "the name was secured");
        let bare = FinalState { xattrs: BTreeMap::from([(FILE, BTreeMap::new())]), ..state(b"abc") };
        assert!(!check(&run(true), &bare).is_empty(), "the attribute was secured");
    }

    #[test]
    fn a_change_that_no_call_asked_for_is_refused() {
        let mut more = state(b"abcd");
        let other = InodeId::new(1, 1, 9);
        more.directories.entry(ROOT).or_default().insert(name("g"), (other, NodeKind::File));
        assert!(check(&run(false), &more)[0].to_string().contains("which was not read"));
        more.files.insert(other, Bytes::new());
        assert!(!check(&run(false), &more).is_empty());
    }
}
