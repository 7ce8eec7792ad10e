//! How a leader begins, what it hears, and how it answers.

use super::*;
use crate::scope::numbers;

impl World {
    /// In a new life, or a new view.
    pub(super) fn begin_to_lead(&mut self, lane: &Lane, leader: u8) {
        let at = self.at(leader);
        at.lives += 1;
        let term = if lane.rules.terms_differ { at.lives * 4 + leader } else { at.lives };
        let mut found = Uneven::default();
        at.list.filter(|_| lane.rules.own_found).into_iter().for_each(|op| found.add_own(lane, op));
        at.lead = Some(Box::new(Lead {
            phase: Phase::Asking,
            term,
            known: 0,
            whole: 0,
            held: [0; 3],
            open: None,
            unsettled: false,
            due: false,
            closing: None,
            found: (found.cells != 0).then_some(found),
            pending: Vec::new(),
            reading: None,
        }));
        let others = (self.views.now.members | self.views.now.learners) & !bit(leader);
        numbers(others).filter(|to| self.may_ask(leader, *to)).collect::<Vec<_>>().into_iter().for_each(|to| {
            self.ask(leader, to);
        });
        self.decide(lane, leader);
    }

    /// The view that a leader leads, if it is the one that is recorded now.
    pub(super) fn view_of(&self, leader: u8) -> Option<View> {
        let at = &self.replicas[leader as usize];
        let views = [self.views.now, self.views.opened];
        let view = views.into_iter().find(|view| view.epoch == at.epoch && view.leader == leader)?;
        (at.up && at.lead.is_some()).then_some(view)
    }

    pub(super) fn may_ask(&self, leader: u8, to: u8) -> bool {
        let Some(view) = self.view_of(leader) else { return false };
        let (at, other) = (&self.replicas[leader as usize], &self.replicas[to as usize]);
        let is_known = at.lead.as_ref().is_none_or(|lead| lead.known & bit(to) != 0);
        let queue = &self.back[leader as usize * self.replicas.len() + to as usize];
        let is_asked =
            queue.iter().any(|(epoch, message)| *epoch == at.epoch && matches!(message, Message::Ask { .. }));
        let is_there = (view.members | view.learners) & !bit(leader) & bit(to) != 0;
        let is_its_turn = at.serves() || view.learners & bit(to) == 0;
        is_there && is_its_turn && other.up && other.epoch == at.epoch && !is_known && !is_asked
    }

    pub(super) fn ask(&mut self, leader: u8, to: u8) {
        let Some(term) = self.at(leader).lead.as_ref().map(|lead| lead.term) else { return };
        self.send(leader, to, Message::Ask { term });
    }

    fn send(&mut self, from: u8, to: u8, message: Message) {
        let epoch = self.at(from).epoch;
        self.back(from, to).push((epoch, message));
    }

    /// To all who have said where their logs end.
    pub(super) fn send_known(&mut self, leader: u8, among: Mask, message: Message) {
        let known = self.at(leader).lead.as_ref().map_or(0, |lead| lead.known);
        numbers(known & among).for_each(|to| self.send(leader, to, message));
    }

    /// A record on its way. -> its number.
    pub(super) fn append(&mut self, lane: &Lane, leader: u8, change: Change) -> u8 {
        let at = self.at(leader);
        let record = Record { epoch: at.epoch, change };
        at.take(lane, record);
        let sequence = at.log.len() as u8;
        self.send_known(leader, !0, Message::Append { sequence, record });
        sequence
    }

    /// A message of a leader arrives; what it answers is known at once.
    pub(super) fn hear(&mut self, lane: &Lane, from: u8, to: u8, message: Message) {
        match message {
            Message::Ask { term } => {
                self.at(to).term = term;
                self.told_position(lane, from, to);
            }
            Message::Append { sequence, record } => {
                let at = self.at(to);
                if at.log.len() as u8 + 1 == sequence {
                    at.take(lane, record);
                }
                let held = at.log.len() as u8;
                let (last, is_attached) = (self.at(from).log.len() as u8, self.is_heard(from, to));
                if let Some(lead) = self.at(from).lead.as_mut().filter(|_| is_attached) {
                    lead.held[to as usize] = held;
                    lead.whole |= if held == last { bit(to) } else { 0 };
                }
            }
            Message::List { sequence } => self.told_list(lane, from, to, sequence),
            Message::AskFast { stamp } => self.told_held(lane, from, to, stamp),
        }
        self.go_on(lane, from);
    }

    /// Whether a leader takes what one says to it.
    pub(super) fn is_heard(&self, leader: u8, from: u8) -> bool {
        let (at, other) = (&self.replicas[leader as usize], &self.replicas[from as usize]);
        at.up && at.epoch == other.epoch && at.lead.as_ref().is_some_and(|lead| lead.known & bit(from) != 0)
    }

    fn told_position(&mut self, lane: &Lane, leader: u8, from: u8) {
        let Some(view) = self.view_of(leader) else { return };
        let (other, own) = (self.replicas[from as usize].clone(), self.replicas[leader as usize].clone());
        let Some(lead) = self.at(leader).lead.as_mut() else { return };
        let is_learner = view.learners & bit(from) != 0;
        if own.epoch != other.epoch || lead.known & bit(from) != 0 || is_learner && lead.phase != Phase::Serving {
            return;
        }
        lead.known |= bit(from);
        lead.held[from as usize] = other.log.len().min(own.log.len()) as u8;
        let listed = if is_learner { lane.rules.learner_lists } else { lane.rules.found_evened };
        if is_learner && !own.log.starts_with(&other.log) {
            self.heal(leader, from);
        } else if let Some(op) = other.list.filter(|_| listed && (is_learner || lead.phase != Phase::Serving)) {
            lead.found.get_or_insert_default().add(lane, op);
        }
        if own.lead.is_some_and(|lead| lead.phase == Phase::Asking) {
            return self.decide(lane, leader);
        }
        if !is_learner && other.log.len() > own.log.len() {
            self.broken = Some("a member has records that its leader never made");
        }
        self.feed(leader, from);
        let Some(lead) = self.at(leader).lead.as_mut() else { return };
        lead.reading = lead.reading.take().filter(|reading| reading.missing & bit(from) == 0);
        let asked = lead.closing.as_ref().filter(|closing| closing.missing & bit(from) != 0);
        let asked = asked.map(|closing| Message::List { sequence: closing.sequence });
        asked.into_iter().for_each(|list| self.send(leader, from, list));
    }

    /// Its log goes on where the leader's is, and all that it has is as there.
    fn heal(&mut self, leader: u8, learner: u8) {
        let own = self.replicas[leader as usize].clone();
        let at = self.at(learner);
        (at.log, at.stamp, at.cells, at.ids, at.list) = (own.log, own.stamp, own.cells, own.ids, None);
        let held = at.log.len() as u8;
        let Some(lead) = self.at(leader).lead.as_mut() else { return };
        lead.held[learner as usize] = held;
        lead.whole |= bit(learner);
    }

    fn feed(&mut self, leader: u8, to: u8) {
        let at = &self.replicas[leader as usize];
        let Some(held) = at.lead.as_ref().map(|lead| lead.held[to as usize]) else { return };
        let records: Vec<(usize, Record)> = at.log.iter().copied().enumerate().skip(held as usize).collect();
        for (index, record) in records {
            self.send(leader, to, Message::Append { sequence: index as u8 + 1, record });
        }
        if held as usize == self.at(leader).log.len()
            && let Some(lead) = self.at(leader).lead.as_mut()
        {
            lead.whole |= bit(to);
        }
    }

    /// Who has a longer log, if all have told.
    pub(super) fn fetches_from(&self, leader: u8) -> Option<u8> {
        let others = self.view_of(leader)?.members & !bit(leader);
        let at = &self.replicas[leader as usize];
        at.lead.as_ref().filter(|lead| lead.phase == Phase::Asking && others & !lead.known == 0)?;
        let position = |at: &u8| self.replicas[*at as usize].position();
        numbers(others).max_by_key(position).filter(|best| position(best) > at.position())
    }

    /// Once all members have told: what is missing here is fetched, what is missing there is given.
    fn decide(&mut self, lane: &Lane, leader: u8) {
        let Some(view) = self.view_of(leader) else { return };
        let others = view.members & !bit(leader);
        let is_next = self.fetches_from(leader).is_none();
        let Some(lead) = self.at(leader).lead.as_mut() else { return };
        if lead.phase != Phase::Asking || others & !lead.known != 0 || !is_next {
            return;
        }
        lead.phase = Phase::Feeding;
        numbers(others).for_each(|to| self.feed(leader, to));
        self.go_on(lane, leader);
    }

    pub(super) fn fetch(&mut self, lane: &Lane, leader: u8, from: u8) {
        let others = self.replicas[from as usize].log.clone();
        let at = self.at(leader);
        if !others.starts_with(&at.log) {
            self.broken = Some("logs of members differ");
            return;
        }
        let own = at.log.len();
        others[own..].iter().for_each(|record| at.take(lane, *record));
        let is_listed = at.list.map_or(0, bit);
        if let Some(found) = at.lead.as_mut().and_then(|lead| lead.found.as_mut()).filter(|_| lane.rules.fetched_lists)
        {
            found.own &= is_listed;
        }
        self.decide(lane, leader);
    }

    /// What every member has.
    pub(super) fn settled(&self, leader: u8) -> u8 {
        let at = &self.replicas[leader as usize];
        let (Some(view), Some(lead)) = (self.view_of(leader), &at.lead) else { return 0 };
        let others = numbers(view.members & !bit(leader));
        others.map(|other| lead.held[other as usize]).min().unwrap_or(at.log.len() as u8)
    }

    /// Every member has every record, and can be told more.
    pub(super) fn is_level(&self, leader: u8) -> bool {
        let at = &self.replicas[leader as usize];
        let (Some(view), Some(lead)) = (self.view_of(leader), &at.lead) else { return false };
        let all_known = view.members & !bit(leader) & !lead.known == 0;
        lead.phase != Phase::Asking && all_known && self.settled(leader) as usize == at.log.len()
    }

    /// Answers what may be answered, and goes on from phase to phase.
    pub(super) fn go_on(&mut self, lane: &Lane, leader: u8) {
        let Some(view) = self.view_of(leader) else { return };
        let (is_level, settled) = (self.is_level(leader), self.settled(leader));
        let is_leased = view.epoch == self.views.opened.epoch;
        let Some(lead) = self.at(leader).lead.as_mut() else { return };
        if view.open && lead.closing.is_none() && (is_level || lead.phase == Phase::Serving) {
            let found = lead.found.take();
            lead.closing = found.map(|uneven| Closing { sequence: 0, missing: 0, uneven });
        }
        if view.open && is_level && lead.phase == Phase::Feeding && lead.closing.is_none() {
            lead.phase = Phase::Serving;
        }
        let (term, epoch) = (lead.term, view.epoch);
        let due: Vec<_> = lead.pending.extract_if(.., |(_, sequence, _)| *sequence <= settled).collect();
        let read = lead.reading.take_if(|reading| reading.upto.is_some_and(|upto| upto <= settled));
        if !is_leased {
            return;
        }
        for (op, sequence, opens) in due {
            let allows = opens.then_some((term, Stamp::Led(epoch, sequence)));
            let client = &mut self.clients[lane.scope.op(op).0];
            if client.work == Some((op, Work::Led)) {
                client.work = Some((op, Work::Answered { allows }));
            }
        }
        if let Some(reading) = read {
            self.show(lane, reading.cells, reading.done);
        }
    }

    /// A reader sees this.
    pub(super) fn show(&mut self, lane: &Lane, cells: [u8; CELLS], done: Mask) {
        if let Err(complaint) = self.ghost.read_since(&lane.scope, cells, done) {
            self.broken = Some(complaint);
        }
    }
}
