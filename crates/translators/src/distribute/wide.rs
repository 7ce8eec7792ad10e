//! Directories whose names several partitions share: how many partitions, the attributes of all parts together, and
//! the names in order.
//!
//! A leader refuses an op on a name of another partition, with the number of partitions that share the directory. So
//! the number known here may be absent or too low, at the cost of a round trip. It is never too high, since the number
//! of partitions never decreases.

use super::{Distribute, unexpected};
use crate::replicate::Recipient;
use bytes::Bytes;
use hekate_graph::Context;
use hekate_proto::*;
use hekate_threads::HashMap;
use std::collections::{BTreeSet, VecDeque};

/// Directories remembered; at the limit all are forgotten.
const WIDE_MAX: usize = 10_000;
/// Rounds after which parts that changed between two rounds are accepted, if their numbers of subdirectories did not
/// change.
const EXACT_MAX: usize = 4;
/// Rounds after which the attributes of the parts are accepted in any case.
const COLLECTS_MAX: usize = 16;
/// Parts queried in one batch.
const PARTS_AT_ONCE: usize = 256;
/// Most names in one reply, as leaders limit them.
const LIST_MAX: u32 = 4096;

/// The directories known to be shared by several partitions.
#[derive(Debug, Default)]
pub(super) struct Wide {
    known: HashMap<InodeId, Known>,
    /// True if some were forgotten: an unknown directory may then be shared.
    forgotten: bool,
}

#[derive(Debug)]
struct Known {
    spread: u32,
    /// The change counters of the parts, when they were last queried.
    changes: Vec<u64>,
}

/// True if the attributes cover only one part of a directory.
pub(super) fn is_wide(attr: &Attr) -> bool {
    attr.kind == NodeKind::Directory && attr.spread > 1
}

/// Names of one part that were fetched and not returned yet.
struct Part {
    position: Position,
    entries: VecDeque<Entry>,
    /// The last name that was fetched.
    after: Option<Name>,
    /// True if the part has no more names.
    end: bool,
}

impl Part {
    fn needs_refill(&self) -> bool {
        self.entries.is_empty() && !self.end
    }
}

impl Distribute {
    /// Number of partitions that share a directory's names, as far as known.
    pub(super) fn spread_of(&self, dir: InodeId) -> u32 {
        self.wide.lock().known.get(&dir).map_or(1, |known| known.spread)
    }

    /// Stores the number of partitions that a leader reported for an op that was sent for `asked` partitions. Another
    /// thread may have stored it meanwhile.
    ///
    /// # Errors
    /// `Protocol` if the number is not higher than `asked`: the op would be repeated forever.
    pub(super) fn learn_spread(&self, dir: InodeId, asked: u32, spread: u32) -> Result<()> {
        if spread <= asked || !is_spread(spread, self.replicate.map().partitions()) {
            let what = format!(
                "a leader reports that {spread} partitions share the names of {dir:?}, not more than the known {asked}"
            );
            return Err(Error::Protocol { what });
        }
        let mut wide = self.wide.lock();
        if wide.known.get(&dir).is_some_and(|known| known.spread >= spread) {
            return Ok(());
        }
        if wide.known.len() >= WIDE_MAX {
            wide.known.clear();
            wide.forgotten = true;
        }
        wide.known.insert(dir, Known { spread, changes: Vec::new() });
        Ok(())
    }

    /// Partitions that may have a name, also if the number of partitions that share the directory is unknown.
    pub(super) fn possible_partitions(&self, dir: InodeId, name: &Name) -> BTreeSet<PartitionNumber> {
        let known = self.wide.lock().known.get(&dir).map(|known| known.spread);
        let count = self.replicate.map().partitions();
        let all = (0..=count.trailing_zeros()).map(|bits| 1 << bits);
        let spreads = all.filter(|spread| known.is_none_or(|known| known == *spread));
        spreads.map(|spread| self.partition(name_position(dir, name, spread))).collect()
    }

    /// Partitions that an fsync of an inode concerns: those of its attributes and, for a directory, of its names.
    pub(super) fn homes(&self, inode: InodeId) -> Vec<PartitionNumber> {
        let wide = self.wide.lock();
        let spread = match wide.known.get(&inode) {
            Some(known) => known.spread,
            None if wide.forgotten => self.replicate.map().partitions(),
            None => 1,
        };
        name_positions(inode, spread).map(|position| self.partition(position)).collect()
    }

    /// Attributes of a directory, with those of all parts combined.
    ///
    /// The parts are queried one after the other, until two rounds agree: then all had these values at one moment. If
    /// files are created and removed all the time, it is enough after 4 rounds that the numbers of subdirectories
    /// agree; times and change counter may then be of several moments.
    pub(super) fn whole_directory(&self, context: &Context, dir: InodeId) -> Result<Reply> {
        let mut changes = self.wide.lock().known.get(&dir).map(|known| known.changes.clone()).unwrap_or_default();
        let mut subdirectories: Option<Vec<u32>> = None;
        let mut collects = 0;
        loop {
            let asked = self.spread_of(dir);
            let (home, parts) = match self.collect(context, dir, asked) {
                Err(Error::OtherSpread { spread }) => {
                    self.learn_spread(dir, asked, spread)?;
                    continue;
                }
                collected => collected?,
            };
            collects += 1;
            let now: Vec<u64> = std::iter::once(home.change).chain(parts.iter().map(|part| part.change)).collect();
            let counts = std::iter::once(home.nlink).chain(parts.iter().map(|part| part.directories)).collect();
            let same = now == changes || collects >= EXACT_MAX && subdirectories.as_ref() == Some(&counts);
            (changes, subdirectories) = (now, Some(counts));
            if same || collects == COLLECTS_MAX {
                if let Some(known) = self.wide.lock().known.get_mut(&dir) {
                    known.changes = changes;
                }
                return Ok(Reply::Node { attr: merge_parts(home, &parts), created: false });
            }
        }
    }

    /// Attributes of the inode with its own part, and the other parts, if `spread` partitions share its names.
    fn collect(&self, context: &Context, dir: InodeId, spread: u32) -> Result<(Attr, Vec<StubView>)> {
        let stub = |position| (position, Op::Name { op: NameOp::Stub { dir, spread } });
        let home = (dir.position(), Op::Inode { op: InodeOp::GetAttr { inode: dir } });
        let others = name_positions(dir, spread).skip(1).map(stub);
        let mut replies = self.query_parts(context, std::iter::once(home).chain(others).collect())?.into_iter();
        let Some(Reply::Node { attr, .. }) = replies.next() else { return Err(unexpected()) };
        if attr.spread != spread {
            return Err(Error::OtherSpread { spread: attr.spread });
        }
        let view = |reply| match reply {
            Reply::Stub { stub } => Ok(stub),
            _ => Err(unexpected()),
        };
        Ok((attr, replies.map(view).collect::<Result<_>>()?))
    }

    /// Queries partitions, those of one server together. Returns the replies in the order of the questions.
    fn query_parts(&self, context: &Context, questions: Vec<(Position, Op)>) -> Result<Vec<Reply>> {
        let map = self.replicate.map();
        let server = |position: Position| {
            map.view(map.partition_of(position)).and_then(|view| map.server_of(view.leader)).map(|server| server.0)
        };
        let mut answers: Vec<Option<Reply>> = questions.iter().map(|_| None).collect();
        let mut questions: Vec<_> = questions.into_iter().enumerate().collect();
        questions.sort_by_key(|(_, (position, _))| server(*position));
        for some in questions.chunks(PARTS_AT_ONCE) {
            let batch = some.iter().map(|(_, (at, op))| (Recipient::Leader(self.partition(*at)), op.clone())).collect();
            for ((number, _), reply) in some.iter().zip(self.replicate.send_all(context, batch)?) {
                answers[*number] = Some(reply?);
            }
        }
        answers.into_iter().collect::<Option<_>>().ok_or_else(|| Error::bug("a request of a batch has no reply"))
    }

    /// Names after `after` in byte order, of all partitions that share the directory. Replies `List`.
    pub(super) fn list(
        &self,
        context: &Context,
        dir: InodeId,
        after: Option<&Name>,
        limit: u32,
        attributes: bool,
        touch: bool,
    ) -> Result<Reply> {
        loop {
            let asked = self.spread_of(dir);
            let listed = match asked {
                1 => {
                    let op = NameOp::List { dir, after: after.cloned(), limit, attributes, touch };
                    self.forward(context, self.partition(dir.position()), Op::Name { op })
                }
                spread => self.merged(context, dir, spread, after, limit.clamp(1, LIST_MAX), attributes),
            };
            match listed {
                Err(Error::OtherSpread { spread }) => self.learn_spread(dir, asked, spread)?,
                outcome => return outcome,
            }
        }
    }

    /// Names after `after` in the order of keys, of all partitions that share the directory. Replies `Keys`.
    pub(super) fn list_keys(
        &self,
        context: &Context,
        dir: InodeId,
        prefix: &Bytes,
        after: &Bytes,
        limit: u32,
    ) -> Result<Reply> {
        let limit = limit.clamp(1, LIST_MAX);
        loop {
            let asked = self.spread_of(dir);
            let listed = match asked {
                1 => {
                    let (prefix, after) = (prefix.clone(), after.clone());
                    let op = NameOp::ListKeys { dir, spread: 1, prefix, after, limit };
                    self.forward(context, self.partition(dir.position()), Op::Name { op })
                }
                spread => self.merged_keys(context, (dir, spread), prefix, after, limit),
            };
            match listed {
                Err(Error::OtherSpread { spread }) => self.learn_spread(dir, asked, spread)?,
                outcome => return outcome,
            }
        }
    }

    /// Merges the first keys of all parts of a shared directory. Each part is asked for as many as are wanted of all,
    /// divided by their number, and a quarter and 8 more; the page ends where a part has no more in its answer.
    fn merged_keys(
        &self,
        context: &Context,
        (dir, spread): (InodeId, u32),
        prefix: &Bytes,
        after: &Bytes,
        limit: u32,
    ) -> Result<Reply> {
        let share = (limit / spread + limit / spread / 4 + 8).min(limit);
        let question = |position| {
            let (prefix, after) = (prefix.clone(), after.clone());
            (position, Op::Name { op: NameOp::ListKeys { dir, spread, prefix, after, limit: share } })
        };
        let replies = self.query_parts(context, name_positions(dir, spread).map(question).collect())?;
        let (mut all, mut known_to, mut any_escaped, mut of_dir) = (Vec::new(), None::<Vec<u8>>, false, None);
        for reply in replies {
            let Reply::Keys { entries, end, escaped, directory } = reply else { return Err(unexpected()) };
            if let (false, Some(last)) = (end, entries.last().map(key_order)) {
                known_to = Some(known_to.map_or(last.clone(), |known| known.min(last)));
            }
            any_escaped |= escaped;
            of_dir = of_dir.or(directory);
            all.extend(entries.into_iter().map(|entry| (key_order(&entry), entry)));
        }
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        let whole = all.len();
        let known = |(order, _): &(Vec<u8>, Entry)| known_to.as_ref().is_none_or(|last| order <= last);
        let entries: Vec<Entry> = all.into_iter().filter(known).take(limit as usize).map(|(_, entry)| entry).collect();
        let end = known_to.is_none() && entries.len() == whole;
        Ok(Reply::Keys { entries, end, escaped: any_escaped, directory: of_dir })
    }

    /// Merges the names of all parts of a shared directory.
    fn merged(
        &self,
        context: &Context,
        dir: InodeId,
        spread: u32,
        after: Option<&Name>,
        limit: u32,
        attributes: bool,
    ) -> Result<Reply> {
        let part = |position| Part { position, entries: VecDeque::new(), after: after.cloned(), end: false };
        let mut parts: Vec<Part> = name_positions(dir, spread).map(part).collect();
        let mut entries = Vec::with_capacity(limit as usize);
        // Names are spread evenly over the parts. With a quarter and 8 more than its share requested of each, a part
        // is rarely queried twice.
        let share = limit / spread + limit / spread / 4 + 8;
        while entries.len() < limit as usize {
            if parts.iter().any(Part::needs_refill) {
                self.refill(context, dir, spread, &mut parts, share.min(limit), attributes)?;
            }
            let least = parts.iter_mut().filter(|part| !part.entries.is_empty());
            let least = least.min_by(|a, b| a.entries[0].name.cmp(&b.entries[0].name));
            match least.and_then(|part| part.entries.pop_front()) {
                Some(entry) => entries.push(entry),
                None => break,
            }
        }
        let end = parts.iter().all(|part| part.end && part.entries.is_empty());
        Ok(Reply::List { entries, end })
    }

    /// Fetches more names of the parts that have none left.
    fn refill(
        &self,
        context: &Context,
        dir: InodeId,
        spread: u32,
        parts: &mut [Part],
        limit: u32,
        attributes: bool,
    ) -> Result<()> {
        let mut dry: Vec<&mut Part> = parts.iter_mut().filter(|part| part.needs_refill()).collect();
        let question = |part: &&mut Part| {
            let op = NameOp::ListPart { dir, spread, after: part.after.clone(), limit, attributes };
            (part.position, Op::Name { op })
        };
        let replies = self.query_parts(context, dry.iter().map(question).collect())?;
        for (part, reply) in dry.iter_mut().zip(replies) {
            let Reply::List { entries, end } = reply else { return Err(unexpected()) };
            if entries.is_empty() && !end {
                return Err(unexpected());
            }
            part.after = entries.last().map(|entry| entry.name.clone()).or(part.after.take());
            (part.entries, part.end) = (entries.into(), end);
        }
        Ok(())
    }
}

/// The place of a name among keys: a directory's counts as if it ended in `/`.
fn key_order(entry: &Entry) -> Vec<u8> {
    let mut order = entry.name.as_bytes().to_vec();
    if entry.kind == NodeKind::Directory {
        order.push(b'/');
    }
    order
}

/// Combines the parts of a directory.
fn merge_parts(home: Attr, parts: &[StubView]) -> Attr {
    parts.iter().fold(home, |sum, part| Attr {
        nlink: sum.nlink.saturating_add(part.directories),
        mtime: sum.mtime.max(part.mtime),
        ctime: sum.ctime.max(part.ctime),
        change: sum.change.saturating_add(part.change),
        ..sum
    })
}
