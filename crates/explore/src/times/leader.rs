//! The inode's leader, its clients, and their observations.

use super::*;
use crate::scope::numbers;

impl World {
    fn members(&self) -> impl Iterator<Item = &Replica> {
        numbers(self.view.members).map(|at| &self.replicas[at as usize])
    }

    /// True if a replica runs in the incarnation that the view names (rule 17).
    pub(super) fn is_there(&self, replica: u8) -> bool {
        let at = &self.replicas[replica as usize];
        let is_meant = if self.view.open { !at.lost } else { self.view.void & bit(replica) == 0 };
        at.up && is_meant
    }

    pub(super) fn leads(&self) -> bool {
        self.is_there(self.view.leader)
    }

    pub(super) fn all_present(&self) -> bool {
        numbers(self.view.members).all(|at| self.is_there(at))
    }

    /// True if every member has every record.
    pub(super) fn is_level(&self) -> bool {
        self.all_present() && self.members().all(|at| at.held() == self.last())
    }

    /// The last record that every member has on stable storage.
    pub(super) fn stable(&self) -> u8 {
        self.members().map(|at| at.synced).min().unwrap_or(0)
    }

    /// True if times may be answered before the other members have them.
    pub(super) fn is_safe(&self, times: &Times) -> bool {
        let held = self.members().map(|at| at.held()).min().unwrap_or(0);
        let has_note = |by: u8| match (times.rules.noted, times.rules.note_synced) {
            (true, true) => by <= self.stable(),
            (true, false) => by <= held,
            (false, _) => true,
        };
        self.noted.is_some_and(has_note)
    }

    /// Adds a record at the leader; the other members follow.
    pub(super) fn append(&mut self, record: Record) {
        let leader = self.view.leader;
        self.at(leader).log.push(record);
    }

    pub(super) fn begin(&mut self, times: &Times, client: usize) {
        self.now += 1;
        self.clients[client].works = true;
        let line = self.line(times, client);
        self.seen.before[client] = self.seen.latest;
        match line {
            Line::Write => self.seen.set = false,
            Line::Set => (self.seen.setting, self.seen.latest, self.seen.floor) = (true, 0, 0),
            Line::Change => {}
        }
    }

    pub(super) fn line(&self, times: &Times, client: usize) -> Line {
        times.scripts[client][self.clients[client].next as usize]
    }

    pub(super) fn may_order(&self, client: usize) -> bool {
        let at = &self.clients[client];
        at.works && at.waits.is_none() && self.serves && self.leads() && self.all_present()
    }

    pub(super) fn order(&mut self, times: &Times, client: usize) {
        let op = Some((client as u8, self.clients[client].next));
        let inode = self.inode();
        if self.leader().log.iter().any(|record| record.op == op) {
            self.clients[client].waits = Some(self.last());
            return;
        }
        match self.line(times, client) {
            Line::Write => {
                let is_safe = self.is_safe(times);
                let noted = inode.noted || self.noted.is_none();
                self.append(Record { op, mtime: self.now, noted });
                self.noted = self.noted.or(Some(self.last()));
                if is_safe {
                    return self.done(times, client);
                }
            }
            line => {
                let mtime = if line == Line::Set { SET } else { inode.mtime };
                let ends = times.rules.ends_with_change && self.noted.is_some();
                self.append(Record { op, mtime, noted: inode.noted && !ends });
                self.noted = self.noted.filter(|_| !ends);
            }
        }
        self.clients[client].waits = Some(self.last());
    }

    /// True if all members have the record that a client waits for on stable storage.
    pub(super) fn may_answer(&self, client: usize) -> bool {
        self.serves && self.leads() && self.clients[client].waits.is_some_and(|upto| upto <= self.stable())
    }

    /// A client receives the answer to its op.
    pub(super) fn done(&mut self, times: &Times, client: usize) {
        let line = self.line(times, client);
        let writes = |client: usize| self.clients[client].works && self.line(times, client) == Line::Write;
        let is_alone = !(0..self.clients.len()).any(writes);
        let seen = &mut self.seen;
        match line {
            Line::Write if !seen.setting => seen.floor = seen.floor.max(seen.before[client]),
            Line::Set => (seen.setting, seen.latest, seen.floor, seen.set) = (false, 0, 0, is_alone),
            _ => {}
        }
        seen.before[client] = 0;
        let at = &mut self.clients[client];
        *at = Client { next: at.next + 1, works: false, waits: None };
    }

    pub(super) fn may_idle(&self) -> bool {
        self.serves && self.leads() && self.all_present() && self.noted.is_some()
    }

    /// No client has written for a while.
    pub(super) fn idle(&mut self, times: &Times) {
        self.noted = None;
        if times.rules.idle_in_log {
            self.append(Record { op: None, noted: false, ..self.inode() });
        } else {
            let records = self.replicas.iter_mut().flat_map(|at| &mut at.log);
            records.for_each(|record| record.noted = false);
        }
    }

    pub(super) fn may_renew(&self, times: &Times) -> bool {
        let may = self.view.open || !times.rules.renewed_late;
        self.leads() && may && self.is_level() && self.is_found(times)
    }

    /// True if there is a marker of an earlier leader.
    fn is_found(&self, times: &Times) -> bool {
        let is_renewed = !times.rules.note_taken && self.inode().op.is_none();
        self.inode().noted && self.noted.is_none() && !is_renewed
    }

    /// Renews the times: those that an earlier leader answered may be on its copy only.
    pub(super) fn renew(&mut self, times: &Times) {
        let inode = self.inode();
        let mtime = if times.rules.renewed { inode.mtime.max(self.now) } else { inode.mtime };
        self.append(Record { op: None, mtime, noted: !times.rules.note_taken });
    }

    pub(super) fn may_serve(&self, times: &Times) -> bool {
        let is_due = self.is_found(times) && times.rules.renewed_first;
        self.view.open && !self.serves && self.leads() && self.is_level() && !is_due
    }

    pub(super) fn may_read(&self, times: &Times) -> bool {
        let is_settled = self.is_level() || !times.rules.settled_reads;
        self.serves && self.leads() && is_settled && self.is_news(self.inode().mtime)
    }

    pub(super) fn is_news(&self, mtime: u8) -> bool {
        self.complains(mtime).is_some() || mtime > self.seen.latest
    }

    fn complains(&self, mtime: u8) -> Option<&'static str> {
        let seen = &self.seen;
        if seen.set && mtime != SET {
            Some("times that a client set are not shown")
        } else if !seen.setting && mtime < seen.latest {
            Some("times go back though no client set them")
        } else if !seen.setting && seen.floor != 0 && mtime <= seen.floor {
            Some("a backup misses an acknowledged write")
        } else {
            None
        }
    }

    /// A client sees these times.
    pub(super) fn show(&mut self, mtime: u8) {
        self.broken = self.broken.or(self.complains(mtime));
        self.seen.latest = self.seen.latest.max(mtime);
    }
}
