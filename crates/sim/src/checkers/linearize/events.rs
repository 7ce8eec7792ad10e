//! The events that a search goes along: operations open and close, the power fails.

use super::Operation;
use crate::history::Moment;
use std::rc::Rc;

/// In this order at the same moment: what opens overlaps what closes then, and what closes with a power cut may come before
/// it. What need not have happened closes last: one call may be both that and what it led to.
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

/// For each event the operations that are open when it comes, required ones first, by their end.
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
