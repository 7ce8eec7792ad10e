//! `hekate coordinator restore`: the records of a backup in the place of lost ones.

use crate::cli::{Cli, CoordinatorRestore};
use crate::failure::Failure;
use crate::output;
use crate::paths::Paths;
use hekate_cluster::coordinator::moving::{BACKUP, Closing, Move, Role, is_in_charge, parse_closing};
use hekate_cluster::restore::{BackupStore, renew, sum_of};
use hekate_cluster::{CLOSED, Coordinator, EmbeddedCoordinator, FIRST_SERVER, Outcome};
use hekate_control::coordinator::Backup;
use hekate_etcd::EtcdCoordinator;
use hekate_proto::{Error, ServerId};
use hekate_server::state_directory::{coordinator_file, is_coordinator};
use hekate_server::{Keys, Membership, Place, etcd};
use std::path::Path;

pub fn restore(cli: &Cli, options: &CoordinatorRestore) -> Result<(), Failure> {
    let paths = Paths::of(cli)?;
    let backup = read(&options.file)?;
    let membership = Membership::read(&paths.state)?;
    let server = membership.as_ref().map_or(FIRST_SERVER, |membership| membership.server);
    if !Keys::exist(&paths.state) {
        let state = paths.state.display();
        return Err(Failure::new(
            66,
            format!("{state} belongs to no server of a cluster: there is nothing to restore to"),
        ));
    }
    check_cluster(&paths, membership.as_ref(), &backup)?;
    let place = match &membership {
        Some(membership) if !options.here => Place::parse(&membership.coordinator, server)?,
        _ => Place::Own,
    };
    let store = open(&paths.state, &place)?;
    let mut records = backup.records;
    renew(&mut records, options.accept)?;
    let count = records.len();
    if options.replace {
        close(&*store)?;
    } else if is_in_charge(&*store)? {
        let what =
            format!("{place} holds records of this cluster that are in use; --replace puts the backup in their place");
        return Err(Failure::new(73, what));
    }
    let id: u64 = hekate_threads::random().map_err(|e| Error::io("random bytes", e))?;
    let source = BackupStore::new(records);
    let text = place.to_string();
    let moving =
        Move { id: &format!("{id:016x}"), source: &source, source_place: BACKUP, target: &*store, target_place: &text };
    moving.run(&mut |_| Ok(()))?;
    if options.here {
        remember_here(&paths.state, server, &backup.cluster)?;
    }
    report(cli, &text, count, options.accept);
    Ok(())
}

fn report(cli: &Cli, place: &str, count: usize, accepted: bool) {
    if cli.json {
        return output::json(&serde_json::json!({ "place": place, "records": count, "accepted": accepted }));
    }
    println!("{count} records are restored at {place}; sessions of mounts have ended");
    println!("next: {}", cli.line_to_serve());
}

fn read(file: &Path) -> Result<Backup, Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| Error::io(format!("read {}", file.display()), e))?;
    let damaged = |what: String| Failure::new(65, format!("{} is no backup of records: {what}", file.display()));
    let backup: Backup = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
    if backup.format != Backup::FORMAT {
        return Err(damaged(format!("it has format {}, this program knows {}", backup.format, Backup::FORMAT)));
    }
    if sum_of(&backup.records) != backup.sum {
        return Err(damaged("its sum is wrong: it was changed, or is not complete".into()));
    }
    Ok(backup)
}

fn check_cluster(paths: &Paths, membership: Option<&Membership>, backup: &Backup) -> Result<(), Failure> {
    let own = match membership {
        Some(membership) => Some(membership.cluster.clone()),
        None => Keys::read(&paths.state)?.context().credential().map(|credential| credential.cluster.clone()),
    };
    match own {
        Some(own) if own != backup.cluster => {
            let state = paths.state.display();
            let what = format!("{state} is of cluster {own}, the backup is of cluster {}", backup.cluster);
            Err(Failure::new(77, what))
        }
        _ => Ok(()),
    }
}

fn open(state: &Path, place: &Place) -> Result<Box<dyn Coordinator>, Failure> {
    match place {
        _ if is_coordinator(state) => Ok(Box::new(EmbeddedCoordinator::open(&coordinator_file(state))?)),
        Place::Own => {
            let file = coordinator_file(state);
            Ok(Box::new(match file.exists() {
                true => EmbeddedCoordinator::open(&file)?,
                false => EmbeddedCoordinator::create(&file)?,
            }))
        }
        Place::Etcd(endpoints) => {
            Ok(Box::new(EtcdCoordinator::new(endpoints.clone(), &etcd::read_credential(state)?)?))
        }
        Place::At(address) | Place::Server(_, address) => Err(Failure::usage(format!(
            "the records are at {address}; restore them there, or with --here into this server's state directory"
        ))),
    }
}

/// Closes a store whose records are to be replaced, if it is in use.
fn close(store: &dyn Coordinator) -> Result<(), Failure> {
    if let Some(by) = store.get(CLOSED)? {
        let closing = parse_closing(&by)?;
        if closing.role == Role::Target {
            return Ok(());
        }
    }
    let closing = Closing { id: "replaced".into(), role: Role::Target, other: BACKUP.into() };
    let text = serde_json::to_string(&closing).map_err(|e| Error::bug(e.to_string()))?;
    let closed = store.get(CLOSED)?;
    match store.transact(&[(CLOSED, closed.as_deref())], &[(CLOSED, Some(&text))])? {
        Outcome::Written => Ok(()),
        other => Err(Failure::new(75, format!("the store cannot be closed: {other:?}; repeat this"))),
    }
}

fn remember_here(state: &Path, server: ServerId, cluster: &str) -> Result<(), Failure> {
    let coordinator = Place::Own.to_string();
    Ok(Membership { server, cluster: cluster.into(), coordinator, servers: Vec::new() }.write(state)?)
}
