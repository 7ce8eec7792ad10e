//! Paths of a server on this machine: state directory, socket, logs.

use crate::cli::{Cli, address, line_with};
use crate::failure::Failure;
use hekate_proto::Error;
use hekate_server::state_directory::{coordinator_file, is_coordinator, is_member};
use hekate_transport::{Endpoint, Secret};
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

const STATE_DIRECTORY: &str = "/var/lib/hekate";
const RUN_DIRECTORY: &str = "/run/hekate";
const SOCKET_NAME: &str = "server.sock";
/// Modes of directories: for the owner alone, and for all users.
const PRIVATE: u32 = 0o700;
const FOR_ALL: u32 = 0o755;

/// The files of a server on this machine.
pub struct Paths {
    pub state: PathBuf,
    pub socket: PathBuf,
}

impl Paths {
    pub fn of(cli: &Cli) -> Result<Self, Failure> {
        Self::at(cli.state.as_deref())
    }

    /// The files for this state directory, or for the default one.
    ///
    /// # Errors
    ///
    /// The path cannot be made absolute, or there is no default.
    pub fn at(state: Option<&Path>) -> Result<Self, Failure> {
        if let Some(state) = state {
            let state = std::path::absolute(state)
                .map_err(|e| Failure::usage(format!("the state directory {}: {e}", state.display())))?;
            return Ok(Self { socket: state.join(SOCKET_NAME), state });
        }
        if rustix::process::geteuid().is_root() {
            return Ok(Self { state: STATE_DIRECTORY.into(), socket: Path::new(RUN_DIRECTORY).join(SOCKET_NAME) });
        }
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = variable("XDG_STATE_HOME").or(variable("HOME").map(|home| home.join(".local/state")));
        let state = state.ok_or_else(|| Failure::usage("neither HOME nor XDG_STATE_HOME is set; name --state DIR"))?;
        let state = state.join("hekate");
        let run = variable("XDG_RUNTIME_DIR").map_or(state.clone(), |run| run.join("hekate"));
        Ok(Self { socket: run.join(SOCKET_NAME), state })
    }

    /// Makes the state directory, for its owner alone. An existing one stays as it is.
    ///
    /// # Errors
    ///
    /// `Io` if it cannot be made.
    pub fn make_state_directory(&self) -> Result<(), Failure> {
        let state = &self.state;
        make_directory(state, PRIVATE)
            .map_err(|e| Error::io(format!("make the state directory {}", state.display()), e).into())
    }

    /// Makes the directory of the socket. The one under /run is open to all users: the server checks the credentials of
    /// the peer.
    ///
    /// # Errors
    ///
    /// `Io` if it cannot be made.
    pub fn make_socket_directory(&self) -> Result<(), Failure> {
        let Some(directory) = self.socket.parent() else { return Ok(()) };
        let mode = if directory == Path::new(RUN_DIRECTORY) { FOR_ALL } else { PRIVATE };
        let failed = |e: std::io::Error| {
            let hint = if directory == self.state { "" } else { " (name another place for it with --state DIR)" };
            Error::io(format!("make {} for the server's socket{hint}", directory.display()), e).into()
        };
        make_directory(directory, mode).map_err(failed)
    }

    pub fn coordinator(&self) -> PathBuf {
        coordinator_file(&self.state)
    }

    pub fn secret(&self) -> PathBuf {
        self.state.join("secret")
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.state.join(format!("{name}.log"))
    }
}

/// Makes a directory and its parents. An existing one stays as it is.
fn make_directory(path: &Path, mode: u32) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    // mkdir(2) applies the umask to the mode.
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// The path without links, dots and a trailing slash, as the kernel lists it. The part that does not exist yet stays as
/// written.
///
/// # Errors
///
/// A directory of the path cannot be read.
pub fn plain_path(path: &Path) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let existing = absolute.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    let missing = absolute.strip_prefix(existing).unwrap_or(Path::new(""));
    let found = std::fs::canonicalize(existing)?;
    Ok(if missing.as_os_str().is_empty() { found } else { found.join(missing) })
}

/// The endpoint of a server by its address, or of the server with these paths.
///
/// # Errors
///
/// The address is malformed, or the state directory lacks the secret that TCP needs.
pub fn endpoint_of(paths: &Paths, server: Option<&str>) -> Result<Endpoint, Failure> {
    let Some(server) = server else { return Ok(Endpoint::Unix(paths.socket.clone())) };
    let server = address::server(server).map_err(Failure::usage)?;
    let secret = if server.starts_with("tcp:") { Some(secret_for(paths, &server)?) } else { None };
    Ok(Endpoint::parse(&server, secret.as_ref())?)
}

/// The secret that TCP needs.
fn secret_for(paths: &Paths, server: &str) -> Result<Secret, Failure> {
    Secret::read(&paths.secret()).map_err(|error| {
        let failure = Failure::from(error);
        let fix = "over TCP a command needs the cluster's secret: name a state directory that has it with --state DIR (a copy of \
                   the file `secret` of a server is enough)";
        Failure { text: format!("{server}: {}; {fix}", failure.text), ..failure }
    })
}

/// The failure for a server that does not answer, with the fix. `state`, `server`: as the user gave them; `what`: the
/// address that was tried.
pub fn unreachable(paths: &Paths, state: Option<&Path>, server: Option<&str>, what: &str) -> Failure {
    if let (None, Some(_), Err(error)) = (server, state, std::fs::metadata(&paths.socket))
        && error.kind() == std::io::ErrorKind::PermissionDenied
    {
        let (uid, shown) = (rustix::process::geteuid().as_raw(), paths.state.display());
        let fix = "run it as the user of that server (sudo), or name another server with --server";
        return Failure::new(77, format!("{what}: user {uid} has no access to {shown}; {fix}"));
    }
    let fix = match server {
        Some(_) => "start it there, or name another one with --server".to_string(),
        None if is_member(&paths.state) => format!("`{}` starts it", line_with(state, "serve --detach")),
        None if is_coordinator(&paths.state) => format!("`{}` starts it", line_with(state, "coordinator --detach")),
        None => no_state(paths, state),
    };
    Failure::new(69, format!("{what}; is it running? {fix}"))
}

/// The fix if the state directory has no server's state, or cannot be read.
fn no_state(paths: &Paths, state: Option<&Path>) -> String {
    let root = Path::new(RUN_DIRECTORY).join(SOCKET_NAME);
    let shown = paths.state.display();
    if paths.socket != root && root.exists() {
        return format!(
            "{shown} has no server's state; the server of this machine is root's: --server unix:{}",
            root.display()
        );
    }
    let (make, serve) = (line_with(state, "init --brick DIR"), line_with(state, "serve --detach"));
    format!(
        "no server's state can be seen in {shown}; --state DIR or --server ADDRESS names another server, or `{make}` makes a new \
         cluster there and `{serve}` serves it"
    )
}
