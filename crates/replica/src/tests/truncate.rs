//! What a truncate leaves of a file and what it removes: bytes that were cut off must not come back when the file grows
//! again.

use super::drive::{begin, deliver_but};
use super::*;

/// A file in shards.
struct Long {
    ring: TestRing,
    inode: InodeId,
    data: DataId,
}

impl Long {
    fn new() -> Self {
        let mut ring = open(&storages());
        let inode = create_file(&mut ring).id;
        let spilt = ring.execute(Op::Data { op: DataOp::Spill { inode } });
        let Ok(Reply::Node { attr, .. }) = spilt else { panic!("{spilt:?}") };
        Self { ring, inode, data: attr.layout.pieces[0].data }
    }

    /// Writes 100 bytes at the beginning of a shard.
    fn write(&mut self, index: u64) {
        let (data, bytes) = (self.data, Bytes::from(vec![1; 100]));
        let op = DataOp::WriteShard { data, index, offset: 0, bytes, follow: None, fast: false };
        self.ring.execute(Op::Data { op }).unwrap();
    }

    fn attr(&mut self) -> Attr {
        let got = self.ring.read(Op::Inode { op: InodeOp::GetAttr { inode: self.inode } });
        let Ok(Reply::Node { attr, .. }) = got else { panic!("{got:?}") };
        attr
    }

    fn wrote(&mut self, end: u64) {
        let (inode, layout_version) = (self.inode, self.attr().layout.version);
        let op = DataOp::Wrote { inode, layout_version, end, reach: end, drop_set_id: false, fast: false, age: 0 };
        self.ring.execute(Op::Data { op }).unwrap();
    }

    fn resize(&mut self, size: u64) -> Result<Reply> {
        set(&mut self.ring, self.inode, AttrChanges { size: Some(size), ..Default::default() })
    }

    /// The number of a shard's 100 bytes that are left, wherever the shard is.
    fn left(&mut self, index: u64) -> usize {
        let op = DataOp::ReadShard { data: self.data, index, offset: 0, length: 100 };
        let Ok(Reply::Data { bytes }) = self.ring.read(Op::Data { op }) else { panic!("no answer") };
        assert!(bytes.iter().all(|byte| *byte == 1), "shard {index}");
        bytes.len()
    }
}

fn set(ring: &mut TestRing, inode: InodeId, changes: AttrChanges) -> Result<Reply> {
    ring.execute(Op::Inode { op: InodeOp::SetAttr { inode, changes } })
}

/// A few shards are looked up one by one. For many, a partition scans those that it has.
#[test]
fn of_a_file_that_is_cut_all_before_its_end_is_left_and_nothing_behind_it() {
    let shards = [0, 1, 2, 3, 7, 8, 60, 63, 64, 65, 66, 70, 5000, 70_000, 70_001, 140_000];
    for at_once in [false, true] {
        let mut file = Long::new();
        for index in shards {
            file.write(index);
        }
        file.wrote(140_000 * SHARD_BYTES + 100);
        // This write is not recorded in the inode.
        file.write(140_001);
        let sizes = [
            70_001 * SHARD_BYTES,
            70_000 * SHARD_BYTES + 50,
            5000 * SHARD_BYTES + 10,
            66 * SHARD_BYTES + 1,
            65 * SHARD_BYTES,
            8 * SHARD_BYTES + 99,
            3 * SHARD_BYTES + 50,
            2 * SHARD_BYTES,
            10,
        ];
        for size in sizes.into_iter().filter(|size| !at_once || *size == 10) {
            file.resize(size).unwrap();
            assert_eq!(file.attr().size, size);
            for index in shards.into_iter().chain([140_001]) {
                let expected = size.saturating_sub(index * SHARD_BYTES).min(100) as usize;
                assert_eq!(file.left(index), expected, "shard {index} of a file of {size}");
            }
        }
        file.resize(140_002 * SHARD_BYTES).unwrap();
        assert!(shards.into_iter().chain([140_001]).skip(1).all(|index| file.left(index) == 0), "it grew again");
        file.ring.rest();
        file.ring.check();
    }
}

/// A file whose bytes are beside the inode.
#[test]
fn what_was_cut_off_a_small_file_does_not_come_back() {
    let mut ring = open(&storages());
    let inode = create_file(&mut ring).id;
    let data = Bytes::from(vec![1; 100]);
    ring.execute(Op::Data { op: DataOp::Write { inode, offset: 0, data, drop_set_id: false } }).unwrap();
    let resize = |ring: &mut TestRing, size| set(ring, inode, AttrChanges { size: Some(size), ..Default::default() });
    for size in [50, INLINE_MAX] {
        let Ok(Reply::Node { attr, .. }) = resize(&mut ring, size) else { panic!("not cut") };
        assert!(attr.layout.is_inline() && attr.size == size);
    }
    let read = |ring: &mut TestRing| match ring
        .read(Op::Data { op: DataOp::Read { inode, offset: 0, length: 100, touch: false } })
    {
        Ok(Reply::FileData { bytes, .. }) => bytes,
        other => panic!("{other:?}"),
    };
    let bytes = read(&mut ring);
    assert!(bytes[..50].iter().all(|byte| *byte == 1) && bytes[50..].iter().all(|byte| *byte == 0), "{bytes:?}");
    let Ok(Reply::Node { attr, .. }) = resize(&mut ring, INLINE_MAX + 1) else { panic!("it does not grow") };
    assert!(!attr.layout.is_inline());
    assert!(resize(&mut ring, FILE_BYTES_MAX).is_ok());
    assert_eq!(resize(&mut ring, FILE_BYTES_MAX + 1), Err(Error::TooLarge));
}

/// ftruncate(2). Build and backup tools rely on the times.
#[test]
fn times_say_that_a_file_was_cut() {
    let mut ring = open(&storages());
    let inode = create_file(&mut ring).id;
    let mut tell = |changes| {
        ring.clock += 1_000_000_000;
        let Ok(Reply::Node { attr, .. }) = set(&mut ring, inode, changes) else { panic!("not cut") };
        (attr.mtime, attr.ctime, attr.change, attr.mode)
    };
    let size = |size| AttrChanges { size: Some(size), ..Default::default() };
    let first = tell(size(10));
    let second = tell(size(5));
    assert!(second.0 > first.0 && second.1 > first.1 && second.2 > first.2);
    assert_eq!(tell(size(5)), second, "nothing has changed");
    let third = tell(AttrChanges { mode: Some(0o600), ..size(5) });
    assert_eq!((third.0, third.3), (second.0, 0o600), "its bytes have not");
    assert!(third.1 > second.1);
    let at = Some(SetTime::At { time: Time(7) });
    assert_eq!(tell(AttrChanges { mtime: at, ..size(3) }).0, Time(7), "as it was asked for");
}

/// fallocate(2) with FALLOC_FL_KEEP_SIZE and then ftruncate(2), which releases the room.
#[test]
fn room_behind_the_end_of_a_file_goes_with_a_truncate() {
    let mut file = Long::new();
    let (blocks, length) = (4, 4 * BLOCK_BYTES as u32);
    file.write(0);
    file.wrote(100);
    let shard = ShardId { volume: VOLUME, data: file.data, index: 0 };
    let (data, index, fill) = (file.data, 0, Fill::Holes);
    let allocates = Op::Data { op: DataOp::AllocateShard { data, index, offset: 0, length, fill } };
    let at = file.ring.leader(shard.position());
    file.ring.execute_at(at, allocates).unwrap();
    let reserved =
        |file: &Long| file.ring.bricks[at.brick.0 as usize].shard(RING, shard).unwrap().unwrap().reserved_blocks;
    assert_eq!(reserved(&file), blocks);
    file.resize(2 * BLOCK_BYTES as u64).unwrap();
    assert_eq!(reserved(&file), blocks, "it only grew");
    file.resize(2 * BLOCK_BYTES as u64 - 1).unwrap();
    assert_eq!((reserved(&file), file.left(0)), (0, 100));
}

/// The inode's leader cuts the shard itself, in the same record.
#[test]
fn a_shard_that_rests_beside_its_inode_is_cut_too() {
    let mut file = Long::new();
    let data = file.data;
    let partition = |index| ShardId { volume: VOLUME, data, index }.position().partition(COUNT);
    let home = file.inode.position().partition(COUNT);
    for index in (1..).filter(|index| partition(*index) == home).take(2) {
        file.write(index);
        file.wrote(index * SHARD_BYTES + 100);
        file.resize(index * SHARD_BYTES + 10).unwrap();
        assert_eq!(file.left(index), 10);
        file.resize(SHARD_BYTES / 2).unwrap();
        assert_eq!(file.left(index), 0);
    }
}

/// A client saw a write and overwrote it. A truncate since must not have the first write done again.
#[test]
fn what_a_truncate_has_not_cut_is_not_written_again() {
    let mut ring = open(&storages());
    let inode = create_file(&mut ring).id;
    let Reply::Node { attr, .. } = ring.execute(Op::Data { op: DataOp::Spill { inode } }).unwrap() else { panic!() };
    let wrote = |version: u32, end: u64| {
        let op =
            DataOp::Wrote { inode, layout_version: version, end, reach: end, drop_set_id: false, fast: false, age: 0 };
        Op::Data { op }
    };
    let first = attr.layout.version;
    ring.execute(wrote(first, 100)).unwrap();
    let cut = |ring: &mut TestRing, size: u64| {
        let op = InodeOp::SetAttr { inode, changes: AttrChanges { size: Some(size), ..Default::default() } };
        ring.execute(Op::Inode { op }).unwrap();
    };
    cut(&mut ring, 50);
    cut(&mut ring, 80);
    cut(&mut ring, 60);
    let Reply::Node { attr, .. } = ring.execute(wrote(first, 50)).unwrap() else { panic!("no reply with the layout") };
    assert_eq!(ring.execute(wrote(attr.layout.version, 50)), Ok(Reply::Done), "of now");
    assert_eq!(ring.execute(wrote(first, 51)), Err(Error::LayoutChanged), "of that the first one has cut a byte");
    let Reply::Node { attr, .. } = ring.read(Op::Inode { op: InodeOp::GetAttr { inode } }).unwrap() else { panic!() };
    assert_eq!(attr.size, 60, "what is carried over makes no file longer");
}

/// The partition of a shard depends on its hash: a partition may have none of the shards that are looked up one by one.
#[test]
fn a_partition_that_has_only_far_shards_of_a_file_cuts_them_too() {
    let mut file = Long::new();
    let data = file.data;
    let partition = |index| ShardId { volume: VOLUME, data, index }.position().partition(COUNT);
    let tried = |first: u64| first..first + 8 * u64::from(COUNT);
    let lacks = |first, number: &PartitionNumber| !tried(first).any(|index| partition(index) == *number);
    let of = |first| (0..COUNT).map(PartitionNumber).find(|number| lacks(first, number));
    let (first, number) = (1..).find_map(|first| Some((first, of(first)?))).unwrap();
    let far = (first..).find(|index| partition(*index) == number).unwrap();
    file.write(far);
    file.wrote(far * SHARD_BYTES + 100);
    file.resize(first * SHARD_BYTES).unwrap();
    file.resize(far * SHARD_BYTES + 100).unwrap();
    assert_eq!(file.left(far), 0, "it grew again");
}

/// A client that knows the new layout would write under it, to a shard that is yet to be cut.
#[test]
fn a_note_about_a_file_that_is_being_cut_is_answered_once_it_is_cut() {
    let mut file = Long::new();
    let (inode, data) = (file.inode, file.data);
    let partition = |index| ShardId { volume: VOLUME, data, index }.position().partition(COUNT);
    let far = (1..).find(|index| partition(*index) != inode.position().partition(COUNT)).unwrap();
    let end = far * SHARD_BYTES + 100;
    file.write(far);
    file.wrote(end);
    file.ring.rest();
    let layout_version = file.attr().layout.version;
    let changes = AttrChanges { size: Some(end - 50), ..Default::default() };
    begin(&mut file.ring, 1, Op::Inode { op: InodeOp::SetAttr { inode, changes } });
    let legs = deliver_but(&mut file.ring, |envelope| matches!(envelope.message, Message::Leg { .. }));
    assert!(!legs.is_empty(), "it is on its way");
    for (token, end) in [(2, end - 50), (3, end)] {
        let wrote = DataOp::Wrote { inode, layout_version, end, reach: end, drop_set_id: false, fast: false, age: 0 };
        begin(&mut file.ring, token, Op::Data { op: wrote });
    }
    deliver_but(&mut file.ring, |_| false);
    assert!(file.ring.answers.is_empty(), "{:?}", file.ring.answers);
    file.ring.queue.extend(legs);
    (0..10).for_each(|_| file.ring.tick());
    let [cut, before, behind] = [1, 2, 3].map(|token| file.ring.answers[&Token(token)].clone());
    assert!(cut.is_ok() && matches!(before, Ok(Reply::Node { .. })), "{cut:?} {before:?}");
    assert_eq!((behind, file.attr().size, file.left(far)), (Err(Error::LayoutChanged), end - 50, 50));
}
