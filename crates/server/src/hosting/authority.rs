//! The cluster's authority: its issuing key lies sealed in the coordinator, so that any server signs.

use hekate_cluster::{AuthorityInfo, Registry};
use hekate_proto::{Error, Result};
use hekate_threads::time_of_day;
use hekate_tls::{Authority, CertificateInfo, Context, Credential, Holder, Lifetimes, Root, SealKey, pems};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The name under which the issuing key is sealed.
const ISSUING: &str = "issuing";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A certificate that was issued.
pub struct Issued {
    /// PEM: the certificate, and the issuing certificate.
    pub chain: String,
    /// PEM: the roots of the cluster.
    pub roots: String,
    pub info: CertificateInfo,
    /// [`AuthorityInfo::change`].
    pub authority: u64,
}

/// Makes the authority of a new cluster and records it. Returns its root.
///
/// # Errors
///
/// `Exists` if the cluster has one; those of the coordinator.
pub fn create(registry: &Registry, seal: &SealKey, cluster: &str) -> Result<Root> {
    let (lives, now) = (Lifetimes::default(), time_of_day());
    let (root, issuing) = new_root(cluster, &lives, now)?;
    registry.create_authority(&AuthorityInfo {
        roots: vec![root.certificate.clone()],
        issuing: sealed(seal, &issuing)?,
        next: None,
        server_days: lives.server,
        client_days: lives.client,
        change: 1,
    })?;
    Ok(root)
}

fn new_root(cluster: &str, lives: &Lifetimes, now: SystemTime) -> Result<(Root, Authority)> {
    let root = Root::create(cluster, DAY * lives.root, now)?;
    let issuing = root.authorise(cluster, DAY * lives.issuing, now)?;
    Ok((root, issuing))
}

fn sealed(seal: &SealKey, authority: &Authority) -> Result<String> {
    let bytes = serde_json::to_vec(authority).map_err(|e| Error::bug(e.to_string()))?;
    Ok(hex(&seal.seal(ISSUING, &bytes)?))
}

fn opened(seal: &SealKey, text: &str) -> Result<Authority> {
    let damaged = |e: String| Error::Damaged { what: format!("the record of the cluster's authority: {e}") };
    let bytes = seal.open(ISSUING, &unhex(text).ok_or_else(|| damaged("it is not in hex digits".into()))?)?;
    serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))
}

/// The authority's record.
///
/// # Errors
///
/// `Invalid` if the cluster has none; those of the coordinator.
pub fn record(registry: &Registry) -> Result<AuthorityInfo> {
    registry.authority()?.ok_or_else(|| Error::invalid("the cluster has no authority; make it anew with `hekate init`"))
}

/// The issuing certificate.
///
/// # Errors
///
/// As of [`issue`].
pub fn issuing(registry: &Registry, seal: &SealKey) -> Result<CertificateInfo> {
    opened(seal, &record(registry)?.issuing)?.info()
}

/// The oldest root that is trusted.
///
/// # Errors
///
/// `Invalid` if the cluster has no authority; those of the coordinator.
pub fn first_root(registry: &Registry) -> Result<CertificateInfo> {
    let roots = pems(&record(registry)?.roots.concat())?;
    let none = || Error::Damaged { what: "the record of the cluster's authority has no root".into() };
    CertificateInfo::of(roots.first().ok_or_else(none)?)
}

/// PEM: the issuing certificate.
///
/// # Errors
///
/// As of [`issue`].
pub fn issuing_chain(registry: &Registry, seal: &SealKey) -> Result<String> {
    Ok(opened(seal, &record(registry)?.issuing)?.certificate().into())
}

/// Issues a certificate. `life`: its lifetime; `None`: as the cluster has it set.
///
/// # Errors
///
/// `Invalid` if this is no public key; `Denied` if the key that seals the cluster's secrets is not this server's, or the
/// issuing certificate has expired; those of the coordinator.
pub fn issue(
    registry: &Registry,
    seal: &SealKey,
    holder: &Holder,
    public_key: &[u8],
    life: Option<Duration>,
) -> Result<Issued> {
    let record = record(registry)?;
    let usual = match holder {
        Holder::Server(_) => DAY * record.server_days,
        Holder::Client(_) => DAY * record.client_days,
    };
    let authority = opened(seal, &record.issuing)?;
    let (chain, _) = authority.issue(holder, public_key, life.unwrap_or(usual), time_of_day())?;
    let first = pems(&chain)?.first().map(|first| CertificateInfo::of(first)).transpose()?;
    let info = first.ok_or_else(|| Error::bug("a certificate was issued, and there is none"))?;
    Ok(Issued { chain, roots: record.roots.concat(), info, authority: record.change })
}

/// Issues a credential with a new key for a server.
///
/// # Errors
///
/// As of [`issue`].
pub fn server_credential(registry: &Registry, seal: &SealKey, cluster: &str, holder: &Holder) -> Result<Credential> {
    let (key, public) = Credential::make_key()?;
    let Issued { chain, roots, .. } = issue(registry, seal, holder, &public, None)?;
    Ok(Credential { cluster: cluster.into(), network: String::new(), servers: Vec::new(), roots, chain, key })
}

/// Begins a rotation: a new root is trusted beside the old one. Returns the new root.
///
/// # Errors
///
/// `Invalid` if a rotation has begun already; those of the coordinator.
pub fn start_rotation(registry: &Registry, seal: &SealKey, cluster: &str) -> Result<Root> {
    let (root, issuing) = new_root(cluster, &Lifetimes::default(), time_of_day())?;
    let next = sealed(seal, &issuing)?;
    registry.change_authority(|info| {
        if info.next.as_ref() == Some(&next) {
            return Ok(false);
        }
        if info.next.is_some() || info.roots.len() > 1 {
            return Err(wrong_step(info));
        }
        info.next = Some(next.clone());
        info.roots.push(root.certificate.clone());
        Ok(true)
    })?;
    Ok(root)
}

/// The second step of a rotation: new certificates are signed below the new root.
///
/// # Errors
///
/// `Invalid` if it is not the next step; those of the coordinator.
pub fn switch_rotation(registry: &Registry) -> Result<AuthorityInfo> {
    let mut switched = None;
    registry.change_authority(|info| {
        if switched.as_ref() == Some(&info.issuing) {
            return Ok(false);
        }
        info.issuing = info.next.take().ok_or_else(|| wrong_step(info))?;
        switched = Some(info.issuing.clone());
        Ok(true)
    })
}

/// The last step of a rotation: the old root is trusted no more.
///
/// # Errors
///
/// `Invalid` if it is not the next step; those of the coordinator.
pub fn finish_rotation(registry: &Registry) -> Result<AuthorityInfo> {
    let mut finished = false;
    registry.change_authority(|info| {
        if finished && info.roots.len() == 1 {
            return Ok(false);
        }
        if info.next.is_some() || info.roots.len() < 2 {
            return Err(wrong_step(info));
        }
        info.roots.drain(..info.roots.len() - 1);
        finished = true;
        Ok(true)
    })
}

/// The step of a rotation that is next.
pub fn next_step(info: &AuthorityInfo) -> &'static str {
    match (&info.next, info.roots.len()) {
        (Some(_), _) => "switch",
        (None, 0 | 1) => "start",
        (None, _) => "finish",
    }
}

fn wrong_step(info: &AuthorityInfo) -> Error {
    Error::invalid(format!("the next step of a rotation is `hekate ca rotate {}`", next_step(info)))
}

/// SHA-256 of the certificate of the root below which certificates are signed now.
///
/// # Errors
///
/// `Damaged` if the record has no root.
pub fn fingerprint(info: &AuthorityInfo) -> Result<String> {
    let none = || Error::Damaged { what: "the record of the cluster's authority has no root".into() };
    let signing = if info.next.is_some() { info.roots.first() } else { info.roots.last() };
    let roots = pems(signing.ok_or_else(none)?)?;
    Ok(Context::fingerprint(roots.first().ok_or_else(none)?))
}

/// Seconds since 1970.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hex digits; `None` if the text has other characters, or half a byte.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect())?
}
