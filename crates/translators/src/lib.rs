//! The layers of a volume on the client. At the bottom, always: [`Distribute`] (which partition executes an op) over
//! [`Replicate`] (which replica, by which path) over transport. Above them, any stack of the translators in
//! [`built_in`], which are in `stackable`.

mod distribute;
mod locks;
mod pledges;
mod replicate;
mod stackable;
#[cfg(test)]
mod tests;
mod unsynced;

pub use distribute::Distribute;
pub use distribute::LossWatch;
pub use locks::Locks;
pub use pledges::touched::is_access_near;
pub use pledges::{ContentUse, NameAt, Pledges, Pledging, Watcher};
pub use replicate::{Replicate, check_mode};
pub use stackable::built_in;
