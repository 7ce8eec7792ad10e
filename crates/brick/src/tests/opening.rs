//! What an opening locks, counts and records: the lock file, the generation, the incarnation.

use super::support::*;
use crate::*;
use hekate_proto::*;
use std::sync::Arc;

#[test]
fn brick_invariant_2_a_real_brick_is_locked_and_remembers_its_life() {
    let directory = std::env::temp_dir().join(format!("hekate-brick-test-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    Brick::create(&directory, BrickId(5), "c1", identity().settings).unwrap();
    assert!(Brick::create(&directory, BrickId(6), "c1", identity().settings).is_err(), "the directory is not empty");
    let (brick, _) = Brick::open(&directory, "c1").unwrap();
    let second = Brick::open(&directory, "c1").err().unwrap();
    assert!(second.to_string().contains("in use"), "{second}");
    brick.checkpoint().unwrap();
    brick.settle_life().unwrap();
    let life = brick.incarnation();
    drop(brick);
    let foreign = Brick::open(&directory, "c2").err().unwrap();
    assert!(foreign.to_string().contains("belongs to cluster c1"), "{foreign}");
    let (brick, _) = Brick::open(&directory, "c1").unwrap();
    assert_eq!(brick.incarnation(), life, "a restarted process keeps its incarnation");
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A new opening begins another incarnation: the blocks that the power cut took may still be missing.
#[test]
fn an_incarnation_that_was_not_settled_is_not_used_again() {
    let directory = std::env::temp_dir().join(format!("hekate-brick-lives-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    Brick::create(&directory, BrickId(5), "c1", identity().settings).unwrap();
    let open = || Brick::open(&directory, "c1").unwrap().0;
    let life = || open().incarnation().0;
    assert_eq!([life(), life()], [1, 2]);
    let brick = open();
    brick.checkpoint().unwrap();
    brick.settle_life().unwrap();
    drop(brick);
    assert_eq!([life(), life()], [3, 3]);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn an_opening_that_is_refused_is_not_counted() {
    let storage = new_storage();
    let refuse = |_, openings: u32| Err(Error::invalid(format!("opening {openings}")));
    for _ in 0..3 {
        let refused = Brick::open_on_if(Arc::new(storage.clone()), &identity(), Incarnation(1), false, &refuse);
        assert!(refused.err().unwrap().to_string().contains("opening 1"));
    }
    assert_eq!(open(&storage, false).0.generation(), 1);
}

/// Before and after a checkpoint its records are those of generation 5, and the next opening replays them.
#[test]
fn an_opening_has_the_generation_that_its_caller_names() {
    let storage = new_storage();
    put(&open(&storage, false).0, "a", "1");
    let as_fifth = |_, least| {
        assert_eq!(least, 2);
        Ok(5)
    };
    let shared = Arc::new(storage.clone());
    let (brick, _) = Brick::open_on_if(shared, &identity(), Incarnation(1), false, &as_fifth).unwrap();
    assert_eq!(brick.generation(), 5);
    put(&brick, "b", "1");
    brick.checkpoint().unwrap();
    put(&brick, "c", "1");
    drop(brick);
    let (brick, report) = open(&storage, false);
    assert_eq!((brick.generation(), report.records), (6, 1));
    assert_eq!(names(&brick, 10), ["a", "b", "c"]);
}
