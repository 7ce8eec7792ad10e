//! A tenure: from an opening, or a resume, to the next one.

use super::{Base, describe, may_take};
use crate::history::Moment;
use crate::history::disks::{
    CELLS_PER_BLOCK, Cell, DiskAnswer, DiskCall, DiskCallNumber, DiskHistory, DiskOp, TORN, Tag,
};
use std::collections::BTreeMap;

/// A change of one cell.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    pub tag: Tag,
    pub call: DiskCallNumber,
    pub invoked: Moment,
    /// From when it is made, or never: its call has ended, or a read has shown it.
    ended: Moment,
    /// From when it surely is made: it was acknowledged, or a read has shown it.
    made: Moment,
    /// It is on stable storage.
    secured: bool,
}

impl Write {
    /// True if the next one surely came after this one.
    fn precedes(&self, next: &Write) -> bool {
        self.ended < next.invoked
    }
}

/// A read, and what it has shown.
type Shown<'a> = (DiskCallNumber, &'a DiskCall, &'a [(Cell, Tag)]);

pub struct Tenure<'a> {
    calls: &'a [DiskCall],
    /// The call that began it.
    pub number: DiskCallNumber,
    pub begun: Moment,
    pub confirmed: Moment,
    /// When the opening ended.
    pub opened: Moment,
    power_cuts: &'a [Moment],
    /// Acknowledged changes may have failed later.
    forgets: bool,
    /// When flushes that succeeded began: everything that was acknowledged before is on stable storage.
    flushes: Vec<Moment>,
    writes: BTreeMap<Cell, Vec<Write>>,
}

impl<'a> Tenure<'a> {
    pub fn new(history: &'a DiskHistory, number: DiskCallNumber, confirmed: Moment, power_cuts: &'a [Moment]) -> Self {
        let calls = history.calls();
        let (begun, opened) = (calls[number].invoked, calls[number].end());
        let (flushes, writes) = (Vec::new(), BTreeMap::new());
        let mut all = Self { calls, number, begun, confirmed, opened, power_cuts, forgets: false, flushes, writes };
        // A flush beside one that reports a loss proves nothing, nor does one after it.
        let lost = all.own().filter(|(_, call)| call.is_lost()).map(|(_, call)| call.invoked).min();
        let proves = |call: &DiskCall| call.is_done() && lost.is_none_or(|lost| call.end() < lost);
        all.flushes =
            all.own().filter(|(_, call)| covers(&call.op) && proves(call)).map(|(_, call)| call.invoked).collect();
        all.collect_writes(proves);
        // A change that was acknowledged first and fails then is a loss, and the vDisk is read-only.
        all.forgets = history.is_async && all.own().any(|(_, call)| matches!(call.outcome, Some(Err(_))));
        all.forgets |= history.is_async && is_taken(calls, number);
        all.note_seen();
        all
    }

    pub fn is_resume(&self) -> bool {
        self.calls[self.number].op == DiskOp::Resume
    }

    /// Its calls.
    pub fn own(&self) -> impl Iterator<Item = (DiskCallNumber, &'a DiskCall)> + use<'a> {
        let number = self.number;
        self.calls.iter().enumerate().filter(move |(_, call)| call.tenure == Some(number))
    }

    fn collect_writes(&mut self, proves: impl Fn(&DiskCall) -> bool) {
        for (number, call) in self.own() {
            let DiskOp::Change { changes, durable } = &call.op else { continue };
            let made = if call.is_done() { call.end() } else { Moment::MAX };
            // The end of a process ends none of its writes: what was sent arrives.
            let ended = if call.outcome.is_some() { call.end() } else { Moment::MAX };
            let is_flushed = call.is_done() && self.flushes.iter().any(|flush| *flush >= call.end());
            let secured = is_flushed || (*durable && proves(call));
            for (cells, tag) in changes {
                let write = Write { tag: *tag, call: number, invoked: call.invoked, ended, made, secured };
                cells.iter().for_each(|cell| self.writes.entry(*cell).or_default().push(write));
            }
        }
    }

    /// The reads of the tenure with what they have shown, in the order of their ends.
    fn reads(&self) -> Vec<Shown<'a>> {
        let shown = |(number, call): (DiskCallNumber, &'a DiskCall)| match (&call.op, &call.outcome) {
            (DiskOp::Read, Some(Ok(DiskAnswer::Cells(cells)))) => Some((number, call, &cells[..])),
            _ => None,
        };
        let mut reads: Vec<_> = self.own().filter_map(shown).collect();
        reads.sort_by_key(|(_, call, _)| call.end());
        reads
    }

    /// What a read has shown was made before the read ended.
    fn note_seen(&mut self) {
        for (_, read, cells) in self.reads() {
            for (cell, tag) in cells.iter().filter(|(_, tag)| *tag != 0) {
                for write in self.writes.get_mut(cell).into_iter().flatten().filter(|write| write.tag == *tag) {
                    write.made = write.made.min(read.end());
                    write.ended = write.ended.min(read.end());
                }
            }
        }
    }

    /// When the last change began of which this tenure has seen that the one before it made it.
    pub fn seen_of(&self, before: &Tenure) -> Option<Moment> {
        let mut last = None;
        for (_, read, cells) in self.reads() {
            for (cell, tag) in cells.iter().filter(|(_, tag)| *tag != 0) {
                if !self.is_doubtful(*cell, read) {
                    last = last.max(before.writes_of(*cell).iter().find(|write| write.tag == *tag).map(|w| w.invoked));
                }
            }
        }
        last
    }

    pub fn writes_of(&self, cell: Cell) -> &[Write] {
        self.writes.get(&cell).map_or(&[], |writes| writes)
    }

    /// Everything that was acknowledged before this moment is there after the tenure. `start`: when the next opening
    /// began; `seen`: when a change began that is there.
    pub fn horizon(&self, start: Option<Moment>, next: &Tenure, seen: Option<Moment>) -> Moment {
        let start = start.filter(|_| !self.may_lose(next.opened));
        self.flushes.iter().copied().chain(start).chain(seen).max().unwrap_or(0)
    }

    /// True if a power cut before `until` may have taken something from the tenure's log.
    fn may_lose(&self, until: Moment) -> bool {
        let cuts = || self.power_cuts.iter().filter(|cut| (self.begun..=until).contains(cut));
        let is_open = |call: &DiskCall| match &call.op {
            DiskOp::Change { durable, .. } => {
                let is_flushed = call.is_done() && self.flushes.iter().any(|flush| *flush >= call.end());
                !(is_flushed || *durable && call.is_done())
            }
            // A scrub appends, too.
            DiskOp::Scrub => !call.is_done(),
            _ => false,
        };
        self.own().any(|(_, call)| is_open(call) && cuts().any(|cut| call.invoked <= *cut))
    }

    /// What the tenure may have left. Changes that began after `until` came too late.
    pub fn left(&self, base: &Base, horizon: Moment, until: Moment) -> Base {
        self.at(base, until, |write| write.made < horizon || write.secured)
    }

    /// What it may be, if what `is_there` accepts is made, and nothing that began after `until`.
    fn at(&self, base: &Base, until: Moment, is_there: impl Fn(&Write) -> bool) -> Base {
        let mut left = base.clone();
        for (cell, writes) in &self.writes {
            let mut tags: Vec<Tag> = Vec::new();
            if !writes.iter().any(&is_there) {
                tags.extend(base.of(*cell));
            }
            let is_last = |write: &&Write| !writes.iter().any(|next| write.precedes(next) && is_there(next));
            tags.extend(writes.iter().filter(|write| write.invoked < until).filter(is_last).map(|write| write.tag));
            tags.sort_unstable();
            tags.dedup();
            left.0.insert(*cell, tags);
        }
        left
    }

    /// True if a power cut before the end of the read may have taken the block to which the map leads: a change of any
    /// cell of a block writes the whole block to another place.
    fn is_doubtful(&self, cell: Cell, read: &DiskCall) -> bool {
        let writes = self.writes_of(cell);
        let cut_after = |write: &Write| self.power_cuts.iter().any(|cut| (write.invoked..=read.end()).contains(cut));
        let may_fail = |write: &Write| self.forgets || cut_after(write);
        let is_hidden = |write: &Write| {
            let hides = |next: &Write| next.made < read.invoked && (next.secured || !may_fail(next));
            writes.iter().any(|next| write.precedes(next) && hides(next))
        };
        let first = cell - cell % CELLS_PER_BLOCK;
        let mut block = self.writes.range(first..first + CELLS_PER_BLOCK).flat_map(|(_, writes)| writes);
        block.any(|write| !write.secured && cut_after(write) && !is_hidden(write))
            || writes.iter().any(|write| !write.secured && may_fail(write) && !is_hidden(write))
    }

    /// Judges the reads. What is seen of the tenures before is what they left, from then on.
    pub fn judge(&self, base: &mut Base) -> Vec<String> {
        let mut wrong = Vec::new();
        for (number, read, cells) in self.reads() {
            for (cell, tag) in cells {
                if self.is_doubtful(*cell, read) {
                    continue;
                }
                if let Err(why) = self.judge_cell(base, (*cell, *tag), read) {
                    wrong.push(format!("cell {cell} shows {tag:x}: {why}\n    {}", describe(number, read)));
                    break;
                }
            }
        }
        wrong
    }

    fn judge_cell(&self, base: &mut Base, (cell, tag): (Cell, Tag), read: &DiskCall) -> Result<(), String> {
        if tag == TORN {
            return Err("parts of several changes".into());
        }
        let writes = self.writes_of(cell);
        let over = |write: &&Write| write.made < read.invoked;
        let newer = writes.iter().filter(over).max_by_key(|write| write.invoked);
        let is_current = |write: &&Write| {
            let hides = |next: &&Write| write.precedes(next) && next.made < read.invoked;
            write.tag == tag && write.invoked < read.end() && !writes.iter().any(|next| hides(&next))
        };
        if writes.iter().any(|write| is_current(&write)) {
            return Ok(());
        }
        if let Some(newer) = newer {
            return Err(format!("it was overwritten\n    {}", describe(newer.call, &self.calls[newer.call])));
        }
        if base.may_be(cell, tag) {
            base.0.insert(cell, vec![tag]);
            return Ok(());
        }
        let known: Vec<String> = base.of(cell).iter().map(|tag| format!("{tag:x}")).collect();
        Err(format!("the tenures before have left {}\n    {}", known.join(" or "), self.told(tag)))
    }

    /// The client that has written a tag.
    fn told(&self, tag: Tag) -> String {
        let writes = |call: &DiskCall| matches!(&call.op, DiskOp::Change { changes, .. } if changes.iter().any(|(_, one)| *one == tag));
        let found = self.calls.iter().enumerate().find(|(_, call)| tag != 0 && writes(call));
        let opening = describe(self.number, &self.calls[self.number]);
        let found = found.map_or("no change has this tag".into(), |(number, call)| describe(number, call));
        format!("{found}\n    {opening}")
    }

    /// Whether a snapshot may show these cells: the vDisk at one moment between `from` and `to`.
    pub fn judge_snapshot(
        &self,
        base: &Base,
        (from, to): (Moment, Moment),
        cells: &[(Cell, Tag)],
    ) -> Result<(), String> {
        let seen =
            |(cell, tag): &(Cell, Tag)| self.writes_of(*cell).iter().find(|write| write.tag == *tag && *tag != 0);
        let last = cells.iter().filter_map(seen).map(|write| write.invoked).max().unwrap_or(0);
        let left = self.at(base, to, |write| write.made < from.max(last));
        for (cell, tag) in cells {
            if !left.may_be(*cell, *tag) {
                let known: Vec<String> = left.of(*cell).iter().map(|tag| format!("{tag:x}")).collect();
                let known = known.join(" or ");
                return Err(format!("cell {cell} shows {tag:x}, and has to be {known}\n    {}", self.told(*tag)));
            }
        }
        Ok(())
    }
}

/// True if others have tried to take the vDisk from this tenure.
fn is_taken(calls: &[DiskCall], number: DiskCallNumber) -> bool {
    let begun = calls[number].invoked;
    calls.iter().enumerate().any(|(other, call)| other != number && may_take(call) && call.end() > begun)
}

/// True if everything that was acknowledged before such a call is on stable storage after it.
fn covers(op: &DiskOp) -> bool {
    match op {
        DiskOp::Flush | DiskOp::Close | DiskOp::Snapshot { .. } => true,
        DiskOp::Change { durable, .. } => *durable,
        _ => false,
    }
}
