//! The coordinator of a running server. It follows a move of the records to another store.
//!
//! Invariants:
//! - A call is answered by the store that is in charge, or by a closed one whose reads are of the moment at which it was
//!   closed: no lease that a store gave outlives its closing by more than a lease.
//! - A revision is of one store: a watch after a revision of another one is answered with "read again", and what has
//!   changed since then with all keys.

use crate::coordination::etcd;
use crate::coordination::place::Place;
use crate::coordination::remote::RemoteCoordinator;
use crate::coordination::state_directory::{Membership, coordinator_file, is_coordinator};
use crate::hosting::keys::Keys;
use hekate_cluster::coordinator::moving::{self, Role};
use hekate_cluster::coordinator::{Changed, Expect, Known, Write};
use hekate_cluster::{
    CLOSED, Coordinator, EmbeddedCoordinator, FIRST_SERVER, Listing, Outcome, Registry, Revision, Watched,
};
use hekate_control::ControlReply;
use hekate_control::peer::{CoordinatorPlace, PeerReply, PeerRequest, PlaceOfCoordinator};
use hekate_etcd::EtcdCoordinator;
use hekate_proto::{Error, Result, ServerId};
use hekate_threads::{Mutex, RwLock, elapsed, now};
use hekate_transport::{Control, Endpoint};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time after which a server takes the process that moves the records for dead, and decides on the move.
const MOVER_PATIENCE: Duration = Duration::from_secs(8);
/// Time for the answer of another server.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// Longest watch of the store in this server's state directory, which nothing ends if the records move away.
const OWN_WATCH_MAX: Duration = Duration::from_secs(1);
const SETTLE_PAUSE: Duration = Duration::from_millis(200);
/// Bits of a revision that are the store's own; those above count the stores that this process has used.
const REVISION_BITS: u32 = 48;
/// Most stores that are followed one after another when a server starts.
const FOLLOWED_MAX: u32 = 8;

/// What opens a store.
pub struct Way {
    pub state: PathBuf,
    pub server: ServerId,
    /// The cluster's id; a coordinator of another cluster refuses each call.
    pub cluster: Option<String>,
    pub keys: Option<Keys>,
    /// Addresses of other servers.
    servers: Mutex<Vec<String>>,
}

/// A store that is in use.
struct Store {
    place: Place,
    coordinator: Arc<dyn Coordinator>,
    /// Number of the store in this process, from 0.
    number: u64,
    since: Instant,
}

/// The coordinator of a running server.
pub struct CurrentCoordinator {
    way: Way,
    store: RwLock<Arc<Store>>,
    /// The store in this server's state directory, also if it is closed: it answers others, who follow.
    held: Mutex<Option<Arc<EmbeddedCoordinator>>>,
    /// The move for which the store is closed, and since when this process knows it. Locked by the thread that follows.
    moved: Mutex<Option<(String, Instant)>>,
    watches_ended: AtomicBool,
}

impl Way {
    /// Opens the store at a place.
    fn open(&self, place: &Place, held: Option<&Arc<EmbeddedCoordinator>>) -> Result<Arc<dyn Coordinator>> {
        match place {
            Place::Own => match held {
                Some(held) => Ok(held.clone()),
                None => Err(Error::invalid(format!("{} holds no coordinator", self.state.display()))),
            },
            Place::At(address) | Place::Server(_, address) => {
                let endpoint = Endpoint::parse(address, self.keys.as_ref().map(Keys::context))?;
                Ok(Arc::new(RemoteCoordinator::new(endpoint, self.cluster.clone())))
            }
            Place::Etcd(endpoints) => {
                let credential = etcd::read_credential(&self.state)?;
                Ok(Arc::new(EtcdCoordinator::new(endpoints.clone(), &credential)?))
            }
        }
    }

    fn remember(&self, place: &Place) -> Result<()> {
        let Some(cluster) = self.cluster.clone() else { return Ok(()) };
        let servers = self.servers.lock().clone();
        Membership { server: self.server, cluster, coordinator: place.to_string(), servers }.write(&self.state)
    }
}

impl CurrentCoordinator {
    /// Opens the coordinator of a server's state directory, and follows moves that the server has missed.
    ///
    /// # Errors
    ///
    /// `Invalid` if the directory is no server's; `Unavailable` if the coordinator does not answer, or its records are
    /// being moved.
    pub fn open(state: &Path, keys: Option<Keys>) -> Result<Arc<Self>> {
        let file = coordinator_file(state);
        let held = match file.exists() && !is_coordinator(state) {
            true => Some(Arc::new(EmbeddedCoordinator::open(&file)?)),
            false => None,
        };
        let (server, cluster, place, servers) = match (Membership::read(state)?, &held) {
            (Some(membership), _) => {
                let place = Place::parse(&membership.coordinator, membership.server)?;
                (membership.server, Some(membership.cluster), place, membership.servers)
            }
            (None, Some(held)) => {
                let cluster = Registry::new(held.clone()).cluster()?;
                (FIRST_SERVER, Some(cluster), Place::Own, Vec::new())
            }
            (None, None) => {
                let state = state.display();
                let what = format!("there is no cluster in {state}; `hekate init` makes one, `hekate join` joins one");
                return Err(Error::invalid(what));
            }
        };
        let way = Way { state: state.into(), server, cluster, keys, servers: Mutex::new(servers) };
        let coordinator = way.open(&place, held.as_ref())?;
        let store = Arc::new(Store { place, coordinator, number: 0, since: now() });
        let current = Arc::new(Self {
            way,
            store: RwLock::new(store),
            held: Mutex::new(held),
            moved: Mutex::new(None),
            watches_ended: AtomicBool::new(false),
        });
        match current.settle_down() {
            Err(error) if current.find_elsewhere() => {
                log::info!("{error}; another server knows where the coordinator is: {}", current.place());
                current.settle_down()?;
            }
            settled => settled?,
        }
        Ok(current)
    }

    /// Asks other servers where the coordinator is, and goes over to it. True if it is elsewhere than was known.
    fn find_elsewhere(&self) -> bool {
        let asked = self.way.servers.lock().clone();
        asked.iter().any(|address| {
            let found = ask_for_place(address, &self.way).and_then(|said| self.take_place(&said));
            found.unwrap_or_else(|error| {
                log::debug!("{address} does not say where the coordinator is: {error}");
                false
            })
        })
    }

    fn take_place(&self, said: &PlaceOfCoordinator) -> Result<bool> {
        let place = Place::parse(&said.place, self.way.server)?;
        if place == self.place() {
            return Ok(false);
        }
        take_etcd(said, &self.way.state, self.way.keys.as_ref(), self.way.server)?;
        let coordinator = self.way.open(&place, self.held().as_ref())?;
        coordinator.get(CLOSED)?;
        self.way.remember(&place)?;
        self.replace(place, coordinator, now());
        Ok(true)
    }

    /// Remembers where other servers answer.
    ///
    /// # Errors
    ///
    /// `Io` if the state directory cannot be written.
    pub fn remember_servers(&self, addresses: Vec<String>) -> Result<()> {
        if *self.way.servers.lock() == addresses {
            return Ok(());
        }
        let _one_thread = self.moved.lock();
        *self.way.servers.lock() = addresses;
        self.way.remember(&self.place())
    }

    /// Waits until a store is in charge.
    fn settle_down(&self) -> Result<()> {
        let begun = now();
        loop {
            let store = self.store();
            let Some(by) = store.coordinator.get(CLOSED)? else { return Ok(()) };
            if self.follow(&store, &by)? {
                continue;
            }
            if elapsed(begun) > 2 * MOVER_PATIENCE {
                return Err(being_moved(&store.place, &by));
            }
            hekate_threads::sleep(SETTLE_PAUSE);
        }
    }

    /// The number of this server.
    pub fn server(&self) -> ServerId {
        self.way.server
    }

    /// The cluster's id, as the state directory has it.
    pub fn cluster(&self) -> Option<&String> {
        self.way.cluster.as_ref()
    }

    pub fn state(&self) -> &Path {
        &self.way.state
    }

    /// Where the coordinator is.
    pub fn place(&self) -> Place {
        self.store().place.clone()
    }

    /// How long this process has used this coordinator.
    pub fn in_use_for(&self) -> Duration {
        elapsed(self.store().since)
    }

    /// The store in this server's state directory; it may be closed.
    pub fn held(&self) -> Option<Arc<EmbeddedCoordinator>> {
        self.held.lock().clone()
    }

    /// The store in this server's state directory, which is made if there is none.
    ///
    /// # Errors
    ///
    /// Those of the file.
    pub fn hold(&self) -> Result<Arc<EmbeddedCoordinator>> {
        let mut held = self.held.lock();
        if let Some(held) = &*held {
            return Ok(held.clone());
        }
        let made = Arc::new(EmbeddedCoordinator::create(&coordinator_file(&self.way.state))?);
        *held = Some(made.clone());
        Ok(made)
    }

    /// The store in use.
    pub fn in_use(&self) -> Arc<dyn Coordinator> {
        self.store().coordinator.clone()
    }

    /// Opens another store, without using it.
    ///
    /// # Errors
    ///
    /// Those of opening it.
    pub fn open_at(&self, place: &Place) -> Result<Arc<dyn Coordinator>> {
        if let Place::Etcd(_) = place {
            self.get_etcd_credential()?;
        }
        self.way.open(place, self.held().as_ref())
    }

    fn store(&self) -> Arc<Store> {
        self.store.read().clone()
    }

    fn get_etcd_credential(&self) -> Result<()> {
        let Some(keys) = &self.way.keys else { return Ok(()) };
        let registry = Registry::of(self.in_use(), self.way.server);
        etcd::refresh_credential(&self.way.state, &registry, keys.seal()).map(|_| ())
    }

    /// Uses the same store at other addresses, or with another certificate.
    ///
    /// # Errors
    ///
    /// Those of opening it.
    pub fn reopen(&self, place: Place) -> Result<()> {
        let _one_thread = self.moved.lock();
        let coordinator = self.way.open(&place, self.held().as_ref())?;
        self.way.remember(&place)?;
        let since = self.store().since;
        self.replace(place, coordinator, since);
        Ok(())
    }

    fn replace(&self, place: Place, coordinator: Arc<dyn Coordinator>, since: Instant) {
        let mut store = self.store.write();
        let next = Arc::new(Store { place, coordinator, number: store.number + 1, since });
        let before = std::mem::replace(&mut *store, next);
        drop(store);
        // The store of this directory may be used again: its watches are short.
        if before.place != Place::Own {
            before.coordinator.end_watches();
        }
        if self.watches_ended.load(Ordering::SeqCst) {
            self.in_use().end_watches();
        }
    }

    /// Finds out what has become of a store that is closed, and goes over to another one if that is in charge. Returns
    /// true if the call can be repeated.
    fn follow(&self, store: &Store, by: &str) -> Result<bool> {
        let closing = moving::parse_closing(by)?;
        if closing.other == moving::BACKUP {
            let what = "the cluster's records are being restored from a backup; if that was interrupted, repeat \
                        `hekate coordinator restore`";
            return Err(Error::Unavailable { what: what.into() });
        }
        let mut moved = self.moved.lock();
        if self.store().number != store.number {
            return Ok(true);
        }
        let place = Place::parse(&closing.other, self.way.server)?;
        match closing.role {
            Role::Source => {
                let since = match &*moved {
                    Some((id, since)) if *id == closing.id => *since,
                    _ => moved.insert((closing.id.clone(), now())).1,
                };
                if elapsed(since) >= MOVER_PATIENCE {
                    let decision = moving::settle(&closing.id, &*store.coordinator)?;
                    log::warn!("a move of the records to {place} has not ended, and was decided: {decision:?}");
                }
                Ok(store.coordinator.get(CLOSED)?.as_deref() != Some(by))
            }
            Role::Moved => {
                let other = self.open_at(&place)?;
                moving::open_target(&closing.id, &*other)?;
                self.go_over(store, place, other)
            }
            Role::Target => {
                let other = self.open_at(&place)?;
                let at_source = other.get(CLOSED)?.map(|value| moving::parse_closing(&value)).transpose()?;
                if at_source.is_some_and(|source| source.role == Role::Moved && source.id == closing.id) {
                    return moving::open_target(&closing.id, &*store.coordinator).map(|()| true);
                }
                self.go_over(store, place, other)
            }
        }
    }

    fn go_over(&self, from: &Store, place: Place, other: Arc<dyn Coordinator>) -> Result<bool> {
        self.way.remember(&place)?;
        log::info!("the cluster's records have moved from {} to {place}", from.place);
        self.replace(place, other, now());
        Ok(true)
    }

    /// Makes a call, and repeats it at another store if the records have moved there.
    fn write(&self, call: impl Fn(&dyn Coordinator) -> Result<Outcome>) -> Result<Outcome> {
        for _ in 0..FOLLOWED_MAX {
            let store = self.store();
            match call(&*store.coordinator)? {
                Outcome::Closed { by } if self.follow(&store, &by)? => {}
                Outcome::Closed { by } => return Err(being_moved(&store.place, &by)),
                outcome => return Ok(outcome),
            }
        }
        Err(Error::Unavailable { what: "the stores of the cluster's records refer to each other".into() })
    }
}

/// Asks a server where the coordinator is.
fn ask_for_place(address: &str, way: &Way) -> Result<PlaceOfCoordinator> {
    let endpoint = Endpoint::parse(address, way.keys.as_ref().map(Keys::context))?;
    let request: PeerRequest = CoordinatorPlace {}.into();
    let request = serde_json::to_string(&request).map_err(|e| Error::bug(e.to_string()))?;
    let answer = Control::new(endpoint, Some(ASK_LIMIT)).ask(&request)?;
    let unreadable = |e: serde_json::Error| Error::Protocol { what: format!("{address}: {e}") };
    match serde_json::from_str::<ControlReply<PeerReply<PlaceOfCoordinator>>>(&answer).map_err(unreadable)? {
        ControlReply::Ok(said) if way.cluster.as_ref() == Some(&said.cluster) => Ok(said.reply),
        ControlReply::Ok(said) => Err(Error::Denied { what: format!("{address} is of cluster {}", said.cluster) }),
        ControlReply::Error(refusal) => Err(Error::Unavailable { what: refusal.text }),
    }
}

/// Writes what lets this server into etcd, if the coordinator is there.
fn take_etcd(said: &PlaceOfCoordinator, state: &Path, keys: Option<&Keys>, server: ServerId) -> Result<()> {
    let (Some(text), Some(keys)) = (&said.etcd, keys) else { return Ok(()) };
    let info = serde_json::from_str(text).map_err(|e| Error::Protocol { what: format!("the record of etcd: {e}") })?;
    etcd::write_credential(state, &etcd::credential_for(&info, keys.seal(), server)?)
}

/// True if the coordinator of this server is elsewhere and does not answer, or its records are being moved: waiting may
/// help.
pub fn is_coordinator_away(state: &Path) -> bool {
    let Ok(Some(Membership { server, cluster, coordinator, .. })) = Membership::read(state) else { return false };
    let (keys, servers) = (Keys::read(state).ok(), Mutex::default());
    let way = Way { state: state.into(), server, cluster: Some(cluster), keys, servers };
    match Place::parse(&coordinator, server) {
        Ok(Place::Own) | Err(_) => false,
        Ok(place) => {
            let closed = way.open(&place, None).and_then(|store| store.get(CLOSED));
            matches!(closed, Ok(Some(_)) | Err(Error::Unavailable { .. }))
        }
    }
}

/// Takes over from a server where the coordinator is, for a server that knows it no more.
///
/// # Errors
///
/// `Unavailable` if the server does not answer; `Denied` if it is of another cluster.
pub fn take_place_from(address: &str, state: &Path) -> Result<()> {
    let none = || Error::invalid(format!("{} is of no server", state.display()));
    let membership = Membership::read(state)?.ok_or_else(none)?;
    let keys = Keys::read(state)?;
    let (server, cluster) = (membership.server, Some(membership.cluster.clone()));
    let way = Way { state: state.into(), server, cluster, keys: Some(keys), servers: Mutex::new(membership.servers) };
    let said = ask_for_place(address, &way)?;
    take_etcd(&said, state, way.keys.as_ref(), server)?;
    way.remember(&Place::parse(&said.place, server)?)
}

fn being_moved(place: &Place, by: &str) -> Error {
    let to = moving::parse_closing(by).map_or_else(|_| "another store".into(), |closing| closing.other);
    Error::Unavailable { what: format!("the cluster's records are being moved from {place} to {to}") }
}

fn tagged(number: u64, revision: Revision) -> Revision {
    Revision(number << REVISION_BITS | revision.0)
}

/// The store's own revision; `None` for one of another store.
fn untagged(number: u64, revision: Revision) -> Option<Revision> {
    (revision.0 >> REVISION_BITS == number).then_some(Revision(revision.0 & ((1 << REVISION_BITS) - 1)))
}

impl Coordinator for CurrentCoordinator {
    fn get(&self, key: &str) -> Result<Option<String>> {
        self.in_use().get(key)
    }

    fn list(&self, prefix: &str) -> Result<Listing> {
        let store = self.store();
        let Listing { pairs, revision } = store.coordinator.list(prefix)?;
        Ok(Listing { pairs, revision: tagged(store.number, revision) })
    }

    fn changes(&self, known: &[Known<'_>]) -> Result<Vec<Changed>> {
        let store = self.store();
        let own = |known: &Known<'_>| known.after.and_then(|after| untagged(store.number, after));
        let known: Vec<_> = known.iter().map(|known| Known { after: own(known), ..*known }).collect();
        let changes = store.coordinator.changes(&known)?.into_iter();
        Ok(changes.map(|part| Changed { revision: tagged(store.number, part.revision), ..part }).collect())
    }

    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        self.write(|coordinator| coordinator.transact(expect, writes))
    }

    fn keep(&self, key: &str, value: &str, lifetime: Duration) -> Result<Outcome> {
        self.write(|coordinator| coordinator.keep(key, value, lifetime))
    }

    fn release(&self, key: &str) -> Result<Outcome> {
        self.write(|coordinator| coordinator.release(key))
    }

    fn watch(&self, prefixes: &[&str], after: Revision, limit: Duration) -> Result<Watched> {
        let store = self.store();
        let Some(own) = untagged(store.number, after) else { return Ok(Watched::ReadAgain) };
        let limit = if store.place == Place::Own { limit.min(OWN_WATCH_MAX) } else { limit };
        match store.coordinator.watch(prefixes, own, limit) {
            Ok(Watched::Changed { keys, revision }) => {
                Ok(Watched::Changed { keys, revision: tagged(store.number, revision) })
            }
            Ok(Watched::Unchanged { revision }) => Ok(Watched::Unchanged { revision: tagged(store.number, revision) }),
            Err(_) if self.store().number != store.number => Ok(Watched::ReadAgain),
            other => other,
        }
    }

    fn end_watches(&self) {
        self.watches_ended.store(true, Ordering::SeqCst);
        self.in_use().end_watches();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_goes_on_after_the_records_have_come_back() {
        let state = std::env::temp_dir().join(format!("hekate-current-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&state);
        std::fs::create_dir_all(&state).unwrap();
        let held = EmbeddedCoordinator::create(&coordinator_file(&state)).unwrap();
        Registry::new(Arc::new(held)).create_cluster("c").unwrap();
        let current = CurrentCoordinator::open(&state, None).unwrap();
        let before = current.list("/").unwrap().revision;
        let other = Arc::new(EmbeddedCoordinator::create(&state.join("other.redb")).unwrap());
        current.replace(Place::At("unix:/other".into()), other, now());
        let (long, none) = (Duration::from_secs(30), &["/k"]);
        assert_eq!(current.watch(none, before, long).unwrap(), Watched::ReadAgain, "a revision of another store");
        current.replace(Place::Own, current.hold().unwrap(), now());
        let after = current.list("/").unwrap().revision;
        current.transact(&[], &[("/k", Some("1"))]).unwrap();
        let watched = current.watch(none, after, long).unwrap();
        assert!(matches!(&watched, Watched::Changed { keys, .. } if *keys == ["/k"]), "{watched:?}");
        drop(current);
        std::fs::remove_dir_all(&state).unwrap();
    }
}
