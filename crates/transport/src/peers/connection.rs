//! One connection to a peer: the handshake, its writer thread, and reading.

use super::Shared;
use super::peer::Peer;
use crate::client::{HANDSHAKE_LIMIT, handshake};
use crate::credentials::local_peer;
use crate::endpoint::{Endpoint, Stream};
use crate::frame::{Channel, FrameKind, Purpose, malformed};
use crate::link::Packet;
use crate::server::spawn;
use hekate_proto::{Error, Result, Wire};
use parking_lot::Condvar;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Packets that are handled before anything is written.
const BATCH_PACKETS_MAX: usize = 256;

/// Keeps a connection to a peer that accepts, until the end.
pub(super) fn connect_for_ever(shared: &Arc<Shared>, peer: &Arc<Peer>) {
    while !shared.stopping() {
        if let Some(Ok(channel)) = peer.endpoint().map(|endpoint| connect(shared, peer, &endpoint)) {
            // A handler that panics costs the connection; the link has been told.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| converse(shared, peer, channel)));
        }
        std::thread::sleep(RECONNECT_PAUSE);
    }
}

fn connect(shared: &Shared, peer: &Peer, endpoint: &Endpoint) -> Result<Channel> {
    let purpose = Purpose::Peer { server: shared.own, boot: shared.boot, to: peer.server };
    let (channel, _) = handshake(endpoint, purpose, HANDSHAKE_LIMIT)?;
    if let Endpoint::Unix(_) = endpoint {
        let failed = |e| Error::io(format!("ask who listens at {endpoint}"), e);
        local_peer(&channel.stream).map_err(failed)?.may_be_server()?;
    }
    Ok(channel)
}

/// Reads and handles what comes, until the connection ends.
pub(super) fn converse(shared: &Arc<Shared>, peer: &Arc<Peer>, mut channel: Channel) -> std::io::Result<()> {
    let stream = Arc::new(Stream(channel.stream.0.try_clone()?));
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
        if !peer.hear(shared, id, &mut packets) {
            return Ok(());
        }
    }
}

fn receive(channel: &mut Channel) -> std::io::Result<Packet> {
    match channel.receive()? {
        (FrameKind::Packet, _, body) => Packet::from_bytes(body).map_err(|e| malformed(e.0)),
        _ => Err(malformed("not a packet")),
    }
}

/// Tells the peer that its connection has ended, however it did.
struct Connected<'a> {
    peer: &'a Peer,
    id: u64,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.peer.disconnected(self.id);
    }
}
