//! Conflicts between ops: what waits for names that are being renamed, linked or are not to be shown yet, and for
//! directories that are being made or listed.

use crate::context::Context;
use crate::leader::Leader;
use crate::membership::Membership;
use crate::ops::footprint::{counted_by, listed_by, name_key, names_of};
use crate::ops::step::{Ask, RecalledGrants};
use crate::partition::Event;
use crate::requests::reads::attributes_in;
use crate::transactions::driven::{Driven, linked_name};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

impl Leader {
    /// True if an op of another partition holds a name of this op or a name that its directory counts, or if a name
    /// that it asks for is not to be shown yet, or if its directory may still be removed.
    pub fn is_prepared(&self, at: &Membership, ask: &Ask, op: &Op) -> bool {
        if self.is_being_linked(op) {
            return true;
        }
        if self.transactions.prepared.is_empty()
            && self.transactions.unnamed.is_empty()
            && self.transactions.unborn.is_empty()
        {
            return false;
        }
        let at = at.own.partition;
        let is_held = |key: Key| {
            self.transactions.prepared.contains(&key) && !is_planted(Bug::HoldIgnored)
                || self.transactions.unnamed.values().flatten().any(|(_, unnamed)| *unnamed == key)
        };
        let is_made = |dir: InodeId| {
            self.is_unborn(dir) || self.transactions.unnamed.values().flatten().any(|(of, _)| *of == dir)
        };
        let all_of_it =
            counted_by(op).is_some_and(|dir| self.is_moving(at, ask, dir)) || listed_by(op).is_some_and(is_made);
        let mut names = names_of(op).into_iter().flatten();
        all_of_it || names.any(|(dir, name)| self.is_unborn(dir) || is_held(ask.hold_key(at, dir, name)))
    }

    /// True if an op of another partition holds a name of the directory. It may have been seen elsewhere already, and
    /// will change the directory's links and times.
    fn is_moving(&self, at: PartitionNumber, ask: &Ask, dir: InodeId) -> bool {
        let all = Key::hold(ask.names_prefix(at, dir), dir, b"");
        // The hold without a name is that of the volume's moves of directories.
        self.transactions.prepared.range(all.successor()..all.prefix_end()).next().is_some()
    }

    /// The answer, without the attributes of directories that have held names. The client asks for these attributes
    /// alone, which waits for the holds to end, and new holds wait for it.
    pub fn without_moving(&self, at: &Membership, ask: &Ask, found: Result<Reply>) -> Result<Reply> {
        if self.transactions.prepared.is_empty() {
            return found;
        }
        let is_moving =
            |attr: &Attr| attr.kind == NodeKind::Directory && self.is_moving(at.own.partition, ask, attr.id);
        let elsewhere = |attr: &Attr| Reply::Elsewhere { inode: attr.id, kind: attr.kind };
        let mut reply = found?;
        match &mut reply {
            Reply::Node { attr, created: false } if is_moving(attr) => return Ok(elsewhere(attr)),
            Reply::Fetched { object } if is_moving(&object.attr) => return Ok(elsewhere(&object.attr)),
            Reply::List { entries, .. } | Reply::Keys { entries, .. } => {
                entries.iter_mut().for_each(|entry| drop(entry.attr.take_if(|attr| is_moving(attr))));
            }
            _ => {}
        }
        Ok(reply)
    }

    /// True if the op looks up or lists the new name of a link in flight. The inode counts the link already, and may
    /// lose its other names meanwhile: a client that got the answer that a name is missing would see it come back.
    fn is_being_linked(&self, op: &Op) -> bool {
        if self.transactions.driven.is_empty() {
            return false;
        }
        let linked = || self.transactions.driven.values().filter_map(Driven::links);
        match op {
            Op::Name { op: NameOp::Lookup { .. } | NameOp::Fetch { .. } } => {
                names_of(op).into_iter().flatten().any(|name| linked().any(|link| link == name))
            }
            _ => listed_by(op).is_some_and(|dir| linked().any(|(of, _)| of == dir)),
        }
    }

    /// True if a link over several partitions has to wait for pledges: its inode counts it before its name is made, so
    /// before a record could recall them.
    pub fn waits_to_link(&self, cx: &mut Context, ask: &Ask, op: &Op) -> bool {
        let Some((dir, name)) = linked_name(op) else { return false };
        let stub = Key::inode(ask.ring, ask.volume, dir, Kind::Stub);
        let changes = [name_key(cx.at, ask, dir, name), stub].map(|key| Change::Delete { key });
        self.is_pledged(cx, ask.session, &changes, RecalledGrants::None)
    }

    /// True if the answer shows a directory in which a name is being linked: it carries no pledges.
    pub fn shows_linking(&self, found: &Result<Reply>) -> bool {
        let mut dirs = self.transactions.driven.values().filter_map(Driven::links).map(|(dir, _)| dir);
        dirs.any(|dir| found.as_ref().is_ok_and(|reply| attributes_in(reply).any(|attr| attr.id == dir)))
    }

    pub fn is_unborn(&self, dir: InodeId) -> bool {
        self.transactions.unborn.values().any(|unborn| *unborn == dir)
    }

    /// True if a request waits to list the directory. New names queue behind it, so that the list is not starved.
    pub fn is_listed_soon(&self, op: &Op) -> bool {
        let Op::Name {
            op:
                NameOp::Create { dir, .. }
                | NameOp::Link { dir, .. }
                | NameOp::Put { dir, .. }
                | NameOp::MakePrefix { dir, .. },
        } = op
        else {
            return false;
        };
        !self.transactions.unnamed.is_empty() && self.is_awaited(|op| listed_by(op) == Some(*dir))
    }

    /// True if a request with such an op waits.
    pub fn is_awaited(&self, is_so: impl Fn(&Op) -> bool) -> bool {
        self.requests.waiting().iter().any(|waiting| matches!(&waiting.event, Event::Request { op, .. } if is_so(op)))
    }

    /// True if the leg must be answered `Busy`: an op of this partition holds what it needs, or a request waits for
    /// holds on names of its directory to end, which must not be starved. An op that makes a name in a directory which
    /// is closed meanwhile notices that at its next step, and begins again.
    pub fn is_busy(&mut self, at: &Membership, ask: &Ask, leg: &Leg) -> bool {
        match leg {
            Leg::AddLink { inode } | Leg::AddObjectLink { inode, .. } => self.is_cutting(*inode),
            // Until the times of fast writes are recorded the ETag is that of the content before them.
            Leg::Attributes { inode } => {
                let file = (ask.volume, *inode);
                self.times.is_unrecorded(&file) || self.pledges.hides_times(ask.session, file)
            }
            Leg::ReadShard { range: ShardRange { data, index, .. } } => {
                self.closes_unsettled(ShardId { volume: ask.volume, data: *data, index: *index })
            }
            Leg::ShardEnd { shard } => self.closes_unsettled(*shard) && !is_planted(Bug::OpenShardAsked),
            Leg::HoldName { dir, name } => {
                let is_new = !self.transactions.prepared.contains(&ask.hold_key(at.own.partition, *dir, name));
                self.transactions.held.contains_key(&name_key(at, ask, *dir, name))
                    || self.is_unborn(*dir)
                    || is_new && self.is_awaited(|op| counted_by(op) == Some(*dir))
            }
            _ => false,
        }
    }

    /// Ends the holds of an op.
    pub fn release(&mut self, intent: IntentId) {
        self.transactions.held.retain(|_, holder| *holder != intent);
        self.requests.retry_if_any();
    }
}
