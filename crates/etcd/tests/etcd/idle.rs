//! What an idle cluster costs etcd: writes, syncs and bytes a second, and the size of the database.

use crate::support::Etcd;
use hekate_cluster::coordinator::LEASE;
use hekate_cluster::{Coordinator, Outcome};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

const KEEPERS: usize = 3;
/// Time between two renewals, as a server renews its lease.
const RENEWAL: Duration = Duration::from_millis(750);
const MEASURED: Duration = Duration::from_secs(60);
const METRICS: [&str; 7] = [
    "etcd_mvcc_put_total",
    "etcd_mvcc_range_total",
    "etcd_disk_wal_fsync_duration_seconds_count",
    "etcd_network_client_grpc_received_bytes_total",
    "etcd_network_client_grpc_sent_bytes_total",
    "etcd_debugging_mvcc_keys_total",
    "etcd_mvcc_db_total_size_in_use_in_bytes",
];

/// The metrics of a member.
fn metrics(address: &str) -> BTreeMap<&'static str, f64> {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    connection.read_to_string(&mut page).unwrap();
    let value = |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    METRICS.into_iter().filter_map(|name| Some((name, value(name)?))).collect()
}

#[test]
#[ignore = "a measurement of a minute; tests/soak/run.sh etcd runs it"]
fn what_idle_servers_cost() {
    let etcd = Etcd::start("idle", 3);
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for number in 0..KEEPERS {
        let coordinator = Arc::new(etcd.connect());
        let (watching, ended) = (coordinator.clone(), stop.clone());
        let begin = coordinator.list("/").unwrap().revision;
        threads.push(spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let _ = watching.watch(&["/none"], begin, Duration::from_secs(1));
            }
        }));
        let ended = stop.clone();
        threads.push(spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let kept = coordinator.keep(&format!("/alive/{number:05}"), "1", LEASE);
                assert_eq!(kept, Ok(Outcome::Written));
                sleep(RENEWAL);
            }
        }));
    }
    sleep(Duration::from_secs(3));
    let all = || etcd.members.iter().map(|member| metrics(member.address())).collect::<Vec<_>>();
    let (before, begun) = (all(), Instant::now());
    sleep(MEASURED);
    let (after, seconds) = (all(), begun.elapsed().as_secs_f64());
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        for (name, value) in after {
            println!("m{number} {name}: {value}, {:.2} a second", (value - before[name]) / seconds);
        }
    }
    let puts = (after[0]["etcd_mvcc_put_total"] - before[0]["etcd_mvcc_put_total"]) / seconds;
    let expected = KEEPERS as f64 / RENEWAL.as_secs_f64();
    assert!(puts > expected * 0.5 && puts < expected * 1.2, "{puts} puts a second; a renewal is one: {expected}");
}
