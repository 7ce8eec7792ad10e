//! A plain tree of directories with POSIX's rules, as the contract gives them; it has no partitions.

use hekate_proto::{Error, InodeId, Name, NodeKind, ROOT, RenameMode};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The names of a directory and their nodes.
pub type Names = BTreeMap<Name, (InodeId, NodeKind)>;

/// A directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Directory {
    pub parent: InodeId,
    pub names: Names,
}

/// All directories, and all other inodes with their links.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tree {
    directories: BTreeMap<InodeId, Rc<Directory>>,
    /// Inodes other than directories: kind and links. An inode without links stays, because a client may have it open.
    files: Rc<BTreeMap<InodeId, (NodeKind, u32)>>,
}

/// An inode that a name leads to, or is to lead to.
pub type Node = (InodeId, NodeKind);

/// Both ends of a rename.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    pub dir: InodeId,
    pub name: Name,
    pub to_dir: InodeId,
    pub to_name: Name,
    pub mode: RenameMode,
}

impl Default for Tree {
    /// An empty root.
    fn default() -> Self {
        let root = Directory { parent: ROOT, names: Names::new() };
        Self { directories: BTreeMap::from([(ROOT, Rc::new(root))]), files: Rc::default() }
    }
}

impl Tree {
    /// A directory that exists.
    ///
    /// # Errors
    ///
    /// `NotDirectory`, or `NotFound` if it is gone.
    pub fn directory(&self, dir: InodeId) -> Result<&Directory, Error> {
        match self.directories.get(&dir) {
            Some(directory) => Ok(directory),
            None if self.files.get(&dir).is_some_and(|(_, links)| *links > 0) => Err(Error::NotDirectory),
            None => Err(Error::NotFound),
        }
    }

    /// Kind and links of an inode that has a name (or is the root).
    pub fn inode(&self, id: InodeId) -> Option<(NodeKind, u32)> {
        match self.directories.get(&id) {
            Some(directory) => {
                let below = directory.names.values().filter(|(_, kind)| *kind == NodeKind::Directory);
                Some((NodeKind::Directory, 2 + below.count() as u32))
            }
            None => self.files.get(&id).copied().filter(|(_, links)| *links > 0),
        }
    }

    /// The kind of an inode, even of one without a name; none for directories that are gone.
    pub fn kind(&self, id: InodeId) -> Option<NodeKind> {
        match self.directories.contains_key(&id) {
            true => Some(NodeKind::Directory),
            false => self.files.get(&id).map(|(kind, _)| *kind),
        }
    }

    /// Adds an inode whose only name was lost with its directory.
    pub fn make_nameless(&mut self, node: Node) {
        Rc::make_mut(&mut self.files).insert(node.0, (node.1, 0));
    }

    /// The node that a name leads to.
    ///
    /// # Errors
    ///
    /// `NotFound`, or why `dir` is not a directory.
    pub fn look_up(&self, dir: InodeId, name: &Name) -> Result<Node, Error> {
        self.directory(dir)?.names.get(name).copied().ok_or(Error::NotFound)
    }

    /// Makes a new inode under a new name.
    ///
    /// # Errors
    ///
    /// The refusal that POSIX gives.
    pub fn make(&mut self, dir: InodeId, name: &Name, node: Node) -> Result<(), Error> {
        if self.directory(dir)?.names.contains_key(name) {
            return Err(Error::Exists);
        }
        self.put(dir, name, node);
        match node.1 {
            NodeKind::Directory => {
                let directory = Directory { parent: dir, names: Names::new() };
                self.directories.insert(node.0, Rc::new(directory));
            }
            kind => drop(Rc::make_mut(&mut self.files).insert(node.0, (kind, 1))),
        }
        Ok(())
    }

    /// Checks that an inode may get another name here; returns its kind.
    ///
    /// # Errors
    ///
    /// The refusal that POSIX gives.
    pub fn may_link(&self, dir: InodeId, name: &Name, inode: InodeId) -> Result<NodeKind, Error> {
        if self.directory(dir)?.names.contains_key(name) {
            return Err(Error::Exists);
        }
        match self.inode(inode) {
            None => Err(Error::Stale),
            Some((NodeKind::Directory, _)) => Err(Error::Denied { what: String::new() }),
            Some((kind, _)) => Ok(kind),
        }
    }

    /// Removes a name of anything but a directory; returns its inode, whose link is still counted.
    ///
    /// # Errors
    ///
    /// The refusal that POSIX gives.
    pub fn unlink(&mut self, dir: InodeId, name: &Name) -> Result<InodeId, Error> {
        match self.look_up(dir, name)? {
            (_, NodeKind::Directory) => Err(Error::IsDirectory),
            (inode, _) => {
                self.take(dir, name);
                Ok(inode)
            }
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// The refusal that POSIX gives.
    pub fn rmdir(&mut self, dir: InodeId, name: &Name) -> Result<(), Error> {
        let (inode, kind) = self.look_up(dir, name)?;
        if kind != NodeKind::Directory {
            return Err(Error::NotDirectory);
        }
        if !self.directory(inode)?.names.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.take(dir, name);
        self.directories.remove(&inode);
        Ok(())
    }

    /// renameat2. Returns the inode whose name was replaced, if its link is still counted.
    ///
    /// # Errors
    ///
    /// The refusal that POSIX gives.
    pub fn rename(&mut self, ends: &Ends) -> Result<Option<InodeId>, Error> {
        let Ends { dir, name, to_dir, to_name, mode } = ends;
        let to = self.directory(*to_dir)?.names.get(to_name).copied();
        let from = self.look_up(*dir, name)?;
        let exchange = *mode == RenameMode::Exchange;
        if matches!(mode, RenameMode::Whiteout { .. }) {
            return Err(Error::NotSupported { what: "whiteouts: no workload makes one".into() });
        }
        match to {
            None if exchange => return Err(Error::NotFound),
            Some(_) if *mode == RenameMode::NoReplace => return Err(Error::Exists),
            Some(to) if to.0 == from.0 => return Ok(None),
            Some(to) if !exchange => fit(from, to)?,
            _ => {}
        }
        if dir != to_dir {
            self.not_below(*to_dir, from)?;
            to.filter(|_| exchange).map_or(Ok(()), |to| self.not_below(*dir, to))?;
        }
        if to.is_some_and(|to| !exchange && !self.is_empty(to)) {
            return Err(Error::NotEmpty);
        }
        self.take(*dir, name);
        if let Some(to) = to.filter(|_| exchange) {
            self.put(*dir, name, to);
            self.set_parent(to, *dir);
        }
        self.put(*to_dir, to_name, from);
        self.set_parent(from, *to_dir);
        let Some(replaced) = to.filter(|_| !exchange) else { return Ok(None) };
        Ok(match replaced.1 {
            NodeKind::Directory => self.directories.remove(&replaced.0).and(None),
            _ => Some(replaced.0),
        })
    }

    /// Checks that `dir` is not the directory `moved`, nor below it.
    fn not_below(&self, dir: InodeId, moved: Node) -> Result<(), Error> {
        if moved.1 == NodeKind::Directory && self.way_up(dir).contains(&moved.0) {
            return Err(Error::Loop);
        }
        Ok(())
    }

    /// A directory and those above it, up to the root (or to one that a power cut left unreachable).
    pub fn way_up(&self, dir: InodeId) -> Vec<InodeId> {
        let mut way = vec![dir];
        let mut at = dir;
        while let Some(directory) = self.directories.get(&at).filter(|above| !way.contains(&above.parent)) {
            at = directory.parent;
            way.push(at);
        }
        way
    }

    fn is_empty(&self, node: Node) -> bool {
        self.directory(node.0).is_ok_and(|directory| directory.names.is_empty()) || node.1 != NodeKind::Directory
    }

    /// Sets the node that a name leads to.
    pub fn put(&mut self, dir: InodeId, name: &Name, node: Node) {
        if let Some(directory) = self.directories.get_mut(&dir) {
            Rc::make_mut(directory).names.insert(name.clone(), node);
        }
    }

    /// Removes a name.
    fn take(&mut self, dir: InodeId, name: &Name) {
        if let Some(directory) = self.directories.get_mut(&dir) {
            Rc::make_mut(directory).names.remove(name);
        }
    }

    fn set_parent(&mut self, node: Node, parent: InodeId) {
        if let Some(directory) = self.directories.get_mut(&node.0) {
            Rc::make_mut(directory).parent = parent;
        }
    }

    /// Adds `by` to a link count; returns the new count.
    pub fn count_links(&mut self, inode: InodeId, by: i32) -> u32 {
        match Rc::make_mut(&mut self.files).get_mut(&inode) {
            Some((_, links)) => {
                *links = links.saturating_add_signed(by);
                *links
            }
            None => 0,
        }
    }
}

/// Checks that one may replace the other, by their kinds.
fn fit(from: Node, to: Node) -> Result<(), Error> {
    match (from.1 == NodeKind::Directory, to.1 == NodeKind::Directory) {
        (true, false) => Err(Error::NotDirectory),
        (false, true) => Err(Error::IsDirectory),
        _ => Ok(()),
    }
}
