//! The door's certificate, read again when its files change.

use hekate_proto::{Error, Result};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those between it and its root.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients need a certificate of one of these authorities. `None`: any client may connect.
    pub client_authority: Option<PathBuf>,
}

/// The certificate as of the last time that its files could be read and belonged together.
pub struct Certificate {
    files: TlsFiles,
    current: Mutex<Arc<ServerConfig>>,
    times: Mutex<Vec<Option<SystemTime>>>,
}

impl Certificate {
    /// # Errors
    /// `Invalid`, which names the file, if one cannot be read or does not fit.
    pub fn read(files: TlsFiles) -> Result<Self> {
        let times = files.times();
        let current = files.settings()?;
        Ok(Self { files, current: Mutex::new(current), times: Mutex::new(times) })
    }

    /// For a handshake.
    pub fn settings(&self) -> Arc<ServerConfig> {
        self.current.lock().clone()
    }

    /// Reads the files again if they have changed. Connections that are open stay as they are.
    pub fn read_changed(&self) {
        let now = self.files.times();
        if std::mem::replace(&mut *self.times.lock(), now.clone()) == now {
            return;
        }
        match self.files.settings() {
            Ok(settings) => *self.current.lock() = settings,
            Err(error) => log::warn!("the block door keeps its certificate: {error}"),
        }
    }
}

impl TlsFiles {
    fn times(&self) -> Vec<Option<SystemTime>> {
        let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|found| found.modified()).ok();
        [Some(&self.certificate), Some(&self.key), self.client_authority.as_ref()]
            .into_iter()
            .flatten()
            .map(changed)
            .collect()
    }

    fn settings(&self) -> Result<Arc<ServerConfig>> {
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
