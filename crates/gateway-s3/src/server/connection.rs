//! One connection: TLS, then HTTP/1.1, until it is idle for too long or the door stops.

use super::front::{Front, answer};
use super::listener::ended;
use super::stalls::Stalls;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// How long a TLS handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Buffer for what was read from a socket and not parsed, beside the headers.
const BUFFER_BYTES: usize = 128 << 10;

/// Serves a connection until it ends.
pub(super) async fn serve(stream: TcpStream, front: &Arc<Front>, stopped: watch::Receiver<bool>) {
    // Without it an answer waits for the acknowledgement of the packet before; a socket that refuses is slower only.
    let _ = stream.set_nodelay(true);
    match front.tls() {
        None => converse(stream, front, stopped).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
                converse(stream, front, stopped).await;
            }
        }
    }
}

async fn converse<S>(stream: S, front: &Arc<Front>, stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = front.limits();
    let service = service_fn(|request| answer(front.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_time)
        .max_headers(limits.header_count)
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes.max(BUFFER_BYTES))
        .serve_connection(TokioIo::new(Stalls::new(stream, front.rate())), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // A connection that fails is the client's to notice.
        _ = connection.as_mut() => {}
        () = ended(stopped) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}
