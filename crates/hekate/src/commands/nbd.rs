//! `hekate nbd`: the block door of volumes.

pub mod doors;
mod serve;

use crate::cli::{Cli, Nbd, NbdEnable};
use crate::commands::control::{ask, look};
use crate::commands::doors::shown::Shown;
use crate::failure::{Failure, whole_path};
use crate::output;
use hekate_control::nbd as calls;
use hekate_control::nbd::NbdDoorStatus;

pub fn nbd(cli: &Cli, command: &Nbd) -> Result<(), Failure> {
    match command {
        Nbd::Enable(options) => enable(cli, options),
        Nbd::Disable { volume } => disable(cli, volume),
        Nbd::List => list(cli),
        Nbd::Serve(options) => serve::serve(cli, options),
    }
}

fn enable(cli: &Cli, options: &NbdEnable) -> Result<(), Failure> {
    let listen = &options.listen;
    let file = |path: &Option<std::path::PathBuf>| path.as_deref().map(whole_path).transpose();
    let call = calls::NbdEnable {
        volume: options.volume.clone(),
        listen: listen.listen.iter().map(ToString::to_string).collect(),
        sockets: listen.sockets.iter().map(|path| whole_path(path)).collect::<Result<_, _>>()?,
        plain: listen.plain,
        certificate: file(&listen.certificate)?,
        key: file(&listen.key)?,
        client_authority: file(&listen.client_ca)?,
        names: options.names.clone(),
    };
    let status = ask(cli, call)?.once_open(|| ask(cli, calls::NbdList {}))?;
    if cli.json {
        output::json(&status);
        return Ok(());
    }
    match status.open.is_empty() {
        true => println!("the block door of {} opens within a few seconds; `hekate nbd list` shows it", options.volume),
        false => println!("the block door of {} is open at {}", options.volume, uris(&status).join(" ")),
    }
    if status.tls == "cluster" {
        println!("next: hekate client create NAME --volume {} -o FILE; hekate client pem FILE DIR", options.volume);
    }
    Ok(())
}

/// Where the door is open here, as NBD clients name it.
fn uris(status: &NbdDoorStatus) -> Vec<String> {
    let tcp = if status.tls == "none" { "nbd" } else { "nbds" };
    let uri = |at: &String| match at.starts_with('/') {
        true => format!("nbd+unix:///?socket={at}"),
        false => format!("{tcp}://{at}"),
    };
    status.open.iter().map(uri).collect()
}

fn disable(cli: &Cli, volume: &str) -> Result<(), Failure> {
    ask(cli, calls::NbdDisable { volume: volume.into() })?;
    match cli.json {
        true => output::json(&serde_json::json!({ "volume": volume })),
        false => println!("the block door of {volume} is closed, within 2 s at each server"),
    }
    Ok(())
}

fn list(cli: &Cli) -> Result<(), Failure> {
    let doors = look(cli, calls::NbdList {})?;
    if cli.json {
        output::json(&doors);
        return Ok(());
    }
    let row = |door: &NbdDoorStatus| vec![door.volume.clone(), door.listen.join(" "), door.tls.clone(), door.state()];
    let rows: Vec<Vec<String>> = doors.iter().map(row).collect();
    output::table(&["VOLUME", "LISTEN", "TLS", "HERE"], &rows);
    Ok(())
}
