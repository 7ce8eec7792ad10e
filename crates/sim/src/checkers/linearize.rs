//! Linearizability: is there an order of the operations, each at a moment between its call and its return, in which a
//! model gives every answer that was given?
//!
//! The search is that of Wing and Gong (1993) with the memory of Lowe, "Testing for linearizability" (2017), and his
//! just-in-time rule: an operation is placed only when one that returns now needs it, so the search goes along the
//! history and remembers, for each event, (state, what is placed of the open operations). Operations that only look are
//! placed as soon as they fit, which never rules anything out.

mod events;

use crate::history::{CallNumber, Moment};
use events::Event;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};
use std::rc::Rc;

/// Configurations before a search gives up; a history of some hundred operations needs a few thousand.
const CONFIGURATIONS_MAX: usize = 30_000;

/// Steps before it gives up, those included that lead to a configuration which it knows.
const STEPS_MAX: usize = 30_000;

/// What the operations work on.
pub trait Model {
    /// All that answers depend on.
    type State: Clone + Eq + Hash;
    /// An operation together with the answer that was given; for an unknown one without.
    type Action;

    /// An action may take effect in several steps, in this order.
    fn parts(&self, _action: &Self::Action) -> usize {
        1
    }

    /// It never changes any state.
    fn only_looks(&self, action: &Self::Action) -> bool;

    /// The states that part `part` may leave, if it gives the answer that was given; none if it cannot.
    fn steps(&self, state: &Self::State, action: &Self::Action, part: usize) -> Vec<Self::State>;

    /// Why there is no such state, for people.
    fn explain(&self, state: &Self::State, action: &Self::Action, part: usize) -> String;

    /// The states that a power cut may leave.
    fn power_cut(&self, state: &Self::State, _at: Moment) -> Vec<Self::State> {
        vec![state.clone()]
    }
}

/// An action in its window.
#[derive(Debug, Clone)]
pub struct Operation<A> {
    /// Whose action it is.
    pub call: CallNumber,
    /// What is to be placed.
    pub action: A,
    /// Not before.
    pub opens: Moment,
    /// Not after; `None`: at any later moment.
    pub closes: Option<Moment>,
    /// It happened; if not, it may have.
    pub required: bool,
}

/// Why there is no order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The longest beginning that has an order: this one.
    pub placed: Vec<CallNumber>,
    /// The call that returned next and has no place, and why it cannot stand at the end of that order.
    pub next: Option<(CallNumber, String)>,
    /// Calls that overlap it and are not placed either.
    pub open: Vec<CallNumber>,
    /// The search gave up: there may be an order.
    pub gave_up: bool,
}

/// An order of the operations; the calls in it, one for each part placed.
pub fn linearize<M: Model>(
    model: &M,
    initial: M::State,
    operations: &[Operation<M::Action>],
    power_cuts: &[Moment],
) -> Result<Vec<CallNumber>, Stuck> {
    Search::new(model, operations, power_cuts).run(initial)
}

/// How many parts of each open operation are placed; without those of which none is.
type Placed = Vec<(usize, usize)>;

/// The way to a configuration, last step first.
struct Step {
    call: CallNumber,
    before: Path,
}

type Path = Option<Rc<Step>>;

/// A configuration: all before `event` is done with.
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

type Fixed = BuildHasherDefault<DefaultHasher>;

struct Search<'a, M: Model> {
    model: &'a M,
    operations: &'a [Operation<M::Action>],
    events: Vec<(Moment, Event)>,
    /// For each event the operations that are open when it comes, required ones first, by their end.
    open: Vec<Rc<[usize]>>,
    states: HashMap<Rc<M::State>, usize, Fixed>,
    seen: HashSet<(usize, usize, Placed), Fixed>,
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

    /// Goes on to the next event at which there is something to choose; none if this configuration was met before.
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

    /// Whether nothing is left to be placed when the operation's window ends.
    fn is_done(&self, placed: &Placed, index: usize) -> bool {
        let operation = &self.operations[index];
        !operation.required || parts_placed(placed, index) == self.model.parts(&operation.action)
    }

    /// Places what only looks as far as it fits.
    fn look(&self, node: &mut Node<M::State>, index: usize) {
        let operation = &self.operations[index];
        if !self.model.only_looks(&operation.action) {
            return;
        }
        for part in parts_placed(&node.placed, index)..self.model.parts(&operation.action) {
            let fits = self.model.steps(&node.state, &operation.action, part);
            // A model may decide late what a power cut left; a look that makes it decide is a choice.
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
                // What need not have happened and changes nothing helps nobody.
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

    /// What looks may do so before the power fails, at what is lost then.
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
