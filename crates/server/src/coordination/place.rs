//! The forms of an address of the coordinator: in `server.json`, in replies, and in the records of a move.
//!
//! | text | where the records are |
//! |---|---|
//! | `own` | in the state directory of this server |
//! | `unix:PATH`, `tcp:HOST:PORT` | in another process that answers there |
//! | `server:NUMBER@ADDRESS` | in the state directory of that server, which answers there |
//! | `etcd:https://HOST:PORT,…` | in etcd |

use hekate_etcd::Endpoints;
use hekate_proto::{Error, Result, ServerId};
use std::fmt;

/// Where the coordinator is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Own,
    /// In another process: `unix:PATH` or `tcp:HOST:PORT`.
    At(String),
    /// With a server that got the records by a move, and the address of that server.
    Server(ServerId, String),
    Etcd(Endpoints),
}

impl Place {
    /// Parses the text as server `own` reads it.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is no place.
    pub fn parse(text: &str, own: ServerId) -> Result<Self> {
        let wrong = || Error::invalid(format!("{text:?} is no address of a coordinator"));
        if text == "own" {
            return Ok(Self::Own);
        }
        if let Some(endpoints) = text.strip_prefix("etcd:") {
            return Endpoints::parse(endpoints).map(Self::Etcd);
        }
        if let Some(rest) = text.strip_prefix("server:") {
            let (number, address) = rest.split_once('@').ok_or_else(wrong)?;
            let server = ServerId(number.parse().map_err(|_| wrong())?);
            return Ok(if server == own { Self::Own } else { Self::Server(server, address.into()) });
        }
        match text.starts_with("unix:") || text.starts_with("tcp:") {
            true => Ok(Self::At(text.into())),
            false => Err(wrong()),
        }
    }

    /// The address of the process that answers for the coordinator; `None` if it is this server or etcd.
    pub fn address(&self) -> Option<&str> {
        match self {
            Self::At(address) | Self::Server(_, address) => Some(address),
            Self::Own | Self::Etcd(_) => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own"),
            Self::At(address) => f.write_str(address),
            Self::Server(server, address) => write!(f, "server:{server}@{address}"),
            Self::Etcd(endpoints) => write!(f, "etcd:{endpoints}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_parsed_as_they_are_written() {
        for text in ["own", "unix:/c", "tcp:h:1", "server:3@tcp:h:1", "etcd:https://a:1,https://b:1"] {
            assert_eq!(Place::parse(text, ServerId(1)).unwrap().to_string(), text);
        }
        assert_eq!(Place::parse("server:3@tcp:h:1", ServerId(3)).unwrap(), Place::Own);
        for wrong in ["", "h:1", "server:3", "server:x@tcp:h:1", "etcd:", "etcd:h:1"] {
            assert!(Place::parse(wrong, ServerId(1)).is_err(), "{wrong}");
        }
    }
}
