//! A whole ring with every kind of entry, and a broken one for each rule.

use super::{RingEntries, check};
use bytes::Bytes;
use hekate_proto::*;

const RING: RingId = RingId(1);
const VOLUME: VolumeId = VolumeId(1);
const COUNT: u32 = 4;
/// A directory whose names are stored in two places.
const WIDE: InodeId = InodeId::new(0x4000_0000, 1, 2);
const FILE: InodeId = InodeId::new(7, 1, 3);
const ORPHAN: InodeId = InodeId::new(0x9000_0000, 1, 4);
const BIG: DataId = DataId(77);
const OLD: DataId = DataId(78);

struct Whole(Vec<(Key, Bytes)>);

fn key(inode: InodeId, kind: Kind) -> Key {
    Key::inode(RING, VOLUME, inode, kind)
}

fn inode(kind: NodeKind) -> InodeRecord {
    let time = Time(1);
    let spread = 1;
    InodeRecord {
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        nlink: 1,
        size: 0,
        device: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        change: 1,
        layout: Layout::inline(0),
        spread,
        parent: ROOT,
        size_high: 0,
        grant_limit: 0,
        has_capability: false,
        has_xattrs: false,
        etag: Bytes::new(),
        implied: false,
    }
}

fn stub(spread: u32, entries: u64, directories: u32) -> StubRecord {
    let (alive, mode, uid, gid, mtime, change) = (true, 0o644, 0, 0, Time(1), 1);
    StubRecord {
        alive,
        mode,
        uid,
        gid,
        spread,
        entries,
        directories,
        mtime,
        ctime: mtime,
        change,
        default_acl: Bytes::new(),
    }
}

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn name_key(dir: InodeId, text: &str, spread: u32) -> Key {
    let position = name_position(dir, &name(text), spread);
    Key::name(KeyPrefix { ring: RING, position, volume: VOLUME }, dir, text.as_bytes())
}

fn shard_key(data: DataId) -> Key {
    Key::shard(RING, ShardId { volume: VOLUME, data, index: 0 })
}

fn shard() -> ShardRecord {
    let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(1) };
    ShardRecord { stamp, length: 9, home_blocks: 1, reserved_blocks: 0 }
}

/// Two names, one in each place of a directory with a spread of two.
fn two_names() -> [String; 2] {
    let all = (0..100).map(|number| format!("name{number}"));
    let (low, high): (Vec<_>, Vec<_>) = all.partition(|text| name_position(WIDE, &name(text), 2) == WIDE.position());
    [low[0].clone(), high[0].clone()]
}

/// The root has a directory `wide` and a file `file`; in `wide` are two more names of the file.
fn whole() -> Whole {
    let layout = Layout { version: 1, pieces: vec![Piece { data: BIG, length: u64::MAX }] };
    let mut all = Whole(Vec::new());
    all.put(key(ROOT, Kind::Inode), &inode(NodeKind::Directory));
    all.put(key(ROOT, Kind::Stub), &stub(1, 2, 1));
    all.put(name_key(ROOT, "wide", 1), &NameRecord { inode: WIDE, kind: NodeKind::Directory });
    all.put(name_key(ROOT, "file", 1), &NameRecord { inode: FILE, kind: NodeKind::File });
    all.put(key(WIDE, Kind::Inode), &InodeRecord { spread: 2, ..inode(NodeKind::Directory) });
    for text in two_names() {
        let position = name_position(WIDE, &name(&text), 2);
        all.put(Key::stub(KeyPrefix { ring: RING, position, volume: VOLUME }, WIDE), &stub(2, 1, 0));
        all.put(name_key(WIDE, &text, 2), &NameRecord { inode: FILE, kind: NodeKind::File });
    }
    all.put(key(FILE, Kind::Inode), &InodeRecord { nlink: 3, layout, ..inode(NodeKind::File) });
    all.put(Key::xattr(RING, VOLUME, FILE, b"user.a"), &7u8);
    all.put(shard_key(BIG), &shard());
    all.put(key(ORPHAN, Kind::Inode), &InodeRecord { nlink: 0, ..inode(NodeKind::File) });
    all.put(key(ORPHAN, Kind::Content), &7u8);
    all.put(Key::orphan(RING, VOLUME, ORPHAN), &0u8);
    all.put(Key::garbage(RING, VOLUME, FILE.position(), OLD), &GarbageRecord { shards: 1 });
    all.put(shard_key(OLD), &shard());
    all.put(Key::partition(RING, Position(0)), &PartitionRecord { numbers_reserved: 9 });
    all
}

impl Whole {
    fn put(&mut self, key: Key, value: &impl Wire) {
        self.0.retain(|(known, _)| *known != key);
        self.0.push((key, value.to_bytes()));
    }

    fn delete(&mut self, key: Key) {
        let before = self.0.len();
        self.0.retain(|(known, _)| *known != key);
        assert!(self.0.len() < before, "there is no {key:?}");
    }

    fn complaints(self) -> Vec<String> {
        let owner = |key: &Key| key.prefix().unwrap().position.partition(COUNT);
        let entries = self.0.into_iter().map(|(key, value)| (owner(&key), key, value)).collect();
        check(&RingEntries { ring: RING, count: COUNT, entries }).iter().map(ToString::to_string).collect()
    }
}

/// The first complaint about the ring after this change.
fn complaint(change: impl Fn(&mut Whole)) -> String {
    let mut all = whole();
    change(&mut all);
    all.complaints().join("\n")
}

#[test]
fn a_whole_ring_is_fine() {
    assert_eq!(whole().complaints(), Vec::<String>::new());
}

#[test]
fn every_name_leads_to_an_inode_of_its_kind() {
    let why = complaint(|all| all.put(name_key(ROOT, "file", 1), &NameRecord { inode: OTHER, kind: NodeKind::File }));
    assert!(why.contains("\"file\"") && why.contains("which is not there"), "{why}");
    let why = complaint(|all| all.put(name_key(ROOT, "file", 1), &NameRecord { inode: FILE, kind: NodeKind::Fifo }));
    assert!(why.contains("says Fifo, but there is a File"), "{why}");
}

const OTHER: InodeId = InodeId::new(1, 2, 99);

#[test]
fn names_rest_where_the_spread_puts_them() {
    let [low, _] = two_names();
    let why = complaint(|all| {
        all.delete(name_key(WIDE, &low, 2));
        let place = KeyPrefix { ring: RING, position: Position(0xc000_0000), volume: VOLUME };
        all.put(Key::name(place, WIDE, low.as_bytes()), &NameRecord { inode: FILE, kind: NodeKind::File });
    });
    assert!(why.contains("but belongs at"), "{why}");
}

#[test]
fn links_are_names() {
    let [low, high] = two_names();
    for text in [low, high] {
        let why = complaint(|all| all.delete(name_key(WIDE, &text, 2)));
        assert!(why.contains("counts 3 links, but 2 names"), "{why}");
        assert!(why.contains("counts 1 names and 0 directories, but there are 0 and 0"), "{why}");
    }
}

#[test]
fn directories_count_directories_apart() {
    let why = complaint(|all| all.put(key(ROOT, Kind::Stub), &stub(1, 2, 0)));
    assert!(why.contains("counts 2 names and 0 directories, but there are 2 and 1"), "{why}");
}

#[test]
fn only_orphans_have_no_name() {
    let why = complaint(|all| all.delete(Key::orphan(RING, VOLUME, ORPHAN)));
    assert!(why.contains("has no name and is no orphan"), "{why}");
    let why = complaint(|all| all.put(Key::orphan(RING, VOLUME, FILE), &0u8));
    assert!(why.contains("is an orphan, but has a name"), "{why}");
    let why = complaint(|all| all.delete(key(ORPHAN, Kind::Inode)));
    assert!(why.contains("an orphan entry for"), "{why}");
    assert!(why.contains("bytes rest beside"), "{why}");
}

#[test]
fn a_directory_has_one_name_and_it_is_in_its_parent() {
    let wide = NameRecord { inode: WIDE, kind: NodeKind::Directory };
    let why = complaint(|all| all.put(name_key(ROOT, "file", 1), &wide));
    assert!(why.contains("has 2 names"), "{why}");
    let moved = InodeRecord { spread: 2, parent: FILE, ..inode(NodeKind::Directory) };
    let why = complaint(|all| all.put(key(WIDE, Kind::Inode), &moved));
    assert!(why.contains("has its name in"), "{why}");
    let why = complaint(|all| all.delete(name_key(ROOT, "wide", 1)));
    assert!(why.contains("has no name") && why.contains("cannot be reached from the root"), "{why}");
    let [low, _] = two_names();
    let why = complaint(|all| {
        all.delete(name_key(ROOT, "wide", 1));
        all.put(key(WIDE, Kind::Inode), &InodeRecord { spread: 2, parent: WIDE, ..inode(NodeKind::Directory) });
        all.put(name_key(WIDE, &low, 2), &wide);
    });
    assert!(why.contains("cannot be reached from the root") && !why.contains("has no name"), "a loop: {why}");
}

#[test]
fn each_place_of_a_directory_has_a_stub() {
    let [low, high] = two_names();
    for text in [low, high] {
        let position = name_position(WIDE, &name(&text), 2);
        let stub_key = Key::stub(KeyPrefix { ring: RING, position, volume: VOLUME }, WIDE);
        let why = complaint(|all| all.delete(stub_key.clone()));
        assert!(why.contains("has no stub at"), "{why}");
        let why = complaint(|all| all.put(stub_key.clone(), &StubRecord { alive: false, ..stub(2, 1, 0) }));
        assert!(why.contains("is closed, but the directory is there"), "{why}");
        let why = complaint(|all| all.put(stub_key.clone(), &stub(1, 1, 0)));
        assert!(why.contains("says a spread of 1, the inode 2"), "{why}");
    }
    let stray = KeyPrefix { ring: RING, position: Position(5), volume: VOLUME };
    let why = complaint(|all| all.put(Key::stub(stray, WIDE), &stub(2, 0, 0)));
    assert!(why.contains("where none of its names rests"), "{why}");
    let why = complaint(|all| all.put(Key::stub(stray, OTHER), &stub(1, 0, 0)));
    assert!(why.contains("which is no directory"), "{why}");
}

#[test]
fn shards_belong_to_a_layout_or_to_the_garbage() {
    let why = complaint(|all| all.delete(Key::garbage(RING, VOLUME, FILE.position(), OLD)));
    assert!(why.contains("belongs to no inode and is no garbage"), "{why}");
    let why = complaint(|all| all.put(Key::garbage(RING, VOLUME, FILE.position(), BIG), &GarbageRecord { shards: 1 }));
    assert!(why.contains("is garbage, but in the layout of"), "{why}");
    let bare = ShardId { volume: VOLUME, data: BIG, index: 3 };
    let why = complaint(|all| all.put(Key::checksums(RING, bare, 0), &0u8));
    assert!(why.contains("checksums of"), "{why}");
}

#[test]
fn attributes_belong_to_an_inode() {
    let why = complaint(|all| all.put(Key::xattr(RING, VOLUME, OTHER, b"user.a"), &7u8));
    assert!(why.contains("extended attributes of"), "{why}");
    let why = complaint(|all| all.put(key(FILE, Kind::Content), &7u8));
    assert!(why.contains("bytes rest beside"), "{why}");
}

#[test]
fn nothing_is_left_half_done() {
    let intent = IntentRecord { what: "rename".into(), volume: VOLUME, legs: Vec::new() };
    let why = complaint(|all| all.put(Key::intent(RING, Position(0), IntentId(5)), &intent));
    assert!(why.contains("rename was neither finished nor undone"), "{why}");
    let why = complaint(|all| all.put(Key::leg_done(RING, Position(0), IntentId(5), 1), &0u8));
    assert!(why.contains("the mark of a leg is left"), "{why}");
}

#[test]
fn an_entry_that_is_malformed_or_misplaced_is_named() {
    let why = complaint(|all| all.put(key(FILE, Kind::Inode), &7u8));
    assert!(why.contains("its value cannot be read"), "{why}");
    let entry = (PartitionNumber(3), key(FILE, Kind::Inode), inode(NodeKind::File).to_bytes());
    let misplaced = check(&RingEntries { ring: RING, count: COUNT, entries: vec![entry] });
    assert!(misplaced[0].to_string().contains("it belongs to ring 1 partition 0"), "{}", misplaced[0]);
}
