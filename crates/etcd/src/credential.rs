//! What lets this process in at etcd, and by what it knows etcd's members.

use hekate_proto::{Error, Result};
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::sync::Arc;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// What lets this process in. PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credential {
    /// Certificates of the authority that has signed the certificates of etcd's members. Needed for https.
    pub ca: String,
    /// The certificate of this process, and its key; empty if etcd asks for none.
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential")
            .field("ca", &self.ca)
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl Credential {
    /// # Errors
    /// `Invalid` if a certificate or the key is malformed, or the key is not that of the certificate: `ureq` would panic
    /// with the first connection.
    pub(crate) fn tls(&self) -> Result<TlsConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = TlsConfig::builder().unversioned_rustls_crypto_provider(provider.clone());
        let builder = match self.ca.is_empty() {
            true => builder,
            false => builder.root_certs(RootCerts::Specific(Arc::new(self.roots()?))),
        };
        if self.certificate.is_empty() && self.key.is_empty() {
            return Ok(builder.build());
        }
        let chain = certificates("certificate", &self.certificate)?;
        self.check_key(&chain, &provider)?;
        let key = PrivateKey::from_pem(self.key.as_bytes()).map_err(|e| wrong("key", &e))?;
        let chain: Vec<_> = chain.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
        Ok(builder.client_cert(Some(ClientCert::new_with_certs(&chain, key))).build())
    }

    fn roots(&self) -> Result<Vec<Certificate<'static>>> {
        let what = "CA's certificate";
        let mut store = RootCertStore::empty();
        let of = |one: CertificateDer<'static>| {
            store.add(one.clone()).map_err(|e| wrong(what, &e))?;
            Ok(Certificate::from_der(&one).to_owned())
        };
        certificates(what, &self.ca)?.into_iter().map(of).collect()
    }

    fn check_key(&self, chain: &[CertificateDer<'static>], provider: &CryptoProvider) -> Result<()> {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|e| wrong("key", &e))?;
        CertifiedKey::from_der(chain.to_vec(), key, provider).map_err(|e| wrong("certificate with its key", &e))?;
        Ok(())
    }
}

fn wrong(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("the {what} for etcd: {error}"))
}

fn certificates(what: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let found = found.map_err(|e| wrong(what, &e))?;
    if found.is_empty() { Err(wrong(what, &"there is no certificate in it")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_that_cannot_be_used_says_what_is_wrong() {
        let says = |credential: Credential, expected: &str| {
            let error = credential.tls().err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let own = |name: &str| rcgen::generate_simple_self_signed([name.to_string()]).unwrap();
        let (one, other) = (own("a"), own("b"));
        let ca = one.cert.pem();
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        says(Credential { ca: "x".into(), ..Credential::default() }, "the CA's certificate for etcd: there is no");
        says(Credential { ca: damaged.into(), ..Credential::default() }, "the CA's certificate for etcd");
        let (certificate, key) = (one.cert.pem(), other.signing_key.serialize_pem());
        says(Credential { ca: ca.clone(), certificate: certificate.clone(), key }, "the certificate with its key");
        says(Credential { certificate: certificate.clone(), ..Credential::default() }, "the key for etcd");
        let key = one.signing_key.serialize_pem();
        says(Credential { key: key.clone(), ..Credential::default() }, "the certificate for etcd");
        let right = Credential { ca, certificate, key };
        right.tls().unwrap();
        assert!(!format!("{right:?}").contains("PRIVATE"));
        Credential::default().tls().unwrap();
    }
}
