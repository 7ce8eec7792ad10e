//! Named scenarios: runs in which a script decides which messages are held back and when power fails. Each holds one
//! rule whatever a seed's random numbers are.
//! `docs/simulator.md` lists for each the code without which it fails.

mod failures;
mod late;
mod moves;
mod names;
mod ops;
mod power_cuts;
mod reads;
mod sessions;
mod stage;
