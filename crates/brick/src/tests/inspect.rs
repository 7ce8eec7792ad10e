//! Inspection of bricks that are sound, torn and damaged.

mod compare;

use super::support::{RING, append, identity, new_storage, open, run_of, shard, stamp};
use crate::Brick;
use crate::inspect::*;
use crate::storage::{MemoryStorage, Storage};
use bytes::Bytes;
use hekate_proto::*;
use std::sync::Arc;

pub(super) const VOLUME: VolumeId = VolumeId(1);
pub(super) const PLACE: KeyPrefix = KeyPrefix { ring: RING, position: Position(0), volume: VOLUME };
pub(super) const FILE: InodeId = InodeId::new(0, 5, 77);

/// Appends a record and syncs it.
pub(super) fn append_synced(brick: &Brick, changes: Vec<Change>) {
    let end = append(brick, changes);
    brick.sync(end).unwrap();
}

pub(super) fn inode(kind: NodeKind, pieces: Vec<Piece>) -> InodeRecord {
    InodeRecord {
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        nlink: 1,
        size: 8 * BLOCK_BYTES as u64,
        device: 0,
        atime: Time(1),
        mtime: Time(1),
        ctime: Time(1),
        btime: Time(1),
        change: 1,
        layout: Layout { version: 0, pieces },
        spread: 1,
        parent: ROOT,
        size_high: 8 * BLOCK_BYTES as u64,
        grant_limit: 0,
        has_capability: false,
        has_xattrs: false,
        etag: Bytes::new(),
        implied: false,
    }
}

pub(super) fn stub(entries: u64) -> StubRecord {
    StubRecord {
        alive: true,
        mode: 0o755,
        uid: 0,
        gid: 0,
        spread: 1,
        entries,
        directories: 0,
        mtime: Time(1),
        ctime: Time(1),
        change: 1,
        default_acl: Bytes::new(),
    }
}

pub(super) fn put(key: Key, value: &impl Wire) -> Change {
    Change::Put { key, value: value.to_bytes() }
}

pub(super) fn object(inode: InodeId, kind: Kind) -> Key {
    Key::inode(RING, VOLUME, inode, kind)
}

pub(super) fn blocks(first: u32, fill: u8, count: u32, writes: u64) -> (ShardRecord, BlockRun, Bytes) {
    let (run, bytes) = run_of(shard(0), first, fill, count);
    // The hole behind block 6 is part of the shard.
    let home_blocks = if first == 6 { 8 } else { first + count };
    let length = home_blocks * BLOCK_BYTES as u32;
    (ShardRecord { stamp: stamp(writes), length, home_blocks, reserved_blocks: 0 }, run, bytes)
}

/// A directory with one name of a file. The file's shard has blocks 0 to 3 at home; behind the checkpoint blocks 4 and
/// 5 are in the journal and block 6 is fresh; block 7 is a hole.
fn new_brick() -> MemoryStorage {
    let storage = new_storage();
    let (brick, _) = open(&storage, false);
    let piece = Piece { data: shard(0).data, length: u64::MAX };
    let name = NameRecord { inode: FILE, kind: NodeKind::File };
    append_synced(
        &brick,
        vec![
            put(object(ROOT, Kind::Inode), &inode(NodeKind::Directory, Vec::new())),
            put(object(ROOT, Kind::Stub), &stub(1)),
            put(Key::name(PLACE, ROOT, b"f"), &name),
            put(object(FILE, Kind::Inode), &InodeRecord { has_xattrs: true, ..inode(NodeKind::File, vec![piece]) }),
            Change::Put { key: Key::xattr(RING, VOLUME, FILE, b"user.a"), value: Bytes::from_static(b"1") },
        ],
    );
    let (record, run, bytes) = blocks(0, 1, 4, 1);
    append_synced(&brick, vec![Change::WriteBlocks { shard: shard(0), record, run, bytes }]);
    brick.checkpoint().unwrap();
    let (record, run, bytes) = blocks(4, 2, 2, 2);
    append_synced(&brick, vec![Change::WriteBlocks { shard: shard(0), record, run, bytes }]);
    let (record, run, bytes) = blocks(6, 3, 1, 3);
    brick.write_fresh(RING, shard(0), 6, &[&bytes]).unwrap();
    append_synced(&brick, vec![Change::FreshBlocks { shard: shard(0), record, run }]);
    storage
}

pub(super) fn stopped(storage: &MemoryStorage, after_power_cut: bool) -> StoppedBrick {
    StoppedBrick::on(Arc::new(storage.clone()), identity(), after_power_cut).unwrap()
}

fn problems(stopped: &StoppedBrick) -> Vec<String> {
    let contents = Contents::read(stopped, &mut |_| ()).unwrap();
    let mut found = Vec::new();
    let mut watch = Watch { progress: &mut |_| (), problem: &mut |problem| found.push(problem.to_string()) };
    check(&contents, true, &mut watch).unwrap();
    found
}

fn bytes_of(storage: &MemoryStorage) -> Vec<(String, Vec<u8>)> {
    let read = |path: String| {
        let file = storage.open(&path, false).unwrap();
        let mut bytes = vec![0; file.length().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        (path, bytes)
    };
    storage.paths().into_iter().map(read).collect()
}

fn states(stopped: &StoppedBrick) -> Vec<BlockState> {
    let contents = Contents::read(stopped, &mut |_| ()).unwrap();
    contents.shard_blocks(RING, shard(0)).unwrap().unwrap().states
}

#[test]
fn a_sound_brick_has_no_problems_and_stays_as_it_is() {
    use BlockState::*;
    let storage = new_brick();
    let before = bytes_of(&storage);
    for after_power_cut in [false, true] {
        let stopped = stopped(&storage, after_power_cut);
        assert_eq!(problems(&stopped), Vec::<String>::new());
        assert_eq!(states(&stopped), [Right, Right, Right, Right, Journal, Journal, Right, Hole]);
        let mut records = 0;
        let contents = Contents::read(&stopped, &mut |_| records += 1).unwrap();
        let (brick, report) = stopped.open_to_read(DamagedJournal::Refuse).unwrap();
        assert_eq!((contents.records(), contents.log_end().at), (report.records, report.end));
        assert!(records > report.records, "those before the checkpoint are there to be looked at");
        let (from, to) = Contents::all_keys();
        let mut entries = Vec::new();
        contents
            .scan(&from, &to, &mut |key, value| {
                entries.push((key.clone(), value.unwrap()));
                true
            })
            .unwrap();
        assert_eq!(entries, brick.scan(&from, &to, usize::MAX).unwrap(), "as an opening says");
        assert_eq!(brick.read_shard(RING, shard(0), 4 * 4096, 1).unwrap()[..], [2]);
    }
    assert!(bytes_of(&storage) == before, "something was written");
}

#[test]
fn each_damage_is_named_with_its_place() {
    let data = crate::disk::home::Home::path(shard(0));
    let storage = new_brick();
    storage.flip_bit(&data, 4096 + 5);
    let found = problems(&stopped(&storage, true));
    assert_eq!(found, [format!("{data} at offset 4096: block 1: damaged")]);

    // The first record behind the checkpoint; later ones say that it was stable.
    let storage = new_brick();
    let mut at = Vec::new();
    let contents = Contents::read(&stopped(&storage, false), &mut |record| {
        if !record.applied {
            at.push(record.offset);
        }
    });
    drop(contents);
    storage.flip_bit("journal/segment-001", at[0] as usize + 60);
    let stopped = stopped(&storage, false);
    let found = problems(&stopped);
    assert!(found[0].contains(&format!("journal/segment-001 at offset {}", at[0])), "{found:?}");
    assert!(stopped.open_to_read(DamagedJournal::Refuse).is_err());
    let (brick, report) = stopped.open_to_read(DamagedJournal::ReadUpToIt).unwrap();
    assert_eq!(report.records, 0);
    assert_eq!(brick.read_shard(RING, shard(0), 3 * 4096, 4096).unwrap()[..], [1; 4096]);
}

#[test]
fn fresh_blocks_that_no_sync_covered_are_lost_in_a_new_life_and_damaged_in_the_old_one() {
    let storage = new_brick();
    storage.flip_bit(&crate::disk::home::Home::path(shard(0)), 6 * 4096);
    assert_eq!(states(&stopped(&storage, true))[6], BlockState::Lost);
    assert_eq!(problems(&stopped(&storage, true)), Vec::<String>::new());
    assert_eq!(states(&stopped(&storage, false))[6], BlockState::Damaged);
}

#[test]
fn a_torn_tail_is_no_damage() {
    let storage = new_brick();
    let end = Contents::read(&stopped(&storage, false), &mut |_| ()).unwrap().log_end().clone();
    assert!(!end.torn && end.damage.is_none(), "{end:?}");
    storage.open(&end.file, false).unwrap().write_at(&[b"HKJR torn"], end.offset).unwrap();
    let end = Contents::read(&stopped(&storage, false), &mut |_| ()).unwrap().log_end().clone();
    assert!(end.torn && end.damage.is_none(), "{end:?}");
}

#[test]
fn a_share_of_a_directory_that_lives_elsewhere_is_no_problem_and_a_name_in_the_wrong_one_is() {
    let (dir, spread) = (InodeId::new(0, 5, 90), 2);
    let position = Position(1 << 31);
    let there = |name: &&str| name_position(dir, &Name::try_from(*name).unwrap(), spread) == position;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let (right, wrong): (Vec<&str>, Vec<&str>) = names.into_iter().partition(there);
    for (name, expected) in [(right[0], 0), (wrong[0], 1)] {
        let storage = new_brick();
        let (brick, _) = open(&storage, false);
        let place = KeyPrefix { position, ..PLACE };
        let leads_to = NameRecord { inode: FILE, kind: NodeKind::File };
        let stub = StubRecord { spread, ..stub(1) };
        let changes = vec![put(Key::stub(place, dir), &stub), put(Key::name(place, dir, name.as_bytes()), &leads_to)];
        append_synced(&brick, changes);
        drop(brick);
        let found = problems(&stopped(&storage, false));
        let strays =
            found.iter().filter(|what| what.contains("at positions where the spread does not put them")).count();
        assert_eq!((found.len(), strays), (expected, expected), "{found:?}");
    }
}

#[test]
fn entries_that_contradict_each_other_are_named() {
    let piece = Piece { data: shard(0).data, length: u64::MAX };
    let twin = InodeId::new(0, 5, 78);
    let unnamed = InodeId::new(0, 5, 79);
    let content = |inode| Change::Put { key: object(inode, Kind::Content), value: Bytes::from_static(b"x") };
    for (change, words) in [
        (put(object(ROOT, Kind::Stub), &stub(2)), "the stub counts 2 names, there are 1"),
        (Change::Delete { key: object(ROOT, Kind::Stub) }, "a directory without a stub"),
        (
            put(object(ROOT, Kind::Stub), &StubRecord { spread: 2, ..stub(1) }),
            "the stub has a spread of 2, the inode one of 1",
        ),
        (
            put(object(ROOT, Kind::Stub), &StubRecord { spread: 3, ..stub(1) }),
            "at a position that a spread of 3 does not use",
        ),
        (
            put(Key::stub(KeyPrefix { position: Position(1 << 31), ..PLACE }, unnamed), &stub(0)),
            "a spread of 1 does not use",
        ),
        (put(Key::stub(PLACE, unnamed), &stub(0)), "a stub without an inode"),
        (
            put(object(FILE, Kind::Inode), &inode(NodeKind::File, vec![piece])),
            "of an inode that is marked as having none",
        ),
        (content(FILE), "content beside an inode whose bytes are in shards"),
        (content(unnamed), "content without an inode"),
        (put(object(twin, Kind::Inode), &inode(NodeKind::File, vec![piece])), "is in the layouts of"),
        (
            put(Key::garbage(RING, VOLUME, Position(0), shard(0).data), &GarbageRecord { shards: 1 }),
            "is garbage and in the",
        ),
        (put(Key::orphan(RING, VOLUME, FILE), &0u8), "is an orphan and has 1 names"),
        (put(Key::orphan(RING, VOLUME, unnamed), &0u8), "is an orphan and does not exist"),
        (put(object(FILE, Kind::Inode), &stub(1)), "is malformed: "),
        (put(Key::name(PLACE, ROOT, b"a/b"), &7u8), "the name contains / or NUL"),
    ] {
        let storage = new_brick();
        let (brick, _) = open(&storage, false);
        append_synced(&brick, vec![change]);
        drop(brick);
        let found = problems(&stopped(&storage, false));
        assert!(found.iter().any(|problem| problem.contains(words)), "{words}: {found:?}");
    }
}

#[test]
fn damage_anywhere_is_never_a_panic_and_never_a_silent_wrong_block() {
    let sound = new_brick();
    let files = bytes_of(&sound);
    let mut random = 88172645463325252u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    for _ in 0..60 {
        let storage = MemoryStorage::new();
        for (path, bytes) in &files {
            storage.open(path, true).unwrap().write_at(&[bytes], 0).unwrap();
        }
        let (path, bytes) = &files[next(files.len())];
        let at = next(bytes.len().max(1)) / 4096 * 4096 + next(64);
        let junk: Vec<u8> = (0..64).map(|_| next(256) as u8).collect();
        storage.open(path, false).unwrap().write_at(&[&junk], at as u64).unwrap();
        let stopped = stopped(&storage, next(2) == 0);
        let found = problems(&stopped);
        if let Ok((brick, _)) = stopped.open_to_read(DamagedJournal::ReadUpToIt) {
            let read = guarded("reading", || brick.read_shard(RING, shard(0), 0, 4 * 4096));
            if let Ok(bytes) = read
                && !bytes.is_empty()
            {
                assert!(bytes.iter().all(|byte| *byte == 1), "{path} at {at}: {found:?}");
            }
            let _ = guarded("closing", || {
                drop(brick);
                Ok(())
            });
        }
    }
}
