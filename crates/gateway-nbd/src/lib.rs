//! The block door: vDisks over NBD, written from the protocol document
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>).
//!
//! Fixed newstyle, TLS, structured replies, `base:allocation`, trim, write-zeroes, FUA, flush, several connections of one
//! client. `protocol` is pure; a thread reads each connection, and a bounded number of threads executes reads.

mod clients;
mod connection;
mod exports;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod handshake;
mod keeper;
mod pool;
pub mod protocol;
mod server;
mod stream;
mod tls;

pub use clients::Clients;
pub use exports::Exports;
pub use server::{Door, Listen, Settings};
pub use tls::TlsFiles;

#[cfg(test)]
mod tests;
