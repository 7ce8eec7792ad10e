//! Ending a session removes what the index has of it.

use super::*;
use crate::tests::Served;
use hekate_transport::{Peer, Service};

const RIGHTS: u64 = 600;

/// All rows that say which mapping rights a session has lost, on the brick of the partition's leader.
fn lost_rights(ring: &Arc<HostedRing>, at: PartitionNumber, session: SessionId) -> usize {
    let (to, _) = ring.leader(at).unwrap();
    let prefix = Key::passed_on_prefix(ring.ring, at.first_position(ring.count()), session);
    ring.replica(to).unwrap().brick.scan(&prefix, &prefix.prefix_end(), RIGHTS as usize).unwrap().len()
}

#[test]
fn the_rights_that_a_session_has_lost_are_forgotten_with_it() {
    let served = Served::new("lost-rights");
    let (volume, session, _) = served.node.open(&Peer::Local { uid: 0 }, "v", None).unwrap();
    let ring = served.node.ring(served.node.volume(volume).unwrap().ring).unwrap();
    let (at, other) = (PartitionNumber(3), SessionId(session.0 + 1));
    let mut commit = Commit::default();
    for (session, count) in [(session, RIGHTS), (other, 1)] {
        for number in 0..count {
            let inode = InodeId::new(at.first_position(ring.count()).0, 1, number);
            let key = Key::passed_on(ring.ring, at.first_position(ring.count()), session, volume, inode);
            commit.put(key, &MappedSince { term: 1, number });
        }
    }
    served.node.change(&ring, at, commit).unwrap();
    assert_eq!(lost_rights(&ring, at, session), RIGHTS as usize);
    served.node.end_session(session).unwrap();
    assert_eq!(lost_rights(&ring, at, session), 0);
    assert_eq!(lost_rights(&ring, at, other), 1, "of another session");
}
