//! Listeners, and a thread for each connection.

use crate::connection::Connection;
use crate::exports::Exports;
use crate::handshake::handshake;
use crate::pool::Pool;
use crate::stream::Stream;
use crate::tls::TlsFiles;
use bytes::BytesMut;
use hekate_proto::{Error, Result};
use parking_lot::Mutex;
use rustls::ServerConfig;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that execute reads.
const READ_THREADS: usize = 8;
/// Bytes that are received at first.
const BUFFER_BYTES: usize = 64 << 10;
/// Time between two looks at whether the door stops.
const POLL_PAUSE: Duration = Duration::from_millis(50);

/// Where a door listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// How a door is open.
#[derive(Debug, Clone)]
pub struct Settings {
    pub listen: Vec<Listen>,
    /// TCP connections have to begin TLS.
    pub tls: Option<TlsFiles>,
    /// Connections at once. Others are closed.
    pub connections_max: usize,
    /// Limit for the handshake, for the rest of a request, and for a client that does not read.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { listen: Vec::new(), tls: None, connections_max: 256, patience: Duration::from_secs(30) }
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
    tls: Option<Arc<ServerConfig>>,
    pool: Pool,
    stops: AtomicBool,
    next: AtomicU64,
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
        let tls = settings.tls.as_ref().map(TlsFiles::read).transpose()?;
        let listeners = settings.listen.iter().map(Listener::open).collect::<Result<Vec<_>>>()?;
        let addresses = listeners.iter().map(Listener::address).collect();
        let pool = Pool::start(READ_THREADS).map_err(|e| Error::io("start a thread", e))?;
        let shared = Arc::new(Shared {
            exports,
            settings,
            tls,
            pool,
            stops: AtomicBool::new(false),
            next: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let start = |listener: Listener| {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("nbd-accept".into())
                .spawn(move || shared.accept(&listener))
                .map_err(|e| Error::io("start a thread", e))
        };
        let mut threads = listeners.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        let kept = shared.clone();
        let keeper = std::thread::Builder::new()
            .name("nbd-keeper".into())
            .spawn(move || crate::keeper::keep(&kept.exports, &kept.stops))
            .map_err(|e| Error::io("start a thread", e))?;
        threads.push(keeper);
        Ok(Self { shared, threads, addresses })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.shared.open.lock().len()
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

impl Listener {
    fn open(listen: &Listen) -> Result<Self> {
        match listen {
            Listen::Tcp(address) => {
                let failed = |e: std::io::Error| {
                    let what = if e.kind() == std::io::ErrorKind::AddrInUse {
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
                // A socket that nobody listens at is what a killed process has left.
                if std::os::unix::net::UnixStream::connect(path).is_err() {
                    let _ = std::fs::remove_file(path);
                }
                let listener = UnixListener::bind(path).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
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
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => self.wait(listener),
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

    fn begin(self: &Arc<Self>, socket: OwnedFd, is_tcp: bool) {
        let stream = Arc::new(Stream::new(socket));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut open = self.open.lock();
            if open.len() >= self.settings.connections_max {
                log::warn!("NBD: a connection is closed: {} are open, the limit", open.len());
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
        let tls = if is_tcp { self.tls.clone() } else { None };
        let Some(chosen) = handshake(stream, &mut buffer, &self.exports, tls)? else { return Ok(()) };
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
