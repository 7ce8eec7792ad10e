//! What a session remembers by its pledges. Pure: the time comes in.
//!
//! Invariants: what is remembered was pledged by a leader whose term is the partition's latest one that a heartbeat has
//! named, and is used only until the lease of that term is over. Nothing is remembered of what a recall or an op of this
//! session has touched since the request was sent that the reply answers.

use super::touched::Touched;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use hekate_threads::HashMap;
use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Duration;

/// Names, and attributes, that are remembered, in two generations of half as many.
const REMEMBERED_MAX: usize = 262_144;
/// Recalls and own changes that are compared with replies still on their way. Replies from before the oldest are not
/// taken.
const DROPPED_MAX: usize = 4096;
/// Time for which nothing is remembered of what an op without a known outcome may change: a server may execute it when
/// it can.
const UNKNOWN_OUTCOME: Duration = Duration::from_secs(600);
/// Things that ops without a known outcome may change. With more nothing is remembered.
const UNKNOWN_MAX: usize = 1024;

/// What a name leads to.
pub(crate) type Target = Option<(InodeId, NodeKind)>;

#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// Counts what was dropped.
    moment: u64,
    leases: HashMap<PartitionNumber, Lease>,
    names: Generations<(InodeId, Name), Known<Target>>,
    attributes: Generations<InodeId, Known<Attr>>,
    /// What was dropped last, with the moment.
    dropped: VecDeque<(u64, Dropped)>,
    /// Replies to requests from before this moment are not taken.
    too_old: u64,
    changing: Changing,
    /// Ops whose outcome is unknown, until when.
    unknown: VecDeque<(Duration, Vec<Dropped>)>,
    hits: u64,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    term: u64,
    /// What earlier terms pledged is forgotten, here and where doors have passed it on.
    is_forgotten: bool,
    until: Duration,
    /// Replies to requests from before this moment are not taken.
    since: u64,
}

#[derive(Debug, Clone)]
struct Known<T> {
    partition: PartitionNumber,
    number: u64,
    value: T,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Dropped {
    About(Pledged),
    AnyFile,
    AnyInode,
}

/// What ops of this session are changing.
#[derive(Debug, Default)]
struct Changing(Vec<Dropped>);

impl Changing {
    fn has(&self, about: &Pledged, kind: Option<NodeKind>) -> bool {
        self.0.iter().any(|dropped| dropped.covers(about, kind))
    }

    fn remove(&mut self, dropped: &Dropped) {
        if let Some(index) = self.0.iter().position(|one| one == dropped) {
            self.0.swap_remove(index);
        }
    }
}

impl Dropped {
    /// `kind`: of the inode, for its attributes.
    fn covers(&self, about: &Pledged, kind: Option<NodeKind>) -> bool {
        let is_attributes = matches!(about, Pledged::Attributes { .. });
        match self {
            Dropped::About(dropped) => dropped == about,
            Dropped::AnyFile => is_attributes && kind != Some(NodeKind::Directory),
            Dropped::AnyInode => is_attributes,
        }
    }
}

impl Touched {
    fn dropped(&self) -> Vec<Dropped> {
        let names = self.names.iter().map(|(dir, name)| Pledged::Name { dir: *dir, name: name.clone() });
        let inodes = self.inodes.iter().map(|inode| Pledged::Attributes { inode: *inode });
        let any = match (self.any_file, self.any_directory) {
            (true, true) => Some(Dropped::AnyInode),
            (true, false) => Some(Dropped::AnyFile),
            _ => None,
        };
        names.chain(inodes).map(Dropped::About).chain(any).collect()
    }
}

impl Cache {
    pub fn counts(&self) -> (usize, usize, u64) {
        (self.names.len(), self.attributes.len(), self.hits)
    }

    fn is_valid(&self, partition: PartitionNumber, now: Duration) -> bool {
        let is_over = |lease: &Lease| now >= lease.until && !is_planted(Bug::PledgeOutlivesLease);
        self.leases.get(&partition).is_some_and(|lease| !is_over(lease))
    }

    /// What is remembered of a name, whether or not it may be used.
    pub fn name(&self, dir: InodeId, name: &Name) -> Option<Target> {
        Some(self.names.get(&(dir, name.clone()))?.value)
    }

    /// The remembered attributes, whether or not they may be used.
    pub fn attributes(&self, inode: InodeId) -> Option<Attr> {
        Some(self.attributes.get(&inode)?.value.clone())
    }

    /// The answer to an op, if it is pledged.
    pub fn answer(&mut self, op: &Op, now: Duration) -> Option<Result<Reply>> {
        let reply = match op {
            Op::Name { op: NameOp::Lookup { dir, name } } => {
                let known =
                    self.names.get(&(*dir, name.clone())).filter(|known| self.is_valid(known.partition, now))?;
                match known.value {
                    None => Err(Error::NotFound),
                    Some((inode, _)) => self.node(inode, now)?,
                }
            }
            Op::Inode { op: InodeOp::GetAttr { inode } } => self.node(*inode, now)?,
            Op::Inode { op: InodeOp::GetXattr { inode, .. } } if self.has_no_xattrs(*inode, now) => {
                Err(Error::NoAttribute)
            }
            Op::Inode { op: InodeOp::ListXattr { inode } } if self.has_no_xattrs(*inode, now) => {
                Ok(Reply::Names { names: Vec::new() })
            }
            _ => return None,
        };
        self.hits += 1;
        Some(reply)
    }

    fn node(&self, inode: InodeId, now: Duration) -> Option<Result<Reply>> {
        let known = self.attributes.get(&inode).filter(|known| self.is_valid(known.partition, now))?;
        Some(Ok(Reply::Node { attr: known.value.clone(), created: false }))
    }

    /// True if the attributes are pledged and say that the inode has no extended ones.
    fn has_no_xattrs(&self, inode: InodeId, now: Duration) -> bool {
        let known = self.attributes.get(&inode).filter(|known| self.is_valid(known.partition, now));
        known.is_some_and(|known| !known.value.has_xattrs)
    }

    /// How long these attributes are pledged.
    pub fn validity(&self, attr: &Attr, now: Duration) -> Duration {
        let known = self.attributes.get(&attr.id).filter(|known| known.value == *attr);
        let lease = known.and_then(|known| self.leases.get(&known.partition));
        lease.map_or(Duration::ZERO, |lease| lease.until.saturating_sub(now))
    }

    /// The moment of a request that asks for pledges. `None` if an op of this session is changing what it is about.
    pub fn ask(&self, op: &Op) -> Option<u64> {
        let about = match op {
            Op::Name { op: NameOp::Lookup { dir, name } } => Pledged::Name { dir: *dir, name: name.clone() },
            Op::Inode { op } => Pledged::Attributes { inode: op.inode() },
            _ => return Some(self.moment),
        };
        (!self.changing.has(&about, None)).then_some(self.moment)
    }

    /// Remembers what a reply pledges. `asked`: the moment at which its request was sent.
    pub fn take(&mut self, asked: u64, op: &Op, found: &Found, pledges: &[GivenPledges], now: Duration) {
        if asked < self.too_old {
            return;
        }
        for given in pledges {
            let lease = self.leases.get(&given.partition);
            let is_current =
                lease.is_some_and(|lease| lease.term == given.term && asked >= lease.since && now < lease.until);
            if !is_current {
                continue;
            }
            let (partition, number) = (given.partition, given.number);
            match (&given.given_for, op, found) {
                (GivenFor::Name, Op::Name { op: NameOp::Lookup { dir, name } }, found) => {
                    let value = match found {
                        Found::Node { attr } => Some((attr.id, attr.kind)),
                        Found::Elsewhere { inode, kind } => Some((*inode, *kind)),
                        Found::Missing => None,
                        Found::List { .. } => continue,
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
                _ => {}
            }
        }
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
            // A name that came with a frame shares its memory.
            let own = Name::new(bytes::Bytes::copy_from_slice(name.as_bytes())).unwrap_or(name);
            self.names.insert((dir, own), known);
        }
    }

    fn remember_attributes(&mut self, asked: u64, known: Known<Attr>) {
        let about = Pledged::Attributes { inode: known.value.id };
        if self.may_remember(asked, &about, Some(known.value.kind)) {
            self.attributes.insert(known.value.id, known);
        }
    }

    fn may_remember(&self, asked: u64, about: &Pledged, kind: Option<NodeKind>) -> bool {
        let since = self.dropped.iter().rev().take_while(|(moment, _)| *moment > asked);
        let is_dropped =
            since.into_iter().any(|(_, dropped)| dropped.covers(about, kind)) && !is_planted(Bug::RecalledPledgeTaken);
        let is_changing = self.changing.has(about, kind) && !is_planted(Bug::PledgeTakenDuringOwnChange);
        let is_unknown = self.unknown.iter().any(|(_, all)| all.iter().any(|dropped| dropped.covers(about, kind)));
        !is_dropped && !is_changing && !is_unknown
    }

    /// Drops recalled pledges.
    pub fn drop_recalled(&mut self, partition: PartitionNumber, pledges: &[Pledge]) {
        for Pledge { about, number } in pledges {
            match about {
                Pledged::Name { dir, name } => {
                    let key = (*dir, name.clone());
                    if self.names.get(&key).is_some_and(|known| known.partition == partition && known.number <= *number)
                    {
                        self.names.remove(&key);
                    }
                }
                Pledged::Attributes { inode } => {
                    let is_it = |known: &Known<Attr>| known.partition == partition && known.number <= *number;
                    if self.attributes.get(inode).is_some_and(is_it) {
                        self.attributes.remove(inode);
                    }
                }
            }
            self.note_dropped(Dropped::About(about.clone()));
        }
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

    /// An op of this session is about to be sent. Returns the inodes whose attributes a door is to forget.
    pub fn begin_change(&mut self, touched: &Touched) -> Vec<InodeId> {
        let dropped = touched.dropped();
        if !is_planted(Bug::OwnChangeKeepsPledges) {
            self.forget(&dropped);
        }
        self.changing.0.extend(dropped);
        let mut inodes = touched.inodes.clone();
        inodes.sort_unstable();
        inodes.dedup();
        inodes
    }

    /// The op has ended.
    pub fn end_change(&mut self, touched: &Touched, is_known: bool, now: Duration) {
        let dropped = touched.dropped();
        dropped.iter().for_each(|one| self.changing.remove(one));
        // Replies to requests that were sent while the op was under way may be older than what it did.
        dropped.iter().for_each(|one| self.note_dropped(one.clone()));
        if !is_known {
            let all = if self.unknown.len() < UNKNOWN_MAX { dropped } else { vec![Dropped::AnyInode] };
            self.forget(&all);
            self.unknown.push_back((now + UNKNOWN_OUTCOME, all));
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
            }
        }
    }

    /// Takes the terms in the reply to a `Renew` that was sent at `sent`. Returns true if doors have to forget what
    /// earlier terms pledged; `doors_forgot` is called then.
    pub fn renew(&mut self, sent: Duration, now: Duration, terms: &[(PartitionNumber, u64)]) -> bool {
        let mut is_any_new = false;
        for (partition, term) in terms {
            let known = self.leases.get(partition).copied();
            let is_same = known.is_some_and(|lease| lease.term == *term) || is_planted(Bug::PledgeOutlivesLeader);
            let is_kept = |lease: Lease| now < lease.until || is_planted(Bug::PledgeOutlivesLease);
            let lease = match known.filter(|lease| is_same && is_kept(*lease)) {
                Some(lease) => Lease { term: *term, until: lease.until.max(sent + PLEDGE_LEASE), ..lease },
                None => {
                    self.forget_partition(*partition);
                    let is_forgotten = known.is_some_and(|lease| is_same && lease.is_forgotten);
                    Lease { term: *term, is_forgotten, until: sent + PLEDGE_LEASE, since: self.moment }
                }
            };
            is_any_new |= !lease.is_forgotten;
            self.leases.insert(*partition, lease);
        }
        is_any_new
    }

    /// Doors have forgotten what was passed on before these terms were known.
    pub fn doors_forgot(&mut self, terms: &[(PartitionNumber, u64)]) {
        for (partition, term) in terms {
            if let Some(lease) = self.leases.get_mut(partition).filter(|lease| lease.term == *term) {
                lease.is_forgotten = true;
            }
        }
    }

    /// Drops all that a partition has pledged.
    fn forget_partition(&mut self, partition: PartitionNumber) {
        self.moment += 1;
        self.names.retain(|_, known| known.partition != partition);
        self.attributes.retain(|_, known| known.partition != partition);
    }

    /// The terms before which nothing is remembered any more, here and where doors have passed it on.
    pub fn forgot(&self) -> Vec<(PartitionNumber, u64)> {
        let terms = self.leases.iter().filter(|(_, lease)| lease.is_forgotten);
        let mut terms: Vec<_> = terms.map(|(partition, lease)| (*partition, lease.term)).collect();
        terms.sort_unstable();
        terms
    }
}

/// A map of bounded size: when the newer generation is full, it becomes the older one, and that one is forgotten.
#[derive(Debug)]
struct Generations<K, V> {
    newer: HashMap<K, V>,
    older: HashMap<K, V>,
}

impl<K, V> Default for Generations<K, V> {
    fn default() -> Self {
        Self { newer: HashMap::default(), older: HashMap::default() }
    }
}

impl<K: Eq + Hash, V> Generations<K, V> {
    fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }

    fn get(&self, key: &K) -> Option<&V> {
        self.newer.get(key).or_else(|| self.older.get(key))
    }

    fn insert(&mut self, key: K, value: V) {
        self.older.remove(&key);
        if self.newer.len() >= REMEMBERED_MAX / 2 {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, value);
    }

    fn remove(&mut self, key: &K) {
        self.newer.remove(key);
        self.older.remove(key);
    }

    fn retain(&mut self, keep: impl Fn(&K, &V) -> bool) {
        self.newer.retain(|key, value| keep(key, value));
        self.older.retain(|key, value| keep(key, value));
    }

    fn clear(&mut self) {
        self.newer.clear();
        self.older.clear();
    }
}
