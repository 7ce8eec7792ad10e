//! Pledges that the leader has given: before an answer changes that a session may repeat from its cache, the session is
//! told, and has returned the pledge or lost it. `docs/coherence.md` is the document, with the rules P1 to P11.
//!
//! A pledge is about a name or the attributes of an inode. What a record changes says which pledges it concerns: its
//! keys. A record is made only when no other session has one of them ([`Pledges::block`]), whatever the record is for.
//! Pledges are in memory only. A leader that begins does not know those of the leader before it, so it waits with
//! changes until every session has said that it has forgotten them, or until they have expired.
//!
//! Reads share the replica, so the table has a lock of its own, which is never held over a wait.

mod about;
mod grants;
mod mappings;
mod recalls;
mod rights;

use crate::ops::step::{Ask, RecalledGrants};
use about::{all_about, ended_by, removed_shard};
use grants::Grants;
pub(crate) use grants::{Ending, Written};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use mappings::{Mappings, is_mapping};
pub(crate) use recalls::Recalls;
pub(crate) use rights::PassedOn;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time after which pledges that are not renewed have expired, for the leader: longer than for the session, since clocks
/// differ in speed.
const EXPIRES_AFTER: Duration = Duration::from_secs(PLEDGE_LEASE.as_secs() + 1);
/// How long a session may take to return a recalled pledge before its pledges are no longer renewed.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which a recall is sent again.
const RESEND_INTERVAL: Duration = Duration::from_millis(500);
/// Time after a recall in which nobody is given a pledge about the same: what changes often is not worth a recall each
/// time.
const COOLING: Duration = Duration::from_secs(1);
/// Pledges of one session in this partition. One more recalls the oldest.
const PER_SESSION_MAX: usize = 65_536;
/// Pledges that are recalled together when a session has as many as it may have.
const OLDEST_AT_ONCE: usize = 1024;
/// Things that cool at the same time. Beyond that no pledge is given until the oldest have cooled.
const COOLING_MAX: usize = 65_536;

/// What a pledge is about, in its volume.
type About = (VolumeId, Pledged);

/// The pledges of a partition's leader.
#[derive(Debug, Default)]
pub(crate) struct Pledges(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// 0: the leader has not begun.
    term: u64,
    /// The number of the last pledge.
    last: u64,
    /// The sessions that have each, with the numbers of their pledges.
    held: HashMap<Arc<About>, Vec<(SessionId, u64)>>,
    by_session: BTreeMap<SessionId, BTreeMap<u64, Arc<About>>>,
    /// Recalls that changes wait for.
    recalled: BTreeMap<Arc<About>, Recalled>,
    cooling: BTreeMap<Arc<About>, Duration>,
    /// Recalls for want of room, which no change waits for. The pledges stay until they are returned.
    unsent: Vec<(SessionId, Pledge)>,
    /// When each session that has as many pledges as it may have was last asked to return its oldest.
    room_asked: BTreeMap<SessionId, Duration>,
    forgetting: Forgetting,
    grants: Grants,
    mappings: Mappings,
    /// Changes were lost that sessions may remember.
    is_loss: bool,
}

#[derive(Debug, Clone, Copy)]
struct Recalled {
    begun: Duration,
    /// When it began, or the session last said that it writes back pages.
    since: Duration,
    sent: Duration,
}

/// Sessions that may have pledges of an earlier leader.
#[derive(Debug, Default)]
enum Forgetting {
    /// The sessions have not been read yet.
    #[default]
    Unknown,
    Awaited {
        sessions: BTreeSet<SessionId>,
        since: Duration,
        sent: Duration,
        /// A record has to wait for them.
        delays: bool,
    },
    Done,
}

impl Pledges {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic of another thread stops the replica; what is in the table is whole between two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a view. The term stays if this leader has led before, as nobody else has meanwhile.
    pub fn begin(&self, term: u64, now: Duration, recalls: &mut Recalls) {
        let mut table = self.table();
        if table.term == 0 {
            table.term = term;
        }
        table.mappings.begin();
        table.recall_all_grants(now, recalls);
    }

    /// All members have lost their memory: what sessions remember may be gone.
    pub fn note_loss(&self) {
        self.table().is_loss = true;
    }

    /// True if a session may still show what was lost, so that nobody may see what is left yet (P10).
    pub fn hides_loss(&self) -> bool {
        let table = self.table();
        table.is_loss && !matches!(table.forgetting, Forgetting::Done)
    }

    /// The leader's term, if the session's pledges are renewed. They are not while the session has not returned a
    /// recalled pledge for too long (P6).
    pub fn term_for(&self, session: SessionId, now: Duration) -> Option<u64> {
        let table = self.table();
        let is_overdue = table.is_overdue(session, now) && !is_planted(Bug::OverdueSessionRenewed);
        (table.term != 0 && !is_overdue).then_some(table.term)
    }

    /// Sets the sessions that may have pledges of an earlier leader, and asks them to forget these.
    pub fn know_sessions(&self, sessions: &[SessionId], now: Duration, recalls: &mut Recalls) {
        let sessions: BTreeSet<SessionId> = sessions.iter().copied().collect();
        let mut table = self.table();
        let is_none = sessions.is_empty() || is_planted(Bug::EarlierPledgesNotAwaited);
        table.mappings.await_sessions(if is_none { BTreeSet::new() } else { sessions.clone() }, now);
        if is_none {
            table.forgetting = Forgetting::Done;
            return;
        }
        recalls.ask_to_forget(&sessions);
        table.forgetting = Forgetting::Awaited { sessions, since: now, sent: now, delays: false };
    }

    /// True if this session has yet to say that it has forgotten the pledges of an earlier leader.
    pub fn awaits(&self, session: SessionId) -> bool {
        let table = self.table();
        let awaits = matches!(&table.forgetting, Forgetting::Awaited { sessions, .. } if sessions.contains(&session));
        awaits || table.mappings.awaits_word_of(session)
    }

    /// True if a record has to wait until sessions have said that they have forgotten the pledges of an earlier leader.
    pub fn delay_for_forgetting(&self) -> bool {
        matches!(self.table().forgetting, Forgetting::Awaited { delays: true, .. })
    }

    /// The session has forgotten all pledges that were given before this term. Returns true if requests may go on.
    pub fn forgot(&self, session: SessionId, term: u64) -> bool {
        let mut table = self.table();
        if table.term != term {
            return false;
        }
        let frees_rights = table.mappings.heard(session);
        let Forgetting::Awaited { sessions, .. } = &mut table.forgetting else { return frees_rights };
        let was_last = sessions.remove(&session) && sessions.is_empty();
        if was_last {
            table.forgetting = Forgetting::Done;
        }
        was_last || frees_rights
    }

    /// The answer to a request that asks for pledges, with those that it can carry. `listed`: the change count of the
    /// directory that was listed.
    pub fn give(
        &self,
        at: PartitionNumber,
        by: &Ask,
        (op, listed): (&Op, Option<u64>),
        found: Result<Reply>,
        now: Duration,
    ) -> Result<Reply> {
        let ask = (by.session, by.volume);
        let mut table = self.table();
        if !table.gives(ask.0, now) {
            return found;
        }
        let mut given = Vec::new();
        let found = match (op, found) {
            (Op::Name { op: NameOp::Lookup { dir, name } }, found) => {
                let found = match found {
                    Err(Error::NotFound) => Found::Missing,
                    Ok(Reply::Elsewhere { inode, kind }) => Found::Elsewhere { inode, kind },
                    Ok(Reply::Node { attr, created: false }) => Found::Node { attr: Box::new(attr) },
                    other => return other,
                };
                let name = Pledged::Name { dir: *dir, name: name.clone() };
                given.extend(table.give(ask, name, by.moved, now).map(|number| (number, GivenFor::Name)));
                found
            }
            (Op::Inode { op: InodeOp::GetAttr { .. } }, Ok(Reply::Node { attr, created: false })) => {
                Found::Node { attr: Box::new(attr) }
            }
            (Op::Name { op: NameOp::List { dir, attributes, .. } }, Ok(Reply::List { entries, end })) => {
                if *attributes {
                    let (number, except) = table.give_entries(ask, *dir, &entries, now);
                    given.push((number, GivenFor::Entries { except }));
                }
                given.extend(listed.map(|change| (0, GivenFor::Listed { change })));
                Found::List { entries, end }
            }
            (Op::Data { op: DataOp::ReadShard { data, index, .. } }, Ok(Reply::Data { bytes })) => {
                let shard = Pledged::Shard { data: *data, index: *index };
                given.extend(table.give(ask, shard, false, now).map(|number| (number, GivenFor::Shard)));
                Found::Data { bytes }
            }
            (_, other) => return other,
        };
        if let Found::Node { attr } = &found
            && attr.spread == 1
        {
            let number = table.give(ask, Pledged::Attributes { inode: attr.id }, false, now);
            given.extend(number.map(|number| (number, GivenFor::Attributes)));
        }
        let term = table.term;
        let pledge = |(number, given_for)| GivenPledges { partition: at, term, number, given_for };
        Ok(Reply::Pledged { found, pledges: given.into_iter().map(pledge).collect() })
    }

    /// True if a record with these changes has to wait: another session has a pledge about what it changes. Recalls
    /// these pledges, and grants on the files whose inodes change. Those of `by` stay until there is the record: it may
    /// have to wait, and what the op finds then may be the work of another session, of which `by` has to hear.
    pub fn block(
        &self,
        by: SessionId,
        (changes, grants): (&[Change], RecalledGrants),
        now: Duration,
        recalls: &mut Recalls,
    ) -> bool {
        let about: BTreeSet<About> = changes.iter().flat_map(all_about).collect();
        if about.is_empty() {
            return false;
        }
        let mut table = self.table();
        match &mut table.forgetting {
            Forgetting::Unknown => return true,
            Forgetting::Awaited { delays, .. } => {
                *delays = true;
                return true;
            }
            Forgetting::Done => {}
        }
        let mut is_blocked = false;
        for one in &about {
            is_blocked |= table.recall(by, one, now, recalls);
        }
        is_blocked |= match grants {
            RecalledGrants::None => false,
            RecalledGrants::OfOthers => table.recall_grants_on(&about, by, now, recalls),
            RecalledGrants::All => table.recall_grants_on(&about, SYSTEM_SESSION, now, recalls),
        };
        is_blocked && !is_planted(Bug::RecallNotAwaited)
    }

    /// A record has these changes, or times are kept without one. `by` gave up its own pledges before it sent the op.
    pub fn changed(&self, by: SessionId, changes: &[Change]) {
        let mut table = self.table();
        changes.iter().flat_map(ended_by).for_each(|one| table.drop_of(by, &one));
        changes.iter().filter_map(removed_shard).for_each(|one| table.drop_of_all(&one));
    }

    /// The session has returned pledges, and reports what it wrote under grants among them. Returns true if a change may
    /// go on.
    pub fn returned(
        &self,
        (session, volume): (SessionId, VolumeId),
        term: u64,
        pledges: &[Pledge],
        reports: &[Report],
    ) -> bool {
        let mut table = self.table();
        if table.term != term {
            return false;
        }
        let mut is_freed = false;
        for Pledge { about, number } in pledges {
            let about = (volume, about.clone());
            let held =
                table.held.get(&about).and_then(|all| all.iter().find(|(holder, _)| *holder == session)).copied();
            if held.is_some() {
                table.grant_reported(&about, reports);
            }
            if held.is_some_and(|(_, held)| held <= *number || is_planted(Bug::OlderReturnDropsPledge)) {
                // A change may wait though its own session has the last pledge.
                is_freed |= table.recalled.contains_key(&about);
                table.drop_of(session, &about);
            }
        }
        is_freed
    }

    /// A session has ended. Returns true if a change may go on.
    pub fn end_session(&self, session: SessionId) -> bool {
        let mut table = self.table();
        table.room_asked.remove(&session);
        let about: Vec<Arc<About>> = table.by_session.remove(&session).unwrap_or_default().into_values().collect();
        for one in &about {
            table.grant_lost(one);
            table.drop_of(session, one);
        }
        let frees_rights = table.mappings.heard(session);
        let Forgetting::Awaited { sessions, .. } = &mut table.forgetting else {
            return frees_rights || !about.is_empty();
        };
        if sessions.remove(&session) && sessions.is_empty() {
            table.forgetting = Forgetting::Done;
        }
        true
    }

    /// Sends recalls again, and drops pledges that have expired: changes may go on. Mapping rights are not dropped
    /// before that is recorded.
    pub fn tick(&self, now: Duration, recalls: &mut Recalls) -> Late {
        let mut table = self.table();
        table.cooling.retain(|_, until| *until > now);
        let mut late = Late::default();
        if let Forgetting::Awaited { sessions, since, sent, .. } = &mut table.forgetting {
            if *since + EXPIRES_AFTER <= now {
                late.sessions.extend(sessions.iter());
                table.forgetting = Forgetting::Done;
            } else if *sent + RESEND_INTERVAL <= now {
                *sent = now;
                recalls.ask_to_forget(sessions);
            }
        }
        table.mappings.ask_again(now, recalls);
        recalls.add(std::mem::take(&mut table.unsent));
        let (mut expired, mut again) = (Vec::new(), Vec::new());
        for (about, recalled) in &mut table.recalled {
            if recalled.since + PATIENCE + EXPIRES_AFTER <= now {
                expired.push(about.clone());
            } else if recalled.sent + RESEND_INTERVAL <= now {
                recalled.sent = now;
                again.push(about.clone());
            }
        }
        for about in again {
            let pledge = |number| Pledge { about: about.1.clone(), number };
            let holders = table.held.get(&about).cloned().unwrap_or_default();
            recalls.add(holders.into_iter().map(|(session, number)| (session, pledge(number))).collect());
        }
        for about in expired {
            let holders = table.held.get(&about).cloned().unwrap_or_default();
            for (session, number) in holders {
                if is_mapping(&about) {
                    table.mappings.expired(&about, (session, number), &mut late);
                    continue;
                }
                late.sessions.insert(session);
                table.grant_lost(&about);
                table.drop_of(session, &about);
            }
        }
        late
    }

    /// True if the next tick has work.
    pub fn wants_tick(&self) -> bool {
        let table = self.table();
        let awaits = matches!(table.forgetting, Forgetting::Awaited { .. }) || table.mappings.awaits();
        awaits || !table.recalled.is_empty() || !table.unsent.is_empty()
    }

    /// The sessions that have not returned a recalled pledge for longer than they may, each with the time since.
    pub fn slow_sessions(&self, now: Duration) -> BTreeMap<SessionId, Duration> {
        let table = self.table();
        let mut slow = BTreeMap::new();
        for (about, recalled) in &table.recalled {
            let since = now.saturating_sub(recalled.since);
            if since >= PATIENCE {
                let holders = table.held.get(about).into_iter().flatten();
                holders.for_each(|(session, _)| _ = slow.entry(*session).or_insert(since));
            }
        }
        if let Forgetting::Awaited { sessions, since, .. } = &table.forgetting {
            let since = now.saturating_sub(*since);
            sessions.iter().filter(|_| since >= PATIENCE).for_each(|session| _ = slow.entry(*session).or_insert(since));
        }
        table.mappings.slow(now).for_each(|(session, since)| _ = slow.entry(session).or_insert(since));
        slow
    }

    /// Number of pledges that sessions have.
    pub fn count(&self) -> usize {
        self.table().by_session.values().map(BTreeMap::len).sum()
    }

    pub fn term(&self) -> u64 {
        self.table().term
    }
}

impl Table {
    /// True if the session may be given pledges now.
    fn gives(&self, session: SessionId, now: Duration) -> bool {
        self.term != 0 && matches!(self.forgetting, Forgetting::Done) && !self.is_overdue(session, now)
    }

    fn is_overdue(&self, session: SessionId, now: Duration) -> bool {
        let is_late = |(_, recalled): &(&Arc<About>, &Recalled)| recalled.since + PATIENCE <= now;
        let has = |about: &Arc<About>| {
            self.held.get(about).is_some_and(|holders| holders.iter().any(|(holder, _)| *holder == session))
        };
        self.recalled.iter().filter(is_late).any(|(about, _)| has(about))
    }

    /// Gives pledges about the names and attributes of entries. Returns the number of the first, and those that are
    /// not given.
    fn give_entries(
        &mut self,
        ask: (SessionId, VolumeId),
        dir: InodeId,
        entries: &[Entry],
        now: Duration,
    ) -> (u64, Vec<u32>) {
        let (first, mut except) = (self.last + 1, Vec::new());
        for (index, entry) in entries.iter().enumerate() {
            let name = Pledged::Name { dir, name: entry.name.clone() };
            let attributes = entry.attr.as_ref().filter(|attr| attr.spread == 1);
            let attributes = attributes.map(|attr| Pledged::Attributes { inode: attr.id });
            for (place, about) in [Some(name), attributes].into_iter().enumerate() {
                // Each has its own number, given or not.
                let number = first + 2 * index as u64 + place as u64;
                self.last = number - 1;
                if about.and_then(|about| self.give(ask, about, false, now)).is_none() {
                    except.push((2 * index + place) as u32);
                }
                self.last = number;
            }
        }
        (first, except)
    }

    /// `warm`: also if it was recalled a moment ago.
    fn give(
        &mut self,
        (session, volume): (SessionId, VolumeId),
        about: Pledged,
        warm: bool,
        now: Duration,
    ) -> Option<u64> {
        let wanted = (volume, about);
        let is_recalled = self.recalled.contains_key(&wanted) && !is_planted(Bug::PledgeGivenDuringRecall);
        if is_recalled || !warm && self.cooling.get(&wanted).is_some_and(|until| *until > now) {
            return None;
        }
        if self.cooling.len() >= COOLING_MAX || !self.has_room(session, now) {
            return None;
        }
        Some(self.insert(session, wanted))
    }

    /// Gives a pledge, with a new number, without further conditions.
    fn insert(&mut self, session: SessionId, wanted: About) -> u64 {
        let about = match self.held.get_key_value(&wanted) {
            Some((known, _)) => known.clone(),
            // A name that came with a request shares the request's memory.
            None => Arc::new(copied(wanted)),
        };
        self.last += 1;
        let number = self.last;
        let holders = self.held.entry(about.clone()).or_default();
        let before = match holders.iter_mut().find(|(holder, _)| *holder == session) {
            Some((_, held)) => Some(std::mem::replace(held, number)),
            None => {
                holders.push((session, number));
                self.grants.given(&about);
                self.mappings.given(&about, number);
                None
            }
        };
        let own = self.by_session.entry(session).or_default();
        before.map(|number| own.remove(&number));
        own.insert(number, about);
        number
    }

    /// True if the session may have one more pledge. Otherwise its oldest ones are recalled.
    fn has_room(&mut self, session: SessionId, now: Duration) -> bool {
        let Some(own) = self.by_session.get(&session).filter(|own| own.len() >= PER_SESSION_MAX) else { return true };
        if self.room_asked.get(&session).is_some_and(|asked| *asked + RESEND_INTERVAL > now) {
            return false;
        }
        let oldest: Vec<(u64, Arc<About>)> =
            own.iter().take(OLDEST_AT_ONCE).map(|(number, about)| (*number, about.clone())).collect();
        let pledge = |(number, about): (u64, Arc<About>)| (session, Pledge { about: about.1.clone(), number });
        self.unsent.extend(oldest.into_iter().map(pledge));
        self.room_asked.insert(session, now);
        false
    }

    /// Recalls a pledge of all sessions but one. Returns true if there are any.
    fn recall(&mut self, by: SessionId, about: &About, now: Duration, recalls: &mut Recalls) -> bool {
        let Some((about, holders)) = self.held.get_key_value(about) else { return false };
        let others: Vec<(SessionId, u64)> = holders.iter().filter(|(holder, _)| *holder != by).copied().collect();
        if others.is_empty() {
            return false;
        }
        let about = about.clone();
        if !is_mapping(&about) {
            self.cooling.insert(about.clone(), now + COOLING);
        }
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.recalled.entry(about.clone()) {
            vacant.insert(Recalled { begun: now, since: now, sent: now });
            let pledge = |number| Pledge { about: about.1.clone(), number };
            recalls.add(others.into_iter().map(|(session, number)| (session, pledge(number))).collect());
        }
        true
    }

    fn drop_of_all(&mut self, about: &About) {
        let holders = self.held.get(about).cloned().unwrap_or_default();
        holders.into_iter().for_each(|(session, _)| self.drop_of(session, about));
    }

    fn drop_of(&mut self, session: SessionId, about: &About) {
        let Some(holders) = self.held.get_mut(about) else { return };
        let Some(index) = holders.iter().position(|(holder, _)| *holder == session) else { return };
        let (_, number) = holders.swap_remove(index);
        self.grants.dropped(about);
        self.mappings.dropped(about);
        let is_last = holders.is_empty();
        if let Some(own) = self.by_session.get_mut(&session) {
            own.remove(&number);
            if own.is_empty() {
                self.by_session.remove(&session);
            }
        }
        if is_last {
            self.held.remove(about);
            self.recalled.remove(about);
        }
    }
}

/// Whose pledges have expired.
#[derive(Debug, Default)]
pub(crate) struct Late {
    pub sessions: BTreeSet<SessionId>,
    /// Mapping rights that have expired, and are still their sessions'.
    pub rights: Vec<PassedOn>,
}

fn copied((volume, about): About) -> About {
    let own = |name: &Name| Name::new(bytes::Bytes::copy_from_slice(name.as_bytes()));
    let about = match about {
        Pledged::Name { dir, name } => Pledged::Name { dir, name: own(&name).unwrap_or(name) },
        other => other,
    };
    (volume, about)
}

#[cfg(test)]
mod tests;
