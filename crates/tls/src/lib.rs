//! TLS 1.3 with certificates on both ends: identities, the authority that signs them, credentials, sessions.
//!
//! Every TCP connection is mutual TLS 1.3 (RFC 8446). A certificate names its holder by a URI ([`Identity`]); both ends
//! check that the other's chain ends at a root of their cluster, and that it names a holder of their cluster. What a
//! holder may do is not in the certificate: the cluster records it.
//!
//! Read in this order: `identity` (what a certificate says), `authority` (who signs it), `credential` (the file that
//! holds it), `context` (the two verifiers and the settings of a handshake), `session` (one connection), `token` (an
//! invitation to join).

mod authority;
mod certificate;
mod context;
mod credential;
mod etcd;
mod identity;
mod seal;
mod session;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token;

pub use authority::{Authority, Lifetimes, Root};
pub use certificate::{CertificateInfo, Serial, pem_of, pems};
pub use context::{Context, Refusal};
pub use credential::Credential;
pub use etcd::{EtcdAuthority, KeyedCertificate};
pub use identity::{Holder, Identity};
pub use seal::SealKey;
pub use session::{Inbox, Session, Side};
pub use token::Token;
