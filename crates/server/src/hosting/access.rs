//! What a peer may do: the one place that decides it.
//!
//! | peer | control requests | volumes |
//! |---|---|---|
//! | a process of root or of the server's own user, over the unix socket | all | all |
//! | another user's process, over the unix socket | those that change nothing | its own, and those that name it |
//! | a server, by its certificate | all, and those of servers among themselves | all |
//! | a client with the right of an administrator | all | all |
//! | a client | those that change nothing; the renewal of its own credential | those of its record |
//! | a process without a certificate | who answers; to join, with an invitation | none |
//!
//! A client is what its record says now, not what its certificate said when it was issued: a revoked one is refused,
//! its connections and its sessions end.

use crate::hosting::authority::{self, seconds};
use crate::hosting::cluster_access::ClusterAccess;
use crate::hosting::keys::Keys;
use hekate_cluster::{ClientInfo, Registry, SessionOwner, VolumeInfo};
use hekate_control::peer::PeerRequest;
use hekate_control::status::ExpiringCertificate;
use hekate_control::{ControlRequest, Request};
use hekate_proto::map::ServerAddress;
use hekate_proto::{Error, Result, ServerId};
use hekate_threads::{Mutex, RwLock, elapsed, now, time_of_day};
use hekate_tls::Holder;
use hekate_transport::{Peer, RefusalLog};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A certificate that expires within this time, in seconds, is shown, and logged once in each `WARN_PAUSE`.
pub const EXPIRES_SOON: u64 = 14 * 24 * 3600;
const WARN_PAUSE: Duration = Duration::from_secs(24 * 3600);
/// Shortest time between two reads of a client's record out of turn.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(20);

/// The clients of the cluster, as the records were last read.
#[derive(Default)]
pub struct Access {
    clients: RwLock<BTreeMap<String, Arc<ClientInfo>>>,
    /// The network of each endpoint over TCP.
    networks: RwLock<Arc<BTreeMap<String, String>>>,
    /// The network of servers, if a server has an address there.
    servers_network: RwLock<Option<String>>,
    /// When the certificates of clients and of the authority expire.
    expiries: RwLock<Vec<ExpiringCertificate>>,
    /// When the log was last warned of certificates that expire.
    warned: Mutex<Option<Instant>>,
    /// When a client's record was last read out of turn.
    looked_up: Mutex<Option<Instant>>,
    refusals: RefusalLog,
}

impl Access {
    /// Reads the records.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn refresh(&self, registry: &Registry) -> Result<()> {
        let clients = registry.clients()?.into_iter().map(|info| (info.name.clone(), Arc::new(info))).collect();
        *self.clients.write() = clients;
        let networks: BTreeMap<_, _> = registry.servers()?.into_iter().flat_map(|info| info.networks).collect();
        let of_servers = registry.servers_network()?;
        let is_used = networks.values().any(|network| *network == of_servers);
        *self.servers_network.write() = is_used.then_some(of_servers);
        *self.networks.write() = Arc::new(networks);
        Ok(())
    }

    fn expiries_of_clients(&self) -> Vec<ExpiringCertificate> {
        let clients = self.clients.read();
        let used = clients.values().filter(|client| !client.revoked);
        used.map(|client| ExpiringCertificate {
            holder: format!("client {}", client.name),
            expires: client.certificates.last().map(|newest| newest.expires).unwrap_or_default(),
            fix: format!("hekate client renew {} -o FILE", client.name),
        })
        .collect()
    }

    /// The network of each endpoint over TCP.
    pub fn networks(&self) -> Arc<BTreeMap<String, String>> {
        self.networks.read().clone()
    }

    /// The client that a peer is; `None` if it is no client.
    ///
    /// # Errors
    ///
    /// `Denied` if it was revoked, or is not known.
    fn client(&self, peer: &Peer) -> Result<Option<Arc<ClientInfo>>> {
        let (Peer::Remote(remote), Some(Holder::Client(name))) = (peer, peer.holder()) else { return Ok(None) };
        let known = self.clients.read().get(name).cloned();
        let unknown = || Error::Denied { what: format!("client {name} is not known to the cluster, or was removed") };
        let client = known.ok_or_else(unknown)?;
        client.accepts(&remote.serial)?;
        Ok(Some(client))
    }

    /// The name of the client that a peer says it is, if this server does not know its certificate yet: another server
    /// may have issued it a moment ago.
    fn unknown_client(&self, peer: &Peer) -> Option<String> {
        let (Peer::Remote(remote), Some(Holder::Client(name))) = (peer, peer.holder()) else { return None };
        let known = self.clients.read().get(name).cloned();
        let is_known = known.is_some_and(|client| client.revoked || client.accepts(&remote.serial).is_ok());
        (!is_known).then(|| name.clone())
    }

    /// True if the peer is a client that may not do anything any more. A client that this server has not read yet is
    /// none: its record is never removed.
    pub fn is_revoked(&self, peer: &Peer) -> bool {
        let (Peer::Remote(remote), Some(Holder::Client(name))) = (peer, peer.holder()) else { return false };
        self.clients.read().get(name).is_some_and(|client| client.accepts(&remote.serial).is_err())
    }

    /// True if a session's owner may not do anything any more.
    pub fn is_owner_revoked(&self, owner: &SessionOwner) -> bool {
        match owner {
            SessionOwner::Client(name) => self.clients.read().get(name).is_none_or(|client| client.revoked),
            SessionOwner::Uid(_) | SessionOwner::Server(_) => false,
        }
    }

    /// True if a session's owner may only read.
    pub fn is_read_only(&self, owner: &SessionOwner) -> bool {
        match owner {
            SessionOwner::Client(name) => self.clients.read().get(name).is_none_or(|client| client.read_only),
            SessionOwner::Uid(_) | SessionOwner::Server(_) => false,
        }
    }

    /// Logs an outcome that is a refusal of the peer (`Denied`), at most one a second.
    pub(crate) fn logged<T>(&self, peer: &Peer, outcome: Result<T>) -> Result<T> {
        if let Err(error @ Error::Denied { .. }) = &outcome {
            self.refusals.add(|| format!("{peer} was refused: {error}"));
        }
        outcome
    }

    /// Checks that a peer may use a volume, and logs a refusal. Returns the owner of its sessions.
    ///
    /// # Errors
    ///
    /// `Denied` otherwise.
    pub fn may_use(&self, peer: &Peer, volume: &VolumeInfo) -> Result<SessionOwner> {
        self.logged(peer, self.owner_for(peer, volume))
    }

    fn owner_for(&self, peer: &Peer, volume: &VolumeInfo) -> Result<SessionOwner> {
        self.check_network(peer)?;
        match peer {
            Peer::Local { uid } => may_use_as_user(*uid, volume).map(|()| SessionOwner::Uid(*uid)),
            Peer::Remote(remote) => match (&remote.holder, self.client(peer)?) {
                (Some(Holder::Server(server)), _) => Ok(SessionOwner::Server(*server)),
                (_, Some(client)) if client.admin || client.volumes.contains(&volume.name) => {
                    Ok(SessionOwner::Client(client.name.clone()))
                }
                (_, Some(client)) => Err(Error::Denied {
                    what: format!(
                        "client {} may not use volume {}; its credential names others",
                        client.name, volume.name
                    ),
                }),
                (_, None) => Err(nobody()),
            },
        }
    }

    /// Checks that servers connect at this peer's network, and logs a refusal.
    ///
    /// # Errors
    ///
    /// `Denied` if they have one of their own.
    pub fn may_link(&self, peer: &Peer) -> Result<()> {
        self.logged(peer, self.check_network(peer))
    }

    /// The network of servers, if a server has an address there.
    pub fn servers_network(&self) -> Option<String> {
        self.servers_network.read().clone()
    }

    /// If servers have a network of their own, clients are refused there, and servers at every other one.
    fn check_network(&self, peer: &Peer) -> Result<()> {
        let (Peer::Remote(remote), Some(holder)) = (peer, peer.holder()) else { return Ok(()) };
        let Some(back) = self.servers_network() else { return Ok(()) };
        let (is_back, at) = (remote.network == back, &remote.network);
        let what = match holder {
            Holder::Client(name) if is_back => {
                format!("client {name} connects at network {at}, which is for servers only")
            }
            Holder::Server(server) if !is_back => {
                format!("server {server} connects at network {at}, which is for clients; servers use {back}")
            }
            _ => return Ok(()),
        };
        Err(Error::Denied { what })
    }

    /// Keeps the endpoints that a peer can use: over TCP those of the network at which it has connected. A process of this
    /// machine gets the unix sockets that are here, and the addresses at which servers connect, for it reaches servers
    /// on other machines with this server's credential. `own`: this server.
    pub fn keep_usable(&self, peer: &Peer, own: ServerId, servers: &mut [ServerAddress]) {
        let networks = self.networks();
        let network = match peer {
            Peer::Remote(remote) => Some(remote.network.clone()),
            Peer::Local { .. } => self.servers_network(),
        };
        let listed: Vec<String> = servers.iter().flat_map(|address| address.endpoints.clone()).collect();
        for address in servers {
            // Servers of several machines have sockets of one name: such a name is nobody's but this server's own.
            let is_here = |endpoint: &String, path: &str| {
                let is_single = listed.iter().filter(|other| *other == endpoint).count() == 1;
                // The socket of a server that does not run now comes back.
                address.server == own || is_single && Path::new(path).parent().is_some_and(Path::exists)
            };
            address.endpoints.retain(|endpoint| match (endpoint.strip_prefix("unix:"), peer) {
                (Some(_), Peer::Remote(_)) => false,
                (Some(path), Peer::Local { .. }) => is_here(endpoint, path),
                (None, _) => network.as_ref().is_none_or(|network| networks.get(endpoint) == Some(network)),
            });
        }
    }

    /// Checks that a peer may send a control request, and logs a refusal.
    ///
    /// # Errors
    ///
    /// `Denied` otherwise.
    pub fn may_ask(&self, peer: &Peer, request: &Request) -> Result<()> {
        self.logged(peer, self.check_request(peer, request))
    }

    fn check_request(&self, peer: &Peer, request: &Request) -> Result<()> {
        let Peer::Remote(remote) = peer else { return may_ask_here(peer, request) };
        if matches!(remote.holder, Some(Holder::Server(_))) {
            // A server that was started before the servers had a network of their own finds the coordinator, and in its
            // records the addresses there, where it found it before.
            let is_first = matches!(request, Request::Peer(PeerRequest::Coordinator { .. }));
            return if is_first { Ok(()) } else { self.check_network(peer) };
        }
        self.check_network(peer)?;
        match (self.client(peer)?, request) {
            (_, Request::Control(ControlRequest::Identify(_))) => Ok(()),
            (None, Request::Control(ControlRequest::Enroll(_))) => Ok(()),
            (None, _) => Err(nobody()),
            (Some(client), Request::Control(ControlRequest::ClientRenew(call))) if call.name == client.name => Ok(()),
            (Some(client), Request::Control(request)) if client.admin || request.is_open_to_all() => Ok(()),
            (Some(client), Request::Peer(_)) => Err(Error::Denied {
                what: format!("client {} is no server, and only servers may ask this", client.name),
            }),
            (Some(client), _) => Err(Error::Denied {
                what: format!(
                    "client {} may only read the state; `hekate client create --admin` makes a credential for changes",
                    client.name
                ),
            }),
        }
    }
}

fn nobody() -> Error {
    Error::Denied { what: "the connection shows no certificate; use a credential of `hekate client create`".into() }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The user as which a peer acts: a peer with a certificate acts as the server's own user.
pub fn uid_of(peer: &Peer) -> u32 {
    match peer {
        Peer::Local { uid } => *uid,
        Peer::Remote(_) => own_uid(),
    }
}

/// A process of this machine: root and the server's own user may change the cluster.
///
/// # Errors
///
/// `Denied` if another user wants to.
pub fn may_ask_here(peer: &Peer, request: &Request) -> Result<()> {
    let (uid, own) = (uid_of(peer), own_uid());
    if request.is_open_to_all() || uid == 0 || uid == own {
        return Ok(());
    }
    Err(Error::Denied {
        what: format!("user {uid} may only read the state; changes of the cluster need root or user {own} (sudo)"),
    })
}

/// On this machine root, the server's own user, the owner and the users that the owner has named may use a volume.
fn may_use_as_user(uid: u32, volume: &VolumeInfo) -> Result<()> {
    if uid == 0 || uid == own_uid() || uid == volume.owner_uid || volume.allowed_uids.contains(&uid) {
        return Ok(());
    }
    Err(Error::Denied {
        what: format!(
            "user {uid} may not use volume {}; its owner is {}, and `hekate volume create --allow-uid` names others",
            volume.name, volume.owner_uid
        ),
    })
}

impl ClusterAccess {
    /// Reads the record of a client that is new to this server. Reads of several clients wait for each other, so that no
    /// client makes this server read all the time.
    pub(crate) fn meet(&self, peer: &Peer) {
        if self.access.unknown_client(peer).is_none() {
            return;
        }
        let mut last = self.access.looked_up.lock();
        // Another connection may have led to its record meanwhile.
        let Some(name) = self.access.unknown_client(peer) else { return };
        if let Some(last) = *last {
            hekate_threads::sleep(LOOK_UP_PAUSE.saturating_sub(elapsed(last)));
        }
        if let Ok(Some(info)) = self.registry().client(&name) {
            self.access.clients.write().insert(name, Arc::new(info));
        }
        *last = Some(now());
    }

    /// Reads the records of access, renews this server's certificate if it is time, and logs which certificates expire
    /// soon.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub(crate) fn refresh_access(&self) -> Result<()> {
        // First: without a valid certificate the coordinator may not be reached.
        if let Some(keys) = self.keys()
            && keys.show_valid()?
        {
            log::warn!(
                "this server's certificate is not valid yet: it was issued while a clock was ahead; the one before is used"
            );
        }
        self.access.refresh(self.registry())?;
        if let Some(keys) = self.keys()
            && let Err(error) = self.refresh_certificates(keys)
        {
            log::warn!("this server's certificate cannot be renewed: {error}");
        }
        if let Some(keys) = self.keys()
            && let Err(error) = self.refresh_etcd(keys)
        {
            log::warn!("this server's files for etcd cannot be renewed: {error}");
        }
        if let Err(error) = self.remember_servers() {
            log::warn!("the addresses of other servers cannot be remembered: {error}");
        }
        Ok(())
    }

    fn refresh_certificates(&self, keys: &Keys) -> Result<()> {
        let authority = authority::read(self.registry(), keys.seal())?;
        if let Some(credential) = authority.renewed(keys, &Holder::Server(self.server()))? {
            log::info!("this server's certificate is renewed");
            keys.renew(credential)?;
        }
        let mut expiries = self.access.expiries_of_clients();
        for certificate in authority.certificates()? {
            let (holder, expires) = (certificate.name.to_string(), seconds(certificate.info.not_after));
            expiries.push(ExpiringCertificate { holder, expires, fix: "hekate ca rotate".into() });
        }
        *self.access.expiries.write() = expiries;
        self.warn_of_expiry();
        Ok(())
    }

    /// When certificates expire: of this server, of the authority, of clients.
    pub(crate) fn expiries(&self) -> Vec<ExpiringCertificate> {
        let own = self.keys().and_then(|keys| keys.context().credential()?.info().ok());
        let own = own.map(|info| ExpiringCertificate {
            holder: hekate_cluster::ServerInfo::name_of(self.server()),
            expires: seconds(info.not_after),
            fix: "its log says why it is not renewed".into(),
        });
        own.into_iter().chain(self.access.expiries.read().iter().cloned()).collect()
    }

    /// Logs, once a day, which certificates expire within 14 days.
    fn warn_of_expiry(&self) {
        let mut warned = self.access.warned.lock();
        if warned.is_some_and(|last| elapsed(last) < WARN_PAUSE) {
            return;
        }
        let today = seconds(time_of_day());
        for ending in self.expiries().into_iter().filter(|ending| ending.expires <= today + EXPIRES_SOON) {
            let days = ending.expires.saturating_sub(today) / 86_400;
            log::warn!("the certificate of {} expires in {days} days: {}", ending.holder, ending.fix);
            *warned = Some(now());
        }
    }

    /// The networks' addresses of a server in the order in which another one tries them: those of the network of
    /// servers, other TCP addresses, unix sockets whose directory exists on this machine.
    pub(crate) fn endpoints_of(&self, info: &hekate_cluster::ServerInfo) -> Vec<hekate_transport::Endpoint> {
        use hekate_transport::Endpoint;
        let back = self.access.servers_network();
        let rank = |text: &&String| match info.networks.get(*text) {
            Some(network) if back.as_ref() == Some(network) => 0,
            Some(_) => 1,
            None => 2,
        };
        let has_back = info.networks.values().any(|network| back.as_ref() == Some(network));
        let mut texts: Vec<&String> = info.endpoints.iter().filter(|text| !has_back || rank(text) != 1).collect();
        texts.sort_by_key(rank);
        let is_here = |endpoint: &Endpoint| match endpoint {
            Endpoint::Unix(path) => path.parent().is_some_and(std::path::Path::exists),
            Endpoint::Tcp(..) => self.has_address(),
        };
        texts.into_iter().filter_map(|text| self.endpoint(text).ok()).filter(is_here).collect()
    }
}
