//! Legs that come when what they are about is gone.

use super::*;
use crate::tree::Tree;

/// It is moved, and removed at its new place before the leg comes: refused, the leg would be sent for ever, under the volume's hold on
/// moves.
#[test]
fn the_parent_of_a_directory_that_is_gone_is_set_to_nothing() {
    let ring = open(&storages());
    let (ask, leader) = (ring.ask(), ring.leader(ROOT.position()));
    let tree = Tree::new(&ring.bricks[leader.brick.0 as usize], &ask, leader.partition);
    let gone = InodeId::new(ROOT.position().0, 5, 1 << 40);
    let mut commit = Commit::default();
    assert!(crate::legs::set_parent(&tree, &mut commit, gone, ROOT, Time(1)).is_ok());
    assert!(commit.changes.is_empty());
    crate::legs::set_parent(&tree, &mut commit, ROOT, ROOT, Time(1)).unwrap();
    assert_eq!(commit.changes.len(), 1, "one that is there");
}
