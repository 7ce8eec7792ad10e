//! The holder that a certificate names, as a URI in its subject alternative name.

use hekate_proto::{Error, Result, ServerId};

/// The holder of a certificate, and the cluster that issued it: `hekate://CLUSTER/HOLDER`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The cluster's id: 32 hex digits.
    pub cluster: String,
    pub holder: Holder,
}

/// The holder of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// A server: `server/NUMBER`.
    Server(ServerId),
    /// A client: `client/NAME`.
    Client(String),
}

/// Longest name of a client, in bytes.
const NAME_BYTES_MAX: usize = 64;

impl Identity {
    /// # Errors
    /// `Invalid` if the text is not such a URI.
    pub fn parse(uri: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("{uri:?} is not the name of a server or client of a Hekate cluster"));
        let mut parts = uri.strip_prefix("hekate://").ok_or_else(wrong)?.splitn(3, '/');
        let (Some(cluster), Some(kind), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong());
        };
        let holder = match kind {
            "server" => Holder::Server(ServerId(name.parse().map_err(|_| wrong())?)),
            "client" => Holder::client(name).map_err(|_| wrong())?,
            _ => return Err(wrong()),
        };
        Ok(Self { cluster: cluster.into(), holder })
    }
}

impl Holder {
    /// A client of this name.
    ///
    /// # Errors
    /// `Invalid` if the name is empty, longer than 64 bytes, or has other characters than letters, digits and `-_.`.
    pub fn client(name: &str) -> Result<Self> {
        let fits = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        match fits {
            true => Ok(Holder::Client(name.into())),
            false => Err(Error::invalid(format!(
                "{name:?} cannot be the name of a client; use 1 to {NAME_BYTES_MAX} letters, digits, - _ and ."
            ))),
        }
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.holder {
            Holder::Server(server) => write!(f, "hekate://{}/server/{server}", self.cluster),
            Holder::Client(name) => write!(f, "hekate://{}/client/{name}", self.cluster),
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::Server(server) => write!(f, "server {server}"),
            Holder::Client(name) => write!(f, "client {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_as_they_are_shown() {
        for uri in ["hekate://c1/server/7", "hekate://c1/client/web-1.example_x"] {
            assert_eq!(Identity::parse(uri).unwrap().to_string(), uri);
        }
        let shown = [Holder::Server(ServerId(7)), Holder::client("web").unwrap()].map(|holder| holder.to_string());
        assert_eq!(shown, ["server 7", "client web"]);
        for uri in [
            "",
            "http://c1/server/7",
            "hekate://c1",
            "hekate://c1/server",
            "hekate://c1/server/x",
            "hekate://c1/server/-1",
            "hekate://c1/admin/x",
            "hekate://c1/client/",
            "hekate://c1/client/a/b",
            "hekate://c1/client/a b",
        ] {
            assert!(matches!(Identity::parse(uri), Err(Error::Invalid { .. })), "{uri}");
        }
    }
}
