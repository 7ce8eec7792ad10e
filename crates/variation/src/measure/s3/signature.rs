//! AWS Signature Version 4 (AWS General Reference, Create a signed AWS API request).

use super::endpoint::Credentials;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use std::time::SystemTime;

/// The signed parts of a request; its query is empty.
pub struct Signed<'a> {
    pub method: &'a str,
    pub path: &'a str,
    /// In the order of their names, which are in lower case.
    pub headers: &'a [(&'a str, &'a str)],
    /// Hash of the body, as `hash_of`.
    pub hash: &'a str,
    /// As `date`.
    pub date: &'a str,
}

impl Signed<'_> {
    /// The value of the header `authorization`.
    pub fn authorization(&self, region: &str, credentials: &Credentials) -> String {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String = self.headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let Self { method, path, hash, date, .. } = self;
        let canonical = format!("{method}\n{path}\n\n{lines}\n{names}\n{hash}");
        let day = &date[..8];
        let scope = format!("{day}/{region}/s3/aws4_request");
        let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hash_of(canonical.as_bytes()));
        let secret = format!("AWS4{}", credentials.secret_key);
        let parts = [day, region, "s3", "aws4_request", to_sign.as_str()];
        let signature = parts.iter().fold(secret.into_bytes(), |key, part| keyed(&key, part));
        let (key, signature) = (&credentials.access_key, hex(&signature));
        format!("AWS4-HMAC-SHA256 Credential={key}/{scope},SignedHeaders={names},Signature={signature}")
    }
}

/// A time as 20130524T000000Z.
pub fn date(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string().replace(['-', ':'], "")
}

/// SHA-256 in hexadecimal digits.
pub fn hash_of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(key) else { unreachable!("HMAC takes keys of any length") };
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The example "GET Object" of the Amazon S3 API Reference, Signature Calculations for the Authorization Header.
    #[test]
    fn requests_are_signed_as_amazon_says() {
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
        };
        let (hash, date) = (hash_of(b""), "20130524T000000Z");
        let headers = [
            ("host", "examplebucket.s3.amazonaws.com"),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", hash.as_str()),
            ("x-amz-date", date),
        ];
        let signed = Signed { method: "GET", path: "/test.txt", headers: &headers, hash: &hash, date };
        let found = signed.authorization("us-east-1", &credentials);
        assert!(
            found.ends_with("Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
            "{found}"
        );
    }

    #[test]
    fn dates_are_in_the_basic_form() {
        assert_eq!(date(SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600)), "20130524T000000Z");
    }
}
