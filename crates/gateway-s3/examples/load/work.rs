//! Requests for objects.

use super::connection::{Connection, Request};
use super::options::{Options, Work};
use super::report::Done;
use super::signing::sha256;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Numbers of keys that clients of mixed work put begin here, a range for each client.
const MIXED_FIRST: u64 = 10_000_000;

/// What all clients share.
pub struct Plan<'a> {
    options: &'a Options,
    body: Vec<u8>,
    hash: Option<String>,
    /// The number of the next request.
    next: AtomicU64,
}

struct Client<'a> {
    shared: &'a Plan<'a>,
    connection: Connection,
    random: u64,
    /// Numbers of keys that this client put, for mixed work.
    own: Vec<u64>,
    own_next: u64,
    done: Done,
}

pub fn make_bucket(options: &Options) {
    let path = format!("/{}", options.bucket);
    let request = Request { method: "PUT", path: &path, query: "", body: b"", hash: None };
    let mut answer = Vec::new();
    let status = Connection::open(options).send(&request, Some(&mut answer)).status;
    let text = String::from_utf8_lossy(&answer);
    assert!(status == 200 || status == 409, "the bucket is not made: status {status} {text}");
}

impl<'a> Plan<'a> {
    pub fn new(options: &'a Options) -> Self {
        let body = noise(options.size);
        let hash = options.is_signed.then(|| sha256(&body));
        Self { options, body, hash, next: AtomicU64::new(0) }
    }

    pub fn run(&self) -> Done {
        let (mut all, end) = (Done::default(), Instant::now() + self.options.time);
        std::thread::scope(|scope| {
            let numbers = 0..self.options.clients as u64;
            let clients: Vec<_> =
                numbers.map(|number| scope.spawn(move || Client::new(self, number).run(end))).collect();
            clients.into_iter().for_each(|client| all.add(client.join().expect("a client")));
        });
        all
    }
}

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let words = std::iter::repeat_with(|| step(&mut state).to_le_bytes());
    words.take(length.div_ceil(8)).flatten().take(length).collect()
}

/// xorshift64.
fn step(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl<'a> Client<'a> {
    fn new(shared: &'a Plan<'a>, number: u64) -> Self {
        let random = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let own_next = MIXED_FIRST + number * 1_000_000;
        let connection = Connection::open(shared.options);
        Self { shared, connection, random, own: Vec::new(), own_next, done: Done::default() }
    }

    fn run(mut self, end: Instant) -> Done {
        let options = self.shared.options;
        let limit = if options.work == Work::Delete { options.keys } else { options.count };
        while Instant::now() < end {
            let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
            if number >= limit {
                break;
            }
            match options.work {
                Work::Put => self.ask("PUT", options.first + number),
                Work::Get => self.ask_any("GET"),
                Work::Head => self.ask_any("HEAD"),
                Work::Delete => self.ask("DELETE", options.first + number),
                Work::Mixed => self.mixed(),
                Work::Bucket | Work::List => panic!("this is no work on objects"),
            }
        }
        self.done
    }

    fn ask_any(&mut self, method: &str) {
        let number = step(&mut self.random) % self.shared.options.keys.max(1);
        self.ask(method, number);
    }

    fn mixed(&mut self) {
        let percent = step(&mut self.random) % 100;
        match (percent, self.own.pop()) {
            (95.., Some(number)) => return self.ask("DELETE", number),
            (_, Some(number)) => self.own.push(number),
            (_, None) => {}
        }
        if percent < 70 {
            return self.ask_any("GET");
        }
        let number = self.own_next;
        self.own_next += 1;
        self.ask("PUT", number);
        self.own.push(number);
    }

    fn ask(&mut self, method: &str, number: u64) {
        let shared = self.shared;
        let path = format!("/{}/{}", shared.options.bucket, shared.options.key(number));
        let (body, hash) = match method {
            "PUT" => (&shared.body[..], shared.hash.as_deref()),
            _ => (&b""[..], None),
        };
        let begun = Instant::now();
        let answer = self.connection.send(&Request { method, path: &path, query: "", body, hash }, None);
        self.done.latencies.push(begun.elapsed().as_micros() as u32);
        self.done.bytes += body.len() as u64 + if method == "GET" { answer.bytes } else { 0 };
        let is_right =
            matches!(answer.status, 200 | 204) && (method != "GET" || answer.bytes == shared.body.len() as u64);
        if !is_right {
            self.done.errors += 1;
            self.done.error_status = answer.status;
        }
    }
}
