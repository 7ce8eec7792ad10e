//! The identity of a brick, `brick.toml`, and its incarnation, `life.toml`. `docs/format/brick.md` describes both
//! files.

use hekate_proto::{BrickId, Error, Incarnation, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The version of all formats in a brick. A brick of another version is refused; `docs/format/README.md` says why there
/// is no migration before 1.0.
pub const FORMAT_VERSION: u32 = 10;

/// The layout of a brick, fixed when it is created.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct BrickSettings {
    /// Segments of the journal, from 4 to 65,536.
    pub journal_segments: u64,
    /// Bytes of a segment, from 64 KiB to 1 GiB. A server needs 8 MiB, so that a segment holds the greatest op.
    pub segment_bytes: u64,
    /// Bytes of memory for the cache of the index.
    pub index_cache_bytes: usize,
    /// Bytes of the reserve, which a checkpoint may use on a full disk.
    pub reserve_bytes: u64,
}

impl Default for BrickSettings {
    fn default() -> Self {
        Self { journal_segments: 8, segment_bytes: 16 << 20, index_cache_bytes: 64 << 20, reserve_bytes: 64 << 20 }
    }
}

/// The content of `brick.toml`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Identity {
    /// Version of the formats: `FORMAT_VERSION`.
    pub format: u32,
    /// Id of the brick, 32 hex digits.
    pub brick: String,
    /// Id of the cluster, 32 hex digits.
    pub cluster: String,
    /// Layout of the brick.
    pub settings: BrickSettings,
}

/// The content of `life.toml`: the incarnation, and the boot and mount that it was settled in.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, Default)]
struct Life {
    incarnation: u64,
    boot: String,
    mount: u64,
}

const IDENTITY_FILE: &str = "brick.toml";
const LIFE_FILE: &str = "life.toml";

/// Checks that a directory belongs to the user of this process.
///
/// # Errors
/// `Denied`: it belongs to another user, who could change what is in it. The text contains the `chown` command to run.
pub fn check_own(directory: &Path) -> Result<()> {
    let shown = directory.display();
    let found = std::fs::metadata(directory).map_err(|e| Error::io(format!("look at {shown}"), e))?;
    let own = rustix::process::geteuid().as_raw();
    match found.uid() == own {
        true => Ok(()),
        false => Err(Error::Denied {
            what: format!("{shown} belongs to user {}, and this process to {own}: chown {own} {shown}", found.uid()),
        }),
    }
}

impl Identity {
    /// The identity of a new brick.
    pub fn new(brick: BrickId, cluster: &str, settings: BrickSettings) -> Self {
        Self { format: FORMAT_VERSION, brick: brick.text(), cluster: cluster.into(), settings }
    }

    /// The brick's id. `Damaged` if the file has none.
    pub fn brick_id(&self) -> Result<BrickId> {
        let bits = u128::from_str_radix(&self.brick, 16);
        bits.map(BrickId).map_err(|_| Error::Damaged { what: format!("{:?} is no brick id", self.brick) })
    }

    /// Makes the directory, or checks that it is empty and belongs to the user of this process.
    ///
    /// # Errors
    /// `Invalid`: it is a file, or not empty. `Denied`: it belongs to another user.
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
        // mkfs leaves `lost+found` in a new file system.
        if entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found")) {
            return Err(Error::invalid(format!("{shown} is not empty; a brick needs a directory of its own")));
        }
        Ok(())
    }

    /// As [`Identity::check_empty`], and takes all rights to the directory from other users.
    ///
    /// # Errors
    /// Those of [`Identity::check_empty`]; `Io` if the rights cannot be changed.
    pub fn take_empty(directory: &Path) -> Result<()> {
        Self::check_empty(directory)?;
        let shown = directory.display();
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))
            .map_err(|e| Error::io(format!("chmod 700 {shown}"), e))?;
        // Another user may have put a file there before the rights changed.
        Self::check_empty(directory)
    }

    /// Writes `brick.toml`. This is the last step of creating a brick: without that file a directory is no brick.
    ///
    /// # Errors
    /// `Io`, `NoSpace`: the file cannot be written.
    pub fn write_new(&self, directory: &Path) -> Result<()> {
        let text = toml::to_string(self).map_err(|e| Error::bug(e.to_string()))?;
        write_file_durably(&directory.join(IDENTITY_FILE), &text)
    }

    /// Reads `brick.toml`.
    ///
    /// # Errors
    /// `Invalid`: there is no such file. `NotSupported`: another version of the formats. `Damaged`: the file cannot be
    /// parsed.
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
                    "{} has format {}, this program knows {FORMAT_VERSION}; use the release that wrote it, or a newer \
                     one",
                    directory.display(),
                    identity.format
                ),
            });
        }
        Ok(identity)
    }
}

/// Locks the brick for this process until the file is dropped (brick invariant 2).
///
/// # Errors
/// `Unavailable`: another process has it open.
pub fn lock(directory: &Path) -> Result<File> {
    let path = directory.join(IDENTITY_FILE);
    let file = File::open(&path).map_err(|e| Error::io(format!("open {}", path.display()), e))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| Error::Unavailable {
        what: format!("the brick {} is in use by another process", directory.display()),
    })?;
    Ok(file)
}

/// The incarnation of an opened brick.
///
/// Its number is recorded when the brick is opened, its boot and mount only when the incarnation is settled. If the
/// process dies before that, the next opening begins another incarnation, and trusts nothing that was not synced
/// either.
pub struct NextLife {
    path: PathBuf,
    life: Life,
    before: Life,
    new: bool,
}

impl NextLife {
    /// The incarnation of this opening: one more than the recorded one if the machine booted, the disk was mounted, or
    /// the brick stopped itself since that was settled.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.life.incarnation)
    }

    /// Whether the incarnation is a new one: what was not synced may be lost.
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// Records the number, before any server learns it.
    pub fn begin(&self) -> Result<()> {
        self.record(&Life { incarnation: self.life.incarnation, ..self.before.clone() })
    }

    /// Records boot and mount: the incarnation is settled.
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

/// The incarnation that an opening begins or continues.
///
/// # Errors
/// `Damaged`: `life.toml` cannot be parsed. `Io`: a file cannot be read.
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
    // A brick that stopped itself can trust the page cache no more than after a boot.
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
