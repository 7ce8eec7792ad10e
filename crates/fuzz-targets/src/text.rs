//! Text formats: JSON of the coordinator, the map and the control interface, TOML of a brick.
//!
//! A value has many encodings in text, so the property is that a value that was read, written and read again is
//! unchanged.

use crate::allocation::bounded;
use hekate_brick::{BrickSettings, Identity};
use hekate_cluster::coordinator::{Expect, Write};
use hekate_cluster::{
    BrickInfo, Coordinator, Domain, Listing, Outcome, PoolInfo, Registry, Revision, RingInfo, RingRecord, ServerInfo,
    SessionInfo, SessionOwner, ViewRecord, VolumeInfo, Watched,
};
use hekate_control::peer::{CoordinatorRequest, PeerRequest};
use hekate_control::{
    ControlRequest, PoolList, Request, Status, Stop, VolumeCreate, VolumeDelete, VolumeList, VolumeShow,
};
use hekate_proto::map::{BrickPlace, GraphSpec, LayerSpec, Member, ServerAddress, View, VolumeMap};
use hekate_proto::*;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Memory that a parser may take besides its input, in bytes: text, positions and messages.
const FIXED_BYTES: usize = 1 << 20;

/// A value that was read is unchanged after it was written and read again.
fn json<T: Serialize + DeserializeOwned>(text: &str) -> Option<T> {
    let value: T = bounded(text.len(), FIXED_BYTES, || serde_json::from_str(text)).ok()?;
    let once = serde_json::to_string(&value).unwrap();
    let twice = serde_json::to_string(&serde_json::from_str::<T>(&once).unwrap()).unwrap();
    assert_eq!(once, twice);
    Some(value)
}

pub fn map(bytes: &[u8]) {
    let Some(map) = std::str::from_utf8(bytes).ok().and_then(json::<VolumeMap>) else { return };
    // A client uses a map only if this check passes.
    if map.check().is_ok() {
        for position in [0, 1 << 31, u32::MAX].map(Position) {
            let partition = map.partition_of(position);
            assert!(map.view(partition).is_some(), "{position} is in {partition}, which has no view");
        }
    }
}

pub fn map_seeds() -> Vec<Vec<u8>> {
    let views = views(4);
    let members: BTreeSet<BrickId> =
        views.iter().flat_map(|view| view.members.iter().map(|member| member.brick)).collect();
    let server = ServerId(1);
    let endpoints = vec!["unix:/s".into(), "tcp:127.0.0.1:4000".into()];
    seeds([VolumeMap {
        volume: VolumeId(1),
        graph: GraphSpec {
            change: 3,
            layers: vec![LayerSpec { name: "trace".into(), options: [("ops".into(), "read".into())].into() }],
        },
        name: "v".into(),
        ring: RingId(1),
        copies: 2,
        mode: hekate_proto::map::Mode::Hsr,
        views,
        server,
        servers: vec![ServerAddress { server, endpoints }],
        bricks: members.into_iter().map(|brick| BrickPlace { brick, server }).collect(),
    }])
}

fn views(count: u64) -> Vec<View> {
    let member = |n| Member { brick: BrickId(n), incarnation: Incarnation(1) };
    (0..count).map(|n| View::new(Epoch(n), BrickId(1), vec![member(1), member(2)])).collect()
}

/// A coordinator that returns the same value for every key. Its rings have two partitions.
struct Constant(String);

impl Coordinator for Constant {
    fn get(&self, _: &str) -> Result<Option<String>> {
        Ok(Some(self.0.clone()))
    }
    fn list(&self, prefix: &str) -> Result<Listing> {
        let keys: &[&str] = match prefix {
            "/rings/" => &["/rings/00001", "/rings/00001/views/00000", "/rings/00001/views/00001"],
            _ => &[prefix],
        };
        let pairs = keys.iter().map(|key| (key.to_string(), self.0.clone())).collect();
        Ok(Listing { pairs, revision: Revision(1) })
    }
    fn transact(&self, _: &[Expect<'_>], _: &[Write<'_>]) -> Result<Outcome> {
        Ok(Outcome::Written)
    }
    fn keep(&self, _: &str, _: &str, _: Duration) -> Result<Outcome> {
        Ok(Outcome::Written)
    }
    fn release(&self, _: &str) -> Result<Outcome> {
        Ok(Outcome::Written)
    }
    fn watch(&self, _: &[&str], _: Revision, _: Duration) -> Result<Watched> {
        Ok(Watched::ReadAgain)
    }
    fn end_watches(&self) {}
}

/// A text that can be read as a ring and as the views of its partitions.
#[derive(Serialize)]
struct Both {
    #[serde(flatten)]
    ring: RingRecord,
    #[serde(flatten)]
    views: ViewRecord,
}

pub fn coordinator_record(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    json::<BrickInfo>(text);
    json::<PoolInfo>(text);
    json::<RingRecord>(text);
    json::<ViewRecord>(text);
    json::<VolumeInfo>(text);
    json::<SessionInfo>(text);
    json::<ServerInfo>(text);
    json::<Listing>(text);
    json::<Outcome>(text);
    json::<Watched>(text);
    let registry = Registry::new(Arc::new(Constant(text.into())));
    let _ = (registry.cluster(), registry.pools(), registry.volumes(), registry.sessions(), registry.servers());
    let _ = registry.lost_blocks::<(String, String)>();
    let _ = registry.begin_session(VolumeId(1), &SessionOwner::Uid(0));
    for ring in registry.rings().unwrap_or_default() {
        assert!(ring.views.len().is_power_of_two());
    }
    if let Ok(Some(volume)) = registry.volume("v") {
        let _ = registry.create_volume(volume);
    }
}

pub fn coordinator_record_seeds() -> Vec<Vec<u8>> {
    let brick = BrickInfo {
        brick: BrickId(1),
        directory: "/b".into(),
        pool: "p".into(),
        weight: 1 << 40,
        server: ServerId(2),
        incarnation: Incarnation(3),
        openings: 0,
        begun: 0,
        restored: false,
        unopened: false,
    };
    let server = ServerInfo { endpoints: vec!["unix:/s".into()], announced: 1, ..ServerInfo::new(ServerId(2)) };
    let volume = VolumeInfo {
        volume: VolumeId(1),
        name: "v".into(),
        pool: "p".into(),
        ring: RingId(1),
        copies: 2,
        owner_uid: 1000,
        allowed_uids: vec![1001],
        graph: Default::default(),
        deleting: false,
        spread: 4,
        mode: hekate_proto::map::Mode::Hsr,
        creation: 5,
    };
    let ring = RingInfo::new(RingId(1), "p", 2, Domain::Server, views(2));
    let session =
        SessionInfo { session: SessionId(3), volume: VolumeId(1), owner: SessionOwner::Uid(1000), server: ServerId(1) };
    let mut all = seeds([brick]);
    all.extend(seeds([server]));
    all.extend(seeds([PoolInfo { name: "p".into() }]));
    all.extend(seeds([ring.record()]));
    all.extend(seeds(ring.view_records()));
    all.extend(seeds([Both { ring: ring.record(), views: ring.view_records().next().unwrap() }]));
    all.extend(seeds([volume]));
    all.extend(seeds([session]));
    all.extend(seeds([41]));
    all.extend(seeds([[("data", "run")]]));
    all
}

pub fn control_request(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let is_control = json::<ControlRequest>(text).is_some();
        let is_peer = json::<PeerRequest>(text).is_some();
        assert!(!(is_control && is_peer), "a request of people and of servers");
        assert!(Request::parse(text).is_err() || is_control || is_peer);
    }
}

pub fn control_request_seeds() -> Vec<Vec<u8>> {
    let wanted = VolumeCreate {
        name: "v".into(),
        pool: "p".into(),
        copies: 2,
        domain: Some(Domain::Server),
        min_replicas: None,
        allowed_uids: vec![1000],
        owner_uid: Some(1000),
        spread: 4,
        mode: hekate_proto::map::Mode::Hsr,
        led_by: None,
    };
    let of_servers = seeds([PeerRequest::Coordinator {
        cluster: Some("c".into()),
        asked: CoordinatorRequest::List { prefix: "/".into(), after: Some(7), count: 2 },
    }]);
    let mut all = seeds::<ControlRequest>([
        Status {}.into(),
        PoolList {}.into(),
        VolumeList {}.into(),
        VolumeShow { name: "v".into() }.into(),
        wanted.into(),
        VolumeDelete { name: "v".into() }.into(),
        Stop {}.into(),
    ]);
    all.splice(1..1, of_servers);
    all
}

pub fn brick_toml(bytes: &[u8]) {
    let folder = Folder::new("brick.toml", bytes);
    let Ok(identity) = bounded(bytes.len(), FIXED_BYTES, || Identity::read(&folder.0)) else { return };
    let _ = identity.brick_id();
    let text = toml::to_string(&identity).unwrap();
    assert_eq!(toml::from_str::<Identity>(&text).unwrap(), identity);
}

pub fn brick_toml_seeds() -> Vec<Vec<u8>> {
    let identity = Identity::new(BrickId(7), "00112233445566778899aabbccddeeff", BrickSettings::default());
    vec![toml::to_string(&identity).unwrap().into_bytes()]
}

pub fn life_toml(bytes: &[u8]) {
    let folder = Folder::new("life.toml", bytes);
    let Ok(life) = bounded(bytes.len(), FIXED_BYTES, || hekate_brick::fuzz::next_life(&folder.0)) else { return };
    // Settling a settled life again yields the same life.
    life.settle().unwrap();
    let again = hekate_brick::fuzz::next_life(&folder.0).unwrap();
    assert_eq!((again.incarnation(), again.is_new()), (life.incarnation(), false));
}

pub fn life_toml_seeds() -> Vec<Vec<u8>> {
    vec![b"incarnation = 3\nboot = \"00112233-4455-6677-8899-aabbccddeeff\"\nmount = 77\n".to_vec()]
}

fn seeds<T: Serialize>(values: impl IntoIterator<Item = T>) -> Vec<Vec<u8>> {
    values.into_iter().map(|value| serde_json::to_vec(&value).unwrap()).collect()
}

/// A directory with one file, in /dev/shm if the machine has it, used by this thread only.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, content: &[u8]) -> Self {
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let thread = std::thread::current().id();
        let folder = Self(parent.join(format!("hekate-fuzz-{}-{thread:?}", std::process::id())));
        std::fs::create_dir_all(&folder.0).unwrap();
        std::fs::write(folder.0.join(name), content).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
