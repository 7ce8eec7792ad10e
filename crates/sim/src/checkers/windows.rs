//! When a call may have taken effect.

use super::linearize::Operation;
use crate::history::{CallNumber, ChangedPlaces, History, Moment};

/// The call's own window; and, if the power failed while a change waited, one in which it may have been done and lost
/// again, since it is resent.
pub fn windows<A>(history: &History, number: CallNumber, mut action: impl FnMut() -> A) -> Vec<Operation<A>> {
    let call = history.call(number);
    let operation =
        |action, closes, required| Operation { call: number, action, opens: call.invoked, closes, required };
    let closes = call.returned();
    let mut all = vec![operation(action(), closes, closes.is_some())];
    if !call.op.changed_places().is_empty() && matches!(call.settled(), None | Some(Ok(_))) {
        let in_flight = |cut: &&Moment| call.invoked <= **cut && closes.is_none_or(|closes| closes > **cut);
        let cuts = history.power_cuts().iter().filter(in_flight);
        all.extend(cuts.map(|cut| operation(action(), Some(*cut), false)));
    }
    all
}
