//! The doors of a server: opened and closed as the cluster's records say.

pub mod alone;
pub mod shown;

use crate::commands::{graph, translator};
use crate::paths::Paths;
use hekate_client::{OpenOptions, Volume};
use hekate_cluster::DoorInfo;
use hekate_proto::{Error, Result};
use hekate_server::{Node, write_private};
use hekate_transport::{Endpoint, Local};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks at the records.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a door that could not be opened is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
const STOP_PAUSE: Duration = Duration::from_millis(50);
/// Time after which the cluster's authority signs another certificate: long before the shortest lifetime of servers'
/// certificates, one day, is over.
const RENEW: Duration = Duration::from_secs(12 * 3600);

/// A kind of door.
pub trait Kind: Send + 'static {
    type Info: DoorInfo;
    type Door;

    /// Opens a door over a volume.
    ///
    /// # Errors
    ///
    /// Why it is not open.
    fn open(&self, server: &Here, name: &str, info: &Self::Info, volume: Arc<Volume>) -> Result<Self::Door>;
    /// Where it listens.
    fn addresses(door: &Self::Door) -> Vec<String>;
    /// Tells the server what the door has counted; `None`: it is closed.
    fn note_counters(node: &Node, volume: u32, door: Option<&Self::Door>);
    fn stop(door: Self::Door);
    /// Has the cluster's authority sign another certificate, if it has signed the door's.
    ///
    /// # Errors
    ///
    /// Those of the coordinator, and of writing files.
    fn renew(&self, server: &Here, info: &Self::Info) -> Result<()>;
}

/// The server of which the doors are.
pub struct Here {
    pub node: Arc<Node>,
    pub paths: Paths,
    local: Local,
}

/// The doors of one kind of this process, until they are stopped.
pub struct Doors {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// A door that is open.
struct Open<K: Kind> {
    /// The record that it was opened for.
    info: K::Info,
    door: K::Door,
    volume: Arc<Volume>,
    /// When it is to have another certificate.
    renew: Instant,
}

/// Opens and closes doors.
struct Keeper<K: Kind> {
    kind: K,
    here: Here,
    open: BTreeMap<u32, Open<K>>,
    /// Doors that could not be opened: the record, and when.
    failed: BTreeMap<u32, (K::Info, Instant)>,
}

impl Doors {
    /// Watches the records from now on.
    ///
    /// # Errors
    ///
    /// `Io` if no thread can be started.
    pub fn start<K: Kind>(kind: K, node: Arc<Node>, paths: &Paths, local: Local) -> Result<Self> {
        let here = Here { node, paths: paths.clone(), local };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            let mut keeper = Keeper { kind, here, open: BTreeMap::new(), failed: BTreeMap::new() };
            let mut looked = None::<Instant>;
            while !stopped.load(Ordering::Relaxed) {
                if looked.is_none_or(|looked| looked.elapsed() >= LOOK_PAUSE) {
                    looked = Some(Instant::now());
                    keeper.look();
                }
                std::thread::sleep(STOP_PAUSE);
            }
            let open: Vec<u32> = keeper.open.keys().copied().collect();
            open.into_iter().for_each(|volume| keeper.close(volume));
        };
        let thread = std::thread::Builder::new()
            .name("hekate-doors".into())
            .spawn(run)
            .map_err(|e| Error::io("start a thread", e))?;
        Ok(Self { stop, thread })
    }

    /// Closes all doors: requests that have begun may end within the doors' limits.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

impl<K: Kind> Keeper<K> {
    /// Makes the doors those of the records. While the records cannot be read they stay as they are.
    fn look(&mut self) {
        let over: Vec<u32> =
            self.open.iter().filter(|(_, open)| open.volume.has_ended()).map(|(number, _)| *number).collect();
        for number in over {
            log::warn!("the session of the {} of volume {number} has ended; the door is opened again", K::Info::DOOR);
            self.close(number);
        }
        for (number, open) in &self.open {
            K::note_counters(&self.here.node, *number, Some(&open.door));
        }
        let Ok(wanted) = self.here.node.doors::<K::Info>() else { return };
        let numbers: Vec<u32> = wanted.iter().map(|(_, info)| info.volume()).collect();
        let gone = |volume: &u32| !numbers.contains(volume);
        let closed: Vec<u32> = self.open.keys().filter(|volume| gone(volume)).copied().collect();
        for volume in closed {
            self.close(volume);
        }
        let forgotten: Vec<u32> = self.failed.keys().filter(|volume| gone(volume)).copied().collect();
        for volume in forgotten {
            self.failed.remove(&volume);
            self.here.node.note_door::<K::Info>(volume, None);
        }
        for (name, info) in wanted {
            self.keep(&name, info);
        }
    }

    fn keep(&mut self, name: &str, info: K::Info) {
        let (number, door) = (info.volume(), K::Info::DOOR);
        if let Some(open) = self.open.get_mut(&number) {
            if open.info == info {
                if open.renew <= Instant::now() {
                    open.renew = Instant::now() + RENEW;
                    if let Err(error) = self.kind.renew(&self.here, &info) {
                        log::error!("the certificate of the {door} of {name} is not renewed: {error}");
                    }
                }
                return;
            }
            self.close(number);
        }
        let is_known = |(failed, at): &(K::Info, Instant)| *failed == info && at.elapsed() < RETRY_PAUSE;
        if self.failed.get(&number).is_some_and(is_known) {
            return;
        }
        match self.open(name, &info) {
            Ok(open) => {
                let addresses = K::addresses(&open.door);
                log::info!("the {door} of {name} is open at {}", addresses.join(" "));
                let change = info.change();
                self.here.node.note_door::<K::Info>(number, Some(Ok((change, addresses))));
                self.failed.remove(&number);
                self.open.insert(number, open);
            }
            Err(error) => {
                if self.failed.get(&number).is_none_or(|(failed, _)| *failed != info) {
                    log::error!("the {door} of {name} is not open: {error}");
                }
                self.here.node.note_door::<K::Info>(number, Some(Err(error.to_string())));
                self.failed.insert(number, (info, Instant::now()));
            }
        }
    }

    fn open(&self, name: &str, info: &K::Info) -> Result<Open<K>> {
        let paths = &self.here.paths;
        let elsewhere = self.here.node.keys().map(|keys| keys.context().clone());
        let (local, catalogue) = (Some(self.here.local.clone()), Some(translator::catalogue(paths)));
        let options = OpenOptions { local, elsewhere, catalogue, ..OpenOptions::default() };
        let volume = Arc::new(Volume::open(Endpoint::Unix(paths.socket.clone()), name, &options)?);
        graph::let_see(&volume, format!("{} of the server", K::Info::DOOR), paths);
        match self.kind.open(&self.here, name, info, volume.clone()) {
            Ok(door) => Ok(Open { info: info.clone(), door, volume, renew: Instant::now() + RENEW }),
            Err(error) => {
                volume.end();
                Err(error)
            }
        }
    }

    fn close(&mut self, number: u32) {
        if let Some(Open { door, volume, .. }) = self.open.remove(&number) {
            K::stop(door);
            volume.end();
            log::info!("the {} of volume {number} is closed", K::Info::DOOR);
        }
        self.here.node.note_door::<K::Info>(number, None);
        K::note_counters(&self.here.node, number, None);
    }
}

/// Addresses as they were checked when they were recorded.
///
/// # Errors
///
/// `Invalid` if one is none.
pub fn socket_addresses(texts: &[String]) -> Result<Vec<SocketAddr>> {
    let address = |text: &String| text.parse().map_err(|_| Error::invalid(format!("{text} is no ADDRESS:PORT")));
    texts.iter().map(address).collect()
}

/// Files with a certificate and its key: PEM.
pub struct Written {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Writes a certificate of the cluster's authority for these names, the addresses and this machine's names. The files are
/// `DIRECTORY/VOLUME.crt` and `.key` in the state directory.
///
/// # Errors
///
/// Those of the coordinator, and of writing.
pub fn write_certificate(
    here: &Here,
    directory: &str,
    volume: u32,
    names: &[String],
    listen: &[SocketAddr],
) -> Result<Written> {
    let mut all = names.to_vec();
    all.extend(listen.iter().filter(|address| !address.ip().is_unspecified()).map(|address| address.ip().to_string()));
    all.extend(own_names());
    all.sort();
    all.dedup();
    let signed = here.node.door_certificate(&all)?;
    let directory = here.paths.state.join(directory);
    std::fs::create_dir_all(&directory).map_err(|e| Error::io(format!("make {}", directory.display()), e))?;
    let file = |suffix: &str| directory.join(format!("{volume}.{suffix}"));
    let (certificate, key) = (file("crt"), file("key"));
    write_private(&key, signed.key.as_bytes())?;
    write_private(&certificate, signed.certificate.as_bytes())?;
    Ok(Written { certificate, key })
}

/// This machine's name and addresses.
fn own_names() -> Vec<String> {
    let uname = rustix::system::uname();
    let mut names = vec!["localhost".to_string()];
    names.extend(uname.nodename().to_str().ok().filter(|name| !name.is_empty()).map(ToString::to_string));
    names.extend(crate::cli::address::own_addresses().unwrap_or_default().into_iter().map(|ip| ip.to_string()));
    names
}
