//! Servers and their bricks.

use super::rings::{RINGS, StoredRing};
use super::{Attempts, Registry, brick_key, text};
use crate::coordinator::{LEASE, Outcome};
use crate::records::*;
use hekate_proto::*;
use std::collections::BTreeMap;

/// Counts the bricks that were added to running servers, so that a brick that was removed is not added again by a
/// transaction that is executed late.
const BRICKS_COUNTER: &str = "bricks";
/// Prefix of the keys of all bricks.
pub(super) const BRICKS: &str = "/bricks/";
/// Prefix of the keys of all leases.
pub(super) const ALIVE: &str = "/alive/";

impl Registry {
    /// All servers, with the first one even if it has never run.
    pub fn servers(&self) -> Result<Vec<ServerInfo>> {
        let mut servers: Vec<ServerInfo> = self.list("/servers/")?;
        if servers.iter().all(|info| info.server != FIRST_SERVER) {
            servers.insert(0, ServerInfo::new(FIRST_SERVER));
        }
        Ok(servers)
    }

    /// All bricks, ordered by server and directory.
    pub fn bricks(&self) -> Result<Vec<BrickInfo>> {
        Ok(in_order(self.list(BRICKS)?))
    }

    /// The bricks of this server.
    pub fn own_bricks(&self) -> Result<Vec<BrickInfo>> {
        Ok(self.bricks()?.into_iter().filter(|brick| brick.server == self.server).collect())
    }

    /// Assigns a number to a server that is about to join.
    pub fn number_server(&self) -> Result<ServerId> {
        // The first server has its number without being counted.
        let number = u32::try_from(self.count("servers")?).ok().and_then(|count| count.checked_add(FIRST_SERVER.0));
        number.map(ServerId).ok_or_else(|| Error::NoSpace { what: "all numbers of servers are used".into() })
    }

    /// Records a numbered server with its bricks, in pools that exist.
    ///
    /// # Errors
    /// `Invalid` if a pool does not exist, or if the server or a brick has joined already.
    pub fn join(&self, server: &ServerInfo, bricks: &[BrickInfo]) -> Result<()> {
        let key = server_key(server.server);
        let mut expect = vec![(key.clone(), None)];
        let mut writes = vec![(key, text(server)?)];
        for brick in bricks {
            let pool = format!("/pools/{}", brick.pool);
            let record = self.coordinator.get(&pool)?;
            let missing = || Error::invalid(format!("there is no pool called {}; see `hekate pool list`", brick.pool));
            expect.push((pool, Some(record.ok_or_else(missing)?)));
            expect.push((brick_key(brick.brick), None));
            writes.push((brick_key(brick.brick), text(brick)?));
        }
        // The server's number was assigned to this caller only, and a brick's id is random.
        let own = writes.last().cloned().unwrap_or_default();
        let expect: Vec<_> = expect.iter().map(|(key, value)| (&key[..], value.as_deref())).collect();
        let writes: Vec<_> = writes.iter().map(|(key, value)| (&key[..], Some(&value[..]))).collect();
        let mut attempts = Attempts::default();
        loop {
            let outcome = self.coordinator.transact(&expect, &writes)?;
            let is_refused = outcome == Outcome::Refused;
            if attempts.is_written(Ok(outcome))? {
                return Ok(());
            }
            match self.coordinator.get(&own.0)? {
                Some(found) if attempts.are_unsure() && found == own.1 => return Ok(()),
                None if !is_refused => {}
                _ => {
                    let what = format!("server {} or one of its bricks has joined already", server.server);
                    return Err(Error::invalid(what));
                }
            }
        }
    }

    /// Records one more brick of this server, in a pool that exists.
    ///
    /// # Errors
    /// `Invalid` if the pool does not exist, `Exists` if the brick is recorded.
    pub fn add_brick(&self, brick: &BrickInfo) -> Result<()> {
        let pool = format!("/pools/{}", brick.pool);
        let missing = || Error::invalid(format!("there is no pool called {}; see `hekate pool list`", brick.pool));
        let pool_record = self.coordinator.get(&pool)?.ok_or_else(missing)?;
        let (key, record) = (brick_key(brick.brick), text(brick)?);
        let mut attempts = Attempts::default();
        loop {
            let counter = self.counter(BRICKS_COUNTER)?;
            match self.coordinator.get(&key)? {
                // The id is random, so the record is the one of an earlier attempt.
                Some(_) if attempts.are_unsure() => return Ok(()),
                Some(_) => return Err(Error::Exists),
                None => {}
            }
            let expect = [counter.expect(), (&pool, Some(&pool_record)), (&key, None)];
            let writes = [counter.write(), (&key, Some(&record))];
            if attempts.is_written(self.coordinator.transact(&expect, &writes))? {
                return Ok(());
            }
        }
    }

    /// Removes the record of a brick, unless a ring uses it. Returns the rings that use it; nothing is changed if
    /// there are any.
    pub fn remove_brick(&self, brick: BrickId) -> Result<Vec<RingInfo>> {
        let mut attempts = Attempts::default();
        loop {
            // The counter is read first: making a ring changes it.
            let counter = self.coordinator.get(super::rings::COUNTER)?;
            let mut on = self.rings()?;
            on.retain(|ring| ring.has(brick));
            if !on.is_empty() {
                return Ok(on);
            }
            let expect = [(super::rings::COUNTER, counter.as_deref())];
            if attempts.is_written(self.coordinator.transact(&expect, &[(&brick_key(brick), None)]))? {
                return Ok(on);
            }
        }
    }

    /// Records a new brick of this server that should hold everything that an old one should. Returns the number of
    /// partitions.
    ///
    /// # Errors
    /// `Invalid` if the new brick's server has another copy of such a partition, or if the old brick should hold
    /// nothing.
    pub fn replace_brick(&self, old: &BrickInfo, new: &BrickInfo) -> Result<usize> {
        let mut attempts = Attempts::default();
        loop {
            let (counter, pool, key) =
                (self.counter(BRICKS_COUNTER)?, format!("/pools/{}", new.pool), brick_key(new.brick));
            if attempts.are_unsure() && self.coordinator.get(&key)?.is_some() {
                // The id is random, so an earlier attempt was executed.
                return Ok(self.rings()?.iter().map(|ring| ring.places(new.brick)).sum());
            }
            let mut expect = vec![(pool.clone(), self.coordinator.get(&pool)?), (key.clone(), None)];
            let mut writes = vec![(key, text(new)?)];
            let (mut count, bricks) = (0, self.bricks()?);
            for StoredRing { key, text: record, info: mut ring, .. } in self.stored_rings(RINGS)? {
                let places = (0..ring.views.len() as u32).map(|number| ring.placed(PartitionNumber(number)));
                let mut beside = places.filter(|all| all.contains(&old.brick)).flatten();
                let is_there =
                    |brick: BrickId| bricks.iter().any(|info| info.brick == brick && info.server == new.server);
                if ring.domain == Domain::Server && beside.any(|brick| brick != old.brick && is_there(brick)) {
                    let what = format!("server {} has another copy of some of its partitions", new.server);
                    return Err(Error::invalid(format!("{what}; replace it by a brick of another server")));
                }
                let moved = ring.replace(old.brick, new.brick);
                if moved > 0 {
                    count += moved;
                    writes.push((key.clone(), text(&ring.record())?));
                    expect.push((key, Some(record)));
                }
            }
            if count == 0 {
                let directory = &old.directory;
                let what =
                    format!("brick {directory} holds no partition; remove it with `hekate brick remove {directory}`");
                return Err(Error::invalid(what));
            }
            let expect = expect.iter().map(|(key, value)| (&key[..], value.as_deref()));
            let expect: Vec<_> = expect.chain([counter.expect()]).collect();
            let writes = writes.iter().map(|(key, value)| (&key[..], Some(&value[..])));
            let writes: Vec<_> = writes.chain([counter.write()]).collect();
            if attempts.is_written(self.coordinator.transact(&expect, &writes))? {
                return Ok(count);
            }
        }
    }

    /// Renews the lease of a process of this server and reports its bricks that have stopped. The lease expires after
    /// [`LEASE`]. `process`: a random number of the process. A request of an earlier process that the coordinator
    /// executes late so cannot end the lease of the server's present one.
    ///
    /// # Errors
    /// Those of the coordinator, and `Unavailable` if the outcome is unknown: the lease may expire.
    pub fn keep_alive(&self, process: u64, stopped: &[BrickId]) -> Result<()> {
        let info = text(&AliveInfo { server: self.server, stopped: stopped.to_vec() })?;
        let (key, mut attempts) = (alive_key(self.server, process), Attempts::default());
        // A key is kept whatever its value was, so this ends when the outcome is known.
        while !attempts.is_written(self.coordinator.keep(&key, &info, LEASE))? {}
        Ok(())
    }

    /// Ends the lease of a process of this server, which no longer serves.
    pub fn leave(&self, process: u64) -> Result<()> {
        let (key, mut attempts) = (alive_key(self.server, process), Attempts::default());
        while !attempts.is_written(self.coordinator.release(&key))? {}
        Ok(())
    }

    /// The servers with a process whose lease has not expired, by number. The bricks that one of its processes reports
    /// as stopped have stopped: an earlier process may have a lease until 3 s after it has ended.
    pub fn alive(&self) -> Result<Vec<AliveInfo>> {
        Ok(by_server(self.list(ALIVE)?))
    }

    /// Records the endpoints of this server, and the network of each one over TCP.
    pub fn announce(&self, endpoints: &[String], networks: &BTreeMap<String, String>) -> Result<()> {
        let key = server_key(self.server);
        let moved = |info: &mut ServerInfo| {
            info.announced = info.announced.wrapping_add(1);
            let before = std::mem::replace(&mut info.endpoints, endpoints.to_vec());
            let networks_before = std::mem::replace(&mut info.networks, networks.clone());
            before != endpoints || networks_before != *networks
        };
        let (endpoints_now, networks_now) = (endpoints.to_vec(), networks.clone());
        let first = ServerInfo {
            endpoints: endpoints_now,
            networks: networks_now,
            announced: 1,
            ..ServerInfo::new(self.server)
        };
        let first = text(&first)?;
        let mut attempts = Attempts::default();
        // A server's record is never removed.
        while self.update(&key, moved)?.is_none() {
            if attempts.is_written(self.coordinator.transact(&[(&key, None)], &[(&key, Some(&first))]))? {
                break;
            }
        }
        Ok(())
    }

    /// Records that an opening of a brick begins, and returns its number: `least`, or a greater one, so that no number is
    /// given twice. Called before the brick counts it.
    pub fn opening(&self, brick: BrickId, least: u32) -> Result<u32> {
        let number = std::cell::Cell::new(least);
        let begin = |info: &mut BrickInfo| {
            number.set(info.next_opening(least));
            info.begun = number.get();
            true
        };
        self.update(&brick_key(brick), begin)?;
        Ok(number.get())
    }

    /// Records the incarnation and the number of openings of a brick that was opened.
    pub fn opened(&self, brick: BrickId, incarnation: Incarnation, openings: u32) -> Result<()> {
        let renewed = |info: &mut BrickInfo| {
            let before = std::mem::replace(
                info,
                BrickInfo { incarnation, openings, unopened: false, restored: false, ..info.clone() },
            );
            before != *info
        };
        self.update(&brick_key(brick), renewed).map(|_| ())
    }
}

/// Bricks, ordered by server and directory.
pub(super) fn in_order(mut bricks: Vec<BrickInfo>) -> Vec<BrickInfo> {
    bricks.sort_by(|a, b| (a.server, &a.directory).cmp(&(b.server, &b.directory)));
    bricks
}

/// The servers of processes, by number, each with the bricks that any of its processes reports as stopped.
pub(super) fn by_server(processes: Vec<AliveInfo>) -> Vec<AliveInfo> {
    let mut servers: BTreeMap<ServerId, AliveInfo> = BTreeMap::new();
    for AliveInfo { server, stopped } in processes {
        let known = servers.entry(server).or_insert_with(|| AliveInfo { server, stopped: Vec::new() });
        known.stopped.extend(stopped);
        known.stopped.sort_unstable();
        known.stopped.dedup();
    }
    servers.into_values().collect()
}

fn server_key(server: ServerId) -> String {
    format!("/servers/{:010}", server.0)
}

fn alive_key(server: ServerId, process: u64) -> String {
    format!("/alive/{:010}/{process:016x}", server.0)
}
