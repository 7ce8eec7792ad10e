//! What the doors of all kinds have in common: their records, how they stand at this server, their certificates.

use crate::hosting::keys::Keys;
use crate::hosting::node::Node;
use hekate_cluster::{DoorInfo, NbdDoorInfo, S3DoorInfo, VolumeInfo};
use hekate_proto::{Error, Result, VolumeId};
use std::collections::BTreeMap;

/// The number of changes of the record as which a door is open here, and where it listens; or why it is not open.
pub type DoorState = std::result::Result<(u64, Vec<String>), String>;

/// The volume of this name.
///
/// # Errors
///
/// `Invalid` if there is none.
pub fn volume(node: &Node, name: &str) -> Result<VolumeInfo> {
    node.cluster.registry().volume(name)?.ok_or_else(|| node.no_volume(name))
}

/// The names of all volumes by their numbers.
///
/// # Errors
///
/// Those of the coordinator.
pub fn names_of_volumes(node: &Node) -> Result<BTreeMap<u32, String>> {
    let volumes = node.cluster.registry().volumes()?;
    Ok(volumes.into_iter().map(|volume| (volume.volume.0, volume.name)).collect())
}

/// The keys of this server.
///
/// # Errors
///
/// `Invalid` if it has none.
pub fn keys(node: &Node) -> Result<&Keys> {
    node.keys().ok_or_else(|| Error::invalid("this server has no key that seals secrets; make the cluster anew"))
}

/// Records that a door is open, or how.
///
/// # Errors
///
/// `Invalid` for an address that is none, or that is another door's; those of the coordinator.
pub fn open<D: DoorInfo>(node: &Node, info: &D) -> Result<D> {
    for address in info.addresses() {
        if !address.starts_with('/') && address.parse::<std::net::SocketAddr>().is_err() {
            return Err(Error::invalid(format!("{address} is no ADDRESS:PORT; say 0.0.0.0:9000, or [::]:9000")));
        }
    }
    let own = (D::PREFIX, info.volume());
    for (door, other) in all(node)?.iter().filter(|(other, _)| *other != own) {
        if let Some(taken) = other.iter().find(|address| info.addresses().contains(address)) {
            let name = names_of_volumes(node)?.remove(&door.1).unwrap_or_default();
            return Err(Error::invalid(format!("a door of volume {name} listens at {taken}; name another one")));
        }
    }
    node.cluster.registry().set_door(info)
}

/// A door: the prefix of its record, and the number of its volume.
type DoorKey = (&'static str, u32);

/// The addresses of all doors.
fn all(node: &Node) -> Result<Vec<(DoorKey, Vec<String>)>> {
    fn of<D: DoorInfo>(node: &Node) -> Result<impl Iterator<Item = (DoorKey, Vec<String>)>> {
        let doors = node.cluster.registry().doors::<D>()?;
        Ok(doors.into_iter().map(|door| ((D::PREFIX, door.volume()), door.addresses().to_vec())))
    }
    Ok(of::<S3DoorInfo>(node)?.chain(of::<NbdDoorInfo>(node)?).collect())
}

/// Records that the door of a volume is closed. `list`: the command that shows the open ones.
///
/// # Errors
///
/// `Invalid` if it is not open; those of the coordinator.
pub fn close<D: DoorInfo>(node: &Node, name: &str, list: &str) -> Result<()> {
    let found = volume(node, name)?;
    let doors = node.cluster.registry().doors::<D>()?;
    if doors.iter().all(|door| door.volume() != found.volume.0) {
        return Err(Error::invalid(format!(
            "the {} of volume {name} is not open; `{list}` shows those that are",
            D::DOOR
        )));
    }
    node.cluster.registry().remove_door::<D>(found.volume)
}

impl Node {
    /// The open doors of a kind, by the names of their volumes.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn doors<D: DoorInfo>(&self) -> Result<Vec<(String, D)>> {
        let doors = self.cluster.registry().doors::<D>()?;
        if doors.is_empty() {
            return Ok(Vec::new());
        }
        let names = names_of_volumes(self)?;
        Ok(doors.into_iter().filter_map(|door| Some((names.get(&door.volume())?.clone(), door))).collect())
    }

    /// Notes how the door of a volume stands here; `None`: it is closed.
    pub fn note_door<D: DoorInfo>(&self, volume: u32, state: Option<DoorState>) {
        let mut doors = self.doors.lock();
        match state {
            Some(state) => drop(doors.insert((D::PREFIX, volume), state)),
            None => drop(doors.remove(&(D::PREFIX, volume))),
        }
    }

    /// Where the door listens here, or why it does not. Both are empty while it opens.
    pub(crate) fn state_of_door<D: DoorInfo>(&self, info: &D) -> (Vec<String>, Option<String>) {
        match self.doors.lock().get(&(D::PREFIX, info.volume())) {
            Some(Ok((change, open))) if *change == info.change() => (open.clone(), None),
            Some(Err(why)) => (Vec::new(), Some(why.clone())),
            _ => (Vec::new(), None),
        }
    }

    /// A certificate of the cluster's authority for a door, with its key: PEM.
    ///
    /// # Errors
    ///
    /// `Invalid` if a name is neither a name nor an address; those of the coordinator.
    pub fn door_certificate(&self, names: &[String]) -> Result<hekate_tls::KeyedCertificate> {
        let opened = crate::hosting::authority::read(self.cluster.registry(), keys(self)?.seal())?;
        opened.for_names(names)
    }

    /// The roots of the cluster: PEM.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn roots(&self) -> Result<String> {
        Ok(crate::hosting::authority::record(self.cluster.registry())?.roots.concat())
    }

    /// Checks that no door of a volume is open.
    ///
    /// # Errors
    ///
    /// `Invalid`, which names the door, if one is; those of the coordinator.
    pub(crate) fn check_doors_closed(&self, volume: VolumeId, name: &str) -> Result<()> {
        let refuse = |door: &str, command: &str| {
            Err(Error::invalid(format!(
                "the {door} of volume {name} is open; `hekate {command} disable {name}` closes it"
            )))
        };
        let registry = self.cluster.registry();
        if registry.doors::<S3DoorInfo>()?.iter().any(|door| door.volume == volume.0) {
            return refuse(S3DoorInfo::DOOR, "s3");
        }
        if registry.doors::<NbdDoorInfo>()?.iter().any(|door| door.volume == volume.0) {
            return refuse(NbdDoorInfo::DOOR, "nbd");
        }
        Ok(())
    }
}
