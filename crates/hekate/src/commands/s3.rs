//! `hekate s3`: the S3 door of volumes, and its access keys.

mod bucket;
pub mod doors;
mod gc;
pub mod keys;
mod serve;

use crate::cli::{Cli, S3, S3Enable, S3Key, S3KeyCreate};
use crate::commands::client::date;
use crate::commands::control::{ask, look};
use crate::commands::doors::shown::Shown;
use crate::failure::{Failure, whole_path};
use crate::output;
use hekate_control::s3 as calls;
use hekate_control::s3::{S3DoorStatus, S3KeyCreated, S3KeyStatus};
use std::path::Path;

pub fn s3(cli: &Cli, command: &S3) -> Result<(), Failure> {
    match command {
        S3::Enable(options) => enable(cli, options),
        S3::Disable { volume } => disable(cli, volume),
        S3::List => list(cli),
        S3::Key(command) => key(cli, command),
        S3::Bucket(command) => bucket::bucket(cli, command),
        S3::Serve(options) => serve::serve(cli, options),
        S3::Gc(options) => gc::gc(cli, options),
    }
}

fn enable(cli: &Cli, options: &S3Enable) -> Result<(), Failure> {
    let listen = &options.listen;
    let call = calls::S3Enable {
        volume: options.volume.clone(),
        listen: listen.listen.iter().map(ToString::to_string).collect(),
        plain: listen.http,
        certificate: listen.certificate.as_deref().map(whole_path).transpose()?,
        key: listen.key.as_deref().map(whole_path).transpose()?,
        names: options.names.clone(),
        domain: listen.domain.clone(),
        region: Some(listen.region.clone()),
    };
    let status = ask(cli, call)?.once_open(|| ask(cli, calls::S3List {}))?;
    if cli.json {
        output::json(&status);
        return Ok(());
    }
    match status.open.is_empty() {
        true => println!("the S3 door of {} opens within a few seconds; `hekate s3 list` shows it", options.volume),
        false => println!("the S3 door of {} is open at {}", options.volume, addresses(&status)),
    }
    println!("next: hekate s3 key create {}", options.volume);
    Ok(())
}

fn addresses(status: &S3DoorStatus) -> String {
    let scheme = if status.tls == "none" { "http" } else { "https" };
    status.open.iter().map(|address| format!("{scheme}://{address}")).collect::<Vec<_>>().join(" ")
}

fn disable(cli: &Cli, volume: &str) -> Result<(), Failure> {
    ask(cli, calls::S3Disable { volume: volume.into() })?;
    match cli.json {
        true => output::json(&serde_json::json!({ "volume": volume })),
        false => println!("the S3 door of {volume} is closed, within 2 s at each server"),
    }
    Ok(())
}

fn list(cli: &Cli) -> Result<(), Failure> {
    let doors = look(cli, calls::S3List {})?;
    if cli.json {
        output::json(&doors);
        return Ok(());
    }
    let row = |door: &S3DoorStatus| {
        let domain = door.domain.clone().unwrap_or_else(|| "-".into());
        vec![door.volume.clone(), door.listen.join(" "), door.tls.clone(), domain, door.region.clone(), door.state()]
    };
    let rows: Vec<Vec<String>> = doors.iter().map(row).collect();
    output::table(&["VOLUME", "LISTEN", "TLS", "DOMAIN", "REGION", "HERE"], &rows);
    Ok(())
}

fn key(cli: &Cli, command: &S3Key) -> Result<(), Failure> {
    match command {
        S3Key::Create(options) => create_key(cli, options),
        S3Key::List { volume } => list_keys(cli, volume.clone()),
        S3Key::Disable { id } => set_key(cli, id, true),
        S3Key::Enable { id } => set_key(cli, id, false),
        S3Key::Delete { id } => {
            ask(cli, calls::S3KeyDelete { id: id.clone() })?;
            match cli.json {
                true => output::json(&serde_json::json!({ "id": id })),
                false => println!("access key {id} is deleted, within 2 s at each server"),
            }
            Ok(())
        }
    }
}

fn create_key(cli: &Cli, options: &S3KeyCreate) -> Result<(), Failure> {
    let secret = options.secret_file.as_deref().map(secret_in).transpose()?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let uid = options.uid.unwrap_or(uid);
    let made = ask(
        cli,
        calls::S3KeyCreate {
            volume: options.volume.clone(),
            user: options.user.clone().unwrap_or_else(|| format!("uid {uid}")),
            uid,
            gid: options.gid.unwrap_or(gid),
            read_only: options.read_only,
            buckets: (!options.buckets.is_empty()).then(|| options.buckets.iter().cloned().collect()),
            id: options.id.clone(),
            secret,
        },
    )?;
    let S3KeyCreated { id, secret } = made;
    if cli.json {
        output::json(&serde_json::json!({ "id": id, "secret": secret }));
    } else {
        println!("access key id:     {id}");
        println!("secret access key: {secret}");
        println!("The secret is not shown again.");
    }
    Ok(())
}

fn secret_in(path: &Path) -> Result<String, Failure> {
    let read = std::fs::read_to_string(path);
    read.map(|text| text.trim().to_string()).map_err(|e| Failure::new(66, format!("{}: {e}", path.display())))
}

fn list_keys(cli: &Cli, volume: Option<String>) -> Result<(), Failure> {
    let keys = ask(cli, calls::S3KeyList { volume })?;
    if cli.json {
        output::json(&keys);
        return Ok(());
    }
    let row = |key: &S3KeyStatus| {
        let one = |(bucket, write): (&String, &bool)| format!("{bucket}:{}", if *write { "write" } else { "read" });
        let buckets =
            key.buckets.as_ref().map_or("all".into(), |all| all.iter().map(one).collect::<Vec<_>>().join(" "));
        let rights = if key.read_only { "reads" } else { "reads and writes" };
        let state = if key.disabled { "disabled" } else { "enabled" };
        let owner = format!("{} ({}:{})", key.user, key.uid, key.gid);
        vec![key.id.clone(), key.volume.clone(), owner, rights.into(), buckets, state.into(), date(key.created)]
    };
    let rows: Vec<Vec<String>> = keys.iter().map(row).collect();
    output::table(&["KEY", "VOLUME", "USER", "RIGHTS", "BUCKETS", "STATE", "MADE"], &rows);
    Ok(())
}

fn set_key(cli: &Cli, id: &str, disabled: bool) -> Result<(), Failure> {
    let status = ask(cli, calls::S3KeySet { id: id.into(), disabled })?;
    let word = if disabled { "refused" } else { "accepted" };
    match cli.json {
        true => output::json(&status),
        false => println!("access key {id} is {word}, within 2 s at each server"),
    }
    Ok(())
}
