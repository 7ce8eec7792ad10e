//! The interface of a server to its machine (opening bricks) and to the network (links). The simulator implements it
//! too.

use hekate_brick::{Brick, RecoveryReport};
use hekate_proto::{BrickId, Result, ServerId};
use hekate_transport::link::{Boot, LinkSettings};
use hekate_transport::{PeerHandler, PeerLinks, Peers};
use std::path::Path;
use std::sync::Arc;

/// Check of a brick before it is opened: gets its id and its number of openings, and fails if the brick is not the one
/// that the cluster records.
pub type IsIt<'a> = &'a dyn Fn(BrickId, u32) -> Result<()>;

/// The machine that a server runs on, and the links to other servers.
pub trait Surroundings: Send + Sync {
    /// Opens the brick in a directory.
    ///
    /// # Errors
    ///
    /// Those of `is_it`; `Damaged` or `Io` if the brick cannot be read.
    fn open_brick(&self, directory: &Path, cluster: &str, is_it: IsIt) -> Result<(Brick, RecoveryReport)>;

    /// Starts the links of a server. `boot` is a random number that this process drew.
    ///
    /// # Errors
    ///
    /// `Io` if the machine gives no thread.
    fn start_links(&self, own: ServerId, boot: Boot, handler: Arc<dyn PeerHandler>) -> Result<Links>;
}

/// Links to other servers.
pub struct Links {
    pub links: Arc<dyn PeerLinks>,
    /// Set if they go over sockets, which other servers connect to.
    pub peers: Option<Peers>,
}

/// This machine: bricks in directories, links over sockets.
pub struct Machine;

impl Surroundings for Machine {
    fn open_brick(&self, directory: &Path, cluster: &str, is_it: IsIt) -> Result<(Brick, RecoveryReport)> {
        Brick::open_if(directory, cluster, &is_it)
    }

    fn start_links(&self, own: ServerId, boot: Boot, handler: Arc<dyn PeerHandler>) -> Result<Links> {
        let peers = Peers::start(own, boot, LinkSettings::default(), handler)?;
        Ok(Links { links: Arc::new(peers.clone()), peers: Some(peers) })
    }
}
