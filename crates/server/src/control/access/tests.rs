//! Invitations, clients and rotations, and what each kind of peer may do.

use super::*;
use crate::hosting::access::Access;
use hekate_cluster::{BrickInfo, EmbeddedCoordinator, RingWish, SessionOwner, VolumeInfo};
use hekate_control::{Request, Status, Stop};
use hekate_proto::map::Mode;
use hekate_proto::{BrickId, Incarnation, VolumeId};
use hekate_tls::{Credential, SealKey};
use hekate_transport::RemotePeer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A cluster of one server with a volume, without its process.
struct Cluster {
    directory: std::path::PathBuf,
    registry: Registry,
    keys: Keys,
}

impl Cluster {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("hekate-access-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let registry = Registry::new(Arc::new(EmbeddedCoordinator::create(&directory.join("c")).unwrap()));
        let seal = SealKey::create().unwrap();
        registry.create_cluster("c1").unwrap();
        authority::create(&registry, &seal, "c1").unwrap();
        let credential =
            authority::read(&registry, &seal).unwrap().server_credential(&Holder::Server(FIRST_SERVER)).unwrap();
        Keys::write(&directory, &credential, &seal).unwrap();
        let brick = BrickInfo {
            brick: BrickId(1),
            directory: "/b".into(),
            pool: "p".into(),
            weight: 1 << 30,
            server: FIRST_SERVER,
            incarnation: Incarnation(1),
            openings: 0,
            unopened: false,
        };
        registry.create_pool("p", &[brick]).unwrap();
        let ring = registry.ring_for("p", 1, RingWish::default()).unwrap();
        registry.create_volume(volume("v", &ring)).unwrap();
        Self { registry, keys: Keys::read(&directory).unwrap(), directory }
    }

    fn desk(&self) -> Desk<'_> {
        let endpoints = vec!["unix:/s".into(), "tcp:a:7100".into()];
        Desk {
            cluster: "c1".into(),
            registry: &self.registry,
            keys: &self.keys,
            coordinator: endpoints.clone(),
            endpoints,
        }
    }

    /// Records that a server answers at these networks.
    fn listens(&self, networks: &[&str]) {
        let endpoints: Vec<String> = networks.iter().map(|network| format!("tcp:{network}-host:7100")).collect();
        let named = endpoints.iter().cloned().zip(networks.iter().map(|network| network.to_string()));
        self.registry.announce(&endpoints, &named.collect()).unwrap();
    }

    fn access(&self) -> Access {
        let access = Access::default();
        access.refresh(&self.registry).unwrap();
        access
    }

    /// A client, and the peer that it is at this network.
    fn client(&self, call: ClientCreate, network: &str) -> Peer {
        let (_, public) = Credential::make_key().unwrap();
        let name = call.name.clone();
        let issued = self.desk().create_client(ClientCreate { public_key: hex(&public), ..call }).unwrap();
        peer(&issued, Holder::client(&name).unwrap(), network)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn volume(name: &str, ring: &hekate_cluster::RingInfo) -> VolumeInfo {
    VolumeInfo {
        volume: VolumeId(0),
        name: name.into(),
        pool: "p".into(),
        ring: ring.ring,
        copies: 1,
        owner_uid: 1000,
        allowed_uids: vec![1001],
        layers: Vec::new(),
        deleting: false,
        spread: 1,
        mode: Mode::Hsr,
        creation: 0,
    }
}

fn peer(issued: &CredentialIssued, holder: Holder, network: &str) -> Peer {
    let serial = CertificateInfo::of(&pems(&issued.chain).unwrap()[0]).unwrap().serial;
    Peer::Remote(RemotePeer { holder: Some(holder), serial, network: network.into() })
}

fn stranger(network: &str) -> Peer {
    Peer::Remote(RemotePeer { holder: None, serial: String::new(), network: network.into() })
}

fn server(number: u32, network: &str) -> Peer {
    let holder = Some(Holder::Server(ServerId(number)));
    Peer::Remote(RemotePeer { holder, serial: "1".into(), network: network.into() })
}

fn client_of(name: &str, volumes: &[&str]) -> ClientCreate {
    let volumes = volumes.iter().map(|volume| volume.to_string()).collect();
    ClientCreate { name: name.into(), volumes, ..ClientCreate::default() }
}

fn enroll(token: &Token) -> Enroll {
    let (_, public) = Credential::make_key().unwrap();
    Enroll { token: token.id.clone(), secret: token.secret.clone(), public_key: hex(&public), pool: Some("p".into()) }
}

fn is_denied<T: std::fmt::Debug>(outcome: Result<T>, words: &str) -> bool {
    matches!(&outcome, Err(error @ Error::Denied { .. }) if error.to_string().contains(words)) || {
        eprintln!("{outcome:?} lacks {words:?}");
        false
    }
}

#[test]
fn an_invitation_is_good_once_for_its_time_and_with_its_secret() {
    let cluster = Cluster::new();
    let desk = cluster.desk();
    let make = |expires_s| Token::parse(&desk.create_token(&TokenCreate { expires_s }).unwrap().token).unwrap();
    let token = make(60);
    assert_eq!(token.addresses, ["a:7100"]);
    let wrong = Token { secret: "0".repeat(32), ..token.clone() };
    assert!(is_denied(desk.enroll(&stranger("front"), &enroll(&wrong), true), "secret is wrong"));
    let no_pool = Enroll { pool: Some("q".into()), ..enroll(&token) };
    assert!(desk.enroll(&stranger("front"), &no_pool, true).unwrap_err().to_string().contains("there are: p"));
    let enrolled = desk.enroll(&stranger("front"), &enroll(&token), true).unwrap();
    assert_eq!((enrolled.server, enrolled.cluster.as_str()), (ServerId(2), "c1"));
    assert_eq!(unhex(&enrolled.seal_key).unwrap(), cluster.keys.seal().bytes());
    assert!(is_denied(desk.enroll(&stranger("front"), &enroll(&token), true), "used already"));
    assert!(
        is_denied(desk.enroll(&server(2, "front"), &enroll(&token), true), "used already"),
        "a server needs one too"
    );
    // A process of this machine needs none.
    assert_eq!(desk.enroll(&Peer::Local { uid: 0 }, &enroll(&token), true).unwrap().server, ServerId(3));
    let short = make(1);
    std::thread::sleep(Duration::from_millis(1100));
    assert!(is_denied(desk.enroll(&stranger("front"), &enroll(&short), true), "expired"));
    let print = authority::fingerprint(&authority::record(&cluster.registry).unwrap()).unwrap();
    assert_eq!(token.fingerprint, print);
}

#[test]
fn a_client_may_what_its_record_says_until_it_is_revoked() {
    let cluster = Cluster::new();
    cluster.listens(&["front"]);
    let ring = cluster.registry.rings().unwrap().remove(0);
    let (v, w) = (volume("v", &ring), volume("w", &ring));
    let web = cluster.client(client_of("web", &["v"]), "front");
    let reader = cluster.client(ClientCreate { read_only: true, ..client_of("reader", &["v"]) }, "front");
    let admin = cluster.client(ClientCreate { admin: true, ..client_of("ann", &[]) }, "front");
    let access = cluster.access();
    let owner = SessionOwner::Client("web".into());
    assert_eq!(access.may_use(&web, &v).unwrap(), owner);
    assert!(is_denied(access.may_use(&web, &w), "may not use volume w"));
    assert!(access.may_use(&admin, &w).is_ok() && access.may_use(&reader, &v).is_ok());
    assert!(is_denied(access.may_use(&stranger("front"), &v), "no certificate"));
    assert!(access.is_read_only(&SessionOwner::Client("reader".into())) && !access.is_read_only(&owner));
    let ask = |peer: &Peer, call: ControlRequest| access.may_ask(peer, &Request::Control(call));
    for known in [&web, &reader, &admin] {
        ask(known, Status {}.into()).unwrap();
    }
    assert!(is_denied(ask(&web, Stop {}.into()), "may only read the state"));
    ask(&admin, Stop {}.into()).unwrap();
    let renewal = |name: &str| ClientRenew { name: name.into(), life_s: None, public_key: String::new() };
    ask(&web, renewal("web").into()).unwrap();
    assert!(is_denied(ask(&web, renewal("ann").into()), "may only read"));
    assert!(is_denied(ask(&stranger("front"), Status {}.into()), "no certificate"));

    let (_, public) = Credential::make_key().unwrap();
    let renewed =
        cluster.desk().renew_client(&ClientRenew { public_key: hex(&public), ..renewal("web") }, false).unwrap();
    let newer = peer(&renewed, Holder::client("web").unwrap(), "front");
    let access = cluster.access();
    assert!(access.may_use(&web, &v).is_ok() && access.may_use(&newer, &v).is_ok());
    cluster.desk().revoke_client("web").unwrap();
    let access = cluster.access();
    for old in [&web, &newer] {
        assert!(is_denied(access.may_use(old, &v), "has been revoked") && access.is_revoked(old));
    }
    assert!(access.is_owner_revoked(&owner) && !access.is_revoked(&admin));
    assert!(cluster.desk().renew_client(&ClientRenew { public_key: hex(&public), ..renewal("web") }, false).is_err());
    // Another client of that name is another one: certificates of the first stay refused.
    let again = cluster.client(client_of("web", &["v"]), "front");
    let access = cluster.access();
    assert!(access.may_use(&again, &v).is_ok() && is_denied(access.may_use(&web, &v), "newest credential"));
    let taken = cluster.desk().create_client(ClientCreate { public_key: hex(&public), ..client_of("web", &["v"]) });
    assert!(taken.unwrap_err().to_string().contains("already"));
    let none = cluster.desk().create_client(ClientCreate { public_key: hex(&public), ..client_of("x", &["q"]) });
    assert!(none.unwrap_err().to_string().contains("there are: v"));
}

#[test]
fn users_of_the_machine_are_told_by_their_ids() {
    let cluster = Cluster::new();
    let ring = cluster.registry.rings().unwrap().remove(0);
    let access = cluster.access();
    let own = rustix::process::geteuid().as_raw();
    for uid in [0, own, 1000, 1001] {
        assert_eq!(access.may_use(&Peer::Local { uid }, &volume("v", &ring)).unwrap(), SessionOwner::Uid(uid));
    }
    assert!(is_denied(access.may_use(&Peer::Local { uid: 1002 }, &volume("v", &ring)), "user 1002"));
    let stop = Request::Control(Stop {}.into());
    assert!(is_denied(access.may_ask(&Peer::Local { uid: 1000 }, &stop), "need root"));
    assert!(access.may_ask(&Peer::Local { uid: own }, &stop).is_ok());
}

#[test]
fn servers_have_a_network_of_their_own_where_there_are_several() {
    let cluster = Cluster::new();
    let ring = cluster.registry.rings().unwrap().remove(0);
    cluster.listens(&["front"]);
    let web = cluster.client(client_of("web", &["v"]), "front");
    assert!(cluster.access().may_link(&server(2, "front")).is_ok(), "with one network all use it");
    cluster.listens(&["front", "back"]);
    let access = cluster.access();
    assert!(access.may_link(&server(2, "back")).is_ok());
    assert!(is_denied(access.may_link(&server(2, "front")), "servers use back"));
    let Peer::Remote(remote) = &web else { unreachable!() };
    let behind = Peer::Remote(RemotePeer { network: "back".into(), ..remote.clone() });
    assert!(access.may_use(&web, &volume("v", &ring)).is_ok());
    assert!(is_denied(access.may_use(&behind, &volume("v", &ring)), "for servers only"));
    let status = Request::Control(Status {}.into());
    assert!(is_denied(access.may_ask(&behind, &status), "for servers only"));
    // Clients are told the addresses of their network.
    let (_, public) = Credential::make_key().unwrap();
    let wanted = ClientCreate { public_key: hex(&public), ..client_of("b", &["v"]) };
    let issued = cluster.desk().create_client(wanted.clone()).unwrap();
    assert_eq!((issued.network.as_str(), &issued.servers[..]), ("front", &["front-host:7100".to_string()][..]));
    let refused =
        cluster.desk().create_client(ClientCreate { network: "back".into(), name: "d".into(), ..wanted.clone() });
    assert!(refused.unwrap_err().to_string().contains("there are: front"));
    cluster.listens(&["front", "back", "lab"]);
    let several = cluster.desk().create_client(ClientCreate { name: "e".into(), ..wanted.clone() });
    assert!(several.unwrap_err().to_string().contains("--network: front, lab"));
    cluster.registry.set_servers_network("lab").unwrap();
    assert!(cluster.access().may_link(&server(2, "lab")).is_ok());
    assert!(cluster.access().may_link(&server(2, "back")).is_err());
}

#[test]
fn a_root_is_replaced_in_three_steps_and_in_no_other_order() {
    let cluster = Cluster::new();
    cluster.listens(&["front"]);
    let step = |step, force| cluster.desk().rotate(&CaRotate { step, force });
    cluster.client(client_of("web", &["v"]), "front");
    assert!(step(RotationStep::Switch, false).unwrap_err().to_string().contains("ca rotate start"));
    assert!(step(RotationStep::Finish, false).is_err());
    let before = authority::record(&cluster.registry).unwrap();
    assert!(step(RotationStep::Start, false).unwrap().root_key.unwrap().contains("PRIVATE KEY"));
    assert!(step(RotationStep::Start, false).unwrap_err().to_string().contains("ca rotate switch"));
    let both = authority::record(&cluster.registry).unwrap();
    assert_eq!((both.roots.len(), &both.issuing), (2, &before.issuing));
    let old_root = Context::fingerprint(&pems(&both.roots[0]).unwrap()[0]);
    assert_eq!(authority::fingerprint(&both).unwrap(), old_root, "servers still show a chain below the old root");
    let refused = step(RotationStep::Switch, false).unwrap_err().to_string();
    assert!(refused.contains("do not trust the new root yet: web"), "{refused}");
    step(RotationStep::Switch, true).unwrap();
    let refused = step(RotationStep::Finish, false).unwrap_err().to_string();
    assert!(refused.contains("web"), "{refused}");
    assert_eq!(cluster.desk().authority().unwrap().behind, ["web"]);
    let (_, public) = Credential::make_key().unwrap();
    let renewal = ClientRenew { name: "web".into(), life_s: Some(60), public_key: hex(&public) };
    let renewed = cluster.desk().renew_client(&renewal, false).unwrap();
    assert_eq!(pems(&renewed.roots).unwrap().len(), 2);
    step(RotationStep::Finish, false).unwrap();
    let after = authority::record(&cluster.registry).unwrap();
    assert_eq!(after.roots, both.roots[1..]);
    assert_eq!(cluster.desk().authority().unwrap().next_step, "start");
}
