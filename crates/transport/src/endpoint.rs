//! Addresses where servers answer.

use hekate_proto::{Error, Result};
use hekate_tls::Context;
use std::path::PathBuf;
use std::sync::Arc;

/// Address where a server answers.
#[derive(Debug, Clone)]
pub enum Endpoint {
    /// A unix socket. The kernel reports the user at the other end.
    Unix(PathBuf),
    /// `HOST:PORT` for TLS, or several separated by commas, which are tried in order; and the context of the handshake.
    Tcp(String, Arc<Context>),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Tcp(address, _) => write!(f, "tcp:{address}"),
        }
    }
}

impl Endpoint {
    /// Parses the form of the command line and of the cluster's records: `unix:PATH` or `tcp:HOST:PORT`. The second
    /// needs a context.
    ///
    /// # Errors
    /// `Invalid` if the text has neither form, or the context is missing.
    pub fn parse(text: &str, context: Option<&Arc<Context>>) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Endpoint::Unix(path.into()));
        }
        let Some(address) = text.strip_prefix("tcp:") else {
            return Err(Error::invalid(format!("{text:?} is not a server; say unix:PATH or tcp:HOST:PORT")));
        };
        check_address(address)?;
        let missing = || Error::invalid(format!("{text} needs a credential; `hekate client create` makes one"));
        Ok(Endpoint::Tcp(address.into(), context.ok_or_else(missing)?.clone()))
    }

    /// One endpoint of the first of these and, if that is TCP, of all others over TCP, which are tried in order.
    pub fn any_of(endpoints: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut endpoints = endpoints.into_iter();
        let (mut addresses, context) = match endpoints.next()? {
            Endpoint::Tcp(address, context) => (address, context),
            unix => return Some(unix),
        };
        for endpoint in endpoints {
            if let Endpoint::Tcp(address, _) = endpoint {
                addresses = format!("{addresses},{address}");
            }
        }
        Some(Endpoint::Tcp(addresses, context))
    }

    pub(crate) fn context(&self) -> Option<&Arc<Context>> {
        match self {
            Endpoint::Unix(_) => None,
            Endpoint::Tcp(_, context) => Some(context),
        }
    }
}

/// Checks that a text is `HOST:PORT`; an address of IPv6 is in brackets.
///
/// # Errors
/// `Invalid` otherwise.
pub fn check_address(address: &str) -> Result<()> {
    let wrong = || Error::invalid(format!("{address:?} is not HOST:PORT; an IPv6 address is in brackets: [::1]:7100"));
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    let is_named = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    let host_fits = match is_bracketed {
        true => address.parse::<std::net::SocketAddr>().is_ok(),
        false => is_named,
    };
    (host_fits && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_they_are_shown() {
        let context = Arc::new(Context::joining("00").unwrap());
        for text in ["unix:/run/hekate/server.sock", "tcp:127.0.0.1:4000", "tcp:[::1]:4000", "tcp:a-1.example:4000"] {
            assert_eq!(Endpoint::parse(text, Some(&context)).unwrap().to_string(), text);
        }
        for (text, words) in [
            ("127.0.0.1:1", "say unix:PATH"),
            ("tcp:here", "not HOST:PORT"),
            ("tcp::4000", "not HOST:PORT"),
            ("tcp:a:0", "not HOST:PORT"),
            ("tcp:a:70000", "not HOST:PORT"),
            ("tcp:::1:4000", "not HOST:PORT"),
            ("tcp:a b:4000", "not HOST:PORT"),
        ] {
            let refused = Endpoint::parse(text, Some(&context)).unwrap_err();
            assert!(refused.to_string().contains(words), "{refused}");
        }
        let parsed = ["tcp:a:1", "unix:/x", "tcp:b:2"].map(|text| Endpoint::parse(text, Some(&context)).unwrap());
        assert_eq!(Endpoint::any_of(parsed.clone()).unwrap().to_string(), "tcp:a:1,b:2");
        assert_eq!(Endpoint::any_of(parsed.into_iter().skip(1)).unwrap().to_string(), "unix:/x");
        assert!(Endpoint::any_of([]).is_none());
        let refused = Endpoint::parse("tcp:127.0.0.1:4000", None).unwrap_err();
        assert!(refused.to_string().contains("needs a credential"), "{refused}");
    }
}
