//! The record of etcd: how servers reach it, and the members that the cluster has made.

use super::Registry;
use hekate_proto::{Error, Result, ServerId};
use serde::{Deserialize, Serialize};

const ETCD: &str = "/etcd";

/// Record `/etcd`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdInfo {
    /// PEM: certificates of the authority that signs those of members.
    pub ca: String,
    /// The authority of the members that the cluster makes, sealed: hex digits. `None`: etcd has certificates of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// The certificate and key that all servers show to an etcd with certificates of its own, sealed: hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Addresses of an etcd that the cluster has not made: https://HOST:PORT.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// Members that the cluster has made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<EtcdMember>,
    /// Number of changes of this record.
    pub change: u64,
}

/// A member of etcd that runs beside a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdMember {
    pub server: ServerId,
    /// Its name in etcd: the server's.
    pub name: String,
    /// A name or IP address.
    pub host: String,
    pub client_port: u16,
    pub peer_port: u16,
    /// It answers and has a vote.
    pub is_ready: bool,
}

impl EtcdMember {
    /// Where clients reach it.
    pub fn client_url(&self) -> String {
        format!("https://{}:{}", bracketed(&self.host), self.client_port)
    }

    /// Where the other members reach it.
    pub fn peer_url(&self) -> String {
        format!("https://{}:{}", bracketed(&self.host), self.peer_port)
    }
}

/// A host as it is written in a URL (RFC 3986, section 3.2.2).
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.into() }
}

impl EtcdInfo {
    /// Where clients reach etcd: the members that are ready.
    pub fn addresses(&self) -> Vec<String> {
        let made = self.members.iter().filter(|member| member.is_ready).map(EtcdMember::client_url);
        self.endpoints.iter().cloned().chain(made).collect()
    }

    /// The member beside a server.
    pub fn member_of(&self, server: ServerId) -> Option<&EtcdMember> {
        self.members.iter().find(|member| member.server == server)
    }
}

impl Registry {
    /// `None` if the cluster knows no etcd.
    pub fn etcd(&self) -> Result<Option<EtcdInfo>> {
        self.get(ETCD)
    }

    /// Makes the record.
    ///
    /// # Errors
    /// `Exists` if there is one.
    pub fn create_etcd(&self, info: &EtcdInfo) -> Result<()> {
        self.create(ETCD, info)
    }

    /// Changes the record; `change` returns false if there is nothing to change.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn change_etcd(&self, mut change: impl FnMut(&mut EtcdInfo) -> bool) -> Result<EtcdInfo> {
        let changed = self.update::<EtcdInfo>(ETCD, |info| {
            let is_changed = change(info);
            info.change += u64::from(is_changed);
            is_changed
        })?;
        changed.ok_or_else(|| Error::invalid("the cluster has no etcd; `hekate coordinator etcd` makes a member"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_addresses() {
        let of = |host: &str| {
            let host = host.into();
            EtcdMember {
                server: ServerId(2),
                name: "server-2".into(),
                host,
                client_port: 2379,
                peer_port: 2380,
                is_ready: true,
            }
        };
        let members = vec![of("10.0.0.2"), of("fd00::2")];
        let info = EtcdInfo { members, endpoints: vec!["https://e:2379".into()], ..EtcdInfo::default() };
        assert_eq!(info.addresses(), ["https://e:2379", "https://10.0.0.2:2379", "https://[fd00::2]:2379"]);
        assert_eq!(info.members[1].peer_url(), "https://[fd00::2]:2380");
    }
}
