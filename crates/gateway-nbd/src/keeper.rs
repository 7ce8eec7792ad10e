//! What a door does beside its connections: orders to the vDisks that are open, and scrubs when much was overwritten.

use crate::exports::Exports;
use hekate_proto::{Error, Result};
use hekate_vdisk::orders::{Order, Orders, carry_out};
use hekate_vdisk::scrub::{Scrubbed, Throttle, scrub};
use hekate_vdisk::{Disk, DiskKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Looks after the open vDisks until `stops`.
pub fn keep(exports: &Arc<Exports>, stops: &AtomicBool) {
    let mut orders: BTreeMap<String, (Disk, Orders)> = BTreeMap::new();
    let (mut filled, mut confirmed) = (Instant::now(), Instant::now());
    while !stops.load(Ordering::Acquire) {
        let open = exports.open_disks();
        orders.retain(|name, (disk, _)| open.iter().any(|other| other.name() == name && other.is_same(disk)));
        for disk in open.iter().filter(|disk| disk.has_token() && !disk.has_ended()) {
            if let Err(error) = answer(exports, disk, &mut orders) {
                log::warn!("vDisk {}: orders cannot be read: {error}", disk.name());
                orders.remove(disk.name());
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
            open.iter().filter(|disk| !disk.is_read_only() && is_sparse(disk)).for_each(|disk| tidy(exports, disk));
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

fn answer(exports: &Exports, disk: &Disk, orders: &mut BTreeMap<String, (Disk, Orders)>) -> Result<()> {
    let catalogue = exports.catalogue();
    let (_, orders) = match orders.entry(disk.name().into()) {
        std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
        std::collections::btree_map::Entry::Vacant(place) => place.insert((disk.clone(), Orders::of(catalogue, disk)?)),
    };
    orders.answer(&**catalogue.store(), |order| execute(exports, disk, order))
}

fn execute(exports: &Exports, disk: &Disk, order: &Order) -> Result<Scrubbed> {
    let is_under_clients = matches!(order, Order::RollBack { .. } | Order::MakeTemplate);
    if is_under_clients && disk.record().kind == DiskKind::Disk {
        let name = disk.name();
        return Err(Error::invalid(format!("vDisk {name} is in use by NBD clients, which must disconnect first")));
    }
    let done = carry_out(exports.catalogue(), disk, order);
    match &done {
        Ok(_) => log::info!("vDisk {}: {order:?} is done", disk.name()),
        Err(error) => log::info!("vDisk {}: {order:?} is refused: {error}", disk.name()),
    }
    done
}

fn is_sparse(disk: &Disk) -> bool {
    let (live, written) = disk.fill();
    written > SCRUB_BLOCKS && live * 2 < written
}

fn tidy(exports: &Exports, disk: &Disk) {
    match scrub(exports.catalogue(), disk, &Throttle::new(SCRUB_BYTES)) {
        Ok(done) if done.moved > 0 => log::info!("vDisk {}: a scrub has moved {} bytes", disk.name(), done.moved),
        Ok(_) => {}
        Err(error) => log::warn!("vDisk {}: a scrub ends early: {error}", disk.name()),
    }
}
