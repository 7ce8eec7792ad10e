//! The address of an S3 server, the credentials, and the trusted certificates.

use crate::error::{Error, Result};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// The access key and its secret.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub access_key: String,
    pub secret_key: String,
    /// Set for temporary keys.
    pub session_token: Option<String>,
}

/// Address and credentials.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// http://HOST:PORT or https://HOST:PORT, without a trailing slash.
    address: String,
    pub region: String,
    pub credentials: Credentials,
    /// None for http.
    pub trust: Option<Trust>,
}

/// Certificates that may have signed the server's.
#[derive(Debug, Clone)]
pub struct Trust {
    /// The file that they are from; None is the system's store.
    pub file: Option<PathBuf>,
    roots: RootCerts,
}

impl Endpoint {
    /// `ca_file` has certificates (PEM) to trust instead of the system's.
    ///
    /// # Errors
    ///
    /// The address is malformed, or the certificates cannot be read.
    pub fn new(address: &str, region: &str, credentials: Credentials, ca_file: Option<&Path>) -> Result<Self> {
        let address = address.trim_end_matches('/');
        let (scheme, host) = address.split_once("://").unwrap_or_default();
        let is_host =
            !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
        let trust = match (scheme, ca_file) {
            _ if !is_host => return Err(unusable(address)),
            ("http", None) => None,
            ("http", Some(_)) => {
                let text = format!("--ca-file is for https; --endpoint {address} has no certificate");
                return Err(Error::wrong_use(text));
            }
            ("https", None) => Some(Trust::of_system()?),
            ("https", Some(file)) => Some(Trust::of_file(file)?),
            _ => return Err(unusable(address)),
        };
        Ok(Self { address: address.into(), region: region.into(), credentials, trust })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// The value of the header `host`.
    pub fn host(&self) -> &str {
        self.address.split_once("://").map_or("", |(_, host)| host)
    }
}

fn unusable(address: &str) -> Error {
    Error::wrong_use(format!("--endpoint {address:?} is neither http://HOST:PORT nor https://HOST:PORT"))
}

impl Trust {
    /// The certificates of the distribution, or those in SSL_CERT_FILE and SSL_CERT_DIR.
    fn of_system() -> Result<Self> {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            let why = found.errors.first().map_or_else(|| "it is empty".into(), ToString::to_string);
            let text = format!(
                "no certificate of the system can be read: {why}; install them (Debian: apt-get install ca-certificates), or \
                 name your own with --ca-file"
            );
            return Err(Error::new(crate::error::Kind::Unavailable, text));
        }
        let certificates = found.certs.iter().map(|der| Certificate::from_der(der).to_owned());
        Ok(Self { file: None, roots: certificates.collect::<Vec<_>>().into() })
    }

    fn of_file(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| Error::file("open", path, error))?;
        let bad = |text: String| Error::bad_data(path.display(), text);
        let (mut certificates, mut known) = (Vec::new(), RootCertStore::empty());
        for item in parse_pem(&bytes) {
            let item = item.map_err(|error| bad(format!("it is not a PEM file: {error}")))?;
            let PemItem::Certificate(certificate) = item else { continue };
            let number = certificates.len() + 1;
            let added = known.add(CertificateDer::from(certificate.der()));
            added.map_err(|error| bad(format!("certificate {number} in it cannot be used: {error}")))?;
            certificates.push(certificate);
        }
        if certificates.is_empty() {
            let text = "it holds no certificate; name the CA's as PEM, which begins with -----BEGIN CERTIFICATE-----";
            return Err(bad(text.into()));
        }
        Ok(Self { file: Some(path.into()), roots: certificates.into() })
    }

    /// The configuration of a client. The provider is named, because ureq chooses none by itself.
    pub fn config(&self) -> TlsConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        TlsConfig::builder().unversioned_rustls_crypto_provider(provider).root_certs(self.roots.clone()).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(address: &str, ca_file: Option<&Path>) -> Result<Endpoint> {
        let credentials = Credentials { access_key: "a".into(), secret_key: "s".into(), session_token: None };
        Endpoint::new(address, "r", credentials, ca_file)
    }

    #[test]
    fn addresses_are_a_scheme_and_a_host() {
        for (address, host) in
            [("http://h:9000/", "h:9000"), ("http://[::1]:80", "[::1]:80"), ("https://s3.example", "s3.example")]
        {
            let made = endpoint(address, None);
            // A machine without certificates has no https without --ca-file.
            if let Ok(made) = made {
                assert_eq!((made.host(), made.trust.is_some()), (host, address.starts_with("https")));
            }
        }
        for address in ["", "h:9000", "ftp://h", "http://", "http://h/path", "https://a@h", "http://h h", "HTTPS"] {
            assert!(
                endpoint(address, None).is_err_and(|error| error.text.contains("neither") && error.exit() == 64),
                "{address}"
            );
        }
        assert!(endpoint("http://h", Some(Path::new("/x"))).unwrap_err().text.contains("for https"));
    }

    #[test]
    fn files_without_certificates_are_refused() {
        let path = std::env::temp_dir().join(format!("hekate-variation-pem-{}", std::process::id()));
        assert_eq!(endpoint("https://h", Some(&path)).unwrap_err().exit(), 66);
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (text, words) in
            [("", "no certificate"), ("hello", "no certificate"), (broken, "certificate 1 in it cannot be used")]
        {
            std::fs::write(&path, text).unwrap();
            let error = endpoint("https://h", Some(&path)).unwrap_err();
            assert!(error.text.contains(words) && error.exit() == 65, "{text}: {error}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
