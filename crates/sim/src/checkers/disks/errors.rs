//! Errors that a vDisk may give, and when.

use super::tenure::Tenure;
use super::{describe, may_take};
use crate::history::Moment;
use crate::history::disks::{DiskCall, DiskHistory, DiskOp};
use hekate_proto::Error;

/// True if an opening was refused because another session has the vDisk open.
pub fn is_held(error: &Error) -> bool {
    matches!(error, Error::Unavailable { what } if what.contains(" is open at "))
}

/// Judges the errors of all calls, and what succeeded after a loss.
pub fn judge(history: &DiskHistory, tenures: &[Tenure], power_cuts: &[Moment]) -> Vec<String> {
    let calls = history.calls();
    let mut wrong = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        let tenure = tenures.iter().find(|tenure| Some(tenure.number) == call.tenure);
        let Some(Err(error)) = &call.outcome else { continue };
        let why = match error {
            Error::Bug { .. } | Error::Protocol { .. } => "this error is never right",
            Error::Lost { .. } if !history.is_async && !may_be_lost(call, tenure, power_cuts) => "nothing was lost",
            Error::SessionEnded if !may_end(calls, call) => "nobody has taken the vDisk, and the session lives",
            _ => continue,
        };
        wrong.push(format!("{why}\n    {}", describe(number, call)));
    }
    tenures.iter().for_each(|tenure| wrong.extend(written_after_loss(tenure)));
    wrong
}

fn may_be_lost(call: &DiskCall, tenure: Option<&Tenure>, power_cuts: &[Moment]) -> bool {
    let from = tenure.map_or(0, |tenure| tenure.begun);
    power_cuts.iter().any(|cut| (from..=call.end()).contains(cut))
}

/// True if the session has ended, or another process has begun to open the vDisk.
fn may_end(calls: &[DiskCall], call: &DiskCall) -> bool {
    let mut opening = call;
    while let Some(number) = opening.tenure {
        opening = &calls[number];
    }
    let takes = |other: &DiskCall| {
        other.client != call.client && may_take(other) && other.end() > opening.invoked && other.invoked < call.end()
    };
    call.session_ended || calls.iter().any(takes)
}

/// After a loss was reported nothing is written until a resume.
fn written_after_loss(tenure: &Tenure) -> Option<String> {
    let (lost, report) = tenure.own().find(|(_, call)| call.is_lost() && matches!(call.op, DiskOp::Flush))?;
    let is_written = |call: &DiskCall| matches!(call.op, DiskOp::Change { .. }) && call.is_done();
    let (number, call) = tenure.own().find(|(_, call)| is_written(call) && call.invoked > report.end())?;
    Some(format!("written after a loss was reported\n    {}\n    {}", describe(lost, report), describe(number, call)))
}
