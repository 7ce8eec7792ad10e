//! What recalls and own ops drop.

use hekate_proto::{InodeId, NodeKind, Pledged};

/// Something of which the session has no pledge any more, or none while an own op is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dropped {
    About(Pledged),
    /// The attributes of all files.
    AnyFile,
    /// The attributes of all inodes.
    AnyInode,
    /// The shards of a file.
    Shards(InodeId),
    /// The shards of all files.
    AnyShards,
    Everything,
}

/// What ops of this session are changing.
#[derive(Debug, Default)]
pub(super) struct Changing(pub(super) Vec<Dropped>);

impl Changing {
    pub(super) fn has(&self, about: &Pledged, kind: Option<NodeKind>) -> bool {
        self.0.iter().any(|dropped| dropped.covers(about, kind))
    }

    pub(super) fn remove(&mut self, dropped: &Dropped) {
        if let Some(index) = self.0.iter().position(|one| one == dropped) {
            self.0.swap_remove(index);
        }
    }
}

impl Dropped {
    /// `kind`: of the inode, for its attributes.
    pub(super) fn covers(&self, about: &Pledged, kind: Option<NodeKind>) -> bool {
        let is_attributes = matches!(about, Pledged::Attributes { .. });
        match self {
            Dropped::About(dropped) => dropped == about,
            Dropped::AnyFile => is_attributes && kind != Some(NodeKind::Directory),
            Dropped::AnyInode => is_attributes,
            Dropped::Shards(_) | Dropped::AnyShards => false,
            Dropped::Everything => true,
        }
    }

    /// As `covers`, of a shard of a file.
    pub(super) fn covers_shard(&self, inode: InodeId, about: &Pledged) -> bool {
        match self {
            Dropped::About(dropped) => dropped == about,
            Dropped::Shards(dropped) => *dropped == inode,
            Dropped::AnyShards | Dropped::Everything => true,
            Dropped::AnyFile | Dropped::AnyInode => false,
        }
    }
}
