//! What the records say. `docs/format/coordinator.md` lists keys and fields.

use hekate_proto::map::{Mode, View, check_views};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The server that `hekate init` makes, which holds the embedded coordinator.
pub const FIRST_SERVER: ServerId = ServerId(1);

fn first() -> ServerId {
    FIRST_SERVER
}

/// `/servers/NUMBER`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct ServerInfo {
    /// The server.
    pub server: ServerId,
    /// What people call it.
    pub name: String,
    /// Where it listens: `unix:PATH` and `tcp:ADDRESS:PORT`; none until it is served for the first time.
    pub endpoints: Vec<String>,
}

impl ServerInfo {
    /// The name that a server gets: unique, as its number is.
    pub fn name_of(server: ServerId) -> String {
        format!("server-{server}")
    }
}

/// What no two copies of a partition share: the part that may fail without taking more than one of them.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    /// A brick.
    #[default]
    Disk,
    /// A server with all of its bricks.
    Server,
}

/// `/bricks/ID`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct BrickInfo {
    /// The brick.
    pub brick: BrickId,
    /// Its directory on its server.
    pub directory: String,
    /// The pool that it is in.
    pub pool: String,
    /// Bytes of its disk when it joined.
    pub weight: u64,
    /// The server that it is on. Records from before there were several have none.
    #[serde(default = "first")]
    pub server: ServerId,
    /// In which life it was last opened, so that any server can renew the views that it is in; 0: not yet.
    #[serde(default)]
    pub incarnation: Incarnation,
    /// How often it had been opened then: one that was opened less often by its own account was restored from a copy.
    #[serde(default)]
    pub openings: u32,
    /// It was added while its server ran, which opens it when it starts next; until then nothing is placed on it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unopened: bool,
}

/// A disk that was put back as it was some time ago has lost what was written since, and does not know. `seen`: openings that the
/// cluster knows of; `now`: those that the brick has counted, this one among them.
pub fn check_openings(directory: &str, seen: u32, now: u32) -> Result<()> {
    if now > seen || is_planted(Bug::OlderCopyServed) {
        return Ok(());
    }
    Err(Error::Damaged {
        what: format!(
            "the brick {directory} was restored from an older copy: it has been opened {now} times, and the cluster has seen {seen}; what \
             was written since is not in it. Put the newer one back, or serve without it (`hekate serve --without {directory}`) and make \
             a new one in its place: `hekate brick replace`"
        ),
    })
}

/// All but one of the copies.
pub(crate) fn default_min(copies: u32) -> u32 {
    copies.saturating_sub(1).max(1)
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// `/pools/NAME`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct PoolInfo {
    /// The pool.
    pub name: String,
}

/// `/rings/NUMBER`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct RingInfo {
    /// The ring.
    pub ring: RingId,
    /// On which pool.
    pub pool: String,
    /// Copies of everything.
    pub copies: u32,
    /// What no two copies of a partition share.
    #[serde(default)]
    pub domain: Domain,
    /// So many members a view has at least to serve. None: all but one of the copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<u32>,
    /// The server that leads every partition, as long as it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub led_by: Option<ServerId>,
    /// A view a partition: the last that was formed, whether it has begun or not.
    pub views: Vec<View>,
    /// Of partitions whose last view has not begun: the last that has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub opened: BTreeMap<u32, View>,
    /// The bricks that are to hold each partition, who leads if it can first. Records from before there were learners have
    /// none: the members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placed: Vec<Vec<BrickId>>,
}

/// What a volume wants of its ring, beside its copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingWish {
    /// None: copies are on different servers if the pool has bricks on enough of them, else on different disks.
    pub domain: Option<Domain>,
    /// See [`RingInfo::min_replicas`].
    pub min_replicas: Option<u32>,
    /// See [`RingInfo::led_by`].
    pub led_by: Option<ServerId>,
}

impl RingInfo {
    /// A ring whose views have begun, with its bricks in the order of their members.
    pub fn new(ring: RingId, pool: &str, copies: u32, domain: Domain, views: Vec<View>) -> Self {
        let placed = views.iter().map(|view| view.members.iter().map(|member| member.brick).collect()).collect();
        let (min_replicas, led_by, opened) = Default::default();
        Self { ring, pool: pool.into(), copies, domain, min_replicas, led_by, views, opened, placed }
    }

    /// The bricks that are to hold a partition.
    pub fn placed(&self, partition: PartitionNumber) -> Vec<BrickId> {
        let members = || self.view(partition).map(|view| view.all().map(|member| member.brick).collect());
        self.placed.get(partition.0 as usize).cloned().or_else(members).unwrap_or_default()
    }

    /// The bricks that have anything of a partition: those that are to hold it, and those of its views.
    pub fn holders(&self, partition: PartitionNumber) -> Vec<BrickId> {
        let mut holders = self.placed(partition);
        let views = self.view(partition).into_iter().chain(self.opened(partition));
        for brick in views.flat_map(View::all).map(|member| member.brick) {
            if !holders.contains(&brick) {
                holders.push(brick);
            }
        }
        holders
    }

    /// Another brick is to hold all that one is to hold. -> of how many partitions.
    pub fn replace(&mut self, old: BrickId, new: BrickId) -> usize {
        self.placed = (0..self.views.len() as u32).map(|number| self.placed(PartitionNumber(number))).collect();
        let places: Vec<&mut BrickId> = self.placed.iter_mut().flatten().filter(|brick| **brick == old).collect();
        let count = places.len();
        places.into_iter().for_each(|place| *place = new);
        count
    }

    /// Whether the brick is to hold any partition.
    pub fn is_placed(&self, brick: BrickId) -> bool {
        (0..self.views.len() as u32).any(|number| self.placed(PartitionNumber(number)).contains(&brick))
    }

    /// A partition's last view.
    pub fn view(&self, partition: PartitionNumber) -> Option<&View> {
        self.views.get(partition.0 as usize)
    }

    /// The last one that has begun.
    pub fn opened(&self, partition: PartitionNumber) -> Option<&View> {
        self.opened.get(&partition.0).or_else(|| self.view(partition))
    }

    /// So many members a view has at least to serve.
    pub fn members_min(&self) -> usize {
        self.min_replicas.unwrap_or(default_min(self.copies)) as usize
    }

    /// How many partitions have a replica on the brick, or are to have one.
    pub fn replicas_on(&self, brick: BrickId) -> usize {
        (0..self.views.len()).filter(|number| self.holders(PartitionNumber(*number as u32)).contains(&brick)).count()
    }

    /// Whether any has.
    pub fn has(&self, brick: BrickId) -> bool {
        self.replicas_on(brick) > 0
    }

    /// As it was read, if positions lead to its partitions.
    pub(crate) fn checked(self) -> Result<Self> {
        let damaged = |what| Error::Damaged { what: format!("the coordinator's record of ring {}: {what}", self.ring) };
        check_views(&self.views).map_err(|malformed| damaged(malformed.0))?;
        let is_beside = |(number, view): (&u32, &View)| {
            view.opened
                && view.has_member(view.leader)
                && self.views.get(*number as usize).is_some_and(|now| !now.opened)
        };
        if !self.opened.iter().all(is_beside)
            || !matches!(self.placed.len(), 0) && self.placed.len() != self.views.len()
        {
            return Err(damaged("views that do not go together"));
        }
        Ok(self)
    }
}

/// `/volumes/NAME`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct VolumeInfo {
    /// The volume's number.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its ring.
    pub ring: RingId,
    /// Copies.
    pub copies: u32,
    /// Who made it: may use it.
    pub owner_uid: u32,
    /// Who else may.
    pub allowed_uids: Vec<u32>,
    /// Translators on top of the fixed bottom.
    pub layers: Vec<String>,
    /// Being deleted: takes no sessions any more.
    pub deleting: bool,
    /// Partitions that share the names of a directory made in its root.
    #[serde(default = "one")]
    pub spread: u32,
    /// How its bytes are replicated.
    #[serde(default)]
    pub mode: Mode,
}

fn one() -> u32 {
    1
}

/// `/sessions/NUMBER`
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct SessionInfo {
    /// The session.
    pub session: SessionId,
    /// On which volume.
    pub volume: VolumeId,
    /// Whose it is, as the kernel said; none: who knows the secret.
    pub uid: Option<u32>,
    /// Where it was opened: this server ends it after a silence.
    #[serde(default = "first")]
    pub server: ServerId,
}

/// `/alive/NUMBER`, as long as its server says so
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct AliveInfo {
    /// The server.
    pub server: ServerId,
    /// Its bricks that have stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<BrickId>,
}
