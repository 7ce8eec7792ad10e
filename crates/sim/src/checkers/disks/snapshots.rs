//! What snapshots show.

use super::tenure::Tenure;
use super::{Base, describe};
use crate::history::Moment;
use crate::history::disks::{Cell, DiskAnswer, DiskCall, DiskCallNumber, DiskOp, Tag};
use hekate_proto::Error;

/// The reads of a snapshot that ended before anybody began to delete it.
fn reads_of<'a>(
    calls: &'a [DiskCall],
    snapshot: &'a str,
) -> impl Iterator<Item = (DiskCallNumber, &'a DiskCall)> + use<'a> {
    let is_delete = |call: &&DiskCall| matches!(&call.op, DiskOp::DeleteSnapshot { name } if name == snapshot);
    let deleted = calls.iter().filter(is_delete).map(|call| call.invoked).min().unwrap_or(Moment::MAX);
    let is_of_it = move |call: &DiskCall| matches!(&call.op, DiskOp::ReadSnapshot { name } if name == snapshot);
    calls.iter().enumerate().filter(move |(_, call)| is_of_it(call) && call.end() < deleted)
}

fn shown(call: &DiskCall) -> Option<&[(Cell, Tag)]> {
    match &call.outcome {
        Some(Ok(DiskAnswer::Cells(cells))) => Some(cells),
        _ => None,
    }
}

/// Judges the snapshots that were made in a tenure. `base`: what the tenure has found.
pub fn judge(calls: &[DiskCall], tenure: &Tenure, base: &Base) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, made) in tenure.own() {
        let DiskOp::Snapshot { name } = &made.op else { continue };
        let to = if made.outcome.is_some() { made.end() } else { Moment::MAX };
        for (reading, read) in reads_of(calls, name) {
            let judged = match (&read.outcome, shown(read)) {
                (_, Some(cells)) => tenure.judge_snapshot(base, (made.invoked, to), cells),
                (Some(Err(Error::Invalid { .. })), _) if made.is_done() && made.end() < read.invoked => {
                    Err("it is not there".into())
                }
                _ => Ok(()),
            };
            if let Err(why) = judged {
                wrong.push(format!(
                    "snapshot {name}: {why}\n    {}\n    {}",
                    describe(number, made),
                    describe(reading, read)
                ));
                break;
            }
        }
    }
    wrong
}

/// A snapshot shows the same to all readers.
pub fn judge_equal(calls: &[DiskCall]) -> Vec<String> {
    let mut wrong = Vec::new();
    for made in calls {
        let DiskOp::Snapshot { name } = &made.op else { continue };
        let mut reads = reads_of(calls, name).filter_map(|(number, call)| Some((number, call, shown(call)?)));
        let Some((first_number, first, cells)) = reads.next() else { continue };
        for (number, read, others) in reads {
            let Some((one, other)) = cells.iter().zip(others).find(|(one, other)| one != other) else { continue };
            wrong.push(format!(
                "snapshot {name}: cell {} shows {:x}, and then {:x}\n    {}\n    {}",
                one.0,
                one.1,
                other.1,
                describe(first_number, first),
                describe(number, read)
            ));
            break;
        }
    }
    wrong
}
