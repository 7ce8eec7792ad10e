//! In the place of `raw.rs` in a program without the cargo feature `measuring`: refuses volumes of the modes `afr` and
//! `fast-path`, and raw writes.

use crate::hosting::node::Node;
use crate::request::member_writes::MemberTarget;
use crate::request::sessions::Session;
use crate::request::syncer::Needs;
use hekate_cluster::VolumeInfo;
use hekate_proto::*;

/// Locks of raw writes: there are none.
#[derive(Debug, Default)]
pub struct RawLocks {}

impl RawLocks {
    pub fn end_session(&self, _: SessionId) {}
}

impl Node {
    /// Refuses a step of a raw write with `NotSupported`.
    pub(crate) fn raw_step(&self, _: &Session, _: &Request, _: MemberTarget, _: &mut Needs) -> Result<Reply> {
        Err(Error::needs_measuring("a raw write"))
    }
}

/// # Errors
///
/// `NotSupported` if the volume's mode is only for measuring.
pub(crate) fn check_mode(volume: &VolumeInfo) -> Result<()> {
    match volume.mode.is_raw() {
        true => Err(Error::needs_measuring(format!("volume {}, of mode {},", volume.name, volume.mode.text()))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Served;
    use hekate_proto::map::Mode;
    use hekate_transport::{Peer, Service};

    fn is_refused<T>(outcome: Result<T>, name: &str) -> bool {
        let names_all =
            |what: &str| [name, "mode fast-path", "--features measuring"].iter().all(|it| what.contains(it));
        matches!(outcome, Err(Error::NotSupported { what }) if names_all(&what))
    }

    /// A program with the feature made the volume.
    #[test]
    fn a_volume_for_measuring_is_neither_made_nor_opened() {
        let served = Served::new("measuring");
        let wanted = hekate_control::VolumeCreate {
            name: "raw".into(),
            pool: "p".into(),
            copies: 2,
            domain: None,
            min_replicas: None,
            allowed_uids: Vec::new(),
            owner_uid: Some(0),
            spread: 1,
            mode: Mode::FastPath,
            led_by: None,
        };
        assert!(is_refused(served.node.make_volume(wanted), "raw"));
        let known = served.node.volumes.called("v").unwrap();
        served.node.volumes.put(VolumeInfo { mode: Mode::FastPath, ..(*known).clone() });
        assert!(is_refused(served.node.open(&Peer::Local { uid: 0 }, "v", None), "v"));
    }
}
