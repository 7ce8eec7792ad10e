//! Invitations, clients, the cluster's authority.

use crate::control::encode;
use crate::coordination::etcd;
use crate::hosting::authority::{self, Issued, hex, seconds, unhex};
use crate::hosting::keys::Keys;
use crate::hosting::node::Node;
use hekate_cluster::{ClientCertificate, ClientInfo, FIRST_SERVER, Registry, TokenInfo};
use hekate_control::ControlRequest;
use hekate_control::access::*;
use hekate_etcd::Credential;
use hekate_proto::{Error, Result, ServerId};
use hekate_threads::time_of_day;
use hekate_tls::{CertificateInfo, Context, Holder, Token, pems};
use hekate_transport::Peer;
use serde_json::Value;
use std::time::Duration;

/// Longest time that an invitation is good for.
const TOKEN_LIFE_MAX: u64 = 30 * 24 * 3600;

/// What answers requests about access: a server, or a coordinator that is a process of its own.
pub struct Desk<'a> {
    pub cluster: String,
    pub registry: &'a Registry,
    pub keys: &'a Keys,
    /// Addresses at which this process answers.
    pub endpoints: Vec<String>,
    /// Where the coordinator answers.
    pub coordinator: Vec<String>,
}

impl Desk<'_> {
    /// # Errors
    ///
    /// `Invalid` if no server answers over TCP; those of the coordinator.
    pub fn create_token(&self, call: &TokenCreate) -> Result<TokenCreated> {
        let life = call.expires_s.clamp(1, TOKEN_LIFE_MAX);
        let mut addresses: Vec<String> = Vec::new();
        for text in self.endpoints.iter().chain(&self.coordinator) {
            if let Some(address) = text.strip_prefix("tcp:") {
                addresses.push(address.into());
            }
        }
        addresses.dedup();
        if addresses.is_empty() {
            return Err(Error::invalid(
                "nothing answers here over TCP, where a server of another machine could join; serve with \
                 `--listen ADDRESS:PORT`. On this machine `hekate join unix:PATH` needs no token",
            ));
        }
        let fingerprint = authority::fingerprint(&authority::record(self.registry)?)?;
        let token = Token::create(&self.cluster, addresses, fingerprint)?;
        let expires = seconds(time_of_day()) + life;
        let digest = Token::digest_of(&token.secret);
        self.registry.create_token(&TokenInfo { id: token.id.clone(), digest, expires })?;
        Ok(TokenCreated { token: token.to_string(), expires })
    }

    /// Numbers a new server, and issues its certificate. A process of this machine needs no invitation.
    ///
    /// # Errors
    ///
    /// `Denied` without a valid invitation; `Invalid` if the pool does not exist; those of the coordinator.
    pub fn enroll(&self, peer: &Peer, call: &Enroll, has_cluster: bool) -> Result<Enrolled> {
        let public = unhex(&call.public_key).ok_or_else(|| Error::invalid("the public key is not in hex digits"))?;
        match (&call.pool, has_cluster) {
            (Some(pool), true) => {
                let pools = self.registry.pools()?;
                if !pools.iter().any(|known| known.name == *pool) {
                    let known: Vec<_> = pools.into_iter().map(|pool| pool.name).collect();
                    return Err(Error::invalid(format!(
                        "there is no pool called {pool}; there are: {}",
                        known.join(", ")
                    )));
                }
            }
            (None, false) => {}
            (Some(_), false) => {
                return Err(Error::invalid(
                    "the coordinator has no cluster yet; `hekate init --coordinator` makes one",
                ));
            }
            (None, true) if call.witness => {}
            (None, true) => {
                let join = "`hekate join` adds a server to it";
                return Err(Error::invalid(format!("the coordinator has cluster {} already; {join}", self.cluster)));
            }
        }
        if let Peer::Remote(_) = peer {
            let digest = Token::digest_of(&call.secret);
            self.registry.take_token(&call.token, &digest, seconds(time_of_day()))?;
        }
        let server = if has_cluster { self.registry.number_server()? } else { FIRST_SERVER };
        let issued = self.opened()?.issue(&Holder::Server(server), &public, None)?;
        Ok(Enrolled {
            cluster: self.cluster.clone(),
            server,
            chain: issued.chain,
            roots: issued.roots,
            seal_key: hex(self.keys.seal().bytes()),
            coordinator: self.coordinator.clone(),
            etcd: self.etcd_access(server)?,
        })
    }

    /// What lets a new server into etcd, if the records are there.
    fn etcd_access(&self, server: ServerId) -> Result<Option<EtcdAccess>> {
        if !self.coordinator.iter().any(|place| place.starts_with("etcd:")) {
            return Ok(None);
        }
        let none = || Error::invalid("the cluster's records are in etcd, and it has no record of etcd");
        let info = self.registry.etcd()?.ok_or_else(none)?;
        let Credential { ca, certificate, key } = etcd::credential_for(&info, self.keys.seal(), server)?;
        Ok(Some(EtcdAccess { ca, certificate, key }))
    }

    fn opened(&self) -> Result<authority::Opened> {
        authority::read(self.registry, self.keys.seal())
    }

    /// Lifetime of a client's certificate as the cluster has it set, in seconds.
    fn usual_life_s(&self) -> Result<u64> {
        Ok(u64::from(authority::record(self.registry)?.client_days) * 24 * 3600)
    }

    fn issue_client(&self, name: &str, public_key: &str, life_s: Option<u64>) -> Result<(Issued, ClientCertificate)> {
        let public = unhex(public_key).ok_or_else(|| Error::invalid("the public key is not in hex digits"))?;
        let life = life_s.map(Duration::from_secs);
        let issued = self.opened()?.issue(&Holder::client(name)?, &public, life)?;
        let certificate = ClientCertificate {
            serial: issued.info.serial.clone(),
            expires: seconds(issued.info.not_after),
            authority: issued.authority,
        };
        Ok((issued, certificate))
    }

    /// # Errors
    ///
    /// `Invalid` if a client has the name, a volume does not exist, or the network is not one for clients; those of the
    /// coordinator.
    pub fn create_client(&self, call: ClientCreate) -> Result<CredentialIssued> {
        let known = self.registry.volumes()?;
        if let Some(missing) = call.volumes.iter().find(|name| known.iter().all(|volume| volume.name != **name)) {
            let names: Vec<&str> = known.iter().map(|volume| &volume.name[..]).collect();
            return Err(Error::invalid(format!("no volume is called {missing}; there are: {}", names.join(", "))));
        }
        if call.volumes.is_empty() && !call.admin {
            return Err(Error::invalid(
                "a client without a volume could do nothing; name one with --volume, or --admin",
            ));
        }
        let network = self.network_of(&call.network)?;
        let (issued, certificate) = self.issue_client(&call.name, &call.public_key, call.life_s)?;
        let mut info = ClientInfo {
            name: call.name,
            volumes: call.volumes,
            read_only: call.read_only,
            admin: call.admin,
            network: network.clone(),
            life_s: call.life_s,
            ..ClientInfo::default()
        };
        info.add(certificate.clone());
        self.registry.create_client(&info)?;
        self.issued(issued, network, certificate.expires)
    }

    /// A client that renews its own credential gets no longer a lifetime than it was made with.
    ///
    /// # Errors
    ///
    /// `Invalid` if there is no client of the name, or it was revoked; those of the coordinator.
    pub fn renew_client(&self, call: &ClientRenew, is_own: bool) -> Result<CredentialIssued> {
        let made_with = self.registry.client(&call.name)?.and_then(|info| info.life_s);
        let life_s = match (call.life_s, made_with) {
            (Some(asked), made_with) if is_own => Some(asked.min(made_with.unwrap_or(self.usual_life_s()?))),
            (asked, made_with) => asked.or(made_with),
        };
        let (issued, certificate) = self.issue_client(&call.name, &call.public_key, life_s)?;
        let mut is_revoked = false;
        let info = self.registry.change_client(&call.name, |info| {
            is_revoked = info.revoked;
            let is_known = info.certificates.iter().any(|known| known.serial == certificate.serial);
            if !is_revoked && !is_known {
                info.add(certificate.clone());
            }
        })?;
        if is_revoked {
            return Err(Error::invalid(format!("client {} was revoked; make another one", call.name)));
        }
        self.issued(issued, info.network, certificate.expires)
    }

    fn issued(&self, issued: Issued, network: String, expires: u64) -> Result<CredentialIssued> {
        let servers = self.addresses(&network)?;
        let (chain, roots) = (issued.chain, issued.roots);
        Ok(CredentialIssued { cluster: self.cluster.clone(), chain, roots, network, servers, expires })
    }

    /// The network that a client uses: the one that is named, or the only one that is not the servers' own.
    fn network_of(&self, named: &str) -> Result<String> {
        let infos = self.registry.servers()?;
        let mut all: Vec<String> = infos.into_iter().flat_map(|info| info.networks.into_values()).collect();
        all.sort();
        all.dedup();
        let of_servers = self.registry.servers_network()?;
        let fronts: Vec<&String> = match all.len() {
            0 | 1 => all.iter().collect(),
            _ => all.iter().filter(|network| **network != of_servers).collect(),
        };
        let shown = fronts.iter().map(|network| &network[..]).collect::<Vec<_>>().join(", ");
        match fronts[..] {
            [] => Err(Error::invalid(
                "no server answers over TCP, where the client could connect; serve with `--listen ADDRESS:PORT`",
            )),
            [only] if named.is_empty() => Ok(only.clone()),
            _ if named.is_empty() => Err(Error::invalid(format!("name the client's network with --network: {shown}"))),
            _ if fronts.iter().any(|network| *network == named) => Ok(named.into()),
            _ => Err(Error::invalid(format!("clients have no network called {named}; there are: {shown}"))),
        }
    }

    /// Addresses of all servers at a network, this one's first.
    fn addresses(&self, network: &str) -> Result<Vec<String>> {
        let infos = self.registry.servers()?;
        let own = |endpoint: &&String| !self.endpoints.contains(endpoint);
        let at = |info: &hekate_cluster::ServerInfo| {
            let is_there = |endpoint: &&String| info.networks.get(*endpoint).is_some_and(|at| at == network);
            info.endpoints.iter().filter(is_there).cloned().collect::<Vec<_>>()
        };
        let mut all: Vec<String> = infos.iter().flat_map(at).collect();
        all.sort_by_key(|endpoint| own(&endpoint));
        Ok(all.iter().map(|endpoint| endpoint.trim_start_matches("tcp:").to_string()).collect())
    }

    /// # Errors
    ///
    /// `Invalid` if there is no client of the name; those of the coordinator.
    pub fn revoke_client(&self, name: &str) -> Result<ClientStatus> {
        let info = self.registry.change_client(name, |info| info.revoked = true)?;
        Ok(status_of(&info))
    }

    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn clients(&self) -> Result<Vec<ClientStatus>> {
        Ok(self.registry.clients()?.iter().map(status_of).collect())
    }

    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn authority(&self) -> Result<AuthorityStatus> {
        let opened = self.opened()?;
        let status = |der: &[u8], info: &CertificateInfo| CertificateStatus {
            fingerprint: Context::fingerprint(der),
            expires: seconds(info.not_after),
        };
        let mut all: Vec<_> = opened.certificates()?.iter().map(|one| status(&one.der, &one.info)).collect();
        let issuing = all.remove(0);
        let own = self.keys.context().credential().map(|credential| pems(&credential.chain)).transpose()?;
        let own = own.and_then(|chain| chain.into_iter().next());
        let own = own.map(|der| CertificateInfo::of(&der).map(|info| status(&der, &info))).transpose()?;
        let record = opened.record;
        Ok(AuthorityStatus {
            roots: all,
            issuing,
            server: own.unwrap_or_default(),
            server_days: record.server_days,
            client_days: record.client_days,
            next_step: authority::next_step(&record).into(),
            behind: self.behind(&record)?,
        })
    }

    /// Clients whose newest certificate was issued before the last step of a rotation.
    fn behind(&self, record: &hekate_cluster::AuthorityInfo) -> Result<Vec<String>> {
        if record.roots.len() < 2 {
            return Ok(Vec::new());
        }
        let is_behind = |info: &&ClientInfo| {
            !info.revoked && info.certificates.last().is_none_or(|newest| newest.authority < record.change)
        };
        let clients = self.registry.clients()?;
        Ok(clients.iter().filter(is_behind).map(|info| info.name.clone()).collect())
    }

    fn check_nobody_is_behind(&self, force: bool, what: &str) -> Result<()> {
        let behind = self.behind(&authority::record(self.registry)?)?;
        if behind.is_empty() || force {
            return Ok(());
        }
        let names = behind.join(", ");
        Err(Error::invalid(format!("these clients {what}: {names}; `hekate client renew` each, or --force")))
    }

    /// # Errors
    ///
    /// `Invalid` if the step is not the next one, or clients are behind; those of the coordinator.
    pub fn rotate(&self, call: &CaRotate) -> Result<CaRotated> {
        match call.step {
            RotationStep::Start => {
                let root = authority::start_rotation(self.registry, self.keys.seal(), &self.cluster)?;
                return Ok(CaRotated { root_key: Some(root.key), root: Some(root.certificate) });
            }
            RotationStep::Switch => {
                self.check_nobody_is_behind(call.force, "do not trust the new root yet")?;
                authority::switch_rotation(self.registry)?;
            }
            RotationStep::Finish => {
                self.check_nobody_is_behind(call.force, "have certificates below the old root")?;
                authority::finish_rotation(self.registry)?;
            }
        }
        Ok(CaRotated::default())
    }
}

/// Answers a request about access. `has_cluster`: the cluster has been made.
///
/// # Errors
///
/// Those of the request; `Invalid` if it is about something else.
pub fn act(desk: &Desk<'_>, peer: &Peer, request: ControlRequest, has_cluster: bool) -> Result<Value> {
    match request {
        ControlRequest::TokenCreate(call) => encode::<TokenCreate>(desk.create_token(&call)),
        ControlRequest::Enroll(call) => encode::<Enroll>(desk.enroll(peer, &call, has_cluster)),
        ControlRequest::ClientCreate(call) => encode::<ClientCreate>(desk.create_client(call)),
        ControlRequest::ClientRenew(call) => {
            let is_own = matches!(peer.holder(), Some(Holder::Client(name)) if *name == call.name);
            encode::<ClientRenew>(desk.renew_client(&call, is_own))
        }
        ControlRequest::ClientRevoke(call) => encode::<ClientRevoke>(desk.revoke_client(&call.name)),
        ControlRequest::ClientList(_) => encode::<ClientList>(desk.clients()),
        ControlRequest::CaShow(_) => encode::<CaShow>(desk.authority()),
        ControlRequest::CaRotate(call) => encode::<CaRotate>(desk.rotate(&call)),
        ControlRequest::CaSet(call) => {
            authority::set_lifetimes(desk.registry, call.server_days, call.client_days)?;
            encode::<CaSet>(desk.authority())
        }
        _ => Err(Error::invalid("this process does not serve this request; ask a server of its cluster")),
    }
}

fn status_of(info: &ClientInfo) -> ClientStatus {
    ClientStatus {
        name: info.name.clone(),
        volumes: info.volumes.clone(),
        read_only: info.read_only,
        admin: info.admin,
        network: info.network.clone(),
        revoked: info.revoked,
        expires: info.certificates.last().map(|newest| newest.expires).unwrap_or_default(),
    }
}

/// The desk of a server.
///
/// # Errors
///
/// `Invalid` if its state directory has no keys; those of the coordinator.
pub fn desk(node: &Node) -> Result<Desk<'_>> {
    let keys = node.cluster.keys().ok_or_else(|| Error::invalid("this server has no keys in its state directory"))?;
    Ok(Desk {
        cluster: node.cluster.id().into(),
        registry: node.cluster.registry(),
        keys,
        endpoints: node.endpoints()?,
        coordinator: node.coordinator_addresses()?,
    })
}

/// The coordinator that is a process of its own has this number in its certificate.
pub const COORDINATOR: ServerId = ServerId(0);

#[cfg(test)]
mod tests;
