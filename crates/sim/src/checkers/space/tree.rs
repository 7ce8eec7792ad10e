//! Checks names, inodes and stubs.

use super::collect::Found;
use hekate_proto::*;
use std::collections::{BTreeMap, BTreeSet};

/// Complaints about a volume's tree.
pub fn check(found: &Found) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut leading: BTreeMap<InodeId, Vec<InodeId>> = BTreeMap::new();
    for ((dir, position, name), record) in &found.names {
        leading.entry(record.inode).or_default().push(*dir);
        wrong.extend(name_is_wrong(found, *dir, *position, name, record));
    }
    let none = Vec::new();
    for (id, inode) in &found.inodes {
        let dirs = leading.get(id).unwrap_or(&none);
        match inode.kind {
            NodeKind::Directory => {
                wrong.extend(directory_is_wrong(*id, inode, dirs));
                wrong.extend(stubs_are_wrong(found, *id, inode.spread));
            }
            _ => wrong.extend(links_are_wrong(found, *id, inode, dirs.len())),
        }
    }
    let orphans_gone = found.orphans.iter().filter(|id| !found.inodes.contains_key(id));
    wrong.extend(orphans_gone.map(|id| format!("an orphan entry for {id:?}, which is not there")));
    let stubs = found.stubs.keys().filter(|(dir, _)| !is_directory(found, *dir));
    wrong.extend(stubs.map(|(dir, position)| format!("a stub at {position:?} of {dir:?}, which is no directory")));
    wrong.extend(unreachable(found));
    wrong
}

fn is_directory(found: &Found, id: InodeId) -> bool {
    found.inodes.get(&id).is_some_and(|inode| inode.kind == NodeKind::Directory)
}

fn name_is_wrong(found: &Found, dir: InodeId, position: Position, name: &Name, record: &NameRecord) -> Option<String> {
    let Some(parent) = found.inodes.get(&dir).filter(|parent| parent.kind == NodeKind::Directory) else {
        return Some(format!("the name {name:?} is in {dir:?}, which is no directory"));
    };
    let right = name_position(dir, name, parent.spread);
    if position != right {
        return Some(format!("the name {name:?} of {dir:?} rests at {position:?}, but belongs at {right:?}"));
    }
    match found.inodes.get(&record.inode) {
        None => Some(format!("the name {name:?} in {dir:?} leads to {:?}, which is not there", record.inode)),
        Some(inode) if inode.kind != record.kind => {
            Some(format!("the name {name:?} in {dir:?} says {:?}, but there is a {:?}", record.kind, inode.kind))
        }
        Some(_) => None,
    }
}

fn directory_is_wrong(id: InodeId, inode: &InodeRecord, dirs: &[InodeId]) -> Option<String> {
    match dirs {
        [] if [ROOT, SYSTEM].contains(&id) => None,
        _ if [ROOT, SYSTEM].contains(&id) => Some("a name leads to the root or the system directory".into()),
        [] => Some(format!("the directory {id:?} has no name")),
        [parent] if *parent == inode.parent => None,
        [parent] => Some(format!("the directory {id:?} has its name in {parent:?}, but says {:?}", inode.parent)),
        more => Some(format!("the directory {id:?} has {} names", more.len())),
    }
}

fn stubs_are_wrong(found: &Found, dir: InodeId, spread: u32) -> Vec<String> {
    let mut wrong = Vec::new();
    let places = places(dir, spread);
    for position in &places {
        let Some(stub) = found.stubs.get(&(dir, *position)) else {
            wrong.push(format!("the directory {dir:?} has no stub at {position:?}"));
            continue;
        };
        let from = (dir, *position);
        let names = found.names.iter().filter(|((dir, position, _), _)| (*dir, *position) == from);
        let kinds: Vec<NodeKind> = names.map(|(_, record)| record.kind).collect();
        let directories = kinds.iter().filter(|kind| **kind == NodeKind::Directory).count();
        if (stub.entries, stub.directories) != (kinds.len() as u64, directories as u32) {
            wrong.push(format!(
                "the stub of {dir:?} at {position:?} counts {} names and {} directories, but there are {} and {}",
                stub.entries,
                stub.directories,
                kinds.len(),
                directories
            ));
        }
        if !stub.alive {
            wrong.push(format!("the stub of {dir:?} at {position:?} is closed, but the directory is there"));
        }
        let expected = found.inodes.get(&dir).map(|inode| (inode.mode, inode.uid, inode.gid));
        if expected.is_some_and(|expected| expected != (stub.mode, stub.uid, stub.gid)) {
            wrong.push(format!("the stub of {dir:?} at {position:?} has another mode or owner than the inode"));
        }
        if stub.spread != spread {
            wrong.push(format!("the stub of {dir:?} says a spread of {}, the inode {spread}", stub.spread));
        }
    }
    let strays = found.stubs.range((dir, Position(0))..=(dir, Position(u32::MAX))).map(|((_, position), _)| *position);
    let strays = strays.filter(|position| !places.contains(position));
    wrong.extend(strays.map(|position| format!("a stub of {dir:?} at {position:?}, where none of its names rests")));
    wrong
}

/// The places of a directory's names.
fn places(dir: InodeId, spread: u32) -> BTreeSet<Position> {
    let step = (1u64 << 32) / u64::from(spread.max(1));
    let turned = |part: u32| dir.position().0.wrapping_add((u64::from(part) * step) as u32);
    (0..spread.max(1)).map(|part| Position(turned(part))).collect()
}

fn links_are_wrong(found: &Found, id: InodeId, inode: &InodeRecord, names: usize) -> Option<String> {
    let orphan = found.orphans.contains(&id);
    if inode.nlink as usize != names {
        return Some(format!("{id:?} counts {} links, but {names} names lead to it", inode.nlink));
    }
    match (names, orphan) {
        (0, false) => Some(format!("{id:?} has no name and is no orphan")),
        (1.., true) => Some(format!("{id:?} is an orphan, but has a name")),
        _ => None,
    }
}

/// Directories that are not reachable from the root.
fn unreachable(found: &Found) -> Vec<String> {
    let mut below: BTreeMap<InodeId, Vec<InodeId>> = BTreeMap::new();
    for ((dir, _, _), record) in &found.names {
        below.entry(*dir).or_default().push(record.inode);
    }
    let mut reached = BTreeSet::from([ROOT, SYSTEM]);
    let mut left = vec![ROOT, SYSTEM];
    while let Some(dir) = left.pop() {
        left.extend(below.get(&dir).into_iter().flatten().filter(|inode| reached.insert(**inode)));
    }
    let mut wrong: Vec<String> = Vec::new();
    if !is_directory(found, ROOT) {
        wrong.push("there is no root".into());
    }
    let lost = found.inodes.keys().filter(|id| is_directory(found, **id) && !reached.contains(id));
    wrong.extend(lost.map(|id| format!("the directory {id:?} cannot be reached from the root")));
    wrong
}
