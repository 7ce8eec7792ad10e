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
