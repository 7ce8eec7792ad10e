//! The layers of a volume. At the bottom, fixed: [`Distribute`] (which partition) over [`Replicate`] (which replica,
//! which lane) over transport. On top, stackable: those of [`REGISTRY`].

mod distribute;
mod locks;
mod replicate;
mod trace;
mod unsynced;

pub use distribute::Distribute;
pub use distribute::LossWatch;
pub use locks::Locks;
pub use replicate::Replicate;
pub use trace::Trace;

/// The stackable translators by name.
pub const REGISTRY: &[(&str, hekate_graph::MakeLayer)] = &[("trace", Trace::make)];
