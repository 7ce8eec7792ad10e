//! The interface of a server to its machine (bricks) and to the network (links, and requests to the control interface
//! of other servers). The simulator implements it too.

use crate::hosting::bricks::{NewBrick, make_brick};
use hekate_brick::{Brick, Identity, RecoveryReport};
use hekate_cluster::BrickInfo;
use hekate_proto::{BrickId, Error, Result, ServerId};
use hekate_transport::link::{Boot, LinkSettings};
use hekate_transport::{Control, Endpoint, PeerHandler, PeerLinks, Peers};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Check of a brick before it is opened: gets its id and the least number that this opening can have, and returns the
/// number that it has. Fails if the brick is not the one that the cluster records.
pub type IsIt<'a> = &'a dyn Fn(BrickId, u32) -> Result<u32>;

/// The machine that a server runs on, and the links to other servers.
pub trait Surroundings: Send + Sync {
    /// Opens the brick in a directory.
    ///
    /// # Errors
    ///
    /// Those of `is_it`; `Damaged` or `Io` if the brick cannot be read.
    fn open_brick(&self, directory: &Path, cluster: &str, is_it: IsIt) -> Result<(Brick, RecoveryReport)>;

    /// Checks that a brick can be made in a directory.
    ///
    /// # Errors
    ///
    /// `Invalid` if the directory is not empty, `Io` if it cannot be read.
    fn check_new_brick(&self, directory: &Path) -> Result<()>;

    /// Makes a brick in a directory, and returns its record for the coordinator.
    ///
    /// # Errors
    ///
    /// Those of [`make_brick`].
    fn make_brick(&self, directory: &Path, wanted: &NewBrick) -> Result<BrickInfo>;

    /// Sends a request to the control interface of another server, and returns the reply.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server is not reached or does not reply within `limit`.
    fn ask(&self, server: Endpoint, limit: Duration, request: &str) -> Result<String>;

    /// Starts the links of a server. `boot` is a random number that this process drew.
    ///
    /// # Errors
    ///
    /// `Io` if the machine gives no thread.
    fn start_links(&self, own: ServerId, boot: Boot, handler: Arc<dyn PeerHandler>) -> Result<Links>;

    /// A replica has reached a branch that is rarely executed. Called under the replica's lock, so it must not wait.
    fn reached(&self, _branch: &'static str) {}
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

    fn check_new_brick(&self, directory: &Path) -> Result<()> {
        if let Ok(other) = Identity::read(directory) {
            return Err(Error::invalid(format!(
                "{} is not empty: it is a brick of cluster {} already; a new one needs a directory of its own",
                directory.display(),
                other.cluster
            )));
        }
        Identity::check_empty(directory)
    }

    fn make_brick(&self, directory: &Path, wanted: &NewBrick) -> Result<BrickInfo> {
        make_brick(directory, wanted)
    }

    fn ask(&self, server: Endpoint, limit: Duration, request: &str) -> Result<String> {
        Control::new(server, Some(limit)).ask(request)
    }

    fn start_links(&self, own: ServerId, boot: Boot, handler: Arc<dyn PeerHandler>) -> Result<Links> {
        let peers = Peers::start(own, boot, LinkSettings::default(), handler)?;
        Ok(Links { links: Arc::new(peers.clone()), peers: Some(peers) })
    }
}
