//! Making a brick, and opening one: `docs/format/brick.md` has the order of the steps.

mod completeness;
pub mod recovery;

use crate::brick::poison_note;
use crate::brick::{Brick, words};
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
    /// Makes a brick in an empty directory.
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

    /// Makes everything but `brick.toml`.
    pub fn create_on(storage: &dyn Storage, identity: &Identity) -> Result<()> {
        Home::create(storage)?;
        RedbIndex::create(storage)?;
        Reserve::create(storage, identity.settings.reserve_bytes)?;
        journal::create(storage, geometry(identity)?)
    }

    /// Opens a brick of `cluster`, recovering what a crash left.
    pub fn open(directory: &Path, cluster: &str) -> Result<(Self, RecoveryReport)> {
        Self::open_if(directory, cluster, &|_, _| Ok(()))
    }

    /// The same, if `may_open` agrees: it is told which brick it is, and how often it will have been opened then. What it refuses is not counted, or an
    /// older copy that is tried again and again would catch up with what it is older than.
    pub fn open_if(
        directory: &Path,
        cluster: &str,
        may_open: &dyn Fn(BrickId, u32) -> Result<()>,
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
        // The reason may be a full disk, on which the reserve makes room.
        life.begin().or_else(|_| reserve.give_up_all().and_then(|()| life.begin()))?;
        let (incarnation, is_new) = (life.incarnation(), life.is_new());
        let (mut brick, report) = Self::open_on_if(storage, &identity, incarnation, is_new, may_open)?;
        brick.hold(lock, life);
        Ok((brick, report))
    }

    /// Opens on any storage. `reborn`: what was not synced may be lost.
    pub fn open_on(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        incarnation: Incarnation,
        reborn: bool,
    ) -> Result<(Self, RecoveryReport)> {
        Self::open_on_if(storage, identity, incarnation, reborn, &|_, _| Ok(()))
    }

    /// The same, if `may_open` agrees: see [`Brick::open_if`].
    pub fn open_on_if(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        incarnation: Incarnation,
        reborn: bool,
        may_open: &dyn Fn(BrickId, u32) -> Result<()>,
    ) -> Result<(Self, RecoveryReport)> {
        Self::open_reading(storage, identity, (incarnation, reborn), may_open, Reading::Strict)
    }

    /// The same, for who takes from a damaged brick what is left: blocks of the index are read as they are.
    pub(crate) fn open_to_salvage(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        life: (Incarnation, bool),
    ) -> Result<(Self, RecoveryReport)> {
        Self::open_reading(storage, identity, life, &|_, _| Ok(()), Reading::Salvage)
    }

    fn open_reading(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        life: (Incarnation, bool),
        may_open: &dyn Fn(BrickId, u32) -> Result<()>,
        reading: Reading,
    ) -> Result<(Self, RecoveryReport)> {
        let open = || Self::open_checked(storage, identity, life, may_open, reading);
        // A library that panics on rot is an error like any other.
        catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|panic| {
            Err(Error::Damaged { what: format!("opening the brick: {}; rebuild it from its replicas", words(&*panic)) })
        })
    }

    fn open_checked(
        storage: Arc<dyn Storage>,
        identity: &Identity,
        (incarnation, reborn): (Incarnation, bool),
        may_open: &dyn Fn(BrickId, u32) -> Result<()>,
        reading: Reading,
    ) -> Result<(Self, RecoveryReport)> {
        let geometry = geometry(identity)?;
        completeness::check(&*storage, geometry)?;
        let stopped = poison_note::read(&*storage)?;
        let reborn = reborn || stopped.is_some();
        if stopped.is_some() {
            poison_note::distrust_cache(&*storage, geometry)?;
        }
        let open = || RedbIndex::open(storage.clone(), identity.settings.index_cache_bytes, reading);
        let reserve = Reserve::new(storage.clone(), identity.settings.reserve_bytes);
        let index = open().or_else(|error| match error {
            Error::NoSpace { .. } => reserve.give_up_all().and_then(|()| open()),
            other => Err(other),
        })?;
        let found = index.found();
        let disk = Disk::new(storage, geometry, Box::new(index), identity.settings.reserve_bytes);
        let opened = Self::open_disk(disk, geometry, (incarnation, reborn), may_open);
        let (brick, mut report) = opened.map_err(|error| found.explain(error))?;
        report.stopped = stopped;
        Ok((brick, report))
    }

    fn open_disk(
        disk: Disk,
        geometry: Geometry,
        (incarnation, reborn): (Incarnation, bool),
        may_open: &dyn Fn(BrickId, u32) -> Result<()>,
    ) -> Result<(Self, RecoveryReport)> {
        let meta = Meta::read(&*disk.index, geometry)?;
        may_open(geometry.brick, meta.generation.saturating_add(1))?;
        let (mut machine, report) = recover(&disk, geometry, &meta, reborn)?;
        let oldest = settle_log(&disk, geometry, &meta, report.end)?;
        let mut begun = next_generation(&*disk.index, geometry, &meta, report.end);
        if matches!(begun, Err(Error::NoSpace { .. })) {
            disk.reserve.give_up_all()?;
            begun = next_generation(&*disk.index, geometry, &meta, report.end);
        }
        begun?;
        machine.resume(report.end, oldest, reborn && report.records > 0);
        let brick = Self::of(geometry, incarnation, disk, machine);
        brick.refresh_room()?;
        Ok((brick, report))
    }
}

/// Makes a directory in whose files bytes are written over in place, where a file system would else copy on write
/// (btrfs): so the journal, and blocks of the index, keep the room that they have. Both have checksums of their own.
fn keep_in_place(directory: &Path) -> Result<()> {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let made = std::fs::create_dir_all(directory).and_then(|()| std::fs::File::open(directory));
    let file = made.map_err(|e| Error::io(format!("make {}", directory.display()), e))?;
    // Other file systems refuse the flag.
    let _ = ioctl_getflags(&file).and_then(|flags| ioctl_setflags(&file, flags | IFlags::NOCOW));
    Ok(())
}

/// The meta record for this opening, on stable storage before anything is appended, so that no record of an earlier
/// life passes for one of this: also none that lay torn at the log's end, and that a later power cut puts together from what is written
/// over it.
pub(crate) fn next_generation(index: &dyn Index, geometry: Geometry, before: &Meta, end: Lsn) -> Result<()> {
    let meta = Meta { generation: before.generation + 1, resumed: end.0, ..before.clone() };
    index.commit(&mut std::iter::empty(), &meta.to_bytes())?;
    match Meta::read(index, geometry)? == meta {
        true => Ok(()),
        false => Err(Error::Damaged { what: "the index does not hold what it was given (index invariant 1)".into() }),
    }
}

/// What recovery found is on stable storage before the log goes on. -> the oldest segment that is kept.
fn settle_log(disk: &Disk, geometry: Geometry, meta: &Meta, end: Lsn) -> Result<u64> {
    let first = geometry.number_of(Lsn(meta.applied));
    let numbers: Vec<u64> = (first..=geometry.number_of(end)).collect();
    disk.segments.sync(&*disk.storage, &numbers)?;
    // As far back as the files still hold what other replicas may lack.
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
            "a journal of {journal_segments} segments of {segment_bytes} bytes; at least 4, of 64 KiB to 1 GiB"
        )));
    }
    Ok(Geometry { brick: identity.brick_id()?, segments: journal_segments, segment_bytes })
}
