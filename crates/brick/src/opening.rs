//! Creates and opens bricks. `docs/format/brick.md` has the order of the steps.

mod completeness;
pub mod recovery;

use crate::brick::poison_note;
use crate::brick::{Brick, panic_text};
use crate::disk::Disk;
use crate::disk::home::Home;
use crate::disk::reserve::Reserve;
use crate::identity::{self, BrickSettings, Identity};
use crate::index::meta::Meta;
use crate::index::{Index, Reading, RedbIndex};
use crate::journal::{self, Geometry, Lsn};
use crate::storage::{RealStorage, Storage};
use hekate_proto::*;
use recovery::{RecoveryReport, recover};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

impl Brick {
    /// Creates a brick in an empty directory, or one that does not exist.
    ///
    /// # Errors
    /// `Invalid`: the directory is not empty or not a directory, or the settings are out of bounds. `Denied`: another
    /// user owns it. `Io`, `NoSpace`: files cannot be made; the directory is left without `brick.toml` and is no brick.
    pub fn create(directory: &Path, id: BrickId, cluster: &str, settings: BrickSettings) -> Result<Identity> {
        let identity = Identity::new(id, cluster, settings);
        let storage = RealStorage::new(directory);
        Identity::take_empty(directory)?;
        for name in ["journal", "index"] {
            keep_in_place(&directory.join(name))?;
        }
        Self::create_on(&storage, &identity)?;
        identity.write_new(directory)?;
        Ok(identity)
    }

    /// Makes all files of a brick but `brick.toml`.
    ///
    /// # Errors
    /// `Io`, `NoSpace`: a file cannot be made. `Invalid`: the settings are out of bounds.
    pub fn create_on(storage: &dyn Storage, identity: &Identity) -> Result<()> {
        Home::create(storage)?;
        RedbIndex::create(storage)?;
        Reserve::create(storage, identity.settings.reserve_bytes)?;
        journal::create(storage, geometry(identity)?)
    }

    /// Opens a brick of `cluster` and recovers what a crash left.
    ///
    /// # Errors
    /// Those of [`Brick::open_if`].
    pub fn open(directory: &Path, cluster: &str) -> Result<(Self, RecoveryReport)> {
        Self::open_if(directory, cluster, &|_, least| Ok(least))
    }

    /// Opens a brick if `may_open` returns no error. It is called with the brick's id and the least generation that this
    /// opening can have, and returns the generation that it has. An opening that it refuses does not raise the
    /// generation: else an older copy of a brick, opened again and again, would reach the generation of the brick that
    /// it is a copy of.
    ///
    /// # Errors
    /// `Invalid`: the directory is no brick. `Denied`: the brick belongs to another cluster. `NotSupported`: another
    /// format. `Unavailable`: another process has it open, or no file descriptor is free. `Damaged`: what was on stable
    /// storage is missing or unreadable, and the brick has to be rebuilt from its replicas. `Io`: the disk fails. And
    /// what `may_open` returns.
    pub fn open_if(
        directory: &Path,
        cluster: &str,
        may_open: &dyn Fn(BrickId, u32) -> Result<u32>,
    ) -> Result<(Self, RecoveryReport)> {
        let identity = Identity::read(directory)?;
        if identity.cluster != cluster {
            return Err(Error::Denied {
                what: format!(
                    "the brick {} belongs to cluster {}, not to {cluster}; take the right disk, or make a new brick",
                    directory.display(),
                    identity.cluster
                ),
            });
        }
        let lock = identity::lock(directory)?;
        let life = identity::next_life(directory)?;
        let storage = Arc::new(RealStorage::new(directory));
        let reserve = Reserve::new(storage.clone(), identity.settings.reserve_bytes);
        // On a full disk the reserve is released, and the write is tried again.
        life.begin().or_else(|_| reserve.release_all().and_then(|()| life.begin()))?;
        let (incarnation, is_new) = (life.incarnation(), life.is_new());
        let (mut brick, report) = Self::open_on_if(storage, &identity, incarnation, is_new, may_open)?;
        brick.hold(lock);
        brick.set_record_life(Box::new(move || life.settle()));
        Ok((brick, report))
    }

    /// Opens a brick on any storage. `after_power_cut`: what was not synced may be lost.
    ///
    /// # Errors
    /// Those of [`Brick::open_if`], without those of the directory.
    pub fn open_on(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        incarnation: Incarnation,
        after_power_cut: bool,
    ) -> Result<(Self, RecoveryReport)> {
        Self::open_on_if(storage, identity, incarnation, after_power_cut, &|_, least| Ok(least))
    }

    /// As [`Brick::open_on`], if `may_open` returns no error ([`Brick::open_if`]).
    ///
    /// # Errors
    /// Those of [`Brick::open_on`], and what `may_open` returns.
    pub fn open_on_if(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        incarnation: Incarnation,
        after_power_cut: bool,
        may_open: &dyn Fn(BrickId, u32) -> Result<u32>,
    ) -> Result<(Self, RecoveryReport)> {
        Self::open_reading(storage, identity, (incarnation, after_power_cut), may_open, Reading::Strict)
    }

    /// Opens a damaged brick to read what is left of it: blocks of the index are read even if they do not match their
    /// sums.
    pub(crate) fn open_to_salvage(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        life: (Incarnation, bool),
    ) -> Result<(Self, RecoveryReport)> {
        Self::open_reading(storage, identity, life, &|_, least| Ok(least), Reading::Salvage)
    }

    fn open_reading(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        life: (Incarnation, bool),
        may_open: &dyn Fn(BrickId, u32) -> Result<u32>,
        reading: Reading,
    ) -> Result<(Self, RecoveryReport)> {
        let open = || Self::open_checked(storage, identity, life, may_open, reading);
        // The index library may panic on damage.
        catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|panic| {
            Err(Error::Damaged {
                what: format!("opening the brick: {}; rebuild it from its replicas", panic_text(&*panic)),
            })
        })
    }

    fn open_checked(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        (incarnation, after_power_cut): (Incarnation, bool),
        may_open: &dyn Fn(BrickId, u32) -> Result<u32>,
        reading: Reading,
    ) -> Result<(Self, RecoveryReport)> {
        let geometry = geometry(identity)?;
        completeness::check(&*storage, geometry)?;
        let stopped = poison_note::read(&*storage)?;
        let after_power_cut = after_power_cut || stopped.is_some();
        if stopped.is_some() {
            poison_note::distrust_cache(&*storage, geometry)?;
        }
        let open = || RedbIndex::open(storage.clone(), identity.settings.index_cache_bytes, reading);
        let reserve = Reserve::new(storage.clone(), identity.settings.reserve_bytes);
        let index = open().or_else(|error| match error {
            Error::NoSpace { .. } => reserve.release_all().and_then(|()| open()),
            other => Err(other),
        })?;
        let found = index.found();
        let disk = Disk::new(storage, geometry, Box::new(index), identity.settings.reserve_bytes);
        let opened = Self::open_disk(disk, geometry, (incarnation, after_power_cut), may_open);
        let (brick, mut report) = opened.map_err(|error| found.explain(error))?;
        report.stopped = stopped;
        Ok((brick, report))
    }

    fn open_disk(
        disk: Disk,
        geometry: Geometry,
        (incarnation, after_power_cut): (Incarnation, bool),
        may_open: &dyn Fn(BrickId, u32) -> Result<u32>,
    ) -> Result<(Self, RecoveryReport)> {
        let meta = Meta::read(&*disk.index, geometry)?;
        let generation = may_open(geometry.brick, meta.generation.saturating_add(1))?;
        assert!(generation > meta.generation, "each opening has a generation of its own (journal invariant 5)");
        let (mut machine, report) = recover(&disk, geometry, (&meta, generation), after_power_cut)?;
        let oldest = settle_log(&disk, geometry, &meta, report.end)?;
        let mut begun = next_generation(&*disk.index, geometry, (&meta, generation), report.end);
        if matches!(begun, Err(Error::NoSpace { .. })) {
            disk.reserve.release_all()?;
            begun = next_generation(&*disk.index, geometry, (&meta, generation), report.end);
        }
        begun?;
        machine.resume(report.end, oldest, after_power_cut && report.records > 0);
        let brick = Self::of(geometry, incarnation, disk, machine);
        brick.refresh_room()?;
        Ok((brick, report))
    }
}

/// Makes a directory whose files are overwritten in place, also on a file system that otherwise copies on write
/// (btrfs): so the journal, and blocks of the index, keep their space. Both have checksums of their own.
fn keep_in_place(directory: &Path) -> Result<()> {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let made = std::fs::create_dir_all(directory).and_then(|()| std::fs::File::open(directory));
    let file = made.map_err(|e| Error::io(format!("make {}", directory.display()), e))?;
    // Other file systems refuse the flag, and do not need it.
    let _ = ioctl_getflags(&file).and_then(|flags| ioctl_setflags(&file, flags | IFlags::NOCOW));
    Ok(())
}

/// Commits the meta record of this opening, before anything is appended: a record with an earlier generation is not
/// replayed from `end` on. Such a record may lie torn at the log's end, and a later power cut may complete it with
/// bytes that were written over it.
pub(crate) fn next_generation(
    index: &dyn Index,
    geometry: Geometry,
    (before, generation): (&Meta, u32),
    end: Lsn,
) -> Result<()> {
    let meta = Meta { generation, resumed: end.0, ..before.clone() };
    index.commit(&mut std::iter::empty(), &meta.to_bytes())?;
    match Meta::read(index, geometry)? == meta {
        true => Ok(()),
        false => Err(Error::Damaged { what: "the index does not hold what it was given (index invariant 1)".into() }),
    }
}

/// Puts the log that recovery found on stable storage, before anything is appended. Returns the number of the oldest
/// segment that is kept.
fn settle_log(disk: &Disk, geometry: Geometry, meta: &Meta, end: Lsn) -> Result<u64> {
    let first = geometry.number_of(Lsn(meta.applied));
    let numbers: Vec<u64> = (first..=geometry.number_of(end)).collect();
    disk.segments.sync(&*disk.storage, &numbers)?;
    // Segments in front of the last checkpoint are kept as long as their files hold them: another replica may need
    // their records.
    let mut oldest = first;
    while oldest > 1 && geometry.number_of(end) - (oldest - 1) < geometry.segments {
        if disk.segments.number_in_file(&*disk.storage, oldest - 1)? != Some(oldest - 1) {
            break;
        }
        oldest -= 1;
    }
    Ok(oldest)
}

pub(crate) fn geometry(identity: &Identity) -> Result<Geometry> {
    let BrickSettings { journal_segments, segment_bytes, .. } = identity.settings;
    let sane = (4..=65_536).contains(&journal_segments) && ((64 << 10)..=(1 << 30)).contains(&segment_bytes);
    if !sane {
        return Err(Error::invalid(format!(
            "a journal of {journal_segments} segments of {segment_bytes} bytes; use 4 to 65,536 of 64 KiB to 1 GiB"
        )));
    }
    Ok(Geometry { brick: identity.brick_id()?, segments: journal_segments, segment_bytes })
}
