//! Handshakes of two ends, and what each end says of one that fails.

use super::*;
use crate::{Authority, Credential, Holder, Root};
use hekate_proto::ServerId;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);

struct Cluster {
    name: &'static str,
    root: Root,
    authority: Authority,
}

impl Cluster {
    fn new(name: &'static str) -> Self {
        let now = SystemTime::now();
        let root = Root::create(name, 3000 * DAY, now).unwrap();
        let authority = root.authorise(name, 1000 * DAY, now).unwrap();
        Self { name, root, authority }
    }

    fn credential(&self, holder: &Holder, now: SystemTime) -> Credential {
        let (key, public) = Credential::make_key().unwrap();
        let (chain, serial) = self.authority.issue(holder, &public, 10 * DAY, now).unwrap();
        let roots = self.root.certificate.clone();
        let made =
            Credential { cluster: self.name.into(), network: String::new(), servers: Vec::new(), roots, chain, key };
        let info = made.info().unwrap();
        assert_eq!((info.serial, &info.identity.unwrap().holder), (serial, holder));
        made
    }

    fn server(&self) -> Credential {
        self.credential(&Holder::Server(ServerId(3)), SystemTime::now())
    }

    fn client(&self) -> Credential {
        self.credential(&Holder::client("web").unwrap(), SystemTime::now())
    }
}

fn open(context: &Context, side: Side, stream: &UnixStream) -> Opened {
    let receive = &mut |buffer: &mut Vec<u8>| {
        let mut bytes = [0; 4096];
        let count = { stream }.read(&mut bytes)?;
        buffer.extend_from_slice(&bytes[..count]);
        Ok(count)
    };
    Session::open(context, side, receive, &mut |bytes| { stream }.write_all(bytes))
}

type Opened = io::Result<(Session, Inbox)>;

/// Both ends of a handshake, and what each end reads next.
fn both(client: Context, server: Context) -> (Opened, Opened) {
    let (near, far) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(move || open(&server, Side::Server, &far));
        let opened = open(&client, Side::Client, &near);
        // A client in TLS 1.3 is refused after its own handshake is over.
        let opened = opened.and_then(|(session, mut inbox)| {
            near.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let mut bytes = [0; 4096];
            let count = { &near }.read(&mut bytes).unwrap_or_default();
            inbox.buffer().extend_from_slice(&bytes[..count]);
            session.decrypt(&mut inbox, &mut |_| {})?;
            Ok((session, inbox))
        });
        drop(near);
        (opened, accepting.join().unwrap())
    })
}

fn context(credential: Credential) -> Context {
    Context::of(credential).unwrap()
}

/// What both ends say of a handshake that fails.
fn refusals(client: Credential, server: Credential) -> (String, String) {
    let (client, server) = both(context(client), context(server));
    (client.unwrap_err().to_string(), server.unwrap_err().to_string())
}

#[test]
fn both_ends_know_each_other_and_carry_bytes_of_any_length() {
    let cluster = Cluster::new("c1");
    let (client, server) = both(context(cluster.client()), context(cluster.server()));
    let ((client, mut from_server), (server, mut from_client)) = (client.unwrap(), server.unwrap());
    assert_eq!(client.peer().unwrap().0.to_string(), "hekate://c1/server/3");
    assert_eq!(server.peer().unwrap().0.to_string(), "hekate://c1/client/web");
    for length in [0, 1, 100, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 1 << 20] {
        let plain: Vec<u8> = (0..length).map(|at| at as u8).collect();
        for (from, to, inbox) in [(&client, &server, &mut from_client), (&server, &client, &mut from_server)] {
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            from.encrypt(&plain, &mut sent).unwrap();
            // In pieces of any length.
            for piece in sent.chunks(5000) {
                inbox.buffer().extend_from_slice(piece);
                assert!(to.decrypt(inbox, &mut |bytes| got.extend_from_slice(bytes)).unwrap());
            }
            assert!(got == plain && inbox.is_empty(), "{length} bytes");
        }
    }
    let mut sent = Vec::new();
    client.encrypt(b"changed", &mut sent).unwrap();
    sent[8] ^= 1;
    from_client.buffer().extend_from_slice(&sent);
    let refused = server.decrypt(&mut from_client, &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("TLS fails"), "{refused}");
}

/// One thread sends while another has received a part of a record.
#[test]
fn an_end_sends_while_it_has_a_part_of_a_record() {
    let cluster = Cluster::new("c1");
    let (client, server) = both(context(cluster.client()), context(cluster.server()));
    let ((client, mut from_server), (server, mut from_client)) = (client.unwrap(), server.unwrap());
    for cut in [1, 4, 5, 6, 100] {
        let (mut asked, mut told, mut sent, mut got) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        client.encrypt(&[7; 200], &mut asked).unwrap();
        from_client.buffer().extend_from_slice(&asked[..cut]);
        assert!(server.decrypt(&mut from_client, &mut |bytes| got.extend_from_slice(bytes)).unwrap() && got.is_empty());
        assert!(!from_client.is_empty());
        server.encrypt(b"meanwhile", &mut sent).unwrap();
        from_client.buffer().extend_from_slice(&asked[cut..]);
        assert!(server.decrypt(&mut from_client, &mut |bytes| got.extend_from_slice(bytes)).unwrap());
        from_server.buffer().extend_from_slice(&sent);
        assert!(client.decrypt(&mut from_server, &mut |bytes| told.extend_from_slice(bytes)).unwrap());
        assert!(got == [7; 200] && told == b"meanwhile", "cut at {cut}");
    }
}

#[test]
fn room_for_what_is_received_grows_only_while_it_is_filled() {
    let mut inbox = Inbox::default();
    for (received, room) in [(1, 2), (1, 2), (2, 2), (7, 8), (8, 8), (32, 32), (64, 64), (64, 64), (0, 64)] {
        let buffer = inbox.buffer();
        assert!(buffer.capacity() >= room << 10);
        buffer.extend(std::iter::repeat_n(0, received << 10));
        assert_eq!((inbox.room, inbox.bytes.len()), (room << 10, received << 10));
        inbox.done = inbox.bytes.len();
    }
}

#[test]
fn each_end_refuses_what_is_not_of_its_cluster_and_says_why() {
    let (ours, others, now) = (Cluster::new("c1"), Cluster::new("c2"), SystemTime::now());
    // A false authority that calls itself as ours is called.
    let mut forged = Cluster::new("c1");
    forged.root.certificate.clone_from(&ours.root.certificate);
    let (client, server) = refusals(forged.client(), ours.server());
    assert!(server.contains("no root of this cluster"), "{server}");
    assert!(client.contains("no root of its cluster"), "{client}");
    let (client, server) = refusals(ours.client(), forged.server());
    assert!(client.contains("no root of this cluster"), "{client}");
    assert!(server.contains("no root of its cluster"), "{server}");

    // Another cluster below the same root.
    let mut sister = Cluster::new("c3");
    sister.authority = ours.root.authorise("c3", 100 * DAY, now).unwrap();
    sister.root = ours.root.clone();
    let (client, _) = refusals(ours.client(), sister.server());
    assert!(client.contains("another cluster"), "{client}");
    let (client, server) = refusals(sister.client(), ours.server());
    assert!(client.contains("another cluster") && !server.is_empty(), "{client}, {server}");
    assert!(refusals(others.client(), ours.server()).0.contains("no root"), "another cluster");

    let client_as_server = ours.client();
    assert!(
        both(context(ours.client()), context(client_as_server)).1.unwrap_err().to_string().contains("no certificate")
    );

    for (moment, words) in [(now - 20 * DAY, "has expired"), (now + 5 * DAY, "not valid yet")] {
        let holder = Holder::client("web").unwrap();
        let (client, server) = refusals(ours.credential(&holder, moment), ours.server());
        assert!(server.contains(words), "{server}");
        assert!(client.contains("expired, or is not valid yet"), "{client}");
        let server = ours.credential(&Holder::Server(ServerId(1)), moment);
        let (client, _) = refusals(ours.client(), server);
        assert!(client.contains(words), "{client}");
    }
}

#[test]
fn a_client_without_a_certificate_checks_the_fingerprint_and_is_nobody() {
    let (ours, others) = (Cluster::new("c1"), Cluster::new("c2"));
    let root = crate::pems(&ours.root.certificate).unwrap();
    let print = Context::fingerprint(&root[0]);
    let (client, server) = both(Context::joining(&print).unwrap(), context(ours.server()));
    assert!(client.is_ok() && server.unwrap().0.peer().is_none());
    let (client, _) = both(Context::joining(&print).unwrap(), context(others.server()));
    let refused = client.unwrap_err().to_string();
    assert!(refused.contains("not the one that the token is of"), "{refused}");
}

#[test]
fn a_connection_lives_on_when_the_credential_is_renewed() {
    let cluster = Cluster::new("c1");
    let server = context(cluster.server());
    let first = server.credential().unwrap().info().unwrap().serial;
    server.replace(cluster.server()).unwrap();
    assert_ne!(server.credential().unwrap().info().unwrap().serial, first);
    assert!(both(context(cluster.client()), server).0.is_ok());
}

#[test]
fn other_bytes_than_tls_are_refused_in_words() {
    let cluster = Cluster::new("c1");
    // The header of a message of a handshake that would have 64 KiB.
    let long = [22, 3, 1, 0, 4, 1, 1, 0, 0];
    let others = [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[22, 3, 1, 0, 5, 1, 0, 0, 1, 0], &[22, 3, 1, 0xff, 0xff]];
    for bytes in others.into_iter().chain([&long[..]]) {
        let (near, far) = UnixStream::pair().unwrap();
        { &near }.write_all(bytes).unwrap();
        near.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(open(&context(cluster.server()), Side::Server, &far).is_err());
    }
    let (near, far) = UnixStream::pair().unwrap();
    { &near }.write_all(&long[..6]).unwrap();
    drop(near);
    let ended = open(&context(cluster.server()), Side::Server, &far).unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    assert!(
        Refusal::words(&rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)).contains("plain")
    );
}

#[test]
fn no_certificate_outlives_its_authority_and_each_is_renewed_at_two_thirds() {
    let (cluster, now) = (Cluster::new("c1"), SystemTime::now());
    let holder = Holder::Server(ServerId(1));
    let (_, public) = Credential::make_key().unwrap();
    let (chain, _) = cluster.authority.issue(&holder, &public, 100_000 * DAY, now).unwrap();
    let info = CertificateInfo::of(&crate::pems(&chain).unwrap()[0]).unwrap();
    assert_eq!(info.not_after, cluster.authority.info().unwrap().not_after);
    let info = cluster.server().info().unwrap();
    let until = info.renew_at().duration_since(now).unwrap();
    assert!(until.abs_diff(DAY * 20 / 3) < Duration::from_secs(5), "{until:?}");
    assert!(info.not_before < now);
    assert!(chain.ends_with(cluster.authority.certificate()) && cluster.authority.certificate().contains("BEGIN"));
    let compressed = [&[2], &public[1..]].concat();
    for wrong in [&public[1..], &compressed, &[&public[..], &[0]].concat()] {
        assert!(cluster.authority.issue(&holder, wrong, DAY, now).is_err(), "{wrong:?}");
    }
    let late = cluster.authority.issue(&holder, &public, DAY, now + 2000 * DAY).unwrap_err();
    assert!(late.to_string().contains("ca rotate"), "{late}");
}

/// The record with this content of a handshake, as the client `secrets` are of would encrypt it (RFC 8446, section 5.2).
fn sealed_handshake(secrets: rustls::ExtractedSecrets, content: &[u8]) -> Vec<u8> {
    let (sequence, rustls::ConnectionTrafficSecrets::Aes256Gcm { key, iv }) = secrets.tx else {
        panic!("another cipher suite than AES-256 with GCM");
    };
    let mut nonce: [u8; 12] = iv.as_ref().try_into().unwrap();
    nonce[4..].iter_mut().zip(sequence.to_be_bytes()).for_each(|(byte, other)| *byte ^= other);
    let key =
        ring::aead::LessSafeKey::new(ring::aead::UnboundKey::new(&ring::aead::AES_256_GCM, key.as_ref()).unwrap());
    let mut body = [content, &[22]].concat();
    let length = (body.len() + 16) as u16;
    let header = [&[23, 3, 3][..], &length.to_be_bytes()].concat();
    let nonce = ring::aead::Nonce::assume_unique_for_key(nonce);
    key.seal_in_place_append_tag(nonce, ring::aead::Aad::from(&header), &mut body).unwrap();
    [header, body].concat()
}

/// A server's end of a connection, and the secrets of the client's.
fn accepted_with_secrets(cluster: &Cluster) -> (Session, Inbox, rustls::ExtractedSecrets) {
    let (near, far) = UnixStream::pair().unwrap();
    let server = context(cluster.server());
    let accepting = std::thread::spawn(move || open(&server, Side::Server, &far).unwrap());
    let mut settings = (*context(cluster.client()).client()).clone();
    settings.enable_secret_extraction = true;
    let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([127, 0, 0, 1])));
    let client = UnbufferedClientConnection::new(settings.into(), name).unwrap();
    let (mut client, mut inbox, mut out) = (Connection::Client(Box::new(client)), Inbox::default(), Vec::new());
    loop {
        let step = client.step(&mut inbox, &mut out, &mut |_| {}).unwrap();
        { &near }.write_all(&std::mem::take(&mut out)).unwrap();
        match step {
            Step::Open => break,
            Step::Receive => {
                let mut bytes = [0; 4096];
                let count = { &near }.read(&mut bytes).unwrap();
                inbox.buffer().extend_from_slice(&bytes[..count]);
            }
            _ => {}
        }
    }
    let Connection::Client(client) = client else { unreachable!("it is a client") };
    let (session, inbox) = accepting.join().unwrap();
    (session, inbox, client.dangerous_into_kernel_connection().unwrap().0)
}

/// While the library waits for the rest of a message, it cannot encrypt without the bytes of its beginning.
#[test]
fn a_part_of_a_message_of_a_handshake_ends_the_connection() {
    let cluster = Cluster::new("c1");
    // The header of a KeyUpdate, which has a byte more.
    let (session, mut inbox, secrets) = accepted_with_secrets(&cluster);
    inbox.buffer().extend_from_slice(&sealed_handshake(secrets, &[24, 0, 0, 1]));
    let refused = session.decrypt(&mut inbox, &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("cut off"), "{refused}");
    let mut out = Vec::new();
    assert_eq!(session.encrypt(b"a notification", &mut out).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(session.decrypt(&mut inbox, &mut |_| {}).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert!(out.is_empty());
    // The whole of one is taken, and answered with the next record.
    let (session, mut inbox, secrets) = accepted_with_secrets(&cluster);
    inbox.buffer().extend_from_slice(&sealed_handshake(secrets, &[24, 0, 0, 1, 1]));
    assert!(session.decrypt(&mut inbox, &mut |_| {}).unwrap() && inbox.is_empty());
    session.encrypt(b"a notification", &mut out).unwrap();
    assert!(!out.is_empty());
}

/// Shows a certificate without having its key.
#[derive(Debug)]
struct Stolen(Arc<CertifiedKey>);

impl Stolen {
    fn new(shown: &Credential, other: &Credential) -> Arc<Self> {
        let key = rustls::crypto::ring::sign::any_supported_type(&other.private_key().unwrap()).unwrap();
        Arc::new(Self(Arc::new(CertifiedKey::new(shown.chain().unwrap(), key))))
    }
}

impl ResolvesClientCert for Stolen {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Stolen {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// The handshake of a client and a server with these settings: what each end says.
fn shaken(client: rustls::ClientConfig, server: rustls::ServerConfig) -> [Result<(), rustls::Error>; 2] {
    let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([127, 0, 0, 1])));
    let client = Connection::Client(Box::new(UnbufferedClientConnection::new(client.into(), name).unwrap()));
    let server = Connection::Server(Box::new(UnbufferedServerConnection::new(server.into()).unwrap()));
    let (mut ends, mut inboxes) = ([client, server], [Inbox::default(), Inbox::default()]);
    let mut said = [Ok(()), Ok(())];
    for at in [0, 1].into_iter().cycle().take(20) {
        let mut out = Vec::new();
        while said[at].is_ok() {
            match ends[at].step(&mut inboxes[at], &mut out, &mut |_| {}) {
                Ok(Step::Next) => {}
                Ok(_) => break,
                Err(error) => said[at] = Err(error),
            }
        }
        inboxes[1 - at].buffer().extend_from_slice(&out);
    }
    said
}

#[test]
fn an_end_without_the_key_of_the_certificate_that_it_shows_is_refused() {
    let cluster = Cluster::new("c1");
    let client = (*context(cluster.client()).client()).clone();
    let server = (*context(cluster.server()).server().unwrap()).clone();
    assert_eq!(shaken(client.clone(), server.clone()), [Ok(()), Ok(())]);
    let signature = |error: &rustls::Error| Refusal::words(error).contains("the signature is wrong");
    let mut posing = client.clone();
    posing.client_auth_cert_resolver = Stolen::new(&cluster.client(), &cluster.client());
    assert!(signature(shaken(posing, server.clone())[1].as_ref().unwrap_err()));
    let mut posing = server;
    posing.cert_resolver = Stolen::new(&cluster.server(), &cluster.server());
    assert!(signature(shaken(client, posing)[0].as_ref().unwrap_err()));
}
