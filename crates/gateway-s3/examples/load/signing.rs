//! Signature Version 4 of a request with three headers.

use super::options::Options;
use ring::{digest, hmac};
use std::fmt::Write;
use time::OffsetDateTime;

const REGION: &str = "us-east-1";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// Signs requests with one secret. The key of a day is derived once.
pub struct Signer {
    host: String,
    key_id: String,
    secret: String,
    day: String,
    key: hmac::Key,
}

impl Signer {
    pub fn new(options: &Options) -> Self {
        let day = day(OffsetDateTime::now_utc());
        let key = key_of(&options.secret, &day);
        Self { host: options.host.clone(), key_id: options.key_id.clone(), secret: options.secret.clone(), day, key }
    }

    /// The head of a request, to the empty line. `query` is sorted and encoded; `hash`: the body's, in hexadecimal.
    pub fn head(&mut self, method: &str, path: &str, query: &str, length: usize, hash: Option<&str>) -> String {
        let now = OffsetDateTime::now_utc();
        let today = day(now);
        if today != self.day {
            self.key = key_of(&self.secret, &today);
            self.day = today;
        }
        let Self { host, key_id, day, key, .. } = self;
        let date = format!("{day}T{:02}{:02}{:02}Z", now.hour(), now.minute(), now.second());
        let hash = hash.unwrap_or(UNSIGNED);
        let signed = "host;x-amz-content-sha256;x-amz-date";
        let canonical = format!(
            "{method}\n{path}\n{query}\nhost:{host}\nx-amz-content-sha256:{hash}\nx-amz-date:{date}\n\n{signed}\n{hash}"
        );
        let scope = format!("{day}/{REGION}/s3/aws4_request");
        let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", sha256(canonical.as_bytes()));
        let signature = hex(hmac::sign(key, to_sign.as_bytes()).as_ref());
        let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        format!(
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nx-amz-date: {date}\r\n\
             x-amz-content-sha256: {hash}\r\nAuthorization: AWS4-HMAC-SHA256 Credential={key_id}/{scope}, \
             SignedHeaders={signed}, Signature={signature}\r\n\r\n"
        )
    }
}

fn day(now: OffsetDateTime) -> String {
    format!("{:04}{:02}{:02}", now.year(), u8::from(now.month()), now.day())
}

fn key_of(secret: &str, day: &str) -> hmac::Key {
    let first = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{secret}").as_bytes());
    [day, REGION, "s3", "aws4_request"]
        .into_iter()
        .fold(first, |key, part| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref()))
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A value of a query, encoded.
pub fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => all.push(char::from(byte)),
            _ => drop(write!(all, "%{byte:02X}")),
        }
        all
    })
}
