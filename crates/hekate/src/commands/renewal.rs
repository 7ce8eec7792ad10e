//! Renews the credential of a mount or a door while it is in use, and takes one that the operator has put in its place.

use crate::commands::control::ask_at;
use crate::paths::Paths;
use hekate_client::Endpoint;
use hekate_control::ClientRenew;
use hekate_proto::{Error, Result};
use hekate_server::Keys;
use hekate_server::authority::hex;
use hekate_tls::{Context, Credential, Holder};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Longest time between two looks at the certificate, and between two attempts to renew it.
const LOOK_PAUSE: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// Renews the credential in this file when two thirds of its certificate's life are over, for as long as the process
/// lives. Connections that are open stay; the next ones show the new certificate. A server renews its own credential:
/// that is read again, no more. `elsewhere`: the credential of the server at a unix socket.
pub fn start(paths: &Paths, endpoints: Vec<Endpoint>, elsewhere: Option<Arc<Context>>) {
    let found = endpoints.iter().find_map(|endpoint| match endpoint {
        Endpoint::Tcp(_, context) => Some(context.clone()),
        Endpoint::Unix(_) => None,
    });
    let Some(context) = found.or(elsewhere) else { return };
    let file = paths.credential.clone().unwrap_or_else(|| Keys::credential_file(&paths.state));
    let run = move || loop {
        std::thread::sleep(pause(&context));
        take_newer(&file, &context);
        if !is_due(&context) || is_of_server(&context) {
            continue;
        }
        match renew(&file, &context, &endpoints) {
            Ok(()) => log::info!("the credential {} was renewed", file.display()),
            Err(error) => log::warn!("the credential {} cannot be renewed: {error}", file.display()),
        }
    };
    if std::thread::Builder::new().name("hekate-renew".into()).spawn(run).is_err() {
        log::warn!("there is no thread that renews the credential; start again before it expires");
    }
}

/// Shows the credential in the file from now on, if it is another one of this client: the operator has renewed it. One
/// that is not valid yet, since a clock was ahead, does not take the place of a valid one.
fn take_newer(file: &Path, context: &Context) {
    let Some(current) = context.credential() else { return };
    let found = Keys::valid_credential(file).ok().filter(|found| *found != *current);
    let is_valid = |one: &Credential| one.info().is_ok_and(|info| info.is_valid_at(SystemTime::now()));
    let found = found.filter(|found| is_valid(found) || !is_valid(&current));
    let is_ours = |found: &Credential| found.identity().ok() == current.identity().ok();
    if let Some(found) = found.filter(is_ours) {
        match context.replace(found) {
            Ok(()) => log::info!("the credential {} was replaced", file.display()),
            Err(error) => log::warn!("the credential {} cannot be used: {error}", file.display()),
        }
    }
}

fn renew_at(context: &Context) -> Option<SystemTime> {
    Some(context.credential()?.info().ok()?.renew_at())
}

fn is_of_server(context: &Context) -> bool {
    let identity = context.credential().and_then(|credential| credential.identity().ok());
    identity.is_some_and(|identity| matches!(identity.holder, Holder::Server(_)))
}

fn is_due(context: &Context) -> bool {
    renew_at(context).is_some_and(|at| at <= SystemTime::now())
}

/// A tenth of the time that is left, within limits: certificates of tests live for seconds.
fn pause(context: &Context) -> Duration {
    let expires = context.credential().and_then(|credential| credential.info().ok()).map(|info| info.not_after);
    let left = expires.and_then(|at| at.duration_since(SystemTime::now()).ok()).unwrap_or_default();
    (left / 10).clamp(Duration::from_secs(1), LOOK_PAUSE)
}

fn renew(file: &Path, context: &Arc<Context>, endpoints: &[Endpoint]) -> Result<()> {
    let before = context.credential().ok_or_else(|| Error::bug("a mount over TCP has a credential"))?;
    let (name, life) = match (before.identity()?.holder, before.life()?) {
        (Holder::Client(name), life) => (name, life),
        (Holder::Server(_), _) => return Ok(()),
    };
    let (key, public) = Credential::make_key()?;
    let call = ClientRenew { name, life_s: Some(life.as_secs().max(1)), public_key: hex(&public) };
    let mut away = Error::Unavailable { what: "no server has an address".into() };
    for endpoint in endpoints {
        match ask_at(endpoint, call.clone(), Some(ANSWER_LIMIT)) {
            Err(error) => away = error,
            Ok(Err(failure)) => return Err(Error::Denied { what: failure.text }),
            Ok(Ok(issued)) => {
                let (cluster, network, servers) = (issued.cluster, issued.network, issued.servers);
                let (roots, chain) = (issued.roots, issued.chain);
                let credential = Credential { cluster, network, servers, roots, chain, key };
                // The mount goes on with it also if the file cannot be written.
                let kept = credential.write(file);
                return context.replace(credential).and(kept);
            }
        }
    }
    Err(away)
}
