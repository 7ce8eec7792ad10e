//! Faults of disks, and what operators do about them through the product's control interface: they scrub a damaged
//! brick, put a newer disk back, and replace a brick whose disk is lost.

use crate::simulator::faults::disk::{Disk, Opening, SECTOR};
use crate::simulator::servers::coordinator::{AtHand, LATE_MAX};
use crate::simulator::settings::workload::Micros;
use crate::simulator::threads::{self, Owner};
use crate::simulator::world::{Event, Slot, World, trace};
use hekate_brick::Identity;
use hekate_brick::storage::Survivors;
use hekate_cluster::{BrickInfo, LEASE, Registry};
use hekate_control::brick::ScrubState;
use hekate_control::peer::{PeerReply, PeerRequest, ServerReport, ServerStatus};
use hekate_control::{BrickReplace, ControlReply, ControlRequest, ScrubStart};
use hekate_proto::*;
use hekate_server::Node;
use hekate_transport::{Peer, Service};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Longest time from damage to the order to scrub, and the time between two looks at the scrub, in µs.
const SCRUB_MAX: Micros = 4_000_000;
const SCRUB_AGAIN: Micros = 200_000;
/// Longest time for which a disk is full, in µs.
const FULL_MAX: Micros = 6_000_000;
/// Longest time between two attempts to replace a brick, in µs.
const REPLACE_AGAIN_MAX: Micros = 2_000_000;
/// The least size of a journal that the control interface takes; bricks here have that of their settings.
const JOURNAL_MIB: u64 = 32;
/// Bits that flip in a journal at once, within this many bytes of the end of its kept part: in the last records, or
/// somewhere before.
const JOURNAL_FLIPS: u64 = 3;
const ROTTEN_TAIL: [u64; 2] = [300, 8 << 10];

/// A disk that is lost, and how far its replacement is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replacing {
    /// The server is down until the views do without the brick.
    Down { brick: BrickId },
    /// The server runs without the brick, which an operator replaces.
    Asked { brick: BrickId, directory: String },
    /// Another brick has its place; the server opens that one at its next start.
    Recorded { directory: String },
}

impl World {
    /// Takes what an opening of a server's brick needs.
    ///
    /// # Errors
    ///
    /// There is no such disk, or it cannot be read.
    pub fn begin_open(&mut self, server: u32, directory: &str) -> Result<Opening> {
        let seed = self.random.number();
        match self.servers[server as usize].disks.get_mut(directory) {
            Some(slot) => slot.disk.begin_open(seed),
            None => Err(Error::Io { what: format!("{directory} is no directory") }),
        }
    }

    /// A server has opened a brick. `has_stopped`: it had stopped because of a failure, and lost what was not synced.
    pub fn opened(&mut self, server: u32, directory: &str, openings: u32, has_stopped: bool) {
        let Some(slot) = self.servers[server as usize].disks.get_mut(directory) else { return };
        let brick = slot.brick;
        slot.disk.set_openings(openings);
        if slot.disk.is_older_copy() {
            self.wrong.push(format!("an older copy of brick {} is served", brick.0));
        }
        if has_stopped {
            self.lose_memory(&BTreeSet::from([brick]));
        }
    }

    /// A brick of this run, for a pool.
    pub fn brick_info(&self, server: u32, brick: BrickId, directory: String, pool: String) -> BrickInfo {
        BrickInfo {
            brick,
            directory,
            pool,
            weight: 1 << 30,
            server: ServerId(server + 1),
            incarnation: Incarnation(1),
            openings: 0,
            begun: 0,
            restored: false,
            unopened: false,
        }
    }

    /// Makes a brick on a new disk.
    ///
    /// # Errors
    ///
    /// The brick cannot be made.
    pub fn make_brick(&mut self, server: u32, directory: String, pool: String) -> Result<BrickInfo> {
        self.bricks_made += 1;
        let brick = BrickId(self.bricks_made);
        let disk = Disk::new(Identity::new(brick, "c", self.settings.workload.brick))?;
        self.servers[server as usize].disks.insert(directory.clone(), Slot { brick, disk });
        Ok(self.brick_info(server, brick, directory, pool))
    }

    /// True if a server's start failed because of a disk, about which an operator has done something now.
    pub fn is_disk_at_fault(&mut self, server: u32, error: &Error) -> bool {
        let own = &mut self.servers[server as usize];
        let disks = || own.disks.values();
        let (is_dead, has_failed) = (own.is_dead(), disks().any(|slot| slot.disk.take_failed()));
        let is_full = matches!(error, Error::NoSpace { .. }) && disks().any(|slot| slot.disk.is_taken());
        if is_full {
            self.report.count("starts that found no room at all");
            disks().for_each(|slot| slot.disk.empty());
        }
        let is_refused = matches!(error, Error::Damaged { .. });
        let put_back = own.disks.values_mut().map(|slot| is_refused && slot.disk.put_back_newer());
        let newer = put_back.filter(|is_put_back| *is_put_back).count();
        self.report.add("bricks that were refused as older copies", newer as u64);
        is_dead || has_failed || is_full || newer > 0
    }

    /// Another user of a disk takes its space for a while.
    pub fn fill_one(&mut self, brick: BrickId) {
        let (taken, time) = (self.random.once_in(2), self.delay(FULL_MAX));
        trace!(self, "the disk of brick {} is full for {time}, {}", brick.0, if taken { "wholly" } else { "nearly" });
        self.report.count(if taken { "fault: full disk without any room" } else { "fault: full disk" });
        self.disk(brick).into_iter().for_each(|disk| disk.fill(taken));
        self.after(time, Event::DiskHeals { brick });
    }

    pub fn fail_one(&mut self, brick: BrickId) {
        let after = self.random.below(10);
        trace!(self, "a sync of brick {} is to fail after {after}", brick.0);
        self.report.count("fault: failed sync");
        self.disk(brick).into_iter().for_each(|disk| disk.fail_sync(after));
    }

    /// Copies a disk, or puts the copy in its place.
    pub fn older_copy(&mut self, brick: BrickId) {
        let seed = self.random.number();
        let (Some(server), Some(seen)) = (self.server_with(brick), self.openings_seen(brick)) else { return };
        let Some(disk) = self.disk(brick) else { return };
        if !disk.has_copy() {
            disk.copy(Survivors::Seeded(seed));
            return trace!(self, "the disk of brick {} is copied", brick.0);
        }
        if !disk.is_copy_older_than(seen) {
            return;
        }
        self.kill(server);
        trace!(self, "the disk of brick {} is put back as it was when it was copied", brick.0);
        self.report.count("fault: an older copy of a disk");
        self.disk(brick).into_iter().for_each(Disk::put_back_older);
    }

    /// The openings of a brick that the cluster has recorded.
    fn openings_seen(&self, brick: BrickId) -> Option<u32> {
        let registry = Registry::new(Arc::new(AtHand(self.store.clone())));
        let all = registry.bricks().unwrap_or_default();
        all.into_iter().find(|info| info.brick == brick).map(|info| info.openings)
    }

    /// Kills a server and keeps it down until views exclude it. If no view needs the brick then, its disk is lost.
    pub fn lose_disk(&mut self, brick: BrickId) {
        let (Some(server), Some(_)) = (self.server_with(brick), self.openings_seen(brick)) else { return };
        if !self.servers[server as usize].runs || !self.replacing.is_empty() {
            return;
        }
        trace!(self, "the disk of brick {} may be lost", brick.0);
        self.end_server(server);
        self.replacing.insert(server, Replacing::Down { brick });
        let lease = LEASE.as_micros() as Micros;
        let delay = 2 * lease + self.delay(3 * lease);
        self.after(delay, Event::Start { server });
    }

    /// The directories of bricks that a server starts without: of a disk that is lost, if no view needs it.
    pub fn left_out(&mut self, server: u32) -> Vec<String> {
        match self.replacing.get(&server).cloned() {
            Some(Replacing::Asked { directory, .. }) => vec![directory],
            Some(Replacing::Down { brick }) if self.is_needed(brick) => {
                self.replacing.remove(&server);
                Vec::new()
            }
            Some(Replacing::Down { brick }) => self.take_disk(server, brick).into_iter().collect(),
            Some(Replacing::Recorded { .. }) | None => Vec::new(),
        }
    }

    fn is_needed(&self, brick: BrickId) -> bool {
        let Ok(ring) = self.ring() else { return true };
        let views = |number| ring.view(number).into_iter().chain(ring.opened(number));
        let has = |number: u32| views(PartitionNumber(number)).any(|view| view.all().any(|one| one.brick == brick));
        (0..ring.views.len() as u32).any(has)
    }

    fn take_disk(&mut self, server: u32, brick: BrickId) -> Option<String> {
        let disks = &mut self.servers[server as usize].disks;
        let directory = disks.iter().find(|(_, slot)| slot.brick == brick).map(|(directory, _)| directory.clone())?;
        disks.remove(&directory);
        trace!(self, "the disk of brick {} is lost", brick.0);
        self.report.count("fault: a disk that is lost");
        self.lose_memory(&BTreeSet::from([brick]));
        self.replacing.insert(server, Replacing::Asked { brick, directory: directory.clone() });
        Some(directory)
    }

    /// An operator replaces a lost brick by a new one at its server, which serves now.
    pub fn replace_lost(&mut self, server: u32) {
        let own = &self.servers[server as usize];
        let Some(node) = own.node.clone() else { return };
        match self.replacing.get(&server).cloned() {
            Some(Replacing::Asked { brick, directory }) => {
                let new = format!("{directory}-{}", own.boot);
                let call = BrickReplace { brick: directory, directory: new.clone(), journal_mib: JOURNAL_MIB };
                self.order(server, node, call.into(), move |world, reply| world.replaced(server, brick, new, reply));
            }
            Some(Replacing::Recorded { directory }) if own.disks.contains_key(&directory) => {
                self.replacing.remove(&server);
            }
            _ => {}
        }
    }

    /// The outcome of an order to replace a brick: the record decides, since a reply can be lost.
    fn replaced(&mut self, server: u32, old: BrickId, directory: String, reply: &str) {
        trace!(self, "the order to replace brick {} is answered {reply}", old.0);
        if !self.is_placed(old) {
            return self.open_new_brick(server);
        }
        // The coordinator may execute the order yet, so the new disk is kept.
        let boot = self.servers[server as usize].boot;
        self.later(LATE_MAX, move |world| world.give_up_order(server, boot, old, &directory));
    }

    /// The coordinator executes the order of that process no more. If it has not done so, its disk is of no use.
    fn give_up_order(&mut self, server: u32, boot: u64, old: BrickId, directory: &str) {
        if self.servers[server as usize].boot != boot {
            // The process that was started since has an order of its own.
            return;
        }
        if !self.is_placed(old) {
            return self.open_new_brick(server);
        }
        self.servers[server as usize].disks.remove(directory);
        let delay = self.delay(REPLACE_AGAIN_MAX);
        self.later(delay, move |world| {
            if world.servers[server as usize].boot == boot {
                world.replace_lost(server);
            }
        });
    }

    fn is_placed(&self, brick: BrickId) -> bool {
        self.ring().is_ok_and(|ring| ring.is_placed(brick))
    }

    /// An order has replaced a lost brick, or it held nothing. A server opens a new brick at its next start.
    fn open_new_brick(&mut self, server: u32) {
        let own = &self.servers[server as usize];
        let Some(node) = &own.node else { return };
        let is_new = |slot: &Slot| self.is_placed(slot.brick) && node.open_brick(slot.brick).is_none();
        let new = own.disks.iter().find(|(_, slot)| is_new(slot)).map(|(directory, _)| directory.clone());
        let Some(directory) = new else {
            // The brick held nothing, or the server has opened the one of an earlier order.
            self.replacing.remove(&server);
            return;
        };
        self.report.count("bricks that were replaced");
        self.replacing.insert(server, Replacing::Recorded { directory });
        self.stop(server);
    }

    /// Gives an order to a server's control interface, on a thread of its own.
    fn order(
        &mut self,
        server: u32,
        node: Arc<Node>,
        call: ControlRequest,
        then: impl FnOnce(&mut World, &str) + 'static,
    ) {
        let Ok(request) = serde_json::to_string(&call) else { return };
        let thread = self.threads.add(Owner::Server(server), move || {
            let reply = node.control(&Peer::Local { uid: 0 }, &request);
            drop(node);
            threads::in_world(move |world: &mut World| then(world, &reply));
        });
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }

    /// Flips a bit, makes a sector unreadable or misdirects a write, on a disk whose other copies are all healthy:
    /// damage to all copies is data loss.
    pub fn rot(&mut self, brick: BrickId) {
        let Ok(ring) = self.ring() else { return };
        let is_even = |number: PartitionNumber| {
            let (placed, complete) = (ring.placed(number), &self.complete[number.0 as usize]);
            !placed.contains(&brick) || placed.len() > 1 && placed.iter().all(|one| complete.contains(one))
        };
        // A failed sync takes data that is not on the disk yet, and a process that dies takes the other copy out of the
        // view: either would be a second fault.
        let is_to_fail =
            self.servers.iter().flat_map(|server| server.disks.values()).any(|slot| slot.disk.is_to_fail());
        let is_second = self.rotten.is_some() || !self.replacing.is_empty() || is_to_fail;
        // A server runs without a brick that it could not open, if nothing is placed on it. No pass comes there.
        let node = self.server_with(brick).and_then(|server| self.servers[server as usize].node.as_ref());
        let is_open = node.is_some_and(|node| node.open_brick(brick).is_some());
        let mut numbers = (0..self.complete.len() as u32).map(PartitionNumber);
        if is_second || !is_open || !self.is_nothing_missing() || !numbers.all(is_even) {
            return;
        }
        let goes_astray = self.random.once_in(2);
        let random = &mut self.random;
        let slots = self.servers.iter_mut().flat_map(|server| server.disks.values_mut());
        let Some(disk) = slots.into_iter().find(|slot| slot.brick == brick).map(|slot| &slot.disk) else { return };
        let how = if goes_astray {
            disk.misdirect();
            "fault: the next write is misdirected"
        } else {
            let Some((path, at)) = disk.data_byte(random) else { return };
            let is_readable = !random.once_in(3);
            if is_readable {
                disk.flip_bits(&path, at, 1 << random.below(8));
            } else {
                disk.spoil(&path, at);
            }
            if is_readable { "fault: a flipped bit" } else { "fault: an unreadable sector" }
        };
        trace!(self, "brick {} rots: {how}", brick.0);
        self.report.count(how);
        (self.rotten, self.scrubs_before) = (Some(brick), self.scrubs_asked);
        let delay = self.delay(SCRUB_MAX);
        self.after(delay, Event::Scrub { brick });
    }

    /// True if no data is written with one copy only.
    fn is_nothing_missing(&self) -> bool {
        let is_away = |server: &crate::simulator::world::Server| server.node.is_none() || server.is_to_restart;
        let Ok(ring) = self.ring() else { return false };
        let is_whole = |view: &map::View| view.whole && view.opened && view.learners.is_empty();
        let is_paused = self.paused.values().any(|until| *until > self.now);
        !is_paused && !self.servers.iter().any(is_away) && ring.views.iter().all(is_whole)
    }

    /// Flips bits in records that the brick itself no longer needs, or makes a sector of them unreadable.
    pub fn rot_journal(&mut self, id: BrickId) {
        let Some(server) = self.server_with(id) else { return };
        let Some(brick) = self.servers[server as usize].node.as_ref().and_then(|node| node.open_brick(id)) else {
            return;
        };
        // Records that are read lie near the end.
        let Some((path, part)) = brick.kept_journal().pop() else { return };
        drop(brick);
        let near = ROTTEN_TAIL[self.random.below(2) as usize];
        let sectors = part.start.div_ceil(SECTOR)..part.end / SECTOR;
        let spoils = self.random.below(3) == 0 && !sectors.is_empty();
        let (back, mask) = (self.random.number(), self.random.number());
        let Some(disk) = self.disk(id) else { return };
        if spoils {
            let at = sectors.end - 1 - back % (sectors.end - sectors.start).min(near.div_ceil(SECTOR));
            disk.spoil(&path, at * SECTOR);
            trace!(self, "a sector of {path} of brick {} cannot be read, from offset {}", id.0, at * SECTOR);
            return self.report.count("fault: a journal with an unreadable sector");
        }
        for flip in 0..JOURNAL_FLIPS {
            let back = back.rotate_right(20 * flip as u32) % (part.end - part.start).min(near);
            disk.flip_bits(&path, part.end - 1 - back, 1 << (mask >> (8 * flip) & 7));
        }
        trace!(self, "{path} of brick {} rots before offset {}", id.0, part.end);
        self.report.count("fault: a journal that rots");
    }

    /// Has the server of a damaged brick scrub it, until a pass finds nothing.
    pub fn scrub(&mut self, brick: BrickId) {
        if self.rotten != Some(brick) {
            return;
        }
        self.after(SCRUB_AGAIN, Event::Scrub { brick });
        let Some(server) = self.server_with(brick) else { return };
        let Some(node) = self.servers[server as usize].node.clone() else { return };
        let Ok(request) = serde_json::to_string(&PeerRequest::from(ServerStatus {})) else { return };
        let directory = self.servers[server as usize].disks.iter().find(|(_, slot)| slot.brick == brick);
        let Some(directory) = directory.map(|(directory, _)| directory.clone()) else { return };
        let asked = self.scrubs_asked;
        let thread = self.threads.add(Owner::Server(server), move || {
            let report: Option<PeerReply<ServerReport>> = parsed(&node.control(&Peer::Local { uid: 0 }, &request));
            let rows = report.map(|report| report.reply.bricks).unwrap_or_default();
            let figures = rows.into_iter().find(|row| row.brick == brick).and_then(|row| row.figures);
            let Some(scrub) = figures.map(|figures| figures.scrub) else { return };
            if scrub.state == ScrubState::Runs {
                return;
            }
            // A pass that has ended early leaves an error, and `last` is the one before.
            let last = scrub.last.filter(|_| scrub.error.is_none());
            let is_clean = last
                .is_some_and(|last| (last.pass.mended, last.pass.damaged) == (0, 0) && last.pass.left_out.is_none());
            let call = ControlRequest::from(ScrubStart { brick: Some(directory), volume: None });
            let is_done = threads::in_world(move |world: &mut World| world.scrubbed(brick, is_clean, asked));
            if let (Some(false), Ok(call)) = (is_done, serde_json::to_string(&call)) {
                let reply = serde_json::from_str(&node.control(&Peer::Local { uid: 0 }, &call));
                if let Ok(ControlReply::<serde_json::Value>::Ok(_)) = reply {
                    threads::in_world(move |world: &mut World| world.scrubs_asked += 1);
                }
            }
        });
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }

    /// A pass over a brick has ended, or none has begun; `asked` is the number of passes that had been asked for before
    /// the brick's server was asked for the last one. True if the brick is healthy: two passes were ordered after the
    /// damage. When the first one comes by, the damaged block may lie in the journal as well, which is read instead, or the
    /// pass may not have begun, and the last one is from before.
    fn scrubbed(&mut self, brick: BrickId, is_clean: bool, asked: u32) -> bool {
        let went_astray = self.disk(brick).is_some_and(|disk| disk.take_astray());
        self.report.add("fault: a misdirected write", u64::from(went_astray));
        if went_astray {
            trace!(self, "a write of brick {} was misdirected", brick.0);
            self.scrubs_before = self.scrubs_asked;
        }
        let is_healthy = is_clean && self.rotten == Some(brick) && asked > self.scrubs_before + 1;
        if is_healthy {
            trace!(self, "nothing of brick {} is damaged any more", brick.0);
            (self.rotten, self.mended_at) = (None, self.now);
        }
        is_healthy
    }
}

fn parsed<T: DeserializeOwned>(reply: &str) -> Option<T> {
    match serde_json::from_str(reply) {
        Ok(ControlReply::Ok(reply)) => Some(reply),
        _ => None,
    }
}
