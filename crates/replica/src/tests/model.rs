//! Random ops on names beside a model of the tree, and a crash after each message of an op.

use super::*;
use proptest::prelude::*;

/// The expected tree: for each path, true for a directory, and the inode.
pub(super) type Model = BTreeMap<Vec<u8>, (bool, InodeId)>;

/// A random op on a small tree: two levels, four names each.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Create(usize, bool),
    Remove(usize),
    Rename(usize, usize, RenameMode),
    Link(usize, usize),
    Change(usize, u16, bool),
}

fn paths() -> Vec<Vec<u8>> {
    let names = b"abcd";
    let deep = names.iter().flat_map(|a| names.iter().map(|b| vec![*a, *b]));
    names.iter().map(|a| vec![*a]).chain(deep).collect()
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let path = || 0..paths().len();
    let whiteout = (any::<bool>(), any::<u32>()).prop_map(|(replace, seed)| RenameMode::Whiteout {
        replace,
        uid: 3,
        gid: 4,
        seed,
    });
    let plain = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
    let mode = prop_oneof![3 => proptest::sample::select(plain.to_vec()), 1 => whiteout];
    prop_oneof![
        4 => (path(), any::<bool>()).prop_map(|(p, dir)| Step::Create(p, dir)),
        2 => path().prop_map(Step::Remove),
        3 => (path(), path(), mode).prop_map(|(a, b, mode)| Step::Rename(a, b, mode)),
        1 => (path(), path()).prop_map(|(a, b)| Step::Link(a, b)),
        1 => (path(), 0u16..0o1000, any::<bool>()).prop_map(|(p, mode, time)| Step::Change(p, mode, time)),
    ]
}

fn parent(model: &Model, path: &[u8]) -> Option<InodeId> {
    match path {
        [_] => Some(ROOT),
        [dir, _] => model.get(&vec![*dir]).filter(|(directory, _)| *directory).map(|(_, inode)| *inode),
        _ => None,
    }
}

fn children(model: &Model, path: &[u8]) -> usize {
    model.keys().filter(|known| known.len() > path.len() && known.starts_with(path)).count()
}

/// Executes a rename in the model, except for its whiteout. Returns false if the model refuses it.
fn model_rename(model: &mut Model, from: &[u8], to: &[u8], mode: RenameMode) -> bool {
    let (Some(source), target) = (model.get(from).copied(), model.get(to).copied()) else { return false };
    let moves_below =
        |path: &[u8], dir: &[u8], directory: bool| directory && dir.len() > path.len() && dir.starts_with(path);
    if moves_below(from, to, source.0) {
        return false;
    }
    match (mode, target) {
        (RenameMode::NoReplace | RenameMode::Whiteout { replace: false, .. }, Some(_))
        | (RenameMode::Exchange, None) => return false,
        (RenameMode::Exchange, Some(other)) if moves_below(to, from, other.0) => return false,
        (_, Some(other)) if other.1 == source.1 => return true,
        (RenameMode::Replace | RenameMode::Whiteout { .. }, Some(other))
            if other.0 != source.0 || children(model, to) > 0 =>
        {
            return false;
        }
        _ => {}
    }
    let mut moved: Vec<(Vec<u8>, (bool, InodeId))> = Vec::new();
    let mut take = |model: &mut Model, from: &[u8], to: &[u8]| {
        let keys: Vec<_> = model.keys().filter(|key| key.starts_with(from)).cloned().collect();
        for key in keys {
            if let Some(value) = model.remove(&key) {
                moved.push(([to, &key[from.len()..]].concat(), value));
            }
        }
    };
    take(model, from, to);
    if mode == RenameMode::Exchange {
        take(model, to, from);
    }
    model.extend(moved);
    true
}

/// Undoes a rename.
fn take_back(ring: &mut TestRing, from: (InodeId, Name), to: (InodeId, Name), mode: RenameMode) {
    let back_mode = match mode {
        RenameMode::Replace | RenameMode::NoReplace => RenameMode::NoReplace,
        RenameMode::Exchange | RenameMode::Whiteout { .. } => RenameMode::Exchange,
    };
    let ((dir, name), (to_dir, to_name)) = (from.clone(), to);
    ring.name_op(NameOp::Rename { dir, name, to_dir, to_name, mode: back_mode, open_here: None }).unwrap();
    if matches!(mode, RenameMode::Whiteout { .. }) {
        ring.name_op(NameOp::Unlink { dir: from.0, name: from.1, open_here: None }).unwrap();
    }
}

/// Executes a step in the ring and in the model, which must agree whether it succeeds.
pub(super) fn run(ring: &mut TestRing, model: &mut Model, step: &Step, seed: u64) {
    let all = paths();
    match step {
        Step::Create(path, directory) => {
            let path = &all[*path];
            let Some(dir) = parent(model, path) else { return };
            let node = if *directory { NewNode::Directory } else { NewNode::File };
            ring.spread = 1 << (seed % 4);
            let (mode, uid, gid) = (0o755, 1, 1);
            let made = ring.name_op(NameOp::Create {
                dir,
                name: name(path),
                node,
                mode,
                uid,
                gid,
                umask: 0,
                exclusive: true,
                seed,
            });
            assert_eq!(made.is_ok(), !model.contains_key(path), "create {path:?}: {made:?}");
            if let Ok(Reply::Node { attr, .. }) = made {
                model.insert(path.clone(), (*directory, attr.id));
            }
        }
        Step::Remove(path) => {
            let path = &all[*path];
            let Some(dir) = parent(model, path) else { return };
            let directory = model.get(path).is_some_and(|(directory, _)| *directory);
            let name = name(path);
            let op = match directory {
                true => NameOp::Rmdir { dir, name },
                false => NameOp::Unlink { dir, name, open_here: None },
            };
            let removed = ring.name_op(op);
            let may = model.contains_key(path) && children(model, path) == 0;
            assert_eq!(removed.is_ok(), may, "remove {path:?}: {removed:?}");
            if may {
                model.remove(path);
            }
        }
        Step::Rename(from, to, mode) => {
            let (from, to) = (&all[*from], &all[*to]);
            let (Some(dir), Some(to_dir)) = (parent(model, from), parent(model, to)) else { return };
            let op = NameOp::Rename { dir, name: name(from), to_dir, to_name: name(to), mode: *mode, open_here: None };
            let renamed = ring.name_op(op);
            // A result with three levels has no path in this small tree, so the model does not execute it.
            let deep = |a: &[u8], b: &[u8]| a.len() == 1 && b.len() == 2 && children(model, a) > 0;
            if renamed.is_ok() && (deep(from, to) || *mode == RenameMode::Exchange && deep(to, from)) {
                if *mode != RenameMode::Exchange {
                    model.remove(to);
                }
                return take_back(ring, (to_dir, name(to)), (dir, name(from)), *mode);
            }
            let modelled = model_rename(model, from, to, *mode);
            assert_eq!(renamed.is_ok(), modelled, "rename {from:?} to {to:?} {mode:?}: {renamed:?}");
            if let Ok(Reply::Node { attr, created: true }) = renamed {
                let Attr { kind, mode, device, uid, gid, nlink, .. } = attr;
                assert_eq!((kind, mode, device, uid, gid, nlink), (NodeKind::CharDevice, 0, 0, 3, 4, 1));
                model.insert(from.clone(), (false, attr.id));
            }
        }
        Step::Link(from, to) => {
            let (from, to) = (&all[*from], &all[*to]);
            let (Some((false, inode)), Some(dir)) = (model.get(from).copied(), parent(model, to)) else { return };
            let linked = ring.name_op(NameOp::Link { dir, name: name(to), inode });
            assert_eq!(linked.is_ok(), !model.contains_key(to), "link: {linked:?}");
            model.entry(to.clone()).or_insert((false, inode));
        }
        Step::Change(path, mode, time) => {
            let Some((_, inode)) = model.get(&all[*path]).copied() else { return };
            let mtime = time.then_some(SetTime::At { time: Time(i64::from(*mode)) });
            let changes = AttrChanges { mode: Some(*mode), mtime, ..Default::default() };
            let changed = ring.execute(Op::Inode { op: InodeOp::SetAttr { inode, changes } });
            let Ok(Reply::Node { attr, .. }) = changed else { panic!("{changed:?}") };
            assert_eq!(attr.mode, *mode);
        }
    }
}

/// The paths that the ring lists.
fn listed(ring: &mut TestRing, model: &Model) -> BTreeSet<Vec<u8>> {
    let directories: Vec<_> = model.iter().filter(|(_, (directory, _))| *directory).collect();
    let mut found = BTreeSet::new();
    let roots =
        std::iter::once((Vec::new(), ROOT)).chain(directories.iter().map(|(path, (_, id))| ((*path).clone(), *id)));
    for (path, dir) in roots {
        let names = ring.list(dir);
        found.extend(names.into_iter().map(|name| [&path[..], name.as_bytes()].concat()));
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn name_ops_do_what_the_model_does(steps in prop::collection::vec((step(), any::<u64>()), 1..60)) {
        let mut ring = open(&storages());
        let mut model = Model::new();
        for (step, seed) in &steps {
            run(&mut ring, &mut model, step, *seed);
            let expected = model.keys().cloned().collect::<BTreeSet<_>>();
            prop_assert_eq!(listed(&mut ring, &model), expected, "after {:?}", step);
        }
        ring.rest();
        ring.check();
    }

    #[test]
    fn a_crash_after_any_message_leaves_a_whole_tree(
        steps in prop::collection::vec((step(), any::<u64>()), 1..25), last in step(), seed in any::<u64>())
    {
        for messages in 0.. {
            let storage = storages();
            let mut ring = open(&storage);
            let mut model = Model::new();
            steps.iter().for_each(|(step, seed)| run(&mut ring, &mut model, step, *seed));
            ring.messages_left = messages;
            let before: BTreeSet<_> = model.keys().cloned().collect();
            // The step's own assertions fail when the process dies in it, as they must.
            let run_last = std::panic::AssertUnwindSafe(|| run(&mut ring, &mut model, &last, seed));
            let died = std::panic::catch_unwind(run_last);
            let left = ring.messages_left;
            drop(ring);
            let mut ring = open(&storage);
            ring.rest();
            ring.check();
            if died.is_ok() || left > 0 {
                break;
            }
            prop_assert!(messages < 200, "{:?}", before);
        }
    }
}
