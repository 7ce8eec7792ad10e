//! The coordinator: views, leases, lost blocks, sessions. Servers read and change it in one step; a change by another
//! server becomes known after a delay.

use super::settings::{Micros, Settings};
use hekate_brick::storage::Random;
use hekate_cluster::views::{BrickSeen, Seen};
use hekate_cluster::{Domain, RingInfo};
use hekate_proto::map::{Member, View};
use hekate_proto::*;
use hekate_replica::{Address, BlockAt};
use std::collections::{BTreeMap, BTreeSet};

/// The only ring.
pub const RING: RingId = RingId(1);
/// The only volume.
pub const VOLUME: VolumeId = VolumeId(1);

/// The coordinator's records.
pub struct Coordinator {
    pub ring: RingInfo,
    /// When each server's lease ends.
    pub alive: BTreeMap<u32, Micros>,
    /// The incarnation of each brick at its last opening.
    pub lives: BTreeMap<BrickId, Incarnation>,
    /// Openings of each brick.
    pub openings: BTreeMap<BrickId, u32>,
    lost: BTreeMap<BrickId, BTreeSet<BlockAt>>,
    sessions: u64,
}

/// The id of the brick with this number, from 0.
pub fn brick_id(number: u32) -> BrickId {
    BrickId(u128::from(number) + 1)
}

impl Coordinator {
    /// Places each partition on as many bricks as it has copies, on different machines as far as there are enough.
    pub fn new(settings: &Settings, random: &mut Random) -> Self {
        let all = settings.servers * settings.bricks_per_server;
        let machine = |brick: u32| brick / settings.bricks_per_server % settings.machines;
        let mut views = Vec::new();
        for _ in 0..settings.partitions {
            let mut chosen: Vec<u32> = Vec::new();
            while chosen.len() < settings.copies as usize {
                let left: Vec<u32> = (0..all).filter(|brick| !chosen.contains(brick)).collect();
                let apart = |brick: &&u32| chosen.iter().all(|other| machine(*other) != machine(**brick));
                let best: Vec<u32> = left.iter().filter(apart).copied().collect();
                let from = if best.is_empty() { left } else { best };
                chosen.push(from[random.below(from.len() as u64) as usize]);
            }
            let member = |brick: &u32| Member { brick: brick_id(*brick), incarnation: Incarnation(1) };
            let members: Vec<Member> = chosen.iter().map(member).collect();
            views.push(View::new(Epoch(1), members[0].brick, members));
        }
        let ring = RingInfo::new(RING, "p", settings.copies, Domain::Disk, views);
        let (alive, lives, openings, lost) = Default::default();
        Self { ring, alive, lives, openings, lost, sessions: 0 }
    }

    /// The facts that decide views. `servers`: the bricks of each.
    pub fn seen<'a>(&self, servers: impl Iterator<Item = (u32, &'a [BrickId])>, now: Micros) -> Seen {
        let mut bricks = BTreeMap::new();
        for (server, own) in servers {
            let serves = self.alive.get(&server).is_some_and(|until| *until > now);
            for brick in own {
                let incarnation = self.lives.get(brick).copied().unwrap_or(Incarnation(1));
                bricks.insert(*brick, BrickSeen { server: ServerId(server + 1), incarnation, serves });
            }
        }
        Seen { bricks, ..Seen::default() }
    }

    /// Without leases: records the incarnations of a server's bricks. Returns true if that makes new views.
    pub fn renew_incarnations(&mut self, lives: &BTreeMap<BrickId, Incarnation>) -> bool {
        let mut renewed = false;
        for view in &mut self.ring.views {
            let mut changed = false;
            for member in &mut view.members {
                let Some(life) = lives.get(&member.brick).filter(|life| **life != member.incarnation) else { continue };
                member.incarnation = *life;
                changed = true;
            }
            view.epoch.0 += u64::from(changed);
            view.forgetful |= changed;
            // It is unknown here whether the others still have their memory, so each new incarnation counts as a loss.
            view.losses += u32::from(changed);
            renewed |= changed;
        }
        renewed
    }

    /// Adds blocks that a power cut took from a brick to those that are not settled yet.
    pub fn add_lost(&mut self, brick: BrickId, lost: impl Iterator<Item = BlockAt>) {
        self.lost.entry(brick).or_default().extend(lost);
    }

    pub fn lost_of(&self, at: Address, count: u32) -> Vec<BlockAt> {
        let own = |block: &&BlockAt| block.shard.position().partition(count) == at.partition;
        self.lost.get(&at.brick).into_iter().flatten().filter(own).copied().collect()
    }

    /// Puts another brick into the place of one that is gone.
    pub fn replace(&mut self, old: BrickId, new: BrickId) {
        self.ring.replace(old, new);
        self.lives.remove(&old);
        self.openings.remove(&old);
        self.lost.remove(&old);
    }

    pub fn clear_lost(&mut self, brick: BrickId) {
        self.lost.remove(&brick);
    }

    pub fn begin_session(&mut self) -> SessionId {
        self.sessions += 1;
        SessionId(self.sessions)
    }
}
