//! A door over vDisks in memory, and clients that speak the protocol byte by byte.

use crate::protocol::*;
use crate::{Door, Exports, Listen, Settings};
use hekate_vdisk::store::memory::Memory;
use hekate_vdisk::{Catalogue, Durability};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

const SIZE: u64 = 4 << 20;

struct Served {
    door: Option<Door>,
    path: PathBuf,
}

fn served(name: &str, patience: Duration, connections_max: usize) -> Served {
    let path = std::env::temp_dir().join(format!("hekate-nbd-{name}-{}", std::process::id()));
    let catalogue = Catalogue::open(Memory::default().session(1)).unwrap();
    catalogue.create("d", SIZE, Durability::Replicated, Vec::new()).unwrap();
    let exports = Exports::new(catalogue, "test".into(), hekate_vdisk::Settings::default());
    let settings =
        Settings { listen: vec![Listen::Unix(path.clone())], tls: None, clients: None, connections_max, patience };
    Served { door: Some(Door::start(exports, settings).unwrap()), path }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.door.take().unwrap().stop();
        assert!(!self.path.exists());
    }
}

struct Client(UnixStream);

impl Client {
    fn connect(served: &Served) -> Self {
        let mut client = Self(UnixStream::connect(&served.path).unwrap());
        client.0.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let hello = client.get(18);
        assert_eq!(hello[..8], INIT_MAGIC.to_be_bytes());
        client.put(&3u32.to_be_bytes());
        client
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn get(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// True if the server has ended the connection.
    fn is_ended(&mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true)
    }

    fn option(&mut self, number: u32, data: &[u8]) -> (u32, Vec<u8>) {
        self.put(
            &[&OPTION_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data]
                .concat(),
        );
        self.option_reply(number)
    }

    fn option_reply(&mut self, number: u32) -> (u32, Vec<u8>) {
        let head = self.get(20);
        assert_eq!(head[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        assert_eq!(head[8..12], number.to_be_bytes());
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let data = self.get(word(16) as usize);
        (word(12), data)
    }

    /// Chooses the vDisk.
    fn go(&mut self) {
        let data = [&1u32.to_be_bytes()[..], b"d", &0u16.to_be_bytes()].concat();
        let (mut reply, mut data) = self.option(option::GO, &data);
        while reply == reply::INFO {
            if data[..2] == info::EXPORT.to_be_bytes() {
                assert_eq!(data[2..10], SIZE.to_be_bytes());
            }
            (reply, data) = self.option_reply(option::GO);
        }
        assert_eq!(reply, reply::ACK, "{}", String::from_utf8_lossy(&data));
    }

    fn request(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, length: u32, data: &[u8]) {
        let head = [
            &REQUEST_MAGIC.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &cookie.to_be_bytes(),
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
            data,
        ];
        self.put(&head.concat());
    }

    /// Error and cookie of a simple reply.
    fn simple(&mut self) -> (u32, u64) {
        let reply = self.get(16);
        assert_eq!(reply[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
        (error, u64::from_be_bytes(reply[8..].try_into().unwrap()))
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn what_is_written_is_read_by_another_connection() {
    let served = served("basic", PATIENCE, 10);
    let (mut one, mut other) = (Client::connect(&served), Client::connect(&served));
    one.go();
    other.go();
    for block in 0..40u64 {
        one.request(0, 1, block, block * 4096, 4096, &[block as u8 + 1; 4096]);
    }
    (0..40).for_each(|_| assert_eq!(one.simple().0, 0));
    one.request(0, 3, 99, 0, 0, &[]);
    assert_eq!(one.simple(), (0, 99));
    other.request(0, 0, 7, 39 * 4096, 8192, &[]);
    assert_eq!(other.simple(), (0, 7));
    assert_eq!(other.get(8192), [[40; 4096], [0; 4096]].concat());
    other.request(0, 2, 0, 0, 0, &[]);
    assert!(other.is_ended());
}

#[test]
fn requests_that_cannot_be_are_refused_one_by_one() {
    let served = served("refused", PATIENCE, 10);
    let mut client = Client::connect(&served);
    client.go();
    let mut refused = |flags, command, offset, length, data: &[u8], error| {
        client.request(flags, command, 5, offset, length, data);
        assert_eq!(client.simple(), (error, 5), "command {command}");
    };
    refused(0, 0, SIZE, 1, &[], error::EINVAL);
    refused(0, 0, u64::MAX, 512, &[], error::EINVAL);
    refused(0, 1, SIZE - 1, 2, &[1, 2], error::ENOSPC);
    refused(0, 4, SIZE, 4096, &[], error::EINVAL);
    refused(0, 0, 0, PAYLOAD_BYTES_MAX + 1, &[], error::EINVAL);
    refused(0, 3, 1, 0, &[], error::EINVAL);
    refused(0, 7, 0, 4096, &[], error::EINVAL);
    refused(0, 77, 0, 0, &[], error::EINVAL);
    refused(command_flag::DF, 1, 0, 1, &[1], error::EINVAL);
    refused(command_flag::NO_HOLE | command_flag::FAST_ZERO, 6, 0, 4096, &[], error::ENOTSUP);
    refused(0, 6, 0, 4096, &[], 0);
    refused(command_flag::FUA, 1, 0, 1, &[1], 0);
    refused(command_flag::FUA, 5, 0, 4096, &[], 0);
}

#[test]
fn structured_replies_and_the_status_of_blocks() {
    let served = served("structured", PATIENCE, 10);
    let mut client = Client::connect(&served);
    let set =
        [&1u32.to_be_bytes()[..], b"d", &1u32.to_be_bytes(), &15u32.to_be_bytes(), ALLOCATION.as_bytes()].concat();
    assert_eq!(client.option(option::SET_META_CONTEXT, &set).0, reply::ERR_INVALID);
    assert_eq!(client.option(option::STRUCTURED_REPLY, &[]).0, reply::ACK);
    assert_eq!(client.option(option::SET_META_CONTEXT, &set).0, reply::META_CONTEXT);
    assert_eq!(client.option_reply(option::SET_META_CONTEXT).0, reply::ACK);
    client.go();
    client.request(0, 1, 1, 4096, 4096, &[7; 4096]);
    assert_eq!(client.simple(), (0, 1));
    client.request(0, 7, 2, 0, SIZE as u32, &[]);
    let reply = client.get(20 + 4 + 3 * 8);
    assert_eq!(reply[6..8], chunk::BLOCK_STATUS.to_be_bytes());
    let words: Vec<u32> = reply[24..].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [4096, STATE_HOLE_ZERO, 4096, 0, SIZE as u32 - 8192, STATE_HOLE_ZERO]);
    client.request(0, 0, 3, 0, 4096, &[]);
    assert_eq!(client.get(32)[6..8], chunk::OFFSET_HOLE.to_be_bytes());
    client.request(0, 0, 4, 4096, 512, &[]);
    let reply = client.get(28 + 512);
    assert_eq!((&reply[6..8], &reply[28..]), (&chunk::OFFSET_DATA.to_be_bytes()[..], &[7; 512][..]));
    client.request(0, 0, 5, SIZE, 512, &[]);
    let reply = client.get(20);
    assert_eq!(reply[6..8], chunk::ERROR.to_be_bytes());
}

#[test]
fn exports_are_listed_and_one_that_is_not_there_is_named() {
    let served = served("list", PATIENCE, 10);
    let mut client = Client::connect(&served);
    let (reply, data) = client.option(option::LIST, &[]);
    assert_eq!((reply, &data[4..5]), (reply::SERVER, &b"d"[..]));
    assert_eq!(client.option_reply(option::LIST).0, reply::ACK);
    let data = [&1u32.to_be_bytes()[..], b"x", &0u16.to_be_bytes()].concat();
    let (reply, why) = client.option(option::INFO, &data);
    assert_eq!(reply, reply::ERR_UNKNOWN);
    assert!(String::from_utf8(why).unwrap().contains("there is no vDisk x; there are: d"));
    assert_eq!(client.option(77, b"data").0, reply::ERR_UNSUP);
    assert_eq!(client.option(option::STARTTLS, &[]).0, reply::ERR_UNSUP);
    assert_eq!(client.option(option::ABORT, &[]).0, reply::ACK);
    assert!(client.is_ended());
}

#[test]
fn hostile_clients_are_ended_and_others_served() {
    let served = served("hostile", Duration::from_millis(300), 20);
    let ended = |bytes: &[u8]| {
        let mut client = Client::connect(&served);
        client.put(bytes);
        assert!(client.is_ended(), "{bytes:?}");
    };
    ended(b"no option at all");
    ended(&[&OPTION_MAGIC.to_be_bytes()[..], &[0, 0, 0, 7], &[255; 4]].concat());
    ended(&OPTION_MAGIC.to_be_bytes());
    let mut client = Client::connect(&served);
    client.go();
    client.put(b"no request");
    client.put(&[0; 30]);
    assert!(client.is_ended());
    let mut client = Client::connect(&served);
    client.go();
    client.request(0, 1, 1, 0, u32::MAX, &[]);
    assert!(client.is_ended());
    let mut client = Client::connect(&served);
    client.go();
    client.request(0, 1, 1, 0, 4096, &[1; 100]);
    assert!(client.is_ended(), "half a request, then silence");
    let crowd: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&served.path).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(600));
    drop(crowd);
    let mut client = Client::connect(&served);
    client.go();
    std::thread::sleep(Duration::from_millis(900));
    client.request(0, 0, 1, 0, 512, &[]);
    assert_eq!(client.simple(), (0, 1), "silence between requests is no fault");
}
