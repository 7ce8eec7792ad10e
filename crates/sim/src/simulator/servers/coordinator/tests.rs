//! The coordinator of a run does what the suite of all coordinators asks of changes, with answers that are late.

use super::{Reached, Store};
use crate::simulator::run::make_cluster;
use crate::simulator::settings::{Kind, Settings};
use crate::simulator::threads::{self, Owner};
use crate::simulator::world::{Event, World};
use hekate_cluster::Coordinator;
use hekate_cluster::conformance::tells_changes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Simulated time within which the suite ends, in µs.
const LIMIT: u64 = 600_000_000;

#[test]
fn the_coordinator_of_a_run_tells_changes() {
    for seed in 1..=10 {
        let mut world = World::new(Settings::of(Kind::Wide, seed), false);
        make_cluster(&mut world).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let (ends, store) = (ended.clone(), Arc::<Mutex<Store>>::default());
        let body = move || {
            let reached: Arc<dyn Coordinator> = Arc::new(Reached { server: 0, store, ended: AtomicBool::new(false) });
            tells_changes(&reached, Duration::from_secs(1));
            threads::in_world(move |_: &mut World| ends.store(true, Ordering::Relaxed));
        };
        let thread = world.threads.add(Owner::Server(0), body);
        world.after(1, Event::Resume { thread, number: None, notified: true });
        while !ended.load(Ordering::Relaxed) {
            assert!(world.step() && world.now < LIMIT, "seed {seed}: {:?}", world.wrong);
        }
        let [part, whole] =
            ["readings of changes of records", "readings of all records"].map(|what| world.report.of(what));
        assert!(part > 100 && whole > 0, "seed {seed}: {part}, {whole}");
    }
}
