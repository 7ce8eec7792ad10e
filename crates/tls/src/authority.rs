//! The cluster's authority: a root, whose key can be taken offline, and an issuing key below it that signs the
//! certificates of servers and clients.

use crate::certificate::{BACKDATED, CertificateInfo, Serial, pem_of, private_key};
use crate::etcd::KeyedCertificate;
use crate::identity::{Holder, Identity};
use hekate_proto::{Error, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;

/// Lifetimes of new certificates, in days.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Lifetimes {
    pub root: u32,
    pub issuing: u32,
    pub server: u32,
    pub client: u32,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self { root: 3650, issuing: 1825, server: 90, client: 365 }
    }
}

/// A root: a certificate that signs itself, and its key.
#[derive(Clone)]
pub struct Root {
    /// PEM.
    pub certificate: String,
    /// PKCS #8 in PEM.
    pub key: String,
}

/// The issuing key. Whoever has it can make a certificate of any holder of the cluster.
#[derive(Clone, Serialize, Deserialize)]
pub struct Authority {
    cluster: String,
    /// PEM: the issuing certificate, signed by a root.
    certificate: String,
    /// PKCS #8 in PEM.
    key: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authority({})", self.cluster)
    }
}

impl Root {
    /// Makes a root of a cluster.
    ///
    /// # Errors
    /// `Bug` if no key can be made.
    pub fn create(cluster: &str, life: Duration, now: SystemTime) -> Result<Self> {
        let key = KeyPair::generate().map_err(failed)?;
        let params = authority_params(cluster, "root", BasicConstraints::Constrained(1), life, now)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        Ok(Self { certificate: pem_of(certificate.der()), key: key.serialize_pem() })
    }

    /// Signs a new issuing key.
    ///
    /// # Errors
    /// `Invalid` if this root's certificate or key cannot be read.
    pub fn authorise(&self, cluster: &str, life: Duration, now: SystemTime) -> Result<Authority> {
        let issuer = issuer(&self.certificate, &self.key)?;
        let key = KeyPair::generate().map_err(failed)?;
        let params = authority_params(cluster, "issuing", BasicConstraints::Constrained(0), life, now)?;
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        Ok(Authority { cluster: cluster.into(), certificate: pem_of(certificate.der()), key: key.serialize_pem() })
    }
}

/// A public key for a certificate: an uncompressed point of P-256.
struct PublicKey<'a>(&'a [u8]);

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// Length of an uncompressed point of P-256, in bytes (SEC 1, section 2.3.3).
const POINT_BYTES: usize = 65;

impl Authority {
    /// The cluster's id.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// PEM: the issuing certificate.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The lifetime of the issuing certificate.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read.
    pub fn info(&self) -> Result<CertificateInfo> {
        CertificateInfo::of(&first_certificate(&self.certificate)?)
    }

    /// Signs a certificate for the holder of a public key (an uncompressed point of P-256). Returns its chain in PEM,
    /// the holder's first, and its serial number.
    ///
    /// # Errors
    /// `Invalid` if this is no public key, or the authority's own certificate or key cannot be read.
    pub fn issue(
        &self,
        holder: &Holder,
        public_key: &[u8],
        life: Duration,
        now: SystemTime,
    ) -> Result<(String, Serial)> {
        if public_key.len() != POINT_BYTES || public_key[0] != 4 {
            return Err(Error::invalid("the public key is not an uncompressed point of P-256"));
        }
        let issuer = issuer(&self.certificate, &self.key)?;
        let mut serial = [0u8; 16];
        getrandom::fill(&mut serial).map_err(|e| Error::bug(format!("getrandom: {e}")))?;
        // The number is positive, and none of its bytes is dropped (RFC 5280, section 4.1.2.2).
        serial[0] = serial[0] & 0x3f | 0x40;
        let identity = Identity { cluster: self.cluster.clone(), holder: holder.clone() };
        let mut params = CertificateParams::default();
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.distinguished_name = name(&holder.to_string(), &self.cluster);
        (params.not_before, params.not_after) = validity(life.min(self.left(now)?), now);
        params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into().map_err(failed)?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if matches!(holder, Holder::Server(_)) {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&PublicKey(public_key), &issuer).map_err(failed)?;
        let serial = serial.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((pem_of(certificate.der()) + &self.certificate, serial))
    }

    /// Issues the certificate of an HTTPS server that clients reach at these names and IP addresses. It names no holder, so
    /// no server takes it for a member of the cluster.
    ///
    /// # Errors
    /// `Invalid` if one is neither a name nor an address; `Denied` if the issuing certificate has expired.
    pub fn issue_for_names(&self, names: &[String], life: Duration, now: SystemTime) -> Result<KeyedCertificate> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name = name(names.first().map_or("s3", |first| first), &self.cluster);
        (params.not_before, params.not_after) = validity(life.min(self.left(now)?), now);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer(&self.certificate, &self.key)?).map_err(failed)?;
        let certificate = pem_of(certificate.der()) + &self.certificate;
        Ok(KeyedCertificate { certificate, key: key.serialize_pem() })
    }

    /// Remaining lifetime of the issuing certificate, which is the maximum for a certificate that it signs.
    fn left(&self, now: SystemTime) -> Result<Duration> {
        let ended = "the issuing certificate of the cluster has expired; `hekate ca rotate start` makes another one";
        self.info()?.not_after.duration_since(now).map_err(|_| Error::Denied { what: ended.into() })
    }
}

pub(crate) fn authority_params(
    cluster: &str,
    what: &str,
    constraint: BasicConstraints,
    life: Duration,
    now: SystemTime,
) -> Result<CertificateParams> {
    let mut number = [0u8; 4];
    getrandom::fill(&mut number).map_err(|e| Error::bug(format!("getrandom: {e}")))?;
    let mut params = CertificateParams::default();
    // Authorities of one cluster have different names, so that a chain is found by name.
    params.distinguished_name = name(&format!("{what} {:08x}", u32::from_le_bytes(number)), cluster);
    (params.not_before, params.not_after) = validity(life, now);
    params.is_ca = IsCa::Ca(constraint);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

pub(crate) fn name(common: &str, cluster: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, format!("Hekate cluster {cluster}"));
    name.push(DnType::CommonName, common);
    name
}

pub(crate) fn validity(life: Duration, now: SystemTime) -> (OffsetDateTime, OffsetDateTime) {
    (OffsetDateTime::from(now - BACKDATED), OffsetDateTime::from(now + life))
}

pub(crate) fn issuer(certificate: &str, key: &str) -> Result<Issuer<'static, KeyPair>> {
    let key = KeyPair::try_from(&private_key(key)?).map_err(failed)?;
    Issuer::from_ca_cert_der(&first_certificate(certificate)?, key).map_err(failed)
}

fn first_certificate(pem: &str) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|e| Error::invalid(format!("a certificate of the authority cannot be read: {e}")))
}

pub(crate) fn failed(error: rcgen::Error) -> Error {
    Error::invalid(format!("a certificate cannot be made: {error}"))
}
