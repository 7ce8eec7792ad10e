//! The settings of handshakes, which follow from a credential: what this end shows, and how it checks the other end.

use crate::certificate::CertificateInfo;
use crate::credential::Credential;
use crate::identity::{Holder, Identity};
use crate::token::hex;
use hekate_proto::{Error, Result};
use parking_lot::RwLock;
use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError,
    RootCertStore, ServerConfig, SignatureScheme,
};
use std::sync::Arc;

/// What one end shows and checks at a handshake. A renewed credential replaces it for the handshakes that follow.
pub struct Context {
    current: RwLock<Current>,
}

#[derive(Clone)]
struct Current {
    /// `None`: this end has no certificate, so it cannot accept connections.
    server: Option<Arc<ServerConfig>>,
    client: Arc<ClientConfig>,
    credential: Option<Arc<Credential>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Context(..)")
    }
}

impl Context {
    /// The context of the holder of a credential.
    ///
    /// # Errors
    /// `Invalid` if the credential's certificates or key cannot be read.
    pub fn of(credential: Credential) -> Result<Self> {
        Ok(Self { current: RwLock::new(Current::of(credential)?) })
    }

    /// The context of a client without a certificate, for a cluster whose root has this SHA-256.
    ///
    /// # Errors
    /// `Bug` if the library refuses its own settings.
    pub fn joining(fingerprint: &str) -> Result<Self> {
        let client = client_settings(Trust::Fingerprint(fingerprint.to_lowercase()))?.with_no_client_auth();
        Ok(Self { current: RwLock::new(Current { server: None, client: settled(client), credential: None }) })
    }

    /// Uses another credential for handshakes from now on. Connections that are open stay as they are.
    ///
    /// # Errors
    /// As [`Context::of`].
    pub fn replace(&self, credential: Credential) -> Result<()> {
        *self.current.write() = Current::of(credential)?;
        Ok(())
    }

    /// The credential in use; `None` for a context that is joining.
    pub fn credential(&self) -> Option<Arc<Credential>> {
        self.current.read().credential.clone()
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.current.read().client.clone()
    }

    /// Checks that this end can accept connections.
    ///
    /// # Errors
    /// `Invalid` if it has no certificate of a server.
    pub fn server_checked(&self) -> Result<()> {
        self.server().map(drop)
    }

    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>> {
        let none = || Error::invalid("this process has no certificate, so it cannot accept connections over TCP");
        self.current.read().server.clone().ok_or_else(none)
    }

    /// SHA-256 of a certificate in DER: 64 hex digits.
    pub fn fingerprint(der: &[u8]) -> String {
        hex(digest(&SHA256, der).as_ref())
    }
}

impl Current {
    fn of(credential: Credential) -> Result<Self> {
        let identity = credential.identity()?;
        let (own, roots) = (credential.chain()?, credential.roots()?);
        let mut store = RootCertStore::empty();
        for root in &roots {
            store.add(root.clone()).map_err(|e| Error::invalid(format!("a root of the cluster: {e}")))?;
        }
        let (store, cluster) = (Arc::new(store), identity.cluster.clone());
        let wrong = |e: rustls::Error| match e {
            rustls::Error::InconsistentKeys(_) => {
                Error::invalid("a credential cannot be used: the key is not that of the certificate")
            }
            e => Error::invalid(format!("a credential cannot be used: {e}")),
        };
        let trust = Trust::Roots { store: store.clone(), cluster: cluster.clone() };
        let client = client_settings(trust)?;
        let client = client.with_client_auth_cert(own.clone(), credential.private_key()?).map_err(wrong)?;
        let server = match identity.holder {
            Holder::Server(_) => {
                // A server that joins knows no root yet; it checks the fingerprint of the one that is shown.
                let shown = own.into_iter().chain(roots).collect();
                let verifier = ClientVerifier::new(store, cluster)?;
                let mut settings = ServerConfig::builder_with_provider(provider())
                    .with_protocol_versions(&[&rustls::version::TLS13])
                    .map_err(wrong)?
                    .with_client_cert_verifier(Arc::new(verifier))
                    .with_single_cert(shown, credential.private_key()?)
                    .map_err(wrong)?;
                settings.send_tls13_tickets = 0;
                Some(Arc::new(settings))
            }
            Holder::Client(_) => None,
        };
        Ok(Self { server, client: settled(client), credential: Some(Arc::new(credential)) })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}

/// The settings of a client that checks servers by this verifier.
fn client_settings(trust: Trust) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>> {
    let settings = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]);
    let settings = settings.map_err(|e| Error::bug(format!("TLS 1.3: {e}")))?;
    let verifier = ServerVerifier { trust, algorithms: algorithms() };
    Ok(settings.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
}

/// Without resumption: no session tickets are sent, so none can be used.
fn settled(mut settings: ClientConfig) -> Arc<ClientConfig> {
    settings.resumption = rustls::client::Resumption::disabled();
    settings.enable_sni = false;
    Arc::new(settings)
}

/// Reasons to refuse a certificate that the TLS library accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is of another cluster.
    OtherCluster,
    /// It is a client's, where a server's is needed.
    NotAServer,
    /// The root that was shown is not the one that the token names.
    OtherRoot,
    /// It names no holder.
    NoHolder,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refusal::OtherCluster => "its certificate is of another cluster",
            Refusal::NotAServer => "its certificate is a client's, not a server's",
            Refusal::OtherRoot => "its cluster is not the one that the token is of",
            Refusal::NoHolder => "its certificate names no server or client",
        })
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for rustls::Error {
    fn from(refusal: Refusal) -> Self {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
    }
}

impl Refusal {
    /// Why a handshake failed, in words about the other end.
    pub fn words(error: &rustls::Error) -> String {
        use CertificateError as Bad;
        let words = match error {
            rustls::Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
                "its certificate has expired; check both clocks, then renew it"
            }
            rustls::Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
                "its certificate is not valid yet; check both clocks"
            }
            rustls::Error::InvalidCertificate(Bad::UnknownIssuer) => {
                "no root of this cluster has signed its certificate"
            }
            rustls::Error::InvalidCertificate(Bad::BadSignature) => {
                "no root of this cluster has signed its certificate: the signature is wrong"
            }
            rustls::Error::InvalidCertificate(Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. }) => {
                "its certificate is not for this purpose: a client's cannot be used as a server's"
            }
            rustls::Error::InvalidCertificate(Bad::Other(OtherError(refusal))) => return refusal.to_string(),
            rustls::Error::AlertReceived(alert) => return format!("it refuses this end: {}", alert_words(*alert)),
            rustls::Error::PeerIncompatible(_) => "it does not speak TLS 1.3",
            rustls::Error::InvalidMessage(_) => "it does not speak TLS: plain text, or another protocol",
            rustls::Error::NoCertificatesPresented => "it has shown no certificate",
            other => return format!("TLS fails: {other}"),
        };
        words.into()
    }
}

fn alert_words(alert: AlertDescription) -> String {
    let words = match alert {
        AlertDescription::CertificateExpired => {
            "the certificate has expired, or is not valid yet; check both clocks, then renew it"
        }
        AlertDescription::CertificateRevoked => "the certificate has been revoked",
        AlertDescription::UnknownCA => "no root of its cluster has signed the certificate",
        AlertDescription::DecryptError => "no root of its cluster has signed the certificate: the signature is wrong",
        AlertDescription::UnsupportedCertificate => "the certificate is not for this purpose",
        AlertDescription::CertificateUnknown | AlertDescription::BadCertificate => {
            "the certificate is of another cluster, or names no server or client"
        }
        AlertDescription::AccessDenied => "access is denied",
        AlertDescription::ProtocolVersion => "it does not speak TLS 1.3",
        AlertDescription::CertificateRequired => "it needs a certificate",
        other => return format!("alert {other:?}"),
    };
    words.into()
}

/// The holder that a certificate names, if it is one of this cluster.
fn holder_of(certificate: &CertificateDer<'_>, cluster: &str) -> std::result::Result<Identity, rustls::Error> {
    let identity = CertificateInfo::of(certificate).ok().and_then(|info| info.identity).ok_or(Refusal::NoHolder)?;
    match identity.cluster == cluster {
        true => Ok(identity),
        false => Err(Refusal::OtherCluster.into()),
    }
}

type Verified<T> = std::result::Result<T, rustls::Error>;

/// What a client trusts a server by.
#[derive(Debug)]
enum Trust {
    /// The roots of its own cluster.
    Roots { store: Arc<RootCertStore>, cluster: String },
    /// The SHA-256 of the root that the server shows: a server that joins knows no root yet.
    Fingerprint(String),
}

/// How a client checks a server.
#[derive(Debug)]
struct ServerVerifier {
    trust: Trust,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ServerVerifier {
    /// The library requires the extended key usage of a server.
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Verified<ServerCertVerified> {
        let parsed = ParsedCertificate::try_from(shown)?;
        let below = |roots: &RootCertStore| {
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, self.algorithms.all)
        };
        match &self.trust {
            Trust::Roots { store, cluster } => {
                below(store)?;
                match holder_of(shown, cluster)?.holder {
                    Holder::Server(_) => {}
                    Holder::Client(_) => return Err(Refusal::NotAServer.into()),
                }
            }
            Trust::Fingerprint(fingerprint) => {
                let root = intermediates.iter().find(|shown| Context::fingerprint(shown) == *fingerprint);
                let mut store = RootCertStore::empty();
                store.add(root.ok_or(Refusal::OtherRoot)?.clone().into_owned())?;
                below(&store)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Verified<HandshakeSignatureValid> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Verified<HandshakeSignatureValid> {
        verify_tls13_signature(message, shown, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// How a server checks who connects. A client without a certificate passes: it may only join.
#[derive(Debug)]
struct ClientVerifier {
    chains: Arc<dyn ClientCertVerifier>,
    cluster: String,
}

impl ClientVerifier {
    fn new(roots: Arc<RootCertStore>, cluster: String) -> Result<Self> {
        let chains = WebPkiClientVerifier::builder_with_provider(roots, provider()).allow_unauthenticated().build();
        let chains = chains.map_err(|e| Error::invalid(format!("the roots of the cluster cannot be used: {e}")))?;
        Ok(Self { chains, cluster })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Without hints a client of another cluster shows its certificate, and the log says so.
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Verified<ClientCertVerified> {
        let verified = self.chains.verify_client_cert(shown, intermediates, now)?;
        holder_of(shown, &self.cluster).map(|_| verified)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Verified<HandshakeSignatureValid> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Verified<HandshakeSignatureValid> {
        self.chains.verify_tls13_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}
