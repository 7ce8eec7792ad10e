//! The coordinator over real etcd members (Debian's `etcd-server` and `etcd-client`), and their failures.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod failures;
mod history;
mod hostile;
mod idle;
mod load;
mod outcomes;
mod proxy;
mod support;
mod tls;

use hekate_cluster::Coordinator;
use hekate_cluster::conformance::{conforms, shows_what_was_acknowledged};
use hekate_etcd::EtcdCoordinator;
use std::sync::Arc;
use std::time::Duration;
use support::Etcd;

/// A kept key expires this much later than its lifetime at most: two reads of the renewals, and a removal.
const LATE: Duration = Duration::from_millis(1500);

/// One member, and three, side by side.
#[test]
fn etcd_conforms() {
    std::thread::scope(|scope| {
        for (name, members) in [("one", 1), ("three", 3)] {
            scope.spawn(move || {
                let etcd = Etcd::start(name, members);
                let coordinator: Arc<dyn Coordinator> = Arc::new(etcd.connect());
                conforms(&coordinator, LATE);
                for (writer, reader) in etcd.members.iter().zip(etcd.members.iter().cycle().skip(1)) {
                    let [writer, reader] =
                        [writer, reader].map(|m| EtcdCoordinator::new(m.endpoints(), &etcd.credential).unwrap());
                    shows_what_was_acknowledged(&writer, &reader);
                }
            });
        }
    });
}
