//! Listings: all pages, one after the other, of the whole listing or of parts of it that clients take in turn.

use super::connection::{Connection, Request};
use super::cpu::Cpu;
use super::options::Options;
use super::report::{Done, Report};
use super::signing::encoded;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Times of the pages of one pass, in microseconds, and what was listed.
struct Pass {
    pages: Vec<u32>,
    keys: u64,
    prefixes: u64,
}

pub fn run(options: &Options) {
    let (before, begun, taken) = (Cpu::now(&options.pids), Instant::now(), AtomicUsize::new(0));
    let passes: Vec<Pass> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..options.clients).map(|_| scope.spawn(|| client(options, begun, &taken))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    let (seconds, after) = (begun.elapsed().as_secs_f64(), Cpu::now(&options.pids));
    let last = passes.last().expect("a pass");
    let keys: u64 = passes.iter().map(|pass| pass.keys + pass.prefixes).sum();
    let at = |index: usize| format!("{:.3}", f64::from(last.pages.get(index).copied().unwrap_or(0)) / 1000.0);
    let done = Done { latencies: passes.iter().flat_map(|pass| pass.pages.clone()).collect(), ..Done::default() };
    let report = Report::new(options, done, seconds, &before, &after)
        .with("passes", passes.len().to_string())
        .with("keys_per_s", format!("{:.0}", keys as f64 / seconds))
        .with("keys", last.keys.to_string())
        .with("prefixes", last.prefixes.to_string())
        .with("first_ms", at(0))
        .with("middle_ms", at(last.pages.len() / 2))
        .with("last_ms", at(last.pages.len().saturating_sub(2)));
    println!("{}", report.json());
}

/// Lists all keys again and again or, if there are prefixes, those of each prefix once.
fn client(options: &Options, begun: Instant, taken: &AtomicUsize) -> Vec<Pass> {
    let mut connection = Connection::open(options);
    let mut passes = Vec::new();
    if options.prefixes.is_empty() {
        while passes.is_empty() || begun.elapsed() < options.time {
            passes.push(pass(&mut connection, options, &options.prefix));
        }
    }
    while let Some(prefix) = options.prefixes.get(taken.fetch_add(1, Ordering::Relaxed)) {
        passes.push(pass(&mut connection, options, prefix));
    }
    passes
}

fn pass(connection: &mut Connection, options: &Options, prefix: &str) -> Pass {
    let Options { bucket, delimiter, .. } = options;
    let (path, mut token) = (format!("/{bucket}"), String::new());
    let mut pass = Pass { pages: Vec::new(), keys: 0, prefixes: 0 };
    loop {
        // In the order of the names, as the signature wants them.
        let items = [("continuation-token", &token), ("delimiter", delimiter)];
        let mut query: Vec<String> = items
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name}={}", encoded(value)))
            .collect();
        query.extend(["list-type=2".to_owned(), "max-keys=1000".to_owned(), format!("prefix={}", encoded(prefix))]);
        let (mut body, begun) = (Vec::new(), Instant::now());
        let request = Request { method: "GET", path: &path, query: &query.join("&"), body: b"", hash: None };
        let answer = connection.send(&request, Some(&mut body));
        pass.pages.push(begun.elapsed().as_micros() as u32);
        let text = String::from_utf8_lossy(&body);
        assert!(answer.status == 200, "status {}: {text}", answer.status);
        pass.keys += text.matches("<Contents>").count() as u64;
        pass.prefixes += text.matches("<CommonPrefixes>").count() as u64;
        match text.split_once("<NextContinuationToken>").and_then(|(_, rest)| rest.split_once('<')) {
            Some((next, _)) => next.replace("&#34;", "\"").replace("&amp;", "&").clone_into(&mut token),
            None => return pass,
        }
    }
}
