//! Tests of a brick, a file for each of its promises. [`support`] has what they share.
//!
//! `machine` and `invariants` reach into the machine, so `machine.rs` declares them. Tests of one short file stand at
//! its end.

mod checkpoint;
mod damage;
mod data_syncs;
mod full_disk;
mod histories;
pub mod index_damage;
mod inspect;
mod journal;
mod opening;
mod poison;
mod power_cut;
mod reads;
mod records_since;
mod storage;
pub mod support;
mod torn_tail;
mod waiting;
