//! Asking a server's control interface.

use crate::cli::Cli;
use crate::failure::Failure;
use crate::paths::{Paths, endpoints_of, unreachable};
use hekate_control::{ControlCall, ControlReply, ControlRequest, Refusal};
use hekate_proto::Error;
use hekate_transport::{Control, Endpoint};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Limit for the reply to a request that does not wait for anything but the reports of other servers, which take at
/// most 2 s. A server that needs longer hangs.
const LOOK_LIMIT: Duration = Duration::from_secs(15);

/// Asks the server that the options name, without a time limit.
///
/// # Errors
///
/// The server does not answer (exit status 69), its reply cannot be parsed (76), or it refused the request.
pub fn ask<C: ControlCall>(cli: &Cli, call: C) -> Result<C::Reply, Failure> {
    ask_named(cli, cli.server.as_deref(), call)
}

/// Asks the server at this address, or the one of this machine, without a time limit.
///
/// # Errors
///
/// As [`ask`].
pub fn ask_named<C: ControlCall>(cli: &Cli, server: Option<&str>, call: C) -> Result<C::Reply, Failure> {
    ask_within(cli, server, call, None)
}

/// Asks the server that the options name for a report, with a time limit.
///
/// # Errors
///
/// As [`ask`]; also if the limit is reached.
pub fn look<C: ControlCall>(cli: &Cli, call: C) -> Result<C::Reply, Failure> {
    ask_within(cli, cli.server.as_deref(), call, Some(LOOK_LIMIT))
}

fn ask_within<C: ControlCall>(
    cli: &Cli,
    server: Option<&str>,
    call: C,
    limit: Option<Duration>,
) -> Result<C::Reply, Failure> {
    let paths = Paths::of(cli)?;
    let request = call.into();
    let mut away = String::new();
    for endpoint in endpoints_of(&paths, server)? {
        match ask_of(&endpoint, &request, limit) {
            Err(Error::Unavailable { what }) => away = what,
            other => return other?,
        }
    }
    Err(unreachable(&paths, cli.state.as_deref(), server, &away))
}

/// Asks one server.
///
/// # Errors
///
/// The outer error: the request did not reach the server, or the reply did not come back. The inner one: the server
/// refused.
pub fn ask_at<C: ControlCall>(
    endpoint: &Endpoint,
    call: C,
    limit: Option<Duration>,
) -> Result<Result<C::Reply, Failure>, Error> {
    ask_of(endpoint, &call.into(), limit)
}

fn ask_of<R: DeserializeOwned>(
    endpoint: &Endpoint,
    request: &ControlRequest,
    limit: Option<Duration>,
) -> Result<Result<R, Failure>, Error> {
    let request = serde_json::to_string(request).map_err(|e| Error::bug(e.to_string()))?;
    let answer = Control::new(endpoint.clone(), limit).ask(&request)?;
    Ok(match serde_json::from_str(&answer) {
        Ok(ControlReply::Ok(reply)) => Ok(reply),
        Ok(ControlReply::Error(Refusal { text, exit })) => Err(Failure::new(exit, text)),
        Err(error) => Err(Failure::new(76, format!("the server's answer cannot be read: {error}"))),
    })
}
