//! Views, as far as times depend on them.

use super::*;
use crate::scope::numbers;

impl World {
    fn mask(&self, pleases: impl Fn(&Replica) -> bool) -> Mask {
        let count = self.replicas.len() as u8;
        (0..count).filter(|at| pleases(&self.replicas[*at as usize])).fold(0, |mask, at| mask | bit(at))
    }

    /// Members of the next view; `but`: replicas believed dead, `joins`: replicas that join.
    fn next_members(&self, but: Mask, joins: Mask) -> Option<Mask> {
        let up = self.mask(|at| at.up) & !but;
        let lost = self.mask(|at| at.lost);
        let members = self.opened & up & !lost;
        match members {
            // Without any memory all members must be present.
            0 if self.opened & !lost == 0 && self.opened & !up == 0 => Some(self.opened),
            0 => None,
            _ => Some(members | joins),
        }
    }

    /// Views that may be formed: members, and whether that is a fault.
    pub(super) fn formable(&self) -> Vec<(Mask, bool)> {
        let mut found = Vec::new();
        let is_here = |at: &Replica| at.up;
        let away = self.mask(is_here) & !self.view.members;
        if !self.all_present() {
            found.extend(self.next_members(0, 0));
        } else if away != 0 && self.serves && self.is_level() {
            found.extend(self.next_members(0, away & away.wrapping_neg()));
        }
        let mut found: Vec<(Mask, bool)> = found.into_iter().map(|members| (members, false)).collect();
        if self.budget.suspicions > 0 {
            let suspects = numbers(self.view.members & self.mask(is_here));
            let next = |suspect| self.next_members(bit(suspect), 0).filter(|next| next & bit(suspect) == 0);
            found.extend(suspects.filter_map(next).map(|members| (members, true)));
        }
        found
    }

    /// The leader stays; a joining replica leads if it is the first; otherwise the first leads.
    pub(super) fn form(&mut self, times: &Times, members: Mask, is_suspicion: bool) {
        self.budget.suspicions -= u8::from(is_suspicion);
        let before = self.view.clone();
        let was_serving = self.serves && self.leads();
        let joins = members & !self.opened;
        for at in numbers(joins) {
            let log = self.leader().log.clone();
            let at = self.at(at);
            (at.synced, at.log, at.lost) = (log.len() as u8, log, false);
        }
        let first = members.trailing_zeros() as u8;
        let stays = members & bit(before.leader) != 0 && joins & bit(first) == 0;
        let leader = if stays { before.leader } else { first };
        if was_serving && members & bit(before.leader) == 0 {
            let shows = self.is_level().then_some(self.inode().mtime);
            self.stale = Some(Stale { replica: before.leader, is_safe: self.is_safe(times), shows });
        }
        // The longest log of the members is valid; the leader fetches the records of it that it lacks.
        let longest = numbers(members).max_by_key(|at| self.replicas[*at as usize].held()).unwrap_or(leader);
        let log = self.replicas[longest as usize].log.clone();
        if numbers(members).any(|at| !log.starts_with(&self.replicas[at as usize].log)) {
            self.broken = Some("logs of members differ");
        }
        self.at(leader).log = log;
        self.view = View { leader, members, open: false, void: 0 };
        self.forget();
    }

    /// A leader starts, in a new view or a new incarnation.
    fn forget(&mut self) {
        (self.serves, self.noted) = (false, None);
        self.clients.iter_mut().for_each(|client| client.waits = None);
    }

    pub(super) fn may_open(&self) -> bool {
        !self.view.open && self.view.void == 0 && self.leads() && self.is_level()
    }

    /// All members have the log on stable storage, and an excluded leader has stopped to serve.
    pub(super) fn open(&mut self, times: &Times) {
        let members = self.view.members;
        if numbers(self.opened).all(|at| self.replicas[at as usize].lost) {
            // Times that were seen and not synced may be lost with the memory of all.
            self.seen.latest = 0;
        }
        for at in numbers(members) {
            let at = self.at(at);
            (at.synced, at.lost) = (at.held(), false);
        }
        (self.view.open, self.opened) = (true, members);
        self.stale =
            self.stale.take().filter(|_| !times.rules.early_leased).map(|stale| Stale { shows: None, ..stale });
    }

    pub(super) fn kill(&mut self, replica: u8) {
        self.at(replica).up = false;
        self.stale = self.stale.take().filter(|stale| stale.replica != replica);
        if self.view.leader == replica {
            self.forget();
        }
    }

    /// A machine loses power: unsynced data is gone, or (`all`) was written nevertheless.
    pub(super) fn cut(&mut self, replica: u8, all: bool) {
        self.kill(replica);
        let at = self.at(replica);
        at.log.truncate(if all { at.log.len() } else { at.synced as usize });
        (at.synced, at.lost) = (at.held(), true);
        // Rule 17: a view that is being formed names an earlier incarnation.
        self.view.void |= if self.view.open { 0 } else { self.view.members & bit(replica) };
    }

    pub(super) fn blackout(&mut self, kept: Mask) {
        (0..self.replicas.len() as u8).for_each(|at| self.cut(at, kept & bit(at) != 0));
    }
}
