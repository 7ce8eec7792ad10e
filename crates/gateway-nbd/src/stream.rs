//! A connection's bytes, plain or in TLS. One thread reads; any thread writes.

use bytes::BytesMut;
use parking_lot::Mutex;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustls::ServerConnection;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are received at once.
const RECEIVE_BYTES: usize = 256 << 10;

/// A connected socket.
pub struct Stream {
    socket: OwnedFd,
    /// Held while bytes are sent, and taken before `tls`: records leave in the order in which they were made.
    sending: Mutex<()>,
    tls: Mutex<Option<Box<ServerConnection>>>,
    /// Of the thread that reads.
    received: Mutex<Vec<u8>>,
}

impl Stream {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, sending: Mutex::new(()), tls: Mutex::new(None), received: Mutex::default() }
    }

    /// Limits each wait for the client. `None`: no limit.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn limit_waits(&self, receive: Option<Duration>, send: Option<Duration>) -> io::Result<()> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        set_socket_timeout(&self.socket, Timeout::Recv, receive)?;
        Ok(set_socket_timeout(&self.socket, Timeout::Send, send)?)
    }

    /// Ends both directions, which wakes the thread that reads.
    pub fn shutdown(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Begins TLS. Nothing of the client may have been received after its request for it.
    ///
    /// # Errors
    /// Those of the handshake, and of the socket.
    pub fn begin_tls(&self, settings: Arc<rustls::ServerConfig>) -> io::Result<()> {
        let mut connection = ServerConnection::new(settings).map_err(io::Error::other)?;
        let mut socket = Socket(self.socket.as_fd());
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        connection.set_buffer_limit(None);
        *self.tls.lock() = Some(Box::new(connection));
        Ok(())
    }

    /// The certificate that the client has shown: DER.
    pub fn certificate(&self) -> Option<Vec<u8>> {
        let tls = self.tls.lock();
        Some(tls.as_ref()?.peer_certificates()?.first()?.to_vec())
    }

    /// The address of a client that has come over TCP.
    pub fn address(&self) -> Option<SocketAddr> {
        rustix::net::getpeername(&self.socket).ok()?.and_then(|any| any.try_into().ok())
    }

    /// Appends what arrives next to a buffer. With `wait` it waits for a byte. Returns false at the end of the connection,
    /// or if nothing is there and it does not wait.
    ///
    /// # Errors
    /// Those of the socket and of TLS; `TimedOut` if nothing arrived within the limit.
    pub fn receive(&self, buffer: &mut BytesMut, wait: bool) -> io::Result<bool> {
        if self.take_decrypted(buffer, &[])? {
            return Ok(true);
        }
        let mut received = self.received.lock();
        received.resize(RECEIVE_BYTES, 0);
        loop {
            let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
            let count = match rustix::net::recv(&self.socket, &mut received[..], flags) {
                Ok((_, 0)) => return Ok(false),
                Ok((_, count)) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) if !wait => return Ok(false),
                Err(rustix::io::Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            };
            if self.tls.lock().is_none() {
                buffer.extend_from_slice(&received[..count]);
                return Ok(true);
            }
            if self.take_decrypted(buffer, &received[..count])? {
                return Ok(true);
            }
            if !wait {
                return Ok(false);
            }
        }
    }

    /// Decrypts what was received, and appends the plain text that there is. False if there is none.
    fn take_decrypted(&self, buffer: &mut BytesMut, received: &[u8]) -> io::Result<bool> {
        let mut tls = self.tls.lock();
        let Some(connection) = &mut *tls else { return Ok(false) };
        let before = buffer.len();
        let mut left = received;
        loop {
            let state = if left.is_empty() {
                connection.process_new_packets()
            } else {
                connection.read_tls(&mut left)?;
                connection.process_new_packets()
            };
            let plain = state.map_err(io::Error::other)?.plaintext_bytes_to_read();
            let at = buffer.len();
            buffer.resize(at + plain, 0);
            if plain > 0 {
                connection.reader().read_exact(&mut buffer[at..])?;
            }
            if left.is_empty() {
                return Ok(buffer.len() > before);
            }
        }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// Those of the socket and of TLS. The connection is of no use then.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let _one = self.sending.lock();
        let mut encrypted = Vec::new();
        let records = {
            let mut tls = self.tls.lock();
            match &mut *tls {
                None => bytes,
                Some(connection) => {
                    connection.writer().write_all(bytes)?;
                    while connection.wants_write() {
                        connection.write_tls(&mut encrypted)?;
                    }
                    &encrypted
                }
            }
        };
        Socket(self.socket.as_fd()).write_all(records)
    }
}

/// Reads and writes of a socket.
struct Socket<'a>(std::os::fd::BorrowedFd<'a>);

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(self.0, buffer, RecvFlags::empty())?.1)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
