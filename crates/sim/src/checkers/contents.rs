//! Contents: reads, writes and sizes of each file are linearizable (contract, section 2).
//!
//! - A read returns the bytes of the last write to each of them, zeros where none was written, and ends at the end of
//!   the file.
//! - A read or write is atomic within a shard; one that crosses shards takes effect shard by shard, in file order.
//! - A truncate is visible to all later calls; bytes that it cut off are zeros when the file grows again.
//! - A size in another answer (look-up, getattr) is that of some moment of the call.
//! - A file that is gone (`Stale`) was removed before, and stays gone.
//! - After a power cut, secured changes are present; of the others a tail may be lost ([`model`]). A read across the
//!   power cut may return bytes from before it, and end where the file ends after it.
//!
//! Files are empty when they are made. The outcome of a call that was answered "unavailable" is unknown: the write may
//! have happened, may happen later, or never.

mod cells;
mod model;
mod prepare;
mod rounds;
#[cfg(test)]
mod tests;

use crate::checkers::Complaint;
use crate::checkers::objects::is_of_objects;
use crate::history::{CallNumber, History};
use hekate_proto::{Attr, DataOp, InodeId, InodeOp, NodeKind, Op, Reply};
use prepare::Draft;
use std::collections::BTreeMap;

/// Checks every file of the history; at most one complaint for each, and one for each answer that no state of a file
/// gives.
pub fn check(history: &History) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (inode, calls) in calls_of_files(history) {
        let about = format!("contents of {inode:?}");
        let draft = match Draft::new(history, inode, &calls) {
            Ok(draft) => draft,
            Err((call, why)) => {
                complaints.push(Complaint::new(about, format!("{why}:\n    {}", history.describe(call))));
                continue;
            }
        };
        let (file, candidates) = draft.finish();
        if let Err(stuck) = rounds::order(&file, &candidates, history.power_cuts()) {
            complaints.push(Complaint::stuck(about, history, &stuck));
        }
    }
    complaints
}

/// The calls that concern each file's bytes or show its size.
fn calls_of_files(history: &History) -> BTreeMap<InodeId, Vec<CallNumber>> {
    let kinds: BTreeMap<InodeId, NodeKind> = history
        .calls()
        .filter_map(|(_, call)| attr_in(call.settled()?.ok()?))
        .map(|attr| (attr.id, attr.kind))
        .collect();
    let is_file = |inode: &InodeId| kinds.get(inode).is_none_or(|kind| *kind == NodeKind::File);
    let mut files: BTreeMap<InodeId, Vec<CallNumber>> = BTreeMap::new();
    for (number, call) in history.calls().filter(|(_, call)| !is_of_objects(&call.op)) {
        let shown = call.settled().and_then(Result::ok).and_then(attr_in).map(|attr| attr.id);
        if let Some(inode) = worked_on(&call.op).or(shown).filter(is_file) {
            files.entry(inode).or_default().push(number);
        }
    }
    files.retain(|inode, calls| {
        kinds.contains_key(inode) || calls.iter().any(|call| matches!(history.call(*call).op, Op::Data { .. }))
    });
    files
}

fn worked_on(op: &Op) -> Option<InodeId> {
    match op {
        Op::Data { op: DataOp::Read { inode, .. } | DataOp::Write { inode, .. } } => Some(*inode),
        Op::Inode { op: InodeOp::SetAttr { inode, .. } | InodeOp::GetAttr { inode } } => Some(*inode),
        _ => None,
    }
}

/// The attributes in an answer.
fn attr_in(reply: &Reply) -> Option<&Attr> {
    match reply {
        Reply::Node { attr, .. } => Some(attr),
        _ => None,
    }
}
