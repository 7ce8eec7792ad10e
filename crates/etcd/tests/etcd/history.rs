//! A watch whose history etcd has discarded, or that belongs to a newer store.

use crate::proxy::{Mode, Proxy};
use crate::support::{Etcd, Member, run};
use hekate_cluster::coordinator::{Known, LEASE, Mirror};
use hekate_cluster::{Coordinator, Outcome, Revision, Watched};
use hekate_etcd::{Credential, Endpoints, EtcdCoordinator};
use std::thread::{scope, sleep};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

fn put(coordinator: &EtcdCoordinator, value: &str) {
    assert_eq!(coordinator.transact(&[], &[("/a", Some(value))]), Ok(Outcome::Written));
}

fn revision(coordinator: &EtcdCoordinator) -> Revision {
    coordinator.list("/").unwrap().revision
}

/// Two changes after a revision are both reported.
fn watches(watching: &EtcdCoordinator, writing: &EtcdCoordinator, mut after: Revision) {
    for value in ["x", "y"] {
        put(writing, value);
        match watching.watch(&["/a"], after, LONG).unwrap() {
            Watched::Changed { keys, revision } if keys == ["/a"] => after = revision,
            other => panic!("{value}: {other:?}"),
        }
    }
}

#[test]
fn a_watch_behind_a_compaction_reads_again_and_misses_nothing_after_it() {
    let etcd = Etcd::start("compacted", 1);
    let (direct, proxy) = (etcd.connect(), Proxy::start(etcd.members[0].address()));
    let watching = EtcdCoordinator::new(Endpoints::parse(&proxy.endpoint).unwrap(), &Credential::default()).unwrap();
    put(&direct, "1");
    let begin = revision(&watching);
    watches(&watching, &direct, begin);
    let after = revision(&watching);
    scope(|scope| {
        let waiting = scope.spawn(|| watching.watch(&["/a"], after, LONG));
        sleep(Duration::from_millis(300));
        proxy.set(Mode::IsCut);
        for value in ["2", "3"] {
            put(&direct, value);
        }
        let last = revision(&direct).0.to_string();
        run("etcdctl", &["--endpoints", &etcd.members[0].client, "compact", &last]);
        proxy.set(Mode::Forwards);
        assert_eq!(waiting.join().unwrap(), Ok(Watched::ReadAgain));
    });
    assert_eq!(watching.get("/a").unwrap().unwrap(), "3");
    watches(&watching, &direct, revision(&watching));
}

#[test]
fn changes_are_read_over_a_compaction() {
    let etcd = Etcd::start("compacted-changes", 1);
    let (coordinator, mut mirror) = (etcd.connect(), Mirror::new(&["/"], 2 * LEASE));
    put(&coordinator, "1");
    mirror.refresh(&coordinator).unwrap();
    let known = Known { prefix: "/", after: mirror.revision("/"), count: 1 };
    for value in ["2", "3"] {
        put(&coordinator, value);
    }
    let last = revision(&coordinator).0.to_string();
    run("etcdctl", &["--endpoints", &etcd.members[0].client, "compact", &last]);
    assert!(coordinator.changes(&[known]).unwrap()[0].is_partial);
    assert_eq!(mirror.refresh(&coordinator).unwrap(), ["/a"]);
    assert!(mirror.pairs("/").eq([("/a", "3")]));
}

/// Replaces the data of all members by a copy.
fn restore(etcd: &mut Etcd, copy: &std::path::Path) {
    etcd.members.iter_mut().for_each(Member::kill);
    for number in 0..etcd.members.len() {
        let data = etcd.directory.join(format!("m{number}"));
        std::fs::remove_dir_all(&data).unwrap();
        let from = copy.join(format!("m{number}")).display().to_string();
        run("cp", &["-a", &from, &data.display().to_string()]);
    }
    etcd.members.iter_mut().for_each(Member::run);
}

#[test]
fn a_watch_of_an_etcd_restored_from_an_older_copy_reads_again() {
    let mut etcd = Etcd::start("older", 3);
    let (watching, writing) = (etcd.connect(), etcd.connect());
    put(&writing, "old");
    etcd.members.iter_mut().for_each(Member::kill);
    let copy = etcd.directory.join("copy");
    std::fs::create_dir(&copy).unwrap();
    for number in 0..3 {
        let from = etcd.directory.join(format!("m{number}")).display().to_string();
        run("cp", &["-a", &from, &copy.display().to_string()]);
    }
    etcd.members.iter_mut().for_each(Member::run);
    etcd.wait();
    put(&writing, "new");
    // Renewals have revisions that no watch shows.
    for _ in 0..3 {
        assert_eq!(writing.keep("/alive/a", "1", LEASE), Ok(Outcome::Written));
    }
    let (after, mut mirror) = (revision(&watching), Mirror::new(&["/"], 2 * LEASE));
    assert_eq!(mirror.refresh(&watching).unwrap(), ["/a", "/alive/a"]);
    scope(|scope| {
        let waiting = scope.spawn(|| watching.watch(&["/a"], after, LONG));
        sleep(Duration::from_millis(300));
        restore(&mut etcd, &copy);
        assert_eq!(waiting.join().unwrap(), Ok(Watched::ReadAgain));
    });
    etcd.wait();
    assert_eq!(watching.get("/a").unwrap().unwrap(), "old");
    assert_eq!(watching.watch(&["/a"], after, LONG), Ok(Watched::ReadAgain), "the store is not that far");
    assert_eq!(mirror.refresh(&watching).unwrap(), ["/a", "/alive/a"]);
    assert!(mirror.pairs("/").eq([("/a", "old")]), "{mirror:?}");
    watches(&watching, &writing, revision(&watching));
}

#[test]
fn changes_since_a_reading_of_another_store_are_not_believed_after_its_absence() {
    let mut etcd = Etcd::start("older-changes", 1);
    let (coordinator, mut mirror) = (etcd.connect(), Mirror::new(&["/"], 2 * LEASE));
    put(&coordinator, "old");
    etcd.members[0].kill();
    let copy = etcd.directory.join("copy");
    std::fs::create_dir(&copy).unwrap();
    run("cp", &["-a", &etcd.directory.join("m0").display().to_string(), &copy.display().to_string()]);
    etcd.members[0].run();
    etcd.wait();
    put(&coordinator, "new");
    mirror.refresh(&coordinator).unwrap();
    restore(&mut etcd, &copy);
    etcd.wait();
    // The restored store gets as far as the other one, without a change of the key.
    while Some(revision(&coordinator)) <= mirror.revision("/") {
        assert_eq!(coordinator.transact(&[], &[("/b", Some("1"))]), Ok(Outcome::Written));
    }
    sleep(2 * LEASE + Duration::from_millis(100));
    assert_eq!(mirror.refresh(&coordinator).unwrap(), ["/a", "/b"]);
    assert!(mirror.pairs("/").eq([("/a", "old"), ("/b", "1")]), "{mirror:?}");
}
