//! An HTTP/1.1 server for Prometheus: it answers GET of `/metrics` and nothing else, with one request for each
//! connection.
//!
//! Requests are bounded in length and time, and the number of threads is fixed, which limits the cost of hostile
//! clients.

use crate::page::CONTENT_TYPE;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
/// Time limit for a request and for its reply.
const LIMIT: Duration = Duration::from_secs(2);
/// Number of threads, and so of requests served at once.
const THREADS: usize = 2;

/// Answers requests from now on, until the process ends. `page` returns `None` once the process is stopping.
///
/// # Errors
/// A thread cannot be started.
pub fn listen(listener: TcpListener, page: impl Fn() -> Option<String> + Send + Sync + 'static) -> std::io::Result<()> {
    let (listener, page) = (Arc::new(listener), Arc::new(page));
    for _ in 0..THREADS {
        let (listener, page) = (listener.clone(), page.clone());
        std::thread::Builder::new().name("hekate-metrics".into()).spawn(move || {
            loop {
                match listener.accept() {
                    // A client that disconnects is no error.
                    Ok((stream, _)) => _ = answer(&stream, &*page),
                    // The process has run out of descriptors, for example.
                    Err(_) => std::thread::sleep(LIMIT),
                }
            }
        })?;
    }
    Ok(())
}

fn answer(stream: &TcpStream, page: &dyn Fn() -> Option<String>) -> std::io::Result<()> {
    stream.set_write_timeout(Some(LIMIT))?;
    let (status, kind, body) = match read_request(stream)? {
        Ok(path) if path == "/metrics" => match page() {
            Some(text) => ("200 OK", CONTENT_TYPE, text),
            None => ("503 Service Unavailable", "text/plain", "the server is stopping\n".into()),
        },
        Ok(_) => ("404 Not Found", "text/plain", "there is only /metrics\n".into()),
        Err(status) => (status, "text/plain", format!("{status}\n")),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let mut stream = stream;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}

/// The requested path without its query, or the HTTP status of a bad request.
fn read_request(mut stream: &TcpStream) -> std::io::Result<Result<String, &'static str>> {
    let end = Instant::now() + LIMIT;
    let mut bytes = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err("408 Request Timeout"));
        }
        stream.set_read_timeout(Some(left))?;
        let mut some = [0; 1024];
        let count = stream.read(&mut some)?;
        bytes.extend_from_slice(&some[..count]);
        match parse(&bytes) {
            None if count == 0 => return Ok(Err("400 Bad Request")),
            None if bytes.len() >= REQUEST_BYTES_MAX => return Ok(Err("431 Request Header Fields Too Large")),
            None => {}
            Some(parsed) => return Ok(parsed),
        }
    }
}

/// `None`: the request is not complete.
fn parse(bytes: &[u8]) -> Option<Result<String, &'static str>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) if request.method == Some("GET") => {
            let path = request.path.unwrap_or_default();
            Some(Ok(path.split('?').next().unwrap_or_default().to_string()))
        }
        Ok(httparse::Status::Complete(_)) => Some(Err("405 Method Not Allowed")),
        Err(httparse::Error::TooManyHeaders) => Some(Err("431 Request Header Fields Too Large")),
        Err(_) => Some(Err("400 Bad Request")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn ask(at: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        // A request that is too long is answered before it was read.
        let _ = stream.write_all(request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn served(page: impl Fn() -> Option<String> + Send + Sync + 'static) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let at = listener.local_addr().unwrap();
        listen(listener, page).unwrap();
        at
    }

    #[test]
    fn the_page_is_answered_and_nothing_else() {
        let at = served(|| Some("# EOF\n".into()));
        let answer = ask(at, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains(CONTENT_TYPE) && answer.ends_with("Content-Length: 6\r\nConnection: close\r\n\r\n# EOF\n")
        );
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics HTTP/1.1\r\n", "400"),
            (b"\0\xff\r\n\r\n", "400"),
            (b"", "400"),
        ] {
            let answer = ask(at, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
        }
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert!(ask(at, many.as_bytes()).starts_with("HTTP/1.1 431 "));
        assert!(parse(&[b'a'; REQUEST_BYTES_MAX]).is_none(), "which read_request refuses");
    }

    #[test]
    fn after_the_end_there_is_no_page() {
        let at = served(|| None);
        assert!(ask(at, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 "));
    }

    #[test]
    fn silent_clients_block_others_for_a_limited_time_only() {
        let at = served(|| Some("# EOF\n".into()));
        let silent: Vec<_> = (0..THREADS).map(|_| TcpStream::connect(at).unwrap()).collect();
        let begun = Instant::now();
        assert!(ask(at, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
        assert!(begun.elapsed() < LIMIT * 5, "{:?}", begun.elapsed());
        drop(silent);
    }
}
