//! Bytes that arrive on sockets and on `/dev/fuse`.

use crate::allocation::bounded;
use crate::values::{FIXED_BYTES, replies, requests, value};
use bytes::Bytes;
use hekate_proto::*;
use hekate_tls::Holder;
use hekate_transport::fuzz::{
    Accepted, Challenge, Hello, PROTOCOL_VERSION, converse_as_client, converse_as_server, take_replies, take_requests,
};
use hekate_transport::{FRAME_BYTES_MAX, Peer, RemotePeer, Service};
use std::sync::Arc;

/// Memory that a conversation may take, in bytes. A frame's header gives the length of its body, and the receiver
/// allocates that much, twice while the buffer grows.
const CONVERSATION_BYTES: usize = 2 * FRAME_BYTES_MAX + FIXED_BYTES;

const CHALLENGE: u8 = 1;
const HELLO: u8 = 2;
const WELCOME: u8 = 3;
const REQUESTS: u8 = 4;
const REPLIES: u8 = 5;
const CONTROL: u8 = 6;

pub fn frame_body(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    let given = Bytes::copy_from_slice(body);
    match kind % 6 {
        CHALLENGE => drop(value::<Challenge>(body)),
        HELLO => drop(value::<Hello>(body)),
        WELCOME => drop(value::<Result<Accepted>>(body)),
        REQUESTS => {
            if let Ok(requests) = bounded(body.len(), FIXED_BYTES, || take_requests(given)) {
                assert_eq!(requests.to_bytes(), body);
            }
        }
        REPLIES => {
            if let Ok(replies) = bounded(body.len(), FIXED_BYTES, || take_replies(given)) {
                assert_eq!(replies.to_bytes(), body);
            }
        }
        _ => drop(value::<String>(body)),
    }
}

pub fn frame_body_seeds() -> Vec<Vec<u8>> {
    let body = |kind: u8, bytes: Bytes| [&[kind][..], &bytes].concat();
    let mut seeds: Vec<_> = hellos().into_iter().map(|hello| body(HELLO, hello)).collect();
    seeds.extend([
        body(CHALLENGE, challenge()),
        body(WELCOME, welcome()),
        body(REQUESTS, requests().to_bytes()),
        body(REPLIES, replies().to_bytes()),
        body(0, String::from("{\"request\":\"status\"}").to_bytes()),
    ]);
    seeds
}

/// A server that accepts every request.
struct Obliging;

impl Service for Obliging {
    fn open(&self, _: &Peer, volume: &str, resume: Option<SessionId>) -> Result<(VolumeId, SessionId, String)> {
        match volume {
            "" => Err(Error::NotFound),
            _ => Ok((VolumeId(1), resume.unwrap_or(SessionId(2)), String::new())),
        }
    }
    fn call(&self, session: SessionId, requests: Vec<Request>) -> Vec<Result<Reply>> {
        assert!(requests.iter().all(|request| request.session == session && !matches!(request.op, Op::Leg { .. })));
        requests.iter().map(|_| Ok(Reply::Done)).collect()
    }
    fn disconnected(&self, _: SessionId) {}
    fn control(&self, _: &Peer, request: &str) -> String {
        request.into()
    }
}

/// Bytes of a client, received by a server. The first byte decides who the client is.
pub fn server(bytes: &[u8]) {
    let Some((number, said)) = bytes.split_first() else { return };
    let converse = || converse_as_server(said, peer(*number), Arc::new(Obliging));
    let ended = bounded(bytes.len(), CONVERSATION_BYTES, converse);
    // The server catches a panic of a connection's thread and reports it as an internal error; it is still a failure
    // here.
    assert!(!ended.is_err_and(|error| error.to_string().contains("a bug that")));
}

pub fn server_seeds() -> Vec<Vec<u8>> {
    let conversation = |peer: u8, hello: Bytes, then: Vec<u8>| {
        let mut out = vec![peer];
        out.extend(frame(HELLO, 0, &hello));
        out.extend(then);
        out
    };
    let batch = |id| frame(REQUESTS, id, &requests().to_bytes());
    let batches = [batch(1), batch(2)].concat();
    let control = frame(CONTROL, 1, &String::from("{\"request\":\"status\"}").to_bytes());
    let [open, resume, plain, listen, server] = hellos();
    vec![
        conversation(0, open.clone(), batches.clone()),
        conversation(0, resume, batches),
        conversation(0, plain, control),
        conversation(0, listen, batch(1)),
        conversation(2, open, Vec::new()),
        conversation(0, server.clone(), Vec::new()),
        conversation(3, server, Vec::new()),
    ]
}

/// The peers of the fuzzed conversations.
fn peer(number: u8) -> Peer {
    let remote =
        |holder| Peer::Remote(RemotePeer { holder, serial: "01".into(), network: "front".into(), address: None });
    match number % 4 {
        0 => Peer::Local { uid: 0 },
        1 => remote(None),
        2 => remote(Some(Holder::Client("web".into()))),
        _ => remote(Some(Holder::Server(ServerId(2)))),
    }
}

/// Bytes of a server, received by a client.
pub fn client(said: &[u8]) {
    let asked = &requests()[..2];
    let _ = bounded(said.len(), CONVERSATION_BYTES, || converse_as_client(said, asked));
}

pub fn client_seeds() -> Vec<Vec<u8>> {
    let conversation = |welcome: Bytes| {
        let mut out = Vec::new();
        out.extend(frame(CHALLENGE, 0, &challenge()));
        out.extend(frame(WELCOME, 0, &welcome));
        for (id, pair) in (1..).zip(replies().chunks_exact(2)) {
            out.extend(frame(REPLIES, id, &pair.to_vec().to_bytes()));
        }
        out
    };
    let refused = Result::<Accepted>::Err(Error::Denied { what: "no".into() }).to_bytes();
    vec![conversation(welcome()), conversation(refused)]
}

fn frame(kind: u8, id: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    (body.len() as u32).put(&mut out);
    out.extend([kind, 0, 0, 0]);
    id.put(&mut out);
    out.extend_from_slice(body);
    out
}

fn challenge() -> Bytes {
    Challenge { version: PROTOCOL_VERSION }.to_bytes()
}

fn hellos() -> [Bytes; 5] {
    // The purpose byte of a hello: 1 opens a volume, 2 resumes a session, 3 is a control connection, 4 comes from a
    // server, 5 receives notifications for a session.
    let hello = |purpose: &[u8]| {
        let mut out = Vec::new();
        PROTOCOL_VERSION.put(&mut out);
        out.extend_from_slice(purpose);
        Bytes::from(out)
    };
    let volume = [1, 0, 0, 0, b'v'];
    let of_session = |purpose: u8| hello(&[&[purpose][..], &volume, &[2, 0, 0, 0, 0, 0, 0, 0]].concat());
    [
        hello(&[&[1][..], &volume].concat()),
        of_session(2),
        hello(&[3]),
        of_session(5),
        hello(&[4, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
    ]
}

fn welcome() -> Bytes {
    let map = String::from_utf8(crate::text::map_seeds().remove(0)).unwrap();
    Ok::<_, Error>(Accepted { session: SessionId(2), map }).to_bytes()
}

pub fn fuse_request(bytes: &[u8]) {
    let given = Bytes::copy_from_slice(bytes);
    // Debug output takes up to four characters a byte, and the text grows by doubling.
    let _ = bounded(bytes.len(), FIXED_BYTES, || hekate_gateway_fuse::fuzz::request(&given));
}

/// Headers as in `linux/include/uapi/linux/fuse.h`, each opcode with arguments that most structures take.
pub fn fuse_request_seeds() -> Vec<Vec<u8>> {
    let request = |opcode: u32, arguments: &[u8]| {
        let mut out = Vec::new();
        (40 + arguments.len() as u32).put(&mut out);
        opcode.put(&mut out);
        [9u64, 1].iter().for_each(|word| word.put(&mut out));
        [1000u32, 100, 77, 0].iter().for_each(|word| word.put(&mut out));
        out.extend_from_slice(arguments);
        out
    };
    let names: &[u8] = b"a\0b\0";
    let sizes: &[(u32, usize)] =
        &[(1, 0), (6, 0), (8, 16), (9, 8), (10, 0), (11, 0), (12, 8), (13, 8), (24, 0), (35, 16), (45, 16)];
    let mut seeds: Vec<_> =
        sizes.iter().map(|(opcode, count)| request(*opcode, &[&vec![0; *count], names].concat())).collect();
    let fixed: &[(u32, usize)] = &[
        (2, 8),
        (3, 16),
        (4, 88),
        (5, 0),
        (14, 8),
        (15, 40),
        (17, 0),
        (18, 24),
        (23, 8),
        (27, 8),
        (28, 40),
        (36, 8),
        (25, 24),
        (31, 48),
        (32, 48),
        (33, 48),
    ];
    seeds.extend(fixed.iter().map(|(opcode, count)| request(*opcode, &vec![0; *count])));
    let word = |number: u32| number.to_le_bytes();
    let init: Vec<u8> = [7, 40, 131_072, u32::MAX, 0x10, 0, 0, 0].into_iter().flat_map(word).collect();
    let write: Vec<u8> = [0, 0, 0, 0, 5, 0, 0, 0, 0, 0].into_iter().flat_map(word).collect();
    let xattr: Vec<u8> = [3, 0].into_iter().flat_map(word).collect();
    let forget: Vec<u8> = [2, 0, 5, 0, 1, 0, 6, 0, 1, 0].into_iter().flat_map(word).collect();
    seeds.extend([
        request(26, &init),
        request(16, &[&write[..], b"hello"].concat()),
        request(21, &[&xattr[..], b"user.x\0abc"].concat()),
        request(22, &[&xattr[..], b"user.x\0"].concat()),
        request(42, &forget),
    ]);
    seeds
}
