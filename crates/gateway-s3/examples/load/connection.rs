//! HTTP/1.1 over one kept connection.

use super::options::Options;
use super::signing::Signer;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes that a client with a rate sends or reads between two pauses.
const STEP: usize = 64 << 10;

pub struct Connection {
    stream: BufReader<TcpStream>,
    host: String,
    signer: Signer,
    buffer: Vec<u8>,
    rate: u64,
}

/// A request without its signature.
pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub query: &'a str,
    pub body: &'a [u8],
    /// SHA-256 of the body, if it is to be signed.
    pub hash: Option<&'a str>,
}

pub struct Answer {
    pub status: u16,
    pub bytes: u64,
}

impl Connection {
    pub fn open(options: &Options) -> Self {
        Self {
            stream: connect(&options.host),
            host: options.host.clone(),
            signer: Signer::new(options),
            buffer: vec![0; 256 << 10],
            rate: options.rate,
        }
    }

    /// Sends a request and reads the answer to its end. The body is kept in `into`, if there is one.
    pub fn send(&mut self, request: &Request<'_>, into: Option<&mut Vec<u8>>) -> Answer {
        let Request { method, path, query, body, hash } = *request;
        let mut head = self.signer.head(method, path, query, body.len(), hash).into_bytes();
        // A small body goes in one packet with the head.
        let small = if body.len() <= STEP && self.rate == 0 { body.len() } else { 0 };
        head.extend_from_slice(&body[..small]);
        self.stream.get_mut().write_all(&head).expect("write to the server");
        self.send_body(&body[small..]);
        self.answer(method == "HEAD", into)
    }

    fn send_body(&mut self, body: &[u8]) {
        let begun = Instant::now();
        let step = if self.rate == 0 { body.len().max(1) } else { STEP };
        let mut sent = 0;
        for piece in body.chunks(step) {
            self.stream.get_mut().write_all(piece).expect("write to the server");
            sent += piece.len() as u64;
            self.pause(begun, sent);
        }
    }

    fn pause(&self, begun: Instant, moved: u64) {
        if self.rate > 0 {
            let due = Duration::from_secs_f64(moved as f64 / self.rate as f64);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }

    fn answer(&mut self, is_head: bool, mut into: Option<&mut Vec<u8>>) -> Answer {
        let status = self.line();
        let status: u16 = status.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status line");
        let (mut length, mut is_chunked, mut is_closed) = (0, false, false);
        loop {
            let line = self.line().to_ascii_lowercase();
            let Some((name, value)) = line.split_once(':') else { break };
            match (name, value.trim()) {
                ("content-length", value) => length = value.parse().expect("a length"),
                ("transfer-encoding", value) => is_chunked = value == "chunked",
                ("connection", value) => is_closed = value == "close",
                _ => {}
            }
        }
        let has_body = !is_head && status != 204 && status != 304;
        let bytes = match has_body {
            true if is_chunked => self.chunks(&mut into),
            true => self.body(length, &mut into),
            false => 0,
        };
        if is_closed {
            self.stream = connect(&self.host);
        }
        Answer { status, bytes }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("read from the server");
        assert!(!line.is_empty(), "the server closed the connection");
        line.truncate(line.trim_end().len());
        line
    }

    fn chunks(&mut self, into: &mut Option<&mut Vec<u8>>) -> u64 {
        let mut read = 0;
        loop {
            let length = u64::from_str_radix(self.line().split(';').next().unwrap_or(""), 16).expect("a chunk");
            read += self.body(length, into);
            self.line_after_chunk();
            if length == 0 {
                return read;
            }
        }
    }

    fn line_after_chunk(&mut self) {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("read from the server");
    }

    fn body(&mut self, length: u64, into: &mut Option<&mut Vec<u8>>) -> u64 {
        let (mut left, begun) = (length, Instant::now());
        while left > 0 {
            let step = self.buffer.len().min(left as usize).min(if self.rate == 0 { usize::MAX } else { STEP });
            let read = self.stream.read(&mut self.buffer[..step]).expect("read from the server");
            assert!(read > 0, "the server closed the connection");
            left -= read as u64;
            if let Some(into) = into {
                into.extend_from_slice(&self.buffer[..read]);
            }
            self.pause(begun, length - left);
        }
        length
    }
}

fn connect(host: &str) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(host).expect("connect to the server");
    stream.set_nodelay(true).expect("set TCP_NODELAY");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set a time limit");
    BufReader::with_capacity(64 << 10, stream)
}
