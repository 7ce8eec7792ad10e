//! The bricks of this server: opened when it starts, held while it serves.

use crate::hosting::cluster_access::ClusterAccess;
use crate::hosting::surroundings::Surroundings;
use hekate_brick::{Brick, LostBlock, RecoveryReport};
use hekate_cluster::{BrickInfo, Registry, check_openings, check_records};
use hekate_proto::*;
use hekate_threads::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The bricks of this server, open or not.
#[derive(Default)]
pub struct OwnBricks {
    open: HashMap<BrickId, Arc<Brick>>,
    /// Bricks that are not open: the operator left them out, or they cannot be opened and no partition is placed on
    /// them.
    absent: BTreeSet<BrickId>,
    /// What recovery found when each brick was opened.
    recoveries: HashMap<BrickId, RecoveryReport>,
    /// The directory of each brick, open or not.
    directories: HashMap<BrickId, String>,
    /// The blocks that power cuts took before this start are settled: all replicas here agree on them, and every brick
    /// has recorded that.
    lives_settled: AtomicBool,
}

impl OwnBricks {
    #[cfg(test)]
    pub fn of(open: HashMap<BrickId, Arc<Brick>>) -> Self {
        Self { open, ..Self::default() }
    }

    pub fn get(&self, brick: &BrickId) -> Option<&Arc<Brick>> {
        self.open.get(brick)
    }

    pub fn values(&self) -> impl Iterator<Item = &Arc<Brick>> {
        self.open.values()
    }

    pub fn ids(&self) -> impl Iterator<Item = BrickId> {
        self.open.keys().copied()
    }

    /// Bricks that are not open.
    pub fn absent(&self) -> impl Iterator<Item = BrickId> {
        self.absent.iter().copied()
    }

    /// Bricks that answer no request: those that are not open, and those that have stopped because of a failure.
    pub fn out_of_service(&self) -> Vec<BrickId> {
        self.ids().filter(|brick| self.has_stopped(*brick)).chain(self.absent()).collect()
    }

    /// What recovery found when the brick was opened; `None` if it is not open.
    pub fn recovery(&self, brick: BrickId) -> Option<&RecoveryReport> {
        self.recoveries.get(&brick)
    }

    /// The blocks that the last power cut took, with the brick that lost each.
    pub fn lost_blocks(&self) -> impl Iterator<Item = (LostBlock, BrickId)> {
        self.recoveries.iter().flat_map(|(brick, report)| report.lost.iter().map(|block| (*block, *brick)))
    }

    /// True if the brick is open here and has stopped because of a failure.
    pub fn has_stopped(&self, brick: BrickId) -> bool {
        self.open.get(&brick).is_some_and(|brick| brick.stopped().is_some())
    }

    /// The brick's directory, also while it is not open.
    pub fn directory(&self, brick: BrickId) -> Option<&String> {
        self.directories.get(&brick)
    }

    /// A brick's name for people: its directory and its id.
    pub fn name(&self, brick: BrickId) -> String {
        match self.directories.get(&brick) {
            Some(directory) => format!("{directory} ({})", brick.text()),
            None => brick.text(),
        }
    }

    /// Bricks that cannot complete a checkpoint because their disk is full, each with the reason.
    pub fn stalled(&self) -> BTreeMap<BrickId, String> {
        self.open.iter().filter_map(|(id, brick)| Some((*id, brick.stalled()?))).collect()
    }

    /// Adds to the error of a brick that has stopped the command that starts the server without it.
    pub fn hinted(&self, error: Error) -> Error {
        let stopped = self.open.values().find(|brick| brick.stopped().is_some());
        match stopped.and_then(|brick| self.directories.get(&brick.id())) {
            Some(directory) => with_hint(error, directory),
            None => error,
        }
    }

    /// True if some brick's journal is full enough for a checkpoint.
    pub fn want_checkpoint(&self) -> bool {
        self.open.values().any(|brick| brick.wants_checkpoint())
    }

    /// True if a checkpoint would free space of deleted files.
    pub fn could_free_space(&self) -> bool {
        self.open.values().any(|brick| brick.could_free_space())
    }

    pub fn are_lives_settled(&self) -> bool {
        self.lives_settled.load(Ordering::Acquire)
    }

    /// Records in every brick that the blocks that it lost in power cuts are settled. The next start then does not
    /// compare its replicas because of them.
    ///
    /// # Errors
    ///
    /// `Io` if a brick cannot write its record; the next call tries all of them again.
    pub fn settle_lives(&self) -> Result<()> {
        self.open.values().try_for_each(|brick| brick.settle_life())?;
        self.lives_settled.store(true, Ordering::Release);
        Ok(())
    }
}

/// Opens all of this server's bricks except those in the directories `without`.
///
/// # Errors
///
/// `Invalid` if a directory of `without` is no brick of this server; otherwise the error of the first brick that cannot
/// be opened although partitions are placed on it.
pub fn open_all(
    surroundings: &dyn Surroundings,
    access: &ClusterAccess,
    without: &[String],
    progress: &dyn Fn(&str),
) -> Result<OwnBricks> {
    let (registry, cluster) = (access.registry(), access.id());
    let (own, rings) = (registry.own_bricks()?, registry.rings()?);
    if let Some(unknown) = without.iter().find(|directory| own.iter().all(|info| info.directory != **directory)) {
        let known: Vec<&str> = own.iter().map(|info| info.directory.as_str()).collect();
        return Err(Error::invalid(format!("this server has no brick {unknown}; its bricks are {}", known.join(", "))));
    }
    let mut bricks = OwnBricks::default();
    for info in own {
        bricks.directories.insert(info.brick, info.directory.clone());
        if without.contains(&info.directory) {
            progress(&format!("brick {} is left out", info.directory));
            bricks.absent.insert(info.brick);
            continue;
        }
        progress(&format!("opening brick {}", info.directory));
        let is_needed = rings.is_empty() || rings.iter().any(|ring| ring.is_placed(info.brick));
        match open_one(surroundings, registry, &info, cluster, progress) {
            Ok((brick, report)) => {
                registry.opened(info.brick, brick.incarnation(), brick.generation())?;
                bricks.recoveries.insert(info.brick, report);
                bricks.open.insert(info.brick, Arc::new(brick));
            }
            Err(error) if !is_needed => {
                progress(&format!(
                    "brick {} cannot be opened, and no partition is placed on it: {error}",
                    info.directory
                ));
                bricks.absent.insert(info.brick);
            }
            Err(error) => return Err(with_hint(error, &info.directory)),
        }
    }
    Ok(bricks)
}

/// How long a write to the journal waits for room on a full file system that copies on write, before its brick stops.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(30);

fn open_one(
    surroundings: &dyn Surroundings,
    registry: &Registry,
    info: &BrickInfo,
    cluster: &str,
    progress: &dyn Fn(&str),
) -> Result<(Brick, RecoveryReport)> {
    let directory = &info.directory;
    let is_it = |brick: BrickId, least| {
        if brick != info.brick {
            let what = format!("{directory} holds brick {}, not {}", brick.text(), info.brick.text());
            return Err(Error::Denied { what });
        }
        if !info.restored {
            check_openings(directory, info.openings, least)?;
        }
        check_records(info, least)?;
        registry.opening(brick, least)
    };
    let (brick, report) = surroundings.open_brick(Path::new(directory), cluster, &is_it)?;
    brick.set_journal_patience(JOURNAL_PATIENCE);
    if let Some(why) = &report.stopped {
        progress(&format!("brick {directory} had stopped after a failure: {why}; only what it had synced is trusted"));
    }
    if let Some(torn) = &report.torn {
        let (path, offset, why) = (&torn.path, torn.offset, torn.why);
        progress(&format!("cut a torn tail off the journal, {path} at offset {offset}: {why}; nothing synced is lost"));
    }
    Ok((brick, report))
}

/// Adds to the error of a brick the command that starts the server without it.
fn with_hint(error: Error, directory: &str) -> Error {
    let hint = |what: String| {
        format!("{what}; if its disk has failed, start without it: `hekate serve --without {directory}`")
    };
    match error {
        Error::Invalid { what } => Error::Invalid { what: hint(what) },
        Error::Damaged { what } => Error::Damaged { what: hint(what) },
        Error::Denied { what } => Error::Denied { what: hint(what) },
        Error::Io { what } => Error::Io { what: hint(what) },
        Error::Poisoned { what } => Error::Poisoned { what: hint(what) },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosting::surroundings::Machine;
    use crate::tests::Served;

    /// Each start counts as an opening, but one that is refused does not: an older copy does not become current by
    /// being tried.
    #[test]
    fn an_older_copy_is_refused_as_often_as_it_is_tried() {
        let served = Served::new("older-copy");
        let access = ClusterAccess::of(served.node.cluster.registry().clone()).unwrap();
        let brick = served.node.bricks.values().next().unwrap();
        access.registry().opened(brick.id(), brick.incarnation(), brick.generation() + 2).unwrap();
        let directory = served.stopped();
        for _ in 0..4 {
            let refused = open_all(&Machine, &access, &[], &|_| ()).err().unwrap();
            assert!(refused.to_string().contains("was restored from an older copy"), "{refused}");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }

    /// The brick has lost the commit of an opening, and a copy of its disk may hold it.
    #[test]
    fn an_opening_that_began_and_is_lost_keeps_its_number() {
        let served = Served::new("lost-opening");
        let access = ClusterAccess::of(served.node.cluster.registry().clone()).unwrap();
        let brick = served.node.bricks.values().next().unwrap();
        let (id, generation) = (brick.id(), brick.generation());
        assert_eq!(access.registry().opening(id, generation + 1).unwrap(), generation + 1);
        let directory = served.stopped();
        let bricks = open_all(&Machine, &access, &[], &|_| ()).unwrap();
        assert_eq!(bricks.get(&id).unwrap().generation(), generation + 2);
        drop(bricks);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
