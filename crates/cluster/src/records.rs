//! The records in the coordinator. `docs/format/coordinator.md` lists their keys and fields.

pub use hekate_proto::map::Domain;
use hekate_proto::map::{GraphSpec, Mode, View, check_views};
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The server that `hekate init` makes. It holds the embedded coordinator.
pub const FIRST_SERVER: ServerId = ServerId(1);

fn first() -> ServerId {
    FIRST_SERVER
}

/// Record `/servers/NUMBER`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct ServerInfo {
    pub server: ServerId,
    /// Its name for people.
    pub name: String,
    /// Its endpoints, `unix:PATH` and `tcp:HOST:PORT`. Empty until it has run for the first time.
    pub endpoints: Vec<String>,
    /// The network of each endpoint over TCP.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub networks: BTreeMap<String, String>,
    /// Number of times that it has announced its endpoints.
    #[serde(default)]
    pub announced: u64,
}

impl ServerInfo {
    /// The record of a server that has never announced its endpoints.
    pub fn new(server: ServerId) -> Self {
        let (endpoints, networks) = Default::default();
        Self { server, name: Self::name_of(server), endpoints, networks, announced: 0 }
    }

    /// The name that a server gets. It is unique, as its number is.
    pub fn name_of(server: ServerId) -> String {
        format!("server-{server}")
    }
}

/// Record `/bricks/ID`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct BrickInfo {
    pub brick: BrickId,
    /// Its directory on its server.
    pub directory: String,
    pub pool: String,
    /// Size of its disk in bytes when it joined.
    pub weight: u64,
    /// The server that it is on. Records without this field are of the first server.
    #[serde(default = "first")]
    pub server: ServerId,
    /// The incarnation in which it was last opened. Each server that forms views needs it. 0: not opened yet.
    #[serde(default)]
    pub incarnation: Incarnation,
    /// Number of that opening. A brick that remembers only earlier ones was restored from an older copy.
    #[serde(default)]
    pub openings: u32,
    /// Greatest number of an opening that has begun. A brick that remembers a greater one knows more than this record,
    /// which is of an older copy of the records then.
    #[serde(default)]
    pub begun: u32,
    /// The record is of a backup that an operator has accepted: the next opening of the brick counts as it is.
    #[serde(default, skip_serializing_if = "is_false")]
    pub restored: bool,
    /// The brick was added while its server ran, and the server has not opened it yet. Nothing is placed on it until
    /// then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unopened: bool,
}

impl BrickInfo {
    /// The number of the brick's next opening, which is at least `least`. No number is given twice: a copy of the disk
    /// may hold that of an opening which failed and which the disk itself has lost, and [`check_openings`] would not
    /// refuse it once the disk has opened under that number.
    pub fn next_opening(&self, least: u32) -> u32 {
        least.max(self.begun.max(self.openings).saturating_add(1))
    }
}

/// Checks that a brick was not restored from an older copy, which lacks later writes without knowing. `seen`: the last
/// opening that the cluster knows of; `now`: the least number that this opening can have, one greater than that of the
/// last one that the brick remembers.
///
/// # Errors
/// `Damaged` if it was restored.
pub fn check_openings(directory: &str, seen: u32, now: u32) -> Result<()> {
    if now > seen || is_planted(Bug::OlderCopyServed) {
        return Ok(());
    }
    Err(Error::Damaged {
        what: format!(
            "the brick {directory} was restored from an older copy: its last opening is number {}, and the cluster has \
             seen number {seen}; what was written since is not in it. Put the newer one back, or serve without it \
             (`hekate serve --without {directory}`) and make a new one in its place: `hekate brick replace`",
            now.saturating_sub(1)
        ),
    })
}

/// Checks that the records are not of an older copy than the brick has seen. `now`: as in [`check_openings`].
///
/// # Errors
/// `Damaged` if they are.
pub fn check_records(info: &BrickInfo, now: u32) -> Result<()> {
    let (known, last) = (info.begun.max(info.openings), now.saturating_sub(1));
    if last <= known || info.restored {
        return Ok(());
    }
    Err(older_records(&format!(
        "the last opening of the brick {} is number {last}, and they know of {known}",
        info.directory
    )))
}

/// The error for records that say less than a brick knows.
pub fn older_records(why: &str) -> Error {
    Error::Damaged {
        what: format!(
            "the coordinator has an older copy of the cluster's records: {why}. Restore a newer one, or accept the loss \
             of what was recorded since: `hekate coordinator restore FILE --accept` (docs/cluster.md)"
        ),
    }
}

/// The default of [`RingInfo::min_replicas`]: all but one of the copies.
pub(crate) fn default_min(copies: u32) -> u32 {
    copies.saturating_sub(1).max(1)
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Record `/pools/NAME`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct PoolInfo {
    pub name: String,
}

/// Record `/rings/NUMBER`: what does not change with the views.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct RingRecord {
    pub ring: RingId,
    pub pool: String,
    pub copies: u32,
    #[serde(default)]
    pub domain: Domain,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub led_by: Option<ServerId>,
    pub placed: Vec<Vec<BrickId>>,
}

/// Record `/rings/NUMBER/views/PARTITION`: the views of one partition.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct ViewRecord {
    /// The last view that was formed.
    pub view: View,
    /// The last view that has begun, if `view` has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<View>,
}

/// A ring with its views: its record and those of its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingInfo {
    pub ring: RingId,
    /// The pool that it is on.
    pub pool: String,
    /// Number of copies of each partition.
    pub copies: u32,
    /// Failure domain of the copies.
    pub domain: Domain,
    /// Members that a view needs to serve. `None`: all but one of the copies.
    pub min_replicas: Option<u32>,
    /// The server that leads every partition while it is available.
    pub led_by: Option<ServerId>,
    /// For each partition the last view that was formed, whether or not it has begun.
    pub views: Vec<View>,
    /// The last view that has begun, for each partition whose last formed view has not.
    pub opened: BTreeMap<u32, View>,
    /// The bricks that should hold each partition, the preferred leader first.
    pub placed: Vec<Vec<BrickId>>,
}

/// A volume's requirements for its ring, beside the number of copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingWish {
    /// `None`: copies are on different servers if the pool has bricks on enough servers, else on different disks.
    pub domain: Option<Domain>,
    /// See [`RingInfo::min_replicas`].
    pub min_replicas: Option<u32>,
    /// See [`RingInfo::led_by`].
    pub led_by: Option<ServerId>,
}

impl RingInfo {
    /// A ring whose views have begun, placed on the views' members.
    pub fn new(ring: RingId, pool: &str, copies: u32, domain: Domain, views: Vec<View>) -> Self {
        let placed = views.iter().map(|view| view.members.iter().map(|member| member.brick).collect()).collect();
        let (min_replicas, led_by, opened) = Default::default();
        Self { ring, pool: pool.into(), copies, domain, min_replicas, led_by, views, opened, placed }
    }

    /// A ring of these records; `views` are those of all of its partitions, in order.
    ///
    /// # Errors
    /// `Damaged` if they contradict each other.
    pub fn assemble(record: RingRecord, views: Vec<ViewRecord>) -> Result<Self> {
        let RingRecord { ring, pool, copies, domain, min_replicas, led_by, placed } = record;
        let opened = (0..).zip(&views).filter_map(|(number, record)| Some((number, record.opened.clone()?))).collect();
        let views = views.into_iter().map(|record| record.view).collect();
        Self { ring, pool, copies, domain, min_replicas, led_by, views, opened, placed }.checked()
    }

    /// Its record without the views.
    pub fn record(&self) -> RingRecord {
        let Self { ring, copies, domain, min_replicas, led_by, .. } = *self;
        RingRecord { ring, pool: self.pool.clone(), copies, domain, min_replicas, led_by, placed: self.placed.clone() }
    }

    /// The records of the views of all partitions.
    pub fn view_records(&self) -> impl Iterator<Item = ViewRecord> {
        let record = |(number, view): (u32, &View)| {
            let opened = self.opened.get(&number).cloned();
            ViewRecord { view: view.clone(), opened }
        };
        (0..).zip(&self.views).map(record)
    }

    /// The bricks that should hold a partition.
    pub fn placed(&self, partition: PartitionNumber) -> Vec<BrickId> {
        self.placed.get(partition.0 as usize).cloned().unwrap_or_default()
    }

    /// The bricks that have data of a partition: those that should hold it, and those of its views.
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

    /// Replaces a brick by another one wherever it should hold a partition. Returns the number of partitions.
    pub fn replace(&mut self, old: BrickId, new: BrickId) -> usize {
        let places: Vec<&mut BrickId> = self.placed.iter_mut().flatten().filter(|brick| **brick == old).collect();
        let count = places.len();
        places.into_iter().for_each(|place| *place = new);
        count
    }

    /// Number of partitions that the brick should hold.
    pub fn places(&self, brick: BrickId) -> usize {
        (0..self.views.len() as u32).filter(|number| self.placed(PartitionNumber(*number)).contains(&brick)).count()
    }

    /// True if the brick should hold any partition.
    pub fn is_placed(&self, brick: BrickId) -> bool {
        self.places(brick) > 0
    }

    /// The last view of a partition that was formed.
    pub fn view(&self, partition: PartitionNumber) -> Option<&View> {
        self.views.get(partition.0 as usize)
    }

    /// The last view of a partition that has begun.
    pub fn opened(&self, partition: PartitionNumber) -> Option<&View> {
        self.opened.get(&partition.0).or_else(|| self.view(partition))
    }

    /// Number of members that a view needs to serve.
    pub fn members_min(&self) -> usize {
        self.min_replicas.unwrap_or(default_min(self.copies)) as usize
    }

    /// Number of partitions that have a replica on the brick, or should have one.
    pub fn replicas_on(&self, brick: BrickId) -> usize {
        (0..self.views.len()).filter(|number| self.holders(PartitionNumber(*number as u32)).contains(&brick)).count()
    }

    /// True if any partition has a replica on the brick, or should have one.
    pub fn has(&self, brick: BrickId) -> bool {
        self.replicas_on(brick) > 0
    }

    /// Checks records that were read: every position must lead to a partition.
    pub(crate) fn checked(self) -> Result<Self> {
        let damaged = |what| Error::Damaged { what: format!("the coordinator's record of ring {}: {what}", self.ring) };
        check_views(&self.views).map_err(|malformed| damaged(malformed.0))?;
        let is_beside = |(number, view): (&u32, &View)| {
            view.opened
                && view.has_member(view.leader)
                && self.views.get(*number as usize).is_some_and(|now| !now.opened)
        };
        if !self.opened.iter().all(is_beside) || self.placed.len() != self.views.len() {
            return Err(damaged("its views, its last begun views and its placement contradict each other"));
        }
        Ok(self)
    }
}

/// Record `/volumes/NAME`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct VolumeInfo {
    pub volume: VolumeId,
    pub name: String,
    pub pool: String,
    pub ring: RingId,
    pub copies: u32,
    /// User id of the user who made the volume, who may use it.
    pub owner_uid: u32,
    /// User ids of others who may use it.
    pub allowed_uids: Vec<u32>,
    /// Translators above the fixed layers.
    #[serde(default)]
    pub graph: GraphSpec,
    /// The volume is being deleted and takes no new sessions.
    pub deleting: bool,
    /// Number of partitions that share the names of a directory made in the root.
    #[serde(default = "one")]
    pub spread: u32,
    /// How its bytes are replicated.
    #[serde(default)]
    pub mode: Mode,
    /// Random number by which the call that made the volume recognises its own record, if the outcome of its
    /// transaction was unknown.
    #[serde(default)]
    pub creation: u64,
}

fn one() -> u32 {
    1
}

/// Record `/sessions/NUMBER`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct SessionInfo {
    pub session: SessionId,
    pub volume: VolumeId,
    pub owner: SessionOwner,
    /// The server where it was opened, which expires it.
    #[serde(default = "first")]
    pub server: ServerId,
}

/// The owner of a session: the server refuses its use by connections of any other peer.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "kebab-case")]
pub enum SessionOwner {
    /// A process of the server's machine with this user id, as the kernel reports it.
    Uid(u32),
    /// The client that its certificate names.
    Client(String),
    /// A server, as its certificate names it: it reads a volume for its own machine.
    Server(ServerId),
}

impl std::fmt::Display for SessionOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "a process of user {uid} on the server's machine"),
            Self::Client(name) => write!(f, "client {name}"),
            Self::Server(server) => write!(f, "server {server}"),
        }
    }
}

/// Record `/lost-blocks` or `/lost-blocks/NUMBER`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LostBlocks<T> {
    /// Number of changes of the record, so that no value repeats.
    pub change: u64,
    pub blocks: Vec<T>,
}

impl<T> Default for LostBlocks<T> {
    fn default() -> Self {
        Self { change: 0, blocks: Vec::new() }
    }
}

/// Record `/alive/NUMBER/PROCESS`, kept by that process of the server.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct AliveInfo {
    pub server: ServerId,
    /// Its bricks that have stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<BrickId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> BrickInfo {
        BrickInfo {
            brick: BrickId(1),
            directory: "/b".into(),
            pool: "p".into(),
            weight: 1,
            server: FIRST_SERVER,
            incarnation: Incarnation(1),
            openings: 3,
            begun: 4,
            restored: false,
            unopened: false,
        }
    }

    #[test]
    fn records_that_know_of_fewer_openings_than_a_brick_are_refused() {
        let info = info();
        // An opening that had begun and was not recorded as done counts as known.
        (1..=5).for_each(|now| check_records(&info, now).unwrap());
        let refused = check_records(&info, 6).unwrap_err();
        assert!(refused.to_string().contains("/b is number 5, and they know of 4"), "{refused}");
        check_records(&BrickInfo { restored: true, ..info }, 6).unwrap();
    }

    /// Also if the brick does not remember the last opening that has begun, as after a commit that failed.
    #[test]
    fn an_opening_has_a_greater_number_than_all_that_have_begun() {
        let info = info();
        assert_eq!([1, 4, 5, 6].map(|least| info.next_opening(least)), [5, 5, 5, 6]);
        // The record of a program that did not record openings that begin.
        assert_eq!(BrickInfo { begun: 0, ..info }.next_opening(1), 4);
    }
}
