//! Signatures of requests: Signature Version 4 in headers and in URLs. Pure.
//!
//! A request is read in three steps: [`Claim::of`] finds what it says about itself, [`Claim::check_time`] and
//! [`Claim::check_scope`] whether that is acceptable now and here, [`Claim::verify`] whether the secret's owner said
//! it.
//! Source: "Authenticating Requests (AWS Signature Version 4)" of the Amazon S3 API reference.

mod canonical;
mod parse;
#[cfg(test)]
pub(crate) mod tests;
mod times;

pub use canonical::Head;
pub(crate) use canonical::{decode, decode_parameter, encode};

use crate::refusal::Refusal;
use ring::hmac;

/// The algorithm that signatures name.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Longest difference between the clock of a client and this one, in seconds.
pub const SKEW_MAX: i64 = 15 * 60;
/// Longest life of a presigned URL, in seconds: seven days.
pub const EXPIRES_MAX: i64 = 7 * 24 * 3600;

/// What a signed request says about itself. Nothing of it is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub access_key: String,
    scope: Scope,
    /// Names in lower case, in the order in which they were signed.
    signed_headers: Vec<String>,
    signature: String,
    /// When it was signed, in the form of `X-Amz-Date`.
    date: String,
    /// The time of signing in seconds since 1970.
    time: i64,
    place: Place,
    /// The payload's hash as it was signed.
    payload: String,
}

/// The credential's scope.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scope {
    day: String,
    region: String,
    service: String,
}

/// Where a signature is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Header,
    /// A presigned URL that is good for so many seconds.
    Url {
        expires: i64,
    },
}

/// How a request's body is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// Only by TLS, if at all.
    Unsigned,
    /// By this SHA-256.
    Hash([u8; 32]),
    /// It is aws-chunked.
    Chunked { signed: bool, trailers: bool },
}

/// What signatures of chunks begin with: key, time, scope, and the signature before.
#[derive(Debug, Clone)]
pub struct ChunkSigner {
    key: hmac::Key,
    date: String,
    scope: String,
    previous: String,
}

impl Claim {
    /// What a request says about its signature. `None` if it has none.
    ///
    /// # Errors
    /// A refusal if the signature is of another version or not well formed.
    pub fn of(head: &Head<'_>) -> Result<Option<Self>, Refusal> {
        parse::claim(head)
    }

    /// # Errors
    /// `AuthorizationHeaderMalformed` or `AuthorizationQueryParametersError` if the scope is not that of S3 in `region`
    /// on the day of the signature.
    pub fn check_scope(&self, region: &str) -> Result<(), Refusal> {
        let Scope { day, region: signed, service } = &self.scope;
        if service != "s3" {
            return Err(self.malformed(format!("The service '{service}' is wrong; expecting 's3'")));
        }
        if signed != region {
            let message = format!("The region '{signed}' is wrong; expecting '{region}'");
            return Err(self.malformed(message).with("Region", region));
        }
        if !self.date.starts_with(day.as_str()) {
            return Err(self.malformed("The date of the credential is not that of X-Amz-Date".into()));
        }
        Ok(())
    }

    fn malformed(&self, message: String) -> Refusal {
        match self.place {
            Place::Header => Refusal::new("AuthorizationHeaderMalformed", message),
            Place::Url { .. } => Refusal::new("AuthorizationQueryParametersError", message),
        }
    }

    /// `now`: seconds since 1970.
    ///
    /// # Errors
    /// `RequestTimeTooSkewed` if a signed header is older or newer than [`SKEW_MAX`]; `AccessDenied` if a URL has
    /// expired or is of the future.
    pub fn check_time(&self, now: i64) -> Result<(), Refusal> {
        let age = now.saturating_sub(self.time);
        match self.place {
            Place::Header if age.saturating_abs() > SKEW_MAX => Err(Refusal::new(
                "RequestTimeTooSkewed",
                "The difference between the request time and the server's time is too large",
            )
            .with("MaxAllowedSkewMilliseconds", (SKEW_MAX * 1000).to_string())),
            Place::Url { .. } if age < -SKEW_MAX => Err(Refusal::new("AccessDenied", "Request is not valid yet")),
            Place::Url { expires } if age > expires || expires == 0 => {
                Err(Refusal::new("AccessDenied", "Request has expired"))
            }
            _ => Ok(()),
        }
    }

    /// # Errors
    /// `SignatureDoesNotMatch` if the request was not signed with `secret`; `AccessDenied` if it has headers that
    /// have to be signed and are not.
    pub fn verify(&self, head: &Head<'_>, secret: &str) -> Result<ChunkSigner, Refusal> {
        canonical::check_signed_headers(head, &self.signed_headers)?;
        let key = self.key(secret);
        let genuine = canonical::requests(head, &self.signed_headers, &self.payload).into_iter().any(|request| {
            let to_sign = format!("{ALGORITHM}\n{}\n{}\n{}", self.date, self.scope.text(), hex_sha256(&request));
            is_signature(&key, &to_sign, &self.signature)
        });
        if !genuine {
            return Err(no_match());
        }
        let (date, scope, previous) = (self.date.clone(), self.scope.text(), self.signature.clone());
        Ok(ChunkSigner { key, date, scope, previous })
    }

    fn key(&self, secret: &str) -> hmac::Key {
        let Scope { day, region, service } = &self.scope;
        let parts = [day, region, service, "aws4_request"];
        let first = format!("AWS4{secret}").into_bytes();
        let last = parts.into_iter().fold(first, |key, part| {
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec()
        });
        hmac::Key::new(hmac::HMAC_SHA256, &last)
    }

    /// How the body is protected.
    ///
    /// # Errors
    /// See [`Payload::parse`].
    pub fn payload(&self) -> Result<Payload, Refusal> {
        Payload::parse(&self.payload)
    }
}

impl Scope {
    fn text(&self) -> String {
        format!("{}/{}/{}/aws4_request", self.day, self.region, self.service)
    }
}

impl Payload {
    /// Reads a value of `x-amz-content-sha256`.
    ///
    /// # Errors
    /// `InvalidArgument` if it is none of those that S3 knows; `NotImplemented` for the asymmetric ones.
    pub fn parse(value: &str) -> Result<Self, Refusal> {
        match value {
            "UNSIGNED-PAYLOAD" => Ok(Payload::Unsigned),
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Ok(Payload::Chunked { signed: false, trailers: true }),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => Ok(Payload::Chunked { signed: true, trailers: false }),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => Ok(Payload::Chunked { signed: true, trailers: true }),
            "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD" | "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER" => {
                Err(Refusal::new("NotImplemented", "Asymmetric signatures are not supported; use AWS4-HMAC-SHA256"))
            }
            hash => unhex(hash).map(Payload::Hash).ok_or(Refusal::new(
                "InvalidArgument",
                "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, one of the STREAMING values, or a SHA-256 in hex",
            )),
        }
    }
}

impl ChunkSigner {
    /// Checks the signature of the next chunk, whose bytes have this SHA-256.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`.
    pub(crate) fn check_chunk(&mut self, sha256: &[u8], signature: &str) -> Result<(), Refusal> {
        let hashes = format!("{}\n{}", hex_sha256(b""), hex(sha256));
        self.check("AWS4-HMAC-SHA256-PAYLOAD", &hashes, signature)
    }

    /// Checks the signature of the trailers, in canonical form.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`.
    pub(crate) fn check_trailers(&mut self, canonical: &str, signature: &str) -> Result<(), Refusal> {
        self.check("AWS4-HMAC-SHA256-TRAILER", &hex_sha256(canonical.as_bytes()), signature)
    }

    fn check(&mut self, algorithm: &str, hashes: &str, signature: &str) -> Result<(), Refusal> {
        if !is_signature(&self.key, &self.to_sign(algorithm, hashes), signature) {
            return Err(no_match());
        }
        self.previous = signature.to_owned();
        Ok(())
    }

    fn to_sign(&self, algorithm: &str, hashes: &str) -> String {
        let Self { date, scope, previous, .. } = self;
        format!("{algorithm}\n{date}\n{scope}\n{previous}\n{hashes}")
    }
}

#[cfg(feature = "fuzzing")]
impl ChunkSigner {
    pub(crate) fn of_key(key: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        Self { key, date: "date".into(), scope: "scope".into(), previous: "seed".into() }
    }

    pub(crate) fn sign_chunk(&mut self, content: &[u8]) -> String {
        let hashes = format!("{}\n{}", hex_sha256(b""), hex_sha256(content));
        self.sign("AWS4-HMAC-SHA256-PAYLOAD", &hashes)
    }

    pub(crate) fn sign_trailers(&mut self, canonical: &str) -> String {
        self.sign("AWS4-HMAC-SHA256-TRAILER", &hex_sha256(canonical.as_bytes()))
    }

    fn sign(&mut self, algorithm: &str, hashes: &str) -> String {
        self.previous = hex(hmac::sign(&self.key, self.to_sign(algorithm, hashes).as_bytes()).as_ref());
        self.previous.clone()
    }
}

/// Compares in constant time.
fn is_signature(key: &hmac::Key, text: &str, signature: &str) -> bool {
    unhex(signature).is_some_and(|signature| hmac::verify(key, text.as_bytes(), &signature).is_ok())
}

fn no_match() -> Refusal {
    Refusal::new(
        "SignatureDoesNotMatch",
        "The signature of the request is not the one that this server calculated; check the secret key and the method \
         of signing",
    )
}

fn hex_sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 32 bytes in lower-case hexadecimal.
fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || text.bytes().any(|b| !matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}
