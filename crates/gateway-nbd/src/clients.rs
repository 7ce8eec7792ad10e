//! Whom a door lets in at its addresses.

use hekate_proto::Result;
use std::net::SocketAddr;

/// What certificates of clients are worth. TLS has checked them already.
pub trait Clients: Send + Sync {
    /// Checks that the holder of a certificate (DER) may use the volume. Returns true if it may only read.
    ///
    /// # Errors
    /// Why it may not.
    fn admit(&self, certificate: &[u8], address: Option<SocketAddr>) -> Result<bool>;

    /// True if the holder, which was admitted, may use nothing any more: its connections are ended. It is asked often, so it
    /// may not take long.
    fn is_revoked(&self, certificate: &[u8]) -> bool;
}
