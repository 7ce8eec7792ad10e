//! The bytes of a file in chunks that copies share: an image of a whole brick costs a few pointers until it is written
//! to.

use super::SECTOR_BYTES;
use std::sync::Arc;

const CHUNK_BYTES: usize = 4096;

type Chunk = Arc<[u8; CHUNK_BYTES]>;

/// Bytes of a file. A missing chunk is zeros; bytes of the last chunk behind `length` are zeros.
#[derive(Clone, Default)]
pub struct Content {
    length: u64,
    chunks: Arc<Vec<Option<Chunk>>>,
}

impl Content {
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads at most `buffer.len()` bytes. Returns the number read.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let count = self.length.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.pieces(offset, count, |chunk, at, into| {
            let into = &mut buffer[into..into + at.len()];
            match chunk {
                Some(chunk) => into.copy_from_slice(&chunk[at]),
                None => into.fill(0),
            }
        });
        count
    }

    /// Writes, and extends the file if needed.
    pub fn write(&mut self, bytes: &[u8], offset: u64) {
        if bytes.is_empty() {
            return;
        }
        self.length = self.length.max(offset + bytes.len() as u64);
        self.make_chunks();
        let chunks = Arc::make_mut(&mut self.chunks);
        let mut done = 0;
        while done < bytes.len() {
            let (number, from) = split(offset + done as u64);
            let count = (CHUNK_BYTES - from).min(bytes.len() - done);
            let part = &bytes[done..done + count];
            match &mut chunks[number] {
                Some(chunk) => Arc::make_mut(chunk)[from..from + count].copy_from_slice(part),
                None if part.iter().all(|byte| *byte == 0) => {}
                missing => {
                    let mut chunk = [0; CHUNK_BYTES];
                    chunk[from..from + count].copy_from_slice(part);
                    *missing = Some(Arc::new(chunk));
                }
            }
            done += count;
        }
    }

    /// Truncates the file, or extends it with zeros.
    pub fn set_length(&mut self, length: u64) {
        if length < self.length {
            self.zero(length, self.length);
        }
        self.length = length;
        self.make_chunks();
    }

    /// Zeros `from..to`, as far as the file reaches.
    pub fn zero(&mut self, from: u64, to: u64) {
        let to = to.min(self.length);
        let chunks = Arc::make_mut(&mut self.chunks);
        let mut at = from;
        while at < to {
            let (number, from) = split(at);
            let count = ((CHUNK_BYTES - from) as u64).min(to - at) as usize;
            if count == CHUNK_BYTES {
                chunks[number] = None;
            } else if let Some(chunk) = &mut chunks[number] {
                Arc::make_mut(chunk)[from..from + count].fill(0);
            }
            at += count as u64;
        }
    }

    /// The sectors `from..to`, with zeros behind the end. `None`: all are zeros.
    pub fn sectors(&self, from: u64, to: u64) -> Option<Arc<[u8]>> {
        let sector = SECTOR_BYTES as u64;
        let absent = |number: usize| self.chunks.get(number).is_none_or(Option::is_none);
        if (split(from * sector).0..=split((to * sector).max(1) - 1).0).all(absent) {
            return None;
        }
        let mut bytes = vec![0; (to - from) as usize * SECTOR_BYTES];
        self.read(&mut bytes, from * sector);
        bytes.iter().any(|byte| *byte != 0).then(|| bytes.into())
    }

    fn make_chunks(&mut self) {
        let count = self.length.div_ceil(CHUNK_BYTES as u64) as usize;
        if self.chunks.len() != count {
            Arc::make_mut(&mut self.chunks).resize(count, None);
        }
    }

    /// Calls `visit` for each chunk of a range inside the file: the chunk, the range in it, and where it is in the
    /// range.
    fn pieces(&self, offset: u64, count: usize, mut visit: impl FnMut(Option<&Chunk>, std::ops::Range<usize>, usize)) {
        let mut done = 0;
        while done < count {
            let (number, from) = split(offset + done as u64);
            let piece = (CHUNK_BYTES - from).min(count - done);
            visit(self.chunks.get(number).and_then(Option::as_ref), from..from + piece, done);
            done += piece;
        }
    }
}

fn split(offset: u64) -> (usize, usize) {
    ((offset / CHUNK_BYTES as u64) as usize, (offset % CHUNK_BYTES as u64) as usize)
}
