//! Entry points for the fuzz targets: each side of a conversation, fed with arbitrary bytes.

use crate::client::{ExchangeError, HANDSHAKE_LIMIT, introduce, read_map};
use crate::credentials::Peer;
use crate::endpoint::Endpoint;
use crate::frame::{Channel, Purpose};
use crate::server::{Server, Service};
use crate::stream::Stream;
use crate::{Remote, frame};
use bytes::Bytes;
use hekate_proto::{Malformed, Reply, Request, Result};
use hekate_tls::Inbox;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

pub use crate::frame::{Accepted, Challenge, Hello, PROTOCOL_VERSION};

/// Most bytes of a conversation: a socket buffers them without a reader.
const CONVERSATION_BYTES_MAX: usize = 64 << 10;
/// Time limit for sends. The answers are not read, so a full socket ends the conversation.
const SEND_LIMIT: Duration = Duration::from_millis(20);

/// Decodes the requests of a frame's body.
///
/// # Errors
/// The body is malformed, or has more than [`crate::BATCH_MAX`] requests.
pub fn take_requests(body: Bytes) -> std::result::Result<Vec<Request>, Malformed> {
    frame::take_requests(body)
}

/// Decodes the replies of a frame's body.
///
/// # Errors
/// The body is malformed, or has more than [`crate::BATCH_MAX`] replies.
pub fn take_replies(body: Bytes) -> std::result::Result<Vec<Result<Reply>>, Malformed> {
    frame::take_replies(body)
}

/// A server receives `bytes` from a peer and then the end of the connection.
///
/// # Errors
/// The error that ended the conversation; the fuzz target ignores it.
pub fn converse_as_server(bytes: &[u8], peer: Peer, service: Arc<dyn Service>) -> std::io::Result<()> {
    let (stream, _peer) = stream_of(bytes)?;
    let server = Server::new(service);
    server.shared.converse(Channel::new(stream, Inbox::default()), peer)
}

/// A client receives `bytes` and then the end of the connection. It sends `requests` until an exchange fails.
///
/// # Errors
/// The error that ended the conversation; the fuzz target ignores it.
pub fn converse_as_client(bytes: &[u8], requests: &[Request]) -> Result<()> {
    let broken = |e| hekate_proto::Error::io("make a pair of sockets", e);
    let (stream, _peer) = stream_of(bytes).map_err(broken)?;
    let endpoint = Endpoint::Unix("/nowhere".into());
    let mut channel = Channel::new(stream, Inbox::default());
    let accepted = introduce(&mut channel, &endpoint, Purpose::Open { volume: "v".into() }, HANDSHAKE_LIMIT)?;
    read_map(&accepted)?;
    let remote = Remote {
        endpoint,
        volume: "v".into(),
        session: accepted.session,
        local: None,
        idle: vec![channel].into(),
        frame_id: 1.into(),
        closed: false.into(),
    };
    while let Some(channel) = remote.pooled() {
        remote.exchange(channel, requests, None, &|| false).map_err(|error| match error {
            ExchangeError::Connection(error) => broken(error),
            ExchangeError::Replies(error) => error,
        })?;
    }
    Ok(())
}

/// A stream with `bytes` to read, and its other end.
fn stream_of(bytes: &[u8]) -> std::io::Result<(Stream, UnixStream)> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(&bytes[..bytes.len().min(CONVERSATION_BYTES_MAX)])?;
    theirs.shutdown(std::net::Shutdown::Write)?;
    set_socket_timeout(&ours, Timeout::Send, Some(SEND_LIMIT))?;
    Ok((Stream::plain(ours), theirs))
}
