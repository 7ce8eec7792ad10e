//! The times at which a call may have taken effect.

use super::linearize::Operation;
use crate::history::{CallNumber, ChangedPlaces, History, Moment};

/// The call's own window. If the power failed while a change waited for its answer, also one window for each time
/// between two power cuts: the change may have been made there, lost, and resent.
pub fn windows<A>(history: &History, number: CallNumber, mut action: impl FnMut() -> A) -> Vec<Operation<A>> {
    let call = history.call(number);
    let mut operation = |opens, closes, required| Operation { call: number, action: action(), opens, closes, required };
    let closes = call.returned();
    let mut all = Vec::new();
    let mut opens = call.invoked;
    if !call.op.changed_places().is_empty() && matches!(call.settled(), None | Some(Ok(_))) {
        let in_flight = |cut: &&Moment| call.invoked <= **cut && closes.is_none_or(|closes| closes > **cut);
        for cut in history.power_cuts().iter().filter(in_flight) {
            all.push(operation(opens, Some(*cut), false));
            opens = *cut;
        }
    }
    // A change that happened may have happened at any time and survived the power cuts; one that may have happened did
    // so within one of the windows.
    all.push(operation(if closes.is_some() { call.invoked } else { opens }, closes, closes.is_some()));
    all
}
