//! The block door: which volumes have one, and whom it lets in.

use crate::control::doors::{self, volume};
use crate::control::encode;
use crate::hosting::node::Node;
use hekate_cluster::{NbdDoorInfo, NbdTls};
use hekate_control::ControlRequest;
use hekate_control::nbd::*;
use hekate_metrics::NbdCounters;
use hekate_proto::{Error, Result};
use hekate_tls::CertificateInfo;
use hekate_transport::{Peer, RemotePeer};
use serde_json::Value;
use std::net::SocketAddr;

/// Answers a request about the block door.
pub fn act(node: &Node, request: ControlRequest) -> Result<Value> {
    match request {
        ControlRequest::NbdEnable(call) => encode::<NbdEnable>(enable(node, &call)),
        ControlRequest::NbdDisable(call) => {
            encode::<NbdDisable>(doors::close::<NbdDoorInfo>(node, &call.volume, "hekate nbd list"))
        }
        ControlRequest::NbdList(_) => encode::<NbdList>(list(node)),
        _ => Err(Error::bug("a request that is not about the block door")),
    }
}

fn enable(node: &Node, call: &NbdEnable) -> Result<NbdDoorStatus> {
    let volume = volume(node, &call.volume)?;
    if call.listen.is_empty() && call.sockets.is_empty() {
        return Err(Error::invalid("name an address with --listen, as 0.0.0.0:10809, or a unix socket with --socket"));
    }
    if let Some(relative) = call.sockets.iter().find(|path| !path.starts_with('/')) {
        return Err(Error::invalid(format!("{relative}: name the socket from the root, for each server makes it")));
    }
    let files = (&call.certificate, &call.key, &call.client_authority);
    let tls = match files {
        (Some(certificate), Some(key), Some(authority)) if !call.plain => {
            NbdTls::Files { certificate: certificate.clone(), key: key.clone(), client_authority: authority.clone() }
        }
        (None, None, None) if call.plain || call.listen.is_empty() => NbdTls::None,
        (None, None, None) => NbdTls::Cluster { names: call.names.clone() },
        (Some(_), Some(_), Some(_)) => {
            return Err(Error::invalid("--plain needs no certificate; leave one of both away"));
        }
        _ => return Err(Error::invalid("--certificate, --key and --client-ca belong together")),
    };
    let (listen, sockets) = (call.listen.clone(), call.sockets.clone());
    let info = NbdDoorInfo { volume: volume.volume.0, listen: [listen, sockets].concat(), tls, change: 0 };
    let info = doors::open(node, &info)?;
    Ok(status(node, &info, volume.name))
}

fn list(node: &Node) -> Result<Vec<NbdDoorStatus>> {
    Ok(node.doors::<NbdDoorInfo>()?.into_iter().map(|(name, door)| status(node, &door, name)).collect())
}

fn status(node: &Node, info: &NbdDoorInfo, volume: String) -> NbdDoorStatus {
    let (open, failure) = node.state_of_door(info);
    let tls = match info.tls {
        NbdTls::None => "none",
        NbdTls::Cluster { .. } => "cluster",
        NbdTls::Files { .. } => "files",
    };
    NbdDoorStatus { volume, listen: info.listen.clone(), open, failure, tls: tls.into() }
}

/// The client that has shown a certificate (DER) at a block door. The door's addresses belong to no network of the cluster.
fn peer_of(certificate: &[u8], address: Option<SocketAddr>) -> Result<Peer> {
    let CertificateInfo { identity, serial, .. } = CertificateInfo::of(certificate)?;
    let holder = identity.map(|identity| identity.holder);
    Ok(Peer::Remote(RemotePeer { holder, serial, network: String::new(), address }))
}

impl Node {
    /// Checks that a client of the block door, which has shown this certificate (DER) of the cluster's authority, may use
    /// a volume. Returns true if it may only read.
    ///
    /// # Errors
    ///
    /// `Denied` if it may not, or was revoked; those of the coordinator.
    pub fn may_use_vdisks(&self, volume: &str, certificate: &[u8], address: Option<SocketAddr>) -> Result<bool> {
        let peer = peer_of(certificate, address)?;
        self.cluster.meet(&peer);
        let info = doors::volume(self, volume)?;
        let owner = self.cluster.access.may_use(&peer, &info)?;
        Ok(self.cluster.access.is_read_only(&owner))
    }

    /// True if the client of the block door that has shown this certificate may do nothing any more.
    pub fn is_certificate_revoked(&self, certificate: &[u8]) -> bool {
        peer_of(certificate, None).is_ok_and(|peer| self.is_revoked(&peer))
    }

    /// Notes what the block door of a volume has counted since it was opened; `None`: it is closed.
    pub fn note_nbd_counters(&self, volume: u32, counters: Option<NbdCounters>) {
        let mut all = self.nbd_counters.lock();
        match counters {
            Some(counters) => drop(all.insert(volume, counters)),
            None => drop(all.remove(&volume)),
        }
    }
}
