//! Paths of inodes: from names that the journals have, otherwise from a search among the names in their directories.

use crate::control::ask_server;
use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use hekate_cluster::{ServerInfo, VolumeInfo};
use hekate_control::peer::{FoundName, NamesHere};
use hekate_proto::*;
use std::collections::BTreeMap;

/// Names that one search reads, and searches for one answer.
const NAMES_MAX: usize = 100_000;
const LOOKS_MAX: usize = 1000;
/// The most directories above a name; a deeper path is damage.
const DEPTH_MAX: usize = 1000;

fn hex(id: InodeId) -> String {
    format!("{:032x}", id.bits())
}

fn inode(text: &str) -> Result<InodeId> {
    let id = u128::from_str_radix(text, 16).map_err(|_| Error::invalid(format!("{text:?} is no inode's id")))?;
    Ok(InodeId::from_bits(id))
}

/// Searches the replicas of this server.
///
/// # Errors
///
/// `Invalid` if an id cannot be parsed; those of reading a replica.
pub fn names_here(node: &Node, request: &NamesHere) -> Result<FoundName> {
    let ring = node.ring(request.ring)?;
    let (wanted, parent) = (inode(&request.inode)?, request.parent.as_deref().map(inode).transpose()?);
    let found = find(&ring, request.volume, wanted, parent)?;
    let parent = parent_of(&ring, request.volume, wanted)?.map(hex);
    Ok(FoundName { found: found.map(|(directory, name)| (hex(directory), name)), parent })
}

fn find(
    ring: &HostedRing,
    volume: VolumeId,
    wanted: InodeId,
    parent: Option<InodeId>,
) -> Result<Option<(InodeId, String)>> {
    let positions: Vec<Position> = match parent {
        Some(parent) => name_positions(parent, ring.count()).collect(),
        None => vec![wanted.position()],
    };
    for position in positions {
        let place = KeyPrefix { ring: ring.ring, position, volume };
        let (first, last) = match parent {
            Some(parent) => (parent, parent),
            None => (InodeId::from_bits(0), InodeId::from_bits(u128::MAX)),
        };
        let (mut from, to) = (Key::name(place, first, b""), Key::name(place, last, b"").prefix_end());
        let at = position.partition(ring.count());
        let Some(brick) = ring.members(at)?.into_iter().next() else { continue };
        let mut seen = 0;
        while seen < NAMES_MAX {
            let some = brick.scan(&from, &to, 1024)?;
            let Some((last, _)) = some.last() else { break };
            (from, seen) = (last.successor(), seen + some.len());
            for (key, value) in some.iter().filter(|(key, _)| key.kind() == Some(Kind::Name)) {
                let is_it = NameRecord::from_bytes(value.clone()).is_ok_and(|record| record.inode == wanted);
                if let Some(directory) = key.id().filter(|_| is_it) {
                    let name = String::from_utf8_lossy(&key.rest()).into_owned();
                    return Ok(Some((InodeId::from_bits(directory), name)));
                }
            }
        }
    }
    Ok(None)
}

fn parent_of(ring: &HostedRing, volume: VolumeId, inode: InodeId) -> Result<Option<InodeId>> {
    let members = ring.members(inode.position().partition(ring.count()))?;
    let Some(brick) = members.first() else { return Ok(None) };
    let value = brick.get(&Key::inode(ring.ring, volume, inode, Kind::Inode))?;
    let record = value.map(InodeRecord::from_bytes).transpose()?;
    Ok(record.filter(|record| record.kind == NodeKind::Directory).map(|record| record.parent))
}

/// The names that are known so far for one answer.
pub struct Paths<'a> {
    node: &'a Node,
    volumes: Vec<VolumeInfo>,
    servers: Vec<ServerInfo>,
    names: BTreeMap<String, (String, String)>,
    parents: BTreeMap<String, String>,
    looks: usize,
}

impl<'a> Paths<'a> {
    /// `names` has an inode's parent and its name there, `parents` a directory's parent, all by inode id.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub fn new(
        node: &'a Node,
        names: BTreeMap<String, (String, String)>,
        parents: BTreeMap<String, String>,
    ) -> Result<Self> {
        let (volumes, servers) = (node.cluster.registry().volumes()?, node.cluster.registry().servers()?);
        Ok(Self { node, volumes, servers, names, parents, looks: 0 })
    }

    pub fn volume(&self, volume: u32) -> String {
        let found = self.volumes.iter().find(|info| info.volume.0 == volume);
        found.map_or_else(|| volume.to_string(), |info| info.name.clone())
    }

    /// The path from the volume's root; `None` if no name was found for the inode or a directory above it.
    pub fn of(&mut self, volume: VolumeId, inode: &str) -> Option<String> {
        let (root, system) = (hex(ROOT), hex(SYSTEM));
        let (mut path, mut at) = (String::new(), inode.to_string());
        for _ in 0..DEPTH_MAX {
            if at == root {
                return Some(if path.is_empty() { "/".into() } else { path });
            }
            if at == system {
                return Some(format!("{SYSTEM_PATH}{path}"));
            }
            if !self.names.contains_key(&at) {
                self.look_for(volume, &at);
            }
            let (directory, name) = self.names.get(&at)?;
            (path, at) = (format!("/{name}{path}"), directory.clone());
        }
        None
    }

    /// Asks this server and then the others, until one knows the name.
    fn look_for(&mut self, volume: VolumeId, inode: &str) -> Option<()> {
        let ring = self.volumes.iter().find(|info| info.volume == volume)?.ring;
        if self.looks >= LOOKS_MAX {
            return None;
        }
        self.looks += 1;
        // The first round may find only the parent, and the second the name in it.
        for _ in 0..2 {
            let parent = self.parents.get(inode).cloned();
            let request = NamesHere { ring, volume, inode: inode.into(), parent };
            for info in &self.servers {
                let said = match info.server == self.node.cluster.server() {
                    true => names_here(self.node, &request).map_err(|error| error.to_string()),
                    false => ask_server(self.node, info, request.clone()),
                };
                let Ok(FoundName { found, parent }) = said else { continue };
                if let Some(parent) = parent {
                    self.parents.insert(inode.into(), parent);
                }
                if let Some(found) = found {
                    self.names.insert(inode.into(), found);
                    return Some(());
                }
            }
        }
        None
    }
}
