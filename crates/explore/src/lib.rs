//! The protocol of `docs/fast-lane.md`, as small as it can be, and an explorer that visits every state that a small
//! configuration of it can be in.
//!
//! `rules.rs` has the rules under the document's numbers; each that can be switched off is needed: `tests/ablation.rs`
//! shows for each what happens without it. Nothing here is product code, and it shares none with it: a model that called
//! `hekate-replica` could only find that the code does what the code does. The simulator (`hekate-sim`) runs that.

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
