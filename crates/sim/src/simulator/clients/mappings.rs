//! Clients that map one file shared, and add to the one word of it (`docs/coherence.md`, rules W1 to W11).
//!
//! The kernel is a few lines here: a page that a fault has read is added to until it is dropped, and is locked while it is
//! read or written back. What is stored at the servers is a number of the world: a write of it is one moment.

use crate::simulator::threads::{self, Owner};
use crate::simulator::world::{Event, World, trace};
use hekate_client::{Context, NameAt, Volume, Watcher};
use hekate_proto::{InodeId, ROOT};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The file that is mapped: it is always there, and nothing else writes it.
const FILE: InodeId = ROOT;
/// Additions of a client.
const ROUNDS: u32 = 60;
/// Pause before a locked page is looked at again.
const LOCKED: Duration = Duration::from_millis(1);
/// Longest pause between two additions, in µs.
const THINK_MAX: u64 = 40_000;

/// The page of a client's kernel.
#[derive(Debug, Clone, Copy)]
enum Page {
    Reading,
    There {
        word: u64,
        /// Additions that are not written back.
        dirty: u64,
    },
    WritingBack {
        word: u64,
        dirty: u64,
    },
}

/// The mapped file, and the pages of it.
#[derive(Debug, Default)]
pub struct Mapped {
    stored: u64,
    /// Additions that nobody was told are lost.
    kept: u64,
    pages: BTreeMap<u32, Page>,
}

/// What becomes of a touch of a page.
enum Touch {
    Done,
    Locked,
    /// The kernel asks the door: for the page, or whether it may be written back.
    Asks,
}

impl Mapped {
    fn add(&mut self, client: u32) -> Touch {
        match self.pages.get_mut(&client) {
            None => {
                self.pages.insert(client, Page::Reading);
                Touch::Asks
            }
            Some(Page::There { word, dirty }) => {
                (*word, *dirty, self.kept) = (*word + 1, *dirty + 1, self.kept + 1);
                Touch::Done
            }
            Some(_) => Touch::Locked,
        }
    }

    fn was_read(&mut self, client: u32, is_read: bool) {
        match is_read {
            true => self.pages.insert(client, Page::There { word: self.stored, dirty: 0 }),
            false => self.pages.remove(&client),
        };
    }

    fn begin_write_back(&mut self, client: u32, keeps: bool) -> Touch {
        match self.pages.get(&client).copied() {
            None => Touch::Done,
            Some(Page::There { dirty: 0, .. }) => {
                self.pages.retain(|of, _| keeps || *of != client);
                Touch::Done
            }
            Some(Page::There { word, dirty }) => {
                self.pages.insert(client, Page::WritingBack { word, dirty });
                Touch::Asks
            }
            Some(_) => Touch::Locked,
        }
    }

    /// Returns the additions that are lost.
    fn end_write_back(&mut self, client: u32, may: bool, keeps: bool) -> u64 {
        let Some(Page::WritingBack { word, dirty }) = self.pages.remove(&client) else { return 0 };
        if !may {
            self.kept -= dirty;
            return dirty;
        }
        self.stored = word;
        if keeps {
            self.pages.insert(client, Page::There { word, dirty: 0 });
        }
        0
    }

    /// What a client's kernel has not written back is lost with its door.
    pub fn client_died(&mut self, client: u32) {
        if let Some(Page::There { dirty, .. } | Page::WritingBack { dirty, .. }) = self.pages.remove(&client) {
            self.kept -= dirty;
        }
    }

    /// Complaints, once no client has a page any more.
    pub fn check(&self) -> Vec<String> {
        let Self { stored, kept, pages } = self;
        let is_wrong = stored != kept || !pages.is_empty();
        is_wrong
            .then(|| format!("the mapped word is {stored} after {kept} additions, pages {pages:?}"))
            .into_iter()
            .collect()
    }
}

impl World {
    /// A client begins to add to the mapped word.
    pub fn begin_mapping(&mut self, client: u32, volume: Arc<Volume>) {
        if !self.settings.workload.maps || self.people[client as usize].examines {
            return;
        }
        volume.pledges().watch(Arc::new(Kernel { client, volume: Arc::downgrade(&volume) }));
        self.people[client as usize].is_at_work = true;
        let thread = self.threads.add(Owner::Client(client), move || {
            work(client, &volume);
            drop(volume);
            threads::in_world(move |world: &mut World| world.people[client as usize].is_at_work = false);
        });
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }
}

fn work(client: u32, volume: &Volume) {
    let mut is_open = false;
    for _ in 0..ROUNDS {
        if threads::is_dying() {
            return;
        }
        if !is_open && volume.pledges().opened_to_write(FILE) {
            volume.pledges().pages_are_dropped(FILE);
        }
        is_open = true;
        add(client, volume);
        hekate_threads::sleep(Duration::from_micros(threads::below(THINK_MAX)));
        if threads::below(6) == 0 {
            write_back(client, volume, true);
        }
        if threads::below(10) == 0 {
            close(client, volume);
            is_open = false;
        }
    }
    if is_open {
        close(client, volume);
    }
}

fn close(client: u32, volume: &Volume) {
    write_back(client, volume, false);
    volume.pledging().closed_to_write(FILE);
}

fn add(client: u32, volume: &Volume) {
    while let Some(touch) = threads::in_world(move |world: &mut World| world.mapped.add(client)) {
        match touch {
            Touch::Done => return,
            Touch::Locked => hekate_threads::sleep(LOCKED),
            Touch::Asks => {
                let is_read = volume.pledging().fault(&Context::default(), FILE).is_ok();
                threads::in_world(move |world: &mut World| {
                    trace!(world, "client {client} reads the mapped page: {is_read}, {:?}", world.mapped);
                    world.report.count(if is_read { "mapping: a page is read" } else { "mapping: a fault fails" });
                    world.mapped.was_read(client, is_read);
                });
                if !is_read {
                    return;
                }
            }
        }
    }
}

/// `keeps`: the page stays.
fn write_back(client: u32, volume: &Volume, keeps: bool) {
    let begin = move |world: &mut World| world.mapped.begin_write_back(client, keeps);
    while let Some(touch) = threads::in_world(begin) {
        match touch {
            Touch::Done => return,
            Touch::Locked => hekate_threads::sleep(LOCKED),
            Touch::Asks => {
                let may = matches!(volume.pledging().may_write_back(&Context::default(), FILE), Ok(true));
                threads::in_world(move |world: &mut World| {
                    let lost = world.mapped.end_write_back(client, may, keeps);
                    trace!(world, "client {client} writes back the mapped page: {may}, {:?}", world.mapped);
                    world.report.count(if may { "mapping: a page is written back" } else { "mapping: EIO" });
                    world.report.add("mapping: additions that are reported as lost", lost);
                });
                return;
            }
        }
    }
}

/// A client's kernel: it drops the page when it is told to.
struct Kernel {
    client: u32,
    volume: Weak<Volume>,
}

impl Watcher for Kernel {
    fn forget_attributes(&self, _: &[InodeId]) {}
    fn expire(&self, _: &[InodeId]) {}
    fn forget_all_attributes(&self) {}
    fn forget_names(&self, _: &[NameAt]) {}
    fn forget_all_names(&self) {}
    fn forget_contents(&self, _: &[InodeId]) -> bool {
        true
    }
    fn forget_all_contents(&self) -> bool {
        true
    }
    fn drop_mapped(&self, file: InodeId, _: &dyn Fn()) {
        debug_assert_eq!(file, FILE);
        if let Some(volume) = self.volume.upgrade() {
            write_back(self.client, &volume, false);
        }
    }
    fn expect_contents(&self, _: Option<&[InodeId]>) {}
}
