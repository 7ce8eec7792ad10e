//! The cluster's authority: its issuing key lies sealed in the coordinator, so that any server signs.

use crate::hosting::keys::Keys;
use hekate_cluster::{AuthorityInfo, Registry};
use hekate_proto::{Error, Result};
use hekate_threads::time_of_day;
use hekate_tls::{
    Authority, CertificateInfo, Context, Credential, Holder, KeyedCertificate, Lifetimes, Root, SealKey, pems,
};
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

/// The authority as one read of its record found it, with its issuing key.
pub struct Opened {
    pub record: AuthorityInfo,
    issuing: Authority,
}

/// Reads the authority's record, and opens its issuing key.
///
/// # Errors
///
/// `Invalid` if the cluster has none; `Denied` if the key that seals the cluster's secrets is not this server's; those of
/// the coordinator.
pub fn read(registry: &Registry, seal: &SealKey) -> Result<Opened> {
    let record = record(registry)?;
    Ok(Opened { issuing: opened(seal, &record.issuing)?, record })
}

/// A certificate, with what an operator calls it.
pub struct Named {
    pub name: &'static str,
    pub der: Vec<u8>,
    pub info: CertificateInfo,
}

impl Opened {
    /// Issues a certificate. `life`: its lifetime; `None`: as the cluster has it set.
    ///
    /// # Errors
    ///
    /// `Invalid` if this is no public key; `Denied` if the issuing certificate has expired.
    pub fn issue(&self, holder: &Holder, public_key: &[u8], life: Option<Duration>) -> Result<Issued> {
        let days = match holder {
            Holder::Server(_) => self.record.server_days,
            Holder::Client(_) => self.record.client_days,
        };
        let (chain, _) = self.issuing.issue(holder, public_key, life.unwrap_or(DAY * days), time_of_day())?;
        let first = pems(&chain)?.first().map(|first| CertificateInfo::of(first)).transpose()?;
        let info = first.ok_or_else(|| Error::bug("a certificate was issued, and there is none"))?;
        Ok(Issued { chain, roots: self.record.roots.concat(), info, authority: self.record.change })
    }

    /// Issues the certificate of an HTTPS server with these names and addresses, which lives as long as a server's.
    ///
    /// # Errors
    ///
    /// `Invalid` if one is neither a name nor an address; `Denied` if the issuing certificate has expired.
    pub fn for_names(&self, names: &[String]) -> Result<KeyedCertificate> {
        self.issuing.issue_for_names(names, DAY * self.record.server_days, time_of_day())
    }

    /// Issues a credential with a new key for a server.
    ///
    /// # Errors
    ///
    /// As of [`Opened::issue`].
    pub fn server_credential(&self, holder: &Holder) -> Result<Credential> {
        let (key, public) = Credential::make_key()?;
        let Issued { chain, roots, .. } = self.issue(holder, &public, None)?;
        let cluster = self.issuing.cluster().to_string();
        Ok(Credential { cluster, network: String::new(), servers: Vec::new(), roots, chain, key })
    }

    /// A new credential for the holder of these keys, if two thirds of the life of its certificate are over, the
    /// certificate or that in the file is not valid yet, or the authority has changed since it was issued.
    ///
    /// # Errors
    ///
    /// As of [`Opened::issue`].
    pub fn renewed(&self, keys: &Keys, holder: &Holder) -> Result<Option<Credential>> {
        let Some(current) = keys.context().credential() else { return Ok(None) };
        let is_current =
            current.roots == self.record.roots.concat() && current.chain.ends_with(self.issuing.certificate());
        if is_current && !keys.is_due()? {
            return Ok(None);
        }
        self.server_credential(holder).map(Some)
    }

    /// The issuing certificate and the roots.
    ///
    /// # Errors
    ///
    /// `Invalid` if one cannot be read.
    pub fn certificates(&self) -> Result<Vec<Named>> {
        let mut found = Vec::new();
        for (name, text) in [("the issuing key", self.issuing.certificate()), ("the root", &self.record.roots.concat())]
        {
            for der in pems(text)? {
                found.push(Named { name, info: CertificateInfo::of(&der)?, der: der.to_vec() });
            }
        }
        Ok(found)
    }
}

/// Sets the lifetimes of certificates that are issued from now on, in days. `None`: as it is.
///
/// # Errors
///
/// `Invalid` if one is 0, or longer than that of an issuing certificate; those of the coordinator.
pub fn set_lifetimes(registry: &Registry, server: Option<u32>, client: Option<u32>) -> Result<AuthorityInfo> {
    let most = Lifetimes::default().issuing;
    if let Some(wrong) = [server, client].into_iter().flatten().find(|days| !(1..=most).contains(days)) {
        return Err(Error::invalid(format!("a certificate cannot live for {wrong} days; say 1 to {most}")));
    }
    registry.change_authority(|info| {
        let before = (info.server_days, info.client_days);
        info.server_days = server.unwrap_or(info.server_days);
        info.client_days = client.unwrap_or(info.client_days);
        Ok(before != (info.server_days, info.client_days))
    })
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
