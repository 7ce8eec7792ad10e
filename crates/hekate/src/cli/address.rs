//! Addresses as people write them: names are resolved, and an error shows the right form.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

const FORMS: &str = "say ADDRESS:PORT, as 127.0.0.1:7100 or [::1]:7100";

/// Parses the address of a server. Returns the form of the cluster's records: `unix:PATH` or `tcp:ADDRESS:PORT` with a
/// numeric address. The prefix `tcp:` may be absent, a host name may replace the address, and a bare path is that of a
/// socket.
///
/// # Errors
///
/// In words: the address is malformed, or the name cannot be resolved.
pub fn server(text: &str) -> Result<String, String> {
    let path = text.strip_prefix("unix:").or_else(|| text.starts_with('/').then_some(text));
    if let Some(path) = path {
        // A process in the background runs in another directory.
        let absolute =
            std::path::absolute(path).map_err(|error| format!("{text:?} is no server: {error}; say unix:PATH"))?;
        return Ok(format!("unix:{}", absolute.display()));
    }
    let address = text.strip_prefix("tcp:").unwrap_or(text);
    if address.contains('/') {
        return Err(format!("{text:?} is no server; {FORMS}, or unix:PATH"));
    }
    socket(address).map(|address| format!("tcp:{address}"))
}

/// Parses an address or host name, and a port. Of the addresses of a name, IPv4 comes first, so that a server and its
/// clients choose the same.
///
/// # Errors
///
/// In words: the text is malformed, or the name cannot be resolved.
pub fn socket(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("{text:?} has no port; {FORMS}"));
    };
    if text.parse::<Ipv6Addr>().is_ok() || host.parse::<Ipv6Addr>().is_ok() {
        let example =
            if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]:{port}") } else { format!("[{text}]:PORT") };
        return Err(format!("{text:?}: an IPv6 address is written in brackets; say {example}"));
    }
    let port: u16 =
        port.parse().map_err(|_| format!("{text:?}: the port {port:?} is no number up to 65535; {FORMS}"))?;
    if host.is_empty() || host.contains(['[', ']', ' ']) {
        return Err(format!("{text:?}: {host:?} is no host; {FORMS}"));
    }
    let found = (host, port).to_socket_addrs();
    let found: Vec<SocketAddr> =
        found.map_err(|error| format!("{text:?}: the host {host} is not known: {error}"))?.collect();
    let is_v4 = |address: &&SocketAddr| matches!(address.ip(), IpAddr::V4(_));
    let chosen = found.iter().find(is_v4).or(found.first());
    chosen.copied().ok_or_else(|| format!("{text:?}: the host {host} has no address"))
}

/// An address of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    pub network: String,
    /// `HOST:PORT`.
    pub address: String,
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.network, self.address)
    }
}

/// The network of an address that names none.
const USUAL: &str = "front";

/// Parses `[NETWORK=]ADDRESS:PORT`, where a server listens.
///
/// # Errors
///
/// In words: the text is malformed, the name cannot be resolved, or the port is 0.
pub fn listen(text: &str) -> Result<Listen, String> {
    let (network, address) = network(text)?;
    let address = socket(address)?;
    if address.port() == 0 {
        return Err(format!("{text:?} needs a fixed port: port 0 would be chosen only after the address is recorded"));
    }
    Ok(Listen { network, address: address.to_string() })
}

/// Parses `[NETWORK=]HOST:PORT`, where others reach a server. The name is not resolved here.
///
/// # Errors
///
/// In words: the text is malformed.
pub fn advertise(text: &str) -> Result<Listen, String> {
    let (network, address) = network(text)?;
    hekate_transport::check_address(address).map_err(|error| error.to_string())?;
    Ok(Listen { network, address: address.into() })
}

fn network(text: &str) -> Result<(String, &str), String> {
    let Some((network, address)) = text.split_once('=') else { return Ok((USUAL.into(), text)) };
    let fits = !network.is_empty()
        && network.len() <= 32
        && network.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    match fits {
        true => Ok((network.into(), address)),
        false => Err(format!("{network:?} is no name of a network; use 1 to 32 lower-case letters, digits and dashes")),
    }
}

/// The address at which others reach a server: itself, or for a wildcard each address of this machine that is not of
/// the loopback interface.
///
/// # Errors
///
/// The machine does not tell its addresses.
pub fn reachable(listen: &Listen) -> std::io::Result<Vec<Listen>> {
    let wildcard = listen.address.parse::<SocketAddr>().ok().filter(|address| address.ip().is_unspecified());
    let Some(wildcard) = wildcard else { return Ok(vec![listen.clone()]) };
    let fits = |ip: &IpAddr| !ip.is_loopback() && (wildcard.is_ipv6() || ip.is_ipv4());
    let listen_at = |ip| {
        let address = SocketAddr::new(ip, wildcard.port()).to_string();
        Listen { network: listen.network.clone(), address }
    };
    Ok(own_addresses()?.into_iter().filter(fits).map(listen_at).collect())
}

/// The addresses of this machine, but for those that are valid on one link only.
///
/// # Errors
///
/// The machine does not tell its addresses.
pub fn own_addresses() -> std::io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    for interface in nix::ifaddrs::getifaddrs()? {
        let storage = interface.address;
        let v4 = storage.as_ref().and_then(|at| at.as_sockaddr_in()).map(|at| IpAddr::V4(at.ip()));
        let v6 = storage.as_ref().and_then(|at| at.as_sockaddr_in6()).map(|at| IpAddr::V6(at.ip()));
        let is_local_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        found.extend(v4.or(v6).filter(|ip| !is_local_link(ip)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_an_address_a_name_or_a_socket() {
        let wanted = [
            ("127.0.0.1:7100", "tcp:127.0.0.1:7100"),
            ("tcp:127.0.0.1:7100", "tcp:127.0.0.1:7100"),
            ("localhost:7100", "tcp:127.0.0.1:7100"),
            ("[::1]:7100", "tcp:[::1]:7100"),
            ("unix:/run/x", "unix:/run/x"),
            ("/run/x", "unix:/run/x"),
        ];
        wanted.iter().for_each(|(text, named)| assert_eq!(server(text).as_deref(), Ok(*named), "{text}"));
    }

    #[test]
    fn what_is_wrong_is_said_with_the_right_form() {
        let wrong = [
            ("", "has no port"),
            ("localhost", "has no port"),
            ("7100", "has no port"),
            ("127.0.0.1:", "is no number"),
            ("127.0.0.1:70000", "is no number"),
            ("127.0.0.1:-1", "is no number"),
            (":7100", "is no host"),
            ("::1:7100", "say [::1]:7100"),
            ("::1", "in brackets"),
            ("[::1]", "is no"),
            ("http://127.0.0.1:7100", "is no server"),
            ("no-such-host.invalid:7100", "no-such-host.invalid is not known"),
        ];
        for (text, word) in wrong {
            let why = server(text).unwrap_err();
            assert!(why.contains(word) && why.contains(text), "{text}: {why}");
        }
    }
}
