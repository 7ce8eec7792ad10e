//! `hekate client`: clients and their credentials.

use crate::cli::{Cli, Client, ClientCreate, ClientRenew};
use crate::commands::control::ask;
use crate::failure::Failure;
use crate::output;
use hekate_control::access::{ClientStatus, CredentialIssued};
use hekate_control::{self as calls};
use hekate_server::authority::{hex, seconds};
use hekate_server::write_private;
use hekate_tls::Credential;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub fn client(cli: &Cli, command: &Client) -> Result<(), Failure> {
    match command {
        Client::Create(options) => create(cli, options),
        Client::List => list(cli),
        Client::Show { name } => show(cli, name),
        Client::Renew(options) => renew(cli, options),
        Client::Pem { file, directory } => pem(cli, file, directory),
        Client::Revoke { name } => revoke(cli, name),
    }
}

fn create(cli: &Cli, options: &ClientCreate) -> Result<(), Failure> {
    refuse_existing(&options.output)?;
    let (key, public) = Credential::make_key()?;
    let issued = ask(
        cli,
        calls::ClientCreate {
            name: options.name.clone(),
            volumes: options.volumes.clone(),
            read_only: options.read_only,
            admin: options.admin,
            network: options.network.clone().unwrap_or_default(),
            life_s: options.expires.map(|life| life.as_secs()),
            public_key: hex(&public),
        },
    )?;
    keep(cli, &options.name, issued, key, &options.output)
}

fn renew(cli: &Cli, options: &ClientRenew) -> Result<(), Failure> {
    let (key, public) = Credential::make_key()?;
    let life_s = options.expires.map(|life| life.as_secs());
    let call = calls::ClientRenew { name: options.name.clone(), life_s, public_key: hex(&public) };
    keep(cli, &options.name, ask(cli, call)?, key, &options.output)
}

/// A file that is there may be another client's credential.
fn refuse_existing(path: &Path) -> Result<(), Failure> {
    match path.exists() {
        true => Err(Failure::new(73, format!("{} exists already; name another file with -o", path.display()))),
        false => Ok(()),
    }
}

fn keep(cli: &Cli, name: &str, issued: CredentialIssued, key: String, path: &Path) -> Result<(), Failure> {
    let CredentialIssued { cluster, chain, roots, network, servers, expires } = issued;
    Credential { cluster, network, servers: servers.clone(), roots, chain, key }.write(path)?;
    if cli.json {
        output::json(&serde_json::json!({
            "client": name, "credential": path, "servers": servers, "expires": expires,
        }));
    } else {
        println!("{}: the credential of client {name}, until {}", path.display(), date(expires));
        println!("next: on its machine, hekate mount --credential FILE VOLUME DIR");
    }
    Ok(())
}

/// Writes the parts of a credential as the files that libnbd and qemu look for in a directory.
fn pem(cli: &Cli, file: &Path, directory: &Path) -> Result<(), Failure> {
    let credential = Credential::read(file)?;
    std::fs::create_dir_all(directory).map_err(|e| Failure::new(73, format!("make {}: {e}", directory.display())))?;
    let parts = [
        ("ca-cert.pem", &credential.roots),
        ("client-cert.pem", &credential.chain),
        ("client-key.pem", &credential.key),
    ];
    for (name, text) in parts {
        write_private(&directory.join(name), text.as_bytes())?;
    }
    match cli.json {
        true => output::json(&serde_json::json!({ "directory": directory, "files": parts.map(|(name, _)| name) })),
        false => println!("{}: {}", directory.display(), parts.map(|(name, _)| name).join(", ")),
    }
    Ok(())
}

fn list(cli: &Cli) -> Result<(), Failure> {
    let clients = ask(cli, calls::ClientList {})?;
    if cli.json {
        output::json(&clients);
        return Ok(());
    }
    let row = |client: &ClientStatus| {
        let volumes = if client.admin { "all".into() } else { client.volumes.join(" ") };
        vec![client.name.clone(), volumes, rights(client), client.network.clone(), state(client)]
    };
    let rows: Vec<Vec<String>> = clients.iter().map(row).collect();
    output::table(&["CLIENT", "VOLUMES", "RIGHTS", "NETWORK", "EXPIRES"], &rows);
    Ok(())
}

fn show(cli: &Cli, name: &str) -> Result<(), Failure> {
    let clients = ask(cli, calls::ClientList {})?;
    let Some(client) = clients.iter().find(|client| client.name == name) else {
        let names: Vec<&str> = clients.iter().map(|client| &client.name[..]).collect();
        return Err(Failure::usage(format!("no client is called {name}; there are: {}", names.join(", "))));
    };
    if cli.json {
        output::json(client);
        return Ok(());
    }
    let volumes = if client.admin { "all".into() } else { client.volumes.join(" ") };
    println!("client {name}: {} of {volumes}, at network {}; {}", rights(client), client.network, state(client));
    Ok(())
}

fn rights(client: &ClientStatus) -> String {
    let words = match (client.admin, client.read_only) {
        (true, true) => "admin, reads only",
        (true, false) => "admin",
        (false, true) => "reads",
        (false, false) => "reads and writes",
    };
    words.into()
}

fn state(client: &ClientStatus) -> String {
    if client.revoked { "revoked".into() } else { date(client.expires) }
}

fn revoke(cli: &Cli, name: &str) -> Result<(), Failure> {
    let revoked = ask(cli, calls::ClientRevoke { name: name.into() })?;
    if cli.json {
        output::json(&revoked);
    } else {
        println!("client {name} is revoked: within 5 s no server answers it or its mounts");
    }
    Ok(())
}

/// A time as RFC 3339 has it, and how far away it is.
pub fn date(expires: u64) -> String {
    let when = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(expires));
    let days = expires.saturating_sub(seconds(SystemTime::now())) / 86_400;
    format!("{when} (in {days} days)")
}
