//! Ops over several partitions: `drive.rs` takes an op from leg to leg, `legs.rs` is what a leg does in its partition,
//! `conflicts.rs` is what an op on its way holds against others.

pub(crate) mod conflicts;
pub(crate) mod drive;
pub(crate) mod driven;
pub(crate) mod legs;
