//! Invitations, clients and rotations, and what each kind of peer may do.

use super::*;
use crate::hosting::access::Access;
use crate::hosting::cluster_access::ClusterAccess;
use hekate_cluster::{BrickInfo, EmbeddedCoordinator, RingWish, ServerInfo, SessionOwner, VolumeInfo};
use hekate_control::{Request, Status, Stop};
use hekate_proto::map::{Mode, ServerAddress};
use hekate_proto::{BrickId, Incarnation, ServerId, VolumeId};
use hekate_tls::{Credential, SealKey};
use hekate_transport::RemotePeer;
use std::cell::RefCell;
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
            begun: 0,
            restored: false,
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

    /// The cluster as its first server reaches it.
    fn reached(&self) -> ClusterAccess {
        ClusterAccess::with_keys(self.registry.clone(), self.keys.clone()).unwrap()
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
        graph: Default::default(),
        deleting: false,
        spread: 1,
        mode: Mode::Hsr,
        creation: 0,
    }
}

fn peer(issued: &CredentialIssued, holder: Holder, network: &str) -> Peer {
    let serial = CertificateInfo::of(&pems(&issued.chain).unwrap()[0]).unwrap().serial;
    Peer::Remote(RemotePeer { holder: Some(holder), serial, network: network.into(), address: None })
}

fn stranger(network: &str) -> Peer {
    Peer::Remote(RemotePeer { holder: None, serial: String::new(), network: network.into(), address: None })
}

fn server(number: u32, network: &str) -> Peer {
    let holder = Some(Holder::Server(ServerId(number)));
    Peer::Remote(RemotePeer { holder, serial: "1".into(), network: network.into(), address: None })
}

fn client_of(name: &str, volumes: &[&str]) -> ClientCreate {
    let volumes = volumes.iter().map(|volume| volume.to_string()).collect();
    ClientCreate { name: name.into(), volumes, ..ClientCreate::default() }
}

fn enroll(token: &Token) -> Enroll {
    let (_, public) = Credential::make_key().unwrap();
    Enroll {
        token: token.id.clone(),
        secret: token.secret.clone(),
        public_key: hex(&public),
        pool: Some("p".into()),
        witness: false,
    }
}

fn is_denied<T: std::fmt::Debug>(outcome: Result<T>, words: &str) -> bool {
    matches!(&outcome, Err(error @ Error::Denied { .. }) if error.to_string().contains(words)) || {
        eprintln!("{outcome:?} lacks {words:?}");
        false
    }
}

/// Keeps the lines that each thread logs.
struct Lines;

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.with_borrow_mut(|lines| lines.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// The lines that this thread has logged since the last call.
fn lines() -> Vec<String> {
    if log::set_logger(&Lines).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
    LINES.take()
}

#[test]
fn a_line_a_second_says_who_was_refused_and_why() {
    lines();
    let cluster = Cluster::new();
    cluster.listens(&["front"]);
    let ring = cluster.registry.rings().unwrap().remove(0);
    let Peer::Remote(web) = cluster.client(client_of("web", &["v"]), "front") else { unreachable!() };
    let web = Peer::Remote(RemotePeer { address: Some("10.0.0.9:4000".parse().unwrap()), ..web });
    let status = Request::Control(Status {}.into());
    let access = cluster.access();
    access.may_use(&web, &volume("v", &ring)).unwrap();
    access.may_ask(&web, &status).unwrap();
    access.may_link(&server(2, "front")).unwrap();
    assert!(access.logged::<()>(&web, Err(Error::invalid("x"))).is_err());
    assert_eq!(lines(), [""; 0]);
    let refused = access.may_use(&web, &volume("w", &ring)).unwrap_err();
    assert_eq!(lines(), [format!("client web from 10.0.0.9:4000 at network front was refused: {refused}")]);
    let refused = access.may_ask(&stranger("front"), &status).unwrap_err();
    assert_eq!(lines(), [""; 0], "a second line within a second");
    std::thread::sleep(Duration::from_millis(1100));
    assert!(access.may_ask(&stranger("front"), &status).is_err());
    let line =
        format!("a process without a certificate at network front was refused: {refused} (1 more since the last line)");
    assert_eq!(lines(), [line]);
    let access = cluster.access();
    assert!(access.may_use(&Peer::Local { uid: 1002 }, &volume("v", &ring)).is_err());
    assert!(lines()[0].starts_with("a process of user 1002 was refused: "));
    cluster.listens(&["front", "back"]);
    let access = cluster.access();
    assert!(access.may_link(&server(2, "front")).is_err());
    assert!(lines()[0].starts_with("server 2 at network front was refused: "));
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
    assert!(!access.is_owner_revoked(&owner) && !access.is_owner_revoked(&SessionOwner::Uid(1000)));
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
    for uid in [1, 1000].into_iter().filter(|uid| *uid != own) {
        assert!(is_denied(access.may_ask(&Peer::Local { uid }, &stop), "need root"));
        access.may_ask(&Peer::Local { uid }, &Request::Control(Status {}.into())).unwrap();
    }
    assert_eq!(crate::hosting::access::uid_of(&stranger("front")), own);
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
fn a_client_that_another_server_has_made_or_renewed_is_known_at_once() {
    let cluster = Cluster::new();
    cluster.listens(&["front"]);
    let (reached, status) = (cluster.reached(), Request::Control(Status {}.into()));
    reached.refresh_access().unwrap();
    let web = cluster.client(client_of("web", &["v"]), "front");
    assert!(is_denied(reached.access.may_ask(&web, &status), "not known"));
    assert!(!reached.access.is_revoked(&web), "its connections stay");
    reached.meet(&web);
    reached.access.may_ask(&web, &status).unwrap();
    let (_, public) = Credential::make_key().unwrap();
    let renewal = ClientRenew { name: "web".into(), life_s: None, public_key: hex(&public) };
    let renewed = peer(&cluster.desk().renew_client(&renewal, false).unwrap(), Holder::client("web").unwrap(), "front");
    assert!(reached.access.may_ask(&renewed, &status).is_err());
    reached.meet(&renewed);
    reached.access.may_ask(&renewed, &status).unwrap();
    cluster.desk().revoke_client("web").unwrap();
    reached.meet(&renewed);
    reached.access.may_ask(&renewed, &status).expect("a known client is read with all others");
    reached.refresh_access().unwrap();
    assert!(is_denied(reached.access.may_ask(&renewed, &status), "revoked"));
}

#[test]
fn certificates_that_expire_soon_are_logged_once_a_day() {
    lines();
    let cluster = Cluster::new();
    cluster.listens(&["front"]);
    let days = |count: u64| Some(count * 24 * 3600 + 600);
    for (name, life_s) in [("soon", days(13)), ("late", days(15)), ("gone", days(1))] {
        cluster.client(ClientCreate { life_s, ..client_of(name, &["v"]) }, "front");
    }
    cluster.desk().revoke_client("gone").unwrap();
    let reached = cluster.reached();
    reached.refresh_access().unwrap();
    let line = "the certificate of client soon expires in 13 days: hekate client renew soon -o FILE";
    assert_eq!(lines(), [line]);
    reached.refresh_access().unwrap();
    assert_eq!(lines(), [""; 0]);
    let holders: Vec<String> = reached.expiries().into_iter().map(|ending| ending.holder).collect();
    assert_eq!(holders, ["server-1", "client late", "client soon", "the issuing key", "the root"]);
    let expiry = |holder| reached.expiries().into_iter().find(|ending| ending.holder == holder).unwrap().expires;
    let now = authority::seconds(std::time::SystemTime::now());
    for (holder, days) in [("server-1", 90), ("client soon", 13), ("the issuing key", 1825), ("the root", 3650)] {
        assert_eq!((expiry(holder) + 3600 - now) / 86_400, days, "{holder}");
    }
}

#[test]
fn a_server_renews_its_own_certificate() {
    let cluster = Cluster::new();
    let reached = cluster.reached();
    let serial = || reached.keys().unwrap().context().credential().unwrap().info().unwrap().serial;
    let first = serial();
    reached.refresh_access().unwrap();
    assert_eq!(serial(), first, "it is not due");
    let authority = authority::read(&cluster.registry, cluster.keys.seal()).unwrap();
    let (key, public) = Credential::make_key().unwrap();
    let issued = authority.issue(&Holder::Server(FIRST_SERVER), &public, Some(Duration::from_secs(3))).unwrap();
    let short = Credential { chain: issued.chain, key, ..(*cluster.keys.context().credential().unwrap()).clone() };
    cluster.keys.renew(short).unwrap();
    let short = serial();
    std::thread::sleep(Duration::from_millis(2500));
    reached.refresh_access().unwrap();
    assert!(serial() != short && serial() != first);
    assert_eq!(
        Keys::read(&cluster.directory).unwrap().context().credential().unwrap().info().unwrap().serial,
        serial()
    );
}

#[test]
fn a_server_is_reached_at_the_network_of_servers_first() {
    let cluster = Cluster::new();
    let socket = cluster.directory.join("s").display().to_string();
    let here = format!("unix:{socket}");
    let networks = [("tcp:front-host:1", "front"), ("tcp:back-host:1", "back")];
    let info = ServerInfo {
        endpoints: [&here, "unix:/none/s", "tcp:front-host:1", "tcp:back-host:1"].map(String::from).to_vec(),
        networks: networks.map(|(endpoint, network)| (endpoint.into(), network.into())).into(),
        ..ServerInfo::new(ServerId(2))
    };
    let of = |reached: &ClusterAccess, info| -> Vec<String> {
        reached.endpoints_of(info).iter().map(ToString::to_string).collect()
    };
    let reached = cluster.reached();
    reached.refresh_access().unwrap();
    assert_eq!(of(&reached, &info), ["tcp:front-host:1", "tcp:back-host:1", &here], "servers have no network");
    cluster.listens(&["front", "back"]);
    reached.refresh_access().unwrap();
    assert_eq!(of(&reached, &info), ["tcp:back-host:1", &here]);
    let only_front = ServerInfo {
        endpoints: vec![here.clone(), "tcp:front-host:1".into()],
        networks: [("tcp:front-host:1".into(), "front".into())].into(),
        ..info.clone()
    };
    assert_eq!(of(&reached, &only_front), ["tcp:front-host:1", &here], "it was not served there yet");
    let networks = reached.access.networks();
    let networks: Vec<_> = networks.iter().map(|(endpoint, network)| (&endpoint[..], &network[..])).collect();
    assert_eq!(networks, [("tcp:back-host:7100", "back"), ("tcp:front-host:7100", "front")]);
    let local = ClusterAccess::of(cluster.registry.clone()).unwrap();
    assert_eq!(of(&local, &info), [here], "without keys there is no TCP");
}

#[test]
fn a_map_has_the_endpoints_that_its_reader_can_use() {
    let cluster = Cluster::new();
    cluster.listens(&["front", "back"]);
    let reached = cluster.reached();
    reached.refresh_access().unwrap();
    let here = |name: &str| format!("unix:{}", cluster.directory.join(name).display());
    let of = |peer: &Peer| {
        let tcp = ["tcp:front-host:7100".to_string(), "tcp:back-host:7100".to_string()];
        let endpoints = |own: &[String]| [own, &tcp].concat();
        let address = |server, own: &[String]| ServerAddress { server: ServerId(server), endpoints: endpoints(own) };
        let mut servers = [
            address(1, &[here("s")]),
            address(2, &[here("s"), here("t"), here("u")]),
            address(3, &[here("u"), "unix:/none/s".into()]),
        ];
        reached.access.keep_usable(peer, ServerId(1), &mut servers);
        servers.map(|address| address.endpoints)
    };
    let back = "tcp:back-host:7100".to_string();
    let local = of(&Peer::Local { uid: 1000 });
    assert_eq!(local, [vec![here("s"), back.clone()], vec![here("t"), back.clone()], vec![back]]);
    let front = vec!["tcp:front-host:7100".to_string()];
    assert_eq!(of(&stranger("front")), [front.clone(), front.clone(), front]);
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
