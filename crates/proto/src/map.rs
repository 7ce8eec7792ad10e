//! The map: what a client must know to reach a volume's partitions. Any server hands it out, as JSON.

use crate::codec::Malformed;
use crate::ids::*;
use serde::{Deserialize, Serialize};

/// A volume's map.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct VolumeMap {
    /// The volume.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Its ring.
    pub ring: RingId,
    /// Copies of everything.
    pub copies: u32,
    /// How bytes are replicated.
    #[serde(default)]
    pub mode: Mode,
    /// A view a partition, in order; a power of two of them.
    pub views: Vec<View>,
    /// The server that handed the map out: it is reached the way that the map came.
    pub server: ServerId,
    /// That server and all that have bricks of the views.
    pub servers: Vec<ServerAddress>,
    /// Where each brick of the views is, in the order of their ids.
    pub bricks: Vec<BrickPlace>,
}

/// How a volume's bytes are replicated.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Every write goes to the leader, and from it to the others.
    #[default]
    Leader,
    /// High Speed Replication: overwrites that are to be on stable storage go to all members at once, where that can be.
    Hsr,
    /// Unsafe: the leader answers alone, the others follow.
    Async,
    /// Unsafe: the same, and one server leads all that it has a copy of.
    Bypass,
    /// For measuring: overwrites that are to be on stable storage as GlusterFS's AFR does them.
    #[serde(rename_all = "kebab-case")]
    Afr {
        /// A lock is kept for the next write.
        eager_lock: bool,
        /// Writes at the same time share a changelog entry; under an eager lock, later ones too.
        piggyback: bool,
    },
    /// For measuring, unsafe: the same go to all members at once, without stamps and lists.
    FastPath,
}

impl Mode {
    /// As users say it.
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

    /// Whether a leader answers before the others have what it says.
    pub fn answers_early(self) -> bool {
        matches!(self, Self::Async | Self::Bypass)
    }

    /// What it gives up of the contract (docs/semantics.md).
    pub fn weaker(self) -> &'static [&'static str] {
        match self {
            Self::Leader | Self::Hsr => &[],
            Self::Async | Self::Bypass => &[
                "what was acknowledged, and even synced, is lost if the leader's machine is lost before the others have it",
                "a new leader may not know of it: a file may go back to what it was",
            ],
            Self::Afr { .. } => &[
                "for measuring only: a crash may leave copies that differ until a leader begins anew",
                "overwrites do not move a file's times",
            ],
            Self::FastPath => &[
                "for measuring only: writes at the same time, or a crash, leave copies that differ, and nothing finds out",
                "overwrites do not move a file's times",
            ],
        }
    }

    /// Whether clients write past the log, without stamps.
    pub fn is_raw(self) -> bool {
        matches!(self, Self::Afr { .. } | Self::FastPath)
    }
}

/// How a server is reached.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct ServerAddress {
    /// Which.
    pub server: ServerId,
    /// `unix:PATH` and `tcp:ADDRESS:PORT`, those that it listens on; none if it has never said.
    pub endpoints: Vec<String>,
}

/// On which server a brick is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct BrickPlace {
    /// The brick.
    pub brick: BrickId,
    /// Its server.
    pub server: ServerId,
}

/// The replicas of a partition that are in step now.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct View {
    /// Counter of this decision.
    pub epoch: Epoch,
    /// Who orders; one of the members.
    pub leader: BrickId,
    /// Who holds it, the leader included.
    pub members: Vec<Member>,
    /// Who is to hold it again: they take what the members take, and are brought what they missed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learners: Vec<Member>,
    /// Whether it has begun. Before that its leader serves nobody: who was left out may still serve.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub opened: bool,
    /// No member had its memory when it began: what was not on stable storage is lost.
    #[serde(default, skip_serializing_if = "is_no")]
    pub forgetful: bool,
    /// How many views of the partition began without memory: what was answered before one of them and not yet on stable
    /// storage is lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub losses: u32,
    /// It has fewer members than the volume may have: its leader heals learners and serves nobody.
    #[serde(default, skip_serializing_if = "is_no")]
    pub too_few: bool,
    /// Every replica that the partition is to have is a member: only then is there a fast lane, of which who is away would
    /// find nothing in the log.
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
    /// One that has begun, without learners.
    pub fn new(epoch: Epoch, leader: BrickId, members: Vec<Member>) -> Self {
        let (learners, forgetful, too_few) = Default::default();
        Self { epoch, leader, members, learners, opened: true, forgetful, losses: 0, too_few, whole: true }
    }

    /// Whether a brick is one of the members.
    pub fn has_member(&self, brick: BrickId) -> bool {
        self.members.iter().any(|member| member.brick == brick)
    }

    /// Whether it is one of the learners.
    pub fn has_learner(&self, brick: BrickId) -> bool {
        self.learners.iter().any(|learner| learner.brick == brick)
    }

    /// Members and learners.
    pub fn all(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(&self.learners)
    }
}

/// A brick in a view.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub brick: BrickId,
    /// In which life.
    pub incarnation: Incarnation,
}

impl VolumeMap {
    /// Whether every position leads to a server; who reads a map asks before anything else. See [`check_views`].
    pub fn check(&self) -> Result<(), Malformed> {
        check_views(&self.views)?;
        let mut servers: Vec<ServerId> = self.servers.iter().map(|address| address.server).collect();
        servers.sort_unstable();
        if servers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Malformed("a map that names a server twice"));
        }
        let is_listed = |server: ServerId| servers.binary_search(&server).is_ok();
        if !is_listed(self.server) || self.bricks.iter().any(|place| !is_listed(place.server)) {
            return Err(Malformed("a map with a server that it does not list"));
        }
        if self.bricks.windows(2).any(|pair| pair[0].brick >= pair[1].brick) {
            return Err(Malformed("a map whose bricks are out of order, or one of them twice"));
        }
        let mut members = self.views.iter().flat_map(View::all);
        match members.all(|member| self.server_of(member.brick).is_some()) {
            true => Ok(()),
            false => Err(Malformed("a map with a brick that is nowhere")),
        }
    }

    /// The server that a brick is on.
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

    /// Partitions of the ring.
    pub fn partitions(&self) -> u32 {
        self.views.len() as u32
    }

    /// The partition of a position.
    pub fn partition_of(&self, position: Position) -> PartitionNumber {
        position.partition(self.partitions())
    }

    /// A partition's view.
    pub fn view(&self, partition: PartitionNumber) -> Option<&View> {
        self.views.get(partition.0 as usize)
    }
}

/// Positions lead to partitions only if there is a power of two of them, and each is led by one of its members.
pub fn check_views(views: &[View]) -> Result<(), Malformed> {
    if !views.len().is_power_of_two() {
        return Err(Malformed("a ring whose partitions are not a power of two"));
    }
    if views.iter().any(|view| !view.has_member(view.leader)) {
        return Err(Malformed("a view whose leader is none of its members"));
    }
    if views.iter().any(|view| view.learners.iter().any(|learner| view.has_member(learner.brick))) {
        return Err(Malformed("a view with a member that learns"));
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
            ("nowhere", |map| map.bricks.truncate(1)),
            ("leader", |map| map.views[0].leader = BrickId(9)),
            ("learns", |map| map.views[0].learners = map.views[0].members.clone()),
        ];
        for (words, change) in spoils {
            let mut bad = map();
            change(&mut bad);
            let refused = bad.check().unwrap_err();
            assert!(refused.0.contains(words), "{words}: {refused:?}");
        }
    }
}
