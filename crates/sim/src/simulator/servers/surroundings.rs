//! What a simulated server has around it: its disks, links over a network that loses and doubles packets, and the
//! control interfaces of the other servers.

use crate::simulator::clients::servers::answer;
use crate::simulator::threads::{self, Action, Answer};
use crate::simulator::world::{LinkEvent, World};
use bytes::Bytes;
use hekate_brick::{Brick, RecoveryReport};
use hekate_cluster::BrickInfo;
use hekate_proto::{Error, Result, ServerId};
use hekate_server::{IsIt, Links, NewBrick, Surroundings};
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
    fn open_brick(&self, directory: &Path, _: &str, is_it: IsIt) -> Result<(Brick, RecoveryReport)> {
        let (server, directory) = (self.server, directory.to_string_lossy().into_owned());
        let named = directory.clone();
        let begun = threads::in_world(move |world: &mut World| world.begin_open(server, &named));
        let (brick, report) = begun.ok_or_else(ended)??.open(is_it)?;
        let (openings, has_stopped) = (brick.generation(), report.stopped.is_some());
        let (lost, is_torn) = (report.lost.len() as u64, report.torn.is_some());
        threads::in_world(move |world: &mut World| {
            world.report.add("blocks that a power cut took", lost);
            world.report.add("journal tails torn off", u64::from(is_torn));
        });
        threads::in_world(move |world: &mut World| world.opened(server, &directory, openings, has_stopped))
            .ok_or_else(ended)?;
        Ok((brick, report))
    }

    fn check_new_brick(&self, directory: &Path) -> Result<()> {
        let (server, directory) = (self.server, directory.to_string_lossy().into_owned());
        let is_there = move |world: &mut World| world.servers[server as usize].disks.contains_key(&directory);
        match threads::in_world(is_there).ok_or_else(ended)? {
            true => Err(Error::invalid("the directory is not empty")),
            false => Ok(()),
        }
    }

    fn make_brick(&self, directory: &Path, wanted: &NewBrick) -> Result<BrickInfo> {
        let (server, directory, pool) =
            (self.server, directory.to_string_lossy().into_owned(), wanted.pool.to_string());
        threads::in_world(move |world: &mut World| world.make_brick(server, directory, pool)).ok_or_else(ended)?
    }

    fn ask(&self, server: Endpoint, limit: Duration, request: &str) -> Result<String> {
        let unavailable = || Error::Unavailable { what: format!("{server} does not answer") };
        let to = number_of(&server).ok_or_else(unavailable)?;
        let (own, message, request) = (self.server, threads::new_message(), request.to_string());
        threads::in_world(move |world: &mut World| world.send_control(own, to, message, request)).ok_or_else(ended)?;
        match answer(message, Some(limit), &|| false) {
            Some(Answer::Control(reply)) => Ok(reply),
            _ => Err(unavailable()),
        }
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

    fn reached(&self, branch: &'static str) {
        threads::ask(Action::Count(branch));
    }
}

/// The address of a server's control interface, as the cluster records it.
pub fn address_of(server: u32) -> String {
    format!("unix:/server-{server}")
}

fn number_of(endpoint: &Endpoint) -> Option<u32> {
    match endpoint {
        Endpoint::Unix(path) => path.to_string_lossy().strip_prefix("/server-")?.parse().ok(),
        Endpoint::Tcp(..) => None,
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
