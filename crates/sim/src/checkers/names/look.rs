//! Observations of the tree in answers.

use super::tree::{Node, Tree};
use hekate_proto::{Error, InodeId, Name, NodeKind};

/// One observation of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// The name led to this node, or to nothing, in a directory that may be gone.
    Name { dir: InodeId, name: Name, node: Option<Node> },
    /// Looking up this name was refused.
    NotFound { dir: InodeId, name: Name, error: Error },
    /// The directory could be listed, or not.
    Listed { dir: InodeId, alive: bool },
    /// This many links; 0: it is gone, or open somewhere.
    Links { inode: InodeId, kind: NodeKind, links: u32 },
    /// The inode does not exist.
    Missing { inode: InodeId },
}

impl Look {
    /// True if the tree agrees with the observation.
    pub fn fits(&self, tree: &Tree) -> bool {
        match self {
            Look::Name { dir, name, node } => tree.look_up(*dir, name).ok() == *node,
            Look::NotFound { dir, name, error } => match tree.look_up(*dir, name) {
                Ok(_) => false,
                Err(Error::NotFound) => matches!(error, Error::NotFound | Error::Stale),
                Err(answer) => answer == *error,
            },
            Look::Listed { dir, alive } => tree.directory(*dir).is_ok() == *alive,
            Look::Links { inode, kind, links } => match tree.inode(*inode) {
                Some(there) => there == (*kind, *links),
                None => *links == 0,
            },
            Look::Missing { inode } => tree.inode(*inode).is_none(),
        }
    }

    /// The state of the tree instead, as text.
    pub fn explain(&self, tree: &Tree) -> String {
        match self {
            Look::Name { dir, name, .. } | Look::NotFound { dir, name, .. } => {
                format!("{name:?} in {dir:?}: the tree answers {:?} then", tree.look_up(*dir, name))
            }
            Look::Listed { dir, .. } => match tree.directory(*dir) {
                Ok(_) => format!("{dir:?} is a directory then"),
                Err(error) => format!("{dir:?}: the tree answers {error} then"),
            },
            Look::Links { inode, kind, links } => {
                let there = tree.inode(*inode);
                format!("{inode:?}: the tree has {there:?} then (kind, links), the answer says {kind:?}, {links}")
            }
            Look::Missing { inode } => format!("the tree has {inode:?} then: {:?} (kind, links)", tree.inode(*inode)),
        }
    }
}
