//! A storage on a real directory.

use super::quota::Quotas;
use super::{Space, Storage, StorageFile};
use hekate_proto::planted::{Bug, is_planted};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs::File;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of the local file system.
pub struct RealStorage {
    root: PathBuf,
    access: OFlags,
    quotas: Quotas,
}

impl RealStorage {
    /// A storage below `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.into(), access: OFlags::RDWR, quotas: Quotas::of(root) }
    }

    /// A storage below `root` that opens files for reading only, so that no bug can change them.
    pub fn read_only(root: &Path) -> Self {
        Self { root: root.into(), access: OFlags::RDONLY, quotas: Quotas::none() }
    }
}

impl Storage for RealStorage {
    fn open(&self, path: &str, create: bool) -> Result<Arc<dyn StorageFile>> {
        let flags = self.access | OFlags::CLOEXEC | if create { OFlags::CREATE } else { OFlags::empty() };
        let fd = rustix::fs::open(self.root.join(path), flags, Mode::from_raw_mode(0o600))?;
        Ok(Arc::new(RealFile(fd.into())))
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        std::fs::create_dir_all(self.root.join(path))
    }

    fn remove(&self, path: &str) -> Result<()> {
        match std::fs::remove_file(self.root.join(path)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(self.root.join(path))?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        File::open(self.root.join(path))?.sync_all()
    }

    fn space(&self) -> Result<Space> {
        let s = rustix::fs::statvfs(&self.root)?;
        let bytes = |blocks: u64| blocks.saturating_mul(s.f_frsize);
        let space = Space {
            total: bytes(s.f_blocks),
            free: bytes(s.f_bfree),
            available: bytes(s.f_bavail),
            files: s.f_files,
            // A file system that does not count inodes reports 0 of 0.
            files_available: if s.f_files == 0 { u64::MAX } else { s.f_favail },
        };
        Ok(self.quotas.limit(space))
    }

    fn settle_removals(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.root)?)?)
    }
}

struct RealFile(File);

impl StorageFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn append_to(&self, buffer: &mut Vec<u8>, length: usize, offset: u64) -> Result<()> {
        let (begin, end) = (buffer.len(), buffer.len() + length);
        buffer.reserve(length);
        // Memory that the kernel fills is not cleared before. It fills all that the buffer has, so that has to be all that is
        // wanted.
        while buffer.capacity() == end && buffer.len() < end {
            let at = offset + (buffer.len() - begin) as u64;
            let read =
                rustix::io::retry_on_intr(|| rustix::io::pread(&self.0, rustix::buffer::spare_capacity(buffer), at));
            if read? == 0 {
                break;
            }
        }
        let read = buffer.len();
        buffer.resize(end, 0);
        self.read_at(&mut buffer[read..], offset + (read - begin) as u64).map(|_| ())
    }

    fn write_at(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        let slices: Vec<IoSlice> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let written = rustix::io::retry_on_intr(|| rustix::io::pwritev(&self.0, &slices, offset))?;
        // A short write (a full disk, a signal) is continued with the rest, so that the error shows.
        let mut skip = written;
        let mut at = offset + written as u64;
        for part in parts.iter().filter(|_| written < total) {
            let rest = &part[skip.min(part.len())..];
            skip -= skip.min(part.len());
            self.0.write_all_at(rest, at)?;
            at += rest.len() as u64;
        }
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_length(&self, length: u64) -> Result<()> {
        self.0.set_len(length)
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, offset, length) {
            // A later write shows whether there is room.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            other => other.map_err(Error::from),
        }
    }

    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.0, flags, offset, length) {
            // A file system without holes keeps the space until the file is removed. No reader needs the zeros.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            other => other.map_err(Error::from),
        }
    }

    fn sync(&self) -> Result<()> {
        if is_planted(Bug::SyncOff) {
            return Ok(());
        }
        self.0.sync_data()
    }

    fn forget_cached(&self) -> Result<()> {
        // Dirty pages stay. The syncs of the opening write them or fail.
        rustix::fs::fadvise(&self.0, 0, None, rustix::fs::Advice::DontNeed).map_err(Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_is_the_file_and_zeros_behind_its_end() {
        let root = std::env::temp_dir().join(format!("hekate-append-to-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let file = RealStorage::new(&root).open("file", true).unwrap();
        let content: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8 + 1).collect();
        file.write_at(&[&content], 0).unwrap();
        let zeros = |count: usize| vec![0; count];
        let cases = [
            (0, 10_000, content.clone()),
            (9_000, 500, content[9_000..9_500].to_vec()),
            (9_000, 3_000, [&content[9_000..], &zeros(2_000)].concat()),
            (20_000, 100, zeros(100)),
            (5, 0, Vec::new()),
        ];
        // Room that is missing, that is exactly there, and that is more than is wanted.
        for room in [0, 1, 100_000] {
            for (offset, length, expected) in &cases {
                let mut buffer = Vec::with_capacity(if room == 1 { 3 + length } else { 3 + room });
                buffer.extend_from_slice(b"abc");
                file.append_to(&mut buffer, *length, *offset).unwrap();
                assert!(buffer == [b"abc", &expected[..]].concat(), "{length} bytes at {offset} with room {room}");
            }
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
