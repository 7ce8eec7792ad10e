//! Entry point for the fuzz target: parses a request of the kernel.

use crate::negotiate::{Wishes, negotiate};
use crate::request::{Body, parse};
use bytes::Bytes;

/// Parses `bytes`. Returns the request as text.
///
/// # Errors
/// The errno of the reply to a malformed request.
pub fn request(bytes: &Bytes) -> Result<String, i32> {
    let request = parse(bytes).map_err(|malformed| malformed.errno.raw_os_error())?;
    if let Body::Init { init, flags } = &request.body {
        // The refusal of an old kernel is a valid result.
        let _ = negotiate(
            init,
            *flags,
            &Wishes { cache: true, pledged: true, export: true, rings: true, background_max: 32 },
        );
    }
    Ok(format!("{request:?}"))
}
