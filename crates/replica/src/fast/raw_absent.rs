//! In the place of `raw.rs` in a program without the cargo feature `measuring`: refuses raw writes.

use crate::context::Context;
use crate::ops::step::Ask;
use hekate_proto::*;

/// Refuses a step of a raw write: the inner result is `NotSupported`.
pub(crate) fn take(_: &Context, _: &Ask, _: &DataOp) -> Result<Result<Reply>> {
    Ok(Err(Error::needs_measuring("a raw write")))
}
