//! What the replicas of a partition have of an item: those here, and those of other servers, which are asked.
//!
//! Replicas here are read under the leader's lock once no change is in progress, so that all have the same records.
//! Replicas of other servers are asked again for up to a second, until they are at the same record.

use crate::control::ask_server;
use crate::hosting::hosted_ring::{Hosted, HostedRing};
use crate::hosting::node::Node;
use hekate_brick::Brick;
use hekate_cluster::ServerInfo;
use hekate_control::peer::{HELD_LOOKS_MAX, Held, HeldCopy, HeldRows, Look, LookAt};
use hekate_proto::*;
use hekate_replica::{Address, Partition};
use hekate_threads::{RwLockReadGuard, elapsed, now};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a request waits until no change is in progress, and the pause between two looks.
const SETTLED_LIMIT: Duration = Duration::from_secs(1);
const SETTLED_PAUSE: Duration = Duration::from_millis(1);

/// What the replicas here have: a row of replicas for each requested item.
///
/// # Errors
///
/// `Invalid` if too many items are requested, `Protocol` if the ring is not here.
pub fn held_here(node: &Node, request: &Held) -> Result<HeldRows> {
    if request.looks.len() > HELD_LOOKS_MAX {
        return Err(Error::invalid(format!(
            "a request for {} items; at most {HELD_LOOKS_MAX} are allowed",
            request.looks.len()
        )));
    }
    let ring = node.ring(request.ring)?;
    let until = now() + SETTLED_LIMIT;
    let held: Result<_> = request.looks.iter().map(|look| look_here(&ring, look, until)).collect();
    Ok(HeldRows { held: held? })
}

fn look_here(ring: &HostedRing, look: &Look, until: Instant) -> Result<Vec<HeldCopy>> {
    let number = look.partition;
    let leader = ring.leader(number).ok().map(|(_, hosted)| settled(hosted, until));
    let held = |brick: &Brick| {
        let replica = ring.replica(Address { partition: number, brick: brick.id() });
        let _still = replica.filter(|_| leader.is_none()).map(|hosted| hosted.partition.read());
        // A replica that cannot be read does not hide what the others have.
        let (has, error) = match read(ring, brick, &look.what) {
            Ok(has) => (has, None),
            Err(error) => (None, Some(error.to_string())),
        };
        HeldCopy { brick: brick.id(), sequence: brick.position(ring.ring, number).sequence, has, error }
    };
    Ok(ring.members(number)?.iter().map(|brick| held(brick)).collect())
}

fn read(ring: &HostedRing, brick: &Brick, what: &LookAt) -> Result<Option<Vec<u8>>> {
    Ok(match what {
        LookAt::Key(key) => brick.get(&Key::from_bytes(key.clone().into()))?.map(|value| value.to_vec()),
        LookAt::Shard(shard) => {
            let shard = ShardId::from_bytes(shard.clone().into())?;
            brick.shard(ring.ring, shard)?.map(|record| record.to_bytes().to_vec())
        }
    })
}

/// The leader's shared lock, once its members have all of its records. After a second it is returned even if a member
/// still lacks some.
fn settled(hosted: &Hosted, until: Instant) -> RwLockReadGuard<'_, Partition> {
    loop {
        let partition = hosted.partition.read();
        if partition.is_settled() || now() > until {
            return partition;
        }
        drop(partition);
        hekate_threads::sleep(SETTLED_PAUSE);
    }
}

/// The servers of a ring's replicas, to be asked for one answer.
pub struct Holders<'a> {
    node: &'a Node,
    ring: &'a HostedRing,
    servers: Vec<ServerInfo>,
    /// Servers that did not answer, each with the reason: they are not asked again.
    away: RefCell<BTreeMap<Option<ServerId>, String>>,
}

impl<'a> Holders<'a> {
    /// Reads the addresses of the servers.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn new(node: &'a Node, ring: &'a HostedRing) -> Result<Self> {
        Ok(Self { node, ring, servers: node.cluster.registry().servers()?, away: RefCell::default() })
    }

    /// What the leader has of an item.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the leader does not answer or cannot read the item.
    pub fn by_leader(&self, look: Look) -> Result<Option<Vec<u8>>> {
        let leader = self.ring.view(look.partition)?.leader;
        let rows = self.ask(std::slice::from_ref(&look), |brick| brick == leader)?;
        let held = rows.into_iter().flatten().find(|held| held.brick == leader);
        match held.ok_or_else(|| Error::bug("a reply of the leader's server has no row of the leader"))? {
            HeldCopy { error: Some(what), .. } => Err(Error::Unavailable { what }),
            HeldCopy { has, .. } => Ok(has),
        }
    }

    /// What all replicas have of each item, the leader's first.
    ///
    /// # Errors
    ///
    /// `Protocol` if the ring has no such partition. A replica that does not answer has the reason in its row.
    pub fn by_all(&self, looks: &[Look]) -> Result<Vec<Vec<HeldCopy>>> {
        let mut rows = self.ask(looks, |_| true)?;
        let begun = now();
        loop {
            let differing: Vec<usize> = (0..rows.len()).filter(|row| differ(&rows[*row])).collect();
            if differing.is_empty() || elapsed(begun) > SETTLED_LIMIT {
                return Ok(rows);
            }
            hekate_threads::sleep(SETTLED_PAUSE);
            let again: Vec<Look> = differing.iter().map(|row| looks[*row].clone()).collect();
            for (row, held) in differing.into_iter().zip(self.ask(&again, |_| true)?) {
                rows[row] = held;
            }
        }
    }

    fn ask(&self, looks: &[Look], is_asked: impl Fn(BrickId) -> bool) -> Result<Vec<Vec<HeldCopy>>> {
        let mut by_server: BTreeMap<Option<ServerId>, Vec<usize>> = BTreeMap::new();
        let mut members = Vec::new();
        for (number, look) in looks.iter().enumerate() {
            let view = self.ring.view(look.partition)?;
            let others = view.members.iter().map(|member| member.brick).filter(|brick| *brick != view.leader);
            let all: Vec<BrickId> =
                std::iter::once(view.leader).chain(others).filter(|brick| is_asked(*brick)).collect();
            for brick in &all {
                let asked = by_server.entry(self.ring.server_of(*brick)).or_default();
                if asked.last() != Some(&number) {
                    asked.push(number);
                }
            }
            members.push(all);
        }
        let mut known: BTreeMap<(usize, BrickId), HeldCopy> = BTreeMap::new();
        let mut away = self.away.borrow_mut();
        for (server, numbers) in by_server {
            for chunk in numbers.chunks(HELD_LOOKS_MAX) {
                if away.contains_key(&server) {
                    break;
                }
                let looks = chunk.iter().map(|number| looks[*number].clone()).collect();
                match self.ask_one(server, Held { ring: self.ring.ring, looks }) {
                    Ok(rows) => known.extend(
                        chunk
                            .iter()
                            .zip(rows)
                            .flat_map(|(number, row)| row.into_iter().map(move |held| ((*number, held.brick), held))),
                    ),
                    Err(why) => drop(away.insert(server, why)),
                }
            }
        }
        let row = |(number, bricks): (usize, Vec<BrickId>)| {
            let held = |brick: BrickId| {
                known.remove(&(number, brick)).unwrap_or_else(|| {
                    let why = away.get(&self.ring.server_of(brick)).cloned();
                    let error = Some(why.unwrap_or_else(|| "its server does not have that partition".into()));
                    HeldCopy { brick, sequence: Sequence(0), has: None, error }
                })
            };
            bricks.into_iter().map(held).collect()
        };
        Ok(members.into_iter().enumerate().map(row).collect())
    }

    fn ask_one(&self, server: Option<ServerId>, request: Held) -> std::result::Result<Vec<Vec<HeldCopy>>, String> {
        if server == Some(self.node.cluster.server()) {
            return held_here(self.node, &request).map(|rows| rows.held).map_err(|error| error.to_string());
        }
        let info = self.servers.iter().find(|info| Some(info.server) == server);
        let info = info.ok_or("no server is recorded for its brick")?;
        let said = ask_server(self.node, info, request);
        said.map(|rows| rows.held).map_err(|why| format!("server {}: {why}", info.name))
    }
}

/// True if replicas that can be read are at different records.
fn differ(row: &[HeldCopy]) -> bool {
    let mut sequences = row.iter().filter(|held| held.error.is_none()).map(|held| held.sequence);
    let first = sequences.next();
    sequences.any(|sequence| Some(sequence) != first)
}
