//! A volume's servers, as one session's client sees them: a [`Remote`] each.
//!
//! A session keeps to the kind of endpoint that it was opened at: over unix sockets it is a user's, over TCP it is of
//! whoever knows the secret, and a server refuses a session that is somebody else's.

use crate::client::{Remote, Welcome};
use crate::endpoint::Endpoint;
use crate::local::Local;
use crate::lock_notifications::Ears;
use crate::pending_batches::Sent;
use crate::session_lock::SessionLock;
use hekate_proto::map::VolumeMap;
use hekate_proto::{Error, Reply, Request, Result, ServerId, SessionId};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long one server may take to hand out the map before the next is asked.
const MAP_LIMIT: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub struct Servers {
    opened_at: Endpoint,
    volume: String,
    session: SessionId,
    first: ServerId,
    all: RwLock<BTreeMap<ServerId, Arc<Remote>>>,
    /// Who was asked for the map: whether it was away then, and when.
    asked: Mutex<BTreeMap<ServerId, (bool, Instant)>>,
    closed: AtomicBool,
    /// Proves to the server where the session was opened that this process lives.
    _lock: Option<SessionLock>,
}

impl Servers {
    /// Opens a session on a volume at one of them.
    /// `local`: that one is of this process.
    pub fn open(endpoint: Endpoint, volume: &str, local: Option<Local>) -> Result<(Self, Welcome)> {
        let (mut remote, welcome) = Remote::open(endpoint.clone(), volume)?;
        if let Some(local) = local {
            remote = remote.is_here(local);
        }
        let first = welcome.map.server;
        let lock = match &endpoint {
            Endpoint::Unix(socket) => SessionLock::take(socket, welcome.session),
            Endpoint::Tcp(..) => None,
        };
        let servers = Self {
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

    /// Where the session was opened.
    pub fn first(&self) -> ServerId {
        self.first
    }

    /// One attempt at one of them, see [`Remote::attempt`].
    pub fn attempt(
        &self,
        server: ServerId,
        requests: &mut [Request],
        limit: Option<Duration>,
        gave_up: &dyn Fn() -> bool,
    ) -> Result<Vec<Result<Reply>>> {
        self.remote(server)?.attempt(requests, limit, gave_up)
    }

    /// Sends a batch to one of them, once, and does not wait for its answer.
    pub fn begin(&self, server: ServerId, requests: &[Request], gave_up: &dyn Fn() -> bool) -> Result<Sent> {
        Ok(Sent::begin(self.remote(server)?, requests, gave_up))
    }

    fn remote(&self, server: ServerId) -> Result<Arc<Remote>> {
        let known = self.all.read().get(&server).cloned();
        let none = || {
            let at = &self.opened_at;
            format!("server {server} has no address of the kind of {at}, where the session was opened")
        };
        known.ok_or_else(|| Error::Unavailable { what: none() })
    }

    /// A connection to one of them, on which it tells of ops that waited.
    pub fn listen(&self, server: ServerId) -> Result<Ears> {
        self.remote(server)?.listen()
    }

    /// The map as it is now, from the first server that answers. Each is asked in turn, since one that is cut off from the
    /// coordinator may hand out an old map; who was away is asked last.
    pub fn map(&self) -> Result<VolumeMap> {
        let mut all: Vec<(ServerId, Arc<Remote>)> =
            self.all.read().iter().map(|(server, remote)| (*server, remote.clone())).collect();
        let asked = self.asked.lock().clone();
        all.sort_by_key(|(server, _)| asked.get(server).copied());
        let mut away = Error::Unavailable { what: "no server has an address".into() };
        for (server, remote) in all {
            let answer = remote.map(MAP_LIMIT);
            self.asked.lock().insert(server, (answer.is_err(), Instant::now()));
            match answer {
                Err(error @ Error::Unavailable { .. }) => away = error,
                Err(error) => return Err(error),
                Ok(map) => {
                    self.learn(&map);
                    return Ok(map);
                }
            }
        }
        Err(away)
    }

    /// Takes over where servers are. The one that handed out the map was reached where it is.
    fn learn(&self, map: &VolumeMap) {
        let mut all = self.all.write();
        let is_listed = |server: ServerId| map.servers.iter().any(|address| address.server == server);
        all.retain(|server, _| *server == self.first || is_listed(*server));
        for address in &map.servers {
            let known = all.get(&address.server).map(|remote| remote.endpoint().to_string());
            let stays = |known: &String| address.server == map.server || address.endpoints.contains(known);
            if known.as_ref().is_some_and(stays) {
                continue;
            }
            if let Some(endpoint) = address.endpoints.iter().find_map(|text| self.usable(text)) {
                all.insert(address.server, Arc::new(Remote::new(endpoint, &self.volume, self.session)));
            }
        }
    }

    fn usable(&self, text: &str) -> Option<Endpoint> {
        let endpoint = Endpoint::parse(text, self.opened_at.secret()).ok()?;
        (endpoint.secret().is_some() == self.opened_at.secret().is_some()).then_some(endpoint)
    }

    /// From now on nothing waits for an absent server.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.all.read().values().for_each(|remote| remote.close());
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}
