//! The S3 door: buckets, objects and uploads as directories and files of a volume.
//!
//! [`key`] maps keys to names, [`storage`] executes what S3's operations need of a volume. Neither knows HTTP. `server`
//! accepts connections and refuses what is not well formed or not signed; `service` is the protocol's operations. The
//! storage blocks: `pool` runs it on a bounded number of threads.

pub mod access;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod key;
mod pool;
mod refusal;
mod server;
mod service;
pub mod storage;

pub use access::{Grant, Key, Keys, User};
pub use server::{Door, Limits, Settings, TlsFiles};
