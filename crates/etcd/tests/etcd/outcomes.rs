//! Writes whose outcome is unknown, and writes for which etcd has no space.

use crate::proxy::{Mode, Proxy};
use crate::support::{Etcd, run};
use hekate_cluster::coordinator::LEASE;
use hekate_cluster::{Coordinator, Outcome};
use hekate_etcd::{Credential, Endpoints, EtcdCoordinator, Members};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn through(proxy: &Proxy) -> EtcdCoordinator {
    EtcdCoordinator::new(Endpoints::parse(&proxy.endpoint).unwrap(), &Credential::default()).unwrap()
}

fn is_unknown(outcome: hekate_proto::Result<Outcome>) -> bool {
    matches!(outcome, Ok(Outcome::Unknown { .. }))
}

/// Side by side: each waits for the limit of a write.
#[test]
fn a_write_without_an_answer_is_unknown_and_executed_once() {
    std::thread::scope(|scope| {
        scope.spawn(an_answer_that_is_lost);
        scope.spawn(a_leader_that_is_stopped_and_may_execute_late);
    });
}

fn an_answer_that_is_lost() {
    let etcd = Etcd::start("unknown", 1);
    let (direct, proxy) = (etcd.connect(), Proxy::start(etcd.members[0].address()));
    let coordinator = through(&proxy);
    assert_eq!(coordinator.transact(&[], &[("/a", Some("1"))]), Ok(Outcome::Written));
    for (mode, value) in [(Mode::EndsAnswers, "2"), (Mode::SwallowsAnswers, "3")] {
        let before = direct.get("/a").unwrap();
        let version = || run("etcdctl", &["--endpoints", &etcd.members[0].client, "get", "/a", "-w", "fields"]);
        let count = |text: &str| text.lines().find(|line| line.contains("\"Version\"")).map(str::to_string);
        let earlier = count(&version()).unwrap();
        proxy.set(mode);
        let expected = [("/a", before.as_deref())];
        assert!(is_unknown(coordinator.transact(&expected, &[("/a", Some(value))])));
        proxy.set(Mode::Forwards);
        assert_eq!(coordinator.get("/a").unwrap().unwrap(), value, "it was executed");
        let number = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        assert_eq!(number(&count(&version()).unwrap()), number(&earlier) + 1, "and not sent again");
        assert_eq!(coordinator.transact(&expected, &[("/a", Some(value))]), Ok(Outcome::Refused));
    }
    proxy.set(Mode::IsCut);
    // The connection in the pool has ended, which shows only after the request was written.
    let cut = coordinator.transact(&[], &[("/a", Some("4"))]);
    assert_ne!(cut, Ok(Outcome::Written));
    assert_eq!(direct.get("/a").unwrap().unwrap(), "3");
}

fn a_leader_that_is_stopped_and_may_execute_late() {
    let etcd = Etcd::start("stopped", 3);
    let leader = etcd.leader();
    let coordinator = EtcdCoordinator::new(etcd.members[leader].endpoints(), &Credential::default()).unwrap();
    let others = EtcdCoordinator::new(etcd.members[(leader + 1) % 3].endpoints(), &Credential::default()).unwrap();
    assert_eq!(coordinator.transact(&[], &[("/a", Some("1"))]), Ok(Outcome::Written));
    etcd.members[leader].signal("STOP");
    assert!(is_unknown(coordinator.transact(&[("/a", Some("1"))], &[("/a", Some("2"))])));
    // A stop takes effect thread by thread, so the leader may have sent the transaction to the others.
    let found = others.get("/a").unwrap().unwrap();
    assert!(found == "1" || found == "2", "{found}");
    assert_eq!(others.transact(&[("/a", Some(&found))], &[("/a", Some("3"))]), Ok(Outcome::Written));
    etcd.members[leader].signal("CONT");
    let back = Instant::now();
    while back.elapsed() < Duration::from_secs(1) {
        assert_eq!(others.get("/a").unwrap().unwrap(), "3");
    }
    assert_eq!(coordinator.get("/a").unwrap().unwrap(), "3");
}

#[test]
fn without_space_reads_go_on_and_the_error_says_what_to_do() {
    let options = |_: &std::path::Path| {
        let quota = ["--quota-backend-bytes", "4000000"].map(str::to_string);
        (quota.to_vec(), Credential::default())
    };
    let etcd = Etcd::start_with("space", 1, options);
    let (coordinator, value) = (etcd.connect(), "x".repeat(400_000));
    let members = Members::new(etcd.endpoints(), &Credential::default()).unwrap();
    let keep = |coordinator: &EtcdCoordinator, key| coordinator.keep(key, "1", LEASE);
    assert_eq!(keep(&etcd.connect(), "/alive/abandoned"), Ok(Outcome::Written));
    assert_eq!(keep(&coordinator, "/alive/a"), Ok(Outcome::Written));
    let write = || coordinator.transact(&[], &[("/large", Some(&value))]);
    let mut written = 0;
    let why = loop {
        match write().unwrap() {
            Outcome::Written if written < 20 => written += 1,
            Outcome::Unknown { why } => break why,
            other => panic!("{written}: {other:?}"),
        }
    };
    assert!(why.contains("has reached its quota") && why.contains("`hekate coordinator show`"), "{why}");
    assert!(is_unknown(keep(&coordinator, "/alive/a")));
    assert_eq!(coordinator.get("/large").unwrap().unwrap(), value, "reads go on");
    assert_eq!(members.alarms().unwrap()[0].alarm, "NOSPACE");
    sleep(LEASE + Duration::from_secs(1));
    let kept = || coordinator.list("/alive/").unwrap().pairs.len();
    assert_eq!(kept(), 2, "nobody could renew them");
    // What docs/etcd.md says.
    let revision = coordinator.list("/large").unwrap().revision.0.to_string();
    let control = |arguments: &[&str]| run("etcdctl", &[&["--endpoints", &etcd.members[0].client], arguments].concat());
    control(&["compact", &revision]);
    control(&["defrag"]);
    control(&["alarm", "disarm"]);
    assert!(members.alarms().unwrap().is_empty());
    assert_eq!(write(), Ok(Outcome::Written));
    let disarmed = Instant::now();
    while disarmed.elapsed() < LEASE - Duration::from_millis(500) {
        assert_eq!(kept(), 2, "lifetimes count from now");
        sleep(Duration::from_millis(100));
    }
    crate::support::eventually("the key that nobody renews expires", LEASE * 3, || {
        assert_eq!(keep(&coordinator, "/alive/a"), Ok(Outcome::Written));
        assert!(coordinator.get("/alive/a").unwrap().is_some());
        kept() == 1
    });
}
