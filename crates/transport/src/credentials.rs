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
        /// Process.
        pid: i32,
    },
    /// Somebody on this machine who proved the shared secret.
    Secret,
}

impl Peer {
    /// A server runs as our own user or as root, or it knows the secret.
    pub(crate) fn may_be_server(&self) -> Result<()> {
        match *self {
            Peer::Local { uid, .. } if uid != 0 && uid != rustix::process::geteuid().as_raw() => Err(Error::Denied {
                what: format!("a process of user {uid} is no server; run all servers as the same user"),
            }),
            _ => Ok(()),
        }
    }
}

/// Who is at the other end of a unix socket.
pub(crate) fn local_peer(stream: &Stream) -> std::io::Result<Peer> {
    let credentials = rustix::net::sockopt::socket_peercred(stream)?;
    Ok(Peer::Local { uid: credentials.uid.as_raw(), pid: credentials.pid.as_raw_nonzero().get() })
}
