//! What `hekate doctor` checks of credentials: the file, the key, and the lifetime of the certificate.

use super::{Check, State, check};
use crate::cli::Cli;
use crate::commands::client::date;
use crate::paths::Paths;
use hekate_server::authority::seconds;
use hekate_server::state_directory::{coordinator_file, is_coordinator, is_member};
use hekate_server::{EXPIRES_SOON, Keys};
use hekate_tls::{CertificateInfo, Context, Credential, Holder};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Stands for the name of a client that is not known.
const UNKNOWN: &str = "NAME";

/// Whose credential is checked.
enum Subject<'a> {
    /// That of a client, in this file, which the user names.
    Client(&'a Path),
    /// That of the server or the coordinator of this state directory.
    Server(&'a Path),
}

/// Why a credential cannot be used, or not for long.
struct Fault {
    state: State,
    found: String,
    fix: String,
}

/// The credential that the user names, and that of the state directory.
pub fn credentials(cli: &Cli) -> Vec<Check> {
    let now = SystemTime::now();
    let named = cli.credential.iter().map(|file| Subject::Client(file).check(now));
    let own = Paths::of(cli).ok().and_then(|paths| of_state(&paths.state, now));
    named.chain(own).collect()
}

/// `None` if the directory is neither a server's nor a coordinator's.
fn of_state(state: &Path, now: SystemTime) -> Option<Check> {
    let read = Keys::credential_file(state).metadata();
    let is_missing = read.is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let is_used = !is_missing || is_member(state) || is_coordinator(state);
    is_used.then(|| Subject::Server(state).check(now))
}

impl Subject<'_> {
    fn check(&self, now: SystemTime) -> Check {
        let what = match self {
            Subject::Client(_) => "credential",
            Subject::Server(_) => "server's credential",
        };
        match self.examine(now) {
            Ok(found) => check(what, State::Good, found, ""),
            Err(fault) => check(what, fault.state, fault.found, fault.fix),
        }
    }

    fn file(&self) -> PathBuf {
        match self {
            Subject::Client(file) => file.into(),
            Subject::Server(state) => Keys::credential_file(state),
        }
    }

    /// Returns whose credential it is, and until when it is valid.
    fn examine(&self, now: SystemTime) -> Result<String, Fault> {
        let credential = self.read()?;
        let unusable = |error: hekate_proto::Error| Fault::bad(error.to_string(), self.replacement(UNKNOWN));
        let (holder, info) = (credential.identity().map_err(unusable)?.holder, credential.info().map_err(unusable)?);
        Context::of(credential).map_err(unusable)?;
        let name = match &holder {
            Holder::Client(name) => name,
            Holder::Server(_) => UNKNOWN,
        };
        let found = |text: String| format!("{holder}, {text}");
        match self.lifetime(&info, now, name) {
            Ok(text) => Ok(found(text)),
            Err(fault) => Err(Fault { found: found(fault.found), ..fault }),
        }
    }

    fn read(&self) -> Result<Credential, Fault> {
        let file = self.file();
        if let Err(error) = File::open(&file) {
            let found = format!("cannot be read: {error}");
            return Err(match error.kind() {
                ErrorKind::PermissionDenied => Fault::weak(found, "run this as the owner of the file (sudo)"),
                _ => Fault::bad(found, self.replacement(UNKNOWN)),
            });
        }
        Credential::read(&file).map_err(|error| match &error {
            hekate_proto::Error::Denied { .. } => {
                Fault::bad("other users can read it", format!("chmod 600 {}", file.display()))
            }
            error => Fault::bad(error.to_string(), self.replacement(UNKNOWN)),
        })
    }

    /// How to get another credential, for the client of this name or for the server.
    fn replacement(&self, name: &str) -> String {
        match self {
            Subject::Client(file) => format!("on a server: hekate client renew {name} -o {}", file.display()),
            Subject::Server(_) => format!(
                "put {} back from a backup, or make another server in place of this one (hekate join)",
                self.file().display()
            ),
        }
    }

    /// Returns until when the certificate is valid.
    fn lifetime(&self, info: &CertificateInfo, now: SystemTime, name: &str) -> Result<String, Fault> {
        if now < info.not_before {
            let found = format!("valid from {}: the clock of this machine is behind", date(seconds(info.not_before)));
            return Err(Fault::bad(found, "set the clock, and run NTP (chrony, systemd-timesyncd)"));
        }
        if info.not_after <= now {
            let when = humantime::format_rfc3339_seconds(info.not_after);
            return Err(Fault::bad(
                format!("expired {when}; or the clock of this machine is ahead"),
                self.after_expiry(name),
            ));
        }
        let found = format!("valid until {}", date(seconds(info.not_after)));
        // Most of a short lifetime is within this time of its end: renewal is not late before it is due.
        let is_soon = info.not_after <= now + Duration::from_secs(EXPIRES_SOON);
        if is_soon && info.renew_at() <= now {
            return Err(Fault::weak(found, self.before_expiry(name)));
        }
        Ok(found)
    }

    fn before_expiry(&self, name: &str) -> String {
        match self {
            Subject::Client(_) => self.replacement(name) + ", unless a mount that uses the file renews it",
            Subject::Server(_) => "its log says why it is not renewed; if it does not run, start it".into(),
        }
    }

    fn after_expiry(&self, name: &str) -> String {
        match self {
            // The holder of the coordinator renews its own certificate without a connection.
            Subject::Server(state) if coordinator_file(state).exists() => "start it: it renews its certificate".into(),
            _ => self.replacement(name),
        }
    }
}

impl Fault {
    fn bad(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { state: State::Bad, found: found.into(), fix: fix.into() }
    }

    fn weak(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { state: State::Weak, ..Self::bad(found, fix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::ServerId;
    use hekate_tls::testing::TestCluster;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A state directory with the credential of a server, which is valid for 24 h.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("hekate-doctor-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            let directory = Self(path);
            directory.write(&TestCluster::create("c1").unwrap().credential(&Holder::Server(ServerId(7))).unwrap());
            directory
        }

        fn file(&self) -> PathBuf {
            Keys::credential_file(&self.0)
        }

        fn write(&self, credential: &Credential) {
            credential.write(&self.file()).unwrap();
        }

        /// State, finding and fix after this time.
        fn after(&self, time: Duration) -> (&'static str, String, String) {
            told(&of_state(&self.0, SystemTime::now() + time).unwrap())
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn told(check: &Check) -> (&'static str, String, String) {
        (check.state.text(), check.found.clone(), check.fix.to_string())
    }

    #[track_caller]
    fn is((state, found, fix): (&str, String, String), wanted: &str, finding: &str, remedy: &str) {
        assert_eq!(state, wanted, "{found}; {fix}");
        assert!(found.contains(finding) && fix.contains(remedy), "{found}; {fix}");
    }

    #[test]
    fn a_certificate_is_checked_against_the_clock() {
        let directory = Directory::new("clock");
        is(directory.after(Duration::ZERO), "good", "server 7, valid until ", "");
        is(directory.after(15 * HOUR), "good", "valid until", "");
        is(directory.after(17 * HOUR), "weak", "valid until", "its log says why");
        is(directory.after(25 * HOUR), "bad", "server 7, expired ", "hekate join");
        std::fs::write(directory.0.join("coordinator.redb"), "").unwrap();
        is(directory.after(25 * HOUR), "bad", "expired", "start it");
        let early = of_state(&directory.0, SystemTime::now() - 2 * HOUR).unwrap();
        is(told(&early), "bad", "the clock of this machine is behind", "NTP");
        let of_client = |time| told(&Subject::Client(&directory.file()).check(SystemTime::now() + time));
        is(of_client(17 * HOUR), "weak", "valid until", "hekate client renew NAME");
        is(of_client(25 * HOUR), "bad", "expired", "hekate client renew NAME");
    }

    #[test]
    fn a_file_that_cannot_be_used_has_its_fix() {
        let directory = Directory::new("file");
        let (file, now) = (directory.file(), Duration::ZERO);
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        is(directory.after(now), "bad", "other users can read it", "chmod 600 ");
        let cluster = TestCluster::create("c1").unwrap();
        let [one, two] = [1, 2].map(|number| cluster.credential(&Holder::Server(ServerId(number))).unwrap());
        directory.write(&Credential { key: two.key, ..one.clone() });
        is(directory.after(now), "bad", "the key is not that of the certificate", "from a backup");
        directory.write(&Credential { chain: String::new(), ..one });
        is(directory.after(now), "bad", "has no certificate", "from a backup");
        std::fs::remove_file(&file).unwrap();
        assert!(of_state(&directory.0, SystemTime::now()).is_none(), "the directory is no server's");
        std::fs::write(directory.0.join("server.json"), "{}").unwrap();
        is(directory.after(now), "bad", "cannot be read", "from a backup");
    }
}
