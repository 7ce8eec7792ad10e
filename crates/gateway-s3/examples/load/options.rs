//! The command line.

use std::str::FromStr;
use std::time::Duration;

/// What the clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Makes the bucket, if it does not exist.
    Bucket,
    /// Puts keys `first`, `first + 1` and so on.
    Put,
    /// Gets random keys below `keys`.
    Get,
    Head,
    /// Deletes `keys` keys: `first`, `first + 1` and so on.
    Delete,
    /// 70 % GET, 25 % PUT, 5 % DELETE of what the same client put.
    Mixed,
    /// Each client reads all pages of the listing, again and again; with `prefixes`, those of the next prefix, once.
    List,
}

/// How a number becomes a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All keys in one directory.
    Flat,
    /// 1,000 keys in a directory, 100 directories in another.
    Nested,
}

#[derive(Debug, Clone)]
pub struct Options {
    /// HOST:PORT.
    pub host: String,
    pub bucket: String,
    pub work: Work,
    /// Bytes of an object.
    pub size: usize,
    pub clients: usize,
    /// The work ends after this time, or after `count` requests.
    pub time: Duration,
    pub count: u64,
    pub keys: u64,
    pub first: u64,
    /// What all keys begin with.
    pub prefix: String,
    pub shape: Shape,
    /// Of parts of a listing.
    pub prefixes: Vec<String>,
    pub delimiter: String,
    /// The body's SHA-256 is signed.
    pub is_signed: bool,
    /// Bytes a second that a client sends or receives at most; 0: as many as it can.
    pub rate: u64,
    /// Processes of the server.
    pub pids: Vec<u32>,
    pub key_id: String,
    pub secret: String,
}

impl Options {
    pub fn of_arguments() -> Self {
        let mut arguments = std::env::args().skip(1);
        let mut next = || arguments.next().expect("usage: load ENDPOINT BUCKET WORK [--OPTION VALUE]...");
        let (endpoint, bucket, work) = (next(), next(), work_of(&next()));
        let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        let mut options = Self {
            host: endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned(),
            bucket,
            work,
            size: 4096,
            clients: 1,
            time: Duration::from_secs(5),
            count: u64::MAX,
            keys: 0,
            first: 0,
            prefix: String::new(),
            shape: Shape::Flat,
            prefixes: Vec::new(),
            delimiter: String::new(),
            is_signed: false,
            rate: 0,
            pids: Vec::new(),
            key_id: variable("AWS_ACCESS_KEY_ID"),
            secret: variable("AWS_SECRET_ACCESS_KEY"),
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().unwrap_or_else(|| panic!("{name} has no value"));
            options.set(&name, &value);
        }
        options
    }

    fn set(&mut self, name: &str, value: &str) {
        match name {
            "--size" => self.size = number(name, value),
            "--clients" => self.clients = number(name, value),
            "--seconds" => self.time = Duration::from_secs_f64(number(name, value)),
            "--count" => self.count = number(name, value),
            "--keys" => self.keys = number(name, value),
            "--first" => self.first = number(name, value),
            "--prefix" => value.clone_into(&mut self.prefix),
            "--shape" => self.shape = if value == "nested" { Shape::Nested } else { Shape::Flat },
            "--prefixes" => self.prefixes = value.split(',').map(str::to_owned).collect(),
            "--delimiter" => value.clone_into(&mut self.delimiter),
            "--signed" => self.is_signed = value == "1",
            "--rate" => self.rate = number(name, value),
            "--pids" => self.pids = value.split(',').filter(|pid| !pid.is_empty()).map(|p| number(name, p)).collect(),
            _ => panic!("{name} is no option"),
        }
    }

    /// The key of a number.
    pub fn key(&self, number: u64) -> String {
        let Self { prefix, .. } = self;
        match self.shape {
            Shape::Flat => format!("{prefix}{number:08}"),
            Shape::Nested => format!("{prefix}{:03}/{:02}/{number:08}", number / 100_000, number / 1000 % 100),
        }
    }
}

fn work_of(name: &str) -> Work {
    match name {
        "bucket" => Work::Bucket,
        "put" => Work::Put,
        "get" => Work::Get,
        "head" => Work::Head,
        "delete" => Work::Delete,
        "mixed" => Work::Mixed,
        "list" => Work::List,
        _ => panic!("{name} is no work: bucket, put, get, head, delete, mixed or list"),
    }
}

fn number<T: FromStr>(name: &str, value: &str) -> T {
    value.parse().unwrap_or_else(|_| panic!("{name}: {value} is no number"))
}
