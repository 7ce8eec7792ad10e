//! Secrets in the cluster's records, sealed with a key that only servers have: AES-256-GCM (NIST SP 800-38D).

use hekate_proto::{Error, Result};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

const KEY_BYTES: usize = 32;

/// The key that seals the cluster's secrets: 32 random bytes.
#[derive(Clone)]
pub struct SealKey([u8; KEY_BYTES]);

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKey(..)")
    }
}

impl SealKey {
    /// # Errors
    /// `Bug` if the system has no random numbers.
    pub fn create() -> Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(|e| Error::bug(format!("getrandom: {e}")))?;
        Ok(Self(bytes))
    }

    /// # Errors
    /// `Invalid` if these are not 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = |_| Error::invalid(format!("a key that seals secrets has {KEY_BYTES} bytes, not {}", bytes.len()));
        bytes.try_into().map(Self).map_err(wrong)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn key(&self) -> Result<LessSafeKey> {
        let key = UnboundKey::new(&AES_256_GCM, &self.0).map_err(|_| Error::bug("AES-256 takes a key of 32 bytes"))?;
        Ok(LessSafeKey::new(key))
    }

    /// Seals a secret; only the same `name` opens it. The result is a random nonce of 12 bytes, the ciphertext and the
    /// tag of 16 bytes.
    ///
    /// # Errors
    /// `Bug` if the system has no random numbers.
    pub fn seal(&self, name: &str, secret: &[u8]) -> Result<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|e| Error::bug(format!("getrandom: {e}")))?;
        let mut bytes = secret.to_vec();
        let sealed = self.key()?.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(name.as_bytes()),
            &mut bytes,
        );
        sealed.map_err(|_| Error::invalid("a secret is too long to be sealed"))?;
        Ok([&nonce[..], &bytes].concat())
    }

    /// Opens what [`SealKey::seal`] made for this name.
    ///
    /// # Errors
    /// `Denied` if another key, or another name, sealed it, or it was changed.
    pub fn open(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        let denied = || Error::Denied {
            what: format!("the secret {name} was sealed with another key than that of this server's state directory"),
        };
        let (nonce, bytes) = sealed.split_at_checked(NONCE_LEN).ok_or_else(denied)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| denied())?;
        let mut bytes = bytes.to_vec();
        let opened = self.key()?.open_in_place(nonce, Aad::from(name.as_bytes()), &mut bytes);
        Ok(opened.map_err(|_| denied())?.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_opened_by_its_key_and_name_only() {
        let (key, other) = (SealKey::create().unwrap(), SealKey::create().unwrap());
        let sealed = key.seal("issuing", b"secret").unwrap();
        assert_eq!(key.open("issuing", &sealed).unwrap(), b"secret");
        assert_ne!(key.seal("issuing", b"secret").unwrap(), sealed);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(matches!(key.open("issuing", &changed), Err(Error::Denied { .. })), "byte {at}");
            assert!(key.open("issuing", &sealed[..at]).is_err(), "{at} bytes");
        }
        assert!(other.open("issuing", &sealed).is_err() && key.open("root", &sealed).is_err());
        assert_eq!(SealKey::from_bytes(key.bytes()).unwrap().open("issuing", &sealed).unwrap(), b"secret");
        for bytes in [&key.bytes()[1..], &[key.bytes(), &[0]].concat()] {
            assert!(SealKey::from_bytes(bytes).is_err(), "{} bytes", bytes.len());
        }
    }
}
