//! How a leader begins a view: it brings all members to one log, compares them where it must, and opens the view.

pub(crate) mod compare;
pub(crate) mod feed;
pub(crate) mod level;
