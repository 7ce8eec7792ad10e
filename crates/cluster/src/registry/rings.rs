//! Rings: a ring is made with the first volume that needs it. The views of each partition are a record of their own, so
//! that servers which form views of different partitions do not wait for each other. Also the maps of volumes.

use super::{Attempts, Registry, brick_key, parse, text};
use crate::placement::{Candidate, place};
use crate::records::{default_min, *};
use hekate_proto::map::{BrickPlace, Member, ServerAddress, View, VolumeMap};
use hekate_proto::*;
use std::collections::BTreeSet;

/// Partitions of a new ring.
pub const PARTITIONS_NEW: u32 = 16;

pub(super) const COUNTER: &str = "/counters/rings";
/// Prefix of the keys of all rings.
pub(super) const RINGS: &str = "/rings/";

impl Registry {
    /// All rings with their views, read at one revision.
    pub fn rings(&self) -> Result<Vec<RingInfo>> {
        Ok(self.stored_rings(RINGS)?.into_iter().map(|stored| stored.info).collect())
    }

    /// One ring with its views, read at one revision. `None`: there is no such ring.
    pub fn ring(&self, ring: RingId) -> Result<Option<RingInfo>> {
        Ok(self.stored_ring(ring)?.map(|stored| stored.info))
    }

    fn stored_ring(&self, ring: RingId) -> Result<Option<StoredRing>> {
        // All numbers have five digits, so no other ring's key has this prefix.
        Ok(self.stored_rings(&ring_key(ring))?.pop())
    }

    /// The rings whose keys have a prefix.
    pub(super) fn stored_rings(&self, prefix: &str) -> Result<Vec<StoredRing>> {
        rings_of(self.coordinator.list(prefix)?.pairs.into_iter())
    }

    /// Changes views of a ring in one transaction, repeatedly if other servers change the same views or the ring's
    /// record meanwhile. `change` returns true if there is anything to write. It decides on the views of a partition by
    /// the views of that partition and by the ring's record: views of other partitions may have changed meanwhile.
    /// Returns the resulting ring.
    ///
    /// # Errors
    /// `Bug` if the ring is not recorded, or `change` changes anything but views.
    pub fn update_views(&self, ring: RingId, mut change: impl FnMut(&mut RingInfo) -> bool) -> Result<RingInfo> {
        let (mut attempts, mut written) = (Attempts::default(), None::<Vec<(usize, String)>>);
        loop {
            let unknown = || Error::bug(format!("ring {ring} is not recorded"));
            let StoredRing { key, text: record, view_texts, info: before } =
                self.stored_ring(ring)?.ok_or_else(unknown)?;
            let is_there = |(number, text): &(usize, String)| view_texts.get(*number) == Some(text);
            if attempts.are_unsure() && written.as_ref().is_some_and(|written| written.iter().all(is_there)) {
                return Ok(before);
            }
            let mut after = before.clone();
            if !change(&mut after) {
                return Ok(after);
            }
            let after = RingInfo::assemble(after.record(), after.view_records().collect())?;
            if after.record() != before.record() || after.views.len() != view_texts.len() {
                return Err(Error::bug(format!("a change of views of ring {ring} changes its record")));
            }
            let texts: Result<Vec<String>> = after.view_records().map(|views| text(&views)).collect();
            let changed: Vec<_> =
                texts?.into_iter().enumerate().filter(|(number, text)| view_texts[*number] != *text).collect();
            let keys: Vec<String> = changed.iter().map(|(number, _)| view_key(&key, *number)).collect();
            let expect = keys.iter().zip(&changed).map(|(key, (at, _))| (&key[..], Some(&view_texts[*at][..])));
            // A view depends on where the partition is placed.
            let expect: Vec<_> = expect.chain([(&key[..], Some(&record[..]))]).collect();
            let writes: Vec<_> =
                keys.iter().zip(&changed).map(|(key, (_, text))| (&key[..], Some(&text[..]))).collect();
            if attempts.is_written(self.coordinator.transact(&expect, &writes))? {
                return Ok(after);
            }
            written = Some(changed);
        }
    }

    /// The ring of a pool for this number of copies and these requirements. It is made, and its partitions are placed,
    /// if it does not exist.
    ///
    /// # Errors
    /// `Invalid` if the pool does not exist or cannot meet the requirements.
    pub fn ring_for(&self, pool: &str, copies: u32, wish: RingWish) -> Result<RingInfo> {
        let RingWish { domain, min_replicas, led_by } = wish;
        if let Some(min) = min_replicas.filter(|min| *min == 0 || *min > copies) {
            return Err(Error::invalid(format!(
                "--min-replicas {min} is not possible with {copies} copies; use a number from 1 to {copies}"
            )));
        }
        let min_replicas = min_replicas.filter(|min| *min != default_min(copies));
        if self.get::<PoolInfo>(&format!("/pools/{pool}"))?.is_none() {
            let known: Vec<_> = self.pools()?.into_iter().map(|pool| pool.name).collect();
            return Err(Error::invalid(format!("there is no pool called {pool}; there are: {}", known.join(", "))));
        }
        let mut attempts = Attempts::default();
        loop {
            // The counter is read first: making another ring changes it, and then everything here is read again.
            let counter = self.coordinator.get(COUNTER)?;
            let is_candidate = |brick: &BrickInfo| brick.pool == pool && !brick.unopened;
            let bricks: Vec<BrickInfo> = self.bricks()?.into_iter().filter(is_candidate).collect();
            let domain = choose_domain(pool, copies, domain, &bricks)?;
            let kind_of = |ring: &RingInfo| (ring.copies, ring.domain, ring.min_replicas, ring.led_by);
            let is_kind =
                |ring: &RingInfo| ring.pool == pool && kind_of(ring) == (copies, domain, min_replicas, led_by);
            if let Some(ring) = self.rings()?.into_iter().find(is_kind) {
                return Ok(ring);
            }
            let last = counter.as_deref().map_or(Ok(0), |text| parse::<u16>(COUNTER, text))?;
            let full =
                || Error::NoSpace { what: "all 65,535 numbers of rings are assigned; make another cluster".into() };
            let number = last.checked_add(1).ok_or_else(full)?;
            let views = place_views(&bricks, copies, domain, led_by)?;
            let ring = RingInfo { min_replicas, led_by, ..RingInfo::new(RingId(number), pool, copies, domain, views) };
            // The records of the bricks are expected to be unchanged, so that nothing is placed on a brick removed
            // meanwhile.
            let mut expect = vec![(COUNTER.to_string(), counter.clone())];
            for key in bricks.iter().filter(|brick| ring.has(brick.brick)).map(|brick| brick_key(brick.brick)) {
                let record = self.coordinator.get(&key)?;
                expect.push((key, Some(record.unwrap_or_default())));
            }
            let expect: Vec<_> = expect.iter().map(|(key, value)| (&key[..], value.as_deref())).collect();
            let key = ring_key(ring.ring);
            let mut writes = vec![(COUNTER.to_string(), text(&number)?), (key.clone(), text(&ring.record())?)];
            for (number, views) in ring.view_records().enumerate() {
                writes.push((view_key(&key, number), text(&views)?));
            }
            let writes: Vec<_> = writes.iter().map(|(key, value)| (&key[..], Some(&value[..]))).collect();
            // If the outcome is unknown the ring is found in the next round, or made then.
            if attempts.is_written(self.coordinator.transact(&expect, &writes))? {
                return Ok(ring);
            }
        }
    }

    /// The map for clients of this server. It lists the servers of all replicas, also of those that no view has now:
    /// a client without ops fetches no new map, and must reach every server that may lead.
    ///
    /// # Errors
    /// `Bug` if the volume's ring is not recorded.
    pub fn map(&self, volume: &VolumeInfo) -> Result<VolumeMap> {
        let ring = self.ring(volume.ring)?;
        let ring = ring.ok_or_else(|| Error::bug(format!("the ring of volume {} is not recorded", volume.name)))?;
        let partitions = (0..ring.views.len() as u32).map(PartitionNumber);
        let holders: BTreeSet<BrickId> = partitions.flat_map(|number| ring.holders(number)).collect();
        let known = self.bricks()?.into_iter().filter(|info| holders.contains(&info.brick));
        let mut bricks: Vec<_> = known.map(|info| BrickPlace { brick: info.brick, server: info.server }).collect();
        bricks.sort_unstable_by_key(|place| place.brick);
        let mut numbers: BTreeSet<ServerId> = bricks.iter().map(|place| place.server).collect();
        numbers.insert(self.server);
        let infos = self.servers()?;
        let endpoints = |server: ServerId| {
            infos.iter().find(|info| info.server == server).map(|info| info.endpoints.clone()).unwrap_or_default()
        };
        Ok(VolumeMap {
            volume: volume.volume,
            name: volume.name.clone(),
            ring: ring.ring,
            copies: ring.copies,
            mode: volume.mode,
            views: ring.views,
            server: self.server,
            servers: numbers.into_iter().map(|server| ServerAddress { server, endpoints: endpoints(server) }).collect(),
            bricks,
            graph: volume.graph.clone(),
        })
    }
}

/// The rings of records, which are in the order of their keys.
pub(super) fn rings_of<K: AsRef<str>, V: Into<String>>(pairs: impl Iterator<Item = (K, V)>) -> Result<Vec<StoredRing>> {
    let mut rest = pairs.peekable();
    let mut rings = Vec::new();
    while let Some((key, text)) = rest.next() {
        let (key, text) = (key.as_ref().to_string(), text.into());
        let record: RingRecord = parse(&key, &text)?;
        let own = format!("{key}/");
        let (mut views, mut view_texts) = (Vec::new(), Vec::new());
        while let Some((found, view_text)) = rest.next_if(|(next, _)| next.as_ref().starts_with(&own)) {
            let (found, expected) = (found.as_ref(), view_key(&key, views.len()));
            if found != expected {
                return Err(Error::Damaged { what: format!("the coordinator has {found} and no {expected}") });
            }
            let view_text = view_text.into();
            views.push(parse(found, &view_text)?);
            view_texts.push(view_text);
        }
        rings.push(StoredRing { key, text, view_texts, info: RingInfo::assemble(record, views)? });
    }
    Ok(rings)
}

/// A ring as it is stored.
pub(super) struct StoredRing {
    pub key: String,
    /// The value of its record.
    pub text: String,
    /// The values of the records of its views.
    view_texts: Vec<String>,
    pub info: RingInfo,
}

fn ring_key(ring: RingId) -> String {
    format!("{RINGS}{:05}", ring.0)
}

/// The key of a partition's views. `ring`: the key of the ring.
fn view_key(ring: &str, partition: usize) -> String {
    format!("{ring}/views/{partition:05}")
}

/// The failure domain of a ring. For one copy it is always the disk, so that a pool has only one such ring.
fn choose_domain(pool: &str, copies: u32, asked: Option<Domain>, bricks: &[BrickInfo]) -> Result<Domain> {
    let servers: BTreeSet<ServerId> = bricks.iter().map(|brick| brick.server).collect();
    let enough = servers.len() as u64 >= u64::from(copies);
    match asked {
        _ if copies == 1 => Ok(Domain::Disk),
        Some(Domain::Server) if !enough => Err(Error::invalid(format!(
            "{copies} copies on different servers need a pool with bricks on {copies} servers; {pool} has bricks \
             on {}: add servers with `hekate join`, or say --domain disk",
            servers.len()
        ))),
        Some(domain) => Ok(domain),
        None if enough => Ok(Domain::Server),
        None => Ok(Domain::Disk),
    }
}

/// The first views of a new ring.
fn place_views(bricks: &[BrickInfo], copies: u32, domain: Domain, led_by: Option<ServerId>) -> Result<Vec<View>> {
    if let Some(server) = led_by.filter(|server| !bricks.iter().any(|brick| brick.server == *server)) {
        return Err(Error::invalid(format!("server {server} has no brick in the pool; only one with bricks can lead")));
    }
    let domain_of = |brick: &BrickInfo| match domain {
        Domain::Disk => brick.brick.text(),
        Domain::Server => brick.server.to_string(),
    };
    let candidates: Vec<_> = bricks
        .iter()
        .map(|brick| {
            let (domain, leads) = (domain_of(brick), led_by == Some(brick.server));
            Candidate { brick: brick.brick, weight: brick.weight, domain, leads }
        })
        .collect();
    let life =
        |brick: BrickId| bricks.iter().find(|info| info.brick == brick).map_or(Incarnation(0), |info| info.incarnation);
    let member = |brick: &BrickId| Member { brick: *brick, incarnation: life(*brick) };
    let view = |placed: &Vec<BrickId>| View::new(Epoch(1), placed[0], placed.iter().map(member).collect());
    Ok(place(&candidates, copies, PARTITIONS_NEW)?.iter().map(view).collect())
}
