//! One connection to a peer: the handshake, its writer thread, and its reader.

use super::Shared;
use super::peer::Peer;
use crate::client::{HANDSHAKE_LIMIT, handshake};
use crate::credentials::peer_of;
use crate::endpoint::Endpoint;
use crate::frame::{Channel, FrameKind, Purpose, malformed};
use crate::link::Packet;
use crate::server::spawn;
use hekate_proto::{Error, Result, Wire};
use parking_lot::Condvar;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two attempts to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Most packets that are handled before anything is written.
const BATCH_PACKETS_MAX: usize = 256;

/// Keeps a connection to a peer that accepts connections, until [`Peers::stop`](super::Peers::stop).
pub(super) fn keep_connected(shared: &Arc<Shared>, peer: &Arc<Peer>) {
    let mut refused = String::new();
    while !shared.stopping() {
        match peer.endpoint().map(|endpoint| connect(shared, peer, &endpoint)) {
            Some(Ok(channel)) => {
                refused.clear();
                // A panic of the handler ends the connection. The link has been reset already.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(|| converse(shared, peer, channel)));
            }
            // One that does not answer is seen in the state of the cluster; why one refuses is known here only.
            Some(Err(error @ Error::Denied { .. })) if error.to_string() != refused => {
                refused = error.to_string();
                log::warn!("no link to server {}: {refused}", peer.server);
            }
            Some(Err(_)) | None => {}
        }
        std::thread::sleep(RECONNECT_PAUSE);
    }
}

fn connect(shared: &Shared, peer: &Peer, endpoint: &Endpoint) -> Result<Channel> {
    let purpose = Purpose::Peer { server: shared.own, boot: shared.boot, to: peer.server };
    let (channel, _) = handshake(endpoint, purpose, HANDSHAKE_LIMIT)?;
    let failed = |e| Error::io(format!("read who answers at {endpoint}"), e);
    peer_of(&channel.stream, None).map_err(failed)?.may_be_server(peer.server)?;
    Ok(channel)
}

/// Receives and handles packets until the connection ends.
pub(super) fn converse(shared: &Arc<Shared>, peer: &Arc<Peer>, mut channel: Channel) -> std::io::Result<()> {
    let stream = channel.stream.clone();
    let wake = Arc::new(Condvar::new());
    let id = peer.connected(shared, stream.clone(), wake.clone());
    let _connected = Connected { peer, id };
    if shared.stopping() {
        return Ok(());
    }
    let writing = peer.clone();
    spawn("hekate-peer-out", move || writing.write_when_blocked(id, &stream, &wake)).map_err(std::io::Error::other)?;
    let mut packets = Vec::new();
    loop {
        packets.push(receive(&mut channel)?);
        while channel.has_frame() && packets.len() < BATCH_PACKETS_MAX {
            packets.push(receive(&mut channel)?);
        }
        if !peer.receive(shared, id, &mut packets) {
            return Ok(());
        }
    }
}

fn receive(channel: &mut Channel) -> std::io::Result<Packet> {
    match channel.receive()? {
        (FrameKind::Packet, _, body) => Packet::from_bytes(body).map_err(|e| malformed(e.0)),
        _ => Err(malformed("a connection between servers has a frame that is not a packet")),
    }
}

/// Disconnects the link when the connection ends, also by a panic.
struct Connected<'a> {
    peer: &'a Peer,
    id: u64,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.peer.disconnected(self.id);
    }
}
