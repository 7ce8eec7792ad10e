//! `hekate vdisk`.

use crate::cli::{Cli, Vdisk, VdiskCreate, VdiskDelete, VdiskDurability, VdiskRollback};
use crate::commands::client::date;
use crate::commands::way::Way;
use crate::failure::Failure;
use crate::output;
use hekate_proto::Error;
use hekate_vdisk::orders::{Order, order};
use hekate_vdisk::scrub::Scrubbed;
use hekate_vdisk::{Catalogue, Disk, DiskInfo, DiskKind, Durability, Health, SnapshotRecord, Usage, VolumeStore};
use serde_json::json;
use std::sync::Arc;

type Done = Result<(), Failure>;

pub fn vdisk(cli: &Cli, command: &Vdisk) -> Done {
    let (Vdisk::Create(VdiskCreate { volume, .. })
    | Vdisk::List { volume }
    | Vdisk::Show { volume, .. }
    | Vdisk::Snapshot { volume, .. }
    | Vdisk::Clone { volume, .. }
    | Vdisk::Template { volume, .. }
    | Vdisk::Rollback(VdiskRollback { volume, .. })
    | Vdisk::Resize { volume, .. }
    | Vdisk::Rename { volume, .. }
    | Vdisk::Scrub { volume, .. }
    | Vdisk::Delete(VdiskDelete { volume, .. })
    | Vdisk::Steal { volume, .. }
    | Vdisk::Resume { volume, .. }) = command;
    let opened = Way::of(cli)?.open(cli, volume)?;
    let done = VolumeStore::open(opened.clone())
        .and_then(|store| Catalogue::open(Arc::new(store)))
        .map_err(Failure::from)
        .and_then(|catalogue| act(cli, command, &catalogue))
        .map_err(|failure| in_volume(failure, volume));
    opened.end();
    done
}

/// This process, for those who find a vDisk in use.
pub fn own_name() -> String {
    let uname = rustix::system::uname();
    format!("{} (process {})", uname.nodename().to_string_lossy(), std::process::id())
}

fn act(cli: &Cli, command: &Vdisk, catalogue: &Catalogue) -> Done {
    let ordered = |name: &str, what: Order| order(catalogue, name, &own_name(), &what).map_err(Failure::from);
    match command {
        Vdisk::Create(options) => create(cli, catalogue, options),
        Vdisk::List { .. } => list(cli, catalogue),
        Vdisk::Show { name, .. } => show(cli, catalogue, name),
        Vdisk::Snapshot { name, snapshot, labels, .. } => {
            ordered(name, Order::Snapshot { name: snapshot.clone(), labels: labels.clone() })?;
            said(cli, json!({ "vdisk": name, "snapshot": snapshot }), &format!("made snapshot {name}@{snapshot}"));
            Ok(())
        }
        Vdisk::Clone { source, name, labels, .. } => {
            let (disk, snapshot) = match source.split_once('@') {
                Some((disk, snapshot)) => (disk, Some(snapshot)),
                None => (source.as_str(), None),
            };
            let made = catalogue.clone_disk(disk, snapshot, name, labels.clone())?;
            said(cli, json!({ "vdisk": name, "size": made.size }), &format!("made vDisk {name}, a clone of {source}"));
            Ok(())
        }
        Vdisk::Template { name, .. } => {
            ordered(name, Order::MakeTemplate)?;
            said(cli, json!({ "vdisk": name, "kind": "template" }), &format!("{name} is a template now"));
            Ok(())
        }
        Vdisk::Rollback(options) => {
            let VdiskRollback { name, snapshot, yes, .. } = options;
            if !yes {
                return Err(Failure::usage(format!(
                    "what was written to {name} after {snapshot} would be gone; if that is meant, say --yes"
                )));
            }
            ordered(name, Order::RollBack { snapshot: snapshot.clone() })?;
            said(cli, json!({ "vdisk": name, "snapshot": snapshot }), &format!("{name} is as {name}@{snapshot} now"));
            Ok(())
        }
        Vdisk::Resize { name, size, shrink, .. } => {
            let before = catalogue.info(name)?.record.size;
            if *size < before && !shrink {
                return Err(Failure::usage(format!(
                    "{name} has {before} bytes; what lies beyond {size} would be gone; if that is meant, say --shrink"
                )));
            }
            ordered(name, Order::Resize { size: *size })?;
            said(cli, json!({ "vdisk": name, "size": size }), &format!("{name} has {} now", output::bytes(*size)));
            Ok(())
        }
        Vdisk::Rename { name, to, .. } => {
            catalogue.rename(name, to)?;
            said(cli, json!({ "vdisk": to }), &format!("{name} is called {to} now"));
            Ok(())
        }
        Vdisk::Scrub { name, limit, .. } => {
            tell_scrubbed(cli, name, &ordered(name, Order::Scrub { bytes_per_second: limit.unwrap_or(0) })?);
            Ok(())
        }
        Vdisk::Delete(options) => delete(cli, catalogue, options),
        Vdisk::Steal { name, yes, .. } => steal(cli, catalogue, name, *yes),
        Vdisk::Resume { name, .. } => {
            ordered(name, Order::Resume)?;
            said(cli, json!({ "vdisk": name, "state": "good" }), &format!("{name} can be written again"));
            Ok(())
        }
    }
}

/// Names the volume in a line that a user may repeat.
fn in_volume(failure: Failure, volume: &str) -> Failure {
    Failure {
        text: failure.text.replace("hekate vdisk snapshot VOLUME", &format!("hekate vdisk snapshot {volume}")),
        ..failure
    }
}

fn said(cli: &Cli, value: serde_json::Value, text: &str) {
    if cli.json { output::json(&value) } else { println!("{text}") }
}

fn create(cli: &Cli, catalogue: &Catalogue, options: &VdiskCreate) -> Done {
    let durability = match options.durability {
        VdiskDurability::Replicated => Durability::Replicated,
        VdiskDurability::Async => Durability::Async,
    };
    let made = catalogue.create(&options.name, options.size, durability, options.labels.clone())?;
    let VdiskCreate { volume, name, .. } = options;
    let text = format!(
        "made vDisk {name} of {}; serve it with: hekate nbd serve {volume} --socket PATH",
        output::bytes(made.size)
    );
    said(cli, json!({ "vdisk": name, "size": made.size }), &text);
    Ok(())
}

fn state_of(info: &DiskInfo) -> &'static str {
    match (info.record.health, info.record.kind) {
        (Health::Lost { .. }, _) => "lost changes, read-only",
        (Health::Good, DiskKind::Template) => "template",
        (Health::Good, DiskKind::Disk) => "good",
    }
}

fn durability_of(info: &DiskInfo) -> &'static str {
    if info.record.durability == Durability::Async { "async" } else { "replicated" }
}

fn value_of(info: &DiskInfo) -> serde_json::Value {
    let labels: serde_json::Map<String, serde_json::Value> =
        info.record.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    json!({
        "vdisk": info.name, "size": info.record.size, "state": state_of(info), "durability": durability_of(info),
        "created": info.record.created, "labels": labels,
        "open_at": info.holder.as_ref().map(|holder| json!({ "session": holder.session, "who": holder.who })),
    })
}

fn list(cli: &Cli, catalogue: &Catalogue) -> Done {
    let all = catalogue.list()?;
    if cli.json {
        output::json(&all.iter().map(value_of).collect::<Vec<_>>());
        return Ok(());
    }
    let row = |info: &DiskInfo| {
        let who = info.holder.as_ref().map(|holder| output::name(&holder.who));
        vec![info.name.clone(), output::bytes(info.record.size), state_of(info).into(), output::or_dash(who)]
    };
    output::table(&["VDISK", "SIZE", "STATE", "OPEN AT"], &all.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

fn show(cli: &Cli, catalogue: &Catalogue, name: &str) -> Done {
    let (info, snapshots, usage) = (catalogue.info(name)?, catalogue.snapshots(name)?, catalogue.usage(name)?);
    let Usage { own, shared, referenced, depth } = usage;
    if cli.json {
        let mut value = value_of(&info);
        let snapshot = |(name, record): &(String, SnapshotRecord)| {
            json!({ "name": name, "size": record.size, "created": record.created,
                "labels": record.labels.iter().cloned().collect::<std::collections::BTreeMap<_, _>>() })
        };
        value["snapshots"] = snapshots.iter().map(snapshot).collect();
        value["space"] = json!({ "own": own, "shared": shared, "referenced": referenced, "layers_below": depth });
        output::json(&value);
        return Ok(());
    }
    println!(
        "vDisk {name}: {}, {}, durability {}",
        output::bytes(info.record.size),
        state_of(&info),
        durability_of(&info)
    );
    if let Some(holder) = &info.holder {
        println!("  open at {}", output::name(&holder.who));
    }
    println!(
        "  space {} of its own, {} shared with others, of which {} are in use; {depth} layers below",
        output::bytes(own),
        output::bytes(shared),
        output::bytes(referenced)
    );
    for (key, value) in &info.record.labels {
        println!("  label {}={}", output::name(key), output::name(value));
    }
    let row = |(name, record): &(String, SnapshotRecord)| {
        let labels: Vec<String> = record.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![name.clone(), output::bytes(record.size), date(record.created), output::name(&labels.join(" "))]
    };
    if !snapshots.is_empty() {
        output::table(&["SNAPSHOT", "SIZE", "MADE", "LABELS"], &snapshots.iter().map(row).collect::<Vec<_>>());
    }
    Ok(())
}

fn delete(cli: &Cli, catalogue: &Catalogue, options: &VdiskDelete) -> Done {
    let name = &options.name;
    let what = match name.split_once('@') {
        Some((disk, snapshot)) => {
            catalogue.delete_snapshot(disk, snapshot)?;
            format!("deleted snapshot {name}; its space comes back with the next scrub")
        }
        None => {
            let snapshots = catalogue.snapshots(name)?.len();
            if !options.yes {
                return Err(Failure::usage(format!(
                    "{name} and its {snapshots} snapshots would be gone; if that is meant, say --yes"
                )));
            }
            catalogue.delete(name, &own_name())?;
            format!("deleted vDisk {name}")
        }
    };
    let removed = match catalogue.collect() {
        // The next command that collects goes on.
        Err(Error::Unavailable { .. }) => 0,
        removed => removed?,
    };
    said(cli, json!({ "deleted": name, "layers_removed": removed }), &what);
    Ok(())
}

fn tell_scrubbed(cli: &Cli, name: &str, done: &Scrubbed) {
    let Scrubbed { moved, merged, removed } = *done;
    let text =
        format!("scrubbed {name}: {} were copied, {merged} layers merged, {removed} removed", output::bytes(moved));
    said(cli, json!({ "vdisk": name, "copied": moved, "merged": merged, "removed": removed }), &text);
}

fn steal(cli: &Cli, catalogue: &Catalogue, name: &str, yes: bool) -> Done {
    let Some(holder) = catalogue.info(name)?.holder else {
        return Err(Failure::usage(format!("nobody has {name} open; it can be used")));
    };
    if !yes {
        return Err(Failure::usage(format!(
            "{} would lose {name}, and with it what it has not flushed; if that is meant, say --yes",
            holder.who
        )));
    }
    let settings = hekate_vdisk::Settings { background: false, ..Default::default() };
    Disk::steal(catalogue, name, &own_name(), settings)?.close()?;
    said(
        cli,
        json!({ "vdisk": name, "from": holder.who }),
        &format!("took {name} from {}; it can be opened now", holder.who),
    );
    Ok(())
}
