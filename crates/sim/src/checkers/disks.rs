//! A vDisk that several owners open one after the other is what its last owner left, as far as docs/vdisks.md promises it.
//!
//! - **Within a tenure** each cell is a register: a read gives a change that no change acknowledged before the read has
//!   overwritten. Cells that a change wrote, of which all replicas lost the memory before a flush, are not judged until
//!   the next tenure.
//! - **Between tenures** a cell shows what the tenure before left: nothing that a flush, a durable change or a snapshot
//!   covers is lost, nor is what was acknowledged before the next opening began, unless a power cut took it. What is
//!   lost is the end: nothing that was acknowledged before a change that is seen began is missing.
//! - **An old owner changes nothing** once the next opening has ended: what a read has shown stays until this owner
//!   writes it.
//! - **A snapshot** is the vDisk at a moment within its call, and shows the same to all readers at any time.
//! - **A loss** is reported by a flush, once; nothing is written from then on until a resume. Nothing else ends a tenure
//!   but another opening, or the end of the session.

mod errors;
mod snapshots;
mod tenure;
#[cfg(test)]
mod tests;

use super::Complaint;
use crate::history::Moment;
use crate::history::disks::{Cell, DiskCall, DiskCallNumber, DiskHistory, DiskOp, Tag};
use std::collections::BTreeMap;
use tenure::Tenure;

/// Complaints of one rule that are shown.
const SHOWN: usize = 3;

/// The possible contents of each cell. A cell that is not named is zeros.
#[derive(Debug, Clone, Default)]
struct Base(BTreeMap<Cell, Vec<Tag>>);

impl Base {
    fn of(&self, cell: Cell) -> &[Tag] {
        self.0.get(&cell).map_or(&[0], |tags| tags)
    }

    fn may_be(&self, cell: Cell, tag: Tag) -> bool {
        self.of(cell).contains(&tag)
    }
}

/// Checks the history of a vDisk. `power_cuts`: the moments at which replicas may have lost what was not synced.
pub fn check(history: &DiskHistory, power_cuts: &[Moment]) -> Vec<Complaint> {
    let calls = history.calls();
    let tenures = tenures_of(history, power_cuts);
    let (mut wrong, mut base) = (Vec::new(), Base::default());
    for (at, tenure) in tenures.iter().enumerate() {
        if let Some(before) = at.checked_sub(1).map(|at| &tenures[at]) {
            let seen = tenure.seen_of(before);
            let start = if history.is_async { None } else { start_of(calls, before, tenure) };
            let horizon = before.horizon(start, tenure, seen);
            base = before.left(&base, horizon, tenure.opened);
        }
        wrong.extend(tenure.judge(&mut base));
        wrong.extend(snapshots::judge(calls, tenure, &base));
    }
    wrong.extend(snapshots::judge_equal(calls));
    wrong.extend(errors::judge(history, &tenures, power_cuts));
    wrong.into_iter().take(SHOWN).map(|what| Complaint::new("the vDisk", what)).collect()
}

/// The tenures in their order. An opening is followed by a question whether its session is the owner: the next owner
/// replaces the layer's state after that, and asks the same later.
fn tenures_of<'a>(history: &'a DiskHistory, power_cuts: &'a [Moment]) -> Vec<Tenure<'a>> {
    let calls = history.calls();
    let mut begins: Vec<(Moment, DiskCallNumber)> =
        calls.iter().enumerate().filter_map(|(number, call)| Some((call.confirmed()?, number))).collect();
    begins.sort_unstable();
    begins.iter().map(|(confirmed, number)| Tenure::new(history, *number, *confirmed, power_cuts)).collect()
}

/// When others began to open the vDisk after this tenure. `None`: it was not another opening that ended it.
fn start_of(calls: &[DiskCall], before: &Tenure, next: &Tenure) -> Option<Moment> {
    if next.is_resume() {
        return None;
    }
    let attempts = calls.iter().enumerate().filter(|(number, call)| {
        *number != before.number && may_take(call) && call.end() > before.confirmed && call.invoked < next.opened
    });
    attempts.map(|(_, call)| call.invoked).min()
}

/// True if an attempt to open the vDisk may have taken it from its owner.
fn may_take(call: &DiskCall) -> bool {
    let is_refused = matches!(&call.outcome, Some(Err(error)) if errors::is_held(error));
    matches!(call.op, DiskOp::Resume) || matches!(call.op, DiskOp::Open { .. }) && !is_refused
}

fn describe(number: DiskCallNumber, call: &DiskCall) -> String {
    let outcome = match &call.outcome {
        None => "no answer".into(),
        Some(Ok(_)) => "done".into(),
        Some(Err(error)) => error.to_string(),
    };
    let op = match &call.op {
        DiskOp::Change { changes, durable } => {
            let told = |(cells, tag): &(Vec<Cell>, Tag)| format!("{}..={} = {tag:x}", cells[0], cells[cells.len() - 1]);
            let all: Vec<String> = changes.iter().filter(|(cells, _)| !cells.is_empty()).map(told).collect();
            format!("change {}{}", all.join(", "), if *durable { " durably" } else { "" })
        }
        op => format!("{op:?}"),
    };
    format!("#{number} client {} [{}..{}] {op} -> {outcome}", call.client, call.invoked, call.end())
}
