//! Named scenarios: runs in which a script, not chance, says what is held back, who loses power and when. Each holds one
//! fault that a seed found once, since seeds mean something else whenever the simulator draws its numbers otherwise.
//! `docs/simulator.md` says of each which mend it fails without.

mod failures;
mod late;
mod moves;
mod names;
mod ops;
mod power_cuts;
mod reads;
mod stage;
