//! The views of the partitions that this server holds. One thread renews the lease with the coordinator, reads the
//! views, forms the next view of a partition where one is due and it is this server's turn, and records that a view has
//! begun when its leader here is ready. `hekate_cluster::views` decides; `docs/fast-lane.md` has the rules.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::lease::{Lease, boot_clock};
use crate::hosting::node::Node;
use crate::request::turn::Turn;
use hekate_cluster::views::{BrickSeen, Due, Outlook, Seen, outlook, waits_for};
use hekate_cluster::{AliveInfo, LEASE, PlacementRecords, RingInfo, older_records};
use hekate_proto::map::View;
use hekate_proto::*;
use hekate_replica::{Address, Envelope, Event, Message};
use hekate_threads::{Mutex, elapsed, now};
use hekate_transport::PeerLinks;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two renewals of the lease, each with a check of the views. The second value applies while a view is
/// due, a leader is ready, or a member does not answer.
const PAUSE: Duration = Duration::from_millis(750);
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Time without an answer of a member after which its leader leaves it out of the next view, although its server has a
/// lease.
const SILENCE_MAX: Duration = Duration::from_millis(1500);
/// Time for which a view must be due before the second server in turn forms it, and each further one after that.
const TURN: Duration = Duration::from_secs(1);
/// Time after its start in which a server forms no view that leaves out servers without a lease: they may be starting
/// too.
const START_GRACE: Duration = Duration::from_secs(5);

/// Time after which threads other than that of the lease, which read the records each 5 s, read all of them.
const AGE_MAX: Duration = Duration::from_secs(30);

/// What this server has seen of the partitions that it holds.
pub struct Views {
    /// Random number of this process, which is part of the key of its lease.
    process: u64,
    lease: Lease,
    /// Until this time, in ns of CLOCK_BOOTTIME, the views are checked every 50 ms.
    busy_until: AtomicU64,
    state: Mutex<State>,
    /// The records as the thread that renews the lease has read them. Locked while the coordinator is read.
    renewed: Mutex<PlacementRecords>,
    /// The records as other threads have read them, for which a renewal does not wait.
    read: Mutex<PlacementRecords>,
    /// Servers that had a lease when the coordinator was last read, with their bricks that had stopped.
    alive: Mutex<BTreeMap<ServerId, AliveInfo>>,
    /// Views that may begin: their leaders here are ready.
    ready: Mutex<BTreeSet<(At, Epoch)>>,
}

/// A partition of a ring.
type At = (RingId, PartitionNumber);

struct State {
    started: Instant,
    /// Since when a view is due for a partition.
    due: BTreeMap<At, Instant>,
    /// Since when a leader here has had no answer from a member.
    silent: BTreeMap<(At, BrickId), Instant>,
    /// When each view that has not begun was first seen.
    formed: BTreeMap<(At, Epoch), Instant>,
    /// The server has given up its lease, because it stops.
    ended: bool,
}

impl Default for State {
    fn default() -> Self {
        let (due, silent, formed) = Default::default();
        Self { started: now(), due, silent, formed, ended: false }
    }
}

impl Views {
    /// # Errors
    ///
    /// `Io` if the machine gives no random bytes.
    pub fn new() -> Result<Self> {
        let process = hekate_threads::random().map_err(|e| Error::io("random bytes", e))?;
        let (lease, busy_until, state, alive, ready) = Default::default();
        let [renewed, read] = [2 * LEASE, AGE_MAX].map(|age_max| Mutex::new(PlacementRecords::new(age_max)));
        Ok(Self { process, lease, busy_until, state, renewed, read, alive, ready })
    }

    /// True if the server has given up its lease, because it stops.
    pub fn have_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Until when the leaders here may answer.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Called when the link to a server has ended: its lease may expire soon, so the views are checked every 50 ms for
    /// the time of two leases.
    pub fn expect_changes(&self) {
        self.busy_until.fetch_max(boot_clock() + 2 * LEASE.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The leader here of that view is ready, so the view may begin.
    pub fn set_ready(&self, ring: RingId, partition: PartitionNumber, epoch: Epoch) {
        self.ready.lock().insert(((ring, partition), epoch));
    }
}

impl Node {
    /// Time until the next renewal of the lease and check of the views.
    pub(crate) fn views_pause(&self) -> Duration {
        let state = self.views.state.lock();
        // A member that does not come back counts as silent for a limited time only.
        let is_silent = state.silent.values().any(|since| elapsed(*since) < 2 * SILENCE_MAX);
        let is_busy = !self.views.ready.lock().is_empty() || !state.due.is_empty() || is_silent;
        if is_busy || boot_clock() < self.views.busy_until.load(Ordering::Relaxed) { BUSY_PAUSE } else { PAUSE }
    }

    /// Renews the lease, takes over the views, and forms and begins the views that are due.
    ///
    /// # Errors
    ///
    /// Those of the coordinator; the lease then expires unless a later call succeeds.
    pub(crate) fn keep_views(&self) -> Result<()> {
        // One thread at a time, and none once the server has left.
        let mut state = self.views.state.lock();
        if state.ended {
            return Ok(());
        }
        let known: Vec<_> = self.rings.all().iter().map(|ring| (ring.ring, ring.views())).collect();
        let from = boot_clock();
        self.cluster.registry().keep_alive(self.views.process, &self.bricks.out_of_service())?;
        // The records are read as of a revision that is not older than the renewal.
        let (rings, seen) = {
            let mut records = self.views.renewed.lock();
            self.cluster.registry().refresh(&mut records)?;
            (records.rings().cloned().collect::<Vec<Arc<RingInfo>>>(), self.look_around(&records))
        };
        check_newer(&known, &rings)?;
        self.take_views(rings.iter().map(Arc::as_ref));
        self.views.lease.renew(from);
        for mut info in rings {
            let Ok(ring) = self.ring(info.ring) else { continue };
            self.look_at_ring(&mut state, &ring, &mut info, &seen)?;
        }
        Ok(())
    }

    /// Gives up the lease: this server answers no more requests, and the other servers need not wait until the lease
    /// expires.
    pub fn leave(&self) {
        let mut state = self.views.state.lock();
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        self.views.lease.give_up();
        drop(state);
        // If the coordinator does not answer, the others wait until the lease expires.
        if let Err(error) = self.cluster.registry().leave(self.views.process) {
            log::warn!("cannot give up the lease, so other servers wait until it expires: {error}");
        }
        self.cluster.registry().coordinator().end_watches();
        // A server whose link to this one ends looks at its views at once.
        self.links.started().into_iter().for_each(PeerLinks::stop);
    }

    /// True if no other server has a lease.
    pub(crate) fn is_alone(&self) -> bool {
        self.views.alive.lock().len() <= 1
    }

    /// Takes over the coordinator's views, and delivers `View` to the replicas of each ring that has changed. Ignores
    /// views that are older than what is known here.
    pub(crate) fn take_views<'a>(&self, rings: impl IntoIterator<Item = &'a RingInfo>) {
        for info in rings {
            let Ok(ring) = self.ring(info.ring) else { continue };
            let note = |before: &[View], after: &[View]| {
                for (number, (before, view)) in (0..).map(PartitionNumber).zip(before.iter().zip(after)) {
                    self.maintenance.heal_progress().note_view(info.ring, number, before, view);
                }
            };
            if !ring.take_views(info, note) {
                continue;
            }
            let addresses: Vec<Address> = ring.replicas().map(|(address, _)| *address).collect();
            let mut turn = Turn::new(self, &ring);
            addresses.into_iter().for_each(|address| turn.deliver(address, Event::View));
            turn.run_without_syncs();
            self.wake_sessions();
        }
    }

    /// False while leases may hold that the coordinator does not show: after a move of the records those of the
    /// coordinator before, for the length of a lease.
    fn knows_all_leases(&self) -> bool {
        self.cluster.coordinator_in_use_for().is_none_or(|time| time >= waits_for(LEASE))
    }

    /// The bricks of the cluster, and the servers that have a lease, as they were read just now.
    fn look_around(&self, records: &PlacementRecords) -> Seen {
        let mut alive: BTreeMap<ServerId, AliveInfo> =
            records.alive().iter().map(|info| (info.server, info.clone())).collect();
        if !self.knows_all_leases() {
            let before = self.views.alive.lock().clone();
            for (server, info) in before {
                alive.entry(server).or_insert(info);
            }
        }
        self.views.alive.lock().clone_from(&alive);
        let of = |info: &hekate_cluster::BrickInfo| {
            let serves = alive.get(&info.server).is_some_and(|server| !server.stopped.contains(&info.brick));
            let serves = serves && !info.unopened;
            (info.brick, BrickSeen { server: info.server, incarnation: info.incarnation, serves })
        };
        Seen { bricks: records.bricks().iter().map(of).collect(), ..Seen::default() }
    }

    /// Reads what has changed of the rings, the leases and the bricks, and calls `look` with all of them.
    ///
    /// # Errors
    ///
    /// Those of the coordinator.
    pub(crate) fn with_records<T>(&self, look: impl FnOnce(&PlacementRecords) -> T) -> Result<T> {
        let mut records = self.views.read.lock();
        self.cluster.registry().refresh(&mut records)?;
        Ok(look(&records))
    }

    /// True if this server expires the sessions of a volume that server `home` has opened: its own, and those of
    /// servers without a lease if this server has the lowest number of those with one that have bricks of the volume.
    /// Clients send heartbeats to these servers only, and to `home`.
    pub(crate) fn ends_sessions_of(&self, home: ServerId, volume: VolumeId) -> bool {
        let own = self.cluster.server();
        let is_alive = |server: &ServerId| self.views.alive.lock().contains_key(server);
        if home == own || is_alive(&home) {
            return home == own;
        }
        let ring = self.volume(volume).and_then(|volume| self.ring(volume.ring));
        ring.is_ok_and(|ring| ring.servers().into_iter().find(is_alive) == Some(own))
    }

    /// Forms and begins the views of one ring that are due.
    fn look_at_ring(
        &self,
        state: &mut State,
        ring: &Arc<HostedRing>,
        info: &mut Arc<RingInfo>,
        seen: &Seen,
    ) -> Result<()> {
        let mut seen = seen.clone();
        for address in ring.leaders() {
            self.look_at_leader(state, ring, address, &mut seen);
        }
        let mut formed = Vec::new();
        for number in (0..info.views.len() as u32).map(PartitionNumber) {
            let at = (info.ring, number);
            if !info.holders(number).iter().any(|brick| self.bricks.get(brick).is_some()) {
                continue;
            }
            if let Some(view) = info.view(number).filter(|view| !view.opened) {
                state.formed.entry((at, view.epoch)).or_insert_with(now);
            }
            match outlook(info, number, &seen) {
                Outlook::Due(due) => {
                    let since = *state.due.entry(at).or_insert_with(now);
                    if self.is_turn(state, info, number, &due, &seen, since) {
                        formed.push((number, due.view));
                        state.due.remove(&at);
                    }
                }
                Outlook::Fine | Outlook::Waits(_) => drop(state.due.remove(&at)),
            }
        }
        if !formed.is_empty() {
            *info = Arc::new(self.form(ring, formed, &seen)?);
            // Read again: a server without a lease may have renewed it before the views were formed, and serve by the
            // views before. One that has none now reads the new views with its next lease.
            let mut records = self.views.renewed.lock();
            self.cluster.registry().refresh(&mut records)?;
            seen.bricks = self.look_around(&records).bricks;
        }
        self.open_views(state, ring, info, &seen)?;
        state.formed.retain(|((known, number), epoch), _| {
            *known != info.ring || info.view(*number).is_some_and(|view| view.epoch == *epoch && !view.opened)
        });
        Ok(())
    }

    /// Adds what a leader here knows of its members and learners to `seen`.
    fn look_at_leader(&self, state: &mut State, ring: &HostedRing, address: Address, seen: &mut Seen) {
        let Some(hosted) = ring.replica(address) else { return };
        let at = (ring.ring, address.partition);
        let partition = hosted.partition.read();
        let (away, failed) = (partition.away(), partition.failed_members());
        seen.alone.extend(partition.wants_alone().then_some(address.partition));
        seen.unfed.extend(partition.unfed_members().into_iter().map(|brick| (address.partition, brick)));
        seen.heirs.extend(partition.yields_to().map(|heir| (address.partition, heir)));
        let healing = partition.healing();
        for one in &healing {
            // An estimate of the time left begins with the healing, not with the first question for it.
            let _ = self.maintenance.heal_progress().seconds_left((ring.ring, address.partition, one.brick), one);
        }
        let whole = healing.into_iter().filter(|one| one.whole).map(|one| (address.partition, one.brick));
        seen.whole.extend(whole);
        drop(partition);
        seen.lost.extend(failed.into_iter().map(|brick| (address.partition, brick)));
        state.silent.retain(|(known, brick), _| *known != at || away.contains(brick));
        for brick in away {
            let since = state.silent.entry((at, brick)).or_insert_with(now);
            if elapsed(*since) >= SILENCE_MAX && self.views.lease.check().is_ok() {
                seen.lost.insert((address.partition, brick));
            }
        }
    }

    /// True if this server forms the view that is due since `since`. The servers that may form it have turns, one after
    /// another, in case an earlier one does not act.
    fn is_turn(
        &self,
        state: &State,
        info: &RingInfo,
        number: PartitionNumber,
        due: &Due,
        seen: &Seen,
        since: Instant,
    ) -> bool {
        let own = self.cluster.server();
        let Some(turn) = due.servers.iter().position(|server| *server == own) else { return false };
        let is_away = |brick: BrickId| !seen.bricks.get(&brick).is_some_and(|seen| seen.serves);
        let left_out =
            |view: &View| view.members.iter().any(|member| !due.view.has_member(member.brick) && is_away(member.brick));
        let is_early = elapsed(state.started) < START_GRACE && info.opened(number).is_some_and(left_out);
        !is_early && elapsed(since) >= TURN * turn as u32
    }

    /// Forms all views of a ring that are due in one transaction: each is a write to the coordinator's disk. Other
    /// servers can form views of other partitions at the same time.
    fn form(&self, ring: &Arc<HostedRing>, due: Vec<(PartitionNumber, View)>, seen: &Seen) -> Result<RingInfo> {
        let mut formed = Vec::new();
        let info = self.cluster.registry().update_views(ring.ring, |info| {
            formed.clone_from(&due);
            formed.retain(
                |(number, view)| matches!(outlook(info, *number, seen), Outlook::Due(due) if due.view == *view),
            );
            for (number, view) in &formed {
                let is_next = info.view(*number).is_some_and(|known| known.epoch < view.epoch);
                assert!(is_next, "the epoch of a view is greater than that of the view before it");
                info.form(*number, view.clone());
            }
            !formed.is_empty()
        })?;
        formed.iter().for_each(|(number, view)| log::info!("{}", formed_line(ring, *number, view)));
        self.take_views([&info]);
        formed.iter().for_each(|(number, view)| self.send_epoch(ring, *number, view.epoch));
        Ok(info)
    }

    /// Forms the view that an operator decides on.
    ///
    /// # Errors
    ///
    /// Those of `decide` and of the coordinator.
    pub(crate) fn force_view(
        &self,
        ring: &Arc<HostedRing>,
        number: PartitionNumber,
        decide: impl Fn(&RingInfo, &Seen) -> Result<View>,
    ) -> Result<View> {
        let seen = self.with_records(|records| self.look_around(records))?;
        let mut decided = Err(Error::bug("no view was computed for an operator's order"));
        let info = self.cluster.registry().update_views(ring.ring, |info| {
            let is_formed =
                |view: &View| info.view(number).is_some_and(|now| (now.epoch, now.leader) == (view.epoch, view.leader));
            if decided.as_ref().is_ok_and(is_formed) {
                // An attempt whose outcome was unknown has formed the view, which may have begun since.
                return false;
            }
            decided = decide(info, &seen);
            decided.iter().for_each(|view| info.form(number, view.clone()));
            decided.is_ok()
        })?;
        let view = decided?;
        self.take_views([&info]);
        self.send_epoch(ring, number, view.epoch);
        self.wake_views();
        Ok(view)
    }

    /// Sends the new epoch to the other servers that hold the partition: a server that receives a newer epoch than it
    /// knows reads the views.
    fn send_epoch(&self, ring: &Arc<HostedRing>, partition: PartitionNumber, epoch: Epoch) {
        let Some(own) = ring.replicas().map(|(address, _)| *address).find(|address| address.partition == partition)
        else {
            return;
        };
        for brick in ring.holders(partition) {
            let to = Address { partition, brick };
            if ring.replica(to).is_none() {
                let envelope = Envelope { ring: ring.ring, from: own, to, epoch, message: Message::WantStable };
                self.send_to_brick(ring, &envelope);
            }
        }
    }

    /// Records that views have begun. A view begins once the leader of the view before it serves no more: it is a
    /// member of the new view, its brick has a later incarnation, or its lease has expired.
    fn open_views(
        &self,
        state: &mut State,
        ring: &Arc<HostedRing>,
        info: &mut Arc<RingInfo>,
        seen: &Seen,
    ) -> Result<()> {
        let ready: Vec<(PartitionNumber, Epoch)> = {
            let ready = self.views.ready.lock();
            let here = ready.iter().filter(|((known, _), _)| *known == ring.ring);
            here.map(|((_, number), epoch)| (*number, *epoch)).collect()
        };
        let mut opened = Vec::new();
        for (number, epoch) in ready {
            let at = (ring.ring, number);
            let is_due = info.view(number).is_some_and(|view| view.epoch == epoch && !view.opened);
            let Some(before) = info.opened(number).filter(|_| is_due) else {
                self.views.ready.lock().remove(&(at, epoch));
                continue;
            };
            let is_here = info.view(number).is_some_and(|view| view.has_member(before.leader));
            let server = seen.bricks.get(&before.leader).map(|brick| brick.server);
            // A later incarnation of the leader's brick shows that the leader's process has ended.
            let has_lease = seen.bricks.values().any(|brick| Some(brick.server) == server && brick.serves);
            let lives = seen.remembers_leader(before) && (has_lease || !self.knows_all_leases());
            let waited = state.formed.get(&(at, epoch)).is_some_and(|since| elapsed(*since) >= waits_for(LEASE));
            if is_here || !lives || waited {
                opened.push((number, epoch));
            }
        }
        if opened.is_empty() {
            return Ok(());
        }
        let open = |info: &mut RingInfo| {
            opened.iter().fold(false, |changed, (number, epoch)| info.open(*number, *epoch) || changed)
        };
        *info = Arc::new(self.cluster.registry().update_views(ring.ring, open)?);
        self.take_views([&**info]);
        for (number, epoch) in opened {
            self.views.ready.lock().remove(&((ring.ring, number), epoch));
            self.send_epoch(ring, number, epoch);
        }
        Ok(())
    }
}

/// Checks that records say no less than what was known here before they were read.
fn check_newer(known: &[(RingId, Arc<Vec<View>>)], read: &[Arc<RingInfo>]) -> Result<()> {
    for (id, views) in known {
        let Some(info) = read.iter().find(|info| info.ring == *id) else {
            return Err(older_records(&format!("they do not know ring {id}")));
        };
        for (number, (before, now)) in views.iter().zip(&info.views).enumerate() {
            if now.epoch < before.epoch {
                let (has, knows) = (before.epoch, now.epoch);
                let why = format!("this server has view {has} of partition {number} of ring {id}, they know {knows}");
                return Err(older_records(&why));
            }
        }
    }
    Ok(())
}

/// The log line for a view that was formed.
fn formed_line(ring: &HostedRing, number: PartitionNumber, view: &View) -> String {
    let names = |bricks: &[hekate_proto::map::Member]| {
        bricks.iter().map(|member| ring.name(member.brick)).collect::<Vec<_>>().join(", ")
    };
    let learners =
        if view.learners.is_empty() { String::new() } else { format!("; learning: {}", names(&view.learners)) };
    let (id, epoch, leader) = (ring.ring, view.epoch, ring.name(view.leader));
    format!("partition {number} of ring {id}, view {epoch}: {leader} leads {}{learners}", names(&view.members))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_cluster::Domain;
    use hekate_proto::map::Member;

    fn ring(epoch: u64) -> Arc<RingInfo> {
        let member = Member { brick: BrickId(1), incarnation: Incarnation(1) };
        let view = View::new(Epoch(epoch), BrickId(1), vec![member]);
        Arc::new(RingInfo::new(RingId(1), "p", 1, Domain::Disk, vec![view]))
    }

    #[test]
    fn records_that_say_less_than_was_known_are_refused() {
        let known = [(RingId(1), Arc::new(ring(7).views.clone()))];
        check_newer(&known, &[ring(7)]).unwrap();
        check_newer(&known, &[ring(8)]).unwrap();
        check_newer(&[], &[ring(8)]).unwrap();
        let older = check_newer(&known, &[ring(6)]).unwrap_err();
        assert!(older.to_string().contains("has view 7 of partition 0 of ring 1, they know 6"), "{older}");
        let missing = check_newer(&known, &[]).unwrap_err();
        assert!(missing.to_string().contains("do not know ring 1"), "{missing}");
    }
}
