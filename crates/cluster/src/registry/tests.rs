//! Servers, domains and maps, on a coordinator in memory.

mod faults;

use super::*;
use crate::coordinator::{Expect, Listing, Outcome, Revision, Watched, Write};
use hekate_threads::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Default)]
struct InMemory(Mutex<BTreeMap<String, String>>);

impl Coordinator for InMemory {
    fn get(&self, key: &str) -> Result<Option<String>> {
        Ok(self.0.lock().get(key).cloned())
    }
    fn list(&self, prefix: &str) -> Result<Listing> {
        let all = self.0.lock();
        let found = all.iter().filter(|(key, _)| key.starts_with(prefix));
        Ok(Listing { pairs: found.map(|(key, value)| (key.clone(), value.clone())).collect(), ..Listing::default() })
    }
    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        let mut all = self.0.lock();
        if expect.iter().any(|(key, value)| all.get(*key).map(String::as_str) != *value) {
            return Ok(Outcome::Refused);
        }
        for (key, value) in writes {
            match value {
                Some(value) => drop(all.insert((*key).into(), (*value).into())),
                None => drop(all.remove(*key)),
            }
        }
        Ok(Outcome::Written)
    }
    /// Leases in tests do not expire by themselves.
    fn keep(&self, key: &str, value: &str, _: Duration) -> Result<Outcome> {
        self.0.lock().insert(key.into(), value.into());
        Ok(Outcome::Written)
    }
    fn release(&self, key: &str) -> Result<Outcome> {
        self.transact(&[], &[(key, None)])
    }
    fn watch(&self, _: &[&str], _: Revision, _: Duration) -> Result<Watched> {
        Ok(Watched::ReadAgain)
    }
    fn end_watches(&self) {}
}

fn brick(number: u128, server: u32) -> BrickInfo {
    BrickInfo {
        brick: BrickId(number),
        directory: format!("/b{number}"),
        pool: "p".into(),
        weight: 1,
        server: ServerId(server),
        incarnation: Incarnation(number as u64),
        openings: 0,
        begun: 0,
        restored: false,
        unopened: false,
    }
}

/// A pool with bricks 1 and 2 of the first server.
fn registry() -> Registry {
    let registry = Registry::new(Arc::new(InMemory::default()));
    registry.create_pool("p", &[brick(1, 1), brick(2, 1)]).unwrap();
    registry
}

fn join(registry: &Registry, bricks: &[u128]) -> Result<ServerId> {
    let server = registry.number_server()?;
    let info = ServerInfo::new(server);
    let bricks: Vec<BrickInfo> = bricks.iter().map(|number| brick(*number, server.0)).collect();
    registry.join(&info, &bricks).map(|()| server)
}

fn wanted(ring: RingId) -> VolumeInfo {
    VolumeInfo {
        volume: VolumeId(0),
        name: "v".into(),
        pool: "p".into(),
        ring,
        copies: 2,
        owner_uid: 0,
        allowed_uids: Vec::new(),
        graph: Default::default(),
        deleting: false,
        spread: 1,
        mode: Default::default(),
        creation: 0,
    }
}

fn volume(registry: &Registry, ring: RingId) -> VolumeInfo {
    registry.create_volume(wanted(ring)).unwrap()
}

#[test]
fn servers_are_numbered_from_the_first_and_join_once() {
    let registry = registry();
    assert_eq!(registry.servers().unwrap().len(), 1, "the first one, before it was ever served");
    assert_eq!(join(&registry, &[3]).unwrap(), ServerId(2));
    assert_eq!(join(&registry, &[4]).unwrap(), ServerId(3));
    assert!(join(&registry, &[4]).unwrap_err().to_string().contains("has joined already"));
    let second = Registry::of(registry.coordinator.clone(), ServerId(2));
    second.announce(&["unix:/two".into()], &BTreeMap::new()).unwrap();
    registry.announce(&["unix:/one".into()], &BTreeMap::new()).unwrap();
    let servers = registry.servers().unwrap();
    assert_eq!(servers.iter().map(|info| info.server.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(servers[1].endpoints, ["unix:/two"]);
    assert_eq!(second.own_bricks().unwrap()[0].brick, BrickId(3));
}

#[test]
fn records_of_a_newer_program_are_refused() {
    let registry = registry();
    registry.create_cluster("c").unwrap();
    registry.check_version().unwrap();
    registry.coordinator.transact(&[], &[("/version", Some("6"))]).unwrap();
    let refused = registry.check_version().unwrap_err();
    assert!(matches!(refused, Error::NotSupported { .. }), "{refused}");
    assert!(refused.to_string().contains("version 6, this program knows 5"), "{refused}");
    // Records without a version have version 1.
    registry.coordinator.transact(&[], &[("/version", None)]).unwrap();
    assert!(registry.check_version().unwrap_err().to_string().contains("version 1, this program knows 5"));
}

#[test]
fn a_pool_that_does_not_exist_is_named() {
    let registry = registry();
    let info = ServerInfo::new(ServerId(2));
    let refused = registry.join(&info, &[BrickInfo { pool: "q".into(), ..brick(3, 2) }]).unwrap_err();
    assert!(refused.to_string().contains("no pool called q"), "{refused}");
}

#[test]
fn copies_are_on_different_servers_as_soon_as_there_are_enough() {
    let registry = registry();
    let on_disks = registry.ring_for("p", 2, RingWish::default()).unwrap();
    assert_eq!(on_disks.domain, Domain::Disk);
    let refused = registry
        .ring_for("p", 2, RingWish { domain: Some(Domain::Server), ..RingWish::default() })
        .unwrap_err()
        .to_string();
    assert!(refused.contains("bricks on 2 servers") && refused.contains("hekate join"), "{refused}");
    let server = join(&registry, &[3, 4]).unwrap();
    let on_servers = registry.ring_for("p", 2, RingWish::default()).unwrap();
    assert_eq!((on_servers.domain, on_servers.ring), (Domain::Server, RingId(2)));
    let is_there = |member: &hekate_proto::map::Member| member.brick.0 > 2;
    for view in &on_servers.views {
        assert_eq!(view.members.iter().filter(|member| is_there(member)).count(), 1, "a copy on each: {view:?}");
        assert!(view.members.iter().all(|member| u128::from(member.incarnation.0) == member.brick.0));
    }
    assert_eq!(
        registry.ring_for("p", 2, RingWish { domain: Some(Domain::Disk), ..RingWish::default() }).unwrap(),
        on_disks,
        "made once"
    );
    assert_eq!(registry.ring_for("p", 2, RingWish::default()).unwrap(), on_servers, "made once");
    let single = registry.ring_for("p", 1, RingWish { domain: Some(Domain::Server), ..RingWish::default() }).unwrap();
    assert_eq!(
        registry.ring_for("p", 1, RingWish { domain: Some(Domain::Disk), ..RingWish::default() }).unwrap(),
        single,
        "with one copy the domain does not matter"
    );

    registry.announce(&["unix:/one".into()], &BTreeMap::new()).unwrap();
    let volume = volume(&registry, on_servers.ring);
    let map = Registry::of(registry.coordinator.clone(), server).map(&volume).unwrap();
    map.check().unwrap();
    assert_eq!((map.server, map.holders()), (server, vec![FIRST_SERVER, server]));
    assert_eq!(map.server_of(BrickId(4)), Some(server));
    assert_eq!(map.servers[0].endpoints, ["unix:/one"]);
    // A replica that is in no view may lead again, so a client with this map and no newer one must know its server.
    let without = |info: &mut RingInfo| {
        for (number, view) in (0..).map(PartitionNumber).zip(info.views.clone()) {
            let stays: Vec<_> = view.members.into_iter().filter(|member| !is_there(member)).collect();
            let view = hekate_proto::map::View::new(Epoch(2), stays[0].brick, stays);
            info.form(number, hekate_proto::map::View { opened: false, ..view });
        }
        true
    };
    registry.update_views(on_servers.ring, without).unwrap();
    let map = registry.map(&volume).unwrap();
    map.check().unwrap();
    assert_eq!(map.holders(), [FIRST_SERVER, server]);
}

#[test]
fn bricks_are_added_placed_on_once_opened_and_removed_when_empty() {
    let registry = registry();
    let added = BrickInfo { incarnation: Incarnation(0), unopened: true, ..brick(9, 1) };
    registry.add_brick(&added).unwrap();
    assert_eq!(registry.add_brick(&added), Err(Error::Exists));
    let missing = registry.add_brick(&BrickInfo { pool: "q".into(), ..brick(8, 1) }).unwrap_err();
    assert!(missing.to_string().contains("no pool called q"), "{missing}");

    let refused = registry.ring_for("p", 3, RingWish::default()).unwrap_err().to_string();
    assert!(refused.contains("the pool has 2"), "{refused}");
    let on_two = registry.ring_for("p", 2, RingWish::default()).unwrap();
    assert!(!on_two.has(BrickId(9)));
    registry.opened(BrickId(9), Incarnation(1), 1).unwrap();
    let on_three = registry.ring_for("p", 3, RingWish::default()).unwrap();
    assert!(on_three.has(BrickId(9)));

    assert_eq!(registry.remove_brick(BrickId(9)).unwrap(), [on_three]);
    assert_eq!(registry.bricks().unwrap().len(), 3);
    registry.add_brick(&brick(10, 1)).unwrap();
    assert_eq!(registry.remove_brick(BrickId(10)).unwrap(), []);
    assert!(registry.bricks().unwrap().iter().all(|info| info.brick != BrickId(10)));
}

#[test]
fn volumes_that_want_other_numbers_of_replicas_have_other_rings() {
    let registry = registry();
    let usual = registry.ring_for("p", 2, RingWish::default()).unwrap();
    assert_eq!(
        (
            usual.members_min(),
            registry.ring_for("p", 2, RingWish { min_replicas: Some(1), ..RingWish::default() }).unwrap()
        ),
        (1, usual.clone())
    );
    let both = registry.ring_for("p", 2, RingWish { min_replicas: Some(2), ..RingWish::default() }).unwrap();
    assert_eq!((both.members_min(), both.ring), (2, RingId(2)));
    assert_eq!(
        registry.ring_for("p", 2, RingWish { min_replicas: Some(2), ..RingWish::default() }).unwrap(),
        both,
        "made once"
    );
    for wrong in [0, 3] {
        let refused = registry
            .ring_for("p", 2, RingWish { min_replicas: Some(wrong), ..RingWish::default() })
            .unwrap_err()
            .to_string();
        assert!(refused.contains("from 1 to 2"), "{refused}");
    }
}

#[test]
fn a_change_of_views_is_repeated_only_if_the_same_views_or_the_ring_change() {
    let registry = registry();
    let ring = registry.ring_for("p", 2, RingWish::default()).unwrap();
    let with_epoch = |number: usize, epoch: u64| {
        move |ring: &mut RingInfo| std::mem::replace(&mut ring.views[number].epoch, Epoch(epoch)) != Epoch(epoch)
    };
    let interfered = |epoch: u64, interfere: &dyn Fn()| {
        let mut tries = 0;
        let now = registry.update_views(ring.ring, |ring| {
            tries += 1;
            if tries == 1 {
                interfere();
            }
            with_epoch(0, epoch)(ring)
        });
        assert_eq!(now.unwrap().views[0].epoch, Epoch(epoch));
        tries
    };
    assert_eq!(interfered(5, &|| drop(registry.update_views(ring.ring, with_epoch(1, 7)).unwrap())), 1);
    assert_eq!(interfered(9, &|| drop(registry.update_views(ring.ring, with_epoch(0, 8)).unwrap())), 2);
    assert_eq!(interfered(10, &|| assert!(registry.replace_brick(&brick(1, 1), &brick(3, 1)).unwrap() > 0)), 2);
    let now = registry.ring(ring.ring).unwrap().unwrap();
    assert_eq!((now.views[0].epoch, now.views[1].epoch, now.places(BrickId(1))), (Epoch(10), Epoch(7), 0));
    let changed = registry.update_views(ring.ring, |ring| ring.replace(BrickId(2), BrickId(4)) > 0);
    assert!(changed.is_err(), "a change of views places nothing");
}

#[test]
fn a_ring_of_which_a_record_is_missing_is_damaged() {
    let registry = registry();
    let ring = registry.ring_for("p", 2, RingWish::default()).unwrap();
    assert_eq!(registry.rings().unwrap(), std::slice::from_ref(&ring));
    let key = "/rings/00001/views/00003";
    let record = registry.coordinator.get(key).unwrap();
    registry.coordinator.transact(&[], &[(key, None)]).unwrap();
    let missing = registry.rings().unwrap_err();
    assert!(matches!(&missing, Error::Damaged { what } if what.contains(key)), "{missing}");
    registry.coordinator.transact(&[], &[(key, record.as_deref()), ("/rings/00001/views/00015", None)]).unwrap();
    assert!(matches!(registry.ring(ring.ring), Err(Error::Damaged { .. })));
}

#[test]
fn records_without_a_server_are_of_the_first_server() {
    let brick: BrickInfo = serde_json::from_str(
        r#"{"brick":"0a4eb65f7864d2f8a3e6a73940d25310","directory":"/srv/b1","pool":"default","weight":270553174016}"#,
    )
    .unwrap();
    assert_eq!((brick.server, brick.incarnation), (FIRST_SERVER, Incarnation(0)));
    let ring: RingRecord = serde_json::from_str(r#"{"ring":1,"pool":"default","copies":2,"placed":[]}"#).unwrap();
    assert_eq!(ring.domain, Domain::Disk);
    let session: SessionInfo = serde_json::from_str(r#"{"session":9,"volume":1,"owner":{"uid":1000}}"#).unwrap();
    assert_eq!(session.server, FIRST_SERVER);
}

#[test]
fn names_of_volumes_cannot_leave_their_folder() {
    for bad in ["", "../x", "a/b", ".hidden", "a b", &"x".repeat(64)] {
        assert!(check_name("volume", bad).is_err(), "{bad}");
    }
    assert!(check_name("volume", "photos-2026_a.b").is_ok());
}
