//! The rate of the disk itself: O_DSYNC writes to a file that was written before, so that no block is new.

use crate::measure::Random;
use crate::options::Failed;
use crate::rate::Readings;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 128 << 20;
const SEQUENTIAL_BYTES: usize = 64 << 10;

/// O_DIRECT needs memory that begins at a block.
#[repr(align(4096))]
struct Aligned([u8; SEQUENTIAL_BYTES]);

/// A file to write to.
pub struct Disk {
    file: File,
}

impl Disk {
    /// Makes the file and writes it with zeros, as a journal's segments are.
    pub fn new(directory: &Path, direct: bool) -> Result<Self, Failed> {
        let path = directory.join("disk");
        let file = File::create(&path)?;
        let zeros = vec![0; 1 << 20];
        for at in (0..FILE_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, at)?;
        }
        file.sync_all()?;
        let flags = OFlags::WRONLY | OFlags::DSYNC | if direct { OFlags::DIRECT } else { OFlags::empty() };
        Ok(Self { file: rustix::fs::open(&path, flags, Mode::empty())?.into() })
    }

    /// Writes of 4 KiB at random places, from so many threads.
    pub fn random_writes(&self, threads: usize, time: Duration) -> Result<Readings, Failed> {
        crate::rate::in_threads(threads, |number, readings| {
            let (mut random, mut block) = (Random(number as u64), Box::new(Aligned([0; SEQUENTIAL_BYTES])));
            let begun = Instant::now();
            while begun.elapsed() < time {
                let at = random.below(FILE_BYTES / 4096) * 4096;
                block.0[..8].copy_from_slice(&random.next().to_le_bytes());
                readings.time(|| self.file.write_all_at(&block.0[..4096], at))?;
            }
            Ok(())
        })
    }

    /// Writes of 64 KiB one behind the other, from one thread.
    pub fn sequential_writes(&self, time: Duration) -> Result<Readings, Failed> {
        crate::rate::in_threads(1, |_, readings| {
            let block = Box::new(Aligned([1; SEQUENTIAL_BYTES]));
            let begun = Instant::now();
            for at in (0..FILE_BYTES).step_by(SEQUENTIAL_BYTES).cycle() {
                if begun.elapsed() >= time {
                    break;
                }
                readings.time(|| self.file.write_all_at(&block.0, at))?;
            }
            Ok(())
        })
    }
}
