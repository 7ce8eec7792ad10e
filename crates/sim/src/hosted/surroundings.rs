//! What a simulated server has around it: its disk, and links over a network that loses and doubles packets.

use super::world::{LinkEvent, World};
use crate::cluster::threads;
use bytes::Bytes;
use hekate_brick::{Brick, RecoveryReport};
use hekate_proto::{Error, Result, ServerId};
use hekate_server::{IsIt, Links, Surroundings};
use hekate_transport::link::Boot;
use hekate_transport::{Endpoint, PeerHandler, PeerLinks};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long the thread of a link sleeps at most.
const SLEEP: Duration = Duration::from_secs(1);

/// The surroundings of one server.
pub struct Around {
    pub server: u32,
}

fn ended() -> Error {
    Error::Unavailable { what: "the process has ended".into() }
}

impl Surroundings for Around {
    fn open_brick(&self, _: &Path, _: &str, is_it: IsIt) -> Result<(Brick, RecoveryReport)> {
        let server = self.server;
        let begun = threads::in_world(move |world: &mut World| {
            let seed = world.random.number();
            world.servers[server as usize].disk.begin_open(seed)
        });
        begun.ok_or_else(ended)??.open(is_it)
    }

    fn start_links(&self, own: ServerId, boot: Boot, handler: Arc<dyn PeerHandler>) -> Result<Links> {
        let server = self.server;
        let peers = threads::in_world(move |world: &mut World| world.begin_links(own, boot)).ok_or_else(ended)?;
        for peer in peers {
            let handler = handler.clone();
            hekate_threads::spawn("link", move || handle_link(server, peer, &*handler))
                .map_err(|error| Error::io("start a thread", error))?;
        }
        Ok(Links { links: Arc::new(Self { server }), peers: None })
    }
}

/// The key of the thread that handles what a link brings.
pub fn key_of_link(server: u32, peer: ServerId) -> u64 {
    1 << 62 | u64::from(server) << 32 | u64::from(peer.0)
}

/// Body of the thread that handles what a link brings, in order.
fn handle_link(server: u32, peer: ServerId, handler: &dyn PeerHandler) {
    while !threads::is_dying() {
        let event = threads::in_world(move |world: &mut World| world.next_of_link(server, peer)).flatten();
        match event {
            Some(LinkEvent::Up(boot)) => handler.up(peer, boot),
            Some(LinkEvent::Message(bytes)) => handler.message(peer, bytes),
            Some(LinkEvent::Down) => handler.down(peer),
            None => _ = threads::wait(Some(key_of_link(server, peer)), Some(SLEEP)),
        }
    }
}

impl PeerLinks for Around {
    fn set_address(&self, _: ServerId, _: Endpoint) -> Result<()> {
        Ok(())
    }

    fn send(&self, to: ServerId, message: Bytes) -> bool {
        let server = self.server;
        threads::in_world(move |world: &mut World| world.send_over_link(server, to, message)).unwrap_or_default()
    }

    fn stop(&self) {
        let server = self.server;
        threads::in_world(move |world: &mut World| world.end_links(server));
    }
}
