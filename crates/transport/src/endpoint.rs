//! Where a server listens, and the stream that leads there.

use hekate_proto::{Error, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What both ends of a loopback TCP connection know.
#[derive(Clone)]
pub struct Secret(pub(crate) Arc<[u8]>);

impl Secret {
    /// Reads the secret that `hekate init` made.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| Error::io(format!("read the secret {}", path.display()), e))?;
        if bytes.len() < 32 {
            return Err(Error::invalid(format!("the secret {} has under 32 bytes; make it anew", path.display())));
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

/// Where a server listens.
#[derive(Debug, Clone)]
pub enum Endpoint {
    /// A unix socket; the kernel says who is at the other end.
    Unix(PathBuf),
    /// A loopback address; both ends prove that they know the secret.
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
    /// TCP is only for loopback until connections are encrypted.
    pub fn tcp(address: SocketAddr, secret: Secret) -> Result<Self> {
        if !address.ip().is_loopback() {
            return Err(Error::invalid(format!(
                "{address} is not a loopback address; TCP between machines needs TLS, which this version does not have"
            )));
        }
        Ok(Endpoint::Tcp(address, secret))
    }

    pub(crate) fn connect(&self) -> std::io::Result<Stream> {
        match self {
            Endpoint::Unix(path) => Ok(Stream(UnixStream::connect(path)?.into())),
            Endpoint::Tcp(address, _) => {
                let stream = TcpStream::connect(address)?;
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
