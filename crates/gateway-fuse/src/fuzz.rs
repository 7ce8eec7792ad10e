//! The door for the fuzz target: a request of the kernel, parsed, and what its arguments become.

use crate::negotiate::{Wishes, negotiate};
use crate::request::{Body, parse};
use bytes::Bytes;

/// Parses `bytes`. -> the request in words; the errno for the kernel, if it is malformed.
pub fn request(bytes: &Bytes) -> Result<String, i32> {
    let request = parse(bytes).map_err(|malformed| malformed.errno.raw_os_error())?;
    if let Body::Init { init, flags } = &request.body {
        // An old kernel is refused in words, which is an answer like another.
        let _ = negotiate(init, *flags, &Wishes { cache: true, export: true, background_max: 32 });
    }
    Ok(format!("{request:?}"))
}
