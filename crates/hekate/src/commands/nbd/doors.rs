//! The block doors of a server.

use crate::commands::doors::{Here, Kind, Written, socket_addresses, write_certificate};
use crate::commands::vdisk::own_name;
use hekate_client::Volume;
use hekate_cluster::{NbdDoorInfo, NbdTls};
use hekate_gateway_nbd::{Clients, Door, Exports, Listen, Settings, TlsFiles};
use hekate_proto::{Error, Result};
use hekate_server::{Node, write_private};
use hekate_vdisk::{Catalogue, VolumeStore};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// NBD.
pub struct NbdDoors;

impl Kind for NbdDoors {
    type Info = NbdDoorInfo;
    type Door = Door;

    fn open(&self, here: &Here, name: &str, info: &NbdDoorInfo, volume: Arc<Volume>) -> Result<Door> {
        let clients = RecordedClients { node: Arc::downgrade(&here.node), volume: name.into() };
        let is_ours = matches!(info.tls, NbdTls::Cluster { .. });
        let settings = Settings {
            listen: listen(info)?,
            tls: tls_files(here, info)?,
            clients: is_ours.then(|| Arc::new(clients) as Arc<dyn Clients>),
            ..Settings::default()
        };
        let catalogue = Catalogue::open(Arc::new(VolumeStore::open(volume)?))?;
        Door::start(Exports::new(catalogue, own_name(), hekate_vdisk::Settings::default()), settings)
    }

    fn addresses(door: &Door) -> Vec<String> {
        door.addresses().to_vec()
    }

    fn note_counters(node: &Node, volume: u32, door: Option<&Door>) {
        node.note_nbd_counters(volume, door.map(Door::counters));
    }

    fn stop(door: Door) {
        door.stop();
    }

    fn renew(&self, here: &Here, info: &NbdDoorInfo) -> Result<()> {
        tls_files(here, info).map(drop)
    }
}

/// The clients of the cluster, as its records have them.
struct RecordedClients {
    node: Weak<Node>,
    volume: String,
}

impl Clients for RecordedClients {
    fn admit(&self, certificate: &[u8], address: Option<SocketAddr>) -> Result<bool> {
        let node = self.node.upgrade().ok_or_else(|| Error::Unavailable { what: "the server is stopping".into() })?;
        node.may_use_vdisks(&self.volume, certificate, address)
    }

    fn is_revoked(&self, certificate: &[u8]) -> bool {
        self.node.upgrade().is_some_and(|node| node.is_certificate_revoked(certificate))
    }
}

fn listen(info: &NbdDoorInfo) -> Result<Vec<Listen>> {
    let one = |text: &String| match text.starts_with('/') {
        true => Ok(Listen::Unix(text.into())),
        false => Ok(Listen::Tcp(socket_addresses(std::slice::from_ref(text))?[0])),
    };
    info.listen.iter().map(one).collect()
}

/// The files that a door's TLS is from. What the cluster's authority signs is written to the state directory.
fn tls_files(here: &Here, info: &NbdDoorInfo) -> Result<Option<TlsFiles>> {
    let names = match &info.tls {
        NbdTls::None => return Ok(None),
        NbdTls::Files { certificate, key, client_authority } => {
            let (certificate, key) = (certificate.into(), key.into());
            return Ok(Some(TlsFiles { certificate, key, client_authority: Some(client_authority.into()) }));
        }
        NbdTls::Cluster { names } => names,
    };
    let tcp: Vec<SocketAddr> = listen(info)?
        .into_iter()
        .filter_map(|listen| match listen {
            Listen::Tcp(address) => Some(address),
            Listen::Unix(_) => None,
        })
        .collect();
    let Written { certificate, key } = write_certificate(here, "nbd", info.volume, names, &tcp)?;
    let roots = here.paths.state.join("nbd").join("roots.crt");
    write_private(&roots, here.node.roots()?.as_bytes())?;
    Ok(Some(TlsFiles { certificate, key, client_authority: Some(roots) }))
}
