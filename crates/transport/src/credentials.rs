//! Who is at the other end of a connection, and whether that may be a server.

use crate::endpoint::Stream;
use hekate_proto::{Error, Result};

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// As the kernel says.
    Local {
        /// User.
        uid: u32,
    },
    /// Somebody on this machine who proved the shared secret.
    Secret,
}

impl Peer {
    /// The user, if it is neither root nor our own.
    pub(crate) fn stranger(&self) -> Option<u32> {
        match *self {
            Peer::Local { uid } if uid != 0 && uid != rustix::process::geteuid().as_raw() => Some(uid),
            _ => None,
        }
    }

    /// A server runs as our own user or as root, or it knows the secret.
    pub(crate) fn may_be_server(&self) -> Result<()> {
        match self.stranger() {
            Some(uid) => Err(Error::Denied {
                what: format!("a process of user {uid} is no server; run all servers as the same user"),
            }),
            None => Ok(()),
        }
    }
}

/// Who is at the other end of a unix socket. The process is of no interest: seen from a container it may have no number.
pub(crate) fn local_peer(stream: &Stream) -> std::io::Result<Peer> {
    let credentials = nix::sys::socket::getsockopt(stream, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(Peer::Local { uid: credentials.uid() })
}
