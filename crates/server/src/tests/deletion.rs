//! What a volume leaves when it is deleted.

use super::*;
use crate::hosting::volumes::go_on_deleting;

#[test]
fn a_volume_with_more_names_than_a_record_deletes_leaves_none() {
    let served = Served::new("deleted");
    served.node.stop_housekeeping();
    let volume = served.node.cluster.registry().volume("v").unwrap().unwrap();
    let ring = served.node.ring(volume.ring).unwrap();
    let at = PartitionNumber(0);
    let place = KeyPrefix { ring: ring.ring, position: at.first_position(ring.count()), volume: volume.volume };
    let put = |number: u32| {
        let key = Key::name(place, ROOT, format!("{number:04}").as_bytes());
        Change::Put { key, value: Bytes::from_static(b"one") }
    };
    let changes: Vec<Change> = (0..1200).map(put).collect();
    served.node.change(&ring, at, Commit { changes, ..Commit::default() }).unwrap();
    let entries = || {
        let (from, to) = Key::object_range(ring.ring, at, ring.count());
        ring.leader(at).unwrap().1.brick.scan(&from, &to, 2000).unwrap().len()
    };
    assert!(entries() >= 1200);
    served.node.delete_volume("v").unwrap();
    go_on_deleting(&served.node).unwrap();
    assert_eq!(entries(), 0);
    assert!(served.node.cluster.registry().volume("v").unwrap().is_none());
}
