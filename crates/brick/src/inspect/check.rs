//! Checks the invariants of `docs/format/index.md` and `data.md` over all that a brick holds.

use super::contents::Contents;
use super::entry::Entry;
use super::{BlockState, Problem};
use bytes::Bytes;
use hekate_proto::*;
use std::collections::{BTreeMap, HashMap};

/// Counts of what a brick holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries of each kind. Changes of shards that only the journal has are not counted.
    pub entries: BTreeMap<Kind, u64>,
    /// Shards.
    pub shards: u64,
    /// Blocks in each state, if they were read: right, hole, journal, lost, damaged.
    pub blocks: BTreeMap<&'static str, u64>,
}

/// Callbacks for progress and problems.
pub struct Watch<'a> {
    /// Called for each entry and shard, with a text that says how far the check has come.
    pub progress: &'a mut dyn FnMut(&str),
    /// Called for each problem.
    pub problem: &'a mut dyn FnMut(Problem),
}

/// Checks all entries, and with `blocks` every block of every shard and every page of the index.
pub fn check(contents: &Contents, blocks: bool, watch: &mut Watch) -> Result<Counts> {
    let mut counts = Counts::default();
    contents.problems().iter().for_each(|problem| (watch.problem)(problem.clone()));
    let mut survey = Survey { contents, watch, counts: &mut counts, group: None, data: HashMap::new(), seen: 0 };
    let (from, to) = Contents::all_keys();
    let gone_through = contents.scan(&from, &to, &mut |key, value| {
        survey.entry(key, value);
        true
    });
    survey.end_group();
    if let Err(error) = gone_through {
        (watch.problem)(Problem::index(error.to_string()));
    }
    let shards = contents.shards();
    counts.shards = shards.len() as u64;
    if blocks {
        contents.check_index_pages().into_iter().for_each(&mut *watch.problem);
        for (number, (ring, shard)) in shards.iter().enumerate() {
            (watch.progress)(&format!("shard {} of {}", number + 1, shards.len()));
            match contents.shard_blocks(*ring, *shard) {
                Ok(None) => {}
                Ok(Some(found)) => {
                    found.states.iter().for_each(|state| *counts.blocks.entry(state.text()).or_default() += 1);
                    found.problems.into_iter().for_each(&mut *watch.problem);
                }
                Err(error) => (watch.problem)(Problem::index(format!("{shard:?}: {error}"))),
            }
        }
    }
    let (_, unreadable) = contents.data_files(&shards);
    unreadable.into_iter().for_each(&mut *watch.problem);
    Ok(counts)
}

impl BlockState {
    /// The word for the state.
    pub fn text(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Hole => "hole",
            Self::Journal => "journal",
            Self::Lost => "lost",
            Self::Damaged => "damaged",
        }
    }
}

struct Survey<'a, 'b> {
    contents: &'a Contents,
    watch: &'a mut Watch<'b>,
    counts: &'a mut Counts,
    group: Option<Group>,
    /// The inode whose layout has a data id; `None`: the data id is garbage.
    data: HashMap<(VolumeId, DataId), Option<InodeId>>,
    seen: u64,
}

/// The entries of one inode, which follow each other in the index.
struct Group {
    place: KeyPrefix,
    id: u128,
    inode: Option<InodeRecord>,
    content_bytes: Option<usize>,
    xattrs: u64,
    stub: Option<StubRecord>,
    names: u64,
    directories: u64,
    /// Number of names that belong in another partition.
    strays: u64,
    /// An entry cannot be read: another entry that seems to be missing may be that one.
    damaged: bool,
}

impl Group {
    fn new(place: KeyPrefix, id: u128) -> Self {
        let (inode, content_bytes, stub) = (None, None, None);
        Self { place, id, inode, content_bytes, xattrs: 0, stub, names: 0, directories: 0, strays: 0, damaged: false }
    }
}

impl Survey<'_, '_> {
    fn problem(&mut self, what: String) {
        (self.watch.problem)(Problem::index(what));
    }

    fn entry(&mut self, key: &Key, value: Result<Bytes>) {
        self.seen += 1;
        (self.watch.progress)(&format!("{} entries of the index", self.seen));
        let kind = key.kind();
        if let Some(kind) = kind {
            *self.counts.entries.entry(kind).or_default() += 1;
        }
        if let (Some(place), Some(id)) = (key.prefix(), key.id())
            && self.group.as_ref().is_none_or(|group| (group.place, group.id) != (place, id))
        {
            self.end_group();
            self.group = Some(Group::new(place, id));
        }
        let decoded = value.map_err(|error| error.to_string()).and_then(|value| {
            Entry::decode(key, value).map_err(|why| format!("the index entry {key:?} is malformed: {why}"))
        });
        match decoded {
            Ok((place, entry)) => self.take(place, entry),
            Err(what) => {
                if let Some(group) = &mut self.group {
                    group.damaged = true;
                }
                self.problem(what);
            }
        }
    }

    fn take(&mut self, place: KeyPrefix, entry: Entry) {
        let Some(group) = &mut self.group else { return };
        match entry {
            Entry::Inode { inode, record } => {
                for piece in &record.layout.pieces {
                    if let Some(other) = self.data.insert((place.volume, piece.data), Some(inode)) {
                        let what = format!("{:?} is in the layouts of {inode:?} and of {other:?}", piece.data);
                        (self.watch.problem)(Problem::index(what));
                    }
                }
                group.inode = Some(record);
            }
            Entry::Content { bytes, .. } => group.content_bytes = Some(bytes.len()),
            Entry::Xattr { .. } => group.xattrs += 1,
            Entry::Stub { record, .. } => group.stub = Some(record),
            Entry::Name { directory, name, record } => {
                let spread = group.stub.as_ref().map_or(1, |stub| stub.spread);
                group.strays += u64::from(name_position(directory, &name, spread) != place.position);
                group.names += 1;
                group.directories += u64::from(record.kind == NodeKind::Directory);
            }
            Entry::Orphan { inode } => self.orphan(place, inode),
            Entry::Garbage { data, .. } => {
                if let Some(owner) = self.data.insert((place.volume, data), None) {
                    let owner = owner.map_or("garbage elsewhere".into(), |inode| format!("in the layout of {inode:?}"));
                    self.problem(format!("{data:?} is garbage and {owner}"));
                }
            }
            Entry::Checksums { shard, group, .. } => self.checksums(place, shard, group),
            Entry::Shard { .. }
            | Entry::Partition { .. }
            | Entry::Intent { .. }
            | Entry::LegDone { .. }
            | Entry::Session { .. }
            | Entry::Hold { .. }
            | Entry::Writing { .. }
            | Entry::Loose
            | Entry::PassedOn { .. }
            | Entry::Unsettled { .. }
            | Entry::Heal { .. } => {}
        }
    }

    fn orphan(&mut self, place: KeyPrefix, inode: InodeId) {
        let value = self.contents.get(&Key::inode(place.ring, place.volume, inode, Kind::Inode));
        match value.map(|value| value.map(InodeRecord::from_bytes)) {
            Ok(Some(Ok(record))) if record.nlink > 0 => {
                self.problem(format!("{inode:?} is an orphan and has {} names", record.nlink));
            }
            Ok(None) => self.problem(format!("{inode:?} is an orphan and does not exist")),
            // An unreadable inode has been reported already.
            Ok(Some(_)) | Err(_) => {}
        }
    }

    /// Checks that checksums belong to a shard. Those of a shard that the journal drops are still in the index.
    fn checksums(&mut self, place: KeyPrefix, shard: ShardId, group: u16) {
        let dropped = self.contents.journal.shards.contains_key(&(place.ring, shard));
        let damaged = self.group.as_ref().is_some_and(|group| group.damaged);
        if !dropped && !damaged && matches!(self.contents.shard_record(place.ring, shard), Ok(None)) {
            self.problem(format!("group {group} of checksums of {shard:?}, which does not exist"));
        }
    }

    fn end_group(&mut self) {
        let Some(group) = self.group.take() else { return };
        if group.damaged {
            return;
        }
        for what in faults_of(&group) {
            let id = InodeId::from_bits(group.id);
            self.problem(format!("{id:?} of volume {}: {what}", group.place.volume));
        }
    }
}

/// Whether this is a position of one of the partitions that share the directory's names.
fn is_own_position(group: &Group, spread: u32) -> bool {
    let turned = group.place.position.0.wrapping_sub(InodeId::from_bits(group.id).position().0);
    spread.is_power_of_two() && u64::from(turned) % ((1 << 32) / u64::from(spread)) == 0
}

fn faults_of(group: &Group) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |is: bool, what: String| {
        if is {
            faults.push(what);
        }
    };
    if let Some(inode) = &group.inode {
        let content = group.content_bytes.unwrap_or(0);
        fault(content > 0 && !inode.layout.is_inline(), "content beside an inode whose bytes are in shards".into());
        fault(
            inode.kind == NodeKind::File && content as u64 > inode.size,
            format!("content of {content} bytes in a file of {}", inode.size),
        );
        fault(
            inode.kind == NodeKind::Symlink && !Entry::fits_symlink(content),
            format!("a symlink to {content} bytes"),
        );
        fault(
            group.xattrs > 0 && !inode.has_xattrs,
            "extended attributes of an inode that is marked as having none".into(),
        );
        let directory = inode.kind == NodeKind::Directory;
        fault(directory && group.stub.is_none(), "a directory without a stub".into());
        fault(!directory && group.stub.is_some(), "a stub of an inode that is no directory".into());
    } else {
        fault(group.content_bytes.is_some(), "content without an inode".into());
        fault(group.xattrs > 0, "extended attributes without an inode".into());
        let at_home = InodeId::from_bits(group.id).position() == group.place.position;
        fault(group.stub.is_some() && at_home, "a stub without an inode".into());
    }
    match &group.stub {
        Some(stub) => {
            let Group { names, directories, .. } = group;
            let inode_spread = group.inode.as_ref().map_or(stub.spread, |inode| inode.spread);
            fault(
                stub.spread != inode_spread,
                format!("the stub has a spread of {}, the inode one of {inode_spread}", stub.spread),
            );
            fault(
                !is_own_position(group, stub.spread),
                format!("a stub at a position that a spread of {} does not use", stub.spread),
            );
            fault(group.strays > 0, format!("{} names at positions where the spread does not put them", group.strays));
            fault(stub.entries != *names, format!("the stub counts {} names, there are {names}", stub.entries));
            fault(
                u64::from(stub.directories) != *directories,
                format!("the stub counts {} directories, there are {directories}", stub.directories),
            );
        }
        None => fault(group.names > 0, format!("{} names without a stub", group.names)),
    }
    faults
}
