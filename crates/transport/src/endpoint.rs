//! Addresses where servers listen, and the streams that connect to them.

use hekate_proto::{Error, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Limit for a TCP connect. A loopback address answers at once, unless the listener's queue is full.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// The cluster's secret, which both ends of a loopback TCP connection know.
#[derive(Clone)]
pub struct Secret(pub(crate) Arc<[u8]>);

impl Secret {
    /// Reads the secret that `hekate init` made.
    ///
    /// # Errors
    /// The file cannot be read or has fewer than 32 bytes.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| Error::io(format!("read the secret {}", path.display()), e))?;
        if bytes.len() < 32 {
            return Err(Error::invalid(format!(
                "the secret {} has fewer than 32 bytes; name the file `secret` of a server's state directory",
                path.display()
            )));
        }
        Ok(Self(bytes.into()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Address where a server listens.
#[derive(Debug, Clone)]
pub enum Endpoint {
    /// A unix socket. The kernel reports the user at the other end.
    Unix(PathBuf),
    /// A loopback address. Both ends prove that they know the secret.
    Tcp(SocketAddr, Secret),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Tcp(address, _) => write!(f, "tcp:{address}"),
        }
    }
}

impl Endpoint {
    /// A TCP endpoint.
    ///
    /// # Errors
    /// The address is not a loopback address: connections are not encrypted.
    pub fn tcp(address: SocketAddr, secret: Secret) -> Result<Self> {
        if !address.ip().is_loopback() {
            return Err(Error::invalid(format!(
                "{address} is not a loopback address; TCP between machines needs TLS, which this version does not have"
            )));
        }
        Ok(Endpoint::Tcp(address, secret))
    }

    /// Parses the form of the command line and of the cluster's records: `unix:PATH` or `tcp:ADDRESS:PORT`. The second
    /// needs the secret.
    ///
    /// # Errors
    /// `Invalid` if the text has neither form, the address is not a loopback address, or the secret is missing.
    pub fn parse(text: &str, secret: Option<&Secret>) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Endpoint::Unix(path.into()));
        }
        let Some(address) = text.strip_prefix("tcp:") else {
            return Err(Error::invalid(format!("{text:?} is not a server; say unix:PATH or tcp:127.0.0.1:PORT")));
        };
        let address = address.parse().map_err(|_| Error::invalid(format!("{address:?} is not ADDRESS:PORT")))?;
        let secret = secret.ok_or_else(|| Error::invalid(format!("{text} needs the cluster's secret")))?;
        Self::tcp(address, secret.clone())
    }

    pub(crate) fn connect(&self) -> std::io::Result<Stream> {
        match self {
            Endpoint::Unix(path) => connect_unix(path),
            Endpoint::Tcp(address, _) => {
                let stream = TcpStream::connect_timeout(address, CONNECT_LIMIT)?;
                stream.set_nodelay(true)?;
                Ok(Stream(stream.into()))
            }
        }
    }

    pub(crate) fn secret(&self) -> Option<&Secret> {
        match self {
            Endpoint::Unix(_) => None,
            Endpoint::Tcp(_, secret) => Some(secret),
        }
    }
}

/// Connects without waiting: the connection queue of a server that hangs fills up, and a wait for room in it has no
/// end.
fn connect_unix(path: &Path) -> std::io::Result<Stream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(Stream(socket))
}

/// A connected stream socket of either kind.
#[derive(Debug)]
pub(crate) struct Stream(pub(crate) OwnedFd);

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream {
    /// Ends both directions, which wakes a thread that reads.
    pub(crate) fn shutdown(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_they_are_shown() {
        let secret = Secret(Arc::new([1; 32]));
        for text in ["unix:/run/hekate/server.sock", "tcp:127.0.0.1:4000", "tcp:[::1]:4000"] {
            assert_eq!(Endpoint::parse(text, Some(&secret)).unwrap().to_string(), text);
        }
        for (text, words) in [
            ("127.0.0.1:1", "say unix:PATH"),
            ("tcp:here", "not ADDRESS:PORT"),
            ("tcp:10.0.0.1:4000", "not a loopback address"),
        ] {
            let refused = Endpoint::parse(text, Some(&secret)).unwrap_err();
            assert!(refused.to_string().contains(words), "{refused}");
        }
        let refused = Endpoint::parse("tcp:127.0.0.1:4000", None).unwrap_err();
        assert!(refused.to_string().contains("needs the cluster's secret"), "{refused}");
    }
}
