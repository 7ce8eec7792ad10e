// A door with three keys, and a client that signs: small, and of its own, so that a mistake in the door's reading of
// signatures is not repeated here.
use hekate_client::{OpenOptions, Volume};
use hekate_gateway_s3::{Door, Limits, Settings};
use ring::{digest, hmac};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{SystemTime, UNIX_EPOCH};

struct TestDoor {
    door: Option<Door>,
    _scratch: Scratch,
}

#[allow(dead_code)]
impl TestDoor {
    fn new(name: &str) -> Self {
        Self::with(name, Limits::default())
    }

    fn with(name: &str, limits: Limits) -> Self {
        Self::changed(name, |settings| settings.limits = limits)
    }

    fn changed(name: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let scratch = Scratch::new(&format!("s3-{name}"));
        let volume = Arc::new(Volume::open(scratch.endpoint(), "v1", &OpenOptions::default()).unwrap());
        let mut settings = Settings {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            tls: None,
            domain: Some("s3.test".into()),
            region: "us-east-1".into(),
            limits: Limits::default(),
        };
        change(&mut settings);
        Self { door: Some(Door::start(volume, Arc::new(Fixed), settings).unwrap()), _scratch: scratch }
    }

    fn door(&self) -> &Door {
        self.door.as_ref().unwrap()
    }

    fn address(&self) -> SocketAddr {
        self.door().addresses()[0]
    }

    fn host(&self) -> String {
        self.address().to_string()
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).unwrap()
    }

    /// Sends these bytes and reads until the door closes the connection.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The door may have closed already.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A request without a signature.
    fn plain(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.host());
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        self.send(&request, body)
    }

    fn signed(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send(&Signer::full().sign(method, &self.host(), path, headers, body), body)
    }

    /// A signed request that has to succeed.
    fn ok(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let answer = self.signed(method, path, &[], body);
        assert!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.text());
        answer
    }

    fn send(&self, head: &str, body: &[u8]) -> Answer {
        self.send_with(head, &[("content-length", &body.len().to_string())], body)
    }

    /// With further headers, which are not signed.
    fn send_with(&self, head: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect();
        let further: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        stream.write_all(format!("{head}{further}connection: close\r\n\r\n").as_bytes()).unwrap();
        // The door may refuse before it has read all.
        let _ = stream.write_all(body);
        Answer::read(&mut stream, head.starts_with("HEAD "))
    }
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

#[allow(dead_code)]
impl Answer {
    fn read(stream: &mut TcpStream, is_head: bool) -> Self {
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 65_536];
        loop {
            if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
                return Self::rest(&head, bytes.split_off(at + 4), stream, is_head);
            }
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "no answer: {}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&buffer[..read]);
        }
    }

    fn rest(head: &str, mut body: Vec<u8>, stream: &mut TcpStream, is_head: bool) -> Self {
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut answer = Self { status, headers, body: Vec::new() };
        match answer.header("content-length").map(|length| length.parse::<usize>().unwrap()) {
            _ if is_head || status == 204 || status == 304 => {}
            Some(length) => {
                let mut rest = vec![0; length - body.len()];
                stream.read_exact(&mut rest).unwrap();
                body.extend_from_slice(&rest);
            }
            None => drop(stream.read_to_end(&mut body).unwrap()),
        }
        answer.body = body;
        answer
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The texts of all elements with this name.
    fn elements(&self, name: &str) -> Vec<String> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let text = self.text();
        text.split(&open).skip(1).map(|rest| rest.split(&close).next().unwrap().to_owned()).collect()
    }

    /// The code of an error.
    fn code(&self) -> String {
        self.elements("Code").into_iter().next().unwrap_or_else(|| format!("{} without a code", self.status))
    }
}

#[derive(Clone, Copy)]
struct Signer {
    id: &'static str,
    secret: &'static str,
    region: &'static str,
    /// Seconds by which its clock is ahead.
    skew: i64,
    /// `x-amz-content-sha256`, if it is not the hash of the body.
    payload: Option<&'static str>,
}

impl Signer {
    fn full() -> Self {
        Self { id: "full", secret: "full-secret", region: "us-east-1", skew: 0, payload: None }
    }

    fn reader() -> Self {
        Self { id: "reader", secret: "reader-secret", ..Self::full() }
    }

    fn limited() -> Self {
        Self { id: "limited", secret: "limited-secret", ..Self::full() }
    }

    /// A signed request up to its last header. `path` is encoded, its parameters have to be in order.
    fn sign(self, method: &str, host: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + self.skew;
        let date = amz_date(now);
        let hash = self.payload.map_or_else(|| hex(digest::digest(&digest::SHA256, body).as_ref()), str::to_owned);
        let mut all: Vec<(String, String)> =
            headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        for (name, value) in [("host", host), ("x-amz-date", &date), ("x-amz-content-sha256", &hash)] {
            all.push((name.into(), value.into()));
        }
        all.sort();
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let (resource, query) = path.split_once('?').unwrap_or((path, ""));
        let mut items: Vec<String> = query
            .split('&')
            .filter(|item| !item.is_empty())
            .map(|item| if item.contains('=') { item.to_owned() } else { format!("{item}=") })
            .collect();
        items.sort();
        let lines: String = all.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let canonical = format!("{method}\n{resource}\n{}\n{lines}\n{names}\n{hash}", items.join("&"));
        let scope = format!("{}/{}/s3/aws4_request", &date[..8], self.region);
        let hashed = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
        let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashed}");
        let signature = hex(&mac(&self.key(&date[..8]), &to_sign));
        let lines: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!(
            "{method} {path} HTTP/1.1\r\n{lines}authorization: AWS4-HMAC-SHA256 Credential={}/{scope}, \
             SignedHeaders={names}, Signature={signature}\r\n",
            self.id
        )
    }

    fn key(self, day: &str) -> Vec<u8> {
        let day = mac(format!("AWS4{}", self.secret).as_bytes(), day);
        mac(&mac(&mac(&day, self.region), "s3"), "aws4_request")
    }
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn amz_date(unix: i64) -> String {
    let time = time::OffsetDateTime::from_unix_timestamp(unix).unwrap();
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    format!("{year:04}{:02}{day:02}T{hour:02}{minute:02}{second:02}Z", u8::from(month))
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
