//! Identity of the other end of a connection, and whether it may be a server.

use crate::endpoint::Stream;
use hekate_proto::{Error, Result};

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine, identified by the kernel.
    Local {
        /// Its effective user id.
        uid: u32,
    },
    /// A process of this machine that proved the cluster's secret.
    Secret,
}

impl Peer {
    /// The peer's user id, if it is neither root nor the user of this process.
    pub(crate) fn unprivileged_uid(&self) -> Option<u32> {
        match *self {
            Peer::Local { uid } if uid != 0 && uid != rustix::process::geteuid().as_raw() => Some(uid),
            _ => None,
        }
    }

    /// Checks that the peer may be a server: it runs as root or as the user of this process, or it proved the secret.
    pub(crate) fn may_be_server(&self) -> Result<()> {
        match self.unprivileged_uid() {
            Some(uid) => Err(Error::Denied {
                what: format!("a process of user {uid} cannot be a server; run all servers as the same user"),
            }),
            None => Ok(()),
        }
    }
}

/// The peer of a unix socket. Its process id is not used: a process in another pid namespace has none here.
pub(crate) fn local_peer(stream: &Stream) -> std::io::Result<Peer> {
    let credentials = nix::sys::socket::getsockopt(stream, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(Peer::Local { uid: credentials.uid() })
}
