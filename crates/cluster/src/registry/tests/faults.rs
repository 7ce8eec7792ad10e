//! Changes whose outcome is unknown: each is made once, and reported rightly.

use super::*;
use std::collections::VecDeque;

/// What happens to a write whose answer is lost.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// It is executed at once.
    Executed,
    /// It is never executed.
    Dropped,
    /// It is executed before the next write.
    Soon,
    /// It is executed when the test says so.
    Late,
}

const FAULTS: [Fault; 4] = [Fault::Executed, Fault::Dropped, Fault::Soon, Fault::Late];

type Pairs = Vec<(String, Option<String>)>;
/// Expected values and writes of a transaction.
type Delayed = (Pairs, Pairs);

fn owned(pairs: &[(&str, Option<&str>)]) -> Pairs {
    pairs.iter().map(|(key, value)| ((*key).into(), value.map(String::from))).collect()
}

fn borrowed(pairs: &Pairs) -> Vec<(&str, Option<&str>)> {
    pairs.iter().map(|(key, value)| (&key[..], value.as_deref())).collect()
}

/// A coordinator that loses the answers of the next writes.
#[derive(Default)]
struct Faulty {
    store: InMemory,
    faults: Mutex<VecDeque<Fault>>,
    soon: Mutex<Vec<Delayed>>,
    late: Mutex<Vec<Delayed>>,
}

impl Faulty {
    fn execute(&self, delayed: &Mutex<Vec<Delayed>>) {
        for (expect, writes) in std::mem::take(&mut *delayed.lock()) {
            self.store.transact(&borrowed(&expect), &borrowed(&writes)).unwrap();
        }
    }

    /// Executes what was delayed.
    fn settle(&self) {
        self.execute(&self.soon);
        self.execute(&self.late);
    }

    fn write(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        self.execute(&self.soon);
        let Some(fault) = self.faults.lock().pop_front() else { return self.store.transact(expect, writes) };
        match fault {
            Fault::Executed => drop(self.store.transact(expect, writes)?),
            Fault::Dropped => {}
            Fault::Soon => self.soon.lock().push((owned(expect), owned(writes))),
            Fault::Late => self.late.lock().push((owned(expect), owned(writes))),
        }
        Ok(Outcome::Unknown { why: format!("{fault:?}") })
    }
}

impl Coordinator for Faulty {
    fn get(&self, key: &str) -> Result<Option<String>> {
        self.store.get(key)
    }
    fn list(&self, prefix: &str) -> Result<Listing> {
        self.store.list(prefix)
    }
    fn transact(&self, expect: &[Expect<'_>], writes: &[Write<'_>]) -> Result<Outcome> {
        self.write(expect, writes)
    }
    fn keep(&self, key: &str, value: &str, _: Duration) -> Result<Outcome> {
        self.write(&[], &[(key, Some(value))])
    }
    fn release(&self, key: &str) -> Result<Outcome> {
        self.write(&[], &[(key, None)])
    }
    fn watch(&self, _: &[&str], _: Revision, _: Duration) -> Result<Watched> {
        Ok(Watched::ReadAgain)
    }
    fn end_watches(&self) {}
}

struct Stage {
    faulty: Arc<Faulty>,
    registry: Registry,
    /// What happens to the first two writes of each change.
    script: Vec<Fault>,
}

impl Stage {
    /// Runs a change under the script.
    fn under_faults<T>(&self, change: impl FnOnce(&Registry) -> T) -> T {
        *self.faulty.faults.lock() = self.script.clone().into();
        let result = change(&self.registry);
        self.faulty.faults.lock().clear();
        result
    }
}

/// Runs a test under every script of up to two faults, on a pool with bricks 1 and 2.
fn under_every_script(test: impl Fn(&Stage)) {
    let ones = FAULTS.iter().map(|fault| vec![*fault]);
    let twos = FAULTS.iter().flat_map(|first| FAULTS.iter().map(|second| vec![*first, *second]));
    for script in ones.chain(twos) {
        let faulty = Arc::new(Faulty::default());
        let registry = Registry::new(faulty.clone());
        registry.create_pool("p", &[brick(1, 1), brick(2, 1)]).unwrap();
        println!("{script:?}");
        test(&Stage { faulty, registry, script });
    }
}

#[test]
fn a_cluster_and_a_pool_are_made_once() {
    under_every_script(|stage| {
        let registry = &stage.registry;
        stage.under_faults(|registry| registry.create_cluster("c")).unwrap();
        stage.under_faults(|registry| registry.create_pool("q", &[brick(7, 1)])).unwrap();
        stage.faulty.settle();
        assert_eq!(registry.create_cluster("c"), Err(Error::Exists));
        assert_eq!(stage.under_faults(|registry| registry.create_cluster("d")), Err(Error::Exists));
        assert!(stage.under_faults(|registry| registry.create_pool("q", &[brick(8, 1)])).is_err());
        stage.faulty.settle();
        assert_eq!((registry.cluster().unwrap(), registry.bricks().unwrap().len()), ("c".into(), 3));
    });
}

#[test]
fn a_number_is_returned_once() {
    under_every_script(|stage| {
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(stage.under_faults(Registry::number_server).unwrap().0);
        }
        stage.faulty.settle();
        seen.push(stage.registry.number_server().unwrap().0);
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    });
}

#[test]
fn a_volume_is_made_once_and_does_not_come_back() {
    under_every_script(|stage| {
        let registry = &stage.registry;
        let made = stage.under_faults(|registry| registry.create_volume(wanted(RingId(1)))).unwrap();
        assert_eq!(registry.volumes().unwrap(), std::slice::from_ref(&made));
        let again = stage.under_faults(|registry| registry.create_volume(wanted(RingId(1))));
        assert!(again.unwrap_err().to_string().contains("already"));
        let deleting = stage.under_faults(|registry| registry.begin_deletion(&made)).unwrap().unwrap();
        assert_eq!(deleting, VolumeInfo { deleting: true, ..made.clone() });
        stage.under_faults(|registry| registry.forget_volume(&made)).unwrap();
        assert_eq!(registry.volumes().unwrap(), []);
        let later = registry.create_volume(wanted(RingId(1))).unwrap();
        assert!(later.volume > made.volume);
        stage.faulty.settle();
        registry.forget_volume(&made).unwrap();
        assert_eq!(registry.begin_deletion(&made).unwrap(), None);
        assert_eq!(
            registry.volumes().unwrap(),
            std::slice::from_ref(&later),
            "the later volume of the name is left alone"
        );
        registry.forget_volume(&later).unwrap();
        stage.faulty.settle();
        assert_eq!(registry.volumes().unwrap(), []);
    });
}

#[test]
fn a_session_is_of_one_caller_and_does_not_return() {
    under_every_script(|stage| {
        let registry = &stage.registry;
        let begin =
            || stage.under_faults(|registry| registry.begin_session(VolumeId(1), &SessionOwner::Uid(0))).unwrap();
        let (one, two) = (begin(), begin());
        assert!(one != two && registry.session(one).unwrap().is_some() && registry.session(two).unwrap().is_some());
        stage.under_faults(|registry| registry.end_session(one)).unwrap();
        stage.faulty.settle();
        assert_eq!(registry.session(one).unwrap(), None);
        assert!(registry.session(two).unwrap().is_some());
        // Sessions may be left over, of this server, which expires them.
        let left = registry.sessions().unwrap();
        assert!(left.len() <= 5 && left.iter().all(|session| session.server == FIRST_SERVER), "{left:?}");
    });
}

#[test]
fn a_server_joins_once_and_its_lease_ends_with_its_process() {
    under_every_script(|stage| {
        let server = stage.registry.number_server().unwrap();
        let join = |stage: &Stage, id| {
            stage.under_faults(|registry| registry.join(&ServerInfo::new(server), &[brick(id, server.0)]))
        };
        join(stage, 3).unwrap();
        assert!(join(stage, 4).unwrap_err().to_string().contains("has joined already"));
        stage.faulty.settle();
        let second = Registry::of(stage.registry.coordinator.clone(), server);
        assert_eq!(second.own_bricks().unwrap(), [brick(3, 2)]);
        let announce = |endpoint: &str| {
            *stage.faulty.faults.lock() = stage.script.clone().into();
            second.announce(&[endpoint.into()], &BTreeMap::new()).unwrap();
            stage.faulty.faults.lock().clear();
        };
        ["unix:/x", "unix:/y", "unix:/x"].into_iter().for_each(announce);
        stage.faulty.settle();
        assert_eq!(second.servers().unwrap()[1].endpoints, ["unix:/x"]);

        stage.under_faults(|registry| registry.keep_alive(1, &[])).unwrap();
        stage.under_faults(|registry| registry.leave(1)).unwrap();
        stage.registry.keep_alive(2, &[BrickId(1)]).unwrap();
        stage.registry.leave(1).unwrap();
        // What the earlier process has sent leaves the lease of the later one.
        stage.faulty.settle();
        let alive = AliveInfo { server: FIRST_SERVER, stopped: vec![BrickId(1)] };
        assert_eq!(stage.registry.alive().unwrap(), std::slice::from_ref(&alive));
        stage.registry.keep_alive(3, &[BrickId(2)]).unwrap();
        let both = AliveInfo { stopped: vec![BrickId(1), BrickId(2)], ..alive };
        assert_eq!(stage.registry.alive().unwrap(), [both], "one server");
    });
}

#[test]
fn a_brick_is_added_replaced_and_removed_once() {
    under_every_script(|stage| {
        let registry = &stage.registry;
        let ring = stage.under_faults(|registry| registry.ring_for("p", 2, RingWish::default())).unwrap();
        assert_eq!(registry.rings().unwrap(), std::slice::from_ref(&ring));
        stage.under_faults(|registry| registry.add_brick(&brick(9, 1))).unwrap();
        assert_eq!(registry.add_brick(&brick(9, 1)), Err(Error::Exists));
        assert_eq!(stage.under_faults(|registry| registry.remove_brick(BrickId(9))).unwrap(), []);
        let places = ring.places(BrickId(1));
        let replaced = stage.under_faults(|registry| registry.replace_brick(&brick(1, 1), &brick(3, 1)));
        assert_eq!(replaced.unwrap(), places);
        stage.under_faults(|registry| registry.opened(BrickId(3), Incarnation(5), 1)).unwrap();
        stage.faulty.settle();
        let now = registry.ring(ring.ring).unwrap().unwrap();
        assert_eq!((now.places(BrickId(1)), now.places(BrickId(3))), (0, places));
        let bricks: Vec<u128> = registry.bricks().unwrap().iter().map(|info| info.brick.0).collect();
        assert_eq!(bricks, [1, 2, 3], "the removed brick does not come back");
        assert_eq!(registry.bricks().unwrap()[2].incarnation, Incarnation(5));
    });
}

#[test]
fn a_view_is_formed_once_and_begins_once() {
    under_every_script(|stage| {
        let registry = &stage.registry;
        let ring = registry.ring_for("p", 2, RingWish::default()).unwrap().ring;
        let (at, other) = (PartitionNumber(3), PartitionNumber(4));
        let form = |number: PartitionNumber| {
            let mut formed = Vec::new();
            let change = |info: &mut RingInfo| {
                let now = info.view(number).unwrap().clone();
                if !now.opened {
                    return false;
                }
                formed.push(now.epoch.0 + 1);
                info.form(number, hekate_proto::map::View { epoch: Epoch(now.epoch.0 + 1), opened: false, ..now });
                true
            };
            let info = stage.under_faults(|registry| registry.update_views(ring, change)).unwrap();
            assert_eq!(formed.last(), Some(&info.view(number).unwrap().epoch.0));
            info.view(number).unwrap().epoch
        };
        let begin = |number: PartitionNumber, epoch: Epoch| {
            let change = |info: &mut RingInfo| info.open(number, epoch);
            let info = stage.under_faults(|registry| registry.update_views(ring, change)).unwrap();
            assert!(info.view(number).unwrap().opened);
        };
        assert_eq!(form(at), Epoch(2));
        begin(at, Epoch(2));
        assert_eq!(form(other), Epoch(2));
        assert_eq!(form(at), Epoch(3));
        stage.faulty.settle();
        let now = registry.ring(ring).unwrap().unwrap();
        assert_eq!((now.view(at).unwrap().epoch, now.opened(at).unwrap().epoch), (Epoch(3), Epoch(2)));
        assert_eq!((now.view(other).unwrap().epoch, now.opened(other).unwrap().epoch), (Epoch(2), Epoch(1)));
    });
}

#[test]
fn a_list_of_lost_blocks_is_not_replaced_by_an_older_one() {
    under_every_script(|stage| {
        let registry = &stage.registry;
        for list in [&[1u32][..], &[], &[1]] {
            stage.under_faults(|registry| registry.put_lost_blocks(list)).unwrap();
            assert_eq!(registry.lost_blocks::<u32>().unwrap(), list);
        }
        stage.faulty.settle();
        assert_eq!(registry.lost_blocks::<u32>().unwrap(), [1]);
    });
}

#[test]
fn a_change_fails_if_its_outcome_stays_unknown() {
    let faulty = Arc::new(Faulty::default());
    let registry = Registry::new(faulty.clone());
    faulty.faults.lock().extend([Fault::Dropped; 3]);
    let failed = registry.create_cluster("c").unwrap_err();
    assert!(matches!(&failed, Error::Unavailable { what } if what.contains("does not say")), "{failed}");
    registry.create_cluster("c").unwrap();
}
