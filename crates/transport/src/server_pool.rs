//! The servers of a volume over the network, as one session's client sees them: one [`Remote`] for each.
//!
//! A session that was opened over a unix socket belongs to a user, one that was opened over TCP to the client that a
//! certificate names. A server refuses a session of another owner. It takes the credential of the server where a user's
//! session was opened: with it the session's process reaches servers on other machines.

use crate::client::{Remote, Replies, Welcome};
use crate::endpoint::Endpoint;
use crate::local::Local;
use crate::pending_batches::Sent;
use crate::servers::{Notifications, PendingBatch, Servers};
use crate::session_lock::SessionLock;
use hekate_proto::map::VolumeMap;
use hekate_proto::{Error, Request, Result, ServerId, SessionId};
use hekate_tls::Context;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Limit for one server's answer to a request for the map, after which the next server is asked.
const MAP_LIMIT: Duration = Duration::from_secs(2);

/// The servers of a volume, and the session that this client has with all of them.
#[derive(Debug)]
pub struct ServerPool {
    opened_at: Endpoint,
    /// How servers are reached over TCP; `None` without a credential.
    context: Option<Arc<Context>>,
    volume: String,
    session: SessionId,
    /// The server where the session was opened.
    first: ServerId,
    all: RwLock<BTreeMap<ServerId, Arc<Remote>>>,
    /// When each server was last asked for the map, and whether it was unavailable then.
    asked: Mutex<BTreeMap<ServerId, (bool, Instant)>>,
    closed: AtomicBool,
    /// Lets the server where the session was opened detect the end of this process.
    _lock: Option<SessionLock>,
}

impl ServerPool {
    /// Opens a session on a volume at one server. `local` is set if that server runs in this process.
    /// `elsewhere`: the credential of the server at a unix socket, to reach servers on other machines.
    ///
    /// # Errors
    /// As [`Remote::open`].
    pub fn open(
        endpoint: Endpoint,
        volume: &str,
        local: Option<Local>,
        elsewhere: Option<Arc<Context>>,
    ) -> Result<(Self, Welcome)> {
        let (mut remote, welcome) = Remote::open(endpoint.clone(), volume)?;
        if let Some(local) = local {
            remote = remote.with_local(local);
        }
        let first = welcome.map.server;
        let lock = match &endpoint {
            Endpoint::Unix(socket) => SessionLock::take(socket, welcome.session),
            Endpoint::Tcp(..) => None,
        };
        let servers = Self {
            context: endpoint.context().cloned().or(elsewhere),
            opened_at: endpoint,
            volume: volume.into(),
            session: welcome.session,
            first,
            all: RwLock::new(BTreeMap::from([(first, Arc::new(remote))])),
            asked: Mutex::default(),
            closed: AtomicBool::new(false),
            _lock: lock,
        };
        servers.learn(&welcome.map);
        Ok((servers, welcome))
    }

    /// The client of a server whose address the map has.
    fn remote(&self, server: ServerId) -> Result<Arc<Remote>> {
        let known = self.all.read().get(&server).cloned();
        let none = || {
            let at = &self.opened_at;
            match self.context {
                Some(_) => format!("server {server} has no address for sessions of {at}; see `hekate status`"),
                None => format!(
                    "server {server} is on another machine than {at}, and TCP needs a credential: use the volume as \
                     root, or with --credential FILE (`hekate client create` makes one)"
                ),
            }
        };
        known.ok_or_else(|| Error::Unavailable { what: none() })
    }

    /// Applies the addresses of a map. The server that sent the map keeps the address at which it was reached. One that is
    /// reached at its unix socket keeps that too, if a server on another machine has sent the map: it lists no sockets.
    fn learn(&self, map: &VolumeMap) {
        let mut all = self.all.write();
        let is_listed = |server: ServerId| map.servers.iter().any(|address| address.server == server);
        all.retain(|server, _| *server == self.first || is_listed(*server));
        let is_local = |server: &ServerId| {
            all.get(server).is_some_and(|remote: &Arc<Remote>| matches!(remote.endpoint(), Endpoint::Unix(_)))
        };
        let is_from_afar = !is_local(&map.server);
        let kept: Vec<ServerId> = all.keys().copied().filter(|server| is_from_afar && is_local(server)).collect();
        for address in &map.servers {
            let known = all.get(&address.server).map(|remote| remote.endpoint().to_string());
            if known.is_some() && (address.server == map.server || kept.contains(&address.server)) {
                continue;
            }
            let usable = Endpoint::any_of(address.endpoints.iter().filter_map(|text| self.usable(text)));
            if let Some(endpoint) = usable.filter(|endpoint| known != Some(endpoint.to_string())) {
                all.insert(address.server, Arc::new(Remote::new(endpoint, &self.volume, self.session)));
            }
        }
    }

    /// The endpoint, if this session can use it: a unix socket only if it was opened at one.
    fn usable(&self, text: &str) -> Option<Endpoint> {
        let endpoint = Endpoint::parse(text, self.context.as_ref()).ok()?;
        let is_fit = endpoint.context().is_some() || self.opened_at.context().is_none();
        is_fit.then_some(endpoint)
    }
}

impl Servers for ServerPool {
    fn first(&self) -> ServerId {
        self.first
    }

    fn attempt(
        &self,
        server: ServerId,
        requests: &mut [Request],
        limit: Option<Duration>,
        gave_up: &dyn Fn() -> bool,
    ) -> Result<Replies> {
        self.remote(server)?.attempt(requests, limit, gave_up)
    }

    fn begin(
        &self,
        server: ServerId,
        requests: &[Request],
        gave_up: &dyn Fn() -> bool,
    ) -> Result<Box<dyn PendingBatch>> {
        Ok(Box::new(Sent::begin(self.remote(server)?, requests, gave_up)))
    }

    fn listen(&self, server: ServerId) -> Result<Box<dyn Notifications>> {
        Ok(Box::new(self.remote(server)?.listen()?))
    }

    /// Servers that were unavailable are asked last.
    fn map(&self) -> Result<VolumeMap> {
        let mut all: Vec<(ServerId, Arc<Remote>)> =
            self.all.read().iter().map(|(server, remote)| (*server, remote.clone())).collect();
        let asked = self.asked.lock().clone();
        all.sort_by_key(|(server, _)| asked.get(server).copied());
        let mut unavailable = Error::Unavailable { what: "no server has an address".into() };
        for (server, remote) in all {
            let answer = remote.map(MAP_LIMIT);
            self.asked.lock().insert(server, (answer.is_err(), Instant::now()));
            match answer {
                Err(error @ Error::Unavailable { .. }) => unavailable = error,
                Err(error) => return Err(error),
                Ok(map) => {
                    self.learn(&map);
                    return Ok(map);
                }
            }
        }
        Err(unavailable)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.all.read().values().for_each(|remote| remote.close());
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}
