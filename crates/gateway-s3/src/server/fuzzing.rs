//! The decoders, for the fuzz targets.

pub(crate) use super::chunks::Chunks;
pub(crate) use super::signature::{ChunkSigner, Claim, Head, Payload};

/// A signer with a key of zeros.
pub(crate) fn test_signer() -> ChunkSigner {
    ChunkSigner::of_key(&[0; 32])
}
