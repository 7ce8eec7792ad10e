//! Linearizability: is there an order of the operations, each at a moment between its call and its return, in which a
//! model gives every answer that was given?
//!
//! The search is that of Wing and Gong (1993) with the memory of Lowe, "Testing for linearizability" (2017), and his
//! just-in-time rule: an operation is placed only when one that returns now needs it. So the search goes along the
//! history and remembers, for each event, (state, placed parts of the open operations). Operations that only observe
//! are placed as soon as they fit, which never rules an order out.

mod events;

use crate::history::{CallNumber, Moment};
use events::Event;
use foldhash::fast::FixedState;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::rc::Rc;

/// Configurations before a search gives up; a history of some hundred operations needs a few thousand.
const CONFIGURATIONS_MAX: usize = 30_000;

/// Steps before a search gives up, including those that lead to a known configuration.
const STEPS_MAX: usize = 30_000;

/// The object that the operations work on.
pub trait Model {
    /// Everything that answers depend on.
    type State: Clone + Eq + Hash;
    /// An operation together with its answer; without one if the answer is unknown.
    type Action;

    /// Number of steps in which an action takes effect, in order.
    fn parts(&self, _action: &Self::Action) -> usize {
        1
    }

    /// True if the action never changes any state.
    fn only_looks(&self, action: &Self::Action) -> bool;

    /// The states that part `part` may leave if it gives the answer that was given; none if it cannot.
    fn steps(&self, state: &Self::State, action: &Self::Action, part: usize) -> Vec<Self::State>;

    /// Why there is no such state, as text.
    fn explain(&self, state: &Self::State, action: &Self::Action, part: usize) -> String;

    /// The states that a power cut may leave.
    fn power_cut(&self, state: &Self::State, _at: Moment) -> Vec<Self::State> {
        vec![state.clone()]
    }
}

/// An action in its window.
#[derive(Debug, Clone)]
pub struct Operation<A> {
    /// The call that the action belongs to.
    pub call: CallNumber,
    /// The action to place.
    pub action: A,
    /// Earliest moment.
    pub opens: Moment,
    /// Latest moment; `None`: no limit.
    pub closes: Option<Moment>,
    /// True if it happened; false if it may have happened.
    pub required: bool,
}

/// Why there is no order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The longest prefix that has an order, in that order.
    pub placed: Vec<CallNumber>,
    /// The call that returned next and has no place, and why it cannot follow that order.
    pub next: Option<(CallNumber, String)>,
    /// Calls that overlap it and are not placed either.
    pub open: Vec<CallNumber>,
    /// True if the search gave up: an order may exist.
    pub gave_up: bool,
}

/// Looks for an order of the operations. Returns the calls in it, one entry for each placed part.
///
/// # Errors
///
/// There is no order, or the search gave up.
pub fn linearize<M: Model>(
    model: &M,
    initial: M::State,
    operations: &[Operation<M::Action>],
    power_cuts: &[Moment],
) -> Result<Vec<CallNumber>, Stuck> {
    Search::new(model, operations, power_cuts).run(initial)
}

/// Number of placed parts of each open operation; operations without any are left out.
type Placed = Vec<(usize, usize)>;

/// The path to a configuration, last step first.
struct Step {
    call: CallNumber,
    before: Path,
}

type Path = Option<Rc<Step>>;

/// A configuration in which all events before `event` are processed.
struct Node<S> {
    event: usize,
    state: Rc<S>,
    placed: Placed,
    path: Path,
}

impl<S> Clone for Node<S> {
    fn clone(&self) -> Self {
        Self { event: self.event, state: self.state.clone(), placed: self.placed.clone(), path: self.path.clone() }
    }
}

struct Search<'a, M: Model> {
    model: &'a M,
    operations: &'a [Operation<M::Action>],
    events: Vec<(Moment, Event)>,
    /// For each event the operations that are open then: required ones first, then by their end.
    open: Vec<Rc<[usize]>>,
    states: HashMap<Rc<M::State>, usize, FixedState>,
    seen: HashSet<(usize, usize, Placed), FixedState>,
    furthest: Option<Node<M::State>>,
    steps: usize,
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M, operations: &'a [Operation<M::Action>], power_cuts: &[Moment]) -> Self {
        let events = events::in_order(operations, power_cuts);
        let open = events::open_at(operations, &events);
        let (states, seen) = (HashMap::default(), HashSet::default());
        Self { model, operations, events, open, states, seen, furthest: None, steps: 0 }
    }

    fn run(mut self, initial: M::State) -> Result<Vec<CallNumber>, Stuck> {
        let mut stack = vec![Node { event: 0, state: Rc::new(initial), placed: Vec::new(), path: None }];
        while let Some(node) = stack.pop() {
            let Some(node) = self.advance(node) else { continue };
            let Some((at, event)) = self.events.get(node.event).copied() else { return Ok(calls(&node.path)) };
            if self.furthest.as_ref().is_none_or(|best| best.event < node.event) {
                self.furthest = Some(node.clone());
            }
            if self.seen.len() > CONFIGURATIONS_MAX || self.steps > STEPS_MAX {
                return Err(self.stuck(true));
            }
            let before = stack.len();
            match event {
                Event::PowerCut => self.after_power_cut(&node, at, &mut stack),
                Event::Open(index) | Event::Close(index) => self.placements(&node, index, &mut stack),
            }
            self.steps += stack.len() - before;
            // The first that was pushed is tried first.
            stack[before..].reverse();
        }
        Err(self.stuck(false))
    }

    /// Advances to the next event at which there is a choice; none if this configuration was visited before.
    fn advance(&mut self, mut node: Node<M::State>) -> Option<Node<M::State>> {
        while let Some((_, event)) = self.events.get(node.event) {
            match event {
                Event::Open(index) => {
                    node.event += 1;
                    self.look(&mut node, *index);
                }
                Event::Close(index) if self.is_done(&node.placed, *index) => {
                    node.placed.retain(|(placed, _)| placed != index);
                    node.event += 1;
                }
                Event::Close(_) | Event::PowerCut => break,
            }
        }
        let next = self.states.len();
        let state = *self.states.entry(node.state.clone()).or_insert(next);
        self.seen.insert((node.event, state, node.placed.clone())).then_some(node)
    }

    /// True if no part is left to place when the operation's window ends.
    fn is_done(&self, placed: &Placed, index: usize) -> bool {
        let operation = &self.operations[index];
        !operation.required || parts_placed(placed, index) == self.model.parts(&operation.action)
    }

    /// Places the parts of an observing operation as far as they fit.
    fn look(&self, node: &mut Node<M::State>, index: usize) {
        let operation = &self.operations[index];
        if !self.model.only_looks(&operation.action) {
            return;
        }
        for part in parts_placed(&node.placed, index)..self.model.parts(&operation.action) {
            let fits = self.model.steps(&node.state, &operation.action, part);
            // A model may decide late what a power cut left; an observation that forces the decision is a choice.
            if fits.len() != 1 || fits[0] != *node.state {
                return;
            }
            place(node, index, operation.call);
        }
    }

    /// All ways to place one more part, so that `needed` can be placed.
    fn placements(&self, node: &Node<M::State>, needed: usize, stack: &mut Vec<Node<M::State>>) {
        let open = self.open[node.event].clone();
        let others = open.iter().copied().filter(|index| *index != needed);
        for index in std::iter::once(needed).chain(others) {
            let operation = &self.operations[index];
            let (part, parts) = (parts_placed(&node.placed, index), self.model.parts(&operation.action));
            if part == parts {
                continue;
            }
            for state in self.model.steps(&node.state, &operation.action, part) {
                // An optional operation that changes nothing helps no other one.
                if !operation.required && part + 1 == parts && state == *node.state {
                    continue;
                }
                let mut next = Node { state: Rc::new(state), ..node.clone() };
                place(&mut next, index, operation.call);
                open.iter().for_each(|index| self.look(&mut next, *index));
                stack.push(next);
            }
        }
    }

    /// Observations may take place before the power fails, and see changes that are lost then.
    fn after_power_cut(&self, node: &Node<M::State>, at: Moment, stack: &mut Vec<Node<M::State>>) {
        for state in self.model.power_cut(&node.state, at) {
            let mut next = Node { state: Rc::new(state), event: node.event + 1, ..node.clone() };
            self.open[node.event].iter().for_each(|index| self.look(&mut next, *index));
            stack.push(next);
        }
        let looks = |index: &&usize| {
            let action = &self.operations[**index].action;
            self.model.only_looks(action) && parts_placed(&node.placed, **index) < self.model.parts(action)
        };
        if let Some(index) = self.open[node.event].iter().find(looks) {
            self.placements(node, *index, stack);
        }
    }

    fn stuck(&self, gave_up: bool) -> Stuck {
        let Some(node) = &self.furthest else {
            return Stuck { placed: Vec::new(), next: None, open: Vec::new(), gave_up };
        };
        let mut open: Vec<CallNumber> = Vec::new();
        let unplaced = self.open[node.event].iter().filter(|index| !self.is_done(&node.placed, **index));
        open.extend(unplaced.map(|index| self.operations[*index].call));
        let next = match self.events.get(node.event) {
            Some((_, Event::Close(index))) => {
                let operation = &self.operations[*index];
                let part = parts_placed(&node.placed, *index);
                Some((operation.call, self.model.explain(&node.state, &operation.action, part)))
            }
            _ => None,
        };
        open.retain(|call| next.as_ref().is_none_or(|(next, _)| next != call));
        open.sort_unstable();
        open.dedup();
        Stuck { placed: calls(&node.path), next, open, gave_up }
    }
}

fn parts_placed(placed: &Placed, index: usize) -> usize {
    placed.binary_search_by_key(&index, |(index, _)| *index).map_or(0, |at| placed[at].1)
}

fn place<S>(node: &mut Node<S>, index: usize, call: CallNumber) {
    match node.placed.binary_search_by_key(&index, |(index, _)| *index) {
        Ok(at) => node.placed[at].1 += 1,
        Err(at) => node.placed.insert(at, (index, 1)),
    }
    node.path = Some(Rc::new(Step { call, before: node.path.take() }));
}

fn calls(path: &Path) -> Vec<CallNumber> {
    let mut all = VecDeque::new();
    let mut at = path;
    while let Some(step) = at {
        all.push_front(step.call);
        at = &step.before;
    }
    all.into()
}

#[cfg(test)]
mod tests;
