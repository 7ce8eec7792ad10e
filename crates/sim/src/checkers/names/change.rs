//! Changes of the tree by calls, and the errors with which the tree refuses them.

use super::tree::{Ends, Node, Tree};
use hekate_proto::{Error, InodeId, Name, NodeKind, RenameMode};

/// A change of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Make {
        dir: InodeId,
        name: Name,
        node: Node,
        exclusive: bool,
    },
    /// `links_answered`: the link count in the answer.
    Link {
        dir: InodeId,
        name: Name,
        inode: InodeId,
        links_answered: Option<u32>,
    },
    Unlink {
        dir: InodeId,
        name: Name,
    },
    Rmdir {
        dir: InodeId,
        name: Name,
    },
    Rename(Ends),
}

impl Change {
    /// Changes the tree in one step. Returns the inode whose link count is still to be decreased.
    ///
    /// # Errors
    ///
    /// The tree refuses the change.
    pub fn take(&self, tree: &mut Tree) -> Result<Option<InodeId>, Error> {
        match self {
            Change::Make { dir, name, node, .. } => tree.make(*dir, name, *node).map(|()| None),
            Change::Link { dir, name, inode, .. } => {
                let kind = tree.may_link(*dir, name, *inode)?;
                tree.count_links(*inode, 1);
                tree.put(*dir, name, (*inode, kind));
                Ok(None)
            }
            Change::Unlink { dir, name } => tree.unlink(*dir, name).map(Some),
            Change::Rmdir { dir, name } => tree.rmdir(*dir, name).map(|()| None),
            Change::Rename(ends) => tree.rename(ends),
        }
    }

    /// True if the tree refuses it with this error.
    pub fn is_refused(&self, tree: &Tree, error: &Error) -> bool {
        let answer = self.refusal(tree);
        match (&answer, error) {
            // The text of a refusal differs.
            (Some(Error::Denied { .. }), Error::Denied { .. }) => true,
            // An inode without a name may exist as long as a client has it open.
            (Some(Error::Stale), Error::NotFound) => matches!(self, Change::Link { .. }),
            // Both hold for a directory that is to replace one below itself.
            (Some(Error::Loop), Error::NotEmpty) => matches!(self, Change::Rename(_)),
            (Some(answer), error) => answer == error,
            (None, _) => false,
        }
    }

    /// The error with which the tree refuses it.
    pub fn refusal(&self, tree: &Tree) -> Option<Error> {
        match self {
            Change::Make { dir, name, node, exclusive } => match tree.look_up(*dir, name) {
                Ok((_, NodeKind::Directory)) if !exclusive && node.1 != NodeKind::Directory => Some(Error::IsDirectory),
                Ok(_) if !exclusive && node.1 != NodeKind::Directory => None,
                Ok(_) => Some(Error::Exists),
                Err(_) => tree.directory(*dir).err(),
            },
            other => other.take(&mut tree.clone()).err(),
        }
    }

    /// The directories whose names it changes.
    pub fn directories(&self) -> Vec<InodeId> {
        match self {
            Change::Make { dir, .. }
            | Change::Link { dir, .. }
            | Change::Unlink { dir, .. }
            | Change::Rmdir { dir, .. } => vec![*dir],
            Change::Rename(ends) => vec![ends.dir, ends.to_dir],
        }
    }

    /// Names and links may be stored apart, then one changes after the other.
    pub fn parts(&self) -> usize {
        match self {
            Change::Link { .. } | Change::Unlink { .. } => 2,
            Change::Rename(Ends { mode: RenameMode::Replace, .. }) => 2,
            Change::Make { .. } | Change::Rmdir { .. } | Change::Rename(_) => 1,
        }
    }
}

impl Change {
    /// The directories whose names, and the inodes whose links, its answer depends on.
    pub fn depends_on(&self, tree: &Tree) -> (Vec<InodeId>, Vec<InodeId>) {
        let mut dirs = self.directories();
        let replaced = match self {
            Change::Make { .. } | Change::Unlink { .. } => None,
            Change::Link { inode, .. } => return (dirs, vec![*inode]),
            Change::Rmdir { dir, name } => tree.look_up(*dir, name).ok(),
            Change::Rename(ends) => tree.look_up(ends.to_dir, &ends.to_name).ok(),
        };
        dirs.extend(replaced.map(|node| node.0));
        (dirs, Vec::new())
    }
}
