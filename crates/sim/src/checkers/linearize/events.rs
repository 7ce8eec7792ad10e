//! The events that a search goes along: operations open and close, the power fails.

use super::Operation;
use crate::history::Moment;
use std::rc::Rc;

/// The order of events at the same moment. An operation that opens overlaps one that closes at that moment, and one
/// that closes at a power cut may come before it. Optional operations close last, because one call may be both such an
/// operation and the observation that it led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Open(usize),
    PowerCut,
    Close(usize),
}

/// All events in their order.
pub fn in_order<A>(operations: &[Operation<A>], power_cuts: &[Moment]) -> Vec<(Moment, Event)> {
    let mut events: Vec<(Moment, Event)> = power_cuts.iter().map(|at| (*at, Event::PowerCut)).collect();
    for (index, operation) in operations.iter().enumerate() {
        events.push((operation.opens, Event::Open(index)));
        events.extend(operation.closes.map(|at| (at, Event::Close(index))));
    }
    let is_optional = |event: &Event| matches!(event, Event::Close(index) if !operations[*index].required);
    events.sort_by_key(|(at, event)| (*at, is_optional(event), *event));
    events
}

/// For each event the operations that are open then: required ones first, then by their end.
pub fn open_at<A>(operations: &[Operation<A>], events: &[(Moment, Event)]) -> Vec<Rc<[usize]>> {
    let mut now: Vec<usize> = Vec::new();
    let mut all = Vec::with_capacity(events.len());
    for (_, event) in events {
        all.push(Rc::from(&now[..]));
        match event {
            Event::Open(index) => {
                now.push(*index);
                let order = |index: &usize| {
                    let operation = &operations[*index];
                    (!operation.required, operation.closes.is_none(), operation.closes, *index)
                };
                now.sort_by_key(order);
            }
            Event::Close(index) => now.retain(|open| open != index),
            Event::PowerCut => {}
        }
    }
    all
}
