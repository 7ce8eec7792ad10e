//! Records of access over TCP: the cluster's authority, tokens of new servers, clients, the network of servers.

use super::attempts::closed;
use super::{Attempts, Registry, parse, text};
use hekate_proto::{Error, Result};
use serde::{Deserialize, Serialize};

const AUTHORITY: &str = "/access/authority";
const NETWORKS: &str = "/access/networks";

/// The name of the network that servers use among themselves, unless the cluster has named another one.
pub const BACK: &str = "back";

/// Record `/access/authority`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct AuthorityInfo {
    /// PEM: the roots that all trust.
    pub roots: Vec<String>,
    /// The issuing certificate and its key, sealed: hex digits.
    pub issuing: String,
    /// During a rotation: what replaces `issuing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Lifetimes of new certificates, in days.
    pub server_days: u32,
    pub client_days: u32,
    /// Number of changes of this record.
    pub change: u64,
}

/// Record `/access/networks`. Without it [`BACK`] is the network of servers.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
struct NetworksInfo {
    servers: String,
    /// Number of changes of this record.
    change: u64,
}

/// Record `/access/tokens/ID`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct TokenInfo {
    pub id: String,
    /// SHA-256 of the secret: 64 hex digits.
    pub digest: String,
    /// Seconds since 1970.
    pub expires: u64,
}

/// Record `/access/clients/NAME`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ClientInfo {
    pub name: String,
    /// Names of the volumes that it may use.
    pub volumes: Vec<String>,
    pub read_only: bool,
    /// It may do what root may do on a server, and use every volume.
    pub admin: bool,
    /// The network at which it reaches servers.
    pub network: String,
    pub revoked: bool,
    /// Lifetime of its certificates in seconds; `None`: the cluster's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life_s: Option<u64>,
    /// Its certificates; no other is accepted.
    pub certificates: Vec<ClientCertificate>,
    /// Number of changes of this record.
    pub change: u64,
}

/// A certificate of a client.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Hex digits.
    pub serial: String,
    /// Seconds since 1970.
    pub expires: u64,
    /// [`AuthorityInfo::change`] when it was issued.
    pub authority: u64,
}

/// Certificates of a client that are kept; the oldest makes room for a further one.
const CERTIFICATES_MAX: usize = 16;

impl ClientInfo {
    /// Checks that a certificate is one of this client, which is not revoked.
    ///
    /// # Errors
    /// `Denied` otherwise.
    pub fn accepts(&self, serial: &str) -> Result<()> {
        let what = match self.certificates.iter().any(|known| known.serial == serial) {
            _ if self.revoked => format!("client {} has been revoked", self.name),
            true => return Ok(()),
            false => format!("the certificate of client {} has been revoked; use its newest credential", self.name),
        };
        Err(Error::Denied { what })
    }

    /// Adds a certificate.
    pub fn add(&mut self, certificate: ClientCertificate) {
        self.certificates.push(certificate);
        let surplus = self.certificates.len().saturating_sub(CERTIFICATES_MAX);
        self.certificates.drain(..surplus);
        self.change += 1;
    }
}

fn token_key(id: &str) -> String {
    format!("/access/tokens/{id}")
}

fn client_key(name: &str) -> String {
    format!("/access/clients/{name}")
}

impl Registry {
    /// The network that servers use among themselves.
    pub fn servers_network(&self) -> Result<String> {
        Ok(self.get::<NetworksInfo>(NETWORKS)?.map_or_else(|| BACK.into(), |info| info.servers))
    }

    /// Names the network that servers use among themselves.
    pub fn set_servers_network(&self, network: &str) -> Result<()> {
        let first = NetworksInfo { servers: network.into(), change: 1 };
        if self.get::<NetworksInfo>(NETWORKS)?.is_none() {
            match self.create(NETWORKS, &first) {
                Err(Error::Exists) => {}
                outcome => return outcome,
            }
        }
        let changed = |info: &mut NetworksInfo| {
            info.change += 1;
            std::mem::replace(&mut info.servers, network.into()) != network
        };
        self.update(NETWORKS, changed).map(|_| ())
    }

    /// The cluster's authority; `None` before it has one.
    pub fn authority(&self) -> Result<Option<AuthorityInfo>> {
        self.get(AUTHORITY)
    }

    /// Records the authority of a new cluster.
    ///
    /// # Errors
    /// `Exists` if there is one.
    pub fn create_authority(&self, info: &AuthorityInfo) -> Result<()> {
        self.create(AUTHORITY, info)
    }

    /// Changes the authority's record; `change` returns false if there is nothing to change.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn change_authority(
        &self,
        mut change: impl FnMut(&mut AuthorityInfo) -> Result<bool>,
    ) -> Result<AuthorityInfo> {
        let mut failed = Ok(());
        let changed = self.update::<AuthorityInfo>(AUTHORITY, |info| match change(info) {
            Ok(is_changed) => {
                info.change += u64::from(is_changed);
                is_changed
            }
            Err(error) => {
                failed = Err(error);
                false
            }
        })?;
        failed?;
        changed.ok_or_else(|| Error::invalid("the cluster has no authority"))
    }

    /// Records an invitation.
    pub fn create_token(&self, info: &TokenInfo) -> Result<()> {
        self.create(&token_key(&info.id), info)
    }

    /// Uses up an invitation. An attempt whose outcome is unknown uses it up too.
    ///
    /// # Errors
    /// `Denied` if there is none with this secret's digest, or it has expired.
    pub fn take_token(&self, id: &str, digest: &str, now: u64) -> Result<()> {
        let denied = |what: &str| Error::Denied { what: format!("{what}; `hekate token create` makes another one") };
        let key = token_key(id);
        let found = self.coordinator.get(&key)?.ok_or_else(|| denied("the token is not known, or was used already"))?;
        let info: TokenInfo = parse(&key, &found)?;
        if info.digest != digest {
            return Err(denied("the token's secret is wrong"));
        }
        let is_over = info.expires <= now;
        let outcome = self.coordinator.transact(&[(&key, Some(&found))], &[(&key, None)])?;
        match outcome {
            _ if is_over => Err(denied("the token has expired")),
            crate::Outcome::Written => Ok(()),
            crate::Outcome::Refused => Err(denied("the token was used already")),
            crate::Outcome::Closed { by } => Err(closed(&by)),
            crate::Outcome::Unknown { why } => Err(Error::Unavailable { what: format!("the coordinator: {why}") }),
        }
    }

    /// All clients.
    pub fn clients(&self) -> Result<Vec<ClientInfo>> {
        self.list("/access/clients/")
    }

    /// A client by name.
    pub fn client(&self, name: &str) -> Result<Option<ClientInfo>> {
        self.get(&client_key(name))
    }

    /// Records a new client, or one in the place of a revoked one.
    ///
    /// # Errors
    /// `Invalid` if a client has the name.
    pub fn create_client(&self, info: &ClientInfo) -> Result<()> {
        let key = client_key(&info.name);
        let exists = || Error::invalid(format!("there is a client called {} already", info.name));
        let known: Option<ClientInfo> = self.get(&key)?;
        match known {
            None => self.create(&key, info).map_err(|error| if error == Error::Exists { exists() } else { error }),
            Some(_) => {
                let mut is_taken = false;
                self.update::<ClientInfo>(&key, |found| {
                    is_taken = !found.revoked;
                    let change = found.change + 1;
                    *found = ClientInfo { change, ..info.clone() };
                    !is_taken
                })?;
                if is_taken { Err(exists()) } else { Ok(()) }
            }
        }
    }

    /// Changes a client's record.
    ///
    /// # Errors
    /// `Invalid` if there is no client of this name.
    pub fn change_client(&self, name: &str, mut change: impl FnMut(&mut ClientInfo)) -> Result<ClientInfo> {
        let changed = self.update::<ClientInfo>(&client_key(name), |info| {
            let before = info.change;
            change(info);
            info.change = before + 1;
            true
        })?;
        changed.ok_or_else(|| {
            Error::invalid(format!("there is no client called {name}; `hekate client list` shows those that there are"))
        })
    }

    /// Makes a record that is not there yet and whose value nobody else writes.
    pub(super) fn create<T: Serialize>(&self, key: &str, record: &T) -> Result<()> {
        let record = text(record)?;
        let mut attempts = Attempts::default();
        loop {
            match self.coordinator.get(key)? {
                Some(found) if attempts.are_unsure() && found == record => return Ok(()),
                Some(_) => return Err(Error::Exists),
                None => {}
            }
            if attempts.is_written(self.coordinator.transact(&[(key, None)], &[(key, Some(&record))]))? {
                return Ok(());
            }
        }
    }
}
