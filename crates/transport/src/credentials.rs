//! Who is at the other end of a connection.

use crate::stream::Stream;
use hekate_proto::{Error, Result, ServerId};
use hekate_tls::Holder;
use std::net::SocketAddr;

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine, identified by the kernel.
    Local {
        /// Its effective user id.
        uid: u32,
    },
    /// A process that connected over TCP.
    Remote(Remote),
}

/// A process that connected over TCP, as its certificate names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// `None`: it has shown no certificate.
    pub holder: Option<Holder>,
    /// Serial number of its certificate.
    pub serial: String,
    /// The network at whose address it connected.
    pub network: String,
    /// The address that it connected from; `None` if that is not known.
    pub address: Option<SocketAddr>,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let remote = match self {
            Peer::Local { uid } => return write!(f, "a process of user {uid}"),
            Peer::Remote(remote) => remote,
        };
        match &remote.holder {
            Some(holder) => write!(f, "{holder}")?,
            None => write!(f, "a process without a certificate")?,
        }
        if let Some(address) = remote.address {
            write!(f, " from {address}")?;
        }
        write!(f, " at network {}", remote.network)
    }
}

impl Peer {
    /// The peer's user id, if it is a process of this machine of neither root nor the user of this process.
    pub(crate) fn unprivileged_uid(&self) -> Option<u32> {
        match *self {
            Peer::Local { uid } if uid != 0 && uid != rustix::process::geteuid().as_raw() => Some(uid),
            _ => None,
        }
    }

    /// True if the peer's control requests have limits of length and time: another user's process, a client, or a
    /// process without a certificate.
    pub(crate) fn is_limited(&self) -> bool {
        self.unprivileged_uid().is_some()
            || matches!(self, Peer::Remote(remote) if !matches!(remote.holder, Some(Holder::Server(_))))
    }

    /// The holder of the certificate that the peer has shown.
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Peer::Local { .. } => None,
            Peer::Remote(remote) => remote.holder.as_ref(),
        }
    }

    /// Checks that the peer may be this server of the cluster: its certificate says so, or it runs on this machine as
    /// root or as the user of this process.
    pub(crate) fn may_be_server(&self, server: ServerId) -> Result<()> {
        if let Some(uid) = self.unprivileged_uid() {
            return Err(Error::Denied {
                what: format!("a process of user {uid} cannot be a server; run all servers as the same user"),
            });
        }
        match self {
            Peer::Local { .. } => Ok(()),
            Peer::Remote(Remote { holder: Some(Holder::Server(shown)), .. }) if *shown == server => Ok(()),
            Peer::Remote(Remote { holder: Some(holder), .. }) => Err(Error::Denied {
                what: format!("the certificate of {holder} cannot be used as that of server {server}"),
            }),
            Peer::Remote(Remote { holder: None, .. }) => {
                Err(Error::Denied { what: format!("server {server} has shown no certificate") })
            }
        }
    }
}

/// The other end of a connection. `at`: the network at whose address it connected, and where it connected from; `None` on
/// a unix socket and on a connection that this process made. The process id of a unix socket's peer is not used: a process
/// in another pid namespace has none here.
pub(crate) fn peer_of(stream: &Stream, at: Option<(&str, SocketAddr)>) -> std::io::Result<Peer> {
    let Some(session) = stream.handshake() else {
        let credentials = nix::sys::socket::getsockopt(stream, nix::sys::socket::sockopt::PeerCredentials)?;
        return Ok(Peer::Local { uid: credentials.uid() });
    };
    let (holder, serial) = match session.peer() {
        Some((identity, serial)) => (Some(identity.holder.clone()), serial.clone()),
        None => (None, String::new()),
    };
    let network = at.map(|(network, _)| network.to_string()).unwrap_or_default();
    Ok(Peer::Remote(Remote { holder, serial, network, address: at.map(|(_, address)| address) }))
}
