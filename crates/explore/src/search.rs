//! Visits every state, nearest first, so that the first counterexample is a shortest one.
//!
//! Of a visited state only a fingerprint (128 bits) and the step that led to it are kept; a trace is made by repeating
//! the steps. stateright 0.31 is not used because its `eventually` is right on acyclic graphs only, and it has no
//! property "from every state a whole one can be reached"; see `docs/fast-lane.md`.

use crate::state::Budget;
use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};

/// A system to explore: its initial state, the possible steps, and the conditions on every state.
pub trait Model {
    type State: Clone + Hash;
    type Action: Copy + Debug;

    fn name(&self) -> &'static str;
    /// Limit of the number of states; an exploration that reaches it fails.
    fn states_max(&self) -> usize;
    fn first(&self) -> Self::State;
    /// Adds all steps that can happen next.
    fn actions(&self, state: &Self::State, found: &mut Vec<Self::Action>);
    fn step(&self, state: &mut Self::State, action: Self::Action);
    /// The first promise that a state breaks.
    fn complaint(&self, state: &Self::State) -> Option<&'static str>;
    /// A state like this must be reachable from every state without another fault.
    fn is_whole(&self, state: &Self::State) -> bool;
    /// Faults that may still happen. A step that uses the budget is a fault.
    fn budget<'a>(&self, state: &'a Self::State) -> &'a Budget;
    fn in_words(&self, state: &Self::State) -> String;
    /// A step that is about to be taken as text, with the message that it delivers.
    fn step_in_words(&self, state: &Self::State, action: Self::Action) -> String;
}

/// The result of an exploration.
#[derive(Debug)]
pub struct Found<A> {
    pub name: &'static str,
    pub states: usize,
    pub steps: usize,
    pub depth: usize,
    pub whole: usize,
    /// Kinds of steps that were taken.
    pub kinds: Vec<std::mem::Discriminant<A>>,
    /// True if all states were visited; false if the exploration was stopped.
    pub is_complete: bool,
    pub took: Duration,
    pub violation: Option<Violation>,
}

impl<A> Found<A> {
    fn note(&mut self, action: &A) {
        let kind = std::mem::discriminant(action);
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
    }
}

#[derive(Debug)]
pub struct Violation {
    pub complaint: &'static str,
    pub steps: usize,
    pub text: String,
}

/// Two independent multiplicative hashes of the same words.
struct Print(u64, u64);

impl Default for Print {
    fn default() -> Self {
        Self(0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F)
    }
}

impl Hasher for Print {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
    fn write_u64(&mut self, value: u64) {
        let one = u128::from(self.0 ^ value) * 0xA076_1D64_78BD_642F_u128;
        self.0 = (one as u64 ^ (one >> 64) as u64).wrapping_add(0xE703_7ED1_A0B4_28DB);
        let two = u128::from(self.1.rotate_left(23) ^ value) * 0x8EBC_6AF0_9C88_C6E3_u128;
        self.1 = (two as u64 ^ (two >> 64) as u64).wrapping_add(0x5899_65CC_7537_4CC3);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

fn print_of(state: &impl Hash) -> u128 {
    let mut print = Print::default();
    state.hash(&mut print);
    u128::from(print.0) << 64 | u128::from(print.1)
}

/// Passes a fingerprint on unchanged: it is a hash already.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn write(&mut self, _: &[u8]) {}
    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

struct Graph<A> {
    known: HashMap<u128, u32, BuildHasherDefault<Same>>,
    /// For each state but the first one the state and step from which it was reached first.
    came: Vec<(u32, A)>,
    /// Steps without a fault, from and to.
    edges: Vec<(u32, u32)>,
    whole: Vec<u32>,
}

/// Visits all states of a configuration. With `progress` also checks that from each of them the system can become whole
/// without another fault.
pub fn explore<M: Model>(model: &M, progress: bool) -> Found<M::Action> {
    let began = Instant::now();
    let first = model.first();
    let mut graph = Graph { known: HashMap::default(), came: Vec::new(), edges: Vec::new(), whole: Vec::new() };
    graph.known.insert(print_of(&first), 0);
    let mut found = Found {
        name: model.name(),
        states: 1,
        steps: 0,
        depth: 0,
        whole: 0,
        kinds: Vec::new(),
        is_complete: true,
        took: Duration::ZERO,
        violation: None,
    };
    let mut layer = vec![(0, first)];
    let mut actions = Vec::new();
    while !layer.is_empty() && found.violation.is_none() {
        let mut next = Vec::new();
        for (number, state) in layer {
            if progress && model.is_whole(&state) {
                graph.whole.push(number);
            }
            actions.clear();
            model.actions(&state, &mut actions);
            for action in &actions {
                found.steps += 1;
                found.note(action);
                let mut after = state.clone();
                model.step(&mut after, *action);
                let fresh = graph.came.len() as u32 + 1;
                let to = *graph.known.entry(print_of(&after)).or_insert(fresh);
                let is_fault = model.budget(&after).faults() < model.budget(&state).faults();
                if progress && !is_fault {
                    graph.edges.push((number, to));
                }
                if to != fresh {
                    continue;
                }
                graph.came.push((number, *action));
                if let Some(complaint) = model.complaint(&after) {
                    found.violation = Some(tell(model, &graph, fresh, complaint));
                    break;
                }
                next.push((fresh, after));
            }
            if found.violation.is_some() {
                break;
            }
        }
        found.depth += usize::from(!next.is_empty());
        layer = next;
        if graph.came.len() > model.states_max() {
            found.is_complete = false;
            break;
        }
    }
    found.states = graph.came.len() + 1;
    found.whole = graph.whole.len();
    if progress && found.is_complete && found.violation.is_none() {
        let stuck = never_whole(&mut graph);
        found.violation = stuck.map(|at| tell(model, &graph, at, "from here it can not become whole again"));
    }
    found.took = began.elapsed();
    found
}

/// The first state from which no path without a fault leads to a whole one.
fn never_whole<A>(graph: &mut Graph<A>) -> Option<u32> {
    let count = graph.came.len() + 1;
    graph.edges.sort_unstable_by_key(|(_, to)| *to);
    let mut starts = vec![0_u32; count + 1];
    graph.edges.iter().for_each(|(_, to)| starts[*to as usize + 1] += 1);
    (0..count).for_each(|at| starts[at + 1] += starts[at]);
    let mut good = vec![false; count];
    let mut open = graph.whole.clone();
    open.iter().for_each(|at| good[*at as usize] = true);
    while let Some(at) = open.pop() {
        for (from, _) in &graph.edges[starts[at as usize] as usize..starts[at as usize + 1] as usize] {
            if !std::mem::replace(&mut good[*from as usize], true) {
                open.push(*from);
            }
        }
    }
    good.iter().position(|good| !good).map(|at| at as u32)
}

fn tell<M: Model>(model: &M, graph: &Graph<M::Action>, at: u32, complaint: &'static str) -> Violation {
    let mut trace = Vec::new();
    let mut at = at;
    while at != 0 {
        let (from, action) = graph.came[at as usize - 1];
        trace.push(action);
        at = from;
    }
    trace.reverse();
    let mut state = model.first();
    let mut text = format!("{}: {complaint}, after {} steps\n", model.name(), trace.len());
    for (number, action) in trace.iter().enumerate() {
        let _ = writeln!(text, "{:3} {}", number + 1, model.step_in_words(&state, *action));
        model.step(&mut state, *action);
    }
    text.push_str(&model.in_words(&state));
    Violation { complaint, steps: trace.len(), text }
}

impl<A> std::fmt::Display for Found<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let took = self.took.as_secs_f64();
        let rate = self.states as f64 / took.max(0.001);
        write!(
            f,
            "{:44} {:9} states {:10} steps, depth {:3}, {:7} whole, {took:6.2} s, {rate:.0}/s",
            self.name, self.states, self.steps, self.depth, self.whole
        )
    }
}
