//! Which bucket and key a request is for, in its path or in the name of the host, and with which parameters. Pure.

use super::{decode, decode_parameter};
use crate::refusal::Refusal;

/// The part of a request's URL behind the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// Path with the bucket first, encoded as it was sent.
    pub(crate) path: String,
    /// Query as it was sent, without the parameters of a signature. Empty: none.
    query: String,
    /// Names and values of the query, decoded, in the order in which they were sent.
    parameters: Vec<(String, String)>,
}

/// The parameters of a presigned URL, which are no operation's.
const OF_SIGNATURES: [&str; 8] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
    "X-Amz-Security-Token",
    "X-Amz-Content-Sha256",
];

impl Address {
    /// `host`: the header. `domain`: the one whose subdomains are buckets.
    ///
    /// # Errors
    /// `InvalidURI` if the path is not one.
    pub(crate) fn of(host: &str, path: &str, query: &str, domain: Option<&str>) -> Result<Self, Refusal> {
        if !path.starts_with('/') {
            return Err(Refusal::new("InvalidURI", "The path does not begin with a slash"));
        }
        let path = match domain.and_then(|domain| bucket_in_host(host, domain)) {
            Some(bucket) => format!("/{bucket}{path}"),
            None => path.to_owned(),
        };
        let (mut items, mut parameters) = (Vec::new(), Vec::new());
        for item in query.split('&').filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').unwrap_or((item, ""));
            let (name, value) = (text_of(name), text_of(value));
            if !OF_SIGNATURES.contains(&name.as_str()) {
                items.push(item);
                parameters.push((name, value));
            }
        }
        Ok(Self { path, query: items.join("&"), parameters })
    }

    /// The name of the bucket as it was sent. Empty: none.
    pub(crate) fn bucket(&self) -> &str {
        self.path.split('/').nth(1).unwrap_or("")
    }

    /// The key, decoded. Empty: none.
    pub(crate) fn key(&self) -> String {
        let key = self.path.splitn(3, '/').nth(2).unwrap_or("");
        String::from_utf8_lossy(&decode(key.as_bytes())).into_owned()
    }

    pub(crate) fn has_key(&self) -> bool {
        self.path.splitn(3, '/').nth(2).is_some_and(|key| !key.is_empty())
    }

    /// Names of the query's parameters, decoded.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.parameters.iter().map(|(name, _)| name.as_str())
    }

    /// True if the query has a parameter of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names().any(|found| found == name)
    }

    /// The decoded values of all parameters of this name.
    pub(crate) fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.parameters.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Path and query.
    pub(crate) fn target(&self) -> String {
        match self.query.is_empty() {
            true => self.path.clone(),
            false => format!("{}?{}", self.path, self.query),
        }
    }
}

/// A name or a value of a query, decoded as s3s decodes it.
fn text_of(parameter: &str) -> String {
    String::from_utf8_lossy(&decode_parameter(parameter)).into_owned()
}

/// The bucket of `bucket.domain`, with a port or without.
fn bucket_in_host(host: &str, domain: &str) -> Option<String> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.to_ascii_lowercase();
    let bucket = name.strip_suffix(domain)?.strip_suffix('.')?;
    (!bucket.is_empty()).then(|| bucket.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(host: &str, path: &str) -> String {
        Address::of(host, path, "", Some("s3.example.com")).unwrap().path
    }

    #[test]
    fn the_bucket_is_in_the_host_or_in_the_path() {
        assert_eq!(path("s3.example.com", "/b/k"), "/b/k");
        assert_eq!(path("s3.example.com:9000", "/b/k"), "/b/k");
        assert_eq!(path("b.s3.example.com", "/k"), "/b/k");
        assert_eq!(path("b.c.s3.example.com:9000", "/k%2F/"), "/b.c/k%2F/");
        assert_eq!(path("B.S3.example.com", "/"), "/b/");
        assert_eq!(path("bs3.example.com", "/b/k"), "/b/k");
        assert_eq!(path("127.0.0.1:9000", "/b/k"), "/b/k");
        assert_eq!(path("[::1]:9000", "/b/k"), "/b/k");
        assert_eq!(Address::of("b.s3.example.com", "/b/k", "", None).unwrap().path, "/b/k");
    }

    #[test]
    fn parameters_of_signatures_are_left_out() {
        let query = "X-Amz-Algorithm=A&versionId=1&X-Amz-Signature=s&acl";
        let address = Address::of("h", "/b/k", query, None).unwrap();
        assert_eq!((address.bucket(), address.target().as_str()), ("b", "/b/k?versionId=1&acl"));
        assert_eq!(address.names().collect::<Vec<_>>(), ["versionId", "acl"]);
        let address = Address::of("h", "/b/a%20/%C3%BC", "", None).unwrap();
        assert_eq!((address.key().as_str(), address.has_key()), ("a /ü", true));
        assert_eq!(Address::of("h", "/b", "X-Amz-Date=d", None).unwrap().target(), "/b");
    }

    #[test]
    fn parameters_are_compared_decoded_and_passed_on_as_sent() {
        let query = "%58-Amz-Signature=s&%76ersionId=%6eull&&%61cl&a+b=c+d";
        let address = Address::of("h", "/b/k", query, None).unwrap();
        assert_eq!(address.names().collect::<Vec<_>>(), ["versionId", "acl", "a b"]);
        assert!(address.has("acl") && !address.has("%61cl") && !address.has("X-Amz-Signature"));
        assert_eq!(address.values("versionId").collect::<Vec<_>>(), ["null"]);
        assert_eq!(address.values("a b").collect::<Vec<_>>(), ["c d"]);
        assert_eq!(address.target(), "/b/k?%76ersionId=%6eull&%61cl&a+b=c+d");
    }

    #[test]
    fn what_is_no_path_is_refused() {
        assert_eq!(Address::of("h", "*", "", None).unwrap_err().code, "InvalidURI");
    }
}
