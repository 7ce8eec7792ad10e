//! A brick that stops itself: after a failed write or sync nothing is acknowledged, also not by the next opening.

use super::support::*;
use crate::*;
use bytes::Bytes;
use hekate_proto::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn after_a_failed_sync_nothing_is_acknowledged() {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    let upto = put(&brick, "a", "1");
    storage.fail_syncs_after(0);
    assert!(matches!(brick.sync(upto), Err(Error::Poisoned { .. })));
    storage.fail_syncs_after(i64::MAX);
    assert!(matches!(brick.sync(upto), Err(Error::Poisoned { .. })), "a failed sync is never tried again");
    let record = Record {
        ring: RING,
        partition: PARTITION,
        epoch: Epoch(1),
        sequence: Sequence(2),
        session: SessionId(1),
        op_id: OpId(2),
        changes: vec![],
    };
    assert!(matches!(brick.append(&LogEntry::new(record)), Err(Error::Poisoned { .. })));
    assert!(brick.status().unwrap().poisoned.is_some());
}

#[test]
fn a_poisoned_brick_reports_why_and_opens_with_what_it_had_synced() {
    let directory = std::env::temp_dir().join(format!("hekate-brick-stopped-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    Brick::create(&directory, BrickId(5), "c1", identity().settings).unwrap();
    let open = || Brick::open(&directory, "c1").unwrap();
    let (brick, _) = open();
    brick.settle_life().unwrap();
    let life = brick.incarnation();
    let upto = put(&brick, "synced", "1");
    brick.sync(upto).unwrap();
    brick.poison(&Error::Poisoned { what: "a test".into() });
    assert!(brick.get(&key("synced")).is_err(), "nothing is answered any more");
    drop(brick);
    let (brick, report) = open();
    assert!(report.stopped.unwrap().contains("a test"));
    assert_eq!(names(&brick, 9), ["synced"]);
    assert_eq!(brick.incarnation().0, life.0 + 1, "unsynced changes may be gone, as after a boot");
    brick.checkpoint().unwrap();
    brick.settle_life().unwrap();
    drop(brick);
    let (brick, report) = open();
    assert_eq!((report.stopped, brick.incarnation().0), (None, life.0 + 1));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_segment_that_cannot_be_begun_stops_the_journal() {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = fails.clone();
    let storage = HookedStorage::new(new_storage(), move |call, path| {
        let is_segment = (call, path) == (Call::Open, "journal/segment-002");
        match is_segment && failing.swap(false, Ordering::SeqCst) {
            true => Err(std::io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    });
    let (brick, _) = open_on(storage.clone(), &identity(), false);
    append(&brick, vec![Change::Put { key: key("a"), value: Bytes::from(vec![1; 150 << 10]) }]);
    fails.store(true, Ordering::SeqCst);
    assert!(
        append_to(&brick, PARTITION, vec![Change::Put { key: key("b"), value: Bytes::from(vec![1; 150 << 10]) }])
            .is_err()
    );
    // A record of another partition that is acknowledged has to survive.
    let done =
        append_to(&brick, PartitionNumber(1), vec![Change::Put { key: key("c"), value: Bytes::from_static(b"1") }]);
    if let Ok(upto) = done {
        brick.sync(upto).unwrap();
        drop(brick);
        let (brick, _) = open_on(storage, &identity(), false);
        assert!(brick.get(&key("c")).unwrap().is_some(), "acknowledged, synced, lost");
    }
}
