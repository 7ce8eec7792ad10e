//! Opens a volume and works in it: the library that every door stands on.
//!
//! A [`Volume`] has a session with its cluster, the volume's map and its graph. All calls block the calling thread, may
//! be made from many threads at once, and ride out a server that is away: they wait and go on (an op is never done
//! twice), until [`Context::interrupt`] says that the caller gave up.

mod files;
mod volume;

pub use hekate_graph::Context;
pub use hekate_proto as proto;
pub use hekate_transport::Endpoint;
pub use volume::{New, OpenOptions, Volume};
