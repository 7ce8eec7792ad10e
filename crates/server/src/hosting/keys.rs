//! The keys of a state directory: the credential that this process shows over TCP, and the key that seals the cluster's
//! secrets. `docs/format/credential.md` describes the files.

use hekate_proto::{Error, Result};
use hekate_threads::time_of_day;
use hekate_tls::{Context, Credential, SealKey};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CREDENTIAL: &str = "credential.toml";
/// The credential that the last renewal replaced.
const REPLACED: &str = "credential.replaced.toml";
const SEAL_KEY: &str = "seal.key";

/// The keys of a server, or of a coordinator that is a process of its own.
#[derive(Debug, Clone)]
pub struct Keys {
    state: PathBuf,
    context: Arc<Context>,
    seal: SealKey,
}

impl Keys {
    /// The credential's file in a state directory.
    pub fn credential_file(state: &Path) -> PathBuf {
        state.join(CREDENTIAL)
    }

    /// True if the state directory has keys.
    pub fn exist(state: &Path) -> bool {
        Self::credential_file(state).exists()
    }

    /// # Errors
    ///
    /// `Io`, `Invalid` or `Denied` if a file is missing or cannot be used.
    pub fn read(state: &Path) -> Result<Self> {
        let path = state.join(SEAL_KEY);
        let bytes = std::fs::read(&path).map_err(|e| Error::io(format!("read {}", path.display()), e))?;
        let seal = SealKey::from_bytes(&bytes)?;
        let context = Arc::new(Context::of(valid_credential(state)?)?);
        Ok(Self { state: state.into(), context, seal })
    }

    /// Writes the files of a new server or coordinator; they are on stable storage when this returns.
    ///
    /// # Errors
    ///
    /// `Io` if a file cannot be written.
    pub fn write(state: &Path, credential: &Credential, seal: &SealKey) -> Result<()> {
        write_private(&state.join(SEAL_KEY), seal.bytes())?;
        credential.write(&Self::credential_file(state))
    }

    /// Shows another credential from now on, and keeps it. The present one is kept as well, for
    /// [`Keys::show_valid`].
    ///
    /// # Errors
    ///
    /// `Io` if it cannot be written, `Invalid` if it cannot be used.
    pub fn renew(&self, credential: Credential) -> Result<()> {
        if let Some(replaced) = self.context.credential() {
            replaced.write(&self.state.join(REPLACED))?;
        }
        credential.write(&Self::credential_file(&self.state))?;
        self.context.replace(credential)
    }

    /// Shows the credential that the last renewal replaced if it is valid and the present one is not valid yet: that one
    /// was issued while a clock was ahead, and no other process accepts it until then. Returns true if so.
    ///
    /// # Errors
    ///
    /// `Io`, `Invalid` or `Denied` if a file cannot be used.
    pub fn show_valid(&self) -> Result<bool> {
        let Some(shown) = self.context.credential() else { return Ok(false) };
        if time_of_day() >= shown.info()?.not_before {
            return Ok(false);
        }
        let valid = valid_credential(&self.state)?;
        let is_other = valid != *shown;
        if is_other {
            self.context.replace(valid)?;
        }
        Ok(is_other)
    }

    /// How this process and the other end of a connection check each other.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn seal(&self) -> &SealKey {
        &self.seal
    }
}

/// The credential of a state directory or, if that is not valid yet, the one that it replaced, if that is valid.
fn valid_credential(state: &Path) -> Result<Credential> {
    let (present, now) = (Credential::read(&Keys::credential_file(state))?, time_of_day());
    let replaced = state.join(REPLACED);
    if now >= present.info()?.not_before || !replaced.exists() {
        return Ok(present);
    }
    let replaced = Credential::read(&replaced)?;
    Ok(if replaced.info()?.is_valid_at(now) { replaced } else { present })
}

/// Writes a file that only its owner can read; it replaces another one in one step.
///
/// # Errors
///
/// `Io` if it cannot be written.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = PathBuf::from(format!("{}.new", path.display()));
    let write = || {
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        // Made anew: an existing file may belong to another user or be open.
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::File::open(parent)?.sync_all()
    };
    write().map_err(|e| Error::io(format!("write {}", path.display()), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::ServerId;
    use hekate_tls::{Authority, Holder, Root};
    use std::time::{Duration, SystemTime};

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn issued(authority: &Authority, root: &Root, now: SystemTime) -> Credential {
        let (key, public) = Credential::make_key().unwrap();
        let (chain, _) = authority.issue(&Holder::Server(ServerId(1)), &public, 90 * DAY, now).unwrap();
        let (cluster, roots) = (authority.cluster().into(), root.certificate.clone());
        Credential { cluster, network: String::new(), servers: Vec::new(), roots, chain, key }
    }

    #[test]
    fn a_credential_of_a_clock_that_was_ahead_gives_way_to_the_one_that_it_replaced() {
        let state = std::env::temp_dir().join(format!("hekate-keys-{}", std::process::id()));
        std::fs::create_dir_all(&state).unwrap();
        let now = time_of_day();
        let root = Root::create("c", 3650 * DAY, now).unwrap();
        let authority = root.authorise("c", 1825 * DAY, now).unwrap();
        let first = issued(&authority, &root, now);
        Keys::write(&state, &first, &SealKey::create().unwrap()).unwrap();
        let keys = Keys::read(&state).unwrap();
        assert!(!keys.show_valid().unwrap());
        keys.renew(issued(&authority, &root, now + 700 * DAY)).unwrap();
        let ahead = keys.context().credential().unwrap();
        assert!(ahead.info().unwrap().is_due_at(now));
        // At once, and in the next process.
        assert!(keys.show_valid().unwrap() && !keys.show_valid().unwrap());
        for keys in [&keys, &Keys::read(&state).unwrap()] {
            assert_eq!(*keys.context().credential().unwrap(), first);
        }
        keys.renew(issued(&authority, &root, now)).unwrap();
        assert!(!keys.show_valid().unwrap());
        assert_ne!(*Keys::read(&state).unwrap().context().credential().unwrap(), first);
        std::fs::remove_dir_all(&state).unwrap();
    }
}
