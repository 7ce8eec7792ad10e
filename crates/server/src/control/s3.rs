//! The S3 door: which volumes have one, and access keys.

use crate::control::encode;
use crate::hosting::authority::{hex, seconds, unhex};
use crate::hosting::keys::Keys;
use crate::hosting::node::Node;
use hekate_cluster::{S3DoorInfo, S3Grant, S3KeyInfo, S3Tls, VolumeInfo};
use hekate_control::ControlRequest;
use hekate_control::s3::*;
use hekate_metrics::S3Counters;
use hekate_proto::{Error, Result, VolumeId};
use hekate_threads::time_of_day;
use serde_json::Value;
use std::collections::BTreeMap;

/// Bytes of a secret access key before its encoding.
const SECRET_BYTES: usize = 30;
/// Lengths of ids and secrets that are brought along, as clients accept them.
const ID_LENGTHS: std::ops::RangeInclusive<usize> = 3..=128;
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 8..=128;
const REGION: &str = "us-east-1";

/// Answers a request about the S3 door.
pub fn act(node: &Node, request: ControlRequest) -> Result<Value> {
    match request {
        ControlRequest::S3Enable(call) => encode::<S3Enable>(enable(node, &call)),
        ControlRequest::S3Disable(call) => encode::<S3Disable>(disable(node, &call.volume)),
        ControlRequest::S3List(_) => encode::<S3List>(list(node)),
        ControlRequest::S3KeyCreate(call) => encode::<S3KeyCreate>(create_key(node, call)),
        ControlRequest::S3KeyList(call) => encode::<S3KeyList>(list_keys(node, call.volume.as_deref())),
        ControlRequest::S3KeySet(call) => encode::<S3KeySet>(set_key(node, &call)),
        ControlRequest::S3KeyDelete(call) => encode::<S3KeyDelete>(node.cluster.registry().delete_s3_key(&call.id)),
        ControlRequest::S3Secrets(call) => encode::<S3Secrets>(secrets(node, &call.volume)),
        _ => Err(Error::bug("a request that is not about the S3 door")),
    }
}

fn volume(node: &Node, name: &str) -> Result<VolumeInfo> {
    node.cluster.registry().volume(name)?.ok_or_else(|| node.no_volume(name))
}

fn check_listen(listen: &[String]) -> Result<()> {
    if listen.is_empty() {
        return Err(Error::invalid("name an address with --listen, as 0.0.0.0:9000"));
    }
    for address in listen {
        if address.parse::<std::net::SocketAddr>().is_err() {
            return Err(Error::invalid(format!("{address} is no ADDRESS:PORT; say 0.0.0.0:9000, or [::]:9000")));
        }
    }
    Ok(())
}

fn enable(node: &Node, call: &S3Enable) -> Result<S3DoorStatus> {
    let volume = volume(node, &call.volume)?;
    check_listen(&call.listen)?;
    let tls = match (&call.certificate, &call.key) {
        (Some(certificate), Some(key)) if !call.plain => {
            S3Tls::Files { certificate: certificate.clone(), key: key.clone() }
        }
        (None, None) if call.plain => S3Tls::None,
        (None, None) => S3Tls::Cluster { names: call.names.clone() },
        (Some(_), Some(_)) => return Err(Error::invalid("--http needs no certificate; leave one of both away")),
        _ => return Err(Error::invalid("--certificate and --key belong together")),
    };
    let info = S3DoorInfo {
        volume: volume.volume.0,
        listen: call.listen.clone(),
        tls,
        domain: call.domain.clone(),
        region: call.region.clone().unwrap_or_else(|| REGION.into()),
        change: 0,
    };
    for other in node.cluster.registry().s3_doors()?.iter().filter(|other| other.volume != info.volume) {
        if let Some(taken) = other.listen.iter().find(|address| info.listen.contains(address)) {
            return Err(Error::invalid(format!("the door of another volume listens at {taken}; name another port")));
        }
    }
    let info = node.cluster.registry().set_s3_door(&info)?;
    status(node, &info, volume.name)
}

fn disable(node: &Node, name: &str) -> Result<()> {
    let found = volume(node, name)?;
    let doors = node.cluster.registry().s3_doors()?;
    if doors.iter().all(|door| door.volume != found.volume.0) {
        return Err(Error::invalid(format!("the S3 door of volume {name} is not open")));
    }
    node.cluster.registry().remove_s3_door(found.volume)
}

fn list(node: &Node) -> Result<Vec<S3DoorStatus>> {
    let names = names_of_volumes(node)?;
    let doors = node.cluster.registry().s3_doors()?;
    let known = doors.iter().filter_map(|door| Some((door, names.get(&door.volume)?)));
    known.map(|(door, name)| status(node, door, name.clone())).collect()
}

fn status(node: &Node, info: &S3DoorInfo, volume: String) -> Result<S3DoorStatus> {
    let (open, failure) = match node.s3_doors.lock().get(&info.volume) {
        Some(Ok((change, open))) if *change == info.change => (open.clone(), None),
        Some(Err(why)) => (Vec::new(), Some(why.clone())),
        _ => (Vec::new(), None),
    };
    let tls = match info.tls {
        S3Tls::None => "none",
        S3Tls::Cluster { .. } => "cluster",
        S3Tls::Files { .. } => "files",
    };
    let roots = match info.tls {
        S3Tls::Cluster { .. } => Some(crate::hosting::authority::record(node.cluster.registry())?.roots.concat()),
        _ => None,
    };
    let (listen, domain, region) = (info.listen.clone(), info.domain.clone(), info.region.clone());
    Ok(S3DoorStatus { volume, listen, open, failure, tls: tls.into(), domain, region, roots })
}

fn names_of_volumes(node: &Node) -> Result<BTreeMap<u32, String>> {
    let volumes = node.cluster.registry().volumes()?;
    Ok(volumes.into_iter().map(|volume| (volume.volume.0, volume.name)).collect())
}

fn keys(node: &Node) -> Result<&Keys> {
    node.keys().ok_or_else(|| Error::invalid("this server has no key that seals secrets; make the cluster anew"))
}

/// The name under which a secret is sealed.
fn sealed_as(id: &str) -> String {
    format!("s3-key-{id}")
}

fn create_key(node: &Node, call: S3KeyCreate) -> Result<S3KeyCreated> {
    let volume = volume(node, &call.volume)?;
    let id = match call.id {
        Some(id) => id,
        None => format!("HK{}", text_of(&random::<18>()?, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
    };
    let secret = match call.secret {
        Some(secret) => secret,
        None => {
            text_of(&random::<SECRET_BYTES>()?, b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
        }
    };
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+=".contains(&byte));
    if !ID_LENGTHS.contains(&id.len()) || !is_plain(&id) {
        return Err(Error::invalid("an access key id has 3 to 128 letters, digits and -_.+="));
    }
    if !SECRET_LENGTHS.contains(&secret.len()) || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::invalid("a secret access key has 8 to 128 visible ASCII characters"));
    }
    let grant = |write: bool| if write { S3Grant::Write } else { S3Grant::Read };
    let buckets = call.buckets.map(|buckets| buckets.into_iter().map(|(name, write)| (name, grant(write))).collect());
    let sealed = hex(&keys(node)?.seal().seal(&sealed_as(&id), secret.as_bytes())?);
    let made = node.cluster.registry().create_s3_key(&S3KeyInfo {
        id: id.clone(),
        volume: volume.volume.0,
        sealed,
        user: call.user,
        uid: call.uid,
        gid: call.gid,
        read_only: call.read_only,
        buckets,
        disabled: false,
        created: seconds(time_of_day()),
        change: 1,
    });
    match made {
        Err(Error::Exists) => Err(Error::invalid(format!("there is an access key {id} already"))),
        made => made.map(|()| S3KeyCreated { id, secret }),
    }
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    for chunk in bytes.chunks_mut(8) {
        let number = hekate_threads::random().map_err(|e| Error::io("random bytes", e))?.to_le_bytes();
        chunk.copy_from_slice(&number[..chunk.len()]);
    }
    Ok(bytes)
}

/// A character of the alphabet, whose length divides 256, for each byte.
fn text_of(bytes: &[u8], alphabet: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(alphabet[usize::from(*byte) % alphabet.len()])).collect()
}

fn list_keys(node: &Node, volume: Option<&str>) -> Result<Vec<S3KeyStatus>> {
    let names = names_of_volumes(node)?;
    if let Some(name) = volume
        && names.values().all(|known| known != name)
    {
        return Err(node.no_volume(name));
    }
    let all = node.cluster.registry().s3_keys()?.into_iter();
    let keys = all.filter_map(|key| Some(key_status(&key, names.get(&key.volume)?.clone())));
    Ok(keys.filter(|key| volume.is_none_or(|name| key.volume == name)).collect())
}

fn key_status(key: &S3KeyInfo, volume: String) -> S3KeyStatus {
    let is_write = |grant: &S3Grant| *grant == S3Grant::Write;
    let buckets = key.buckets.as_ref();
    S3KeyStatus {
        id: key.id.clone(),
        volume,
        user: key.user.clone(),
        uid: key.uid,
        gid: key.gid,
        read_only: key.read_only,
        buckets: buckets.map(|all| all.iter().map(|(name, grant)| (name.clone(), is_write(grant))).collect()),
        disabled: key.disabled,
        created: key.created,
    }
}

fn set_key(node: &Node, call: &S3KeySet) -> Result<S3KeyStatus> {
    let key = node.cluster.registry().set_s3_key_disabled(&call.id, call.disabled)?;
    let volume = names_of_volumes(node)?.remove(&key.volume).unwrap_or_default();
    Ok(key_status(&key, volume))
}

fn secrets(node: &Node, name: &str) -> Result<Vec<S3Secret>> {
    let found = volume(node, name)?;
    node.s3_secrets(found.volume, name)
}

impl Node {
    /// The keys of a volume that are not disabled, with their secrets. A key whose secret cannot be opened is left out
    /// and logged.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn s3_secrets(&self, volume: VolumeId, name: &str) -> Result<Vec<S3Secret>> {
        let seal = keys(self)?.seal();
        let mut all = Vec::new();
        for key in self.cluster.registry().s3_keys()? {
            if key.volume != volume.0 || key.disabled {
                continue;
            }
            let opened = unhex(&key.sealed).and_then(|sealed| seal.open(&sealed_as(&key.id), &sealed).ok());
            match opened.and_then(|secret| String::from_utf8(secret).ok()) {
                Some(secret) => all.push(S3Secret { key: key_status(&key, name.into()), secret }),
                None => log::error!("the secret of access key {} cannot be opened; make another key", key.id),
            }
        }
        Ok(all)
    }

    /// The volumes whose S3 door is open, by name.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn s3_doors(&self) -> Result<Vec<(String, S3DoorInfo)>> {
        let doors = self.cluster.registry().s3_doors()?;
        if doors.is_empty() {
            return Ok(Vec::new());
        }
        let names = names_of_volumes(self)?;
        Ok(doors.into_iter().filter_map(|door| Some((names.get(&door.volume)?.clone(), door))).collect())
    }

    /// Notes that the door of a volume is open here as the record with this number of changes says, or why it is not.
    pub fn note_s3_door(&self, volume: u32, state: Option<std::result::Result<(u64, Vec<String>), String>>) {
        let mut doors = self.s3_doors.lock();
        match state {
            Some(state) => drop(doors.insert(volume, state)),
            None => drop(doors.remove(&volume)),
        }
    }

    /// Notes what the door of a volume has counted since it was opened; `None`: it is closed.
    pub fn note_s3_counters(&self, volume: u32, counters: Option<S3Counters>) {
        let mut all = self.s3_counters.lock();
        match counters {
            Some(counters) => drop(all.insert(volume, counters)),
            None => drop(all.remove(&volume)),
        }
    }

    /// A certificate of the cluster's authority for a door, with its key: PEM.
    ///
    /// # Errors
    ///
    /// `Invalid` if a name is neither a name nor an address; those of the coordinator.
    pub fn s3_certificate(&self, names: &[String]) -> Result<hekate_tls::KeyedCertificate> {
        let opened = crate::hosting::authority::read(self.cluster.registry(), keys(self)?.seal())?;
        opened.for_names(names)
    }
}
