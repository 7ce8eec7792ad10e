//! The door's certificate, read again when its files change.

use super::listener::ended;
use super::settings::TlsFiles;
use hekate_proto::{Error, Result};
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// How often the files' times are compared.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// A certificate with its key, as of the last time that both could be read and belonged together.
#[derive(Debug)]
pub(super) struct Certificate {
    files: TlsFiles,
    current: RwLock<Arc<CertifiedKey>>,
}

impl Certificate {
    /// # Errors
    /// `Io` if a file cannot be read, `Invalid` if it has no certificate or key, or if they do not belong together.
    pub(super) fn read(files: &TlsFiles) -> Result<Self> {
        Ok(Self { files: files.clone(), current: RwLock::new(Arc::new(read(files)?)) })
    }

    /// The settings of TLS with this certificate. Only HTTP/1.1 is offered, as Amazon does.
    ///
    /// # Errors
    /// `Bug` if rustls refuses its own defaults.
    pub(super) fn settings(self: &Arc<Self>) -> Result<ServerConfig> {
        let mut settings = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::Bug { what: format!("rustls refuses its own defaults: {e}") })?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        settings.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(settings)
    }

    fn times(&self) -> [Option<SystemTime>; 2] {
        let changed = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        [changed(&self.files.certificate), changed(&self.files.key)]
    }

    fn read_again(&self) {
        match read(&self.files) {
            Ok(key) => *self.current.write() = Arc::new(key),
            Err(e) => log::warn!("the S3 door keeps its certificate: {e}"),
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().clone())
    }
}

/// Reads the files again after each change, until the door stops.
pub(super) async fn reload(certificate: Arc<Certificate>, stopped: watch::Receiver<bool>) {
    let mut times = certificate.times();
    loop {
        tokio::select! {
            () = ended(stopped.clone()) => return,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        let now = certificate.times();
        if now != times {
            times = now;
            certificate.read_again();
        }
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn read(files: &TlsFiles) -> Result<CertifiedKey> {
    let wrong =
        |path: &Path, what: &dyn std::fmt::Display| Error::Invalid { what: format!("{}: {what}", path.display()) };
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(|certificates| certificates.collect::<std::result::Result<Vec<_>, _>>())
        .map_err(|e| wrong(&files.certificate, &e))?;
    if chain.is_empty() {
        return Err(wrong(&files.certificate, &"there is no certificate in PEM form"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| wrong(&files.key, &e))?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|e| wrong(&files.key, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(name: &str) -> TlsFiles {
        let directory = std::env::temp_dir().join(format!("hekate-s3-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        TlsFiles { certificate: directory.join("cert.pem"), key: directory.join("key.pem") }
    }

    fn write(files: &TlsFiles) -> Vec<u8> {
        // Far enough apart for the file system's clock.
        std::thread::sleep(Duration::from_millis(20));
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        std::fs::write(&files.certificate, made.cert.pem()).unwrap();
        std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        made.cert.der().to_vec()
    }

    fn current(certificate: &Certificate) -> Vec<u8> {
        certificate.current.read().cert[0].to_vec()
    }

    #[tokio::test(start_paused = true)]
    async fn changed_files_are_read_again_and_broken_ones_are_not_taken() {
        let files = files("reload");
        let first = write(&files);
        let certificate = Arc::new(Certificate::read(&files).unwrap());
        assert_eq!(current(&certificate), first);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(reload(certificate.clone(), stopped));
        tokio::time::sleep(LOOK_INTERVAL / 2).await;
        std::fs::write(&files.key, "no key").unwrap();
        tokio::time::sleep(LOOK_INTERVAL * 2).await;
        assert_eq!(current(&certificate), first);
        let second = write(&files);
        tokio::time::sleep(LOOK_INTERVAL * 2).await;
        assert_eq!(current(&certificate), second);
        stop.send_replace(true);
        task.await.unwrap();
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let (one, other) = (files("one"), files("other"));
        write(&one);
        write(&other);
        let mixed = TlsFiles { certificate: one.certificate, key: other.key };
        assert!(matches!(Certificate::read(&mixed), Err(Error::Invalid { .. })));
    }
}
