//! Transport of requests between processes: frames over unix sockets (peer credentials) or TCP (mutual TLS 1.3).
//!
//! A connection carries one frame at a time in each direction and is used by one thread at a time at each end, so a
//! request wakes one thread at the server and one at the client (`docs/adr/0003-runtime.md`). A frame holds a batch
//! of requests that the server executes in order. Each pair of servers shares one connection, which carries the
//! packets of a [`link`]. `docs/format/wire.md` describes the bytes.
//!
//! Read in this order: `frame` (encoding), `client` and `server` (the two ends of a connection), `servers` (all
//! servers of a volume) and `server_pool`, `link` and `peers` (messages between servers).

mod accept;
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
mod notifications;
mod peers;
mod pending_batches;
mod refusal_log;
mod server;
mod server_pool;
mod servers;
mod session_lock;
mod stream;
mod traffic;

pub use accept::Door;
pub use client::{Remote, Replies, Welcome};
pub use control::{Asked, Control, Sent, control};
pub use credentials::{Peer, Remote as RemotePeer};
pub use endpoint::{Endpoint, check_address};
pub use frame::{BATCH_MAX, FRAME_BYTES_MAX};
/// How one end of a connection over TCP checks the other.
pub use hekate_tls::Context as TlsContext;
pub use local::Local;
pub use notifications::{Listener, NotificationSink, SessionNotifications};
pub use peers::{Cork, PeerHandler, PeerLinks, Peers};
pub use refusal_log::RefusalLog;
pub use server::{Server, Service};
pub use server_pool::ServerPool;
pub use servers::{Notifications, PendingBatch, Servers};
pub use session_lock::{SessionLocks, SessionProcess};
pub use traffic::Traffic;
