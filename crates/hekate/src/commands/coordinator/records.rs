//! `hekate coordinator show|move|backup|member`.

use crate::cli::{Cli, CoordinatorMember};
use crate::commands::control::{ask, look};
use crate::failure::Failure;
use crate::output;
use hekate_control::coordinator::{CoordinatorStatus, EtcdMemberStatus};
use hekate_control::{CoordinatorBackup, CoordinatorMove, CoordinatorShow, EtcdRemove};
use hekate_proto::Error;
use hekate_server::write_private;
use std::io::Write;
use std::path::Path;

pub fn show(cli: &Cli) -> Result<(), Failure> {
    let status = look(cli, CoordinatorShow {})?;
    if cli.json {
        output::json(&status);
        return Ok(());
    }
    let CoordinatorStatus { place, closed, revision, records, bytes, read_us, members, alarms } = &status;
    println!("records are kept at {place}: {records} of {bytes} bytes, revision {revision}; a read takes {read_us} us");
    if let Some(other) = closed {
        println!("closed: the records move to {other}, or have moved there");
    }
    if !members.is_empty() {
        table(members);
    }
    alarms.iter().for_each(|alarm| println!("alarm: {alarm}"));
    Ok(())
}

fn table(members: &[EtcdMemberStatus]) {
    let row = |member: &EtcdMemberStatus| {
        let EtcdMemberStatus { name, address, state, bytes, version } = member.clone();
        vec![name, address, state, output::bytes(bytes), version]
    };
    output::table(&["MEMBER", "ADDRESS", "STATE", "SIZE", "VERSION"], &members.iter().map(row).collect::<Vec<_>>());
}

pub fn member(cli: &Cli, command: &CoordinatorMember) -> Result<(), Failure> {
    match command {
        CoordinatorMember::List => {
            let members = look(cli, CoordinatorShow {})?.members;
            match cli.json {
                true => output::json(&members),
                false if members.is_empty() => {
                    println!("the cluster has no etcd; `hekate coordinator etcd` makes a member");
                }
                false => table(&members),
            }
        }
        CoordinatorMember::Remove { name } => {
            let removed = ask(cli, EtcdRemove { name: name.clone() })?;
            match cli.json {
                true => output::json(&removed),
                false => println!("{name} at {} is no member of etcd any more; stop it there", removed.address),
            }
        }
    }
    Ok(())
}

pub fn move_to(cli: &Cli, to: &CoordinatorMove) -> Result<(), Failure> {
    let moved = ask(cli, to.clone())?;
    match cli.json {
        true => output::json(&moved),
        false => println!("records moved from {} to {}; writes waited for {} ms", moved.from, moved.to, moved.pause_ms),
    }
    Ok(())
}

pub fn backup(cli: &Cli, file: &Path) -> Result<(), Failure> {
    let backup = ask(cli, CoordinatorBackup {})?;
    let text = serde_json::to_string_pretty(&backup).map_err(|e| Error::bug(e.to_string()))?;
    if file == Path::new("-") {
        let written = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().write_all(b"\n"));
        return Ok(written.map_err(|e| Error::io("write the backup", e))?);
    }
    write_private(file, text.as_bytes())?;
    match cli.json {
        true => output::json(&serde_json::json!({
            "file": file, "cluster": backup.cluster, "revision": backup.revision, "records": backup.records.len(),
        })),
        false => println!("{} records of cluster {} are in {}", backup.records.len(), backup.cluster, file.display()),
    }
    Ok(())
}
