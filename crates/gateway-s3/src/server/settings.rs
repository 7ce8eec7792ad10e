//! What an operator decides about a door.

use hekate_proto::{Error, Result};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How to open a door.
#[derive(Debug, Clone)]
pub struct Settings {
    pub listen: Vec<SocketAddr>,
    /// `None`: plain HTTP.
    pub tls: Option<TlsFiles>,
    /// The domain whose subdomains are buckets (`bucket.domain`), without a port. `None`: buckets only in paths.
    pub domain: Option<String>,
    /// The region that signatures name.
    pub region: String,
    pub limits: Limits,
}

/// PEM files. They are read again when one of them changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those between it and the root.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Bounds of what clients can take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Open connections; one more is closed at once.
    pub connections: usize,
    /// Requests being answered; more wait, see `request_wait`.
    pub requests: usize,
    /// How long a request waits for its turn before it is answered `SlowDown`.
    pub request_wait: Duration,
    /// Threads that call the volume.
    pub threads: usize,
    /// Memory for bytes of objects on their way between sockets and the volume, of all requests together.
    pub buffer_bytes: usize,
    /// Request line and headers.
    pub header_bytes: usize,
    pub header_count: usize,
    /// How long a connection may be idle, or take to send a request's headers.
    pub idle_time: Duration,
    /// Least rate of a body in either direction, in bytes a second of waiting for the client.
    pub rate_min: u64,
    /// Waiting that is free of `rate_min`, for each body.
    pub rate_grace: Duration,
    /// How long requests may run after a stop of the door has begun.
    pub stop_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 2048,
            requests: 512,
            request_wait: Duration::from_secs(10),
            threads: 64,
            buffer_bytes: 256 << 20,
            header_bytes: 64 << 10,
            header_count: 200,
            idle_time: Duration::from_secs(60),
            rate_min: 1 << 10,
            rate_grace: Duration::from_secs(20),
            stop_time: Duration::from_secs(10),
        }
    }
}

/// Least memory for bodies: that of one request, which is two pieces of each direction.
const BUFFER_MIN: usize = 8 << 20;
/// hyper accepts no smaller buffer.
const HEADER_BYTES_MIN: usize = 8 << 10;

impl Settings {
    /// # Errors
    /// `Invalid` with the setting that is wrong.
    pub(crate) fn check(&self) -> Result<()> {
        let Limits { connections, requests, threads, buffer_bytes, header_bytes, header_count, .. } = self.limits;
        let domain_is_name = self.domain.as_deref().is_none_or(is_domain);
        let faults = [
            (self.listen.is_empty(), "an S3 door needs an address to listen on"),
            (self.region.is_empty(), "the region is empty; `us-east-1` is what clients expect"),
            (!domain_is_name, "the domain is no host name without a port"),
            (connections == 0 || requests == 0 || threads == 0, "connections, requests and threads are at least 1"),
            (buffer_bytes < BUFFER_MIN, "the memory for bodies is at least 8 MiB"),
            (header_bytes < HEADER_BYTES_MIN || header_count == 0, "headers need at least 8 KiB and one header"),
        ];
        match faults.into_iter().find(|(wrong, _)| *wrong) {
            Some((_, what)) => Err(Error::Invalid { what: what.into() }),
            None => Ok(()),
        }
    }
}

fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            tls: None,
            domain: None,
            region: "us-east-1".into(),
            limits: Limits::default(),
        }
    }

    #[test]
    fn the_defaults_are_right() {
        settings().check().unwrap();
        Settings { domain: Some("s3.example.com".into()), ..settings() }.check().unwrap();
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let wrong = [
            Settings { listen: vec![], ..settings() },
            Settings { region: String::new(), ..settings() },
            Settings { domain: Some("s3.example.com:80".into()), ..settings() },
            Settings { domain: Some("S3..com".into()), ..settings() },
            Settings { limits: Limits { threads: 0, ..Limits::default() }, ..settings() },
            Settings { limits: Limits { buffer_bytes: 1 << 20, ..Limits::default() }, ..settings() },
        ];
        for settings in wrong {
            assert!(matches!(settings.check(), Err(Error::Invalid { .. })), "{settings:?}");
        }
    }
}
