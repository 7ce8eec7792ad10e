//! What a session remembers by its pledges. Pure: the time comes in.
//!
//! Invariants: what is remembered was pledged by a leader whose term is the partition's latest one that a `Renew` has
//! named, and is used only until the lease of that term is over. Nothing is remembered of what a recall or an op of this
//! session has touched since the request was sent that the reply answers.

mod granted;
mod leases;
mod listed;
mod missing;
mod relied;

use super::NameAt;
use super::contents::{Contents, has_same_content};
use super::dropped::{Changing, Dropped};
use super::generations::Generations;
use super::grants::{Grants, Untold};
use super::lists::Lists;
use super::made::MadeDirectories;
use super::mappings::Mappings;
use super::misses::{Misses, owned};
use super::shards::{NOT_PLEDGED, ShardRead, Shards};
use super::touched::{Touched, is_access_near};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_threads::HashMap;
use leases::Lease;
pub(super) use leases::LeaseOf;
use relied::Relied;
use std::collections::VecDeque;
use std::time::Duration;

/// Recalls and own changes that are compared with replies still on their way. Replies from before the oldest are not
/// taken.
const DROPPED_MAX: usize = 4096;
/// Time for which nothing is remembered of what an op without a known outcome may change: a server may execute it when
/// it can.
const UNKNOWN_OUTCOME: Duration = Duration::from_secs(600);
/// Things that ops without a known outcome may change. With more nothing is remembered.
const UNKNOWN_MAX: usize = 1024;

/// A bit in the numbers of contents that lie beside their inodes.
const BESIDE_INODE: u64 = 1 << 63;

/// What a name leads to.
pub(crate) type Target = Option<(InodeId, NodeKind)>;

#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// Counts what was dropped.
    moment: u64,
    leases: HashMap<PartitionNumber, Lease>,
    names: Generations<(InodeId, Name), Known<Target>>,
    attributes: Generations<InodeId, Known<Attr>>,
    contents: Contents,
    shards: Shards,
    pub grants: Grants,
    pub mappings: Mappings,
    pub made: MadeDirectories,
    lists: Lists,
    misses: Misses,
    /// What was dropped last, with the moment.
    dropped: VecDeque<(u64, Dropped)>,
    /// Replies to requests from before this moment are not taken.
    too_old: u64,
    changing: Changing,
    /// What ops under way rely on.
    relied: Vec<Relied>,
    /// Number of own ops so far.
    changes: u64,
    /// Ops whose outcome is unknown, until when.
    unknown: VecDeque<(Duration, Vec<Dropped>)>,
    hits: u64,
}

#[derive(Debug, Clone)]
struct Known<T> {
    partition: PartitionNumber,
    number: u64,
    value: T,
}

impl<T> Known<T> {
    /// True if it was pledged there, under this number or an earlier one.
    fn is_of(&self, partition: PartitionNumber, number: u64) -> bool {
        self.partition == partition && self.number <= number
    }
}

/// An own op under way.
#[derive(Debug)]
pub(crate) struct Change {
    number: u64,
    /// The moment before it was sent.
    asked: u64,
    dropped: Vec<Dropped>,
}

/// What a door is to forget.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DoorForgets {
    These(Vec<InodeId>),
    All,
}

/// What a door is to forget after a recall.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DoorRecalls {
    pub attributes: DoorForgets,
    pub names: Vec<NameAt>,
    /// Files.
    pub contents: Vec<InodeId>,
    /// What was written under grants that are recalled.
    pub written: Vec<Untold>,
}

impl Cache {
    pub fn counts(&self) -> (usize, usize, u64) {
        (self.names.len(), self.attributes.len(), self.hits)
    }

    /// The remembered attributes, also if the lease is over.
    pub fn attributes(&self, inode: InodeId) -> Option<Attr> {
        Some(self.attributes.get(&inode)?.value.clone())
    }

    /// The answer to an op, if it is pledged.
    pub fn answer(&mut self, op: &Op, now: Duration) -> Option<Result<Reply>> {
        let reply = match op {
            Op::Name { op: NameOp::Lookup { dir, name } } => {
                let known = self.names.get(&(*dir, name.clone())).filter(|known| self.is_valid(known.partition, now));
                match known.map(|known| known.value) {
                    None if !self.is_missing(*dir, name, now) => return None,
                    None | Some(None) => Err(Error::NotFound),
                    Some(Some((inode, _))) => self.node(inode, now)?,
                }
            }
            Op::Name { op: op @ NameOp::List { .. } } => self.list(op, now)?,
            Op::Inode { op: InodeOp::GetAttr { inode } } => self.node(*inode, now)?,
            Op::Inode { op: InodeOp::GetXattr { inode, .. } } if self.has_no_xattrs(*inode, now) => {
                Err(Error::NoAttribute)
            }
            Op::Inode { op: InodeOp::ListXattr { inode } } if self.has_no_xattrs(*inode, now) => {
                Ok(Reply::Names { names: Vec::new() })
            }
            Op::Data { op: DataOp::Read { inode, offset, length, touch } } => {
                self.content(*inode, (*offset, *length), *touch, now)?
            }
            _ => return None,
        };
        self.hits += 1;
        Some(reply)
    }

    fn node(&self, inode: InodeId, now: Duration) -> Option<Result<Reply>> {
        let attr = self.valid_attributes(inode, now)?;
        Some(Ok(Reply::Node { attr: attr.clone(), created: false }))
    }

    /// The answer to a read that does not move the time of access.
    fn content(
        &self,
        inode: InodeId,
        (offset, length): (u64, u32),
        touch: bool,
        now: Duration,
    ) -> Option<Result<Reply>> {
        let attr = self.valid_attributes(inode, now).filter(|attr| !touch || !is_access_near(attr))?;
        let attr_and = |bytes| Some(Ok(Reply::FileData { bytes, attr: attr.clone() }));
        if !attr.layout.is_inline() {
            let length = attr.size.saturating_sub(offset).min(u64::from(length)) as usize;
            let is_valid = |partition| self.is_valid(partition, now);
            let bytes = self.shards.read((inode, &attr.layout), offset, length, is_valid)?;
            return attr_and(bytes.into());
        }
        let content = self.contents.get(attr)?;
        let begin = offset.min(content.len() as u64) as usize;
        let end = begin.saturating_add(length as usize).min(content.len());
        attr_and(content.slice(begin..end))
    }

    /// Stands for the content of a file with these attributes, and changes with it. `None` if not all that it depends on is
    /// pledged.
    pub fn content_number(&self, attr: &Attr, now: Duration) -> Option<u64> {
        let known = self.valid_attributes(attr.id, now).filter(|known| has_same_content(known, attr))?;
        match known.layout.is_inline() {
            true => Some(BESIDE_INODE | known.change),
            false => self.shards.number(attr.id, &known.layout, |partition| self.is_valid(partition, now)),
        }
    }

    /// Remembers the content of a small file that was read.
    pub fn remember_content(&mut self, offset: u64, bytes: &bytes::Bytes, attr: &Attr) {
        self.contents.remember(offset, bytes, attr);
    }

    fn valid_attributes(&self, inode: InodeId, now: Duration) -> Option<&Attr> {
        let known = self.attributes.get(&inode).filter(|known| self.is_valid(known.partition, now))?;
        (!self.is_unsure(&known.value, now)).then_some(&known.value)
    }

    /// True if the attributes of this inode are pledged.
    pub fn has_attributes(&self, inode: InodeId, now: Duration) -> bool {
        self.valid_attributes(inode, now).is_some()
    }

    /// True if the attributes are pledged and say that the inode has no extended ones.
    fn has_no_xattrs(&self, inode: InodeId, now: Duration) -> bool {
        self.valid_attributes(inode, now).is_some_and(|attr| !attr.has_xattrs)
    }

    /// How long these attributes are pledged.
    pub fn validity(&self, attr: &Attr, now: Duration) -> Duration {
        if self.valid_attributes(attr.id, now) != Some(attr) {
            return Duration::ZERO;
        }
        let lease = self.attributes.get(&attr.id).and_then(|known| self.leases.get(&known.partition));
        lease.map_or(Duration::ZERO, |lease| lease.until.saturating_sub(now))
    }

    /// How long it is pledged where this name leads to.
    pub fn name_validity(&self, name: &NameAt, target: Option<InodeId>, now: Duration) -> Duration {
        let known = self.names.get(name).filter(|known| known.value.map(|(inode, _)| inode) == target);
        let lease = known.and_then(|known| self.leases.get(&known.partition));
        lease.map_or(Duration::ZERO, |lease| lease.until.saturating_sub(now))
    }

    /// The moment of a request that asks for pledges. `None` if an op of this session is changing what it is about.
    pub fn ask(&self, op: &Op) -> Option<u64> {
        let about = match op {
            Op::Name { op: NameOp::Lookup { dir, name } } => Pledged::Name { dir: *dir, name: name.clone() },
            Op::Inode { op: InodeOp::Map { .. } } => return Some(self.moment),
            Op::Inode { op } => Pledged::Attributes { inode: op.inode() },
            _ => return Some(self.moment),
        };
        (!self.changing.has(&about, None)).then_some(self.moment)
    }

    /// Remembers what a reply pledges. `asked`: the moment at which its request was sent.
    pub fn take(&mut self, asked: u64, op: &Op, found: &Found, pledges: &[GivenPledges], now: Duration) {
        for given in pledges {
            if !self.is_current(asked, given, now) {
                continue;
            }
            let (partition, number) = (given.partition, given.number);
            match (&given.given_for, op, found) {
                (GivenFor::Name, Op::Name { op: NameOp::Lookup { dir, name } }, found) => {
                    let value = match found {
                        Found::Node { attr } => Some((attr.id, attr.kind)),
                        Found::Elsewhere { inode, kind } => Some((*inode, *kind)),
                        Found::Missing => None,
                        Found::List { .. } | Found::Data { .. } | Found::Done => continue,
                    };
                    self.remember_name(asked, (*dir, name.clone()), Known { partition, number, value });
                }
                (GivenFor::Attributes, _, Found::Node { attr }) => {
                    self.remember_attributes(asked, Known { partition, number, value: (**attr).clone() });
                }
                (
                    GivenFor::Entries { except },
                    Op::Name { op: NameOp::List { dir, .. } },
                    Found::List { entries, .. },
                ) => {
                    self.take_entries(asked, *dir, entries, (partition, number, except));
                }
                (GivenFor::Listed { change }, Op::Name { op }, Found::List { entries, end }) => {
                    self.take_list(op, (entries, *end), partition, *change);
                }
                _ => {}
            }
        }
    }

    /// The moment of a read of a shard that asks for a pledge, as `ask`.
    pub fn ask_shard(&self, inode: InodeId, about: &Pledged) -> Option<u64> {
        (!self.changing.0.iter().any(|dropped| dropped.covers_shard(inode, about))).then_some(self.moment)
    }

    /// Remembers the pledge in the reply to a read of a shard. Returns what `content_number` stands for, or
    /// [`NOT_PLEDGED`].
    pub fn take_shard(&mut self, asked: u64, read: &ShardRead, given: &GivenPledges, now: Duration) -> u64 {
        let about = Pledged::Shard { data: read.shard.0, index: read.shard.1 };
        let covers = |dropped: &Dropped| dropped.covers_shard(read.inode, &about);
        if given.given_for != GivenFor::Shard || !self.is_current(asked, given, now) || !self.may_take(asked, covers) {
            return NOT_PLEDGED;
        }
        self.shards.remember(read, given.partition, given.number)
    }

    /// Files whose contents were forgotten for want of room since the last call: doors are to forget them, too.
    pub fn take_evicted(&mut self) -> Vec<InodeId> {
        self.shards.take_evicted()
    }

    /// A door could not forget these yet.
    pub fn evict_again(&mut self, files: Vec<InodeId>) {
        self.shards.evict_again(files);
    }

    fn take_entries(
        &mut self,
        asked: u64,
        dir: InodeId,
        entries: &[Entry],
        (partition, first, except): (PartitionNumber, u64, &[u32]),
    ) {
        let mut except = except.iter().copied().peekable();
        for (index, entry) in entries.iter().enumerate() {
            let mut is_given = |place: u64| {
                let place = 2 * index as u64 + place;
                except.next_if(|left_out| u64::from(*left_out) == place).is_none().then_some(first + place)
            };
            let (name, attributes) = (is_given(0), is_given(1));
            if let Some(number) = name {
                let value = Some((entry.inode, entry.kind));
                self.remember_name(asked, (dir, entry.name.clone()), Known { partition, number, value });
            }
            if let (Some(number), Some(attr)) = (attributes, &entry.attr) {
                self.remember_attributes(asked, Known { partition, number, value: attr.clone() });
            }
        }
    }

    fn remember_name(&mut self, asked: u64, (dir, name): (InodeId, Name), known: Known<Target>) {
        let about = Pledged::Name { dir, name: name.clone() };
        if self.may_remember(asked, &about, None) {
            self.names.insert((dir, owned(&name)), known);
        }
    }

    fn remember_attributes(&mut self, asked: u64, known: Known<Attr>) {
        let about = Pledged::Attributes { inode: known.value.id };
        // What was written while the request was on its way does not show in the reply.
        let is_told = !self.grants.has_untold(known.value.id) || is_planted(Bug::GrantedWriteNotTold);
        if is_told && self.may_remember(asked, &about, Some(known.value.kind)) {
            self.attributes.insert(known.value.id, known);
        }
    }

    fn may_remember(&self, asked: u64, about: &Pledged, kind: Option<NodeKind>) -> bool {
        self.may_take(asked, |dropped| dropped.covers(about, kind))
    }

    /// True if nothing has dropped it since, and no own op is changing it.
    fn may_take(&self, asked: u64, covers: impl Fn(&Dropped) -> bool) -> bool {
        let since = self.dropped.iter().rev().take_while(|(moment, _)| *moment > asked);
        let is_dropped = since.into_iter().any(|(_, dropped)| covers(dropped)) && !is_planted(Bug::RecalledPledgeTaken);
        let is_changing = self.changing.0.iter().any(&covers) && !is_planted(Bug::PledgeTakenDuringOwnChange);
        let is_unknown = self.unknown.iter().any(|(_, all)| all.iter().any(&covers));
        !is_dropped && !is_changing && !is_unknown
    }

    /// Drops recalled pledges. Returns what a door is to forget: attributes, and names.
    pub fn drop_recalled(&mut self, partition: PartitionNumber, pledges: &[Pledge]) -> DoorRecalls {
        let (mut inodes, mut names, mut loses, mut contents) = (Vec::new(), Vec::new(), false, Vec::new());
        let mut written = Vec::new();
        for Pledge { about, number } in pledges {
            match about {
                Pledged::Name { dir, name } => {
                    let key = (*dir, name.clone());
                    // One that was given since is about the same name.
                    if self.names.get(&key).is_none_or(|known| known.is_of(partition, *number)) {
                        self.names.remove(&key);
                        names.push(key);
                    }
                }
                Pledged::Attributes { inode } => {
                    // The bytes beside an inode change with its attributes.
                    let known = self.attributes.get(inode);
                    contents.extend(known.is_none_or(|known| known.value.layout.is_inline()).then_some(*inode));
                    // One that was given since is about the same attributes.
                    if self.attributes.get(inode).is_none_or(|known| known.is_of(partition, *number)) {
                        self.attributes.remove(inode);
                        inodes.push(*inode);
                    }
                }
                Pledged::Shard { data, index } => {
                    contents.extend(self.shards.recalled((*data, *index), partition, *number));
                }
                Pledged::Times { inode } => written.extend(self.grants.recalled(*inode, partition, *number)),
                Pledged::Mapping { .. } => {}
            }
            let dropped = Dropped::About(about.clone());
            loses |= self.lose(std::slice::from_ref(&dropped));
            self.note_dropped(dropped);
        }
        let attributes = if loses { DoorForgets::All } else { DoorForgets::These(inodes) };
        DoorRecalls { attributes, names, contents, written }
    }

    fn note_dropped(&mut self, dropped: Dropped) {
        self.moment += 1;
        self.dropped.push_back((self.moment, dropped));
        if self.dropped.len() > DROPPED_MAX
            && let Some((moment, _)) = self.dropped.pop_front()
        {
            self.too_old = moment;
        }
    }

    /// An op of this session is about to be sent.
    pub fn begin_change(&mut self, touched: &Touched, now: Duration) -> (Change, DoorForgets) {
        self.changes += 1;
        let number = self.changes;
        let any = if touched.leads_to_directories { Dropped::AnyInode } else { Dropped::AnyFile };
        let mut inodes = touched.inodes.clone();
        let mut dropped: Vec<Dropped> = touched.any_file.then_some(Dropped::AnyFile).into_iter().collect();
        let mut relied = Vec::new();
        for name in &touched.leading {
            match self.rely((number, &any), name, now) {
                Some((inode, known)) => {
                    inodes.extend(inode);
                    relied.push(known);
                }
                None => dropped.push(any.clone()),
            }
        }
        let is_any = !dropped.is_empty();
        inodes.sort_unstable();
        inodes.dedup();
        let named = |(dir, name): &NameAt| Pledged::Name { dir: *dir, name: name.clone() };
        dropped.extend(touched.names.iter().map(|name| Dropped::About(named(name))));
        dropped.extend(inodes.iter().map(|inode| Dropped::About(Pledged::Attributes { inode: *inode })));
        if !is_planted(Bug::OwnWriteKeepsShards) {
            dropped.extend(touched.contents.iter().map(|inode| Dropped::Shards(*inode)));
            dropped.extend(touched.any_content.then_some(Dropped::AnyShards));
        }
        let tells_all = self.lose(&dropped) || is_any;
        self.relied.extend(relied);
        if !is_planted(Bug::OwnChangeKeepsPledges) {
            self.forget(&dropped);
        }
        self.changing.0.extend(dropped.iter().cloned());
        (
            Change { number, asked: self.moment, dropped },
            if tells_all { DoorForgets::All } else { DoorForgets::These(inodes) },
        )
    }

    /// The op has ended. `is_known`: it was executed, or will never be. `reads`: what was read behind it.
    pub fn end_change(&mut self, change: Change, is_known: bool, reads: &[(Op, Result<Reply>)], now: Duration) {
        let Change { number, asked, mut dropped } = change;
        dropped.iter().for_each(|one| self.changing.remove(one));
        let relied: Vec<Relied> = self.relied.extract_if(.., |relied| relied.op == number).collect();
        let lost: Vec<Dropped> = relied
            .into_iter()
            .filter(|relied| !is_known || self.is_lost(relied, now))
            .map(|relied| relied.any)
            .collect();
        self.lose(&lost);
        self.forget(&lost);
        dropped.extend(lost);
        let asked = if is_planted(Bug::TouchedReadTaken) { self.moment } else { asked };
        for (op, reply) in reads {
            if let Ok(Reply::Pledged { found, pledges }) = reply {
                self.take(asked, op, found, pledges, now);
            }
        }
        // Replies to requests that were sent while the op was under way may be older than what it did.
        dropped.iter().for_each(|one| self.note_dropped(one.clone()));
        if !is_known {
            self.forget(&dropped);
            if self.unknown.len() >= UNKNOWN_MAX {
                self.unknown.pop_back();
                dropped = vec![Dropped::Everything];
                self.forget(&dropped);
            }
            self.unknown.push_back((now + UNKNOWN_OUTCOME, dropped));
        }
        while self.unknown.front().is_some_and(|(until, _)| *until <= now) {
            self.unknown.pop_front();
        }
    }

    fn forget(&mut self, dropped: &[Dropped]) {
        for one in dropped {
            match one {
                Dropped::About(Pledged::Name { dir, name }) => self.names.remove(&(*dir, name.clone())),
                Dropped::About(Pledged::Attributes { inode }) => self.attributes.remove(inode),
                Dropped::AnyFile => self.attributes.retain(|_, known| known.value.kind == NodeKind::Directory),
                Dropped::AnyInode => self.attributes.clear(),
                Dropped::About(Pledged::Shard { .. } | Pledged::Times { .. } | Pledged::Mapping { .. }) => {}
                Dropped::Shards(inode) => self.shards.forget(*inode),
                Dropped::AnyShards => self.shards.clear(),
                Dropped::Everything => {
                    self.names.clear();
                    self.attributes.clear();
                    self.shards.clear();
                }
            }
        }
    }
}
