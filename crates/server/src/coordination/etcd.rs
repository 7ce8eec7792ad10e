//! etcd as the coordinator of a cluster: certificates that let this server in, and the members that the cluster makes.
//! `docs/format/credential.md` describes the files in the directory `etcd` of a state directory.

use crate::hosting::authority::{hex, unhex};
use crate::hosting::keys::{Keys, write_private};
use hekate_cluster::{EtcdInfo, EtcdMember, Registry, ServerInfo};
use hekate_control::coordinator::{EtcdFiles, EtcdPrepare};
use hekate_etcd::{Credential, Endpoints, Member, Members};
use hekate_proto::{Error, Result, ServerId};
use hekate_threads::time_of_day;
use hekate_tls::{EtcdAuthority, KeyedCertificate, SealKey};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Lifetimes of the authority, and of the certificates that it signs: those must outlive a cluster that is switched off
/// for long, because nothing can be renewed without its records.
const AUTHORITY_LIFE: Duration = Duration::from_secs(3650 * 24 * 3600);
const CERTIFICATE_LIFE: Duration = Duration::from_secs(1825 * 24 * 3600);
/// Names under which secrets are sealed.
const AUTHORITY: &str = "etcd-authority";
const CLIENT: &str = "etcd-client";

/// The directory of the files for etcd in a state directory.
pub fn directory(state: &Path) -> PathBuf {
    state.join("etcd")
}

/// Reads what lets this server into etcd.
///
/// # Errors
///
/// `Invalid` if there is nothing; `Io` if it cannot be read.
pub fn read_credential(state: &Path) -> Result<Credential> {
    let read = |name: &str| {
        let path = directory(state).join(name);
        match std::fs::read_to_string(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            other => other.map_err(|e| Error::io(format!("read {}", path.display()), e)),
        }
    };
    Ok(Credential { ca: read("ca.pem")?, certificate: read("client.pem")?, key: read("client.key")? })
}

/// Writes what lets this server into etcd.
///
/// # Errors
///
/// `Io` if it cannot be written.
pub fn write_credential(state: &Path, credential: &Credential) -> Result<()> {
    let directory = directory(state);
    std::fs::create_dir_all(&directory).map_err(|e| Error::io(format!("make {}", directory.display()), e))?;
    // The certificate last: a key without its certificate is renewed.
    for (name, text) in
        [("ca.pem", &credential.ca), ("client.key", &credential.key), ("client.pem", &credential.certificate)]
    {
        write_private(&directory.join(name), text.as_bytes())?;
    }
    Ok(())
}

fn seal<T: serde::Serialize>(seal: &SealKey, name: &str, value: &T) -> Result<String> {
    let bytes = serde_json::to_vec(value).map_err(|e| Error::bug(e.to_string()))?;
    Ok(hex(&seal.seal(name, &bytes)?))
}

fn open<T: serde::de::DeserializeOwned>(seal: &SealKey, name: &str, text: &str) -> Result<T> {
    let damaged = |what: String| Error::Damaged { what: format!("the record of etcd: {what}") };
    let bytes = unhex(text).ok_or_else(|| damaged("it is not in hex digits".into()))?;
    serde_json::from_slice(&seal.open(name, &bytes)?).map_err(|e| damaged(e.to_string()))
}

/// The record of an etcd that the cluster has not made.
///
/// # Errors
///
/// `Bug` if the certificate cannot be sealed.
pub fn record_of(endpoints: &Endpoints, credential: &Credential, key: &SealKey) -> Result<EtcdInfo> {
    let Credential { ca, certificate, key: secret } = credential.clone();
    let client = seal(key, CLIENT, &KeyedCertificate { certificate, key: secret })?;
    Ok(EtcdInfo { ca, client: Some(client), endpoints: endpoints.all().to_vec(), change: 1, ..EtcdInfo::default() })
}

fn authority(info: &EtcdInfo, key: &SealKey) -> Result<EtcdAuthority> {
    let none = || {
        Error::invalid(format!(
            "the cluster uses an etcd that it has not made ({}); its members are managed with etcdctl",
            info.endpoints.join(", ")
        ))
    };
    open(key, AUTHORITY, info.authority.as_ref().ok_or_else(none)?)
}

/// What lets a server into etcd.
///
/// # Errors
///
/// `Denied` if the record was sealed with another key.
pub fn credential_for(info: &EtcdInfo, key: &SealKey, server: ServerId) -> Result<Credential> {
    let own: KeyedCertificate = match &info.client {
        Some(client) => open(key, CLIENT, client)?,
        None => authority(info, key)?.client(&ServerInfo::name_of(server), CERTIFICATE_LIFE, time_of_day())?,
    };
    Ok(Credential { ca: info.ca.clone(), certificate: own.certificate, key: own.key })
}

fn is_good(certificate: &str) -> bool {
    let found = KeyedCertificate { certificate: certificate.into(), key: String::new() }.info();
    found.is_ok_and(|info| !info.is_due_at(time_of_day()))
}

/// Writes the files of this server for etcd if they are missing or old: what lets it in, and the certificate of the
/// member beside it. Returns true if what lets it in has changed.
///
/// # Errors
///
/// Those of the coordinator, and `Io` if a file cannot be written.
pub fn refresh_credential(state: &Path, registry: &Registry, key: &SealKey) -> Result<bool> {
    let Some(info) = registry.etcd()? else { return Ok(false) };
    if let Some(member) = info.member_of(registry.server()) {
        refresh_member(state, &info, key, member)?;
    }
    let before = read_credential(state)?;
    let is_current = match &info.client {
        Some(client) => {
            let named: KeyedCertificate = open(key, CLIENT, client)?;
            before.certificate == named.certificate && before.key == named.key
        }
        None => is_good(&before.certificate),
    };
    if is_current && before.ca == info.ca {
        return Ok(false);
    }
    write_credential(state, &credential_for(&info, key, registry.server())?)?;
    Ok(true)
}

/// etcd reads the certificate of a member anew for each connection.
fn refresh_member(state: &Path, info: &EtcdInfo, key: &SealKey, member: &EtcdMember) -> Result<()> {
    let path = directory(state).join("member.pem");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    if before.is_empty() || is_good(&before) {
        return Ok(());
    }
    let renewed = member_certificate(info, key, &member.host)?;
    write_private(&directory(state).join("member.key"), renewed.key.as_bytes())?;
    write_private(&path, renewed.certificate.as_bytes())
}

fn member_certificate(info: &EtcdInfo, key: &SealKey, host: &str) -> Result<KeyedCertificate> {
    let names: Vec<String> = [host, "localhost", "127.0.0.1"].iter().map(|name| (*name).to_string()).collect();
    authority(info, key)?.member(&names, CERTIFICATE_LIFE, time_of_day())
}

/// The record with the authority of the cluster's own members, which is made if there is none.
fn own_record(registry: &Registry, keys: &Keys, cluster: &str) -> Result<EtcdInfo> {
    if let Some(info) = registry.etcd()? {
        return Ok(info);
    }
    let made = EtcdAuthority::create(cluster, AUTHORITY_LIFE, time_of_day())?;
    let authority = Some(seal(keys.seal(), AUTHORITY, &made)?);
    let info = EtcdInfo { ca: made.certificate().into(), authority, change: 1, ..EtcdInfo::default() };
    match registry.create_etcd(&info) {
        Err(Error::Exists) => {}
        other => other?,
    }
    registry.etcd()?.ok_or_else(|| Error::bug("the record of etcd was made, and is missing"))
}

/// The members of etcd, reached through those that are ready.
///
/// # Errors
///
/// `Invalid` if none is.
pub fn members(info: &EtcdInfo, keys: &Keys, server: ServerId) -> Result<Members> {
    let ready = info.addresses();
    if ready.is_empty() {
        return Err(Error::invalid("no member of etcd is ready; `hekate coordinator etcd` makes one"));
    }
    Members::new(Endpoints::parse(&ready.join(","))?, &credential_for(info, keys.seal(), server)?)
}

/// Prepares a member beside this server: its certificate, and what it is started with. With other members there it is
/// added to them, without a vote. Calling it again is harmless.
///
/// # Errors
///
/// `Invalid` if another server makes the first member, or etcd is not the cluster's own; those of etcd.
pub fn prepare(registry: &Registry, keys: &Keys, cluster: &str, call: &EtcdPrepare) -> Result<EtcdFiles> {
    let info = own_record(registry, keys, cluster)?;
    let server = registry.server();
    let name = ServerInfo::name_of(server);
    let member = EtcdMember {
        server,
        name: name.clone(),
        host: call.host.clone(),
        client_port: call.client_port,
        peer_port: call.peer_port,
        is_ready: false,
    };
    let certificate = member_certificate(&info, keys.seal(), &call.host)?;
    let info = registry.change_etcd(|info| {
        let is_first = info.members.iter().all(|other| other.server == server || other.is_ready);
        let is_new = info.member_of(server).is_none() && is_first;
        is_new.then(|| info.members.push(member.clone())).is_some()
    })?;
    let Some(known) = info.member_of(server).cloned() else {
        let other = info.members.iter().find(|other| !other.is_ready).map(|other| other.name.clone());
        let what = format!("{} makes a member of etcd; repeat this when it is ready", other.unwrap_or_default());
        return Err(Error::Unavailable { what });
    };
    if (&known.host, known.client_port, known.peer_port) != (&member.host, member.client_port, member.peer_port) {
        let fix = format!("`hekate coordinator member remove {name}` makes room for another one");
        return Err(Error::invalid(format!("the member of server {server} is at {}; {fix}", known.client_url())));
    }
    let is_new = !info.members.iter().any(|other| other.server != server && other.is_ready);
    let initial = match is_new {
        true => format!("{name}={}", known.peer_url()),
        false => add(&members(&info, keys, server)?, &known)?,
    };
    Ok(EtcdFiles {
        name,
        cluster: cluster.into(),
        is_new,
        initial_cluster: initial,
        client_url: known.client_url(),
        peer_url: known.peer_url(),
        ca: info.ca,
        certificate: certificate.certificate,
        key: certificate.key,
    })
}

/// Adds a member, if it is not there. Returns all members as etcd's option `initial-cluster` has them.
fn add(members: &Members, own: &EtcdMember) -> Result<String> {
    let peer = own.peer_url();
    let is_own = |member: &Member| member.peers.contains(&peer);
    if !members.list()?.iter().any(is_own) {
        members.add_learner(&peer)?;
    }
    let text = |member: &Member| {
        let name = if is_own(member) { &own.name } else { &member.name };
        member.peers.iter().map(|peer| format!("{name}={peer}")).collect::<Vec<_>>()
    };
    Ok(members.list()?.iter().flat_map(text).collect::<Vec<_>>().join(","))
}

/// Gives the member beside this server its vote, if it has none, and records that it is ready.
///
/// # Errors
///
/// `Unavailable` if it does not answer yet, or has not caught up; `Invalid` if there is none.
pub fn finish(registry: &Registry, keys: &Keys) -> Result<EtcdMember> {
    let server = registry.server();
    let info = registry.etcd()?.unwrap_or_default();
    let none = || Error::invalid("this server has no member of etcd; `hekate coordinator etcd` makes one");
    let own = info.member_of(server).ok_or_else(none)?.clone();
    let credential = credential_for(&info, keys.seal(), server)?;
    let beside = Members::new(Endpoints::parse(&own.client_url())?, &credential)?;
    beside.state(&own.client_url())?;
    if info.members.iter().any(|other| other.server != server && other.is_ready) {
        let all = members(&info, keys, server)?;
        let listed = all.list()?.into_iter().find(|member| member.peers.contains(&own.peer_url()));
        let listed = listed.ok_or_else(none)?;
        if listed.is_learner {
            all.promote(&listed.id).map_err(|error| Error::Unavailable { what: error.to_string() })?;
        }
    }
    let ready = |info: &mut EtcdInfo| {
        let own = info.members.iter_mut().find(|member| member.server == server);
        own.is_some_and(|own| !std::mem::replace(&mut own.is_ready, true))
    };
    registry.change_etcd(ready)?;
    Ok(EtcdMember { is_ready: true, ..own })
}

/// Removes a member, also one whose server is gone.
///
/// # Errors
///
/// `Invalid` if there is no such member, or it is the last one; those of etcd.
pub fn remove(registry: &Registry, keys: &Keys, name: &str) -> Result<EtcdMember> {
    let info = registry.etcd()?.unwrap_or_default();
    let known: Vec<&str> = info.members.iter().map(|member| &member.name[..]).collect();
    let none = || Error::invalid(format!("etcd has no member {name}; there are: {}", known.join(", ")));
    let own = info.members.iter().find(|member| member.name == name).ok_or_else(none)?.clone();
    let others = EtcdInfo { members: info.members.iter().filter(|other| **other != own).cloned().collect(), ..info };
    if own.is_ready && others.addresses().is_empty() {
        return Err(Error::invalid(format!(
            "{name} is the last member of etcd; move the records first: `hekate coordinator move --to embedded`"
        )));
    }
    if !others.addresses().is_empty() {
        let all = members(&others, keys, registry.server())?;
        if let Some(member) = all.list()?.into_iter().find(|member| member.peers.contains(&own.peer_url())) {
            all.remove(&member.id)?;
        }
    }
    registry.change_etcd(|info| {
        let before = info.members.len();
        info.members.retain(|member| member.name != name);
        info.members.len() != before
    })?;
    Ok(own)
}
