//! Names: the namespace is linearizable (contract, section 2), with POSIX's rules and the errors of this store.
//!
//! - Look-up, create, mkdir, link, unlink, rmdir and rename in its three modes take effect on the tree at some moment
//!   of their call, or return the error that the tree gives at that moment ([`tree`]).
//! - A list is not atomic: each name is as it was at some moment of the call. A name that exists all the time is in it,
//!   and a name that is absent all the time is not.
//! - Kinds and link counts in answers are those of the tree. An inode and its names may be stored apart, so a link is
//!   counted before its name exists, and a name is removed before its link; both within the call.
//! - After a power cut, secured changes are present; of the others a tail may be lost ([`loss`]).
//!
//! Inode ids come from the answers. The id of an inode that was made by a call without an answer is recognised by the
//! seed of the call, which is part of it: the seeds of a run must differ.

mod change;
mod look;
mod loss;
mod model;
mod prepare;
#[cfg(test)]
mod tests;
mod tree;

use crate::checkers::Complaint;
use crate::checkers::linearize::linearize;
use crate::history::History;
use std::collections::BTreeMap;

/// Checks the namespace of the history, which begins with an empty root. Complains of the first call that has no place,
/// and of each answer that no tree gives.
pub fn check(history: &History) -> Vec<Complaint> {
    let (operations, wrong) = prepare::operations(history);
    if !wrong.is_empty() {
        let complaint = |(call, why)| Complaint::new("names", format!("{why}:\n    {}", history.describe(call)));
        return wrong.into_iter().map(complaint).collect();
    }
    let numbers = history.calls().map(|(number, _)| number);
    let secured_at: BTreeMap<_, _> = numbers.filter_map(|call| Some((call, history.secured_at(call)?))).collect();
    let namespace = model::Namespace { secured_at, cuts: history.power_cuts().len() };
    match linearize(&namespace, model::State::default(), &operations, history.power_cuts()) {
        Ok(_) => Vec::new(),
        Err(stuck) => vec![Complaint::stuck("names", history, &stuck)],
    }
}
