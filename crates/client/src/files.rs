//! Shortcuts by path, for programs that use the library directly.

use crate::volume::{New, Volume};
use bytes::{Bytes, BytesMut};
use hekate_graph::Context;
use hekate_proto::{Attr, Entry, Error, IO_BYTES_MAX, Name, NewNode, NodeKind, ROOT, RenameMode, Result};

impl Volume {
    /// The inode at a path. `/` separates names; symbolic links are not followed.
    ///
    /// # Errors
    /// `NotFound` and `NotDirectory` for the names of the path, `NameTooLong` and `Invalid` for a name that cannot be
    /// one, and those of every method of [`Volume`]. So do the other methods by path.
    pub fn find(&self, path: &str) -> Result<Attr> {
        let context = Context::default();
        let mut at = self.getattr(&context, ROOT)?;
        for name in path.split('/').filter(|part| !part.is_empty()) {
            at = self.lookup(&context, at.id, Name::try_from(name)?)?;
        }
        Ok(at)
    }

    /// The whole content of a file.
    ///
    /// # Errors
    /// `IsDirectory` for a directory; those of [`Volume::find`] and [`Volume::read`].
    pub fn read_file(&self, path: &str) -> Result<Bytes> {
        let context = Context::default();
        let file = self.find(path)?;
        if file.kind == NodeKind::Directory {
            return Err(Error::IsDirectory);
        }
        let mut all = BytesMut::new();
        while (all.len() as u64) < file.size {
            let part = self.read(&context, file.id, all.len() as u64, IO_BYTES_MAX as u32)?;
            if part.is_empty() {
                break;
            }
            all.extend_from_slice(&part);
        }
        Ok(all.freeze())
    }

    /// Replaces the content of a file, or makes the file. Returns once the content is on stable storage. If it fails,
    /// the file may be empty or have a part of the content.
    ///
    /// # Errors
    /// Those of [`Volume::find`], [`Volume::create`], [`Volume::write`] and [`Volume::fsync`].
    pub fn write_file(&self, path: &str, content: &[u8]) -> Result<Attr> {
        let context = Context::default();
        let (dir, name) = self.place(path)?;
        let new = New { node: NewNode::File, mode: 0o644, uid: own_uid(), gid: own_gid(), umask: 0, exclusive: false };
        let (file, created) = self.create(&context, dir, name, new)?;
        if !created {
            let changes = hekate_proto::AttrChanges { size: Some(0), ..Default::default() };
            self.setattr(&context, file.id, changes)?;
        }
        for (index, part) in content.chunks(IO_BYTES_MAX).enumerate() {
            let offset = (index * IO_BYTES_MAX) as u64;
            self.write(&context, file.id, offset, Bytes::copy_from_slice(part), false)?;
        }
        self.fsync(&context, file.id)?;
        self.fsync(&context, dir)?;
        self.getattr(&context, file.id)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists` if the name exists; those of [`Volume::find`].
    pub fn make_directory(&self, path: &str) -> Result<Attr> {
        let (dir, name) = self.place(path)?;
        let new =
            New { node: NewNode::Directory, mode: 0o755, uid: own_uid(), gid: own_gid(), umask: 0, exclusive: true };
        Ok(self.create(&Context::default(), dir, name, new)?.0)
    }

    /// All entries of a directory with their attributes, in byte order of their names.
    ///
    /// # Errors
    /// Those of [`Volume::find`] and [`Volume::list`].
    pub fn read_directory(&self, path: &str) -> Result<Vec<Entry>> {
        let dir = self.find(path)?.id;
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let after = all.last().map(|entry| entry.name.clone());
            let (mut entries, end) = self.list(&Context::default(), dir, after, 1024, true)?;
            all.append(&mut entries);
            if end {
                return Ok(all);
            }
        }
    }

    /// Removes a file, or an empty directory.
    ///
    /// # Errors
    /// Those of [`Volume::find`], [`Volume::unlink`] and [`Volume::rmdir`].
    pub fn remove(&self, path: &str) -> Result<()> {
        let context = Context::default();
        let (dir, name) = self.place(path)?;
        let at = self.lookup(&context, dir, name.clone())?;
        match at.kind {
            NodeKind::Directory => self.rmdir(&context, dir, name),
            _ => self.unlink(&context, dir, name, Some(at.id)),
        }
    }

    /// Renames a file or directory. An inode that has the new name is replaced.
    ///
    /// # Errors
    /// Those of [`Volume::find`] and [`Volume::rename`].
    pub fn rename_path(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let replaced = self.lookup(&Context::default(), to.0, to.1.clone()).ok().map(|attr| attr.id);
        self.rename(&Context::default(), from, to, RenameMode::Replace, replaced)
    }

    /// The directory and the last name of a path.
    fn place(&self, path: &str) -> Result<(hekate_proto::InodeId, Name)> {
        let trimmed = path.trim_end_matches('/');
        let (dir, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
        Ok((self.find(dir)?.id, Name::try_from(name)?))
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn own_gid() -> u32 {
    rustix::process::getegid().as_raw()
}
