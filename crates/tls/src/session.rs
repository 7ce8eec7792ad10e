//! One connection: its handshake, and the encryption of what it carries.
//!
//! The session holds no socket. One thread may receive while others send: the lock is held while records are encrypted
//! or decrypted, never while a thread waits for the socket. Callers that send hold a lock of their own from the
//! encryption until the bytes are in the socket, so that records keep their order.
//!
//! The end of a connection is the end of its socket; `close_notify` is not sent. Frames have lengths, so a connection
//! that is cut in the middle of one is noticed.

use crate::certificate::{CertificateInfo, Serial};
use crate::context::{Context, Refusal};
use crate::identity::Identity;
use parking_lot::Mutex;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::{IpAddr, Ipv4Addr, ServerName};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use std::io;

/// Longest plaintext of a record, in bytes (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 << 10;
/// Length of a record's header, in bytes; its last two are the length of what follows.
const RECORD_HEADER: usize = 5;
/// More than a record's header, content type and tag, in bytes.
const RECORD_OVERHEAD: usize = 64;
/// Room that a receive offers to the socket, in bytes: at first, so that an idle connection keeps little memory, and at
/// most.
const RECEIVE_BYTES_MIN: usize = 2 << 10;
const RECEIVE_BYTES_MAX: usize = 64 << 10;

/// Which end of a connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It connects.
    Client,
    /// It accepts.
    Server,
}

enum Connection {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// The encryption of one connection.
pub struct Session {
    /// `None` once it has failed: the library must not be called again without the bytes that it has not discarded.
    connection: Mutex<Option<Connection>>,
    peer: Option<(Identity, Serial)>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.peer)
    }
}

/// Bytes that were received and not decrypted yet.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// Bytes at the front that are done.
    done: usize,
    /// Room that the last receive was offered.
    room: usize,
}

impl Inbox {
    /// A buffer with room behind the bytes that are there, to which the caller appends what it receives.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        let is_filled = self.room > 0 && self.bytes.len() >= self.room;
        self.bytes.drain(..self.done);
        self.done = 0;
        let wanted = if is_filled { self.room * 4 } else { self.room };
        self.room = wanted.clamp(RECEIVE_BYTES_MIN, RECEIVE_BYTES_MAX);
        self.bytes.reserve(self.room);
        &mut self.bytes
    }

    /// True if nothing waits to be decrypted.
    pub fn is_empty(&self) -> bool {
        self.done == self.bytes.len()
    }

    /// True if the bytes that are left begin with a whole record.
    fn has_record(&self) -> bool {
        let left = &self.bytes[self.done..];
        let length = |header: &[u8]| RECORD_HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]));
        left.len() >= RECORD_HEADER && left.len() >= length(left)
    }

    /// Checks that no record is left behind the last state: it would be a part of a message of a handshake, of which the
    /// rest has not arrived. No end sends such a part after the handshake, and while the library waits for the rest,
    /// nothing can be encrypted without these bytes.
    fn check_spent(&self) -> io::Result<()> {
        match self.has_record() {
            false => Ok(()),
            true => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "TLS fails: a message of a handshake is cut off after the handshake",
            )),
        }
    }
}

/// What is to happen after a state of the connection was handled.
enum Step {
    /// Ask for the next state.
    Next,
    /// Records have to be received.
    Receive,
    /// The handshake is over, and there is nothing to decrypt.
    Open,
    /// The other end has closed the connection.
    Closed,
}

impl Session {
    /// Performs a handshake. `receive` appends received bytes to a buffer and returns their number, 0 at the end of the
    /// connection.
    ///
    /// # Errors
    /// Those of `receive` and `send`. `PermissionDenied` if one end refuses the other: the text says why.
    pub fn open(
        context: &Context,
        side: Side,
        receive: &mut dyn FnMut(&mut Vec<u8>) -> io::Result<usize>,
        send: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<(Self, Inbox)> {
        let mut connection = Connection::new(context, side)?;
        let (mut inbox, mut out) = (Inbox::default(), Vec::new());
        loop {
            let step = connection.step(&mut inbox, &mut out, &mut |_| {});
            if !out.is_empty() {
                let sent = send(&out);
                out.clear();
                // An alert that tells the other end why it was refused may find the connection closed.
                step.is_ok().then_some(sent).transpose()?;
            }
            match step.map_err(|error| refused(&error))? {
                Step::Next => {}
                Step::Open => break,
                Step::Receive if receive(inbox.buffer())? > 0 => {}
                Step::Receive | Step::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        inbox.check_spent()?;
        let peer = connection.peer().map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
        Ok((Self { connection: Mutex::new(Some(connection)), peer }, inbox))
    }

    /// The holder at the other end, and its certificate's serial number; `None` if it has shown no certificate.
    pub fn peer(&self) -> Option<&(Identity, Serial)> {
        self.peer.as_ref()
    }

    /// Decrypts the whole records of `inbox`; `take` gets the plaintext in order. False: the other end has closed the
    /// connection.
    ///
    /// # Errors
    /// `PermissionDenied` if a record is not the other end's, or it refuses this end; `BrokenPipe` if the connection has
    /// failed before.
    pub fn decrypt(&self, inbox: &mut Inbox, take: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        let mut guard = self.connection.lock();
        let connection = guard.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let decrypted = connection.decrypt(inbox, take);
        if decrypted.is_err() {
            *guard = None;
        }
        decrypted
    }

    /// Appends records with this plaintext to `out`.
    ///
    /// # Errors
    /// `PermissionDenied` or `BrokenPipe` if the connection has failed.
    pub fn encrypt(&self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut guard = self.connection.lock();
        let connection = guard.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let records = plain.len().div_ceil(RECORD_BYTES) + 1;
        let (begin, room) = (out.len(), plain.len() + records * RECORD_OVERHEAD);
        loop {
            let step = match &mut *connection {
                Connection::Client(client) => encrypt_once(client.process_tls_records(&mut []), plain, out, room),
                Connection::Server(server) => encrypt_once(server.process_tls_records(&mut []), plain, out, room),
            };
            match step {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    out.truncate(begin);
                    *guard = None;
                    return Err(error);
                }
            }
        }
    }
}

impl Connection {
    fn new(context: &Context, side: Side) -> io::Result<Self> {
        let broken = |error: rustls::Error| io::Error::other(error);
        Ok(match side {
            Side::Client => {
                // The name is not sent, and not looked at: certificates name holders, not hosts.
                let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([127, 0, 0, 1])));
                let connection = UnbufferedClientConnection::new(context.client(), name).map_err(broken)?;
                Connection::Client(Box::new(connection))
            }
            Side::Server => {
                let settings = context.server().map_err(io::Error::other)?;
                Connection::Server(Box::new(UnbufferedServerConnection::new(settings).map_err(broken)?))
            }
        })
    }

    /// Decrypts the whole records of `inbox`. False: the other end has closed the connection.
    fn decrypt(&mut self, inbox: &mut Inbox, take: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        let mut unsent = Vec::new();
        loop {
            match self.step(inbox, &mut unsent, take).map_err(|error| refused(&error))? {
                Step::Next => {}
                Step::Open | Step::Receive => return inbox.check_spent().map(|()| true),
                Step::Closed => return Ok(false),
            }
        }
    }

    /// Handles the next state of the connection. Appends what is to be sent to `out`.
    fn step(
        &mut self,
        inbox: &mut Inbox,
        out: &mut Vec<u8>,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<Step, rustls::Error> {
        let received = &mut inbox.bytes[inbox.done..];
        let (discard, step) = match self {
            Connection::Client(client) => client_or_server(client.process_tls_records(received), out, take),
            Connection::Server(server) => client_or_server(server.process_tls_records(received), out, take),
        };
        inbox.done += discard;
        if step.is_err() {
            self.collect_alert(inbox, out);
        }
        step
    }

    /// Appends the alert that tells the other end what was wrong.
    fn collect_alert(&mut self, inbox: &mut Inbox, out: &mut Vec<u8>) {
        let received = &mut inbox.bytes[inbox.done..];
        // The state that holds the alert comes before the error is repeated.
        let mut encode = |state: EncodedAlert<'_>| match state {
            EncodedAlert::Client(Ok(ConnectionState::EncodeTlsData(mut data))) => append(out, |out| data.encode(out)),
            EncodedAlert::Server(Ok(ConnectionState::EncodeTlsData(mut data))) => append(out, |out| data.encode(out)),
            _ => Ok(()),
        };
        let _ = match self {
            Connection::Client(client) => encode(EncodedAlert::Client(client.process_tls_records(received).state)),
            Connection::Server(server) => encode(EncodedAlert::Server(server.process_tls_records(received).state)),
        };
    }

    fn peer(&self) -> hekate_proto::Result<Option<(Identity, Serial)>> {
        let shown = match self {
            Connection::Client(client) => client.peer_certificates(),
            Connection::Server(server) => server.peer_certificates(),
        };
        let Some(first) = shown.and_then(|shown| shown.first()) else { return Ok(None) };
        let info = CertificateInfo::of(first)?;
        Ok(info.identity.map(|identity| (identity, info.serial)))
    }
}

/// A state from which an alert may be taken.
enum EncodedAlert<'c> {
    Client(Result<ConnectionState<'c, 'c, ClientConnectionData>, rustls::Error>),
    Server(Result<ConnectionState<'c, 'c, ServerConnectionData>, rustls::Error>),
}

fn client_or_server<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    out: &mut Vec<u8>,
    take: &mut dyn FnMut(&[u8]),
) -> (usize, Result<Step, rustls::Error>) {
    let mut discard = status.discard;
    let step = match status.state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        take(record.payload);
                    }
                    Err(error) => return (discard, Err(error)),
                }
            }
            Ok(Step::Next)
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let encoded = append(out, |out| data.encode(out));
            encoded.map(|()| Step::Next).map_err(|error| rustls::Error::General(error.to_string()))
        }
        // The caller sends what was encoded before it asks for the next state.
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Step::Next)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Receive),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Open),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Closed),
        Ok(_) => Err(rustls::Error::General("a state of TLS that is not in use".into())),
    };
    (discard, step)
}

/// Appends what `encode` writes, with as much room as it asks for.
fn append(
    out: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), EncodeError> {
    let begin = out.len();
    loop {
        match encode(&mut out[begin..]) {
            Ok(written) => {
                out.truncate(begin + written);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(size)) => out.resize(begin + size.required_size, 0),
            Err(error) => return Err(error),
        }
    }
}

/// Encrypts, if the connection is in the state for it; false: another state had to be handled first.
fn encrypt_once<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plain: &[u8],
    out: &mut Vec<u8>,
    room: usize,
) -> io::Result<bool> {
    match status.state.map_err(|error| refused(&error))? {
        ConnectionState::WriteTraffic(mut traffic) => {
            let begin = out.len();
            out.resize(begin + room, 0);
            let written = traffic.encrypt(plain, &mut out[begin..]).map_err(io::Error::other)?;
            out.truncate(begin + written);
            Ok(true)
        }
        ConnectionState::EncodeTlsData(mut data) => {
            append(out, |out| data.encode(out)).map_err(io::Error::other)?;
            Ok(false)
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(false)
        }
        ConnectionState::PeerClosed => Ok(false),
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

fn refused(error: &rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, Refusal::words(error))
}

#[cfg(test)]
mod tests;
