//! The fast lane: what members take, and what becomes of writes that only some members have.

use super::*;
use hekate_brick::storage::Storage;

pub(super) const DATA: DataId = DataId(9);
pub(super) const FIRST: SessionId = SessionId(1);
pub(super) const SECOND: SessionId = SessionId(2);

/// A ring with one shard of four blocks of ones, which is open for the first session.
pub(super) struct Lane {
    pub ring: TestRing,
    pub storages: Vec<MemoryStorage>,
    pub leader: Address,
    pub follower: Address,
    pub stamp: Stamp,
    pub term: u64,
    /// Requests from now on need not be on stable storage.
    pub loose: bool,
}

pub(super) fn shard() -> ShardId {
    ShardId { volume: VOLUME, data: DATA, index: 0 }
}

pub(super) fn bytes(byte: u8, count: usize) -> Bytes {
    vec![byte; count].into()
}

impl Lane {
    pub fn new() -> Self {
        let storages = storages();
        Self::on(open(&storages), storages)
    }

    /// `storages`: those of the ring, if a test reads them.
    pub fn on(ring: TestRing, storages: Vec<MemoryStorage>) -> Self {
        let leader = ring.leader(shard().position());
        let view = &ring.views[leader.partition.0 as usize];
        let other = view.members.iter().map(|member| member.brick).find(|brick| *brick != leader.brick).unwrap();
        let follower = Address { brick: other, ..leader };
        let stamp = Stamp { count: 0, session: FIRST, op: OpId(0) };
        let mut lane = Self { ring, storages, leader, follower, stamp, term: 0, loose: false };
        assert!(lane.slow(FIRST, 256, 0, bytes(1, 4 * BLOCK_BYTES)).is_ok());
        assert!(lane.term > 0, "a shard that one session writes is opened for it");
        lane
    }

    pub fn ask(session: SessionId, op: u64) -> Ask {
        Ask::new(RING, COUNT, VOLUME, (session, OpId(op)), Time(op as i64))
    }

    pub fn request(&mut self, to: Address, session: SessionId, op_id: u64, op: DataOp) -> Result<Reply> {
        self.request_as(Ask { loose: self.loose, ..Self::ask(session, op_id) }, to, op)
    }

    pub fn request_as(&mut self, ask: Ask, to: Address, op: DataOp) -> Result<Reply> {
        let token = Token(1 << 40 | ask.session.0 << 32 | ask.op_id.0);
        let event = Event::Request { token, ask, op: Op::Data { op } };
        self.ring.tell(to, event);
        for _ in 0..50 {
            if let Some(answer) = self.ring.answers.remove(&token) {
                return answer;
            }
            self.ring.tick();
        }
        Err(Error::Unavailable { what: "no replica answered".into() })
    }

    /// Writes through the leader.
    pub fn slow(&mut self, session: SessionId, op_id: u64, offset: u32, bytes: Bytes) -> Result<Reply> {
        let op = DataOp::WriteShard { data: DATA, index: 0, offset, bytes, follow: None, fast: true };
        let reply = self.request(self.leader, session, op_id, op);
        if let Ok(Reply::Written { stamp, fast: Some(term) }) = reply {
            (self.stamp, self.term) = (stamp, term);
        }
        reply
    }

    /// Sends a fast write to one replica.
    pub fn fast(&mut self, to: Address, op_id: u64, offset: u32, bytes: Bytes) -> Result<Reply> {
        let (follow, settled, term) = (self.stamp, true, self.term);
        let op = DataOp::FastWrite { data: DATA, index: 0, offset, bytes, follow, settled, term };
        self.request(to, FIRST, op_id, op)
    }

    pub fn fast_stamp(&self, op_id: u64) -> Stamp {
        Stamp { count: self.stamp.count + 1, session: FIRST, op: OpId(op_id) }
    }

    fn read(&mut self) -> Bytes {
        let op = DataOp::ReadShard { data: DATA, index: 0, offset: 0, length: 4 * BLOCK_BYTES as u32 };
        let Ok(Reply::Data { bytes }) = self.ring.read(Op::Data { op }) else { panic!("no bytes") };
        bytes
    }

    /// The shard's stamp and bytes at the replica.
    pub fn held(&self, at: Address) -> (Stamp, Bytes) {
        let brick = &self.ring.bricks[at.brick.0 as usize];
        let record = brick.shard(RING, shard()).unwrap().unwrap();
        (record.stamp, brick.read_shard(RING, shard(), 0, record.length).unwrap())
    }

    pub fn listed(&self, at: Address) -> bool {
        let brick = &self.ring.bricks[at.brick.0 as usize];
        brick.get(&Key::unsettled(RING, shard())).unwrap().is_some()
    }

    /// Checks that both replicas have these blocks, and that nothing is unsettled.
    pub fn check_even(&mut self, blocks: [u8; 4]) {
        self.ring.rest();
        let expected: Vec<u8> = blocks.iter().flat_map(|byte| vec![*byte; BLOCK_BYTES]).collect();
        let (ours, theirs) = (self.held(self.leader), self.held(self.follower));
        assert!(ours.1 == expected, "the leader");
        assert!(ours == theirs, "{:?} {:?}", ours.0, theirs.0);
        assert!(!self.listed(self.leader) && !self.listed(self.follower));
        assert!(self.read() == expected, "a read");
    }
}

pub(super) const BLOCK: u32 = BLOCK_BYTES as u32;

#[test]
fn what_all_members_have_is_read_and_remembered() {
    let mut lane = Lane::new();
    let stamp = lane.fast_stamp(512);
    let written = Ok(Reply::Written { stamp, fast: None });
    assert_eq!(lane.fast(lane.follower, 512, BLOCK, bytes(2, BLOCK_BYTES)), written);
    assert_eq!(lane.fast(lane.leader, 512, BLOCK, bytes(2, BLOCK_BYTES)), written);
    assert!(lane.listed(lane.leader) && lane.listed(lane.follower));
    assert_eq!(lane.read()[BLOCK_BYTES], 2);
    // The next write follows the first one's stamp.
    lane.stamp = stamp;
    for at in [lane.leader, lane.follower] {
        assert!(lane.fast(at, 768, 2 * BLOCK + 5, bytes(3, 100)).is_ok());
    }
    assert_eq!(lane.held(lane.leader), lane.held(lane.follower));
    assert_eq!(
        lane.slow(FIRST, 768, 2 * BLOCK + 5, bytes(3, 100)),
        Ok(Reply::Written { stamp: lane.fast_stamp(768), fast: None })
    );
    let _ = lane.slow(FIRST, 1024, 2 * BLOCK, bytes(4, BLOCK_BYTES)).unwrap();
    lane.check_even([1, 2, 4, 1]);
}

#[test]
fn what_the_leader_lacks_is_undone_before_it_changes_the_shard() {
    let mut lane = Lane::new();
    assert!(lane.fast(lane.follower, 512, 0, bytes(2, 2 * BLOCK_BYTES)).is_ok());
    assert_eq!(lane.read()[0], 1, "the leader's copy rules");
    let _ = lane.slow(SECOND, 256, BLOCK, bytes(5, BLOCK_BYTES)).unwrap();
    assert!(
        matches!(lane.fast(lane.leader, 512, 0, bytes(2, 2 * BLOCK_BYTES)), Err(Error::Conflict { .. })),
        "it comes late"
    );
    lane.check_even([1, 5, 1, 1]);
    // The client asks the leader, and the write is done for the first time.
    let _ = lane.slow(FIRST, 512, 0, bytes(2, 2 * BLOCK_BYTES)).unwrap();
    lane.check_even([2, 2, 1, 1]);
}

#[test]
fn what_only_the_leader_has_is_brought_to_all_before_it_is_read() {
    let mut lane = Lane::new();
    let stamp = lane.fast_stamp(512);
    assert!(lane.fast(lane.leader, 512, 3 * BLOCK, bytes(2, BLOCK_BYTES)).is_ok());
    assert_eq!(lane.read()[3 * BLOCK_BYTES], 2);
    assert_eq!(lane.held(lane.follower).1[3 * BLOCK_BYTES], 2, "no read has shown it");
    let late = lane.fast(lane.follower, 512, 3 * BLOCK, bytes(2, BLOCK_BYTES));
    assert!(matches!(late, Err(Error::Conflict { .. })), "{late:?}");
    let again = lane.slow(FIRST, 512, 3 * BLOCK, bytes(2, BLOCK_BYTES));
    assert_eq!(again, Ok(Reply::Written { stamp, fast: None }), "it is not done again");
    lane.check_even([1, 1, 1, 2]);
}

#[test]
fn members_refuse_what_does_not_follow_or_was_allowed_to_another() {
    let mut lane = Lane::new();
    let conflicts = |outcome: Result<Reply>| matches!(outcome, Err(Error::Conflict { .. }));
    for at in [lane.leader, lane.follower] {
        let (stamp, term) = (lane.stamp, lane.term);
        lane.stamp.count += 1;
        assert!(conflicts(lane.fast(at, 512, 0, bytes(2, 1))), "another stamp");
        (lane.stamp, lane.term) = (stamp, term + 1);
        assert!(conflicts(lane.fast(at, 512, 0, bytes(2, 1))), "another term");
        lane.term = term;
        assert!(matches!(lane.fast(at, 512, 0, bytes(2, 65 << 10)), Err(Error::Invalid { .. })), "too long");
    }
    let (follow, term) = (lane.stamp, lane.term);
    let write = DataOp::FastWrite { data: DATA, index: 0, offset: 0, bytes: bytes(2, 1), follow, settled: true, term };
    assert!(conflicts(lane.request(lane.leader, SECOND, 256, write)), "of another session");
    lane.check_even([1; 4]);
}

#[test]
fn a_leader_that_starts_anew_evens_what_is_listed_and_takes_nothing_of_its_last_life() {
    for (at_leader, expected) in [(true, 2), (false, 1)] {
        let mut lane = Lane::new();
        let at = if at_leader { lane.leader } else { lane.follower };
        assert!(lane.fast(at, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
        let Lane { storages, stamp, term, .. } = lane;
        drop(lane.ring);
        let ring = open(&storages);
        let mut lane = Lane { ring, storages, leader: lane.leader, follower: lane.follower, stamp, term, loose: false };
        lane.check_even([expected, 1, 1, 1]);
        for at in [lane.leader, lane.follower] {
            let late = lane.fast(at, 768, 0, bytes(7, BLOCK_BYTES));
            assert!(matches!(late, Err(Error::Conflict { .. })), "{late:?}");
        }
        // A write that was done is answered, and one that was undone is done.
        let _ = lane.slow(FIRST, 512, 0, bytes(2, BLOCK_BYTES)).unwrap();
        lane.check_even([2, 1, 1, 1]);
    }
}

#[test]
fn two_sessions_at_one_shard_stay_on_the_leaders_lane() {
    let mut lane = Lane::new();
    for turn in 1..=3 {
        assert!(matches!(lane.slow(SECOND, turn * 256, 0, bytes(2, 1)), Ok(Reply::Written { fast: None, .. })));
        assert!(matches!(lane.slow(FIRST, turn * 256 + 512, 0, bytes(1, 1)), Ok(Reply::Written { fast: None, .. })));
    }
    let last = (4..40).find(|turn| {
        matches!(lane.slow(FIRST, turn * 256 + 512, 0, bytes(1, 1)), Ok(Reply::Written { fast: Some(_), .. }))
    });
    assert!(last.is_some_and(|turn| turn > 5), "{last:?}: after a while alone");
    lane.check_even([1; 4]);
}

#[test]
fn a_shard_that_nobody_writes_is_closed_though_the_clock_was_set_back() {
    let mut lane = Lane::new();
    lane.ring.clock += 1_000_000_000_000;
    for at in [lane.leader, lane.follower] {
        assert!(lane.fast(at, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    }
    lane.ring.clock -= 1_000_000_000_000;
    (0..20).for_each(|_| lane.ring.tick());
    lane.check_even([2, 1, 1, 1]);
}

/// Damages the second block of the replica's shard.
pub(super) fn rot(lane: &mut Lane, at: Address) {
    lane.ring.write_home();
    let file = lane.storages[at.brick.0 as usize].open(&hekate_brick::data_file_path(shard()), false).unwrap();
    file.write_at(&[&[9; 100]], BLOCK_BYTES as u64).unwrap();
}

/// Otherwise a read could show half of a write whose other half the leader cannot read.
#[test]
fn what_is_damaged_on_the_leader_is_made_even_as_a_member_has_it() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    rot(&mut lane, leader);
    assert!(lane.fast(follower, 512, 0, bytes(2, 3 * BLOCK_BYTES)).is_ok());
    assert!(
        lane.slow(SECOND, 256, 3 * BLOCK, bytes(4, BLOCK_BYTES)).is_ok(),
        "another session's write closes the shard"
    );
    lane.check_even([2, 2, 2, 4]);
    // The write is done, and is not done again.
    assert!(lane.slow(SECOND, 512, 0, bytes(5, BLOCK_BYTES)).is_ok());
    assert!(lane.slow(FIRST, 512, 0, bytes(2, 3 * BLOCK_BYTES)).is_ok());
    lane.check_even([5, 2, 2, 4]);
}

/// As before, but the leader has the write and cannot read it.
#[test]
fn a_write_that_only_the_leader_had_is_undone_if_that_cannot_read_it() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    assert!(lane.fast(leader, 512, 0, bytes(2, 3 * BLOCK_BYTES)).is_ok());
    rot(&mut lane, leader);
    lane.ring.held_back = Some((follower, Vec::new()));
    lane.ring.tell(leader, Event::CloseShards);
    super::closing::reconnect(&mut lane);
    lane.check_even([1; 4]);
    assert!(lane.slow(FIRST, 512, 0, bytes(2, 3 * BLOCK_BYTES)).is_ok(), "the retry executes it");
    lane.check_even([2, 2, 2, 1]);
}

#[test]
fn a_member_that_comes_back_is_asked_for_its_copy_again() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    rot(&mut lane, leader);
    assert!(lane.fast(follower, 512, 0, bytes(2, 2 * BLOCK_BYTES)).is_ok());
    lane.ring.handle(leader, Event::CloseShards);
    let mut asked = 0;
    while let Some(envelope) = lane.ring.queue.pop_front() {
        asked += u32::from(matches!(envelope.message, Message::ReadBlock { .. }));
        if asked == 0 {
            lane.ring.handle(envelope.to, Event::Message(envelope));
        }
    }
    assert_eq!(asked, 2);
    super::closing::reconnect(&mut lane);
    lane.check_even([2, 2, 1, 1]);
}

#[test]
fn a_shard_is_closed_though_nobody_can_read_a_block_of_it() {
    // A list with writes before the block, and one that begins with it.
    for (first, expected) in [(0, [Some(2), None, Some(2), Some(4)]), (1, [Some(1), None, Some(2), Some(4)])] {
        let mut lane = Lane::new();
        let (leader, follower) = (lane.leader, lane.follower);
        assert!(lane.fast(leader, 512, first * BLOCK, bytes(2, (3 - first as usize) * BLOCK_BYTES)).is_ok());
        rot(&mut lane, leader);
        rot(&mut lane, follower);
        assert!(
            lane.slow(SECOND, 256, 3 * BLOCK, bytes(4, BLOCK_BYTES)).is_ok(),
            "another session's write closes the shard"
        );
        lane.ring.rest();
        assert!(!lane.listed(leader) && !lane.listed(follower));
        for at in [leader, follower] {
            let brick = &lane.ring.bricks[at.brick.0 as usize];
            let blocks =
                [0, 1, 2, 3].map(|block| brick.read_block(RING, shard(), block).ok().flatten().map(|bytes| bytes[0]));
            assert_eq!(blocks, expected);
        }
    }
}

/// A new leader lists a write, and fetches the record that undid it: the write is not done (rule L13).
#[test]
fn a_write_that_was_undone_by_what_a_leader_fetches_is_done_again() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    assert!(lane.fast(follower, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    lane.ring.handle(leader, Event::CloseShards);
    let mut is_listed = false;
    while let Some(envelope) = lane.ring.queue.pop_front() {
        if is_listed && envelope.to == follower {
            continue;
        }
        is_listed |= matches!(envelope.message, Message::FastListed { .. });
        lane.ring.handle(envelope.to, Event::Message(envelope));
    }
    assert!(is_listed && lane.listed(follower) && !lane.listed(leader), "reconciled at the leader only");
    let (old, new) = (leader.brick.0, follower.brick.0);
    super::heal::form(&mut lane.ring, leader.partition.0, new, &[new, old], &[]);
    (lane.leader, lane.follower) = (follower, leader);
    assert!(lane.slow(FIRST, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    lane.check_even([2, 1, 1, 1]);
}

/// A record that reconciled the shard without the learner would remove its list, while another write is on all members
/// (rule L15).
#[test]
fn a_learner_gets_no_records_before_what_it_lists_is_even() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    let third = (0..u128::from(BRICKS)).find(|brick| ![leader.brick.0, follower.brick.0].contains(brick)).unwrap();
    assert!(lane.fast(follower, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    assert!(lane.fast(leader, 768, BLOCK, bytes(3, BLOCK_BYTES)).is_ok());
    let (number, first) = (leader.partition.0, leader.brick.0);
    let form = super::heal::form;
    form(&mut lane.ring, number, first, &[first], &[]);
    form(&mut lane.ring, number, first, &[first], &[third]);
    (0..20).for_each(|_| lane.ring.tick());
    lane.ring.held_back = Some((follower, Vec::new()));
    form(&mut lane.ring, number, first, &[first, third], &[follower.brick.0]);
    let third_at = Address { brick: BrickId(third), ..leader };
    let (_, asked) = lane.ring.held_back.replace((third_at, Vec::new())).unwrap();
    lane.ring.queue.extend(asked);
    (0..20).for_each(|_| lane.ring.tick());
    assert!(lane.listed(follower), "the third replica has not received the record");
    let (_, held) = lane.ring.held_back.take().unwrap();
    lane.ring.queue.extend(held);
    (0..20).for_each(|_| lane.ring.tick());
    assert!(!lane.listed(follower));
    form(&mut lane.ring, number, first, &[first, follower.brick.0], &[]);
    lane.check_even([1, 3, 1, 1]);
}

/// The journal has all records from the first on, but no log has fast writes.
#[test]
fn who_was_never_a_member_gets_what_was_written_on_the_fast_lane() {
    let mut lane = Lane::new();
    // Once another write follows the first one no replica lists the first.
    for (op, block) in [(512, 1), (768, 2)] {
        for to in [lane.leader, lane.follower] {
            assert!(lane.fast(to, op, block * BLOCK, bytes(2, BLOCK_BYTES)).is_ok());
        }
        lane.stamp = lane.fast_stamp(op);
    }
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick, lane.follower.brick);
    let third = (0..u128::from(BRICKS)).map(BrickId).find(|brick| ![first, second].contains(brick)).unwrap();
    let form = super::heal::form;
    form(&mut lane.ring, number, first.0, &[first.0, second.0], &[third.0]);
    (0..20).for_each(|_| lane.ring.tick());
    form(&mut lane.ring, number, first.0, &[first.0, third.0], &[]);
    lane.follower.brick = third;
    lane.check_even([1, 2, 2, 1]);
}

/// While a shard is being closed members have the stamp of its `Restamp`, whichever of the writes before they have
/// (rule L8).
#[test]
fn a_read_waits_for_a_shard_that_is_being_closed() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    assert!(lane.fast(leader, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    lane.ring.held_back = Some((follower, Vec::new()));
    lane.ring.tell(leader, Event::CloseShards);
    let (_, held) = lane.ring.held_back.replace((follower, Vec::new())).unwrap();
    // The member takes the record that closes the shard, and is not asked for its list yet.
    let (records, questions) = held.into_iter().partition(|sent| matches!(sent.message, Message::Append { .. }));
    let records: Vec<Envelope> = records;
    records.into_iter().for_each(|record| lane.ring.handle(follower, Event::Message(record)));
    lane.ring.deliver();
    let op = Op::Data { op: DataOp::ReadShard { data: DATA, index: 0, offset: 0, length: 1 } };
    let (token, ask) = (Token(77), Lane::ask(SECOND, 256));
    lane.ring.tell(leader, Event::Request { token, ask, op });
    let (_, held) = lane.ring.held_back.take().unwrap();
    assert!(!held.iter().any(|sent| matches!(sent.message, Message::AskFast { .. })));
    lane.ring.queue.extend(held.into_iter().chain(questions));
    (0..20).for_each(|_| lane.ring.tick());
    assert_eq!(lane.ring.answers[&token], Ok(Reply::Data { bytes: bytes(2, 1) }));
    lane.check_even([2, 1, 1, 1]);
}

/// Drops the shard, and makes it again with three blocks.
pub(super) fn make_anew(lane: &mut Lane) {
    let stamp = Stamp { count: 1, session: SYSTEM_SESSION, op: OpId(9) };
    let record = ShardRecord { stamp, length: 3 * BLOCK, home_blocks: 3, reserved_blocks: 0 };
    let made = crate::ops::data::block_change(shard(), record, 0, bytes(3, 3 * BLOCK_BYTES));
    for (token, change) in [(Token(88), Change::DropShard { shard: shard() }), (Token(89), made)] {
        let commit = Box::new(Commit { changes: vec![change], ..Commit::default() });
        lane.ring.tell(lane.leader, Event::Change { token, commit });
        lane.ring.rest();
        lane.ring.write_home();
        assert_eq!(lane.ring.answers.get(&token), Some(&Ok(Reply::Done)));
    }
}

/// No replica has blocks behind the end of the shard. The other listed blocks are read from the member all the same.
#[test]
fn what_is_damaged_is_lent_though_who_comes_back_lists_blocks_that_are_gone() {
    let mut lane = Lane::new();
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick.0, lane.follower.brick.0);
    let third = (0..u128::from(BRICKS)).find(|brick| ![first, second].contains(brick)).unwrap();
    assert!(lane.fast(lane.follower, 512, BLOCK, bytes(2, 3 * BLOCK_BYTES)).is_ok());
    let form = super::heal::form;
    form(&mut lane.ring, number, first, &[first], &[third]);
    (0..20).for_each(|_| lane.ring.tick());
    form(&mut lane.ring, number, first, &[first, third], &[]);
    make_anew(&mut lane);
    let leader = lane.leader;
    rot(&mut lane, leader);
    form(&mut lane.ring, number, first, &[first, third], &[second]);
    (0..20).for_each(|_| lane.ring.tick());
    form(&mut lane.ring, number, first, &[first, third, second], &[]);
    lane.ring.rest();
    for brick in [first, second, third] {
        assert!(lane.held(Address { brick: BrickId(brick), ..leader }).1 == bytes(3, 3 * BLOCK_BYTES), "{brick}");
    }
}

/// While the member was away the shard was dropped, and made again with fewer blocks.
#[test]
fn who_comes_back_may_list_blocks_that_are_gone() {
    let mut lane = Lane::new();
    let (number, first, second) = (lane.leader.partition.0, lane.leader.brick, lane.follower.brick);
    assert!(lane.fast(lane.follower, 512, 2 * BLOCK, bytes(2, 2 * BLOCK_BYTES)).is_ok());
    let form = super::heal::form;
    form(&mut lane.ring, number, first.0, &[first.0], &[]);
    make_anew(&mut lane);
    assert!(lane.listed(lane.follower));
    form(&mut lane.ring, number, first.0, &[first.0], &[second.0]);
    (0..20).for_each(|_| lane.ring.tick());
    form(&mut lane.ring, number, first.0, &[first.0, second.0], &[]);
    lane.ring.rest();
    let (ours, theirs) = (lane.held(lane.leader), lane.held(lane.follower));
    assert!(ours == theirs && ours.1 == bytes(3, 3 * BLOCK_BYTES), "{:?} {:?}", ours.0, theirs.0);
    assert!(!lane.listed(lane.leader) && !lane.listed(lane.follower));
}

/// If a record reconciled only a part of what a member lists and the leader died then, half of a write would be shown,
/// or the write would be taken for done (rules L17 and L23).
#[test]
fn a_shard_is_made_even_with_one_record() {
    for (first, count, expected) in [(1, 2, [3, 2, 2, 1]), (3, 1, [3, 3, 1, 2])] {
        let mut lane = Lane::new();
        let (leader, follower) = (lane.leader, lane.follower);
        let write = || bytes(2, count * BLOCK_BYTES);
        assert!(lane.fast(follower, 513, first * BLOCK, write()).is_ok());
        assert!(lane.fast(leader, 768, 0, bytes(3, 2 * BLOCK_BYTES)).is_ok());
        lane.ring.handle(leader, Event::CloseShards);
        let is_reconciling = |message: &Message| {
            let Message::Append { entry, .. } = message else { return false };
            matches!(entry.record.changes[..], [Change::WriteBlocks { .. }, ..])
        };
        let mut reconciled = 0;
        while let Some(envelope) = lane.ring.queue.pop_front() {
            reconciled += u32::from(envelope.to == follower && is_reconciling(&envelope.message));
            if reconciled < 2 || envelope.to != follower {
                lane.ring.handle(envelope.to, Event::Message(envelope));
            }
        }
        assert!(reconciled == 1 && !lane.listed(follower), "{reconciled} records reconcile the shard");
        let (old, new) = (leader.brick.0, follower.brick.0);
        super::heal::form(&mut lane.ring, leader.partition.0, new, &[new], &[]);
        (lane.leader, lane.follower) = (follower, leader);
        let held = lane.held(follower).1;
        let blocks = [0, 1, 2, 3].map(|block| held[block * BLOCK_BYTES]);
        assert_eq!(blocks, [3, 3, 1, 1], "nothing of the write is left");
        assert!(lane.slow(FIRST, 513, first * BLOCK, write()).is_ok());
        super::heal::form(&mut lane.ring, leader.partition.0, new, &[new], &[old]);
        (0..20).for_each(|_| lane.ring.tick());
        super::heal::form(&mut lane.ring, leader.partition.0, new, &[new, old], &[]);
        lane.check_even(expected);
    }
}

/// Otherwise each answer would cause more questions, without end.
#[test]
fn a_read_asks_once_though_the_closing_of_its_shard_has_to_wait() {
    let mut lane = Lane::new();
    let (leader, follower) = (lane.leader, lane.follower);
    let at = |data| ShardId { volume: VOLUME, data, index: 0 }.position().partition(COUNT);
    let data = (10..).map(DataId).find(|data| at(*data) == leader.partition).unwrap();
    let other = |bytes| DataOp::WriteShard { data, index: 0, offset: 0, bytes, follow: None, fast: true };
    assert!(lane.request(leader, FIRST, 257, other(bytes(1, BLOCK_BYTES))).is_ok());
    assert!(lane.fast(leader, 512, 0, bytes(2, BLOCK_BYTES)).is_ok());
    lane.ring.held_back = Some((follower, Vec::new()));
    let rival = Event::Request {
        token: Token(76),
        ask: Lane::ask(SECOND, 256),
        op: Op::Data { op: other(bytes(3, BLOCK_BYTES)) },
    };
    lane.ring.tell(leader, rival);
    let op = Op::Data { op: DataOp::ReadShard { data: DATA, index: 0, offset: 0, length: 1 } };
    lane.ring.tell(leader, Event::Request { token: Token(77), ask: Lane::ask(SECOND, 257), op });
    for _ in 0..3 {
        let (_, held) = lane.ring.held_back.as_ref().unwrap();
        let questions: Vec<&Envelope> =
            held.iter().filter(|sent| matches!(sent.message, Message::AskFast { .. })).collect();
        let [question] = questions[..] else { panic!("{} questions", questions.len()) };
        let Message::AskFast { shard, stamp } = question.message else { unreachable!() };
        let answer = Message::FastHeld { shard, stamp, held: false };
        let answer = Envelope { from: question.to, to: question.from, message: answer, ..question.clone() };
        lane.ring.handle(leader, Event::Message(answer));
        lane.ring.deliver();
    }
    let (_, held) = lane.ring.held_back.take().unwrap();
    lane.ring.queue.extend(held);
    (0..20).for_each(|_| lane.ring.tick());
    assert_eq!(lane.ring.answers[&Token(77)], Ok(Reply::Data { bytes: bytes(2, 1) }));
    lane.check_even([2, 1, 1, 1]);
}
