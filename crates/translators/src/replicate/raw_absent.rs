//! In the place of `raw.rs` in a program without the cargo feature `measuring`: refuses volumes of the modes `afr` and
//! `fast-path`.

use super::Replicate;
use bytes::Bytes;
use hekate_graph::Context;
use hekate_proto::map::Mode;
use hekate_proto::*;

/// Stands for the locks and changelog entries of raw writes, of which a program without `measuring` has none.
#[derive(Debug, Default)]
pub(super) struct RawLanes {}

impl Replicate {
    /// False: no volume that passes [`check_mode`] has raw writes.
    pub(crate) fn write_raw(&self, _: &Context, _: ShardId, _: u32, _: &Bytes) -> Result<bool> {
        Ok(false)
    }

    pub(crate) fn release_raw_locks(&self, _: &Context, _: bool) {
        let RawLanes {} = self.raw;
    }
}

/// # Errors
///
/// `NotSupported` if the volume's mode is only for measuring: the leader's lane would write the same bytes, and what is
/// measured would be another protocol.
pub fn check_mode(mode: Mode) -> Result<()> {
    match mode.is_raw() {
        true => Err(Error::needs_measuring(format!("a volume of mode {}", mode.text()))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_modes_for_measuring_are_refused() {
        let afr = Mode::Afr { eager_lock: true, piggyback: false };
        let outcomes = [Mode::Leader, Mode::Hsr, Mode::Async, Mode::Bypass, afr, Mode::FastPath].map(check_mode);
        assert_eq!(outcomes.map(|outcome| outcome.is_ok()), [true, true, true, true, false, false]);
    }
}
