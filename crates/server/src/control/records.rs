//! The coordinator as an operator sees it: where it is, moves, backups, members of etcd.

use crate::control::encode;
use crate::coordination::current::CurrentCoordinator;
use crate::coordination::etcd;
use crate::coordination::place::Place;
use crate::hosting::authority::seconds;
use crate::hosting::keys::Keys;
use crate::hosting::node::Node;
use hekate_cluster::coordinator::moving::{Decision, KEPT, Move, Step, open_target, parse_closing, settle};
use hekate_cluster::{CLOSED, Coordinator, EtcdInfo, EtcdMember};
use hekate_control::ControlRequest;
use hekate_control::coordinator::*;
use hekate_control::peer::PlaceOfCoordinator;
use hekate_etcd::{Alarm, Endpoints, Members};
use hekate_proto::{Error, Result};
use hekate_threads::{elapsed, now, time_of_day};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a server may take to follow a move that has ended, and the time between two looks.
const FOLLOW_PATIENCE: Duration = Duration::from_secs(5);
const FOLLOW_PAUSE: Duration = Duration::from_millis(50);

/// Answers a request about the coordinator.
///
/// # Errors
///
/// Those of each request.
pub fn act(node: &Node, request: ControlRequest) -> Result<Value> {
    match request {
        ControlRequest::CoordinatorShow(_) => encode::<CoordinatorShow>(show(node)),
        ControlRequest::CoordinatorMove(call) => encode::<CoordinatorMove>(move_to(node, &call)),
        ControlRequest::CoordinatorBackup(_) => encode::<CoordinatorBackup>(backup(node)),
        ControlRequest::EtcdPrepare(call) => encode::<EtcdPrepare>(prepare(node, &call)),
        ControlRequest::EtcdFinish(_) => encode::<EtcdFinish>(finish(node)),
        ControlRequest::EtcdRemove(call) => encode::<EtcdRemove>(remove(node, &call.name)),
        _ => Err(Error::bug("a request about the coordinator was expected")),
    }
}

fn keys(node: &Node) -> Result<&Keys> {
    node.cluster.keys().ok_or_else(|| Error::invalid("this server has no keys in its state directory"))
}

/// # Errors
///
/// Those of the coordinator.
fn show(node: &Node) -> Result<CoordinatorStatus> {
    let coordinator = node.cluster.registry().coordinator();
    let begun = now();
    let closed = coordinator.get(CLOSED)?;
    let read_us = elapsed(begun).as_micros() as u64;
    let all = coordinator.list("/")?;
    let info = node.cluster.registry().etcd()?.unwrap_or_default();
    let (mut members, mut alarms) = (Vec::new(), Vec::new());
    if !info.addresses().is_empty() || !info.members.is_empty() {
        members = member_rows(node, &info);
    }
    if let Place::Etcd(endpoints) = node.cluster.coordinator_place() {
        let credential = etcd::credential_for(&info, keys(node)?.seal(), node.cluster.server())?;
        alarms = Members::new(endpoints, &credential)?.alarms()?.iter().map(alarm_text).collect();
    }
    Ok(CoordinatorStatus {
        place: node.cluster.coordinator_place().to_string(),
        closed: closed.map(|by| parse_closing(&by).map_or(by, |closing| closing.other)),
        // The bits above are this process's own.
        revision: all.revision.0 & ((1 << 48) - 1),
        records: all.pairs.len() as u64,
        bytes: all.pairs.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum(),
        read_us,
        members,
        alarms,
    })
}

fn alarm_text(alarm: &Alarm) -> String {
    let member = &alarm.member;
    match &alarm.alarm[..] {
        "NOSPACE" => format!(
            "member {member} has reached its quota, so etcd takes no writes: compact and defragment every member, then \
             `etcdctl alarm disarm` (docs/etcd.md)"
        ),
        other => format!("member {member}: {other}; replace this member (docs/etcd.md)"),
    }
}

fn member_rows(node: &Node, info: &EtcdInfo) -> Vec<EtcdMemberStatus> {
    let foreign = info.endpoints.iter().map(|address| (address.clone(), address.clone(), true));
    let own = info.members.iter().map(|member| (member.name.clone(), member.client_url(), member.is_ready));
    foreign.chain(own).map(|(name, address, is_ready)| member_row(node, info, name, address, is_ready)).collect()
}

fn member_row(node: &Node, info: &EtcdInfo, name: String, address: String, is_ready: bool) -> EtcdMemberStatus {
    let ask = || {
        let credential = etcd::credential_for(info, keys(node)?.seal(), node.cluster.server())?;
        let members = Members::new(Endpoints::parse(&address)?, &credential)?;
        let state = members.state(&address)?;
        let own = members.list().ok().and_then(|all| all.into_iter().find(|one| one.clients.contains(&address)));
        Ok((state, own))
    };
    match ask() {
        Err(error) => {
            let error: Error = error;
            EtcdMemberStatus { name, address, state: format!("away: {error}"), ..EtcdMemberStatus::default() }
        }
        Ok((said, own)) => {
            let is_leader = own.as_ref().is_some_and(|own| own.id == said.leader);
            let is_learner = own.as_ref().is_some_and(|own| own.is_learner);
            let state = match () {
                () if is_leader => "leader",
                () if is_learner => "learner",
                () if said.leader.is_empty() || said.leader == "0" => "without a leader",
                () if !is_ready => "starting",
                () => "member",
            };
            let bytes = said.size.parse().unwrap_or_default();
            EtcdMemberStatus { name, address, state: state.into(), bytes, version: said.version }
        }
    }
}

/// Copies the records, without leases.
///
/// # Errors
///
/// Those of the coordinator.
fn backup(node: &Node) -> Result<Backup> {
    backup_of(node.cluster.registry().coordinator(), node.cluster.id())
}

/// Copies the records of a store.
///
/// # Errors
///
/// Those of the store.
fn backup_of(store: &dyn Coordinator, cluster: &str) -> Result<Backup> {
    let all = store.list("/")?;
    let is_record = |key: &str| !key.starts_with(KEPT) && key != CLOSED;
    let records: BTreeMap<_, _> = all.pairs.into_iter().filter(|(key, _)| is_record(key)).collect();
    Ok(Backup {
        format: Backup::FORMAT,
        cluster: cluster.into(),
        revision: all.revision.0 & ((1 << 48) - 1),
        taken: seconds(time_of_day()),
        sum: hekate_cluster::restore::sum_of(&records),
        records,
    })
}

/// Moves the records to another coordinator, which all servers follow.
///
/// # Errors
///
/// `Invalid` if they are there already, or the other coordinator is not ready; those of both coordinators. After an error
/// one of the two is in charge, and the text names it.
fn move_to(node: &Node, to: &CoordinatorMove) -> Result<CoordinatorMoved> {
    follow(node)?;
    let current = node.cluster.current()?;
    let from = current.place();
    let (target_place, announced) = target_of(node, current, to)?;
    if from == target_place {
        return Err(Error::invalid(format!("the cluster's records are at {from} already")));
    }
    let target: Arc<dyn Coordinator> = match &target_place {
        Place::Own => current.hold()?,
        other => current.open_at(other)?,
    };
    // Others find the source, should they look at the target while it is closed, by this text.
    let source_place = match &from {
        Place::Own => own_place(node)?.to_string(),
        other => other.to_string(),
    };
    let source = current.in_use();
    let id: u64 = hekate_threads::random().map_err(|e| Error::io("random bytes", e))?;
    let id = format!("{id:016x}");
    let moving =
        Move { id: &id, source: &*source, source_place: &source_place, target: &*target, target_place: &announced };
    let mut closed_at = None;
    let moved = moving.run(&mut |step| {
        if step == Step::SourceClosed {
            closed_at = Some(now());
        }
        Ok(())
    });
    if let Err(error) = moved {
        return Err(match error {
            Error::Invalid { .. } => error,
            error => undone(&id, &*source, &*target, &from, &target_place, error),
        });
    }
    let pause_ms = closed_at.map_or(0, |since| elapsed(since).as_millis() as u64);
    // This server follows as all others do, and renews its lease at the target.
    node.wake_views();
    log::info!("the cluster's records were moved from {from} to {target_place} in {pause_ms} ms");
    Ok(CoordinatorMoved { from: from.to_string(), to: target_place.to_string(), pause_ms })
}

/// Waits until this server uses the store that is in charge, if a move has just ended.
fn follow(node: &Node) -> Result<()> {
    let begun = now();
    while node.cluster.current()?.in_use().get(CLOSED)?.is_some() && elapsed(begun) < FOLLOW_PATIENCE {
        node.wake_views();
        hekate_threads::sleep(FOLLOW_PAUSE);
    }
    Ok(())
}

/// Decides at once on a move that has failed, and says which store is in charge.
fn undone(
    id: &str,
    source: &dyn Coordinator,
    target: &dyn Coordinator,
    from: &Place,
    to: &Place,
    error: Error,
) -> Error {
    let (from, to) = (from.to_string(), to.to_string());
    let decided = settle(id, source).and_then(|decision| match decision {
        Decision::Moved => open_target(id, target).map(|()| decision),
        Decision::Abandoned => Ok(decision),
    });
    let what = match decided {
        Ok(Decision::Moved) => format!("the records are at {to} now, although the last step has failed: {error}"),
        Ok(Decision::Abandoned) => format!("the records stay at {from}: {error}"),
        Err(open) => {
            format!("{error}; servers decide whether {from} or {to} is in charge when {from} answers ({open})")
        }
    };
    Error::Unavailable { what }
}

/// Where the records go, as this server sees it, and as others find it.
fn target_of(node: &Node, current: &CurrentCoordinator, to: &CoordinatorMove) -> Result<(Place, String)> {
    match to.to {
        CoordinatorKind::Apart => {
            let none = || Error::invalid("the address of the coordinator is missing; say HOST:PORT");
            let place = Place::parse(to.address.as_ref().ok_or_else(none)?, node.cluster.server())?;
            let (Place::At(text), Some(address)) = (&place, place.address()) else {
                return Err(Error::invalid(format!("{place} is no address of a process; say HOST:PORT")));
            };
            node.cluster.endpoint(address)?;
            Ok((place.clone(), text.clone()))
        }
        CoordinatorKind::Embedded => Ok((Place::Own, own_place(node)?.to_string())),
        CoordinatorKind::Etcd => {
            let info = node.cluster.registry().etcd()?.unwrap_or_default();
            let addresses = info.addresses();
            if addresses.is_empty() {
                let make = "`hekate coordinator etcd` makes a member on a server";
                return Err(Error::invalid(format!("the cluster has no etcd that is ready; {make}")));
            }
            etcd::refresh_credential(current.state(), node.cluster.registry(), keys(node)?.seal())?;
            let place = Place::Etcd(Endpoints::parse(&addresses.join(","))?);
            let text = place.to_string();
            Ok((place, text))
        }
    }
}

/// Where other servers reach a coordinator of this one.
fn own_place(node: &Node) -> Result<Place> {
    let own = node.cluster.server();
    let all = node.endpoints()?;
    let address = all.iter().find(|text| text.starts_with("tcp:")).or(all.first());
    let none = || Error::invalid("this server has no address; run it with `hekate serve --listen ADDRESS:PORT`");
    Ok(Place::Server(own, address.ok_or_else(none)?.clone()))
}

/// Where the coordinator is, for another server.
///
/// # Errors
///
/// Those of the coordinator.
pub fn place(node: &Node) -> Result<PlaceOfCoordinator> {
    let place = match node.cluster.coordinator_place() {
        Place::Own => own_place(node)?,
        other => other,
    };
    let info = if let Place::Etcd(_) = place { node.cluster.registry().etcd()? } else { None };
    let etcd = info.map(|info| serde_json::to_string(&info).map_err(|e| Error::bug(e.to_string()))).transpose()?;
    Ok(PlaceOfCoordinator { place: place.to_string(), etcd })
}

/// # Errors
///
/// See [`etcd::prepare`].
fn prepare(node: &Node, call: &EtcdPrepare) -> Result<EtcdFiles> {
    etcd::prepare(node.cluster.registry(), keys(node)?, node.cluster.id(), call)
}

/// # Errors
///
/// See [`etcd::finish`].
fn finish(node: &Node) -> Result<EtcdMemberStatus> {
    etcd::finish(node.cluster.registry(), keys(node)?).map(|member| row_of(&member, "ready"))
}

/// # Errors
///
/// See [`etcd::remove`].
fn remove(node: &Node, name: &str) -> Result<EtcdMemberStatus> {
    etcd::remove(node.cluster.registry(), keys(node)?, name).map(|member| row_of(&member, "removed"))
}

fn row_of(member: &EtcdMember, state: &str) -> EtcdMemberStatus {
    let (name, address) = (member.name.clone(), member.client_url());
    EtcdMemberStatus { name, address, state: state.into(), ..EtcdMemberStatus::default() }
}
