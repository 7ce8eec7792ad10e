//! Who a brick is: `brick.toml`, and the incarnation that it is in. `docs/format/brick.md` is the document.

use hekate_proto::{BrickId, Error, Incarnation, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The version of everything in a brick. Version 1, never released, ordered the keys of the index otherwise
/// (`docs/adr/0007-key-order.md`); its bricks are refused.
pub const FORMAT_VERSION: u32 = 9;

/// How a brick is laid out; fixed when it is made.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct BrickSettings {
    /// Segments of the journal, at least 4.
    pub journal_segments: u64,
    /// Bytes of a segment, at least 8 MiB so that the greatest op fits.
    pub segment_bytes: u64,
    /// Bytes of the index that are kept in memory.
    pub index_cache_bytes: usize,
    /// Bytes of the reserve file, which a checkpoint on a full disk uses.
    pub reserve_bytes: u64,
}

impl Default for BrickSettings {
    fn default() -> Self {
        Self { journal_segments: 8, segment_bytes: 16 << 20, index_cache_bytes: 64 << 20, reserve_bytes: 64 << 20 }
    }
}

/// `brick.toml`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Identity {
    /// Version of the formats.
    pub format: u32,
    /// The brick, 32 hex digits.
    pub brick: String,
    /// The cluster, 32 hex digits.
    pub cluster: String,
    /// Its layout.
    pub settings: BrickSettings,
}

/// When the brick was last opened, to tell a new boot or mount from a restarted process.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, Default)]
struct Life {
    incarnation: u64,
    boot: String,
    mount: u64,
}

const IDENTITY_FILE: &str = "brick.toml";
const LIFE_FILE: &str = "life.toml";

/// A directory for what nobody else is to change must be our own.
pub fn check_own(directory: &Path) -> Result<()> {
    let shown = directory.display();
    let found = std::fs::metadata(directory).map_err(|e| Error::io(format!("look at {shown}"), e))?;
    let own = rustix::process::geteuid().as_raw();
    match found.uid() == own {
        true => Ok(()),
        false => Err(Error::Denied {
            what: format!("{shown} belongs to user {}, and we are user {own}: chown {own} {shown}", found.uid()),
        }),
    }
}

impl Identity {
    /// For a new brick.
    pub fn new(brick: BrickId, cluster: &str, settings: BrickSettings) -> Self {
        Self { format: FORMAT_VERSION, brick: brick.text(), cluster: cluster.into(), settings }
    }

    /// The brick's id.
    pub fn brick_id(&self) -> Result<BrickId> {
        let bits = u128::from_str_radix(&self.brick, 16);
        bits.map(BrickId).map_err(|_| Error::Damaged { what: format!("{:?} is no brick id", self.brick) })
    }

    /// Makes the directory, or checks that it is empty.
    pub fn check_empty(directory: &Path) -> Result<()> {
        let shown = directory.display();
        std::fs::create_dir_all(directory).map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                Error::invalid(format!("{shown} is a file, or below one; a brick needs a directory of its own"))
            }
            _ => Error::io(format!("make the brick directory {shown}"), e),
        })?;
        check_own(directory)?;
        let mut entries = std::fs::read_dir(directory).map_err(|e| Error::io(format!("read {shown}"), e))?;
        // `lost+found` is what mkfs leaves in a fresh file system.
        if entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found")) {
            return Err(Error::invalid(format!("{shown} is not empty; a brick needs a directory of its own")));
        }
        Ok(())
    }

    /// The same, and from now on nobody else may look into it or change it.
    pub fn take_empty(directory: &Path) -> Result<()> {
        Self::check_empty(directory)?;
        let shown = directory.display();
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))
            .map_err(|e| Error::io(format!("chmod 700 {shown}"), e))?;
        // What somebody has put there before that.
        Self::check_empty(directory)
    }

    /// Writes `brick.toml`, the last step of making a brick: without it a directory is none.
    pub fn write_new(&self, directory: &Path) -> Result<()> {
        let text = toml::to_string(self).map_err(|e| Error::bug(e.to_string()))?;
        write_file_durably(&directory.join(IDENTITY_FILE), &text)
    }

    /// Reads and checks `brick.toml`.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(IDENTITY_FILE);
        let text = std::fs::read_to_string(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Error::invalid(format!(
                "{} is not a brick (no {IDENTITY_FILE}); is its disk mounted?",
                directory.display()
            )),
            _ => Error::io(format!("read {}", path.display()), e),
        })?;
        let identity: Self = toml::from_str(&text)
            .map_err(|e| Error::Damaged { what: format!("{}: {}", path.display(), e.message()) })?;
        if identity.format != FORMAT_VERSION {
            return Err(Error::NotSupported {
                what: format!(
                    "{} has format {}, this program knows {FORMAT_VERSION}; use the release that wrote it, or a newer one",
                    directory.display(),
                    identity.format
                ),
            });
        }
        Ok(identity)
    }
}

/// Takes the brick for this process, until the file is dropped (brick invariant 2).
pub fn lock(directory: &Path) -> Result<File> {
    let path = directory.join(IDENTITY_FILE);
    let file = File::open(&path).map_err(|e| Error::io(format!("open {}", path.display()), e))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| Error::Unavailable {
        what: format!("the brick {} is in use by another process", directory.display()),
    })?;
    Ok(file)
}

/// The life that an opened brick is in. Its number is recorded when it begins, its boot and mount only once what the last
/// one left is settled: a process that dies before is reborn again, in another life.
pub struct NextLife {
    path: PathBuf,
    life: Life,
    before: Life,
    new: bool,
}

impl NextLife {
    /// One more if the machine booted or the disk was mounted since the brick was last in use.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.life.incarnation)
    }

    /// Whether what was not synced may be lost.
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// Records its number, before anybody is told of it.
    pub fn begin(&self) -> Result<()> {
        self.record(&Life { incarnation: self.life.incarnation, ..self.before.clone() })
    }

    /// Records it as settled.
    pub fn settle(&self) -> Result<()> {
        self.record(&self.life)
    }

    fn record(&self, life: &Life) -> Result<()> {
        if !self.new {
            return Ok(());
        }
        write_file_durably(&self.path, &toml::to_string(life).map_err(|e| Error::bug(e.to_string()))?)
    }
}

/// The life that the brick is in now.
pub fn next_life(directory: &Path) -> Result<NextLife> {
    let path = directory.join(LIFE_FILE);
    let before: Life = match std::fs::read_to_string(&path) {
        Ok(text) => toml::from_str(&text)
            .map_err(|e| Error::Damaged { what: format!("{}: {}", path.display(), e.message()) })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Life::default(),
        Err(error) => return Err(Error::io(format!("read {}", path.display()), error)),
    };
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|e| Error::io("read /proc/sys/kernel/random/boot_id", e))?;
    let now = Life { boot: boot.trim().into(), mount: mount_id(directory)?, ..before.clone() };
    // What had stopped itself can trust its caches no more than after a boot.
    let new = now != before || directory.join(crate::brick::poison_note::FILE).exists();
    let life = Life { incarnation: before.incarnation + u64::from(new), ..now };
    Ok(NextLife { path, life, before, new })
}

fn mount_id(directory: &Path) -> Result<u64> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    // STATX_MNT_ID_UNIQUE (Linux 6.8) is never re-used; older kernels give the reusable STATX_MNT_ID.
    const UNIQUE: u32 = 0x4000;
    let wanted = StatxFlags::from_bits_retain(UNIQUE);
    let unique = statx(CWD, directory, AtFlags::empty(), wanted).ok().filter(|s| s.stx_mask & UNIQUE != 0);
    let stat = match unique {
        Some(stat) => stat,
        None => statx(CWD, directory, AtFlags::empty(), StatxFlags::MNT_ID)
            .map_err(|e| Error::io(format!("statx {}", directory.display()), e.into()))?,
    };
    Ok(stat.stx_mnt_id)
}

fn write_file_durably(path: &Path, text: &str) -> Result<()> {
    let failed = |e| Error::io(format!("write {}", path.display()), e);
    let new = path.with_extension("new");
    let mut file = File::create(&new).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)?;
    let parent = path.parent().unwrap_or(Path::new("."));
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(failed)
}
