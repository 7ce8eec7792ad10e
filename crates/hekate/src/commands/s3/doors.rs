//! The S3 doors of a server.

use super::keys::RecordedKeys;
use crate::commands::doors::{Here, Kind, Written, socket_addresses, write_certificate};
use hekate_client::Volume;
use hekate_cluster::{S3DoorInfo, S3Tls};
use hekate_gateway_s3::{Door, Limits, Settings, TlsFiles};
use hekate_proto::{Error, Result, VolumeId};
use hekate_server::Node;
use std::sync::Arc;

/// S3.
pub struct S3Doors;

impl Kind for S3Doors {
    type Info = S3DoorInfo;
    type Door = Door;

    fn open(&self, here: &Here, name: &str, info: &S3DoorInfo, volume: Arc<Volume>) -> Result<Door> {
        let settings = Settings {
            listen: socket_addresses(&info.listen)?,
            tls: tls_files(here, info)?,
            domain: info.domain.clone(),
            region: info.region.clone(),
            limits: Limits::default(),
        };
        let (node, number, owner) = (Arc::downgrade(&here.node), VolumeId(info.volume), name.to_string());
        let keys = RecordedKeys::new(move || {
            let node = node.upgrade().ok_or_else(|| Error::Unavailable { what: "the server is stopping".into() })?;
            node.s3_secrets(number, &owner)
        });
        Door::start(volume, Arc::new(keys), settings)
    }

    fn addresses(door: &Door) -> Vec<String> {
        door.addresses().iter().map(ToString::to_string).collect()
    }

    fn note_counters(node: &Node, volume: u32, door: Option<&Door>) {
        node.note_s3_counters(volume, door.map(Door::counters));
    }

    fn stop(door: Door) {
        door.stop();
    }

    fn renew(&self, here: &Here, info: &S3DoorInfo) -> Result<()> {
        tls_files(here, info).map(drop)
    }
}

/// The files that a door's TLS is from. A certificate of the cluster's authority is written to the state directory.
fn tls_files(here: &Here, info: &S3DoorInfo) -> Result<Option<TlsFiles>> {
    let names = match &info.tls {
        S3Tls::None => return Ok(None),
        S3Tls::Files { certificate, key } => {
            return Ok(Some(TlsFiles { certificate: certificate.into(), key: key.into() }));
        }
        S3Tls::Cluster { names } => names,
    };
    let mut all = names.clone();
    all.extend(info.domain.iter().flat_map(|domain| [domain.clone(), format!("*.{domain}")]));
    let Written { certificate, key } =
        write_certificate(here, "s3", info.volume, &all, &socket_addresses(&info.listen)?)?;
    Ok(Some(TlsFiles { certificate, key }))
}
