//! The S3 doors of a server: opened and closed as the cluster's records say.

use super::keys::RecordedKeys;
use crate::commands::{graph, translator};
use crate::paths::Paths;
use hekate_client::{OpenOptions, Volume};
use hekate_cluster::{S3DoorInfo, S3Tls};
use hekate_gateway_s3::{Door, Limits, Settings, TlsFiles};
use hekate_proto::{Error, Result, VolumeId};
use hekate_server::{Node, write_private};
use hekate_transport::{Endpoint, Local};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks at the records.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a door that could not be opened is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
const STOP_PAUSE: Duration = Duration::from_millis(50);

/// The doors of this process, until they are stopped.
pub struct Doors {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// A door that is open.
struct Open {
    /// The record that it was opened for.
    info: S3DoorInfo,
    door: Door,
    volume: Arc<Volume>,
    /// When the cluster's authority signs another certificate.
    renew: Option<Instant>,
}

/// Opens and closes doors.
struct Keeper {
    node: Arc<Node>,
    paths: Paths,
    local: Local,
    open: BTreeMap<u32, Open>,
    /// Doors that could not be opened: the record, when, and why.
    failed: BTreeMap<u32, (S3DoorInfo, Instant)>,
}

impl Doors {
    /// Watches the records from now on.
    ///
    /// # Errors
    ///
    /// `Io` if no thread can be started.
    pub fn start(node: Arc<Node>, paths: &Paths, local: Local) -> Result<Self> {
        let paths = paths.clone();
        let mut keeper = Keeper { node, paths, local, open: BTreeMap::new(), failed: BTreeMap::new() };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
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
            .name("hekate-s3-doors".into())
            .spawn(run)
            .map_err(|e| Error::io("start a thread", e))?;
        Ok(Self { stop, thread })
    }

    /// Closes all doors: requests that have begun may end within the doors' limit.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

impl Keeper {
    /// Makes the doors those of the records. While the records cannot be read they stay as they are.
    fn look(&mut self) {
        let over: Vec<u32> =
            self.open.iter().filter(|(_, open)| open.volume.has_ended()).map(|(number, _)| *number).collect();
        for number in over {
            log::warn!("the session of the S3 door of volume {number} has ended; the door is opened again");
            self.close(number);
        }
        for (number, open) in &self.open {
            self.node.note_s3_counters(*number, Some(open.door.counters()));
        }
        let Ok(wanted) = self.node.s3_doors() else { return };
        let numbers: Vec<u32> = wanted.iter().map(|(_, info)| info.volume).collect();
        let gone = |volume: &u32| !numbers.contains(volume);
        let closed: Vec<u32> = self.open.keys().filter(|volume| gone(volume)).copied().collect();
        for volume in closed {
            self.close(volume);
        }
        let forgotten: Vec<u32> = self.failed.keys().filter(|volume| gone(volume)).copied().collect();
        for volume in forgotten {
            self.failed.remove(&volume);
            self.node.note_s3_door(volume, None);
        }
        for (name, info) in wanted {
            self.keep(&name, info);
        }
    }

    fn keep(&mut self, name: &str, info: S3DoorInfo) {
        let number = info.volume;
        if let Some(open) = self.open.get_mut(&number) {
            if open.info == info {
                if open.renew.is_some_and(|due| due <= Instant::now()) {
                    open.renew = Some(Instant::now() + RENEW);
                    if let Err(error) = write_certificate(&self.node, &self.paths.state, &info) {
                        log::error!("the certificate of the S3 door of {name} is not renewed: {error}");
                    }
                }
                return;
            }
            self.close(number);
        }
        let is_known = |(failed, at): &(S3DoorInfo, Instant)| *failed == info && at.elapsed() < RETRY_PAUSE;
        if self.failed.get(&number).is_some_and(is_known) {
            return;
        }
        match self.open(name, &info) {
            Ok(open) => {
                let addresses: Vec<String> = open.door.addresses().iter().map(ToString::to_string).collect();
                log::info!("the S3 door of {name} is open at {}", addresses.join(" "));
                self.node.note_s3_door(number, Some(Ok((info.change, addresses))));
                self.failed.remove(&number);
                self.open.insert(number, open);
            }
            Err(error) => {
                if self.failed.get(&number).is_none_or(|(failed, _)| *failed != info) {
                    log::error!("the S3 door of {name} is not open: {error}");
                }
                self.node.note_s3_door(number, Some(Err(error.to_string())));
                self.failed.insert(number, (info, Instant::now()));
            }
        }
    }

    fn open(&self, name: &str, info: &S3DoorInfo) -> Result<Open> {
        let settings = Settings {
            listen: addresses(&info.listen)?,
            tls: write_certificate(&self.node, &self.paths.state, info)?,
            domain: info.domain.clone(),
            region: info.region.clone(),
            limits: Limits::default(),
        };
        let elsewhere = self.node.keys().map(|keys| keys.context().clone());
        let (local, catalogue) = (Some(self.local.clone()), Some(translator::catalogue(&self.paths)));
        let options = OpenOptions { local, elsewhere, catalogue, ..OpenOptions::default() };
        let volume = Arc::new(Volume::open(Endpoint::Unix(self.paths.socket.clone()), name, &options)?);
        graph::let_see(&volume, "S3 door of the server".into(), &self.paths);
        let (node, number, owner) = (Arc::downgrade(&self.node), VolumeId(info.volume), name.to_string());
        let keys = RecordedKeys::new(move || {
            let node = node.upgrade().ok_or_else(|| Error::Unavailable { what: "the server is stopping".into() })?;
            node.s3_secrets(number, &owner)
        });
        let door = match Door::start(volume.clone(), Arc::new(keys), settings) {
            Ok(door) => door,
            Err(error) => {
                volume.end();
                return Err(error);
            }
        };
        let renew = matches!(info.tls, S3Tls::Cluster { .. }).then(|| Instant::now() + RENEW);
        Ok(Open { info: info.clone(), door, volume, renew })
    }

    fn close(&mut self, number: u32) {
        if let Some(Open { door, volume, .. }) = self.open.remove(&number) {
            door.stop();
            volume.end();
            log::info!("the S3 door of volume {number} is closed");
        }
        self.node.note_s3_door(number, None);
        self.node.note_s3_counters(number, None);
    }
}

/// Time after which the cluster's authority signs another certificate: long before the shortest lifetime of servers'
/// certificates, one day, is over.
const RENEW: Duration = Duration::from_secs(12 * 3600);

fn addresses(texts: &[String]) -> Result<Vec<SocketAddr>> {
    let address = |text: &String| text.parse().map_err(|_| Error::invalid(format!("{text} is no ADDRESS:PORT")));
    texts.iter().map(address).collect()
}

/// The files that a door's TLS is from. A certificate of the cluster's authority is written to the state directory.
fn write_certificate(node: &Node, state: &std::path::Path, info: &S3DoorInfo) -> Result<Option<TlsFiles>> {
    let names = match &info.tls {
        S3Tls::None => return Ok(None),
        S3Tls::Files { certificate, key } => {
            return Ok(Some(TlsFiles { certificate: certificate.into(), key: key.into() }));
        }
        S3Tls::Cluster { names } => names,
    };
    let mut all = names.clone();
    for address in addresses(&info.listen)? {
        if !address.ip().is_unspecified() {
            all.push(address.ip().to_string());
        }
    }
    all.extend(own_names());
    all.extend(info.domain.iter().flat_map(|domain| [domain.clone(), format!("*.{domain}")]));
    all.sort();
    all.dedup();
    let signed = node.s3_certificate(&all)?;
    let directory = state.join("s3");
    std::fs::create_dir_all(&directory).map_err(|e| Error::io(format!("make {}", directory.display()), e))?;
    let file = |suffix: &str| directory.join(format!("{}.{suffix}", info.volume));
    let (certificate, key) = (file("crt"), file("key"));
    write_private(&key, signed.key.as_bytes())?;
    write_private(&certificate, signed.certificate.as_bytes())?;
    Ok(Some(TlsFiles { certificate, key }))
}

/// This machine's name and addresses.
fn own_names() -> Vec<String> {
    let uname = rustix::system::uname();
    let mut names = vec!["localhost".to_string()];
    names.extend(uname.nodename().to_str().ok().filter(|name| !name.is_empty()).map(ToString::to_string));
    names.extend(crate::cli::address::own_addresses().unwrap_or_default().into_iter().map(|ip| ip.to_string()));
    names
}
