//! An S3 endpoint: an operation is a PUT or GET of a whole object. Requests are signed with AWS Signature Version 4
//! (AWS General Reference, Create a signed AWS API request); addresses are of the path style, over plain HTTP.

use super::target::{Block, Target, Worker};
use crate::error::{Error, Kind, Result};
use crate::random::Random;
use crate::series::record::{Access, Job};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// An object's answer is not read beyond its size and this.
const ANSWER_BYTES_MAX: u64 = 1 << 16;

/// Where, and who asks.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// http://HOST:PORT
    pub address: String,
    pub region: String,
    pub access_key: String,
    pub secret_key: String,
}

/// A bucket and what all names in it begin with.
pub struct S3Target {
    endpoint: Endpoint,
    bucket: String,
    prefix: String,
    access: Access,
    objects: u64,
}

impl Drop for S3Target {
    fn drop(&mut self) {
        let mut worker = self.s3_worker();
        // Objects that cannot be removed now are told of by nobody; the bucket's listing has them.
        (0..self.objects).for_each(|number| drop(worker.request("DELETE", number, &[])));
    }
}

impl S3Target {
    /// `s3://BUCKET/PREFIX`; puts the job's objects there, and removes them when it is dropped. None: it was stopped.
    pub fn new(
        target: &str,
        endpoint: &Endpoint,
        job: &Job,
        stop: &AtomicBool,
        told: &mut dyn FnMut(u64),
    ) -> Result<Option<Self>> {
        let rest = target.strip_prefix("s3://").unwrap_or(target);
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() || !bucket.bytes().chain(prefix.bytes()).all(is_plain) {
            let text = format!(
                "{target}: write s3://BUCKET/PREFIX with letters, digits, dots, dashes, underlines and slashes"
            );
            return Err(Error::wrong_use(text));
        }
        if endpoint.address.starts_with("https:") {
            let text = "https is not there yet; measure over http, for example beside the server, or through a local TLS proxy";
            return Err(Error::wrong_use(text));
        }
        if endpoint.host().is_empty() {
            return Err(Error::wrong_use(format!("--endpoint {} is not http://HOST:PORT", endpoint.address)));
        }
        let prefix = format!("{}hekate-variation-{}-", prefix, std::process::id());
        let objects = (job.size_bytes / job.block_bytes).max(1);
        let mut made =
            Self { endpoint: endpoint.clone(), bucket: bucket.into(), prefix, access: job.access, objects: 0 };
        let mut worker = made.s3_worker();
        let mut block = Block::random(job.block_bytes as usize, &mut Random::seeded(super::now_ms()));
        for number in 0..objects {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            block.stamp(u64::MAX, number);
            let put = worker.request("PUT", number, block.bytes());
            put.map_err(|error| Error::new(Kind::Unavailable, format!("{target} at {}: {error}", endpoint.address)))?;
            made.objects = number + 1;
            told((number + 1) * job.block_bytes);
        }
        Ok(Some(made))
    }

    fn s3_worker(&self) -> S3Worker {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build();
        let start = format!("/{}/{}", self.bucket, self.prefix);
        S3Worker { agent: config.into(), endpoint: self.endpoint.clone(), start, access: self.access }
    }
}

impl Target for S3Target {
    fn worker(&self, _: u32) -> Result<Box<dyn Worker>> {
        Ok(Box::new(self.s3_worker()))
    }
}

struct S3Worker {
    agent: ureq::Agent,
    endpoint: Endpoint,
    /// The path of each object up to its number.
    start: String,
    access: Access,
}

impl Worker for S3Worker {
    fn operate(&mut self, number: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        match self.access {
            Access::Write => self.request("PUT", number, bytes).map(drop),
            Access::Read => {
                let found = self.request("GET", number, &[])?;
                match found.len() == bytes.len() {
                    true => Ok(()),
                    false => {
                        Err(std::io::Error::other(format!("an object has {} bytes, not {}", found.len(), bytes.len())))
                    }
                }
            }
        }
    }
}

impl S3Worker {
    fn request(&mut self, method: &str, number: u64, body: &[u8]) -> std::io::Result<Vec<u8>> {
        let path = format!("{}{number}", self.start);
        let date = date(SystemTime::now());
        let hash = hex(&Sha256::digest(body));
        let headers =
            [("host", self.endpoint.host()), ("x-amz-content-sha256", hash.as_str()), ("x-amz-date", date.as_str())];
        let signed = authorization(&self.endpoint, method, &path, &headers, &hash, &date);
        let address = format!("{}{path}", self.endpoint.address.trim_end_matches('/'));
        let headers = [
            ("x-amz-content-sha256", hash.as_str()),
            ("x-amz-date", date.as_str()),
            ("authorization", signed.as_str()),
        ];
        let answer = match method {
            "PUT" => headers
                .iter()
                .fold(self.agent.put(address), |request, (name, value)| request.header(*name, *value))
                .send(body),
            "GET" => headers
                .iter()
                .fold(self.agent.get(address), |request, (name, value)| request.header(*name, *value))
                .call(),
            _ => headers
                .iter()
                .fold(self.agent.delete(address), |request, (name, value)| request.header(*name, *value))
                .call(),
        };
        let mut answer = answer.map_err(std::io::Error::other)?;
        let status = answer.status();
        let limit = ANSWER_BYTES_MAX + if method == "GET" { 1 << 30 } else { 0 };
        // Read to its end, so that the connection serves the next request.
        let found = answer.body_mut().with_config().limit(limit).read_to_vec().map_err(std::io::Error::other)?;
        if !status.is_success() {
            let said = String::from_utf8_lossy(&found);
            let code =
                said.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map_or("", |(code, _)| code);
            return Err(std::io::Error::other(format!("{method} {path}: {status} {code}")));
        }
        Ok(found)
    }
}

impl Endpoint {
    fn host(&self) -> &str {
        let rest = self.address.strip_prefix("http://").unwrap_or_default();
        rest.trim_end_matches('/')
    }
}

/// What needs no escape in a path that is signed.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_./".contains(&byte)
}

/// 20130524T000000Z
fn date(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string().replace(['-', ':'], "")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(key) else { unreachable!("HMAC takes keys of any length") };
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

/// The header `authorization`; `headers` are in the order of their names, which are in lower case.
fn authorization(
    endpoint: &Endpoint,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    hash: &str,
    date: &str,
) -> String {
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let canonical = format!("{method}\n{path}\n\n{lines}\n{names}\n{hash}");
    let day = &date[..8];
    let scope = format!("{day}/{}/s3/aws4_request", endpoint.region);
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
    let secret = format!("AWS4{}", endpoint.secret_key);
    let parts = [day, endpoint.region.as_str(), "s3", "aws4_request", to_sign.as_str()];
    let signature = parts.iter().fold(secret.into_bytes(), |key, part| keyed(&key, part));
    let (key, signature) = (&endpoint.access_key, hex(&signature));
    format!("AWS4-HMAC-SHA256 Credential={key}/{scope},SignedHeaders={names},Signature={signature}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example "GET Object" of the Amazon S3 API Reference, Signature Calculations for the Authorization Header.
    #[test]
    fn requests_are_signed_as_amazon_says() {
        let endpoint = Endpoint {
            address: "http://examplebucket.s3.amazonaws.com".into(),
            region: "us-east-1".into(),
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
        };
        let (hash, date) = (hex(&Sha256::digest(b"")), "20130524T000000Z");
        let headers = [
            ("host", endpoint.host()),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", hash.as_str()),
            ("x-amz-date", date),
        ];
        let found = authorization(&endpoint, "GET", "/test.txt", &headers, &hash, date);
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
