//! How requests reach a server: frames over unix sockets (peer credentials) or loopback TCP (a shared secret).
//!
//! A connection carries one frame at a time each way and belongs to one thread at a time on both sides, so a request
//! wakes one thread there and one back (`docs/adr/0003-runtime.md`). A frame holds a batch of requests that the server
//! takes in order. `docs/format/wire.md` is the document.

mod client;
mod endpoint;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod link;
mod server;

pub use client::{Remote, Welcome, control};
pub use endpoint::{Endpoint, Secret};
pub use frame::{BATCH_MAX, FRAME_BYTES_MAX};
pub use server::{Peer, Server, Service};
