//! What a door does beside its connections: orders to the vDisks that are open, and scrubs when much was overwritten.

use crate::exports::Exports;
use hekate_proto::{Error, Result};
use hekate_vdisk::orders::{Order, Orders, Taken, carry_out};
use hekate_vdisk::scrub::{Scrubbed, Throttle, scrub};
use hekate_vdisk::{Disk, DiskKind};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Time between two checks that the open vDisks are still this door's.
const CONFIRM_PAUSE: Duration = Duration::from_secs(1);
/// Time between two looks at how full segments are.
const FILL_PAUSE: Duration = Duration::from_secs(30);
/// A vDisk is scrubbed if fewer than half of these many blocks are in use.
const SCRUB_BLOCKS: u64 = 64 << 8;
/// Bytes a second that a scrub copies which nobody has asked for.
const SCRUB_BYTES: u64 = 32 << 20;

/// Looks after the open vDisks until the door stops.
pub struct Keeper {
    exports: Arc<Exports>,
    stops: Arc<AtomicBool>,
    orders: BTreeMap<String, (Disk, Orders)>,
    /// To the thread that scrubs, one vDisk after the other.
    scrubs: Sender<Scrub>,
    /// vDisks that the thread is to scrub without an order.
    due: Arc<Mutex<BTreeSet<String>>>,
}

/// A scrub that is due.
struct Scrub {
    disk: Disk,
    bytes_per_second: u64,
    /// The order for it, which is answered when it has ended.
    asked: Option<Taken>,
}

impl Keeper {
    pub fn new(exports: Arc<Exports>, stops: Arc<AtomicBool>) -> (Self, Scrubber) {
        let (scrubs, received) = channel();
        let due = Arc::<Mutex<BTreeSet<String>>>::default();
        let scrubber = Scrubber { exports: exports.clone(), stops: stops.clone(), received, due: due.clone() };
        (Self { exports, stops, orders: BTreeMap::new(), scrubs, due }, scrubber)
    }

    pub fn keep(mut self) {
        let (mut filled, mut confirmed) = (Instant::now(), Instant::now());
        while !self.stops.load(Ordering::Acquire) {
            let open = self.exports.open_disks();
            self.orders.retain(|name, (disk, _)| open.iter().any(|other| other.name() == name && other.is_same(disk)));
            for disk in open.iter().filter(|disk| disk.has_token() && !disk.has_ended()) {
                if let Err(error) = self.answer(disk) {
                    log::warn!("vDisk {}: orders cannot be read: {error}", disk.name());
                    self.orders.remove(disk.name());
                }
            }
            if confirmed.elapsed() >= CONFIRM_PAUSE {
                confirmed = Instant::now();
                // One that was taken away is not even read any more. Other errors are those of its clients.
                open.iter()
                    .filter(|disk| disk.has_token() && !disk.is_read_only())
                    .for_each(|disk| _ = disk.confirm_owner());
            }
            if filled.elapsed() >= FILL_PAUSE {
                filled = Instant::now();
                for disk in open.iter().filter(|disk| !disk.is_read_only() && is_sparse(disk)) {
                    if self.due.lock().insert(disk.name().into()) {
                        self.scrub(Scrub { disk: disk.clone(), bytes_per_second: SCRUB_BYTES, asked: None });
                    }
                }
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    fn answer(&mut self, disk: &Disk) -> Result<()> {
        let catalogue = self.exports.catalogue().clone();
        let (_, orders) = match self.orders.entry(disk.name().into()) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert((disk.clone(), Orders::of(&catalogue, disk)?))
            }
        };
        for taken in orders.take(&**catalogue.store())? {
            if let Order::Scrub { bytes_per_second } = taken.order {
                self.scrub(Scrub { disk: disk.clone(), bytes_per_second, asked: Some(taken) });
                continue;
            }
            let outcome = self.execute(disk, &taken.order);
            // The orders behind this one are taken already, and have to be answered all the same.
            if let Err(error) = taken.answer(&**catalogue.store(), outcome) {
                log::warn!("vDisk {}: an order is not answered: {error}", disk.name());
            }
        }
        Ok(())
    }

    fn execute(&self, disk: &Disk, order: &Order) -> Result<Scrubbed> {
        let is_under_clients = matches!(order, Order::RollBack { .. } | Order::MakeTemplate);
        if is_under_clients && disk.record().kind == DiskKind::Disk {
            let name = disk.name();
            return Err(Error::invalid(format!("vDisk {name} is in use by NBD clients, which must disconnect first")));
        }
        let done = carry_out(self.exports.catalogue(), disk, order);
        match &done {
            Ok(_) => log::info!("vDisk {}: {order:?} is done", disk.name()),
            Err(error) => log::info!("vDisk {}: {order:?} is refused: {error}", disk.name()),
        }
        done
    }

    fn scrub(&self, scrub: Scrub) {
        // The thread that scrubs outlives this one.
        let _ = self.scrubs.send(scrub);
    }
}

fn is_sparse(disk: &Disk) -> bool {
    let (live, written) = disk.fill();
    written > SCRUB_BLOCKS && live * 2 < written
}

/// Scrubs that are due.
pub struct Scrubber {
    exports: Arc<Exports>,
    stops: Arc<AtomicBool>,
    received: Receiver<Scrub>,
    due: Arc<Mutex<BTreeSet<String>>>,
}

impl Scrubber {
    /// Scrubs until the keeper is gone.
    pub fn work(self) {
        for Scrub { disk, bytes_per_second, asked } in &self.received {
            let Some(asked) = asked else {
                self.due.lock().remove(disk.name());
                // Another scrub may have been enough.
                if self.is_open(&disk) && is_sparse(&disk) {
                    let _ = self.scrub(&disk, bytes_per_second);
                }
                continue;
            };
            let done = match self.is_open(&disk) {
                true => self.scrub(&disk, bytes_per_second),
                false => {
                    Err(Error::Unavailable { what: format!("vDisk {} was closed meanwhile; try again", disk.name()) })
                }
            };
            if let Err(error) = asked.answer(&**self.exports.catalogue().store(), done) {
                log::warn!("vDisk {}: an order is not answered: {error}", disk.name());
            }
        }
    }

    /// True if clients have it open still.
    fn is_open(&self, disk: &Disk) -> bool {
        self.exports.open_disks().iter().any(|open| open.is_same(disk))
    }

    fn scrub(&self, disk: &Disk, bytes_per_second: u64) -> Result<Scrubbed> {
        let throttle = Throttle::until(bytes_per_second, self.stops.clone());
        let done = scrub(self.exports.catalogue(), disk, &throttle);
        match &done {
            Ok(done) if done.moved > 0 => log::info!("vDisk {}: a scrub has moved {} bytes", disk.name(), done.moved),
            Ok(_) => {}
            Err(error) => log::warn!("vDisk {}: a scrub ends early: {error}", disk.name()),
        }
        done
    }
}
