//! Paths of a server on this machine: state directory, socket, logs.

use crate::cli::{Cli, address, line_with};
use crate::failure::Failure;
use hekate_proto::Error;
use hekate_server::Keys;
use hekate_server::state_directory::{coordinator_file, is_coordinator, is_member};
use hekate_tls::{Context, Credential};
use hekate_transport::Endpoint;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const STATE_DIRECTORY: &str = "/var/lib/hekate";
const RUN_DIRECTORY: &str = "/run/hekate";
const SOCKET_NAME: &str = "server.sock";
/// Modes of directories: for the owner alone, and for all users.
const PRIVATE: u32 = 0o700;
const FOR_ALL: u32 = 0o755;

/// The files of a server on this machine.
#[derive(Clone)]
pub struct Paths {
    pub state: PathBuf,
    pub socket: PathBuf,
    /// The credential that the user names.
    pub credential: Option<PathBuf>,
}

impl Paths {
    pub fn of(cli: &Cli) -> Result<Self, Failure> {
        Ok(Self { credential: cli.credential.clone(), ..Self::at(cli.state.as_deref())? })
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
            return Ok(Self { socket: state.join(SOCKET_NAME), state, credential: None });
        }
        if rustix::process::geteuid().is_root() {
            let (state, socket) = (STATE_DIRECTORY.into(), Path::new(RUN_DIRECTORY).join(SOCKET_NAME));
            return Ok(Self { state, socket, credential: None });
        }
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = variable("XDG_STATE_HOME").or(variable("HOME").map(|home| home.join(".local/state")));
        let state = state.ok_or_else(|| Failure::usage("neither HOME nor XDG_STATE_HOME is set; name --state DIR"))?;
        let state = state.join("hekate");
        let run = variable("XDG_RUNTIME_DIR").map_or(state.clone(), |run| run.join("hekate"));
        Ok(Self { socket: run.join(SOCKET_NAME), state, credential: None })
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

/// The endpoints of a server, or of several, which are tried in order: by their addresses, by the credential that the
/// user names, or of the server with these paths.
///
/// # Errors
///
/// An address is malformed, or there is no credential, which TCP needs.
pub fn endpoints_of(paths: &Paths, server: Option<&str>) -> Result<Vec<Endpoint>, Failure> {
    let Some(servers) = server else {
        let Some(file) = &paths.credential else { return Ok(vec![Endpoint::Unix(paths.socket.clone())]) };
        let credential = Credential::read(file)?;
        let servers = credential.servers.clone();
        if servers.is_empty() {
            return Err(Failure::usage(format!("{} names no server; name one with --server", file.display())));
        }
        let context = Arc::new(Context::of(credential)?);
        return Ok(servers.into_iter().map(|address| Endpoint::Tcp(address, context.clone())).collect());
    };
    let mut context = None;
    let mut endpoints = Vec::new();
    for server in servers.split(',') {
        let server = address::server(server.trim()).map_err(Failure::usage)?;
        if server.starts_with("tcp:") && context.is_none() {
            context = Some(context_for(paths, &server)?);
        }
        endpoints.push(Endpoint::parse(&server, context.as_ref())?);
    }
    Ok(endpoints)
}

/// The credential that the user names, or that of this machine's server.
fn context_for(paths: &Paths, server: &str) -> Result<Arc<Context>, Failure> {
    if let Some(file) = &paths.credential {
        return Ok(Arc::new(Context::of(Credential::read(file)?)?));
    }
    if !Keys::exist(&paths.state) {
        let fix = "name one with --credential FILE; `hekate client create` makes it, on a server";
        return Err(Failure::usage(format!("{server}: over TCP a command needs a credential: {fix}")));
    }
    Ok(Keys::read(&paths.state)?.context().clone())
}

/// For sessions at the socket of this machine's server: how they reach servers on other machines, by that server's
/// credential. `None` for a user who may not read it, and for other endpoints.
///
/// # Errors
///
/// The credential cannot be used.
pub fn elsewhere(paths: &Paths, server: Option<&str>) -> Result<Option<Arc<Context>>, Failure> {
    if server.is_some() || paths.credential.is_some() || !Keys::exist(&paths.state) {
        return Ok(None);
    }
    Ok(Some(Arc::new(Context::of(Keys::valid_credential(&Keys::credential_file(&paths.state))?)?)))
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
