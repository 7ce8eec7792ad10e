//! The door's certificate.

use hekate_proto::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those between it and its root.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients need a certificate of one of these authorities. `None`: any client may connect.
    pub client_authority: Option<PathBuf>,
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// `Invalid`, which names the file, if one cannot be read or does not fit.
    pub fn read(&self) -> Result<Arc<ServerConfig>> {
        let wrong = |path: &Path, why: &dyn std::fmt::Display| Error::invalid(format!("{}: {why}", path.display()));
        let read = |path: &Path| -> Result<Vec<CertificateDer<'static>>> {
            CertificateDer::pem_file_iter(path)
                .and_then(|all| all.collect::<std::result::Result<Vec<_>, _>>())
                .map_err(|e| wrong(path, &e))
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::bug(format!("rustls refuses its own defaults: {e}")))?;
        let builder = match &self.client_authority {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for root in read(path)? {
                    roots.add(root).map_err(|e| wrong(path, &e))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().map_err(|e| wrong(path, &e))?)
            }
        };
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| wrong(&self.key, &e))?;
        let settings = builder.with_single_cert(read(&self.certificate)?, key).map_err(|e| wrong(&self.key, &e))?;
        Ok(Arc::new(settings))
    }
}
