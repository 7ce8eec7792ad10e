//! Clients that share one vDisk: each opens it, or takes it away from another one, works with it, and gives it up.

mod examination;
mod owning;
mod reading;

use crate::history::disks::{Cell, DiskAnswer, DiskCallNumber, DiskOp};
use crate::simulator::servers::coordinator::AtHand;
use crate::simulator::settings::DiskSettings;
use crate::simulator::threads::{self, Owner};
use crate::simulator::world::{Event, World, trace};
use hekate_brick::storage::Random;
use hekate_client::Volume;
use hekate_cluster::Registry;
use hekate_proto::{Error, Result};
use hekate_vdisk::{Catalogue, Disk, Durability, VolumeStore};
use std::sync::Arc;
use std::time::Duration;

/// The only vDisk.
const NAME: &str = "d";
/// Pause after an attempt that failed.
const RETRY: Duration = Duration::from_millis(300);
/// Snapshots that a user keeps open.
const READERS_MAX: usize = 2;

/// A client's process, as a user of the vDisk.
struct User {
    client: u32,
    volume: Arc<Volume>,
    catalogue: Catalogue,
    settings: DiskSettings,
    /// The vDisk while it is open, with the call that opened it.
    open: Option<(Disk, DiskCallNumber)>,
    /// Snapshots that are open.
    readers: Vec<(String, Disk)>,
}

impl World {
    /// A client begins to use the vDisk.
    pub fn begin_disks(&mut self, client: u32, volume: Arc<Volume>) {
        let Some(settings) = self.settings.disks.clone() else { return };
        let examines = self.people[client as usize].examines;
        self.people[client as usize].is_at_work = true;
        let thread = self.threads.add(Owner::Client(client), move || {
            if let Some(mut user) = User::new(client, volume, settings) {
                match examines {
                    true => user.examine(),
                    false => user.work(),
                }
                let has_ended = user.volume.has_ended();
                // Before the world may end this thread's process.
                drop(user);
                threads::in_world(move |world: &mut World| world.leaves_work(client, has_ended));
            }
        });
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }

    /// A client has done its work, or its session has ended: then another process takes its place.
    fn leaves_work(&mut self, client: u32, has_ended: bool) {
        if !has_ended {
            self.people[client as usize].is_at_work = false;
            return;
        }
        trace!(self, "client {client} has lost its session");
        self.report.count("sessions that were taken for dead");
        // Not here: this thread is one of those that end.
        self.later(1, move |world| {
            world.end_client(client);
            world.begin_client(client);
        });
    }

    /// Takes one of the client's calls. False: it has made all of them.
    fn takes_call(&mut self, client: u32) -> bool {
        let person = &mut self.people[client as usize];
        let left = person.calls_left.checked_sub(1);
        person.calls_left = left.unwrap_or(0);
        left.is_some()
    }

    /// True if servers have ended the client's session, which it may not know yet.
    fn has_lost_session(&self, client: u32) -> bool {
        let session = self.people[client as usize].volume.as_ref().map(|volume| volume.session());
        let registry = Registry::new(Arc::new(AtHand(self.store.clone())));
        session.is_some_and(|session| registry.session(session).is_ok_and(|found| found.is_none()))
    }

    fn disk_call_ends(&mut self, number: DiskCallNumber, outcome: Result<DiskAnswer>, session_ended: bool) {
        let at = self.moment();
        let session_ended = session_ended || self.has_lost_session(self.disks.calls()[number].client);
        let (op, client) = (self.disks.calls()[number].op.clone(), self.disks.calls()[number].client);
        trace!(self, "client {client} done #{number} at {at}: {}", super::briefly(&outcome));
        let what = match &op {
            DiskOp::Open { steals: true } => "steal",
            DiskOp::Open { steals: false } => "open",
            DiskOp::Resume => "resume",
            DiskOp::Change { durable: true, .. } => "durable change",
            DiskOp::Change { durable: false, .. } => "change",
            DiskOp::Read => "read",
            DiskOp::Flush => "flush",
            DiskOp::Close => "close",
            DiskOp::Scrub => "scrub",
            DiskOp::Snapshot { .. } => "snapshot",
            DiskOp::DeleteSnapshot { .. } => "delete snapshot",
            DiskOp::ReadSnapshot { .. } => "read snapshot",
        };
        match &outcome {
            Ok(DiskAnswer::Cells(cells)) => {
                let bytes: Vec<u8> = cells.iter().flat_map(|(_, tag)| tag.to_le_bytes()).collect();
                self.note(&bytes);
                self.report.count(format!("vDisk: {what}"));
            }
            Ok(_) => self.report.count(format!("vDisk: {what}")),
            Err(Error::Lost { .. }) => self.report.count(format!("vDisk: {what} reports a loss")),
            Err(Error::Unavailable { what }) if what.contains(" is open at ") => {
                self.report.count("vDisk: open is refused");
            }
            Err(Error::SessionEnded) if !session_ended => {
                self.report.count(format!("vDisk: {what} of an old owner fails"))
            }
            Err(Error::Damaged { what: damage }) if !self.may_be_damaged() => {
                self.report.count(format!("vDisk: {what} finds damage"));
                self.disk_damage.push((number, damage.clone()));
            }
            Err(_) => self.report.count(format!("vDisk: {what} fails")),
        }
        self.disks.answer(number, at, outcome, session_ended);
    }
}

impl User {
    /// Opens the catalogue, and makes the vDisk unless another client has. `None`: the process ends.
    fn new(client: u32, volume: Arc<Volume>, settings: DiskSettings) -> Option<Self> {
        let durability = if settings.is_async { Durability::Async } else { Durability::Replicated };
        while !threads::is_dying() {
            let opened = VolumeStore::open(volume.clone()).and_then(|store| Catalogue::open(Arc::new(store)));
            let made = opened.and_then(|catalogue| {
                let catalogue = catalogue.with_segments(settings.segment_blocks);
                match catalogue.create(NAME, settings.size(), durability, Vec::new()) {
                    // There is one already.
                    Err(Error::Invalid { .. }) => {}
                    made => drop(made?),
                }
                Ok(catalogue)
            });
            match made {
                Ok(catalogue) => {
                    let (open, readers) = Default::default();
                    return Some(Self { client, volume, catalogue, settings, open, readers });
                }
                Err(error) if volume.has_ended() => {
                    let _ = error;
                    threads::in_world(move |world: &mut World| world.leaves_work(client, true));
                    return None;
                }
                Err(_) => hekate_threads::sleep(RETRY),
            }
        }
        None
    }

    /// Works until all calls are made, or the session has ended.
    fn work(&mut self) {
        let client = self.client;
        while threads::in_world(move |world: &mut World| world.takes_call(client)) == Some(true) {
            hekate_threads::sleep(Duration::from_micros(threads::below(self.settings.think_max)));
            match self.open.take() {
                None => self.step_outside(),
                Some((disk, number)) => self.step_inside(disk, number),
            }
            if self.volume.has_ended() {
                return;
            }
        }
        if let Some((disk, number)) = self.open.take() {
            self.call(Some(number), DiskOp::Close, || disk.close().map(|()| DiskAnswer::Done));
        }
    }

    /// What a client does that does not have the vDisk.
    fn step_outside(&mut self) {
        match threads::below(10) {
            0..=4 => self.open(false),
            5 | 6 => self.open(true),
            7 | 8 => self.read_snapshot(),
            _ => self.delete_snapshot(),
        }
    }

    /// Opens the vDisk. It is open once the answer is that this session is its owner.
    fn open(&mut self, steals: bool) {
        let (catalogue, settings) = (self.catalogue.clone(), self.settings.disk);
        let who = format!("client {}", self.client);
        let mut opened = None;
        let call = self.call(None, DiskOp::Open { steals }, || {
            let disk = match steals {
                true => Disk::steal(&catalogue, NAME, &who, settings),
                false => Disk::open(&catalogue, NAME, &who, settings),
            }?;
            let confirmed = confirmed(&disk)?;
            let read_only = disk.is_read_only();
            opened = Some(disk);
            Ok(DiskAnswer::Opened { confirmed, read_only })
        });
        match (opened, call) {
            (Some(disk), Some((number, Ok(_)))) => self.open = Some((disk, number)),
            (_, Some((_, Err(_)))) => hekate_threads::sleep(RETRY),
            _ => {}
        }
    }

    /// Makes a call that is recorded. `None`: the process has ended.
    fn call(
        &self,
        tenure: Option<DiskCallNumber>,
        op: DiskOp,
        act: impl FnOnce() -> Result<DiskAnswer>,
    ) -> Option<(DiskCallNumber, Result<DiskAnswer>)> {
        recorded(self.client, &self.volume, tenure, op, act)
    }

    /// All cells that are used.
    fn cells(&self) -> Vec<Cell> {
        self.settings.cells()
    }
}

/// Makes a call that is recorded. `None`: the process has ended.
fn recorded(
    client: u32,
    volume: &Volume,
    tenure: Option<DiskCallNumber>,
    op: DiskOp,
    act: impl FnOnce() -> Result<DiskAnswer>,
) -> Option<(DiskCallNumber, Result<DiskAnswer>)> {
    let number = threads::in_world(move |world: &mut World| {
        let at = world.moment();
        let number = world.disks.invoke(client, tenure, op.clone(), at);
        trace!(world, "client {client} begins #{number} at {at}: {}", super::briefly(&op));
        number
    })?;
    let outcome = act();
    let (answer, ended) = (outcome.clone(), volume.has_ended());
    threads::in_world(move |world: &mut World| world.disk_call_ends(number, answer, ended))?;
    Some((number, outcome))
}

/// Asks whether this session is the owner. Returns when the question was sent.
fn confirmed(disk: &Disk) -> Result<u64> {
    let at = threads::in_world(|world: &mut World| world.moment()).unwrap_or(0);
    disk.confirm_owner()?;
    Ok(at)
}

/// A generator of the thread's own.
fn random() -> Random {
    Random::new(threads::below(u64::MAX))
}
