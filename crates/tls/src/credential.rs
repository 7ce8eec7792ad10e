//! The file with a certificate, its key, and what is needed to reach the cluster: TOML, readable by its owner only.

use crate::certificate::{BACKDATED, CertificateInfo, pems, private_key};
use crate::identity::Identity;
use hekate_proto::{Error, Result};
use rcgen::KeyPair;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A certificate with its key, the roots that its holder trusts, and where servers answer.
#[derive(Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Credential {
    /// The cluster's id.
    pub cluster: String,
    /// For a client: the network at which it reaches servers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// For a client: addresses of servers, `HOST:PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
    /// PEM: the roots of the cluster.
    pub roots: String,
    /// PEM: the certificate, and the issuing certificate that signed it.
    pub chain: String,
    /// PKCS #8 in PEM.
    pub key: String,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credential(cluster {})", self.cluster)
    }
}

/// A new key pair: PKCS #8 in PEM, and the public key as [`crate::Authority::issue`] takes it.
///
/// # Errors
/// `Bug` if no key can be made.
fn new_key() -> Result<(String, Vec<u8>)> {
    let pair = KeyPair::generate().map_err(|e| Error::bug(format!("no key can be made: {e}")))?;
    Ok((pair.serialize_pem(), pair.public_key_raw().to_vec()))
}

impl Credential {
    /// Makes a key. Returns it in PEM, and the public key for which an authority issues a certificate.
    ///
    /// # Errors
    /// `Bug` if no key can be made.
    pub fn make_key() -> Result<(String, Vec<u8>)> {
        new_key()
    }

    /// Reads a credential's file.
    ///
    /// # Errors
    /// `Io` if it cannot be read; `Denied` if users other than its owner can; `Invalid` if it is no credential.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("read the credential {}", path.display());
        let mode = std::fs::metadata(path).map_err(|e| Error::io(what(), e))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(Error::Denied {
                what: format!("other users can read the credential {}: chmod 600 {0}", path.display()),
            });
        }
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(what(), e))?;
        let credential: Self = toml::from_str(&text).map_err(|e| {
            let line = e.message().lines().next().unwrap_or_default().to_string();
            Error::invalid(format!("{} is no credential of a Hekate cluster: {line}", path.display()))
        })?;
        credential.info()?;
        Ok(credential)
    }

    /// Writes the file, with mode 0600; it is on stable storage when this returns. A file that is there is replaced in
    /// one step.
    ///
    /// # Errors
    /// `Io` if it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |e: std::io::Error| Error::io(format!("write the credential {}", path.display()), e);
        let text = toml::to_string(self).map_err(|e| Error::bug(e.to_string()))?;
        let new = PathBuf::from(format!("{}.new", path.display()));
        let _ = std::fs::remove_file(&new);
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        std::fs::rename(&new, path).map_err(failed)?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    /// What the certificate says.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read.
    pub fn info(&self) -> Result<CertificateInfo> {
        let chain = self.chain()?;
        let first = chain.first().ok_or_else(|| Error::invalid("a credential has no certificate"))?;
        CertificateInfo::of(first)
    }

    /// The lifetime with which the certificate was issued.
    ///
    /// # Errors
    /// `Invalid` if the certificate cannot be read.
    pub fn life(&self) -> Result<Duration> {
        let info = self.info()?;
        Ok(info.not_after.duration_since(info.not_before + BACKDATED).unwrap_or_default())
    }

    /// The holder that the certificate names.
    ///
    /// # Errors
    /// `Invalid` if it names none.
    pub fn identity(&self) -> Result<Identity> {
        self.info()?.identity.ok_or_else(|| Error::invalid("the certificate of a credential names no holder"))
    }

    pub(crate) fn chain(&self) -> Result<Vec<CertificateDer<'static>>> {
        pems(&self.chain)
    }

    pub(crate) fn roots(&self) -> Result<Vec<CertificateDer<'static>>> {
        pems(&self.roots)
    }

    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>> {
        private_key(&self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;
    use crate::{Context, Holder};
    use std::fs::Permissions;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn credential() -> Credential {
        TestCluster::create("c1").unwrap().credential(&Holder::client("web").unwrap()).unwrap()
    }

    #[test]
    fn a_file_is_its_owners_alone_and_is_replaced_whole() {
        let directory = std::env::temp_dir().join(format!("hekate-credential-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let (file, mode) = (directory.join("web.hekate"), |mode| Permissions::from_mode(mode));
        let (first, second) = (credential(), credential());
        first.write(&file).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Credential::read(&file).unwrap() == first);
        second.write(&file).unwrap();
        assert!(Credential::read(&file).unwrap() == second);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "files that are left");
        for refused in [0o640, 0o604, 0o610, 0o601] {
            std::fs::set_permissions(&file, mode(refused)).unwrap();
            let refused = Credential::read(&file).unwrap_err();
            assert!(matches!(&refused, Error::Denied { what } if what.contains("chmod 600")), "{refused}");
        }
        std::fs::set_permissions(&file, mode(0o400)).unwrap();
        assert!(Credential::read(&file).unwrap() == second);
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(Credential::read(&file), Err(Error::Io { .. })));
        for text in ["", "no credential", "cluster = \"c1\"\nroots = \"\"\nchain = \"\"\nkey = \"\"\n"] {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, mode(0o600)).unwrap();
            assert!(matches!(Credential::read(&file), Err(Error::Invalid { .. })), "{text}");
        }
        // A name without a directory is in the current one.
        std::env::set_current_dir(&directory).unwrap();
        first.write(Path::new("here.hekate")).unwrap();
        assert!(Credential::read(&directory.join("here.hekate")).unwrap() == first);
        std::env::set_current_dir("/").unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_key_is_not_shown_and_is_that_of_its_certificate() {
        let (one, other) = (credential(), credential());
        assert_eq!(format!("{one:?}"), "Credential(cluster c1)");
        let life = one.life().unwrap();
        assert!(life <= DAY && life + Duration::from_secs(2) > DAY, "{life:?}");
        assert_eq!(one.identity().unwrap().to_string(), "hekate://c1/client/web");
        let mixed = Context::of(Credential { key: other.key, ..one.clone() }).unwrap_err().to_string();
        assert!(mixed.contains("the key is not that of the certificate"), "{mixed}");
        let client = Context::of(one).unwrap();
        assert!(client.server_checked().unwrap_err().to_string().contains("no certificate"));
        let server = TestCluster::create("c1").unwrap().server(1).unwrap();
        server.server_checked().unwrap();
    }
}
