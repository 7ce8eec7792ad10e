//! What is mounted: `VOLUME`, `ADDRESS:PORT/VOLUME`, `tcp:ADDRESS:PORT/VOLUME` or `unix:PATH/VOLUME`.
//!
//! A volume's name has no slash, so it is what follows the last one.

use std::str::FromStr;

/// A volume and, optionally, its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The text as written, which mount(8) compares with /etc/fstab.
    pub text: String,
    /// In the form of `--server`.
    pub server: Option<String>,
    pub volume: String,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (server, volume) = match text.rsplit_once('/') {
            None => (None, text),
            Some((server, volume)) => (Some(server), volume),
        };
        let form = "say VOLUME, ADDRESS:PORT/VOLUME or unix:PATH/VOLUME";
        if volume.is_empty() {
            return Err(format!("{text:?} names no volume; {form}"));
        }
        if server.is_none() && volume.contains(':') {
            return Err(format!("{text:?} is a server without a volume; {form}"));
        }
        let server = match server {
            None => None,
            Some(server) if server.starts_with("unix:/") || server.starts_with("tcp:") => Some(server.to_string()),
            Some(server) if server.contains(':') && !server.contains('/') && !server.starts_with("unix:") => {
                Some(format!("tcp:{server}"))
            }
            Some(server) => return Err(format!("{server:?} is no server; {form}")),
        };
        Ok(Self { text: text.into(), server, volume: volume.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_volume_with_or_without_its_server() {
        let parts = |text: &str| Source::from_str(text).map(|source| (source.server, source.volume));
        let at = |server: &str, volume: &str| Ok((Some(server.into()), volume.into()));
        assert_eq!(parts("photos"), Ok((None, "photos".into())));
        assert_eq!(parts("127.0.0.1:7100/photos"), at("tcp:127.0.0.1:7100", "photos"));
        assert_eq!(parts("[::1]:7100/photos"), at("tcp:[::1]:7100", "photos"));
        assert_eq!(parts("tcp:127.0.0.1:7100/p"), at("tcp:127.0.0.1:7100", "p"));
        assert_eq!(parts("unix:/run/hekate/server.sock/p"), at("unix:/run/hekate/server.sock", "p"));
    }

    #[test]
    fn anything_else_is_refused_with_the_form() {
        for text in ["", "/", "photos/", "/dev/sda1", "127.0.0.1:7100", "unix:/run/x/", "a/b", "unix:x/v"] {
            let refused = Source::from_str(text).unwrap_err();
            assert!(refused.contains("ADDRESS:PORT/VOLUME"), "{text}: {refused}");
        }
    }
}
