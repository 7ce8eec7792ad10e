//! The replicas of one ring that this server has.

use crate::hosting::node::Node;
use crate::hosting::own_bricks::OwnBricks;
use hekate_brick::Brick;
use hekate_cluster::RingInfo;
use hekate_proto::map::View;
use hekate_proto::*;
use hekate_replica::{Address, Around, Ask, BlockAt, Event, Out, Partition};
use hekate_threads::{HashMap, Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A replica and its brick.
pub struct Hosted {
    /// The replica's state machine. Reads share the lock; events take it exclusively.
    pub partition: RwLock<Partition>,
    pub brick: Arc<Brick>,
    /// Events that the replica has yet to handle, in order.
    mailbox: Mutex<VecDeque<Event>>,
}

/// The replicas of one ring that this server has, and the views of all of the ring's partitions.
pub struct HostedRing {
    pub ring: RingId,
    views: RwLock<Arc<Vec<View>>>,
    /// The bricks that have, or are to have, data of each partition.
    holders: RwLock<Vec<Vec<BrickId>>>,
    /// The server of every brick of the cluster.
    servers: RwLock<HashMap<BrickId, ServerId>>,
    replicas: BTreeMap<Address, Hosted>,
}

impl HostedRing {
    /// Makes the replicas of the bricks that are open here. `servers` has the server of every brick of the cluster;
    /// `lost` returns the blocks of a partition that a brick lost in power cuts.
    ///
    /// # Errors
    ///
    /// Those of reading a replica's state from its brick.
    pub fn new(
        info: &RingInfo,
        bricks: &OwnBricks,
        servers: HashMap<BrickId, ServerId>,
        lost: impl Fn(BrickId, PartitionNumber) -> Vec<BlockAt>,
    ) -> Result<Self> {
        let mut replicas = BTreeMap::new();
        let holders = holders(info);
        for (number, bricks_of) in (0..).map(PartitionNumber).zip(&holders) {
            for id in bricks_of {
                let Some(brick) = bricks.get(id) else { continue };
                let address = Address { partition: number, brick: *id };
                let around = Around { brick, views: &info.views, now: Time(0), elapsed: Node::elapsed() };
                let lost = lost(*id, address.partition);
                let partition = RwLock::new(Partition::new(info.ring, address, &around, lost)?);
                let (brick, mailbox) = (brick.clone(), Mutex::default());
                replicas.insert(address, Hosted { partition, brick, mailbox });
            }
        }
        let (views, holders) = (RwLock::new(Arc::new(info.views.clone())), RwLock::new(holders));
        Ok(Self { ring: info.ring, views, holders, servers: RwLock::new(servers), replicas })
    }

    /// The number of partitions.
    pub fn count(&self) -> u32 {
        self.views.read().len() as u32
    }

    /// The views of all partitions, as this server knows them.
    pub fn views(&self) -> Arc<Vec<View>> {
        self.views.read().clone()
    }

    /// The view of a partition, as this server knows it.
    ///
    /// # Errors
    ///
    /// `Protocol` if the ring has no such partition.
    pub fn view(&self, number: PartitionNumber) -> Result<View> {
        let views = self.views.read();
        let found = views.get(number.0 as usize).cloned();
        found
            .ok_or_else(|| Error::Protocol { what: format!("partition {number} of ring {} does not exist", self.ring) })
    }

    /// Takes over the views, and the placement, of the partitions whose views are newer than what is known here. True
    /// if there are any. `note` gets the views before and after, while no other thread can take over views.
    pub fn take_views(&self, info: &RingInfo, note: impl FnOnce(&[View], &[View])) -> bool {
        // Two threads that read the records at different times may arrive in either order, and views of different
        // partitions may have been read at different times.
        let mut known = self.views.write();
        let later = |(known, read): (&View, &View)| if is_before(read, known) { known.clone() } else { read.clone() };
        let views: Vec<View> = known.iter().zip(&info.views).map(later).collect();
        if **known == views {
            return false;
        }
        note(&known, &views);
        let mut holders = self.holders.write();
        for (number, (view, read)) in views.iter().zip(&info.views).enumerate() {
            if view == read {
                holders[number] = info.holders(PartitionNumber(number as u32));
            }
        }
        drop(holders);
        *known = Arc::new(views);
        true
    }

    /// Takes over which server has which brick.
    pub fn set_servers(&self, servers: &HashMap<BrickId, ServerId>) {
        if *self.servers.read() != *servers {
            self.servers.write().clone_from(servers);
        }
    }

    /// The bricks that have data of a partition, or are to have it.
    pub fn holders(&self, number: PartitionNumber) -> Vec<BrickId> {
        self.holders.read().get(number.0 as usize).cloned().unwrap_or_default()
    }

    pub fn server_of(&self, brick: BrickId) -> Option<ServerId> {
        self.servers.read().get(&brick).copied()
    }

    /// The servers that have bricks of the views: clients send their heartbeats to these.
    pub fn servers(&self) -> BTreeSet<ServerId> {
        let (views, servers) = (self.views(), self.servers.read());
        views.iter().flat_map(View::all).filter_map(|member| servers.get(&member.brick)).copied().collect()
    }

    pub fn bricks_of(&self, server: ServerId) -> Vec<BrickId> {
        self.servers.read().iter().filter(|(_, at)| **at == server).map(|(brick, _)| *brick).collect()
    }

    /// True if all members of a partition's view are here.
    pub fn is_all_here(&self, number: PartitionNumber) -> bool {
        let here = |brick| self.replicas.contains_key(&Address { partition: number, brick });
        self.view(number).is_ok_and(|view| view.members.iter().all(|member| here(member.brick)))
    }

    /// True if all bricks of the ring's placement are here.
    pub fn is_placed_here(&self) -> bool {
        let here = |number, brick| self.replicas.contains_key(&Address { partition: number, brick });
        let holders = self.holders.read();
        (0..).map(PartitionNumber).zip(&*holders).all(|(number, all)| all.iter().all(|brick| here(number, *brick)))
    }

    /// True if all members of all partitions are here.
    pub fn is_whole(&self) -> bool {
        (0..self.count()).all(|number| self.is_all_here(PartitionNumber(number)))
    }

    pub fn replica(&self, address: Address) -> Option<&Hosted> {
        self.replicas.get(&address)
    }

    pub fn replicas(&self) -> impl Iterator<Item = (&Address, &Hosted)> {
        self.replicas.iter()
    }

    /// The leader of a partition.
    ///
    /// # Errors
    ///
    /// `OtherServer` if it is elsewhere, `Unavailable` if its brick's server is not known.
    pub fn leader(&self, number: PartitionNumber) -> Result<(Address, &Hosted)> {
        let view = self.view(number)?;
        let address = Address { partition: number, brick: view.leader };
        let elsewhere = || match self.server_of(view.leader) {
            Some(server) => Error::OtherServer { server },
            None => Error::Unavailable {
                what: format!("no server is known for brick {}, which leads partition {number}", view.leader.text()),
            },
        };
        self.replica(address).map(|hosted| (address, hosted)).ok_or_else(elsewhere)
    }

    /// The leaders that are here.
    pub fn leaders(&self) -> Vec<Address> {
        let views = self.views();
        let leads = |address: &&Address| {
            views.get(address.partition.0 as usize).is_some_and(|view| view.leader == address.brick)
        };
        self.replicas.keys().filter(leads).copied().collect()
    }

    /// The bricks of a partition's members that are here, the leader's first.
    ///
    /// # Errors
    ///
    /// `Protocol` if the ring has no such partition.
    pub fn members(&self, number: PartitionNumber) -> Result<Vec<Arc<Brick>>> {
        let view = self.view(number)?;
        let others = view.members.iter().map(|member| member.brick).filter(|brick| *brick != view.leader);
        let addresses = std::iter::once(view.leader).chain(others).map(|brick| Address { partition: number, brick });
        Ok(addresses.filter_map(|address| Some(self.replica(address)?.brick.clone())).collect())
    }

    /// Why a partition that is led here does not serve, or accepts no changes; `None` if it does both.
    pub fn waits_for(&self, number: PartitionNumber) -> Option<String> {
        let (_, hosted) = self.leader(number).ok()?;
        let partition = hosted.partition.read();
        if let Some(error) = partition.failure() {
            return Some(error.to_string());
        }
        if partition.view().too_few && partition.serves() {
            return Some("another replica to be healed: fewer than the minimum are complete".into());
        }
        let has_stopped = |brick| self.bricks().iter().any(|here| here.id() == brick && here.stopped().is_some());
        let name = |brick| match has_stopped(brick) {
            true => format!("{}, which has stopped", self.name(brick)),
            false => self.name(brick),
        };
        let away: Vec<String> = partition.away().into_iter().map(name).collect();
        match (away.is_empty(), partition.serves()) {
            (true, true) => None,
            (true, false) => Some(match partition.compared() {
                Some(entries) => format!("its replicas to be compared, {entries} entries so far"),
                None => "its replicas to be reconciled".into(),
            }),
            (false, _) => Some(format!("brick {}", away.join(", "))),
        }
    }

    /// A brick's name for people: its id and its server.
    pub fn name(&self, brick: BrickId) -> String {
        let server = self.server_of(brick).map_or(String::new(), |server| format!(" of server {server}"));
        format!("{}{server}", brick.text())
    }

    /// The bricks of the ring that are here.
    pub fn bricks(&self) -> Vec<Arc<Brick>> {
        let mut seen = BTreeSet::new();
        let first = |hosted: &&Hosted| seen.insert(hosted.brick.id());
        self.replicas.values().filter(first).map(|hosted| hosted.brick.clone()).collect()
    }

    /// Puts an event into the mailbox of a replica that is here.
    pub fn deliver(&self, to: Address, event: Event) {
        if let Some(hosted) = self.replica(to) {
            hosted.mailbox.lock().push_back(event);
        }
    }

    /// Has a replica handle the events of its mailbox. `follow` carries out the output of each while the replica's lock
    /// is held, so that its messages to another replica arrive in order.
    pub fn work(&self, at: Address, now: Time, mut follow: impl FnMut(Out)) {
        let Some(hosted) = self.replica(at) else { return };
        let mut partition = hosted.partition.write();
        let next = || hosted.mailbox.lock().pop_front();
        while let Some(event) = next() {
            // The views are read after the event was taken from the mailbox. `Event::View` is delivered after the views
            // are set, so its handler gets views that are at least as new.
            let views = self.views();
            let around = Around { brick: &hosted.brick, views: &views, now, elapsed: Node::elapsed() };
            let mut out = Out::default();
            partition.handle(event, &around, &mut out);
            follow(out);
        }
    }

    /// Reads under the partition's shared lock. `None`: an op in progress holds what is read, so the read has to wait
    /// for the leader's turn.
    pub fn read(&self, ask: &Ask, number: PartitionNumber, op: &Op) -> Option<Result<Reply>> {
        let hosted = match self.leader(number) {
            Ok((_, hosted)) => hosted,
            Err(error) => return Some(Err(error)),
        };
        // A read sends no message, and only messages need the views.
        let around = Around { brick: &hosted.brick, views: &[], now: ask.now, elapsed: Node::elapsed() };
        hosted.partition.read().read(&around, ask, op)
    }
}

/// True if a partition had the first view before the second. A view that has begun does not become one that has not.
fn is_before(view: &View, later: &View) -> bool {
    (view.epoch, view.opened) < (later.epoch, later.opened)
}

fn holders(info: &RingInfo) -> Vec<Vec<BrickId>> {
    (0..info.views.len() as u32).map(|number| info.holders(PartitionNumber(number))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_cluster::Domain;
    use hekate_proto::map::Member;

    fn member(brick: u64) -> Member {
        Member { brick: BrickId(brick.into()), incarnation: Incarnation(1) }
    }

    fn ring(epoch: u64, opened: bool) -> RingInfo {
        let view = View { opened, ..View::new(Epoch(epoch), BrickId(1), Vec::new()) };
        RingInfo::new(RingId(1), "p", 1, Domain::Disk, vec![view])
    }

    fn hosted(info: &RingInfo) -> HostedRing {
        HostedRing::new(info, &OwnBricks::default(), HashMap::default(), |_, _| Vec::new()).unwrap()
    }

    #[test]
    fn views_never_become_older_while_several_threads_take_them_over() {
        const THREADS: u64 = 4;
        const EPOCHS: u64 = 20_000;
        let hosted = hosted(&ring(0, true));
        std::thread::scope(|scope| {
            for thread in 1..=THREADS {
                let hosted = &hosted;
                scope.spawn(move || {
                    for epoch in (thread..EPOCHS).step_by(THREADS as usize) {
                        hosted.take_views(&ring(epoch, true), |before, _| assert!(before[0].epoch < Epoch(epoch)));
                        let known = hosted.view(PartitionNumber(0)).unwrap().epoch;
                        assert!(known >= Epoch(epoch), "view {known} replaced view {epoch}");
                    }
                });
            }
        });
    }

    #[test]
    fn a_server_without_bricks_of_the_views_is_none_of_the_rings() {
        let view = View::new(Epoch(1), BrickId(2), vec![member(2), member(3)]);
        let hosted = hosted(&RingInfo::new(RingId(1), "p", 2, Domain::Disk, vec![view]));
        hosted.set_servers(
            &[1, 2, 3].map(|number: u32| (BrickId(number.into()), ServerId(number))).into_iter().collect(),
        );
        assert_eq!(hosted.servers(), BTreeSet::from([ServerId(2), ServerId(3)]));
    }

    #[test]
    fn a_record_from_before_a_view_began_is_ignored() {
        let hosted = hosted(&ring(1, false));
        assert!(hosted.take_views(&ring(1, true), |_, _| ()));
        assert!(!hosted.take_views(&ring(1, false), |_, _| ()));
        assert!(hosted.view(PartitionNumber(0)).unwrap().opened);
        assert!(hosted.take_views(&ring(2, false), |_, _| ()), "the next view");
    }

    #[test]
    fn the_newer_view_of_each_partition_counts() {
        let ring = |epochs: [u64; 2]| {
            let view = |epoch: u64| View::new(Epoch(epoch), BrickId(epoch.into()), vec![member(epoch)]);
            RingInfo::new(RingId(1), "p", 1, Domain::Disk, epochs.map(view).into())
        };
        let hosted = hosted(&ring([1, 1]));
        // This thread has formed view 2 of partition 0 before it could read view 2 of partition 1.
        assert!(hosted.take_views(&ring([2, 1]), |_, _| ()));
        assert!(hosted.take_views(&ring([1, 2]), |before, after| {
            assert_eq!((before[0].epoch, after[0].epoch, after[1].epoch), (Epoch(2), Epoch(2), Epoch(2)));
        }));
        assert_eq!(hosted.views().iter().map(|view| view.epoch.0).collect::<Vec<_>>(), [2, 2]);
        assert_eq!([0, 1].map(|number| hosted.holders(PartitionNumber(number))), [[BrickId(2)], [BrickId(2)]]);
    }
}
