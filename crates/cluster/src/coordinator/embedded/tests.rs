//! The suite on the embedded coordinator, and what it keeps over a restart.

use super::*;
use crate::conformance::tasks::Tasks;
use crate::conformance::{LATE, conforms};
use hekate_threads::sleep;
use std::path::PathBuf;
use std::sync::Arc;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("hekate-coordinator-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn file(&self) -> PathBuf {
        self.0.join("coordinator.redb")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_embedded_coordinator_conforms_and_remembers() {
    let scratch = Scratch::new("conforms");
    let path = scratch.file();
    let coordinator: Arc<dyn Coordinator> = Arc::new(EmbeddedCoordinator::create(&path).unwrap());
    conforms(&coordinator, LATE);
    let second = EmbeddedCoordinator::open(&path).err().unwrap();
    assert!(second.to_string().contains("in use"), "{second}");
    drop(coordinator);
    let coordinator = EmbeddedCoordinator::open(&path).unwrap();
    assert_eq!(coordinator.get("/suite/b").unwrap().unwrap(), "2");
    let life = Duration::from_millis(500);
    coordinator.keep("/suite/k", "1", life).unwrap();
    coordinator.keep("/suite/k", "2", life).unwrap();
    drop(coordinator);
    sleep(life * 2);
    let coordinator = EmbeddedCoordinator::open(&path).unwrap();
    let known = coordinator.get("/suite/k").unwrap();
    assert_eq!(known.unwrap(), "2", "the key was lost although its owner could not renew it");
    sleep(life * 2);
    assert_eq!(coordinator.get("/suite/k").unwrap(), None);
}

#[test]
fn a_watch_over_a_restart_misses_nothing() {
    let scratch = Scratch::new("restart");
    let coordinator = EmbeddedCoordinator::create(&scratch.file()).unwrap();
    let long = Duration::from_secs(60);
    coordinator.transact(&[], &[("/a", Some("1"))]).unwrap();
    let before = coordinator.list("/").unwrap().revision;
    coordinator.keep("/k", "1", long).unwrap();
    coordinator.keep("/k", "2", long).unwrap();
    let last = coordinator.list("/").unwrap().revision;
    drop(coordinator);
    let coordinator = EmbeddedCoordinator::open(&scratch.file()).unwrap();
    assert_eq!(coordinator.list("/").unwrap().revision, last, "revisions are not used again");
    assert_eq!(coordinator.watch(&["/"], before, long).unwrap(), Watched::ReadAgain);
    let nothing = coordinator.watch(&["/"], last, Duration::ZERO).unwrap();
    assert_eq!(nothing, Watched::Unchanged { revision: last });
    coordinator.transact(&[], &[("/a", Some("2"))]).unwrap();
    let changed = coordinator.watch(&["/"], last, long).unwrap();
    assert!(matches!(&changed, Watched::Changed { keys, .. } if *keys == ["/a"]), "{changed:?}");
}

#[test]
fn watches_end_when_the_process_stops() {
    let scratch = Scratch::new("stops");
    let coordinator = Arc::new(EmbeddedCoordinator::create(&scratch.file()).unwrap());
    let (tasks, watching) = (Tasks::default(), coordinator.clone());
    tasks.spawn(move || {
        let ended = watching.watch(&["/"], Revision(0), Duration::from_secs(60));
        assert!(matches!(ended, Err(Error::Unavailable { .. })));
    });
    sleep(Duration::from_millis(50));
    coordinator.end_watches();
    tasks.join();
    let later = coordinator.watch(&["/"], Revision(0), Duration::from_secs(60));
    assert!(matches!(later, Err(Error::Unavailable { .. })));
}
