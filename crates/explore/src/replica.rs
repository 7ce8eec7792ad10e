//! The steps of a replica: fast writes, records, reconciliation. The numbers are those of the rules in
//! `docs/fast-lane.md`.

use crate::scope::{Scope, bit, numbers};
use crate::state::*;
use std::rc::Rc;

impl State {
    pub fn replica_count(&self) -> u8 {
        self.replicas.len() as u8
    }

    pub fn front(&mut self, client: usize, replica: u8) -> &mut Vec<Request> {
        let at = client * self.replicas.len() + replica as usize;
        &mut self.front[at]
    }

    pub fn back(&mut self, from: u8, to: u8) -> &mut Vec<Message> {
        let at = from as usize * self.replicas.len() + to as usize;
        &mut self.back[at]
    }

    /// Rule 13: true if a replica accepts messages of an epoch.
    fn accepts(&self, scope: &Scope, replica: u8, epoch: u8) -> bool {
        let at = &self.replicas[replica as usize];
        at.up && !(at.outside && scope.rules.incarnations) && (at.now.epoch == epoch || !scope.rules.epochs_fence)
    }

    /// True if it orders ops in its epoch; its view need not be the newest, and its lease may have ended.
    pub fn leads(&self, replica: u8) -> bool {
        let at = &self.replicas[replica as usize];
        at.up && !at.outside && at.view.leader == Some(replica) && at.view.epoch == at.now.epoch
    }

    /// A client's request arrives.
    pub fn request(&mut self, scope: &Scope, client: usize, replica: u8, request: Request) {
        match request {
            Request::Fast { epoch, op, follow, stamp } => {
                if self.accepts(scope, replica, epoch) {
                    let took = self.fast(scope, replica, op, follow, stamp);
                    self.answer_fast(scope, client, replica, op, epoch, took);
                } else {
                    // StaleView: the client asks for the view, and sends the op to the leader.
                    self.answer_fast(scope, client, replica, op, epoch, Err(None));
                }
            }
            Request::Led { epoch, op } => {
                if self.accepts(scope, replica, epoch)
                    && self.leads(replica)
                    && self.replicas[replica as usize].view.open
                {
                    self.order(scope, replica, op);
                }
            }
            Request::Settled { epoch, op, stamp, on_learners } => {
                if self.accepts(scope, replica, epoch) && self.leads(replica) {
                    self.settled_received(scope, replica, scope.target(op).0, stamp, on_learners);
                }
            }
            Request::Sync { epoch } => {
                if self.accepts(scope, replica, epoch) {
                    self.sync(scope, replica);
                    let is_same = self.clients[client].view.epoch == epoch;
                    if let Some(mask) = self.clients[client].syncing.as_mut().filter(|_| is_same) {
                        *mask |= bit(replica);
                    }
                }
            }
        }
    }

    pub fn sync(&mut self, scope: &Scope, replica: u8) {
        if !scope.power {
            return;
        }
        let at = &mut self.replicas[replica as usize];
        at.synced = Rc::new(at.now.clone());
    }

    /// Rules 1 and 5. Returns the stamp that the shard has instead, if the write is refused.
    fn fast(&mut self, scope: &Scope, replica: u8, op: u8, follow: Stamp, stamp: Stamp) -> Result<(), Option<Stamp>> {
        let (shard, _) = scope.target(op);
        let at = &self.replicas[replica as usize];
        if at.now.ids & bit(op) != 0 && scope.rules.answered_once {
            return Ok(());
        }
        let own = at.now.shards[shard].stamp;
        let follows = if scope.rules.whole_stamp { own == follow } else { own.count == follow.count };
        if !follows {
            return Err(Some(own));
        }
        self.apply(scope, replica, op, stamp);
        let at = &self.replicas[replica as usize];
        if self.leads(replica) && at.view.open {
            self.settle(scope, replica, shard);
        }
        Ok(())
    }

    /// Applies a write to a replica's copy, and adds it to its lists.
    fn apply(&mut self, scope: &Scope, replica: u8, op: u8, stamp: Stamp) {
        let (shard, cell) = scope.target(op);
        let all = bit(self.replica_count()) - 1;
        let at = &mut self.replicas[replica as usize];
        let outside = all & !at.view.members & if scope.rules.learners_listed { all } else { !at.view.learners };
        let copy = &mut at.now.shards[shard];
        copy.cells[cell] = op;
        copy.stamp = stamp;
        copy.unstable = true;
        copy.missing |= outside;
        copy.list.push(Unsettled { stamp, cells: bit(cell as u8), ops: bit(op), held: 0 });
        at.now.ids |= bit(op);
    }

    fn answer_fast(
        &mut self,
        scope: &Scope,
        client: usize,
        replica: u8,
        asked: u8,
        epoch: u8,
        took: Result<(), Option<Stamp>>,
    ) {
        let at = &mut self.clients[client];
        if !at.up || at.view.epoch != epoch && scope.rules.one_epoch {
            return;
        }
        let shard = scope.target(asked).0;
        let Some((_, Work::Fast { done, conflict, .. })) = at.works.iter_mut().find(|(op, _)| *op == asked) else {
            return;
        };
        match took {
            Ok(()) => *done |= bit(replica),
            Err(other) => {
                *conflict = true;
                at.knows[shard] = other.unwrap_or(at.knows[shard]);
            }
        }
    }

    /// An op through the leader: rules 2, 5, 6.
    fn order(&mut self, scope: &Scope, replica: u8, op: u8) {
        let (shard, _) = scope.target(op);
        let at = &mut self.replicas[replica as usize];
        at.pending |= bit(op);
        if at.now.ids & bit(op) == 0 || !scope.rules.answered_once {
            let follow = at.now.shards[shard].stamp;
            let stamp = match scope.rules.leader_stamps {
                true => at.next_stamp(scope, shard),
                false => Stamp { count: follow.count + 1, by: By::Client(scope.op(op).0 as u8), op },
            };
            at.now.position = (at.view.epoch, at.now.position.1 + 1);
            let (epoch, position) = (at.view.epoch, at.now.position);
            self.apply(scope, replica, op, stamp);
            self.tell_others(replica, Message::Append { epoch, op, follow, stamp, position });
        } else if at.now.shards[shard].list.iter().any(|one| !matches!(one.stamp.by, By::Leader(_))) {
            self.reconcile(scope, replica, shard, 0, false);
        }
        self.settle(scope, replica, shard);
    }

    fn tell_others(&mut self, replica: u8, message: Message) {
        let view = self.replicas[replica as usize].view;
        for to in numbers(view.members | view.learners).filter(|to| *to != replica) {
            if self.replicas[to as usize].up {
                self.back(replica, to).push(message.clone());
            }
        }
    }

    /// Sends a note that only shortens a list. It arrives at once if no message precedes it, unless the scope delays
    /// it.
    fn note_settled(&mut self, scope: &Scope, leader: u8, note: Message) {
        let view = self.replicas[leader as usize].view;
        for to in numbers(view.members | view.learners).filter(|to| *to != leader) {
            if !self.replicas[to as usize].up {
                continue;
            }
            if scope.late_notes || !self.back(leader, to).is_empty() {
                self.back(leader, to).push(note.clone());
            } else {
                self.message(scope, leader, to, note.clone());
            }
        }
    }

    /// Rule 8: the leader's copy gets a new stamp, and all replicas get the leader's bytes of all cells that may differ
    /// (rule 9).
    pub fn reconcile(&mut self, scope: &Scope, replica: u8, shard: usize, also: Mask, whole: bool) {
        let rules = scope.rules;
        let of_shard = scope.ops_of(shard);
        let all = bit(self.replica_count()) - 1;
        let at = &mut self.replicas[replica as usize];
        let whole = whole || at.view.learners != 0;
        if rules.fresh_stamp {
            at.now.shards[shard].stamp = at.next_stamp(scope, shard);
        }
        at.now.position = (at.view.epoch, at.now.position.1 + 1);
        let ids = at.now.ids & of_shard;
        let copy = &mut at.now.shards[shard];
        let listed = copy.list.iter().fold(0, |mask, one| mask | one.cells);
        let ops = if whole || rules.settled_ids { ids } else { copy.list.iter().fold(0, |mask, one| mask | one.ops) };
        let covers = match (whole, rules.both_ranges) {
            (true, _) => ALL_CELLS,
            (false, true) => listed | also,
            (false, false) => listed,
        };
        copy.list = vec![Unsettled { stamp: copy.stamp, cells: covers, ops, held: 0 }];
        copy.unstable = true;
        copy.missing |= all & !at.view.members;
        let message = Message::Reconcile {
            epoch: at.view.epoch,
            shard: shard as u8,
            stamp: copy.stamp,
            covers,
            cells: copy.cells,
            ops,
            whole,
            position: at.now.position,
        };
        self.tell_others(replica, message);
        self.settle(scope, replica, shard);
    }

    /// A message of a leader arrives.
    pub fn message(&mut self, scope: &Scope, from: u8, to: u8, message: Message) {
        match message {
            Message::Append { epoch, op, follow, stamp, position } => {
                if !self.accepts(scope, to, epoch) {
                    return;
                }
                let shard = scope.target(op).0;
                let at = &mut self.replicas[to as usize];
                let copy = &at.now.shards[shard];
                if copy.stamp == stamp {
                    self.held(scope, from, to, shard, stamp, epoch);
                } else if copy.stamp == follow || !scope.rules.records_follow {
                    at.now.position = position;
                    self.apply(scope, to, op, stamp);
                    self.held(scope, from, to, shard, stamp, epoch);
                } else if at.view.members & bit(to) != 0 {
                    // Rule 11. A learner lacks the write anyway, and is sent all of the shard.
                    self.needs(scope, from, to, shard, epoch);
                }
            }
            Message::Reconcile { epoch, shard, stamp, covers, cells, ops, whole, position } => {
                if self.accepts(scope, to, epoch) {
                    let reconciled = Unsettled { stamp, cells: covers, ops, held: 0 };
                    self.apply_reconciled(scope, (from, to), shard as usize, reconciled, cells, whole, position, epoch);
                }
            }
            Message::Settled { epoch, shard, stamp } => {
                if self.accepts(scope, to, epoch) {
                    let list = &mut self.replicas[to as usize].now.shards[shard as usize].list;
                    if let Some(last) = list.iter().position(|one| one.stamp == stamp) {
                        list.drain(..=last);
                    }
                    if !scope.rules.stable_needs_all && list.is_empty() {
                        self.replicas[to as usize].now.shards[shard as usize].unstable = false;
                    }
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the message")]
    fn apply_reconciled(
        &mut self,
        scope: &Scope,
        (from, to): (u8, u8),
        shard: usize,
        reconciled: Unsettled,
        cells: [u8; CELLS],
        whole: bool,
        position: (u8, u8),
        epoch: u8,
    ) {
        let rules = scope.rules;
        let of_shard = scope.ops_of(shard);
        let all = bit(self.replica_count()) - 1;
        let opened = self.coordinator.opened.members;
        let at = &mut self.replicas[to as usize];
        let copy = &mut at.now.shards[shard];
        let own = copy.list.iter().fold(0, |mask, one| mask | one.cells);
        if own & !reconciled.cells != 0 && rules.both_ranges {
            return self.needs(scope, from, to, shard, epoch);
        }
        let undone = copy.list.iter().fold(0, |mask, one| mask | one.ops) & !reconciled.ops;
        numbers(reconciled.cells).for_each(|cell| copy.cells[cell as usize] = cells[cell as usize]);
        let stamp = reconciled.stamp;
        copy.stamp = stamp;
        if rules.ids_are_struck {
            at.now.ids &= if whole { !of_shard } else { !undone };
        }
        if rules.ids_go_along {
            at.now.ids |= reconciled.ops;
        }
        copy.list = vec![reconciled];
        copy.unstable = true;
        copy.missing |= all & !at.view.members;
        at.now.position = position;
        let is_new = at.view.members & !opened & bit(to) != 0;
        if is_new && rules.synced_promotion {
            self.sync(scope, to);
        }
        self.held(scope, from, to, shard, stamp, epoch);
    }

    /// A member differs by more than it was sent: it reports what, and the leader reconciles it.
    pub fn needs(&mut self, scope: &Scope, leader: u8, member: u8, shard: usize, epoch: u8) {
        if !self.leads(leader) || self.replicas[leader as usize].now.epoch != epoch {
            return;
        }
        let list = &self.replicas[member as usize].now.shards[shard].list;
        let cells = list.iter().fold(0, |mask, one| mask | one.cells);
        self.reconcile(scope, leader, shard, cells, false);
    }

    /// The leader learns that a replica has the write with this stamp, and all before it.
    fn held(&mut self, scope: &Scope, leader: u8, replica: u8, shard: usize, stamp: Stamp, epoch: u8) {
        let at = &mut self.replicas[leader as usize];
        if at.now.epoch != epoch || !self.leads(leader) {
            return;
        }
        let at = &mut self.replicas[leader as usize];
        let copy = &mut at.now.shards[shard];
        let is_last = copy.stamp == stamp;
        if is_last && at.view.learners & bit(replica) != 0 {
            copy.missing &= !bit(replica);
        }
        if let Some(last) = copy.list.iter().position(|one| one.stamp == stamp) {
            copy.list[..=last].iter_mut().for_each(|one| one.held |= bit(replica));
        }
        self.settle(scope, leader, shard);
    }

    fn settled_received(&mut self, scope: &Scope, leader: u8, shard: usize, stamp: Stamp, on_learners: bool) {
        let at = &mut self.replicas[leader as usize];
        let copy = &mut at.now.shards[shard];
        if on_learners && copy.stamp == stamp {
            copy.missing &= !at.view.learners;
        }
        if let Some(last) = copy.list.iter().position(|one| one.stamp == stamp) {
            copy.list[..=last].iter_mut().for_each(|one| one.held = !0);
        }
        self.settle(scope, leader, shard);
    }

    /// Removes writes that every member has from the list, and answers the ops that waited for them.
    pub fn settle(&mut self, scope: &Scope, leader: u8, shard: usize) {
        let at = &mut self.replicas[leader as usize];
        let others = at.view.members & !bit(leader);
        let list = &mut at.now.shards[shard].list;
        let count = list.iter().take_while(|one| one.held & others == others).count();
        let last = list.drain(..count).next_back();
        let ids = at.now.ids;
        if !scope.rules.stable_needs_all && list.is_empty() {
            at.now.shards[shard].unstable = false;
        }
        let list = &at.now.shards[shard].list;
        let open = list.iter().fold(0, |mask, one| mask | one.ops);
        let open = if scope.rules.settled_first { open } else { 0 };
        let answered = at.pending & scope.ops_of(shard) & ids & !open;
        at.pending &= !answered;
        let (epoch, stamp) = (at.view.epoch, at.now.shards[shard].stamp);
        if let Some(last) = last {
            self.note_settled(scope, leader, Message::Settled { epoch, shard: shard as u8, stamp: last.stamp });
        }
        for op in numbers(answered) {
            let client = &mut self.clients[scope.op(op).0];
            let is_accepted = client.up && client.view.epoch == epoch;
            let losses = client.view.losses;
            if let Some((_, work)) = client.works.iter_mut().find(|(one, _)| *one == op).filter(|_| is_accepted)
                && *work == Work::Led
            {
                *work = Work::Answered { stamp, losses };
            }
        }
    }
}

impl Replica {
    /// Rule 2: a stamp that no client and no other leader uses.
    fn next_stamp(&self, scope: &Scope, shard: usize) -> Stamp {
        let count = self.now.shards[shard].stamp.count + 1;
        let (epoch, op) = match scope.rules.epoch_in_stamps {
            true => (self.view.epoch, self.now.position.1 + 1),
            false => (0, 0),
        };
        Stamp { count, by: By::Leader(epoch), op }
    }
}
