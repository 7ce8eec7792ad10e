//! The map: what a client must know to reach a volume's partitions. Any server returns it, as JSON.

use crate::codec::Malformed;
use crate::ids::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The map of a volume.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct VolumeMap {
    pub volume: VolumeId,
    /// Name of the volume.
    pub name: String,
    /// Ring of the volume.
    pub ring: RingId,
    /// Number of copies of everything.
    pub copies: u32,
    /// How bytes are replicated.
    #[serde(default)]
    pub mode: Mode,
    /// One view for each partition, in order. The number of views is a power of two.
    pub views: Vec<View>,
    /// The server that returned the map. A client reaches it at the address that it used.
    pub server: ServerId,
    /// Addresses of that server and of all that have bricks of the views.
    pub servers: Vec<ServerAddress>,
    /// The server of each brick in the views, in the order of brick ids.
    pub bricks: Vec<BrickPlace>,
    /// The volume's translators.
    #[serde(default)]
    pub graph: GraphSpec,
}

/// Most translators of a volume.
pub const LAYERS_MAX: usize = 16;
/// The translator that runs in servers: they refuse changes of the volume.
pub const READ_ONLY: &str = "read-only";

/// The translators of a volume above the fixed layers.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct GraphSpec {
    /// Increases with every change of the list.
    pub change: u64,
    /// The first one sees ops first.
    pub layers: Vec<LayerSpec>,
}

/// One translator of a volume's graph.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct LayerSpec {
    pub name: String,
    /// Values by option, as text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// How a volume's bytes are replicated.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Every write goes to the leader, which sends it to the other members.
    #[default]
    Leader,
    /// High Speed Replication: durable overwrites go to all members at once where possible.
    Hsr,
    /// Unsafe: the leader acknowledges alone, and the others follow.
    Async,
    /// Unsafe: as `Async`, and one server leads all partitions that it has a copy of.
    Bypass,
    /// For measuring: durable overwrites work as in GlusterFS's AFR.
    #[serde(rename_all = "kebab-case")]
    Afr {
        /// A lock is kept for the next write.
        eager_lock: bool,
        /// Concurrent writes share a changelog entry; under an eager lock, later ones do too.
        piggyback: bool,
    },
    /// For measuring, unsafe: durable overwrites go to all members at once, without stamps and lists.
    FastPath,
}

impl Mode {
    /// The mode in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Hsr => "hsr",
            Self::Async => "async",
            Self::Bypass => "bypass",
            Self::Afr { eager_lock: false, piggyback: false } => "afr",
            Self::Afr { eager_lock: true, piggyback: false } => "afr with eager-lock",
            Self::Afr { eager_lock: false, piggyback: true } => "afr with piggyback",
            Self::Afr { eager_lock: true, piggyback: true } => "afr with eager-lock and piggyback",
            Self::FastPath => "fast-path",
        }
    }

    /// True if a leader acknowledges before the other members have the record.
    pub fn answers_early(self) -> bool {
        matches!(self, Self::Async | Self::Bypass)
    }

    /// The guarantees of docs/semantics.md that this mode does not give.
    pub fn weaker(self) -> &'static [&'static str] {
        match self {
            Self::Leader | Self::Hsr => &[],
            Self::Async | Self::Bypass => &[
                "acknowledged and even synced changes are lost if the leader's machine is lost before the others have them",
                "a new leader may lack such changes: a file may return to an earlier state",
            ],
            Self::Afr { .. } => &[
                "for measuring only: a crash may leave copies that differ until a view begins",
                "overwrites do not change a file's times",
            ],
            Self::FastPath => &[
                "for measuring only: concurrent writes, or a crash, leave copies that differ, and nothing detects it",
                "overwrites do not change a file's times",
            ],
        }
    }

    /// True if clients write to the members outside of the log, without stamps.
    pub fn is_raw(self) -> bool {
        matches!(self, Self::Afr { .. } | Self::FastPath)
    }
}

/// Failure domain: the part that can fail without more than one copy of a partition.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    /// A brick.
    #[default]
    Disk,
    /// A server with all its bricks.
    Server,
}

impl Domain {
    /// The name of the domain in JSON and in texts.
    pub fn text(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Server => "server",
        }
    }
}

/// Addresses of a server.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct ServerAddress {
    pub server: ServerId,
    /// Its endpoints, `unix:PATH` and `tcp:ADDRESS:PORT`. Empty if the server has never announced any.
    pub endpoints: Vec<String>,
}

/// The server of a brick.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct BrickPlace {
    pub brick: BrickId,
    pub server: ServerId,
}

/// The view of a partition: its replicas, which of them have all records, and which one leads.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct View {
    /// Number of the view. Each later view of the partition has a higher one.
    pub epoch: Epoch,
    /// The member that orders the partition's records.
    pub leader: BrickId,
    /// The replicas that have every record, the leader included.
    pub members: Vec<Member>,
    /// Replicas that are being healed: they receive what the members receive, and what they missed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learners: Vec<Member>,
    /// True once the view has begun. Before that its leader serves no requests, because members of the previous view
    /// may still serve.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub opened: bool,
    /// When the view was formed each member had a new incarnation (a *forgetful* view): changes that were not on stable
    /// storage may be lost.
    #[serde(default, skip_serializing_if = "is_no")]
    pub forgetful: bool,
    /// Number of forgetful views of the partition. Changes that were acknowledged before such a view and were not on
    /// stable storage may be lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub losses: u32,
    /// The view has fewer members than the volume requires: its leader heals learners and serves no requests.
    #[serde(default, skip_serializing_if = "is_no")]
    pub too_few: bool,
    /// Every replica that the partition should have is a member. Only then are fast writes allowed: a replica that is
    /// missing could not learn of them from the log.
    #[serde(default, skip_serializing_if = "is_no")]
    pub whole: bool,
}

fn yes() -> bool {
    true
}

fn is_yes(flag: &bool) -> bool {
    *flag
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_no(flag: &bool) -> bool {
    !flag
}

impl View {
    /// A view that has begun, without learners.
    pub fn new(epoch: Epoch, leader: BrickId, members: Vec<Member>) -> Self {
        let (learners, forgetful, too_few) = Default::default();
        Self { epoch, leader, members, learners, opened: true, forgetful, losses: 0, too_few, whole: true }
    }

    /// True if the brick is a member.
    pub fn has_member(&self, brick: BrickId) -> bool {
        self.members.iter().any(|member| member.brick == brick)
    }

    /// True if the brick is a learner.
    pub fn has_learner(&self, brick: BrickId) -> bool {
        self.learners.iter().any(|learner| learner.brick == brick)
    }

    pub fn all(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(&self.learners)
    }
}

/// A brick in a view.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct Member {
    pub brick: BrickId,
    /// The incarnation of the brick in this view.
    pub incarnation: Incarnation,
}

impl VolumeMap {
    /// Checks that every position leads to a server. A client checks a map before it uses it.
    ///
    /// # Errors
    /// `Malformed`, with the reason. See also [`check_views`].
    pub fn check(&self) -> Result<(), Malformed> {
        check_views(&self.views)?;
        let mut servers: Vec<ServerId> = self.servers.iter().map(|address| address.server).collect();
        servers.sort_unstable();
        if servers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Malformed("the map names a server twice"));
        }
        let is_listed = |server: ServerId| servers.binary_search(&server).is_ok();
        if !is_listed(self.server) || self.bricks.iter().any(|place| !is_listed(place.server)) {
            return Err(Malformed("the map does not list the server of a brick, or the one that returned it"));
        }
        if self.bricks.windows(2).any(|pair| pair[0].brick >= pair[1].brick) {
            return Err(Malformed("the map's bricks are out of order, or one is listed twice"));
        }
        let mut members = self.views.iter().flat_map(View::all);
        match members.all(|member| self.server_of(member.brick).is_some()) {
            true => Ok(()),
            false => Err(Malformed("the map does not list the brick of a view")),
        }
    }

    /// The server that has a brick.
    pub fn server_of(&self, brick: BrickId) -> Option<ServerId> {
        let found = self.bricks.binary_search_by_key(&brick, |place| place.brick).ok()?;
        Some(self.bricks[found].server)
    }

    /// The servers that have bricks of the views, in order.
    pub fn holders(&self) -> Vec<ServerId> {
        let mut holders: Vec<ServerId> = self.bricks.iter().map(|place| place.server).collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// Number of partitions of the ring.
    pub fn partitions(&self) -> u32 {
        self.views.len() as u32
    }

    /// The partition that owns a position.
    pub fn partition_of(&self, position: Position) -> PartitionNumber {
        position.partition(self.partitions())
    }

    /// The view of a partition.
    pub fn view(&self, partition: PartitionNumber) -> Option<&View> {
        self.views.get(partition.0 as usize)
    }
}

/// Checks that the number of views is a power of two, and that each view has a valid leader and learners.
///
/// # Errors
/// `Malformed`, with the rule that a view breaks.
pub fn check_views(views: &[View]) -> Result<(), Malformed> {
    if !views.len().is_power_of_two() {
        return Err(Malformed("the number of the ring's partitions is not a power of two"));
    }
    if views.iter().any(|view| !view.has_member(view.leader)) {
        return Err(Malformed("the leader of a view is not one of its members"));
    }
    if views.iter().any(|view| view.learners.iter().any(|learner| view.has_member(learner.brick))) {
        return Err(Malformed("a brick is a member and a learner of one view"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> VolumeMap {
        let member = |brick| Member { brick: BrickId(brick), incarnation: Incarnation(1) };
        let place = |brick, server| BrickPlace { brick: BrickId(brick), server: ServerId(server) };
        let address = |server| ServerAddress { server: ServerId(server), endpoints: vec![format!("unix:/{server}")] };
        VolumeMap {
            volume: VolumeId(1),
            name: "v".into(),
            ring: RingId(1),
            copies: 2,
            mode: Mode::Leader,
            views: vec![View::new(Epoch(1), BrickId(7), vec![member(7), member(3)])],
            server: ServerId(1),
            servers: vec![address(2), address(1)],
            bricks: vec![place(3, 2), place(7, 2)],
            graph: GraphSpec::default(),
        }
    }

    #[test]
    fn every_brick_of_a_view_leads_to_a_server_that_is_listed() {
        let good = map();
        good.check().unwrap();
        assert_eq!((good.server_of(BrickId(3)), good.server_of(BrickId(4))), (Some(ServerId(2)), None));
        assert_eq!(good.holders(), [ServerId(2)]);
        type Spoil = fn(&mut VolumeMap);
        let spoils: [(&str, Spoil); 7] = [
            ("twice", |map| map.servers[0].server = ServerId(1)),
            ("does not list", |map| map.servers.truncate(1)),
            ("does not list", |map| map.bricks[0].server = ServerId(9)),
            ("out of order", |map| map.bricks.swap(0, 1)),
            ("does not list the brick", |map| map.bricks.truncate(1)),
            ("leader", |map| map.views[0].leader = BrickId(9)),
            ("a learner", |map| map.views[0].learners = map.views[0].members.clone()),
        ];
        for (words, change) in spoils {
            let mut bad = map();
            change(&mut bad);
            let refused = bad.check().unwrap_err();
            assert!(refused.0.contains(words), "{words}: {refused:?}");
        }
    }
}
