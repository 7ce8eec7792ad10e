//! Members that are killed, cut off, or have a slow disk.

use crate::load::{KEPT, Load};
use crate::support::{Etcd, eventually};
use hekate_cluster::coordinator::LEASE;
use hekate_cluster::{Coordinator, Outcome, Watched};
use hekate_etcd::{Credential, Endpoints, EtcdCoordinator};
use hekate_proto::Error;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest time without an acknowledged renewal while a leader of etcd is replaced.
const PAUSE_MAX: Duration = Duration::from_secs(5);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn a_killed_leader_loses_no_transaction_and_no_kept_key() {
    let mut etcd = Etcd::start("leader", 3);
    let load = Load::start(&etcd);
    sleep(seconds(1));
    let leader = etcd.leader();
    etcd.members[leader].kill();
    sleep(seconds(4));
    etcd.members[leader].run();
    sleep(seconds(1));
    let report = load.end(&etcd.connect());
    println!("leader killed: {report:?}");
    assert!(report.written > 20, "{report:?}");
    assert!(report.pause <= PAUSE_MAX, "{report:?}");
}

/// How many keys the first answer after an outage has. `None` if the machine was so slow that keys may have expired
/// since: they have their whole lifetime from the moment in which etcd has a leader again. Each attempt is a new
/// client's, since one that has waited through the outage asks more seldom.
fn first_read_after_an_outage(etcd: &Etcd) -> Option<usize> {
    let back = Instant::now();
    loop {
        let asked = Instant::now();
        let read = etcd.connect().list("/alive/");
        assert!(read.is_ok() || back.elapsed() < seconds(30), "no answer after an outage: {read:?}");
        let Ok(found) = read else { continue };
        let is_in_time = asked.elapsed() < seconds(5);
        return is_in_time.then_some(found.pairs.len());
    }
}

#[test]
fn a_lost_majority_stops_reads_and_writes_and_kept_keys_outlive_it() {
    let mut etcd = Etcd::start("majority", 3);
    let (renewed, abandoned, reader) = (etcd.connect(), etcd.connect(), etcd.connect());
    let keep = |coordinator: &EtcdCoordinator, key| coordinator.keep(key, "1", LEASE);
    assert_eq!(keep(&abandoned, "/alive/abandoned"), Ok(Outcome::Written));
    drop(abandoned);
    assert_eq!(keep(&renewed, "/alive/renewed"), Ok(Outcome::Written));
    etcd.members[..2].iter_mut().for_each(crate::support::Member::kill);
    let gone = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while gone.elapsed() < LEASE + seconds(1) {
                let read = reader.get("/alive/renewed");
                assert!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
            }
        });
        while gone.elapsed() < LEASE + seconds(1) {
            let written = renewed.transact(&[], &[("/a", Some("1"))]);
            let is_away = matches!(written, Ok(Outcome::Unknown { .. }) | Err(Error::Unavailable { .. }));
            assert!(is_away, "{written:?}");
        }
    });
    etcd.members[..2].iter_mut().for_each(crate::support::Member::run);
    // Both keys have outlived the outage, which was longer than their lifetime: nobody could renew them.
    assert_eq!(first_read_after_an_outage(&etcd).unwrap_or(2), 2);
    eventually("a renewal after the outage", seconds(15), || keep(&renewed, "/alive/renewed") == Ok(Outcome::Written));
    let back = Instant::now();
    let is_there = |key: &str| reader.get(key).unwrap().is_some();
    while is_there("/alive/abandoned") {
        assert!(back.elapsed() < LEASE * 2, "nobody renews it, so it expires");
        assert_eq!(keep(&renewed, "/alive/renewed"), Ok(Outcome::Written));
        assert!(is_there("/alive/renewed"));
        sleep(Duration::from_millis(200));
    }
    assert!(is_there("/alive/renewed"));
}

#[test]
fn a_member_that_is_cut_off_delays_a_renewal_and_a_watch_by_seconds() {
    let etcd = Etcd::start("cut", 3);
    let cut = (etcd.leader() + 1) % 3;
    // The endpoint in use is that of the member which will be cut off.
    let order = [cut, (cut + 1) % 3, (cut + 2) % 3].map(|number| etcd.members[number].client.clone());
    let endpoints = Endpoints::parse(&order.join(",")).unwrap();
    let coordinator = EtcdCoordinator::new(endpoints, &Credential::default()).unwrap();
    let other = EtcdCoordinator::new(etcd.members[(cut + 1) % 3].endpoints(), &Credential::default()).unwrap();
    let keep = || coordinator.keep("/alive/a", "1", LEASE);
    assert_eq!(keep(), Ok(Outcome::Written));
    let begin = coordinator.list("/").unwrap().revision;
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| (coordinator.watch(&["/b"], begin, seconds(20)), Instant::now()));
        sleep(Duration::from_millis(500));
        etcd.members[cut].signal("STOP");
        let stopped = Instant::now();
        assert_eq!(other.transact(&[], &[("/b", Some("1"))]), Ok(Outcome::Written));
        // The first renewal may have no answer; the next one goes to another member.
        let _ = keep();
        assert_eq!(keep(), Ok(Outcome::Written));
        let pause = stopped.elapsed();
        assert!(pause < LEASE, "{pause:?}");
        let (watched, at) = watch.join().unwrap();
        assert!(matches!(&watched, Ok(Watched::Changed { keys, .. }) if keys == &["/b"]), "{watched:?}");
        let delay = at.saturating_duration_since(stopped);
        println!("member cut off: a renewal after {pause:?}, a watch after {delay:?}");
        assert!(delay < seconds(8), "{delay:?}");
    });
    etcd.members[cut].signal("CONT");
}

/// Longest pause of writes while a member's disk is slow. A client waits 0.7 s for the answer to a request, and twice as
/// long after each that had none: three of these take 4.9 s, and the next one has its answer within 3 s.
const SLOW_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Delays every `fdatasync` of a process while it exists.
struct SlowDisk(Child);

impl SlowDisk {
    /// `None` if strace is not installed.
    fn of(pid: &str) -> Option<Self> {
        let options = ["-f", "-q", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=500000", "-p", pid];
        let mut strace = Command::new("strace");
        strace.args(options).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok().map(Self)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // With SIGINT it lets the process go on.
        crate::support::run("kill", &["-INT", &self.0.id().to_string()]);
        let _ = self.0.wait();
    }
}

/// Runs a load while a member's disk is slow: for six seconds, and until the key was renewed twice.
fn load_on_a_slow_disk(etcd: &Etcd, slow: usize, load: Load) {
    let Some(disk) = SlowDisk::of(&etcd.members[slow].pid()) else {
        println!("skipped: strace is not installed");
        return;
    };
    let begun = (Instant::now(), load.renewals());
    sleep(seconds(6));
    eventually("two renewals with a slow disk", seconds(30), || load.renewals() >= begun.1 + 2);
    let renewals = load.renewals() - begun.1;
    drop(disk);
    sleep(seconds(1));
    let coordinator = etcd.connect();
    assert!(coordinator.get(KEPT).unwrap().is_some());
    let report = load.end(&coordinator);
    println!("slow disk: {renewals} renewals in {:?}, {report:?}", begun.0.elapsed());
    assert!(report.pause <= SLOW_PAUSE_MAX, "{report:?}");
}

#[test]
fn a_slow_disk_of_the_leader_expires_no_key_that_is_renewed() {
    let etcd = Etcd::start("slow", 3);
    let load = Load::start(&etcd);
    load_on_a_slow_disk(&etcd, etcd.leader(), load);
}

/// All processes use the follower, which answers once it has executed a transaction too.
#[test]
fn a_slow_disk_of_a_follower_expires_no_key_that_is_renewed() {
    let etcd = Etcd::start("slow-follower", 3);
    let follower = (etcd.leader() + 1) % 3;
    let endpoints = etcd.members[follower].endpoints();
    let load = Load::of(|| EtcdCoordinator::new(endpoints.clone(), &Credential::default()).unwrap());
    load_on_a_slow_disk(&etcd, follower, load);
}
