//! The S3 door: which volumes have one, and access keys.

use crate::control::doors::{self, keys, names_of_volumes, volume};
use crate::control::encode;
use crate::hosting::authority::{hex, seconds, unhex};
use crate::hosting::node::Node;
use hekate_cluster::{S3DoorInfo, S3Grant, S3KeyInfo, S3Tls};
use hekate_control::ControlRequest;
use hekate_control::s3::*;
use hekate_metrics::S3Counters;
use hekate_proto::{Error, Result, VolumeId};
use hekate_threads::time_of_day;
use serde_json::Value;

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
        ControlRequest::S3Disable(call) => {
            encode::<S3Disable>(doors::close::<S3DoorInfo>(node, &call.volume, "hekate s3 list"))
        }
        ControlRequest::S3List(_) => encode::<S3List>(list(node)),
        ControlRequest::S3KeyCreate(call) => encode::<S3KeyCreate>(create_key(node, call)),
        ControlRequest::S3KeyList(call) => encode::<S3KeyList>(list_keys(node, call.volume.as_deref())),
        ControlRequest::S3KeySet(call) => encode::<S3KeySet>(set_key(node, &call)),
        ControlRequest::S3KeyDelete(call) => encode::<S3KeyDelete>(node.cluster.registry().delete_s3_key(&call.id)),
        ControlRequest::S3Secrets(call) => encode::<S3Secrets>(secrets(node, &call.volume)),
        _ => Err(Error::bug("a request that is not about the S3 door")),
    }
}

fn enable(node: &Node, call: &S3Enable) -> Result<S3DoorStatus> {
    let volume = volume(node, &call.volume)?;
    if call.listen.is_empty() {
        return Err(Error::invalid("name an address with --listen, as 0.0.0.0:9000"));
    }
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
    let info = doors::open(node, &info)?;
    status(node, &info, volume.name)
}

fn list(node: &Node) -> Result<Vec<S3DoorStatus>> {
    node.doors::<S3DoorInfo>()?.into_iter().map(|(name, door)| status(node, &door, name)).collect()
}

fn status(node: &Node, info: &S3DoorInfo, volume: String) -> Result<S3DoorStatus> {
    let (open, failure) = node.state_of_door(info);
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

    /// Notes what the door of a volume has counted since it was opened; `None`: it is closed.
    pub fn note_s3_counters(&self, volume: u32, counters: Option<S3Counters>) {
        let mut all = self.s3_counters.lock();
        match counters {
            Some(counters) => drop(all.insert(volume, counters)),
            None => drop(all.remove(&volume)),
        }
    }
}
