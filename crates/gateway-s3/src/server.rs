//! HTTP: listeners, TLS, limits, and what is refused before the service sees it.

mod address;
mod answer;
mod body;
mod chunks;
mod connection;
mod cors;
mod counters;
mod failures;
mod front;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod listener;
mod methods;
mod settings;
mod signature;
mod stalls;
mod tls;

pub(crate) use address::Address;
pub(crate) use body::BodyOutcome;
pub(crate) use chunks::Trailers;
pub(crate) use counters::Tally;
pub use settings::{Limits, Settings, TlsFiles};
use signature::decode_parameter;
#[cfg(test)]
pub(crate) use signature::tests::headers as headers_for_tests;
pub(crate) use signature::{decode, encode};

use crate::access::Keys;
use hekate_client::Volume;
use hekate_metrics::S3Counters;
use hekate_proto::{Error, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Threads that drive sockets. Storage runs on others.
const SOCKET_THREADS: usize = 2;

/// An open S3 door, until it is stopped or dropped.
pub struct Door {
    addresses: Vec<SocketAddr>,
    front: Arc<front::Front>,
    stop: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

impl Door {
    /// Opens the door of a volume. Returns once every address accepts connections.
    ///
    /// # Errors
    /// `Io` if an address cannot be bound or the certificate cannot be read; `Invalid` if a setting is wrong.
    pub fn start(volume: Arc<Volume>, keys: Arc<dyn Keys>, settings: Settings) -> Result<Self> {
        settings.check()?;
        let runtime = runtime(&settings.limits)?;
        let front = Arc::new(front::Front::new(volume, keys, &settings)?);
        let (stop, stopped) = watch::channel(false);
        let (mut addresses, mut listeners) = (Vec::new(), Vec::new());
        for address in &settings.listen {
            let listener = runtime.block_on(listener::bind(*address))?;
            addresses.push(listener.local_addr().map_err(|e| Error::io("ask for the address of a socket", e))?);
            listeners.push(runtime.spawn(listener::accept(listener, front.clone(), stopped.clone())));
        }
        if let Some(certificate) = front.certificate() {
            runtime.spawn(tls::reload(certificate, stopped));
        }
        Ok(Self { addresses, front, stop, listeners, runtime: Some(runtime) })
    }

    /// The addresses that accept connections, in the order of the settings.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What the door has done since it was opened.
    pub fn counters(&self) -> S3Counters {
        self.front.counters()
    }

    /// Closes the door: refuses new connections, lets requests end within [`Limits::stop_time`], and cuts the rest.
    pub fn stop(mut self) {
        self.close();
    }

    fn close(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.stop.send_replace(true);
        runtime.block_on(async {
            for listener in self.listeners.drain(..) {
                // A listener that panicked has no connections left to wait for.
                let _ = listener.await;
            }
        });
        runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}

fn runtime(limits: &Limits) -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SOCKET_THREADS)
        .max_blocking_threads(limits.threads)
        .thread_name("hekate-s3")
        .enable_io()
        .enable_time()
        .build()
        .map_err(|e| Error::io("start the threads of the S3 door", e))
}
