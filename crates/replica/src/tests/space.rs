//! Random writes, holes, zeros, reservations and copies of a few shards beside a model of their bytes, and where data
//! and holes are found in them.

use super::drive::elsewhere;
use super::legs::{is_taken, leg};
use super::*;
use proptest::prelude::*;

const BLOCK: usize = BLOCK_BYTES;
const BLOCKS: usize = 12;
/// Shards of one data id, in three partitions.
const SHARDS: [u64; 4] = [0, 1, 2, 700];
const DATA: DataId = DataId(77);

/// What SEEK_DATA and SEEK_HOLE may report for a block.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Block {
    Data,
    Hole,
    /// The block has room: data if it had bytes once, otherwise a hole.
    Either,
}

#[derive(Debug, Clone)]
struct Shard {
    bytes: Vec<u8>,
    blocks: [Block; BLOCKS],
    /// Where the shard's bytes end. Room may make the end later.
    end: (usize, usize),
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize, (usize, usize), u8),
    Allocate(usize, (usize, usize), Fill),
    Copy((usize, usize), usize, (usize, usize)),
    /// Empties all whole shards from this one on.
    Empty(usize),
    WriteHome,
}

impl Shard {
    fn new() -> Self {
        Self { bytes: vec![0; BLOCKS * BLOCK], blocks: [Block::Hole; BLOCKS], end: (0, 0) }
    }

    fn write(&mut self, from: usize, bytes: &[u8]) {
        let to = from + bytes.len();
        self.bytes[from..to].copy_from_slice(bytes);
        self.blocks[from / BLOCK..to.div_ceil(BLOCK)].fill(Block::Data);
        self.end = (self.end.0.max(to), self.end.1.max(to));
    }

    /// Whole blocks of zeros become holes, and zeros in a part of a block make no data.
    fn copy(&mut self, from: usize, bytes: &[u8]) {
        let mut at = from;
        while at < from + bytes.len() {
            let end = ((at / BLOCK + 1) * BLOCK).min(from + bytes.len());
            let part = &bytes[at - from..end - from];
            let block = &mut self.blocks[at / BLOCK];
            match (part.iter().all(|byte| *byte == 0), *block) {
                (false, _) => self.write(at, part),
                (true, Block::Data) if part.len() == BLOCK => {
                    *block = Block::Hole;
                    self.bytes[at..end].fill(0);
                }
                (true, _) => self.bytes[at..end].fill(0),
            }
            at = end;
        }
    }

    fn allocate(&mut self, from: usize, to: usize, fill: Fill) {
        match fill {
            Fill::Zeros | Fill::Holes => {
                if let Fill::Zeros = fill {
                    self.bytes[from..to].fill(0);
                }
                for block in &mut self.blocks[from / BLOCK..to.div_ceil(BLOCK)] {
                    *block = if *block == Block::Data { Block::Data } else { Block::Either };
                }
                self.end.1 = self.end.1.max(to.next_multiple_of(BLOCK));
            }
            Fill::Nothing => {
                self.bytes[from..to].fill(0);
                // The rest of the last block is zeros anyway.
                let (whole_to, may_be_to) =
                    [self.end.0, self.end.1].map(|end| if to >= end { to.next_multiple_of(BLOCK) } else { to }).into();
                for block in from.div_ceil(BLOCK)..whole_to.max(may_be_to) / BLOCK {
                    let is_whole = (block + 1) * BLOCK <= whole_to.min(may_be_to);
                    self.blocks[block] = if is_whole { Block::Hole } else { Block::Either };
                }
            }
        }
    }

    /// True if the next block of the kind, from `from` on, may be at `found`.
    fn allows(&self, from: usize, hole: bool, found: Option<usize>) -> bool {
        let (wanted, other) = if hole { (Block::Hole, Block::Data) } else { (Block::Data, Block::Hole) };
        // Behind the end is a hole.
        let kind = |at: usize| match self.blocks.get(at / BLOCK) {
            _ if at >= self.end.1 => Block::Hole,
            _ if at >= self.end.0 => Block::Either,
            Some(kind) => *kind,
            None => Block::Hole,
        };
        let upto = found.unwrap_or(BLOCKS * BLOCK);
        let passed = (from..upto).find(|at| kind(*at) == wanted);
        let aligned =
            found.is_none_or(|at| at == from || at % BLOCK == 0 || hole && (self.end.0..=self.end.1).contains(&at));
        passed.is_none()
            && aligned
            && found.is_none_or(|at| at >= from && kind(at) != other)
            && (found.is_some() || !hole)
    }
}

/// A part of a shard, mostly with edges at blocks.
fn part() -> impl Strategy<Value = (usize, usize)> {
    let place = || prop_oneof![(0..BLOCKS).prop_map(|block| block * BLOCK), 0..BLOCKS * BLOCK];
    (place(), place()).prop_map(|(a, b)| (a.min(b), a.max(b).max(a.min(b) + 1)))
}

fn step() -> impl Strategy<Value = Step> {
    let shard = || 0..SHARDS.len();
    let fill = prop_oneof![1 => Just(Fill::Holes), 1 => Just(Fill::Zeros), 2 => Just(Fill::Nothing)];
    prop_oneof![
        3 => (shard(), part(), 1..=255u8).prop_map(|(shard, part, byte)| Step::Write(shard, part, byte)),
        4 => (shard(), part(), fill).prop_map(|(shard, part, fill)| Step::Allocate(shard, part, fill)),
        2 => (shard(), part(), shard(), part())
            .prop_map(|(from, part, to, at)| Step::Copy((from, part.0), to, (at.0, at.1))),
        1 => shard().prop_map(Step::Empty),
        1 => Just(Step::WriteHome),
    ]
}

fn take(ring: &mut TestRing, model: &mut [Shard], step: Step) {
    let (data, op) = (DATA, |op| Op::Data { op });
    let done = match step {
        Step::WriteHome => return ring.write_home(),
        Step::Empty(first) => {
            for shard in &mut model[first..] {
                *shard = Shard::new();
            }
            return empty(ring, DATA, SHARDS[first], 1 << 20);
        }
        Step::Write(shard, (from, to), byte) => {
            let bytes = vec![byte; to - from];
            model[shard].write(from, &bytes);
            let (index, offset, bytes) = (SHARDS[shard], from as u32, bytes.into());
            ring.execute(op(DataOp::WriteShard { data, index, offset, bytes, follow: None, fast: false }))
        }
        Step::Allocate(shard, (from, to), fill) => {
            model[shard].allocate(from, to, fill);
            let (index, offset, length) = (SHARDS[shard], from as u32, (to - from) as u32);
            ring.execute(op(DataOp::AllocateShard { data, index, offset, length, fill }))
        }
        Step::Copy((source, from), shard, (to, end)) => {
            let length = (end - to).min(BLOCKS * BLOCK - from);
            let bytes = model[source].bytes[from..from + length].to_vec();
            model[shard].copy(to, &bytes);
            let range = ShardRange { data, index: SHARDS[source], offset: from as u32, length: length as u32 };
            ring.execute(op(DataOp::CopyShard { from: range, data, index: SHARDS[shard], offset: to as u32 }))
        }
    };
    assert!(done.is_ok(), "{done:?}");
}

/// Each partition empties its shards of the range, one record after the other.
fn empty(ring: &mut TestRing, data: DataId, from: u64, to: u64) {
    for number in (0..COUNT).map(PartitionNumber) {
        let mut next = Some(from);
        while let Some(from) = next {
            let at = ring.leader(number.first_position(COUNT));
            let answer = ring.execute_at(at, Op::Data { op: DataOp::EmptyShards { data, from, to } });
            let Ok(Reply::Found { at }) = answer else { panic!("{answer:?}") };
            assert!(at.is_none_or(|at| at > from && at < to), "{at:?} does not follow {from}");
            next = at;
        }
    }
}

fn check(ring: &mut TestRing, model: &[Shard], from: usize) {
    for (shard, index) in model.iter().zip(SHARDS) {
        let op = DataOp::ReadShard { data: DATA, index, offset: 0, length: (BLOCKS * BLOCK) as u32 };
        let Ok(Reply::Data { bytes }) = ring.read(Op::Data { op }) else { panic!("no answer") };
        assert!((shard.end.0..=shard.end.1).contains(&bytes.len()), "ends at {}: {:?}", bytes.len(), shard.end);
        let differs = (0..bytes.len()).find(|at| bytes[*at] != shard.bytes[*at]);
        assert_eq!(differs, None, "shard {index}");
        for hole in [false, true] {
            let op = DataOp::SeekShard { data: DATA, index, offset: from as u32, hole };
            let Ok(Reply::Found { at }) = ring.read(Op::Data { op }) else { panic!("no answer") };
            let at = at.map(|at| at as usize);
            assert!(
                shard.allows(from, hole, at),
                "shard {index}: from {from} hole {hole} found {at:?}: {:?} {:?}",
                shard.blocks,
                shard.end
            );
        }
    }
    // Each partition finds its first one.
    for number in 0..COUNT {
        let number = PartitionNumber(number);
        let brick = &ring.bricks[ring.views[number.0 as usize].leader.0 as usize];
        let own = |index: u64| ShardId { volume: VOLUME, data: DATA, index }.position().partition(COUNT) == number;
        let found = crate::ops::seek::next_shard(brick, &ring.ask(), number, DATA, 1, 1 << 20);
        let Ok(Reply::Found { at }) = found else { panic!("no answer") };
        let mine = || SHARDS.iter().zip(model).filter(|(index, _)| **index > 0 && own(**index));
        let surely = mine().find(|(_, shard)| shard.blocks.contains(&Block::Data)).map(|(index, _)| *index);
        let is_possible = |at: u64| mine().any(|(index, shard)| *index == at && shard.blocks != [Block::Hole; BLOCKS]);
        assert!(
            at == surely || at.is_some_and(|at| is_possible(at) && surely.is_none_or(|surely| at < surely)),
            "partition {number:?} found {at:?}, surely {surely:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]
    #[test]
    fn shards_have_what_was_written_and_holes_where_nothing_was(
        steps in proptest::collection::vec((step(), 0..BLOCKS * BLOCK), 1..25),
    ) {
        let mut ring = open(&storages());
        let mut model = vec![Shard::new(); SHARDS.len()];
        for (step, from) in steps {
            take(&mut ring, &mut model, step);
            check(&mut ring, &model, from);
        }
    }
}

fn seek(ring: &mut TestRing, index: u64, offset: usize, hole: bool) -> Option<u64> {
    let op = DataOp::SeekShard { data: DATA, index, offset: offset as u32, hole };
    let Ok(Reply::Found { at }) = ring.read(Op::Data { op }) else { panic!("no answer") };
    at
}

/// Room for blocks that had bytes once is reserved by writing zeros, which are seen as data.
#[test]
fn room_that_is_made_in_a_hole_between_blocks_is_no_hole_any_more() {
    let mut ring = open(&storages());
    let mut model = vec![Shard::new(); SHARDS.len()];
    for block in [0, 3, 4, 9] {
        take(&mut ring, &mut model, Step::Write(0, (block * BLOCK, (block + 1) * BLOCK), 1));
    }
    ring.write_home();
    assert_eq!((seek(&mut ring, 0, 0, true), seek(&mut ring, 0, BLOCK, false)), (Some(4096), Some(3 * 4096)));
    take(&mut ring, &mut model, Step::Allocate(0, (BLOCK + 1, 7 * BLOCK + 1), Fill::Holes));
    assert_eq!(
        seek(&mut ring, 0, 0, true),
        Some(8 * 4096),
        "room ends with the block in which what was asked for ends"
    );
    assert_eq!(seek(&mut ring, 0, 8 * BLOCK, false), Some(9 * 4096));
    check(&mut ring, &model, 0);
}

#[test]
fn of_many_shards_each_partition_finds_its_first() {
    let mut ring = open(&storages());
    let indexes: Vec<u64> = (3..40).chain([700, 701, 65_000, 65_001, 65_002, 140_000]).collect();
    for index in indexes.iter().rev() {
        let (index, bytes) = (*index, vec![1; 10].into());
        let op = DataOp::WriteShard { data: DATA, index, offset: 0, bytes, follow: None, fast: false };
        ring.execute(Op::Data { op }).unwrap();
    }
    let ask = ring.ask();
    for number in (0..COUNT).map(PartitionNumber) {
        let brick = &ring.bricks[ring.views[number.0 as usize].leader.0 as usize];
        let is_own =
            |index: &u64| ShardId { volume: VOLUME, data: DATA, index: *index }.position().partition(COUNT) == number;
        for (from, to) in [(0, 1 << 20), (20, 1 << 20), (20, 30), (41, 65_002), (65_001, 65_002)] {
            let first = indexes.iter().copied().filter(|index| is_own(index) && (from..to).contains(index)).min();
            let Ok(Reply::Found { at }) = crate::ops::seek::next_shard(brick, &ask, number, DATA, from, to) else {
                panic!("no answer")
            };
            assert_eq!(at, first, "partition {number:?}, {from}..{to}");
        }
    }
}

/// A file of ten bytes beside its inode.
fn small_file(ring: &mut TestRing) -> InodeId {
    let inode = create_file(ring).id;
    let write = DataOp::Write { inode, offset: 0, data: Bytes::from_static(b"0123456789"), drop_set_id: false };
    ring.execute(Op::Data { op: write }).unwrap();
    inode
}

fn small_bytes(ring: &mut TestRing, inode: InodeId) -> Bytes {
    let op = DataOp::Read { inode, offset: 0, length: INLINE_MAX as u32 + 1, touch: false };
    let Ok(Reply::FileData { bytes, .. }) = ring.read(Op::Data { op }) else { panic!("not read") };
    bytes
}

/// write(2), and with O_APPEND.
#[test]
fn a_small_write_changes_only_its_bytes_and_one_that_ends_too_far_none() {
    let limit = INLINE_MAX as usize;
    // Without an offset the bytes are appended.
    let cases = [
        (Some(0), 3, true),
        (Some(4), 3, true),
        (Some(5), limit - 5, true),
        (Some(5), limit - 4, false),
        (None, 3, true),
        (None, limit - 10, true),
        (None, limit - 9, false),
    ];
    for (offset, count, is_taken) in cases {
        let mut ring = open(&storages());
        let inode = small_file(&mut ring);
        let (data, from) = (Bytes::from(vec![b'x'; count]), offset.unwrap_or(10));
        let op = match offset {
            Some(offset) => DataOp::Write { inode, offset: offset as u64, data, drop_set_id: false },
            None => DataOp::Append { inode, data, drop_set_id: false },
        };
        let mut expected = b"0123456789".to_vec();
        match (ring.execute(Op::Data { op }), is_taken) {
            (Ok(Reply::Done), true) => {
                expected.resize(expected.len().max(from + count), 0);
                expected[from..from + count].fill(b'x');
            }
            (Ok(Reply::Node { .. }), false) => {}
            (answer, _) => panic!("{count} bytes at {offset:?}: {answer:?}"),
        }
        assert!(small_bytes(&mut ring, inode) == expected, "{count} bytes at {offset:?}");
    }
}

/// Otherwise the bytes would be in two places, one of which is read.
#[test]
fn no_bytes_rest_beside_a_file_in_shards() {
    let mut ring = open(&storages());
    let inode = small_file(&mut ring);
    ring.execute(Op::Data { op: DataOp::Spill { inode } }).unwrap();
    let (data, drop_set_id) = (Bytes::from_static(b"abc"), false);
    let ops = [
        DataOp::Write { inode, offset: 0, data: data.clone(), drop_set_id },
        DataOp::Append { inode, data, drop_set_id },
        DataOp::Allocate { inode, offset: 0, length: 5, mode: Allocate::Punch, drop_set_id },
    ];
    for op in ops {
        let answer = ring.execute(Op::Data { op: op.clone() });
        assert!(matches!(answer, Ok(Reply::Node { .. })), "{op:?}: {answer:?}");
    }
    assert!(!ring.entries().iter().any(|(key, _)| key.kind() == Some(Kind::Content)));
}

#[test]
fn of_a_small_file_what_is_punched_or_zeroed_is_zeros_and_room_makes_it_longer() {
    let (punch, zero) = (Allocate::Punch, |keep_size| Allocate::Zero { keep_size });
    let reserve = |keep_size| Allocate::Reserve { keep_size };
    let limit = INLINE_MAX;
    let cases: [(Allocate, u64, u64, Option<&[u8]>); 10] = [
        (punch, 2, 3, Some(b"01\0\0\x0056789")),
        (punch, 10, 3, Some(b"0123456789")),
        (punch, 2, limit, Some(b"01\0\0\0\0\0\0\0\0")),
        (zero(true), 8, 4, Some(b"01234567\0\0")),
        (zero(false), 8, 4, Some(b"01234567\0\0\0\0")),
        (zero(false), 2, limit, None),
        (reserve(true), 0, 20, Some(b"0123456789")),
        (reserve(true), 0, limit + 1, None),
        (reserve(false), 8, 4, Some(b"0123456789\0\0")),
        (reserve(false), 0, limit + 1, None),
    ];
    for (mode, offset, length, left) in cases {
        let mut ring = open(&storages());
        let inode = small_file(&mut ring);
        let op = DataOp::Allocate { inode, offset, length, mode, drop_set_id: false };
        match (ring.execute(Op::Data { op }), left) {
            (Ok(Reply::Done), Some(left)) => {
                assert_eq!(&small_bytes(&mut ring, inode)[..], left, "{mode:?} {offset} {length}")
            }
            (Ok(Reply::Node { .. }), None) => assert_eq!(&small_bytes(&mut ring, inode)[..], b"0123456789"),
            (answer, _) => panic!("{mode:?} {offset} {length}: {answer:?}"),
        }
    }
}

#[test]
fn a_small_file_is_data_up_to_its_end() {
    let mut ring = open(&storages());
    let inode = small_file(&mut ring);
    let mut found = |offset, hole| ring.execute(Op::Data { op: DataOp::Seek { inode, offset, hole } });
    assert_eq!(
        (found(0, false), found(9, false)),
        (Ok(Reply::Found { at: Some(0) }), Ok(Reply::Found { at: Some(9) }))
    );
    assert_eq!(
        (found(0, true), found(9, true)),
        (Ok(Reply::Found { at: Some(10) }), Ok(Reply::Found { at: Some(10) }))
    );
    assert_eq!((found(10, false), found(10, true)), (Err(Error::NoData), Err(Error::NoData)));
    ring.execute(Op::Data { op: DataOp::Spill { inode } }).unwrap();
    let said = ring.execute(Op::Data { op: DataOp::Seek { inode, offset: 0, hole: false } });
    assert!(matches!(said, Ok(Reply::Node { .. })), "{said:?}");
}

/// Bricks detect by the count what a power cut took.
#[test]
fn each_change_of_a_shard_has_a_greater_count() {
    let mut ring = open(&storages());
    let shard = ShardId { volume: VOLUME, data: DATA, index: 0 };
    let leader = ring.leader(shard.position()).brick;
    let mut model = vec![Shard::new(); SHARDS.len()];
    let part = (0, BLOCK);
    take(&mut ring, &mut model, Step::Write(1, part, 3));
    let steps = [
        Step::Write(0, part, 1),
        Step::Write(0, part, 2),
        Step::Allocate(0, part, Fill::Nothing),
        Step::Copy((1, 0), 0, part),
    ];
    for (step, count) in steps.into_iter().zip(1..) {
        take(&mut ring, &mut model, step);
        assert_eq!(ring.bricks[leader.0 as usize].shard(RING, shard).unwrap().unwrap().stamp.count, count);
    }
}

/// As before, for reservations, holes and cuts.
#[test]
fn each_change_of_the_room_of_a_shard_has_a_greater_count() {
    let mut ring = open(&storages());
    let shard = ShardId { volume: VOLUME, data: DATA, index: 0 };
    let at = ring.leader(shard.position());
    let ways = (elsewhere(&ring, at), at);
    let mut model = vec![Shard::new(); SHARDS.len()];
    take(&mut ring, &mut model, Step::Write(0, (0, 8 * BLOCK), 1));
    let mut last = 1;
    let mut is_next = |ring: &TestRing| {
        last += 1;
        ring.views[at.partition.0 as usize].members.iter().all(|member| {
            let record = ring.bricks[member.brick.0 as usize].shard(RING, shard).unwrap().unwrap();
            record.stamp.count == last
        })
    };
    let allocates = [
        ((BLOCK, 3 * BLOCK), Fill::Nothing),
        ((BLOCK, 3 * BLOCK), Fill::Holes),
        ((10, 20), Fill::Nothing),
        ((8 * BLOCK, 12 * BLOCK), Fill::Holes),
    ];
    for (part, fill) in allocates {
        take(&mut ring, &mut model, Step::Allocate(0, part, fill));
        assert!(is_next(&ring), "{part:?} {fill:?}");
    }
    // The first one only reserves room.
    for (number, length) in [8 * BLOCK, 5 * BLOCK + 100, 3 * BLOCK].into_iter().enumerate() {
        let cut = Leg::CutShard { shard, length: length as u32 };
        assert!(is_taken(&leg(&mut ring, ways, number as u16, cut)));
        assert!(is_next(&ring), "cut to {length}");
    }
}

/// fallocate(2) with FALLOC_FL_PUNCH_HOLE.
#[test]
fn of_a_block_that_is_punched_in_part_the_rest_stays() {
    let mut ring = open(&storages());
    let mut model = vec![Shard::new(); SHARDS.len()];
    take(&mut ring, &mut model, Step::Write(0, (0, 3 * BLOCK), 1));
    for part in [(10, 20), (100, 5000), (2 * BLOCK + 7, 3 * BLOCK - 1)] {
        take(&mut ring, &mut model, Step::Allocate(0, part, Fill::Nothing));
        check(&mut ring, &model, 0);
    }
}

/// Blocks that were cut off are below `home_blocks` still, so room there is reserved by writing zeros.
#[test]
fn room_that_is_made_behind_a_cut_is_no_hole_as_far_as_it_was_asked_for() {
    let mut ring = open(&storages());
    let shard = ShardId { volume: VOLUME, data: DATA, index: 0 };
    let at = ring.leader(shard.position());
    let mut model = vec![Shard::new(); SHARDS.len()];
    take(&mut ring, &mut model, Step::Write(0, (0, 8 * BLOCK), 1));
    let (ways, length) = ((elsewhere(&ring, at), at), 2 * BLOCK as u32);
    assert!(is_taken(&leg(&mut ring, ways, 0, Leg::CutShard { shard, length })));
    take(&mut ring, &mut model, Step::Allocate(0, (0, 7 * BLOCK), Fill::Holes));
    assert_eq!(seek(&mut ring, 0, 0, true), Some(7 * 4096));
}

/// lseek(2): the file may go on in the next shard.
#[test]
fn behind_a_full_shard_is_no_hole() {
    let mut ring = open(&storages());
    let last = SHARD_BYTES as usize - BLOCK;
    let (offset, bytes) = (last as u32, vec![1; BLOCK].into());
    let op = DataOp::WriteShard { data: DATA, index: 0, offset, bytes, follow: None, fast: false };
    ring.execute(Op::Data { op }).unwrap();
    assert_eq!((seek(&mut ring, 0, 0, true), seek(&mut ring, 0, last, true)), (Some(0), None));
}

#[test]
fn what_does_not_lie_in_its_shard_is_refused() {
    let mut ring = open(&storages());
    let (data, index, end, most) = (DATA, 0, SHARD_BYTES as u32, 1 << 20);
    let write = |offset, count: usize| {
        let bytes = vec![1; count].into();
        DataOp::WriteShard { data, index, offset, bytes, follow: None, fast: false }
    };
    let allocate = |offset, length| DataOp::AllocateShard { data, index, offset, length, fill: Fill::Holes };
    let copy = |offset, length| {
        let from = ShardRange { data, index, offset, length };
        DataOp::CopyShard { from, data, index: 1, offset: 0 }
    };
    let copy_to = |offset, length| {
        let from = ShardRange { data, index, offset: 0, length };
        DataOp::CopyShard { from, data, index: 1, offset }
    };
    let refused = [
        write(end - 1, 2),
        write(0, 0),
        allocate(end - 1, 2),
        allocate(0, 0),
        copy(end - 1, 2),
        copy(0, 0),
        copy(0, most + 1),
        copy_to(end - 1, 2),
        copy_to(u32::MAX - 4095, 4095),
        copy_to(u32::MAX, most),
    ];
    for op in refused {
        let answer = ring.execute(Op::Data { op: op.clone() });
        assert!(matches!(answer, Err(Error::Invalid { .. })), "{op:?}: {answer:?}");
    }
    for op in [write(end - 1, 1), allocate(end - 1, 1), copy(end - 1, 1), copy(0, most)] {
        let answer = ring.execute(Op::Data { op: op.clone() });
        assert!(answer.is_ok(), "{op:?}: {answer:?}");
    }
}

/// write(2) with O_SYNC. The bytes are more than what goes through the journal, so they are in a data file.
#[test]
fn a_durable_write_outlives_a_power_cut_of_all() {
    let storages = storages();
    let mut ring = open(&storages);
    let shard = ShardId { volume: VOLUME, data: DATA, index: 0 };
    let written = Bytes::from(vec![7; 100_000]);
    let (data, index, bytes) = (shard.data, shard.index, written.clone());
    let op = DataOp::WriteShard { data, index, offset: 0, bytes, follow: None, fast: false };
    let (at, ask) = (ring.leader(shard.position()), Ask { op_id: OpId(1), durable: true, ..ring.ask() });
    ring.tell(at, Event::Request { token: Token(1), ask, op: Op::Data { op } });
    assert!(matches!(ring.answers.get(&Token(1)), Some(Ok(Reply::Written { .. }))));
    for member in &ring.views[at.partition.0 as usize].members {
        let number = member.brick.0 as usize;
        let cut = brick_on(number, &storages[number].after_power_cut(), 512 << 10, false);
        let held = cut.read_shard(RING, shard, 0, 200_000);
        assert!(held.as_ref().is_ok_and(|held| *held == written), "{:?}", held.map(|held| held.len()));
    }
}

/// A record takes some 200 shards, and each partition has more.
#[test]
fn more_shards_than_one_record_takes_are_emptied_cut_and_dropped() {
    const SHARDS: u64 = 2_400;
    // Behind the indexes that are looked up one by one.
    let indexes = || (0..SHARDS).map(|index| if index < SHARDS / 2 { index } else { index + 100_000 });
    for way in 0..3 {
        let mut ring = open_with(&storages(), 64 << 10);
        let inode = create_file(&mut ring).id;
        let Ok(Reply::Node { attr, .. }) = ring.execute(Op::Data { op: DataOp::Spill { inode } }) else { panic!() };
        let data = attr.layout.pieces[0].data;
        for index in indexes() {
            let bytes = Bytes::from_static(&[1]);
            let write = DataOp::WriteShard { data, index, offset: 0, bytes, follow: None, fast: false };
            ring.execute(Op::Data { op: write }).unwrap();
        }
        let (layout_version, end) = (attr.layout.version, 200_000 * SHARD_BYTES);
        let wrote = DataOp::Wrote { inode, layout_version, end, reach: end, drop_set_id: false, fast: false, age: 0 };
        ring.execute(Op::Data { op: wrote }).unwrap();
        ring.write_home();
        match way {
            0 => empty(&mut ring, data, 1, 200_000),
            1 => drop(ring.execute(Op::Inode { op: set_size(inode, 1) }).unwrap()),
            _ => drop(ring.execute(Op::Inode { op: set_size(inode, 0) }).unwrap()),
        }
        ring.rest();
        for index in indexes() {
            let shard = ShardId { volume: VOLUME, data, index };
            let brick = &ring.bricks[ring.leader(shard.position()).brick.0 as usize];
            let length = brick.shard(RING, shard).unwrap().map(|record| record.length);
            let wanted = match (way, index) {
                (2, _) => None,
                (_, 0) => Some(1),
                _ => Some(0),
            };
            assert_eq!(length, wanted, "shard {index}, way {way}");
        }
        ring.check();
    }
}

fn set_size(inode: InodeId, size: u64) -> InodeOp {
    InodeOp::SetAttr { inode, changes: AttrChanges { size: Some(size), ..AttrChanges::default() } }
}

/// A copy of holes must not put bytes into the journal.
#[test]
fn a_copy_of_holes_writes_nothing_and_takes_what_was_there() {
    let mut ring = open(&storages());
    let (data, length) = (DATA, (BLOCKS * BLOCK) as u32);
    let write = |ring: &mut TestRing, index, offset, bytes: Vec<u8>| {
        let op = DataOp::WriteShard { data, index, offset, bytes: bytes.into(), follow: None, fast: false };
        ring.execute(Op::Data { op }).unwrap();
    };
    let copy = |ring: &mut TestRing, from, to, offset| {
        let from = ShardRange { data, index: from, offset: 0, length };
        ring.execute(Op::Data { op: DataOp::CopyShard { from, data, index: to, offset } })
    };
    let record = |ring: &TestRing, index| {
        let shard = ShardId { volume: VOLUME, data, index };
        ring.bricks[ring.leader(shard.position()).brick.0 as usize].shard(RING, shard).unwrap()
    };
    write(&mut ring, 0, 5 * BLOCK_BYTES as u32, vec![7; BLOCK]);
    assert_eq!(copy(&mut ring, 1, 2, 0), Ok(Reply::Done), "a copy of holes makes no shard");
    assert_eq!(record(&ring, 2), None);
    assert!(matches!(copy(&mut ring, 0, 2, 0), Ok(Reply::Written { .. })));
    assert_eq!((seek(&mut ring, 2, 0, false), seek(&mut ring, 2, 5 * BLOCK, true)), (Some(5 * 4096), Some(6 * 4096)));
    // Where the target had bytes it gets a hole, except for parts of blocks.
    write(&mut ring, 3, 0, vec![9; (BLOCKS + 2) * BLOCK]);
    assert!(matches!(copy(&mut ring, 1, 3, 100), Ok(Reply::Written { .. })));
    assert_eq!((seek(&mut ring, 3, 0, true), seek(&mut ring, 3, BLOCK, false)), (Some(4096), Some(12 * 4096)));
    let read = DataOp::ReadShard { data, index: 3, offset: 0, length: 2 * length };
    let Ok(Reply::Data { bytes }) = ring.read(Op::Data { op: read }) else { panic!("no answer") };
    let wanted: Vec<u8> =
        [vec![9; 100], vec![0; BLOCKS * BLOCK], vec![9; 2 * BLOCK - 100]].into_iter().flatten().collect();
    assert_eq!(bytes, wanted);
}
