//! Requests about access over TCP: tokens of new servers, clients and their credentials, the cluster's authority, networks.

use crate::status::NetworkTraffic;
use crate::{ControlCall, ControlRequest, calls};
use hekate_proto::ServerId;
use serde::{Deserialize, Serialize};

calls! { ControlRequest, ControlCall:
    TokenCreate => TokenCreated,
    Enroll => Enrolled,
    ClientCreate => CredentialIssued,
    ClientRenew => CredentialIssued,
    ClientRevoke => ClientStatus,
    ClientList => Vec<ClientStatus>,
    CaShow => AuthorityStatus,
    CaRotate => CaRotated,
    CaSet => AuthorityStatus,
    NetworkList => Vec<NetworkStatus>,
    NetworkSet => Vec<NetworkStatus>,
}

/// All networks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NetworkList {}

/// A network.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// What its connections have carried.
    #[serde(flatten)]
    pub traffic: NetworkTraffic,
    /// It is for servers among themselves: clients are refused.
    pub for_servers: bool,
    /// The addresses of each server there.
    pub addresses: Vec<NetworkAddress>,
}

/// An address of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NetworkAddress {
    /// The server.
    pub server: ServerId,
    /// `HOST:PORT`.
    pub address: String,
}

/// Names the network that servers use among themselves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NetworkSet {
    /// The network.
    pub network: String,
}

/// Makes an invitation for one server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TokenCreate {
    /// How long it is good for, in seconds.
    pub expires_s: u64,
}

/// The reply to [`TokenCreate`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TokenCreated {
    /// One line of text for `hekate join`.
    pub token: String,
    /// Seconds since 1970.
    pub expires: u64,
}

/// Asks for the number and the certificate of a further server. Over TCP it needs an invitation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Enroll {
    /// Number of the invitation.
    #[serde(default)]
    pub token: String,
    /// Its secret.
    #[serde(default)]
    pub secret: String,
    /// The new server's public key: an uncompressed point of P-256, in hex digits.
    pub public_key: String,
    /// The pool that its bricks are for. None: the server makes a new cluster at a coordinator that has none.
    #[serde(default)]
    pub pool: Option<String>,
    /// The new server has no bricks.
    #[serde(default)]
    pub witness: bool,
}

/// The reply to [`Enroll`].
#[derive(Clone, Serialize, Deserialize)]
pub struct Enrolled {
    /// The cluster's id.
    pub cluster: String,
    /// The new server's number.
    pub server: ServerId,
    /// PEM: its certificate, and the issuing certificate.
    pub chain: String,
    /// PEM: the roots of the cluster.
    pub roots: String,
    /// The key that seals the cluster's secrets: hex digits.
    pub seal_key: String,
    /// Where the coordinator answers.
    pub coordinator: Vec<String>,
    /// What lets the new server into etcd, if that is the coordinator.
    #[serde(default)]
    pub etcd: Option<EtcdAccess>,
}

/// What lets a server into etcd. PEM.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct EtcdAccess {
    /// Certificates of the authority that signs those of members.
    pub ca: String,
    /// The server's certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for Enrolled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Enrolled(server {} of cluster {})", self.server, self.cluster)
    }
}

/// Makes a client, and issues its first certificate.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ClientCreate {
    /// The client's name.
    pub name: String,
    /// The volumes that it may use.
    pub volumes: Vec<String>,
    /// It may change nothing.
    #[serde(default)]
    pub read_only: bool,
    /// It may do what root may do on a server.
    #[serde(default)]
    pub admin: bool,
    /// The network at which it reaches servers. Empty: the cluster's only one for clients.
    #[serde(default)]
    pub network: String,
    /// Lifetime of its certificate in seconds. None: the cluster's setting.
    #[serde(default)]
    pub life_s: Option<u64>,
    /// As of [`Enroll`].
    pub public_key: String,
}

/// Issues a further certificate of a client. A client may renew its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientRenew {
    /// The client's name.
    pub name: String,
    /// As of [`ClientCreate`].
    #[serde(default)]
    pub life_s: Option<u64>,
    /// As of [`Enroll`].
    pub public_key: String,
}

/// What a credential's file holds, beside the key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CredentialIssued {
    /// The cluster's id.
    pub cluster: String,
    /// PEM: the certificate, and the issuing certificate.
    pub chain: String,
    /// PEM: the roots of the cluster.
    pub roots: String,
    /// The network at which the client reaches servers.
    pub network: String,
    /// Addresses of servers there, `HOST:PORT`.
    pub servers: Vec<String>,
    /// When the certificate expires, in seconds since 1970.
    pub expires: u64,
}

/// Ends what a client may do, for good: every server refuses it, and its sessions end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientRevoke {
    /// The client's name.
    pub name: String,
}

/// All clients.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ClientList {}

/// A client.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its name.
    pub name: String,
    /// The volumes that it may use.
    pub volumes: Vec<String>,
    /// It may change nothing.
    pub read_only: bool,
    /// It may do what root may do on a server.
    pub admin: bool,
    /// The network at which it reaches servers.
    pub network: String,
    /// It was revoked.
    pub revoked: bool,
    /// When its newest certificate expires, in seconds since 1970.
    pub expires: u64,
}

/// The cluster's authority.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CaShow {}

/// The reply to [`CaShow`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AuthorityStatus {
    /// The roots that all trust.
    pub roots: Vec<CertificateStatus>,
    /// The issuing certificate.
    pub issuing: CertificateStatus,
    /// The certificate of the server that answers.
    pub server: CertificateStatus,
    /// Lifetime of new certificates of servers and of clients, in days.
    pub server_days: u32,
    /// See `server_days`.
    pub client_days: u32,
    /// The step of a rotation that is next: `start`, `switch` or `finish`.
    pub next_step: String,
    /// Clients whose certificates do not know the newest root yet.
    pub behind: Vec<String>,
}

/// Sets the lifetimes of certificates that are issued from now on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CaSet {
    /// Days of a server's. None: as it is.
    #[serde(default)]
    pub server_days: Option<u32>,
    /// Days of a client's. None: as it is.
    #[serde(default)]
    pub client_days: Option<u32>,
}

/// A certificate.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// SHA-256 in hex digits.
    pub fingerprint: String,
    /// Seconds since 1970.
    pub expires: u64,
}

/// Does a step of the replacement of the cluster's root.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaRotate {
    /// The step.
    pub step: RotationStep,
    /// Finish although clients are behind.
    #[serde(default)]
    pub force: bool,
}

/// A step of the replacement of the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RotationStep {
    /// Makes a new root, which all trust beside the old one.
    Start,
    /// New certificates are signed below the new root.
    Switch,
    /// The old root is trusted no more.
    Finish,
}

/// The reply to [`CaRotate`].
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct CaRotated {
    /// The new root's key in PEM, at the step `start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_key: Option<String>,
    /// The new root's certificate in PEM, at the step `start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

impl std::fmt::Debug for CaRotated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CaRotated(..)")
    }
}
