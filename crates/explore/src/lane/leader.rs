//! How a leader starts, handles messages, and answers.

use super::*;
use crate::scope::numbers;

impl World {
    /// The leader starts, in a new incarnation or a new view.
    pub(super) fn begin_to_lead(&mut self, lane: &Lane, leader: u8) {
        let at = self.at(leader);
        at.lives += 1;
        let term = if lane.rules.terms_differ { at.lives * 4 + leader } else { at.lives };
        let mut found = Unreconciled::new();
        if lane.rules.own_found {
            found.add_own(at.now.list);
        }
        at.lead = Some(Box::new(Lead {
            phase: Phase::Asking,
            term,
            known: 0,
            whole: 0,
            held: [0; 3],
            open: None,
            unsettled: false,
            loose: false,
            alone: false,
            round: None,
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

    /// The view of a leader, if it is the one that is recorded now.
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
        is_there && is_its_turn && other.is_in() && other.epoch == at.epoch && !is_known && !is_asked
    }

    pub(super) fn ask(&mut self, leader: u8, to: u8) {
        let Some(term) = self.at(leader).lead.as_ref().map(|lead| lead.term) else { return };
        self.send(leader, to, Message::Ask { term });
    }

    fn send(&mut self, from: u8, to: u8, message: Message) {
        let epoch = self.at(from).epoch;
        self.back(from, to).push((epoch, message));
    }

    /// Sends a message to those replicas of `among` that have reported the ends of their logs.
    pub(super) fn send_known(&mut self, leader: u8, among: Mask, message: Message) {
        let known = self.at(leader).lead.as_ref().map_or(0, |lead| lead.known);
        numbers(known & among).for_each(|to| self.send(leader, to, message));
    }

    /// Appends a record and sends it. Returns its number.
    pub(super) fn append(&mut self, lane: &Lane, leader: u8, change: Change) -> u8 {
        let at = self.at(leader);
        let record = Record { epoch: at.epoch, change };
        at.take(lane, record);
        let sequence = at.now.log.len() as u8;
        self.send_known(leader, !0, Message::Append { sequence, record });
        sequence
    }

    /// A leader's message arrives; its answer is known at once.
    pub(super) fn receive(&mut self, lane: &Lane, from: u8, to: u8, message: Message) {
        match message {
            Message::Ask { term } => {
                self.at(to).term = term;
                self.position_received(lane, from, to);
            }
            Message::Append { sequence, record } => {
                let at = self.at(to);
                if at.now.log.len() as u8 + 1 == sequence {
                    at.take(lane, record);
                }
                let held = at.now.log.len() as u8;
                let (last, is_attached) = (self.at(from).now.log.len() as u8, self.is_accepted(from, to));
                if let Some(lead) = self.at(from).lead.as_mut().filter(|_| is_attached) {
                    lead.held[to as usize] = held;
                    lead.whole |= if held == last { bit(to) } else { 0 };
                }
            }
            Message::Sync => self.synced_received(from, to),
            Message::List { sequence } => self.list_received(lane, from, to, sequence),
            Message::AskFast { stamp } => self.held_received(lane, from, to, stamp),
        }
        self.go_on(lane, from);
    }

    /// True if a leader accepts messages of this replica.
    pub(super) fn is_accepted(&self, leader: u8, from: u8) -> bool {
        let (at, other) = (&self.replicas[leader as usize], &self.replicas[from as usize]);
        at.up && at.epoch == other.epoch && at.lead.as_ref().is_some_and(|lead| lead.known & bit(from) != 0)
    }

    fn position_received(&mut self, lane: &Lane, leader: u8, from: u8) {
        let Some(view) = self.view_of(leader) else { return };
        let (other, own) = (self.replicas[from as usize].clone(), self.replicas[leader as usize].clone());
        let Some(lead) = self.at(leader).lead.as_mut() else { return };
        let is_learner = view.learners & bit(from) != 0;
        if own.epoch != other.epoch || lead.known & bit(from) != 0 || is_learner && lead.phase != Phase::Serving {
            return;
        }
        lead.known |= bit(from);
        lead.held[from as usize] = other.now.log.len().min(own.now.log.len()) as u8;
        let listed = if is_learner { lane.rules.learner_lists } else { lane.rules.found_evened };
        let is_compared = own.now.noted && lane.rules.learners_compared;
        if is_learner && (is_compared || !own.now.log.starts_with(&other.now.log)) {
            self.heal(lane, leader, from);
        } else if !other.now.list.is_empty() && listed && (is_learner || lead.phase != Phase::Serving) {
            lead.found.get_or_insert_with(Unreconciled::new).add(lane, from, other.now.list);
        }
        if own.lead.is_some_and(|lead| lead.phase == Phase::Asking) {
            return self.decide(lane, leader);
        }
        if !is_learner && other.now.log.len() > own.now.log.len() {
            self.broken = Some("a member has records that its leader never made");
        }
        self.feed(leader, from);
        let Some(lead) = self.at(leader).lead.as_mut() else { return };
        lead.reading = lead.reading.take().filter(|reading| reading.missing & bit(from) == 0);
        let asked = lead.closing.as_ref().filter(|closing| closing.missing & bit(from) != 0);
        let asked = asked.map(|closing| Message::List { sequence: closing.sequence });
        let is_awaited = lead.round.is_some_and(|round| round & bit(from) != 0);
        asked.into_iter().chain(is_awaited.then_some(Message::Sync)).for_each(|again| self.send(leader, from, again));
    }

    /// Brings the learner's log and content to the leader's state. Bytes are compared by their stamps: where these
    /// differ, or the learner lists a write, the shard gets another stamp on all members.
    fn heal(&mut self, lane: &Lane, leader: u8, learner: u8) {
        let (own, other) = (&self.replicas[leader as usize].now, &self.replicas[learner as usize].now);
        let is_listed = !other.list.is_empty() && lane.rules.learner_lists;
        let differs = own.stamp != other.stamp || is_listed;
        if differs {
            let length = self.at(leader).now.length;
            self.append(lane, leader, Change::Restamp { length });
        }
        let own = Rc::clone(&self.replicas[leader as usize].now);
        let now = self.at(learner).write();
        let (cells, length) = if differs { (own.cells, own.length) } else { (now.cells, now.length) };
        *now = Content { cells, length, list: List::default(), ..(*own).clone() };
        let held = now.log.len() as u8;
        let Some(lead) = self.at(leader).lead.as_mut() else { return };
        lead.held[learner as usize] = held;
        lead.whole |= bit(learner);
    }

    fn feed(&mut self, leader: u8, to: u8) {
        let at = &self.replicas[leader as usize];
        let Some(held) = at.lead.as_ref().map(|lead| lead.held[to as usize]) else { return };
        let records: Vec<(usize, Record)> = at.now.log.iter().copied().enumerate().skip(held as usize).collect();
        for (index, record) in records {
            self.send(leader, to, Message::Append { sequence: index as u8 + 1, record });
        }
        if held as usize == self.at(leader).now.log.len()
            && let Some(lead) = self.at(leader).lead.as_mut()
        {
            lead.whole |= bit(to);
        }
    }

    /// The member with a longer log, if all have reported.
    pub(super) fn fetches_from(&self, leader: u8) -> Option<u8> {
        let others = self.view_of(leader)?.members & !bit(leader);
        let at = &self.replicas[leader as usize];
        at.lead.as_ref().filter(|lead| lead.phase == Phase::Asking && others & !lead.known == 0)?;
        let position = |at: &u8| self.replicas[*at as usize].position();
        numbers(others).max_by_key(position).filter(|best| position(best) > at.position())
    }

    /// Once all members have reported: fetches the records that are missing here, and sends those that are missing
    /// there.
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
        let others = self.replicas[from as usize].now.log.clone();
        let at = self.at(leader);
        if !others.starts_with(&at.now.log) {
            self.broken = Some("logs of members differ");
            return;
        }
        let own = at.now.log.len();
        others[own..].iter().for_each(|record| at.take(lane, *record));
        let is_listed = at.now.list.ops;
        if let Some(found) = at.lead.as_mut().and_then(|lead| lead.found.as_mut()).filter(|_| lane.rules.fetched_lists)
        {
            (found.own, found.everywhere) = (found.own & is_listed, found.everywhere & is_listed);
        }
        self.decide(lane, leader);
    }

    /// The last record that every member has.
    pub(super) fn settled(&self, leader: u8) -> u8 {
        let at = &self.replicas[leader as usize];
        let (Some(view), Some(lead)) = (self.view_of(leader), &at.lead) else { return 0 };
        let others = numbers(view.members & !bit(leader));
        others.map(|other| lead.held[other as usize]).min().unwrap_or(at.now.log.len() as u8)
    }

    /// True if every member has every record, and can receive more.
    pub(super) fn is_level(&self, leader: u8) -> bool {
        let at = &self.replicas[leader as usize];
        let (Some(view), Some(lead)) = (self.view_of(leader), &at.lead) else { return false };
        let all_known = view.members & !bit(leader) & !lead.known == 0;
        lead.phase != Phase::Asking && all_known && self.settled(leader) as usize == at.now.log.len()
    }

    /// Sends the answers that are possible, and advances from phase to phase.
    pub(super) fn go_on(&mut self, lane: &Lane, leader: u8) {
        let Some(view) = self.view_of(leader) else { return };
        let (is_level, settled) = (self.is_level(leader), self.settled(leader));
        let stable = self.stable(leader, settled);
        let is_leased = view.epoch == self.views.opened.epoch;
        self.want_alone(lane, leader);
        self.begin_round(lane, leader);
        let goes_on = view.open && !self.wants_alone(leader);
        let Some(lead) = self.at(leader).lead.as_mut() else { return };
        if goes_on
            && lead.closing.is_none()
            && (is_level || lead.phase == Phase::Serving)
            && lead.round.is_none_or(|round| round == 0)
        {
            let found = lead.found.take();
            lead.round = lead.round.filter(|_| found.is_none());
            lead.closing = found.map(|unreconciled| Closing { sequence: 0, missing: 0, unreconciled });
        }
        if goes_on && is_level && lead.phase == Phase::Feeding && lead.closing.is_none() && lead.found.is_none() {
            lead.phase = Phase::Serving;
        }
        let (term, epoch) = (lead.term, view.epoch);
        let is_due = |op: u8, sequence: u8| sequence <= if lane.is_loose(op) { settled } else { stable };
        let due: Vec<_> = lead.pending.extract_if(.., |(op, sequence, _)| is_due(*op, *sequence)).collect();
        let read = lead.reading.take_if(|reading| reading.upto.is_some_and(|upto| upto <= settled));
        if !is_leased {
            return;
        }
        for (op, sequence, opens) in due {
            let allows = opens.then_some((term, Stamp::Led(epoch, sequence)));
            let client = &mut self.clients[lane.scope.op(op).0];
            if client.work == Some((op, Work::Led)) {
                client.work = Some((op, Work::Answered { allows, losses: view.losses }));
            }
        }
        if let Some(reading) = read {
            self.show(lane, reading.cells, reading.done);
        }
    }

    /// A reader sees these cells.
    pub(super) fn show(&mut self, lane: &Lane, cells: [u8; CELLS], done: Mask) {
        if let Err(complaint) = self.ghost.read_since(&lane.scope, cells, done) {
            self.broken = Some(complaint);
        }
    }
}
