//! Which bucket and key a request is for: in its path, or in the name of the host. Pure.

use super::decode;
use crate::refusal::Refusal;

/// The part of a request's URL behind the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// Path with the bucket first, encoded as it was sent.
    pub(crate) path: String,
    /// Query without the parameters of a signature. Empty: none.
    pub(crate) query: String,
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
        let items = query.split('&').filter(|item| {
            let name = item.split('=').next().unwrap_or("");
            !OF_SIGNATURES.contains(&name)
        });
        Ok(Self { path, query: items.collect::<Vec<_>>().join("&") })
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

    /// Names of the query's parameters as they were sent.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &str> {
        self.query.split('&').filter_map(|item| item.split('=').next()).filter(|name| !name.is_empty())
    }

    /// Path and query.
    pub(crate) fn target(&self) -> String {
        match self.query.is_empty() {
            true => self.path.clone(),
            false => format!("{}?{}", self.path, self.query),
        }
    }
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
        assert_eq!(address.parameters().collect::<Vec<_>>(), ["versionId", "acl"]);
        let address = Address::of("h", "/b/a%20/%C3%BC", "", None).unwrap();
        assert_eq!((address.key().as_str(), address.has_key()), ("a /ü", true));
        assert_eq!(Address::of("h", "/b", "X-Amz-Date=d", None).unwrap().target(), "/b");
    }

    #[test]
    fn what_is_no_path_is_refused() {
        assert_eq!(Address::of("h", "*", "", None).unwrap_err().code, "InvalidURI");
    }
}
