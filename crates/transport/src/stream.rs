//! A connected stream socket: a unix socket, or TCP with TLS.

use crate::endpoint::Endpoint;
use crate::traffic::Counters;
use hekate_tls::{Context, Inbox, Session, Side};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limit for a TCP connect to each address of a host.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// A connected stream socket.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    socket: Arc<OwnedFd>,
    /// `None` on a unix socket.
    session: Option<Arc<Session>>,
    /// The counters of the network at whose address the connection was accepted.
    counters: Option<Arc<Counters>>,
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream {
    /// A socket whose bytes are not encrypted.
    pub fn plain(socket: impl Into<OwnedFd>) -> Self {
        Self::plain_of(Arc::new(socket.into()))
    }

    /// As [`Stream::plain`], for a socket that is shared.
    pub fn plain_of(socket: Arc<OwnedFd>) -> Self {
        Self { socket, session: None, counters: None }
    }

    /// Connects to a server. Over TCP this includes the handshake of TLS; the inbox then may hold bytes already.
    ///
    /// # Errors
    /// Those of the socket. `PermissionDenied` without a system's error: one end refuses the other's certificate.
    pub fn connect(endpoint: &Endpoint, limit: Duration) -> io::Result<(Self, Inbox)> {
        match endpoint {
            Endpoint::Unix(path) => connect_unix(path).map(|stream| (stream, Inbox::default())),
            Endpoint::Tcp(address, context) => {
                let socket = connect_tcp(address, limit.min(CONNECT_LIMIT))?;
                Self::secured(Arc::new(socket.into()), context, Side::Client, limit)
            }
        }
    }

    /// Performs the handshake of TLS on a connected socket within `limit`. The socket has time limits afterwards.
    ///
    /// # Errors
    /// As of [`Stream::connect`].
    pub fn secured(socket: Arc<OwnedFd>, context: &Context, side: Side, limit: Duration) -> io::Result<(Self, Inbox)> {
        let end = Instant::now() + limit;
        set_socket_timeout(&*socket, Timeout::Send, Some(limit))?;
        let receive = &mut |buffer: &mut Vec<u8>| loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            set_socket_timeout(&*socket, Timeout::Recv, Some(left.max(Duration::from_millis(1))))?;
            match receive(&socket, buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        };
        let (session, inbox) = Session::open(context, side, receive, &mut |bytes| send_all(&socket, bytes))?;
        set_socket_timeout(&*socket, Timeout::Send, None)?;
        set_socket_timeout(&*socket, Timeout::Recv, None)?;
        Ok((Self { socket, session: Some(Arc::new(session)), counters: None }, inbox))
    }

    /// Counts what the connection carries from now on.
    pub fn count_in(&mut self, counters: Arc<Counters>) {
        self.counters = Some(counters);
    }

    /// The counters of the connection's network.
    pub fn counters(&self) -> Option<&Counters> {
        self.counters.as_deref()
    }

    /// The encryption of the connection; `None` on a unix socket.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_deref().filter(|_| !is_plain())
    }

    /// Who is at the other end, by its certificate; `None` on a unix socket.
    pub fn handshake(&self) -> Option<&Session> {
        self.session.as_deref()
    }

    /// Ends both directions, which wakes a thread that reads.
    pub fn shutdown(&self) {
        let _ = rustix::net::shutdown(&*self.socket, Shutdown::Both);
    }
}

/// True if connections carry plain text after their handshake, to measure what the encryption costs. Both ends must
/// have the same setting: HEKATE_PLAIN_TCP in the environment.
#[cfg(feature = "measuring")]
fn is_plain() -> bool {
    static PLAIN: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var_os("HEKATE_PLAIN_TCP").is_some());
    *PLAIN
}

#[cfg(not(feature = "measuring"))]
const fn is_plain() -> bool {
    false
}

/// Appends what the socket receives next to a buffer with room. Returns its length, 0 at the end of the connection.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let spare = rustix::buffer::spare_capacity(buffer);
    Ok(rustix::net::recv(socket, spare, rustix::net::RecvFlags::empty())?.0)
}

fn send_all(socket: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Connects without waiting: the connection queue of a server that hangs fills up, and a wait for room in it has no
/// end.
fn connect_unix(path: &Path) -> io::Result<Stream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(Stream::plain(socket))
}

/// Tries each of the addresses, and each that the name of a host has, in order.
fn connect_tcp(addresses: &str, limit: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses.split(',') {
        let found = match address.to_socket_addrs() {
            Ok(found) => found,
            Err(error) => {
                failed = error;
                continue;
            }
        };
        for address in found {
            match TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => failed = error,
            }
        }
    }
    Err(failed)
}
