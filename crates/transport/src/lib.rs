//! How requests reach a server: frames over unix sockets (peer credentials) or loopback TCP (a shared secret).
//!
//! A connection carries one frame at a time each way and belongs to one thread at a time on both sides, so a request
//! wakes one thread there and one back (`docs/adr/0003-runtime.md`). A frame holds a batch of requests that the server
//! takes in order. Servers among themselves keep one connection for each two, which carries the packets of a [`link`].
//! `docs/format/wire.md` is the document.

mod authentication;
mod client;
mod connection_limits;
mod control;
mod credentials;
mod endpoint;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod link;
mod local;
mod lock_notifications;
mod peers;
mod pending_batches;
mod server;
mod servers;
mod session_lock;

pub use client::{Remote, Welcome};
pub use control::{Control, control};
pub use credentials::Peer;
pub use endpoint::{Endpoint, Secret};
pub use frame::{BATCH_MAX, FRAME_BYTES_MAX};
pub use local::Local;
pub use lock_notifications::{Ears, Listener};
pub use peers::{Cork, PeerHandler, Peers};
pub use pending_batches::Sent;
pub use server::{Server, Service};
pub use servers::Servers;
pub use session_lock::{SessionLocks, SessionProcess};
