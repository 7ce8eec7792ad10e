//! The protocol of `docs/fast-lane.md` as a small model, and an explorer that visits every state of a small
//! configuration.
//!
//! `rules.rs` has the rules under the document's numbers. Each one that can be switched off is needed:
//! `tests/ablation.rs` shows for each what breaks without it. The model shares no code with the product: a model that
//! called
//! `hekate-replica` could only show that the code does what the code does. The simulator (`hekate-sim`) runs that code.

pub mod actions;
pub mod check;
pub mod client;
pub mod ghost;
pub mod invariants;
pub mod lane;
pub mod replica;
pub mod rules;
pub mod scope;
pub mod scopes;
pub mod search;
pub mod state;
pub mod times;
pub mod view;
