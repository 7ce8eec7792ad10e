//! The keys of a state directory: the credential that this process shows over TCP, and the key that seals the cluster's
//! secrets. `docs/format/credential.md` describes the files.

use hekate_proto::{Error, Result};
use hekate_tls::{Context, Credential, SealKey};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CREDENTIAL: &str = "credential.toml";
const SEAL_KEY: &str = "seal.key";

/// The keys of a server, or of a coordinator that is a process of its own.
#[derive(Debug, Clone)]
pub struct Keys {
    state: PathBuf,
    context: Arc<Context>,
    seal: SealKey,
}

impl Keys {
    /// True if the state directory has keys.
    pub fn exist(state: &Path) -> bool {
        state.join(CREDENTIAL).exists()
    }

    /// # Errors
    ///
    /// `Io`, `Invalid` or `Denied` if a file is missing or cannot be used.
    pub fn read(state: &Path) -> Result<Self> {
        let path = state.join(SEAL_KEY);
        let bytes = std::fs::read(&path).map_err(|e| Error::io(format!("read {}", path.display()), e))?;
        let seal = SealKey::from_bytes(&bytes)?;
        let context = Arc::new(Context::of(Credential::read(&state.join(CREDENTIAL))?)?);
        Ok(Self { state: state.into(), context, seal })
    }

    /// Writes the files of a new server or coordinator; they are on stable storage when this returns.
    ///
    /// # Errors
    ///
    /// `Io` if a file cannot be written.
    pub fn write(state: &Path, credential: &Credential, seal: &SealKey) -> Result<()> {
        write_private(&state.join(SEAL_KEY), seal.bytes())?;
        credential.write(&state.join(CREDENTIAL))
    }

    /// Shows another credential from now on, and keeps it.
    ///
    /// # Errors
    ///
    /// `Io` if it cannot be written, `Invalid` if it cannot be used.
    pub fn renew(&self, credential: Credential) -> Result<()> {
        credential.write(&self.state.join(CREDENTIAL))?;
        self.context.replace(credential)
    }

    /// How this process and the other end of a connection check each other.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn seal(&self) -> &SealKey {
        &self.seal
    }
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
