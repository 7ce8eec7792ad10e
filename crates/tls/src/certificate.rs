//! Parsing of certificates (X.509, RFC 5280) and PEM (RFC 7468).

use crate::identity::Identity;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hekate_proto::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

/// A new certificate is valid from this time before now, for clocks that are behind.
pub(crate) const BACKDATED: Duration = Duration::from_secs(3600);

/// A certificate's serial number: hex digits.
pub type Serial = String;

/// What a certificate says about its holder and its lifetime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// `None` for the certificates of an authority.
    pub identity: Option<Identity>,
    pub serial: Serial,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

impl CertificateInfo {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// `Invalid` if it cannot be parsed, or names something that is no holder.
    pub fn of(der: &[u8]) -> Result<Self> {
        let (_, parsed) =
            X509Certificate::from_der(der).map_err(|e| Error::invalid(format!("a certificate cannot be read: {e}")))?;
        let at = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let names = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
            _ => None,
        });
        let uri = names.into_iter().flatten().find_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        Ok(Self {
            identity: uri.map(Identity::parse).transpose()?,
            serial: parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
            not_before: at(parsed.validity().not_before.timestamp()),
            not_after: at(parsed.validity().not_after.timestamp()),
        })
    }

    /// True if the certificate is valid at this time. One that was issued while a clock was ahead is not valid yet.
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// True if the certificate is to be replaced by a new one at this time: it is not valid, or [`Self::renew_at`] has
    /// come.
    pub fn is_due_at(&self, now: SystemTime) -> bool {
        now < self.not_before || self.renew_at() <= now
    }

    /// When two thirds of the lifetime are over: it is to be renewed from then on.
    pub fn renew_at(&self) -> SystemTime {
        let issued = self.not_before + BACKDATED;
        issued + self.not_after.duration_since(issued).unwrap_or_default() * 2 / 3
    }
}

/// A certificate as PEM.
pub fn pem_of(der: &[u8]) -> String {
    pem("CERTIFICATE", der)
}

/// The certificates of a PEM text, in order.
///
/// # Errors
/// `Invalid` if the text is not PEM.
pub fn pems(text: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<std::result::Result<_, _>>()
        .map_err(|e| Error::invalid(format!("certificates cannot be read: {e}")))
}

pub(crate) fn private_key(text: &str) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|e| Error::invalid(format!("a private key cannot be read: {e}")))
}

fn pem(label: &str, der: &[u8]) -> String {
    const LINE: usize = 64;
    let text = STANDARD.encode(der);
    let lines = text.as_bytes().chunks(LINE).map(|line| String::from_utf8_lossy(line).into_owned() + "\n");
    format!("-----BEGIN {label}-----\n{}-----END {label}-----\n", lines.collect::<String>())
}
