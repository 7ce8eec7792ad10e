//! Orders to the process that has a vDisk open, through files in its directory: the volume carries them, whatever machine
//! the process is on.
//!
//! An order is a file in `orders`; the owner takes it by removing it, and puts the answer beside it.

use crate::catalogue::{Catalogue, ORDERS};
use crate::disk::{Disk, Holder, Settings};
use crate::format::Record;
use crate::layer::absent_is_fine;
use crate::scrub::{Scrubbed, Throttle, scrub};
use crate::store::Store;
use hekate_proto::{Condition, Error, InodeId, Result, wire_enum, wire_struct};
use std::time::Duration;

/// Suffix of an answer's name.
const ANSWER: &str = ".answer";
/// Time between two looks for an answer.
const PAUSE: Duration = Duration::from_millis(50);
/// How long an owner may take to take an order. Once taken it is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

wire_enum! {
    /// What an owner is asked to do.
    pub enum Order {
        1 = Snapshot { name: String, labels: Vec<(String, String)> },
        2 = RollBack { snapshot: String },
        3 = MakeTemplate,
        4 = Resize { size: u64 },
        5 = Scrub { bytes_per_second: u64 },
        6 = Resume,
    }
}

wire_struct! {
    /// What came of it.
    pub struct Answer {
        pub error: Option<Error>,
        /// Of a scrub: bytes that were copied, layers that were merged and removed.
        pub moved: u64,
        pub merged: u64,
        pub removed: u64,
    }
}

impl Record for Order {
    const KIND: u8 = 4;
    const NAME: &'static str = "an order";
}

impl Record for Answer {
    const KIND: u8 = 5;
    const NAME: &'static str = "an answer";
}

/// Carries out an order on a vDisk that this session has open.
///
/// # Errors
/// Those of the order.
pub fn carry_out(catalogue: &Catalogue, disk: &Disk, order: &Order) -> Result<Scrubbed> {
    let done = |result: Result<()>| result.map(|()| Scrubbed::default());
    match order {
        Order::Snapshot { name, labels } => done(disk.snapshot(name, labels.clone())),
        Order::RollBack { snapshot } => done(disk.roll_back(catalogue, snapshot)),
        Order::MakeTemplate => done(disk.make_template()),
        Order::Resize { size } => done(disk.resize(*size)),
        Order::Scrub { bytes_per_second } => scrub(catalogue, disk, &Throttle::new(*bytes_per_second)),
        Order::Resume => done(disk.resume()),
    }
}

/// Carries out an order: here if nobody has the vDisk open, else by its owner.
///
/// # Errors
/// Those of the order; `Unavailable`, which names the owner, if it does not answer.
pub fn order(catalogue: &Catalogue, name: &str, who: &str, order: &Order) -> Result<Scrubbed> {
    loop {
        let Some(holder) = catalogue.info(name)?.holder else {
            let settings = Settings { background: false, ..Settings::default() };
            let disk = match Disk::open(catalogue, name, who, settings) {
                // Another process has opened it meanwhile.
                Err(Error::Unavailable { .. }) if catalogue.info(name)?.holder.is_some() => continue,
                opened => opened?,
            };
            let done = carry_out(catalogue, &disk, order);
            let closed = disk.close();
            return done.and_then(|done| closed.map(|()| done));
        };
        if let Some(done) = order_by(catalogue, name, &holder, order)? {
            return Ok(done);
        }
    }
}

/// Has the owner carry out an order. `None`: it has closed the vDisk, and did not take the order before.
fn order_by(catalogue: &Catalogue, name: &str, holder: &Holder, order: &Order) -> Result<Option<Scrubbed>> {
    let store = &**catalogue.store();
    let (directory, _) = catalogue.disk(name)?;
    let orders = store.find(directory, ORDERS)?;
    let id = format!("{:016x}", store.random()?);
    store.put(orders, &id, order.seal(), Condition::Absent)?;
    let begun = hekate_threads::now();
    loop {
        match store.fetch(orders, &format!("{id}{ANSWER}")) {
            Err(Error::NotFound) => {}
            found => {
                let answer = Answer::unseal(&found?)?;
                absent_is_fine(store.remove(orders, &format!("{id}{ANSWER}")))?;
                let Answer { error, moved, merged, removed } = answer;
                return error.map_or(Ok(Some(Scrubbed { moved, merged, removed })), Err);
            }
        }
        if hekate_threads::elapsed(begun) > PATIENCE && store.find(orders, &id).is_ok() {
            // If the owner takes it now, the removal fails and its answer is waited for.
            if store.remove(orders, &id).is_ok() {
                let what = format!(
                    "vDisk {name} is open at {}, which did not take the order within {} s; is it alive?",
                    holder.who,
                    PATIENCE.as_secs()
                );
                return Err(Error::Unavailable { what });
            }
        }
        if store.holder(store.find(directory, crate::catalogue::OWNER)?)?.is_none()
            && matches!(store.find(orders, &format!("{id}{ANSWER}")), Err(Error::NotFound))
        {
            return match store.remove(orders, &id) {
                Err(Error::NotFound) => Err(Error::Unavailable {
                    what: format!(
                        "{} took the order and has closed vDisk {name} without an answer; see: hekate vdisk show",
                        holder.who
                    ),
                }),
                removed => removed.map(|()| None),
            };
        }
        hekate_threads::sleep(PAUSE);
    }
}

/// The orders of a vDisk that this session has open.
pub struct Orders {
    directory: InodeId,
    /// The directory's change counter when there was nothing to do.
    seen: Option<u64>,
}

/// An order that its owner has taken and has to answer.
#[derive(Debug, Clone)]
pub struct Taken {
    directory: InodeId,
    name: String,
    pub order: Order,
}

impl Orders {
    /// # Errors
    /// Those of the store.
    pub fn of(catalogue: &Catalogue, disk: &Disk) -> Result<Self> {
        Ok(Self { directory: catalogue.store().find(disk.directory(), ORDERS)?, seen: None })
    }

    /// Takes the orders that have come. One that cannot be read is answered with why.
    ///
    /// # Errors
    /// Those of the store, if none could be taken: what was taken has to be answered, so errors behind it wait.
    pub fn take(&mut self, store: &dyn Store) -> Result<Vec<Taken>> {
        let change = store.change_of(self.directory)?;
        let mut taken = Vec::new();
        if self.seen == Some(change) {
            return Ok(taken);
        }
        match self.take_all(store, &mut taken) {
            Ok(()) => self.seen = Some(change),
            Err(error) if taken.is_empty() => return Err(error),
            Err(_) => {}
        }
        Ok(taken)
    }

    fn take_all(&self, store: &dyn Store, taken: &mut Vec<Taken>) -> Result<()> {
        for name in store.list(self.directory)? {
            if name.ends_with(ANSWER) {
                continue;
            }
            let order = Order::unseal(&store.fetch(self.directory, &name)?);
            match store.remove(self.directory, &name) {
                // It was given up.
                Err(Error::NotFound) => continue,
                removed => removed?,
            }
            match order {
                Ok(order) => taken.push(Taken { directory: self.directory, name, order }),
                Err(error) => put_answer(store, self.directory, &name, Err(error))?,
            }
        }
        Ok(())
    }
}

impl Taken {
    /// Tells what came of the order to whom gave it.
    ///
    /// # Errors
    /// Those of the store.
    pub fn answer(self, store: &dyn Store, outcome: Result<Scrubbed>) -> Result<()> {
        put_answer(store, self.directory, &self.name, outcome)
    }
}

fn put_answer(store: &dyn Store, directory: InodeId, name: &str, outcome: Result<Scrubbed>) -> Result<()> {
    let (error, done) = match outcome {
        Ok(done) => (None, done),
        Err(error) => (Some(error), Scrubbed::default()),
    };
    let Scrubbed { moved, merged, removed } = done;
    let answer = Answer { error, moved, merged, removed };
    store.put(directory, &format!("{name}{ANSWER}"), answer.seal(), Condition::Always).map(drop)
}
