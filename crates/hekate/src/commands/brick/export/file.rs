//! The bytes of one file: those stored with the inode, or those of its shards. Zeros, and bytes that are not here, stay
//! holes.

use super::known::Holes;
use super::report::Finding;
use super::walk::Walk;
use crate::failure::Failure;
use hekate_brick::inspect::guarded;
use hekate_proto::*;
use rustix::fd::AsFd;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::result::Result;

const BLOCK: u32 = BLOCK_BYTES as u32;

/// A run of the file in one shard.
struct Run {
    shard: ShardId,
    /// Offset of the shard's first byte in the file, in bytes.
    at: u64,
    /// Length of the run, in bytes.
    length: u32,
}

impl Walk<'_> {
    /// Writes the bytes into a new file. Returns the file's size, in bytes.
    ///
    /// # Errors
    ///
    /// The target cannot be written; bytes that the brick does not have are reported as findings.
    pub fn fill(&mut self, file: &File, id: InodeId, record: &InodeRecord, path: &[u8]) -> Result<u64, Failure> {
        let size = record.size.min(FILE_BYTES_MAX);
        if let Err(error) = rustix::fs::ftruncate(file.as_fd(), size) {
            self.find(Finding::NotMade, path, &format!("a file of {size} bytes: {}", std::io::Error::from(error)));
            return Ok(0);
        }
        if record.layout.is_inline() {
            match self.source.contents.get(&Key::inode(self.ring, self.volume, id, Kind::Content)) {
                Ok(content) => {
                    let content = content.unwrap_or_default();
                    let count = content.len().min(size as usize);
                    self.write(file, &content[..count], 0)?;
                }
                Err(error) => self.find(Finding::Damaged, path, &format!("all of its bytes: {error}")),
            }
            return Ok(size);
        }
        let mut start = 0u64;
        for piece in &record.layout.pieces {
            let length = piece.length.min(size.saturating_sub(start));
            self.fill_piece(file, piece.data, start, length, path)?;
            start += length;
        }
        Ok(size)
    }

    fn fill_piece(&mut self, file: &File, data: DataId, start: u64, length: u64, path: &[u8]) -> Result<(), Failure> {
        let count = length.div_ceil(SHARD_BYTES);
        let here = self.catalog.shards_of(self.ring, self.volume, data);
        let holes = Holes::of(self.source, self.catalog, self.ring, self.volume, data, count, &here);
        holes.words().into_iter().for_each(|what| self.find(Finding::Incomplete, path, &what));
        for index in here.into_iter().filter(|index| *index < count) {
            let begin = index * SHARD_BYTES;
            let shard = ShardId { volume: self.volume, data, index };
            let length = (length - begin).min(SHARD_BYTES) as u32;
            self.fill_run(file, &Run { shard, at: start + begin, length }, path)?;
        }
        Ok(())
    }

    fn fill_run(&mut self, file: &File, run: &Run, path: &[u8]) -> Result<(), Failure> {
        self.progress.tick(&self.report.progress());
        self.say_lost(run, path);
        let read = |offset, length| {
            guarded("reading a shard", || self.source.brick.read_shard(self.ring, run.shard, offset, length))
        };
        if let Ok(bytes) = read(0, run.length) {
            return self.write(file, &bytes, run.at);
        }
        // Block by block, so that the copy lacks only the damaged ones.
        let (mut damaged, mut why): (Vec<(u32, u32)>, _) = (Vec::new(), String::new());
        let mut readable = Vec::new();
        for block in 0..run.length.div_ceil(BLOCK) {
            match read(block * BLOCK, BLOCK.min(run.length - block * BLOCK)) {
                Ok(bytes) => readable.push((block, bytes)),
                Err(error) => {
                    why = error.to_string();
                    match damaged.last_mut() {
                        Some((first, count)) if *first + *count == block => *count += 1,
                        _ => damaged.push((block, 1)),
                    }
                }
            }
        }
        for (block, bytes) in readable {
            self.write(file, &bytes, run.at + u64::from(block * BLOCK))?;
        }
        for (first, count) in damaged {
            let from = run.at + u64::from(first * BLOCK);
            let to = (from + u64::from(count * BLOCK)).min(run.at + u64::from(run.length));
            self.find(Finding::Damaged, path, &format!("bytes {from} to {}: {why}", to - 1));
        }
        Ok(())
    }

    /// Reports blocks that a power cut kept from this brick's disk: they read as zeros, and another replica may have
    /// them.
    fn say_lost(&mut self, run: &Run, path: &[u8]) {
        let lost = self.source.lost.iter().filter(|lost| lost.ring == self.ring && lost.shard == run.shard);
        let blocks = lost.count() as u64;
        if blocks > 0 {
            let what = format!("{blocks} blocks from byte {} on were lost in a power cut and are holes here", run.at);
            self.find(Finding::Incomplete, path, &what);
        }
    }

    /// Writes a block unless it is all zeros.
    fn write(&mut self, file: &File, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        let mut at = 0;
        while at < bytes.len() {
            let blocks = bytes[at..].chunks(BLOCK_BYTES);
            let zero = |block: &&[u8]| block.iter().all(|byte| *byte == 0);
            let skipped: usize = blocks.clone().take_while(zero).map(<[u8]>::len).sum();
            let written: usize =
                bytes[at + skipped..].chunks(BLOCK_BYTES).take_while(|block| !zero(block)).map(<[u8]>::len).sum();
            let from = at + skipped;
            file.write_all_at(&bytes[from..from + written], offset + from as u64).map_err(|error| {
                match error.raw_os_error() {
                    Some(28 | 122) => Error::NoSpace {
                        what: "the target of the export is full; name a directory on a larger disk".into(),
                    },
                    _ => Error::io("write a file", error),
                }
            })?;
            at = from + written;
        }
        Ok(())
    }
}
