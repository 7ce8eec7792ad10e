//! Accepts connections, up to a number, and ends them when the door stops.

use super::connection::serve;
use super::counters::add;
use super::front::Front;
use hekate_proto::{Error, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Pause after accept(2) has failed, which it does while the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// # Errors
/// `Io` if the address is taken or not of this machine.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|e| Error::io(format!("listen on {address}"), e))
}

/// Serves the connections of a listener until the door stops, and then those that are open for as long as the limits
/// say.
pub(super) async fn accept(listener: TcpListener, front: Arc<Front>, stopped: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = ended(stopped.clone()) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => admit(stream, &front, &stopped, &mut connections),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    // What has not ended by then is cut with the set.
    let _ = tokio::time::timeout(front.limits().stop_time, all).await;
}

/// Returns once the door is to stop.
pub(super) async fn ended(mut stopped: watch::Receiver<bool>) {
    // A sender that is gone is a door that was dropped.
    let _ = stopped.wait_for(|stopped| *stopped).await.map(|_| ());
}

fn admit(stream: TcpStream, front: &Arc<Front>, stopped: &watch::Receiver<bool>, connections: &mut JoinSet<()>) {
    let Some(permit) = front.connection_permit() else {
        add(&front.counting().connections_refused, 1);
        return;
    };
    add(&front.counting().connections_accepted, 1);
    let (front, stopped) = (front.clone(), stopped.clone());
    connections.spawn(async move {
        serve(stream, &front, stopped).await;
        add(&front.counting().connections_closed, 1);
        drop(permit);
    });
}
