//! Listeners, and a thread for each connection.

use crate::clients::Clients;
use crate::connection::Connection;
use crate::exports::Exports;
use crate::handshake::handshake;
use crate::keeper::Keeper;
use crate::pool::Pool;
use crate::stream::Stream;
use crate::tls::{Certificate, TlsFiles};
use bytes::BytesMut;
use hekate_metrics::NbdCounters;
use hekate_proto::{Error, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Threads that execute reads.
const READ_THREADS: usize = 8;
/// Bytes that are received at first.
const BUFFER_BYTES: usize = 64 << 10;
/// Time between two looks at whether the door stops.
const POLL_PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks at the certificate's files, and at whose clients were revoked.
const CLIENTS_PAUSE: Duration = Duration::from_secs(2);

/// Where a door listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// How a door is open.
#[derive(Clone)]
pub struct Settings {
    pub listen: Vec<Listen>,
    /// TCP connections have to begin TLS.
    pub tls: Option<TlsFiles>,
    /// Decides about clients that TLS has let in. `None`: all may read and write.
    pub clients: Option<Arc<dyn Clients>>,
    /// Connections at once. Others are closed.
    pub connections_max: usize,
    /// Limit for the handshake, for the rest of a request, and for a client that does not read.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { listen: Vec::new(), tls: None, clients: None, connections_max: 256, patience: Duration::from_secs(30) }
    }
}

/// An open door, until it is stopped.
pub struct Door {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<String>,
}

struct Shared {
    exports: Arc<Exports>,
    settings: Settings,
    tls: Option<Certificate>,
    pool: Pool,
    stops: Arc<AtomicBool>,
    accepted: AtomicU64,
    refused: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<Stream>>>,
}

enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Door {
    /// Opens the door.
    ///
    /// # Errors
    /// `Io`, which names the address, if one cannot be listened at; `Invalid` for a certificate that cannot be used.
    pub fn start(exports: Arc<Exports>, settings: Settings) -> Result<Self> {
        let tls = settings.tls.clone().map(Certificate::read).transpose()?;
        let listeners = settings.listen.iter().map(Listener::open).collect::<Result<Vec<_>>>()?;
        let addresses = listeners.iter().map(Listener::address).collect();
        let pool = Pool::start(READ_THREADS).map_err(|e| Error::io("start a thread", e))?;
        let shared = Arc::new(Shared {
            exports,
            settings,
            tls,
            pool,
            stops: Arc::default(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let (keeper, scrubber) = Keeper::new(shared.exports.clone(), shared.stops.clone());
        let mut threads =
            vec![start("nbd-keeper", move || keeper.keep())?, start("nbd-scrub", move || scrubber.work())?];
        for listener in listeners {
            let shared = shared.clone();
            threads.push(start("nbd-accept", move || shared.accept(&listener))?);
        }
        if shared.tls.is_some() {
            let shared = shared.clone();
            threads.push(start("nbd-clients", move || shared.keep_clients())?);
        }
        Ok(Self { shared, threads, addresses })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// What it has done since it was opened.
    pub fn counters(&self) -> NbdCounters {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        NbdCounters {
            connections: self.shared.open.lock().len() as u64,
            connections_accepted: load(&self.shared.accepted),
            connections_refused: load(&self.shared.refused),
            vdisks: self.shared.exports.counters(),
        }
    }

    /// Ends all connections and closes the vDisks. Requests that have begun are executed.
    pub fn stop(self) {
        self.shared.stops.store(true, Ordering::Release);
        for thread in self.threads {
            let _ = thread.join();
        }
        self.shared.open.lock().values().for_each(|stream| stream.shutdown());
        while !self.shared.open.lock().is_empty() {
            std::thread::sleep(POLL_PAUSE);
        }
        self.shared.pool.stop();
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(|e| Error::io("start a thread", e))
}

impl Listener {
    fn open(listen: &Listen) -> Result<Self> {
        match listen {
            Listen::Tcp(address) => {
                let failed = |e: std::io::Error| {
                    let what = if e.kind() == ErrorKind::AddrInUse {
                        format!("listen at {address}, which another program uses")
                    } else {
                        format!("listen at {address}")
                    };
                    Error::io(what, e)
                };
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Tcp(listener))
            }
            Listen::Unix(path) => {
                let failed = |e| Error::io(format!("listen at {}", path.display()), e);
                check_free(path).map_err(failed)?;
                // Whoever sees the socket under its name can connect.
                let new = PathBuf::from(format!("{}.new", path.display()));
                if is_socket(&new) {
                    let _ = std::fs::remove_file(&new);
                }
                let listener = UnixListener::bind(&new).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                std::fs::rename(&new, path).map_err(failed)?;
                Ok(Self::Unix(listener, path.clone()))
            }
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener.local_addr().map_or_else(|_| "?".into(), |address| address.to_string()),
            Self::Unix(_, path) => path.display().to_string(),
        }
    }

    fn accept(&self) -> std::io::Result<OwnedFd> {
        match self {
            Self::Unix(listener, _) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(false)?;
                Ok(socket.into())
            }
            Self::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(false)?;
                socket.set_nodelay(true)?;
                rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
                Ok(socket.into())
            }
        }
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Checks that nothing has this name, or only a socket that nobody listens at, which a killed process has left.
fn check_free(path: &Path) -> std::io::Result<()> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    if !is_socket(path) {
        return Err(std::io::Error::new(ErrorKind::AlreadyExists, "a file that is no socket has this name"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(std::io::Error::new(ErrorKind::AddrInUse, "another program listens there")),
        Err(_) => Ok(()),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &Listener) {
        let is_tcp = matches!(listener, Listener::Tcp(_));
        while !self.stops.load(Ordering::Acquire) {
            match listener.accept() {
                Ok(socket) => self.begin(socket, is_tcp),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(listener),
                Err(error) => {
                    // The client has gone already, or there are too many files: others may be served.
                    log::warn!("NBD: a connection is not accepted: {error}");
                    std::thread::sleep(POLL_PAUSE);
                }
            }
        }
    }

    /// Waits for a connection, or a while.
    fn wait(&self, listener: &Listener) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let fd = match listener {
            Listener::Unix(listener, _) => PollFd::new(listener, PollFlags::IN),
            Listener::Tcp(listener) => PollFd::new(listener, PollFlags::IN),
        };
        let limit = Timespec { tv_sec: 0, tv_nsec: POLL_PAUSE.as_nanos() as i64 };
        let _ = poll(&mut [fd], Some(&limit));
    }

    /// Reads the certificate again when its files change, and ends the connections of clients that were revoked.
    fn keep_clients(&self) {
        let mut looked = Instant::now();
        while !self.stops.load(Ordering::Acquire) {
            std::thread::sleep(POLL_PAUSE);
            if looked.elapsed() < CLIENTS_PAUSE {
                continue;
            }
            looked = Instant::now();
            if let Some(tls) = &self.tls {
                tls.read_changed();
            }
            let Some(clients) = &self.settings.clients else { continue };
            let open: Vec<_> = self.open.lock().iter().map(|(number, stream)| (*number, stream.clone())).collect();
            for (number, stream) in open {
                if stream.certificate().is_some_and(|shown| clients.is_revoked(&shown)) {
                    log::info!("NBD: connection {number} is ended: its client was revoked");
                    stream.shutdown();
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, socket: OwnedFd, is_tcp: bool) {
        let stream = Arc::new(Stream::new(socket));
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        {
            let mut open = self.open.lock();
            if open.len() >= self.settings.connections_max {
                log::warn!("NBD: a connection is closed: {} are open, the limit", open.len());
                self.refused.fetch_add(1, Ordering::Relaxed);
                return;
            }
            open.insert(number, stream.clone());
        }
        let shared = self.clone();
        let run = move || {
            let entry = Entry(&shared, number);
            if let Err(error) = shared.serve(&stream, is_tcp)
                && !shared.stops.load(Ordering::Acquire)
            {
                log::info!("NBD: connection {number} ends: {error}");
            }
            stream.shutdown();
            drop(entry);
        };
        if let Err(error) = std::thread::Builder::new().name("nbd-connection".into()).spawn(run) {
            log::warn!("NBD: a connection is closed: no thread can be started: {error}");
            self.open.lock().remove(&number);
        }
    }

    fn serve(&self, stream: &Arc<Stream>, is_tcp: bool) -> std::io::Result<()> {
        let patience = Some(self.settings.patience);
        stream.limit_waits(patience, patience)?;
        let mut buffer = BytesMut::with_capacity(BUFFER_BYTES);
        let tls = self.tls.as_ref().filter(|_| is_tcp).map(Certificate::settings);
        let clients = self.settings.clients.as_deref();
        let Some(chosen) = handshake(stream, &mut buffer, &self.exports, tls, clients)? else { return Ok(()) };
        Connection::new(stream.clone(), chosen, self.pool.clone()).serve(&mut buffer)
    }
}

/// A connection that is counted until it ends, whatever happens.
struct Entry<'a>(&'a Shared, u64);

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.0.open.lock().remove(&self.1);
    }
}
