//! What a server does beside clients' requests to keep its bricks sound and their space free.
//!
//! | file | what it does | a bug here shows as |
//! |---|---|---|
//! | `housekeeping` | the threads; expires sessions, collects orphans, frees space | space that is never freed |
//! | `checkpoint` | writes journals home, frees their space | a full journal; a member that lacks a record |
//! | `healing` | divides the bandwidth for healing among the partitions | healing that starves clients, or never ends |
//! | `heal_progress` | since when replicas lack records, and how fast they are healed | a wrong time left |
//! | `scrub` | reads every block once a week | damage that is found too late |
//! | `repair` | replaces a damaged block or entry by a copy of another replica | wrong bytes written over right ones |
//! | `damage` | what no replica could repair; stopped bricks | `hekate status` that reports damage which is gone |
//!
//! Invariant: a partition's data changes only by a record in its log, as for a client's op.

pub(crate) mod checkpoint;
pub(crate) mod damage;
pub(crate) mod heal_progress;
pub(crate) mod healing;
pub(crate) mod housekeeping;
pub(crate) mod repair;
pub(crate) mod scrub;

use crate::hosting::own_bricks::OwnBricks;
use checkpoint::Journals;
use damage::Damages;
use heal_progress::HealProgress;
use hekate_proto::Result;
use housekeeping::Housekeeping;
use scrub::Scrubs;

/// The state of a server's maintenance.
pub struct Maintenance {
    housekeeping: Housekeeping,
    journals: Journals,
    scrubs: Scrubs,
    damages: Damages,
    heal_rate: healing::Rate,
    heal_progress: HealProgress,
}

impl Maintenance {
    /// For bricks that have just been opened. Housekeeping does not run yet.
    ///
    /// # Errors
    ///
    /// `Damaged` or `Io` if a journal cannot be read.
    pub fn new(bricks: &OwnBricks) -> Result<Self> {
        let (housekeeping, scrubs, damages, heal_rate, heal_progress) = Default::default();
        let journals = Journals::new(bricks.values())?;
        Ok(Self { housekeeping, journals, scrubs, damages, heal_rate, heal_progress })
    }

    pub fn housekeeping(&self) -> &Housekeeping {
        &self.housekeeping
    }

    pub fn scrubs(&self) -> &Scrubs {
        &self.scrubs
    }

    pub fn damages(&self) -> &Damages {
        &self.damages
    }

    pub fn heal_progress(&self) -> &HealProgress {
        &self.heal_progress
    }
}
