//! Proofs that the two ends of a TCP connection exchange: each proves that it knows the cluster's secret, for this
//! connection only.
//!
//! A proof covers the address to which the client connected and the purpose of the connection, so a man in the middle
//! can neither relay it to another server nor use it for another purpose. The frames that follow are not covered:
//! that needs TLS, so TCP is allowed on loopback only.

use crate::endpoint::Secret;
use crate::frame::{PROTOCOL_VERSION, Purpose};
use bytes::Bytes;
use hekate_proto::{Error, Result, Wire};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::net::SocketAddr;

/// The end that makes a proof. A proof of one end is not valid as the other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// The values of a handshake that both ends know.
pub(crate) struct Handshake<'a> {
    /// The address to which the client connected, which is where the server accepted.
    pub address: SocketAddr,
    pub purpose: &'a Purpose,
    /// Nonce of the server's challenge.
    pub challenge: &'a [u8],
    /// Nonce of the client's hello.
    pub hello: &'a [u8],
}

impl Handshake<'_> {
    /// HMAC-SHA-256 (RFC 2104) over all values, each preceded by its length.
    fn mac(&self, secret: &Secret, side: Side) -> Result<Hmac<Sha256>> {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(secret.bytes()).map_err(|e| Error::bug(e.to_string()))?;
        let side: &[u8] = match side {
            Side::Client => b"client",
            Side::Server => b"server",
        };
        let (version, address) = (PROTOCOL_VERSION.to_le_bytes(), self.address.to_string());
        let purpose = self.purpose.to_bytes();
        for part in [side, &version, address.as_bytes(), &purpose, self.challenge, self.hello] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        Ok(mac)
    }

    /// The proof that this side sends: 32 bytes.
    ///
    /// # Errors
    /// `Bug` if HMAC refuses the key, which it does for no length.
    pub fn prove(&self, secret: &Secret, side: Side) -> Result<Bytes> {
        Ok(Bytes::copy_from_slice(&self.mac(secret, side)?.finalize().into_bytes()))
    }

    /// True if `proof` is the one that `side` makes. The comparison takes the same time for each proof.
    ///
    /// # Errors
    /// As [`Handshake::prove`].
    pub fn is_proof(&self, secret: &Secret, side: Side, proof: &[u8]) -> Result<bool> {
        Ok(self.mac(secret, side)?.verify_slice(proof).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::SessionId;
    use std::sync::Arc;

    #[test]
    fn a_proof_is_of_one_side_address_purpose_and_pair_of_nonces() {
        let secret = Secret(Arc::new([3; 32]));
        let purpose = Purpose::Open { volume: "home".into() };
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let good = Handshake { address: at(1), purpose: &purpose, challenge: &[1; 32], hello: &[2; 32] };
        let proof = good.prove(&secret, Side::Client).unwrap();
        assert!(good.is_proof(&secret, Side::Client, &proof).unwrap());
        assert!(!good.is_proof(&secret, Side::Server, &proof).unwrap());
        assert!(!good.is_proof(&Secret(Arc::new([4; 32])), Side::Client, &proof).unwrap());
        let resume = Purpose::Resume { volume: "home".into(), session: SessionId(1) };
        for other in [
            Handshake { address: at(2), ..good },
            Handshake { address: SocketAddr::from(([127, 0, 0, 2], 1)), ..good },
            Handshake { purpose: &Purpose::Control, ..good },
            Handshake { purpose: &resume, ..good },
            Handshake { challenge: &[2; 32], ..good },
            Handshake { hello: &[1; 32], ..good },
        ] {
            assert!(!other.is_proof(&secret, Side::Client, &proof).unwrap());
        }
    }

    /// Checks the example in docs/format/wire.md.
    #[test]
    fn the_example_of_the_document() {
        let secret = Secret(Arc::new([3; 32]));
        let purpose = Purpose::Open { volume: "home".into() };
        let address = SocketAddr::from(([127, 0, 0, 1], 7100));
        let handshake = Handshake { address, purpose: &purpose, challenge: &[1; 32], hello: &[2; 32] };
        let text =
            |side| handshake.prove(&secret, side).unwrap().iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(
            (text(Side::Client), text(Side::Server)),
            (
                "58d6501961ff1493be71a7dd3aff0b2a1bb009362f5c51b0b4591f08ed8d443d".into(),
                "952b99eceb3dbe192ed3d171a8a896e2cf070c18144186119fbd384fe8df40f1".into()
            )
        );
    }
}
