//! The models of the protocol. One program, so that they are explored beside each other.

mod ablation;
mod facts;
mod lane;
mod times;
mod whole;
