//! The keys of a state directory: the credential that this process shows over TCP, and the key that seals the cluster's
//! secrets. `docs/format/credential.md` describes the files.

use hekate_proto::{Error, Result};
use hekate_threads::time_of_day;
use hekate_tls::{Context, Credential, SealKey, pems};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

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
        let context = Arc::new(Context::of(Self::valid_credential(&Self::credential_file(state))?)?);
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

    /// The credential in a file or, if that is a server's and not valid yet, the one that it replaced, if that is valid.
    /// The roots are the present ones.
    ///
    /// # Errors
    ///
    /// `Io`, `Invalid` or `Denied` if the file cannot be used.
    pub fn valid_credential(file: &Path) -> Result<Credential> {
        let (present, now) = (Credential::read(file)?, time_of_day());
        if now >= present.info()?.not_before {
            return Ok(present);
        }
        Ok(match replaced_by(file) {
            Some(replaced) if replaced.info()?.is_valid_at(now) => Credential { roots: present.roots, ..replaced },
            _ => present,
        })
    }

    /// True if a new credential is needed: that which is shown is due, or that in the file is not valid yet.
    ///
    /// # Errors
    ///
    /// `Invalid` if the certificate that is shown cannot be read.
    pub fn is_due(&self) -> Result<bool> {
        let now = time_of_day();
        let Some(shown) = self.context.credential() else { return Ok(false) };
        let kept = Credential::read(&Self::credential_file(&self.state)).and_then(|kept| kept.info());
        Ok(shown.info()?.is_due_at(now) || kept.is_ok_and(|kept| now < kept.not_before))
    }

    /// Shows another credential from now on, and keeps it. The present one is kept as well, for
    /// [`Keys::show_valid`], unless the one that it replaced is the better one to keep.
    ///
    /// # Errors
    ///
    /// `Io` if it cannot be written, `Invalid` if it cannot be used.
    pub fn renew(&self, credential: Credential) -> Result<()> {
        if let Some(present) = self.context.credential() {
            let before = replaced_by(&Self::credential_file(&self.state));
            if !before.is_some_and(|before| is_kept(&before, &present, time_of_day()).unwrap_or(false)) {
                present.write(&self.state.join(REPLACED))?;
            }
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
        let valid = Self::valid_credential(&Self::credential_file(&self.state))?;
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

/// The credential that the one in a server's file replaced. One that cannot be read counts as none: the present one is
/// what a process needs.
fn replaced_by(file: &Path) -> Option<Credential> {
    let is_servers = file.file_name().is_some_and(|name| name == CREDENTIAL);
    let replaced = file.with_file_name(REPLACED);
    if !is_servers || !replaced.exists() {
        return None;
    }
    let read = Credential::read(&replaced);
    read.inspect_err(|error| log::warn!("the credential before this one is left out: {error}")).ok()
}

/// True if `before` stays the credential to go back to when `present` is replaced too: it is still valid, or `present`
/// began only after its end and is not replaced because of its age, which is what clocks that were ahead leave.
fn is_kept(before: &Credential, present: &Credential, now: SystemTime) -> Result<bool> {
    let (first, second) = (before.info()?, present.info()?);
    let is_same_issuer = pems(&before.chain)?.get(1) == pems(&present.chain)?.get(1);
    let is_ahead = second.not_before >= first.not_after && !(second.is_valid_at(now) && second.is_due_at(now));
    Ok(is_same_issuer && first.is_valid_at(now) || is_ahead)
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
    use std::time::Duration;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn issued(authority: &Authority, root: &Root, now: SystemTime) -> Credential {
        let (key, public) = Credential::make_key().unwrap();
        let (chain, _) = authority.issue(&Holder::Server(ServerId(1)), &public, 90 * DAY, now).unwrap();
        let (cluster, roots) = (authority.cluster().into(), root.certificate.clone());
        Credential { cluster, network: String::new(), servers: Vec::new(), roots, chain, key }
    }

    /// A root with its authority, and the keys of a state directory with a first credential.
    struct Bench {
        state: PathBuf,
        root: Root,
        authority: Authority,
        first: Credential,
        keys: Keys,
    }

    impl Bench {
        fn new(name: &str) -> Self {
            let state = std::env::temp_dir().join(format!("hekate-keys-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&state).unwrap();
            let now = time_of_day();
            let root = Root::create("c", 3650 * DAY, now).unwrap();
            let authority = root.authorise("c", 1825 * DAY, now).unwrap();
            let first = issued(&authority, &root, now);
            Keys::write(&state, &first, &SealKey::create().unwrap()).unwrap();
            let keys = Keys::read(&state).unwrap();
            Self { state, root, authority, first, keys }
        }

        /// Renews as a process does whose clock is ahead by so many days.
        fn renew_ahead(&self, days: u32) {
            self.keys.renew(issued(&self.authority, &self.root, time_of_day() + days * DAY)).unwrap();
        }

        /// The chain that this process shows, and that the next one would.
        fn chains(&self) -> [String; 2] {
            let shown = |keys: &Keys| keys.context().credential().unwrap().chain.clone();
            [shown(&self.keys), shown(&Keys::read(&self.state).unwrap())]
        }

        fn file(&self) -> PathBuf {
            Keys::credential_file(&self.state)
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.state);
        }
    }

    #[test]
    fn a_credential_of_a_clock_that_was_ahead_gives_way_to_the_one_that_it_replaced() {
        let bench = Bench::new("ahead");
        let keys = &bench.keys;
        assert!(!keys.show_valid().unwrap() && !keys.is_due().unwrap());
        bench.renew_ahead(700);
        let ahead = keys.context().credential().unwrap();
        assert!(ahead.info().unwrap().is_due_at(time_of_day()));
        // At once, and in the next process.
        assert!(keys.show_valid().unwrap() && !keys.show_valid().unwrap());
        assert_eq!(bench.chains(), [&*bench.first.chain; 2]);
        assert_eq!(Keys::valid_credential(&bench.file()).unwrap(), bench.first);
        // The file is to have a valid one again.
        assert!(keys.is_due().unwrap());
        bench.renew_ahead(0);
        assert!(!keys.show_valid().unwrap() && !keys.is_due().unwrap());
        assert!(bench.chains().iter().all(|chain| *chain != bench.first.chain));
    }

    #[test]
    fn a_second_renewal_of_a_clock_that_was_ahead_keeps_the_valid_credential() {
        for days in [[20, 40], [700, 700], [700, 1400]] {
            let bench = Bench::new("twice");
            days.into_iter().for_each(|days| bench.renew_ahead(days));
            assert!(bench.keys.show_valid().unwrap(), "{days:?}");
            assert_eq!(bench.chains(), [&*bench.first.chain; 2], "{days:?}");
        }
    }

    #[test]
    fn the_credential_to_go_back_to_is_the_last_one_that_was_replaced_for_its_age() {
        let bench = Bench::new("kept");
        let at = |days: u32| issued(&bench.authority, &bench.root, time_of_day() + days * DAY);
        let is_kept =
            |before, present, now: u32| is_kept(&at(before), &at(present), time_of_day() + now * DAY).unwrap();
        assert!(!is_kept(0, 60, 120), "renewed at two thirds of its life, as was the one before");
        assert!(is_kept(0, 60, 61), "both are valid");
        assert!(is_kept(0, 700, 701) && is_kept(0, 700, 1400), "of a clock that was ahead");
        assert!(!is_kept(0, 700, 765), "of a server that was off for long");
    }

    #[test]
    fn the_credential_that_is_shown_again_has_the_present_roots() {
        let bench = Bench::new("roots");
        let next = Root::create("c", 3650 * DAY, time_of_day()).unwrap();
        let ahead = issued(&bench.authority, &bench.root, time_of_day() + 700 * DAY);
        let roots = [&*bench.root.certificate, &*next.certificate].concat();
        bench.keys.renew(Credential { roots: roots.clone(), ..ahead }).unwrap();
        assert!(bench.keys.show_valid().unwrap());
        for keys in [&bench.keys, &Keys::read(&bench.state).unwrap()] {
            let shown = keys.context().credential().unwrap();
            assert_eq!((&shown.roots, &shown.chain), (&roots, &bench.first.chain));
        }
    }

    #[test]
    fn a_replaced_credential_that_cannot_be_read_keeps_no_process_from_starting() {
        let bench = Bench::new("unreadable");
        bench.renew_ahead(700);
        let ahead = bench.keys.context().credential().unwrap().chain.clone();
        write_private(&bench.state.join(REPLACED), b"rotten").unwrap();
        assert!(!bench.keys.show_valid().unwrap());
        assert_eq!(bench.chains(), [&*ahead; 2]);
        bench.renew_ahead(0);
        assert!(bench.chains().iter().all(|chain| *chain != ahead));
    }
}
