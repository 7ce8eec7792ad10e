//! The authority of the cluster's etcd. It is apart from the cluster's own: etcd lets in whoever has a certificate of
//! the authority that it trusts, and the cluster's clients must not reach the records.

use crate::authority::{authority_params, failed, issuer, name, validity};
use crate::certificate::{CertificateInfo, pem_of, pems};
use hekate_proto::{Error, Result};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// The authority's certificate and key. PEM.
#[derive(Clone, Serialize, Deserialize)]
pub struct EtcdAuthority {
    cluster: String,
    certificate: String,
    key: String,
}

impl std::fmt::Debug for EtcdAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EtcdAuthority({})", self.cluster)
    }
}

/// A certificate and its key. PEM.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyedCertificate {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for KeyedCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyedCertificate({} bytes)", self.certificate.len())
    }
}

impl KeyedCertificate {
    /// The lifetime of the certificate.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read.
    pub fn info(&self) -> Result<CertificateInfo> {
        let chain = pems(&self.certificate)?;
        CertificateInfo::of(chain.first().ok_or_else(|| Error::invalid("there is no certificate"))?)
    }
}

impl EtcdAuthority {
    /// # Errors
    /// `Bug` if no key can be made.
    pub fn create(cluster: &str, life: Duration, now: SystemTime) -> Result<Self> {
        let key = KeyPair::generate().map_err(failed)?;
        let params = authority_params(cluster, "etcd", BasicConstraints::Constrained(0), life, now)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        Ok(Self { cluster: cluster.into(), certificate: pem_of(certificate.der()), key: key.serialize_pem() })
    }

    /// PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    fn info(&self) -> Result<CertificateInfo> {
        let chain = pems(&self.certificate)?;
        CertificateInfo::of(chain.first().ok_or_else(|| Error::invalid("the authority of etcd has no certificate"))?)
    }

    /// Issues the certificate of a member, which other members and clients reach at these names or IP addresses.
    ///
    /// # Errors
    /// `Invalid` if one is neither a name nor an address.
    pub fn member(&self, names: &[String], life: Duration, now: SystemTime) -> Result<KeyedCertificate> {
        let params = CertificateParams::new(names).map_err(failed)?;
        // A member is also a client of the other members.
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, usages, names.first().map_or("member", |first| first), life, now)
    }

    /// Issues the certificate of a client.
    ///
    /// # Errors
    /// `Invalid` if the authority's own certificate or key cannot be read.
    pub fn client(&self, holder: &str, life: Duration, now: SystemTime) -> Result<KeyedCertificate> {
        self.issue(CertificateParams::default(), vec![ExtendedKeyUsagePurpose::ClientAuth], holder, life, now)
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        usages: Vec<ExtendedKeyUsagePurpose>,
        common: &str,
        life: Duration,
        now: SystemTime,
    ) -> Result<KeyedCertificate> {
        let key = KeyPair::generate().map_err(failed)?;
        params.distinguished_name = name(common, &self.cluster);
        // As old as the authority, so that what is issued while a clock is ahead is valid once it has been set back:
        // without it no server reaches the records, and none could be renewed. It lives long, so renewal is early by
        // less than the age of the authority.
        (_, params.not_after) = validity(life, now);
        params.not_before = self.info()?.not_before.into();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer(&self.certificate, &self.key)?).map_err(failed)?;
        Ok(KeyedCertificate { certificate: pem_of(certificate.der()), key: key.serialize_pem() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_issued_while_the_clock_is_ahead_is_valid_once_it_is_set_back() {
        let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
        let authority = EtcdAuthority::create("c", 3650 * day, now).unwrap();
        let ahead = now + 3650 * day;
        for issued in [authority.client("server-1", 1825 * day, ahead), authority.member(&["db1".into()], day, ahead)] {
            let info = issued.unwrap().info().unwrap();
            assert!(info.is_valid_at(now) && info.is_valid_at(ahead), "{info:?}");
        }
        // However old the authority is, a new certificate is not to be renewed at once.
        let late = authority.client("server-1", 1825 * day, now + 3600 * day).unwrap().info().unwrap();
        assert!(!late.is_due_at(now + 3600 * day), "{late:?}");
    }

    #[test]
    fn certificates_of_members_and_clients_end_as_they_were_asked_to() {
        let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
        let authority = EtcdAuthority::create("c", 3650 * day, now).unwrap();
        let member = authority.member(&["10.0.0.1".into(), "db1".into()], 90 * day, now).unwrap();
        let left = member.info().unwrap().not_after.duration_since(now).unwrap();
        assert!(left > 89 * day && left < 91 * day, "{left:?}");
        assert!(authority.client("server-1", day, now).unwrap().certificate.contains("BEGIN CERTIFICATE"));
        assert!(!format!("{authority:?} {member:?}").contains("PRIVATE"));
    }
}
