//! Invitations to join a cluster: one line with everything that a new server needs.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hekate_proto::{Error, Result};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

const PREFIX: &str = "hekate1-";
const SECRET_BYTES: usize = 16;

/// An invitation. Its secret is good for one server; the fingerprint keeps that server from another cluster.
#[derive(Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Token {
    /// The cluster's id.
    pub cluster: String,
    /// Addresses of servers, `HOST:PORT`, or `unix:PATH`.
    pub addresses: Vec<String>,
    /// SHA-256 of the root's certificate in DER: 64 hex digits.
    pub fingerprint: String,
    /// Number of the invitation in the cluster's records.
    pub id: String,
    /// 32 hex digits.
    pub secret: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({} of cluster {})", self.id, self.cluster)
    }
}

impl Token {
    /// Makes a secret, and a random id.
    ///
    /// # Errors
    /// `Bug` if the system has no random numbers.
    pub fn create(cluster: &str, addresses: Vec<String>, fingerprint: String) -> Result<Self> {
        let mut bytes = [0; SECRET_BYTES + 4];
        getrandom::fill(&mut bytes).map_err(|e| Error::bug(format!("getrandom: {e}")))?;
        let (secret, id) = bytes.split_at(SECRET_BYTES);
        Ok(Self { cluster: cluster.into(), addresses, fingerprint, id: hex(id), secret: hex(secret) })
    }

    /// # Errors
    /// `Invalid` if the text is no token, or a part of one.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            let what = "this is not a token, or not all of it; `hekate token create` prints one line";
            Error::invalid(what)
        };
        let body = text.trim().strip_prefix(PREFIX).ok_or_else(wrong)?;
        let bytes = URL_SAFE_NO_PAD.decode(body).map_err(|_| wrong())?;
        serde_json::from_slice(&bytes).map_err(|_| wrong())
    }

    /// The SHA-256 of a secret: what the cluster records of it.
    pub fn digest_of(secret: &str) -> String {
        hex(digest(&SHA256, secret.as_bytes()).as_ref())
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = serde_json::to_vec(self).map_err(|_| std::fmt::Error)?;
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(text))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_shown_and_a_part_of_one_is_refused() {
        let token = Token::create("c1", vec!["a:7100".into()], "00".repeat(32)).unwrap();
        let text = token.to_string();
        assert!(Token::parse(&format!(" {text}\n")).unwrap() == token && !text.contains(char::is_whitespace));
        for length in 0..text.len() {
            assert!(Token::parse(&text[..length]).is_err(), "{length} characters");
        }
        // FIPS 180-2, appendix B.1.
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Token::digest_of("abc"), digest);
        assert_ne!(Token::create("c1", Vec::new(), String::new()).unwrap().secret, token.secret);
    }
}
