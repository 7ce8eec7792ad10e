//! An S3 endpoint: an operation is a PUT or GET of a whole object. Addresses are of the path style, over HTTP or HTTPS.

mod endpoint;
mod signature;
mod trouble;

pub use endpoint::{Credentials, Endpoint};

use super::target::{Block, Target, Worker};
use crate::error::{Error, Kind, Result};
use crate::random::Random;
use crate::series::record::{Access, Job};
use signature::Signed;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Time after which a request has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which a connection attempt has failed; a running server accepts sooner.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read beyond the object's size.
const ANSWER_BYTES_MAX: u64 = 1 << 16;

/// A bucket and the common prefix of all names in it.
pub struct S3Target {
    endpoint: Endpoint,
    bucket: String,
    prefix: String,
    access: Access,
    objects: u64,
}

impl Drop for S3Target {
    fn drop(&mut self) {
        // A caller that wants the error has called `clean` before.
        let _ = self.clean();
    }
}

impl S3Target {
    /// `s3://BUCKET/PREFIX`; puts the job's objects there, and removes them when it is dropped. None: it was stopped.
    ///
    /// # Errors
    ///
    /// The address is malformed, or an object cannot be put.
    pub fn new(
        target: &str,
        endpoint: &Endpoint,
        job: &Job,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<Self>> {
        let rest = target.strip_prefix("s3://").unwrap_or(target);
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() || !bucket.bytes().chain(prefix.bytes()).all(is_plain) {
            let text = format!(
                "{target}: write s3://BUCKET/PREFIX with letters, digits, dots, dashes, underlines and slashes"
            );
            return Err(Error::wrong_use(text));
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
            put.map_err(|error| Error::new(Kind::Unavailable, format!("{target} at {}: {error}", endpoint.address())))?;
            made.objects = number + 1;
            progress((number + 1) * job.block_bytes);
        }
        Ok(Some(made))
    }

    fn s3_worker(&self) -> S3Worker {
        // A redirected request would need another signature, and measure another server.
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_PATIENCE))
            .timeout_global(Some(PATIENCE));
        let config = match &self.endpoint.trust {
            Some(trust) => config.tls_config(trust.config()).build(),
            None => config.build(),
        };
        let start = format!("/{}/{}", self.bucket, self.prefix);
        S3Worker { agent: config.into(), endpoint: self.endpoint.clone(), start, access: self.access }
    }
}

impl Target for S3Target {
    fn worker(&self, _: u32) -> Result<Box<dyn Worker>> {
        Ok(Box::new(self.s3_worker()))
    }

    fn clean(&mut self) -> Result<()> {
        let mut worker = self.s3_worker();
        while let Some(number) = self.objects.checked_sub(1) {
            worker.request("DELETE", number, &[]).map_err(|error| {
                let (bucket, prefix) = (&self.bucket, &self.prefix);
                let text = format!("{} objects s3://{bucket}/{prefix}… are left; remove them: {error}", self.objects);
                self.objects = 0;
                Error::new(Kind::InputOutput, text)
            })?;
            self.objects = number;
        }
        Ok(())
    }
}

struct S3Worker {
    /// One for each worker, and so a connection for each.
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
        let failed = |why: String| std::io::Error::other(format!("{method} {}{number}: {why}", self.start));
        let trouble = |error| failed(trouble::of_client(error, &self.endpoint));
        let mut answer = self.send(method, number, body).map_err(trouble)?;
        let status = answer.status();
        let limit = ANSWER_BYTES_MAX + if method == "GET" { 1 << 30 } else { 0 };
        // Read to its end, so that the connection serves the next request.
        let found = answer.body_mut().with_config().limit(limit).read_to_vec().map_err(trouble)?;
        if status.is_success() { Ok(found) } else { Err(failed(trouble::of_answer(status, &found))) }
    }

    fn send(
        &self,
        method: &str,
        number: u64,
        body: &[u8],
    ) -> std::result::Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let path = format!("{}{number}", self.start);
        let credentials = &self.endpoint.credentials;
        let (date, hash) = (signature::date(SystemTime::now()), signature::hash_of(body));
        let mut headers = vec![
            ("host", self.endpoint.host()),
            ("x-amz-content-sha256", hash.as_str()),
            ("x-amz-date", date.as_str()),
        ];
        headers.extend(credentials.session_token.as_deref().map(|token| ("x-amz-security-token", token)));
        let signed = Signed { method, path: &path, headers: &headers, hash: &hash, date: &date };
        let authorization = signed.authorization(&self.endpoint.region, credentials);
        headers.push(("authorization", &authorization));
        let request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.endpoint.address()));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        match method {
            "PUT" => self.agent.run(request.body(body)?),
            _ => self.agent.run(request.body(())?),
        }
    }
}

/// True if a byte needs no escape in a signed path.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_./".contains(&byte)
}

#[cfg(test)]
mod tests;
