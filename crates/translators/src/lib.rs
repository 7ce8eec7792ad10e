//! The layers of a volume on the client. At the bottom, always: [`Distribute`] (which partition executes an op) over
//! [`Replicate`] (which replica, by which path) over transport. Above them, any stack of the layers in [`REGISTRY`].

mod distribute;
mod locks;
mod replicate;
#[cfg(test)]
mod tests;
mod trace;
mod unsynced;

pub use distribute::Distribute;
pub use distribute::LossWatch;
pub use locks::Locks;
pub use replicate::{Replicate, check_mode};
pub use trace::Trace;

/// The translators that can be stacked, by name.
pub const REGISTRY: &[(&str, hekate_graph::MakeLayer)] = &[("trace", Trace::make)];
