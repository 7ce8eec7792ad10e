//! Blocks that power cuts took from some of three members, and the members from which the leader reads them.

use crate::*;
use bytes::Bytes;
use hekate_brick::storage::{MemoryStorage, Storage};
use hekate_brick::{Amount, Brick, BrickSettings, Identity, LogEntry, block_checksum};
use hekate_proto::map::{Member, View};
use hekate_proto::*;
use std::sync::Arc;

/// The room that a member with an empty disk reports.
pub(super) const MUCH_ROOM: Amount = Amount { bytes: 1 << 30, files: 1 << 20 };

const RING: RingId = RingId(1);
const NUMBER: PartitionNumber = PartitionNumber(0);
const SHARD: ShardId = ShardId { volume: VolumeId(1), data: DataId(7), index: 0 };
const LOST: BlockAt = BlockAt { shard: SHARD, block: 0 };

/// The leader, brick 0, in memory. The test acts as its members 1 and 2.
pub(super) struct Led {
    storage: MemoryStorage,
    brick: Brick,
    views: Vec<View>,
    pub(super) leader: Partition,
}

fn block(of: u8) -> Bytes {
    Bytes::from(vec![of; BLOCK_BYTES])
}

impl Led {
    /// A leader that has one shard of one block, and has lost the block.
    pub(super) fn new() -> Self {
        Self::having_lost(vec![LOST])
    }

    fn having_lost(lost: Vec<BlockAt>) -> Self {
        let settings = BrickSettings {
            journal_segments: 4,
            segment_bytes: 512 << 10,
            index_cache_bytes: 1 << 20,
            reserve_bytes: 0,
        };
        let identity = Identity::new(BrickId(0), "c", settings);
        let storage = MemoryStorage::new();
        Brick::create_on(&storage, &identity).unwrap();
        let brick = Brick::open_on(Arc::new(storage.clone()), &identity, Incarnation(1), false).unwrap().0;
        let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(1) };
        let record = ShardRecord { stamp, length: BLOCK_BYTES as u32, home_blocks: 1, reserved_blocks: 0 };
        let run = BlockRun { first: 0, checksums: vec![block_checksum(SHARD, 0, &block(9))] };
        let changes = vec![Change::WriteBlocks { shard: SHARD, record, run, bytes: block(9) }];
        let (session, op_id, epoch, sequence) = (SessionId(1), OpId(1), Epoch(1), Sequence(1));
        brick
            .append(&LogEntry::new(Record { ring: RING, partition: NUMBER, epoch, sequence, session, op_id, changes }))
            .unwrap();
        let member = |brick| Member { brick: BrickId(brick), incarnation: Incarnation(1) };
        let views = vec![View::new(epoch, BrickId(0), (0..3).map(member).collect())];
        let around = Around { brick: &brick, views: &views, now: Time(0), elapsed: std::time::Duration::ZERO };
        let own = Address { partition: NUMBER, brick: BrickId(0) };
        let leader = Partition::new(RING, own, &around, lost).unwrap();
        Self { storage, brick, views, leader }
    }

    /// Returns the messages that the leader sends.
    pub(super) fn handle(&mut self, event: Event) -> Vec<Envelope> {
        let (around, mut out) = (
            Around { brick: &self.brick, views: &self.views, now: Time(1), elapsed: std::time::Duration::ZERO },
            Out::default(),
        );
        self.leader.handle(event, &around, &mut out);
        out.sends
    }

    /// Returns the members that the leader asks for the block.
    fn tell(&mut self, event: Event) -> Vec<BrickId> {
        let asked = |sent: Envelope| (sent.message == Message::ReadBlock { at: LOST }).then_some(sent.to.brick);
        self.handle(event).into_iter().filter_map(asked).collect()
    }

    pub(super) fn said(from: u128, message: Message) -> Event {
        let at = |brick| Address { partition: NUMBER, brick: BrickId(brick) };
        Event::Message(Envelope { ring: RING, from: at(from), to: at(0), epoch: Epoch(1), message })
    }

    fn hear(&mut self, from: u128, message: Message) -> Vec<BrickId> {
        self.tell(Self::said(from, message))
    }

    fn answers(&mut self, from: u128, bytes: Option<Bytes>) -> Vec<BrickId> {
        self.hear(from, Message::Block { at: LOST, bytes, length: BLOCK_BYTES as u32 })
    }

    fn position(lost: Vec<BlockAt>) -> Message {
        let (epoch, sequence, room, lists) = (Epoch(1), Sequence(1), MUCH_ROOM, Vec::new());
        Message::Position { epoch, sequence, room, lost, heal: None, lists }
    }

    /// All members come with all records, and report that they have all blocks.
    fn levelled(&mut self) -> Vec<BrickId> {
        self.tell(Event::Start);
        [self.hear(1, Self::position(Vec::new())), self.hear(2, Self::position(Vec::new()))].concat()
    }

    fn content(&self) -> u8 {
        self.brick.read_shard(RING, SHARD, 0, 1).unwrap()[0]
    }

    /// The number of records in the log after the first.
    fn settled(&self) -> usize {
        self.brick.records_since(RING, NUMBER, Sequence(1)).unwrap().all().unwrap().len()
    }
}

#[test]
fn a_lost_block_is_asked_of_every_member() {
    let mut led = Led::new();
    assert_eq!(led.levelled(), [BrickId(1)]);
    assert_eq!(led.answers(1, None), [BrickId(2)], "the member was sent the record without the bytes");
    assert_eq!((led.settled(), led.answers(2, Some(block(5)))), (0, vec![]));
    assert_eq!(led.content(), 5);
}

#[test]
fn a_member_that_says_twice_that_it_lacks_a_block_does_not_speak_for_the_others() {
    let mut led = Led::new();
    led.levelled();
    led.answers(1, None);
    led.answers(1, None);
    led.answers(1, None);
    (0..3).for_each(|_| drop(led.tell(Event::Tick)));
    assert_eq!((led.settled(), led.content()), (0, 9), "nothing is reconciled");
    led.answers(2, Some(block(5)));
    assert_eq!(led.content(), 5);
}

#[test]
fn what_no_member_has_is_zeros() {
    let mut led = Led::new();
    led.levelled();
    led.answers(1, None);
    led.answers(2, None);
    // First a record clears the slots, so that no write counts as done by its slot alone. Then all are asked again.
    led.tell(Event::Tick);
    led.answers(1, None);
    led.answers(2, None);
    led.tell(Event::Tick);
    assert_eq!((led.settled(), led.content()), (1, 0));
}

#[test]
fn what_no_member_has_is_zeros_though_nobody_is_heard_twice() {
    let mut led = Led::new();
    led.levelled();
    led.answers(1, None);
    led.answers(2, None);
    (0..3).for_each(|_| drop(led.tell(Event::Tick)));
    assert_eq!((led.settled(), led.content()), (1, 0));
}

/// The slot may be that of a write whose bytes are lost: a client that repeats it has it done again.
#[test]
fn no_slot_says_that_a_write_is_done_once_all_have_lost_some_bytes() {
    let mut led = Led::new();
    let key = Key::session(RING, NUMBER.first_position(1), SessionId(1), 3);
    let stamp = Stamp { count: 1, session: SessionId(1), op: OpId(3) };
    let op_id = OpId(3 + 2 * SESSION_SLOTS as u64);
    let record = SessionRecord { op_id, reply: Reply::Written { stamp, fast: None }.to_bytes() };
    let (session, epoch, sequence) = (SessionId(1), Epoch(1), Sequence(0));
    let changes = vec![Change::Put { key: key.clone(), value: record.to_bytes() }];
    let record = Record { ring: RING, partition: NUMBER, epoch, sequence, session, op_id, changes };
    led.brick.append(&LogEntry::new(record)).unwrap();
    led.levelled();
    led.answers(1, None);
    led.answers(2, None);
    let slot = SessionRecord::from_bytes(led.brick.get(&key).unwrap().unwrap()).unwrap();
    assert_eq!(slot, SessionRecord { op_id: OpId(3 + SESSION_SLOTS as u64), reply: Reply::Done.to_bytes() });
    assert_eq!(led.content(), 9, "its bytes become zeros after that");
}

#[test]
fn what_a_member_has_lost_it_gets_from_the_leader() {
    let mut led = Led::having_lost(Vec::new());
    led.tell(Event::Start);
    assert_eq!([led.hear(1, Led::position(vec![LOST])), led.hear(2, Led::position(Vec::new()))].concat(), []);
    let records = led.brick.records_since(RING, NUMBER, Sequence(1)).unwrap().all().unwrap();
    // The count is greater: bricks take a count that is not above the last synced one for synced.
    let brings = |change: &Change| {
        let Change::WriteBlocks { bytes, record, .. } = change else { return false };
        *bytes == block(9) && record.stamp.count > 1
    };
    assert!(records.iter().any(|entry| entry.record.changes.iter().any(brings)), "{records:?}");
}

/// A member comes back while another one is sent records: the record that reconciles the block would come before one
/// that this member lacks.
#[test]
fn a_lost_block_is_settled_once_all_members_have_all_records() {
    let mut led = Led::new();
    led.tell(Event::Start);
    led.hear(1, Led::position(Vec::new()));
    let (epoch, sequence, room, lost, lists) = (Epoch(1), Sequence(0), MUCH_ROOM, Vec::new(), Vec::new());
    led.hear(2, Message::Position { epoch, sequence, room, lost, heal: None, lists });
    led.tell(Event::Up { bricks: vec![BrickId(1)] });
    assert_eq!(led.hear(1, Led::position(Vec::new())), []);
    let held = Message::Held { sequence: Sequence(1), room };
    assert_eq!(led.hear(2, held), [BrickId(1)], "the block is asked for");
    led.answers(1, Some(block(5)));
    assert_eq!(led.content(), 5);
}

/// The member that had lost the block dies before the block is reconciled. In the next view no member lacks it.
#[test]
fn what_a_member_had_lost_the_leader_has_still() {
    let mut led = Led::having_lost(Vec::new());
    led.tell(Event::Start);
    led.hear(1, Led::position(vec![LOST]));
    let member = Member { brick: BrickId(0), incarnation: Incarnation(1) };
    led.views = vec![View { opened: false, ..View::new(Epoch(2), BrickId(0), vec![member]) }];
    led.tell(Event::View);
    led.views[0].opened = true;
    led.tell(Event::View);
    (0..5).for_each(|_| drop(led.tell(Event::Tick)));
    assert_eq!(led.content(), 9);
}

/// Otherwise the partition is never served.
#[test]
fn a_lost_block_for_which_there_is_no_room_is_asked_for_again() {
    let mut led = Led::new();
    assert_eq!(led.levelled(), [BrickId(1)]);
    super::closing::fill(&led.brick, NUMBER);
    assert_eq!((led.answers(1, Some(block(5))), led.content()), (vec![], 9));
    led.brick.retain_from(led.brick.end());
    led.brick.checkpoint().unwrap();
    assert_eq!(led.tell(Event::Room), [BrickId(1)]);
    led.answers(1, Some(block(5)));
    assert_eq!(led.content(), 5);
}

/// The leader, alone in its view, was sent the record by a replica that had lost its bytes (rule L20): the learner
/// would be stuck at that block for ever.
#[test]
fn what_a_learner_has_lost_and_the_leader_cannot_read_is_zeros() {
    let mut led = Led::having_lost(Vec::new());
    led.brick.checkpoint().unwrap();
    let file = led.storage.open(&hekate_brick::data_file_path(SHARD), false).unwrap();
    file.write_at(&[&[7; 100]], 0).unwrap();
    assert!(led.brick.read_shard(RING, SHARD, 0, 1).is_err());
    let [one, other] = [0, 1].map(|brick| Member { brick: BrickId(brick), incarnation: Incarnation(1) });
    led.views = vec![View { learners: vec![other], ..View::new(Epoch(1), one.brick, vec![one]) }];
    let around = Around { brick: &led.brick, views: &led.views, now: Time(0), elapsed: std::time::Duration::ZERO };
    let own = Address { partition: NUMBER, brick: one.brick };
    led.leader = Partition::new(RING, own, &around, Vec::new()).unwrap();
    led.tell(Event::Start);
    led.hear(1, Led::position(vec![LOST]));
    (0..5).for_each(|_| drop(led.tell(Event::Tick)));
    assert_eq!(led.content(), 0);
}

/// Otherwise the brick counts the block as reconciled, and no leader asks for it after a restart.
#[test]
fn members_have_agreed_on_a_lost_block_once_all_have_it() {
    let mut led = Led::new();
    led.levelled();
    assert!(!led.leader.has_settled_lost());
    led.answers(1, Some(block(5)));
    let sequence = led.brick.position(RING, NUMBER).sequence;
    led.hear(1, Message::Held { sequence, room: MUCH_ROOM });
    assert!(!led.leader.has_settled_lost(), "a member lacks it");
    led.hear(2, Message::Held { sequence, room: MUCH_ROOM });
    assert!(led.leader.has_settled_lost());
}

/// A replica of brick 0 in a view that brick 1 leads. It has the shard of one block at home.
fn following() -> Led {
    let mut led = Led::having_lost(Vec::new());
    let members = [0, 1].map(|brick| Member { brick: BrickId(brick), incarnation: Incarnation(1) });
    led.views = vec![View::new(Epoch(1), BrickId(1), members.to_vec())];
    let around = Around { brick: &led.brick, views: &led.views, now: Time(0), elapsed: std::time::Duration::ZERO };
    let own = Address { partition: NUMBER, brick: BrickId(0) };
    led.leader = Partition::new(RING, own, &around, Vec::new()).unwrap();
    led
}

/// What a record says of a write of the shard's second block.
fn second_block(count: u64, of: u8) -> (ShardRecord, BlockRun) {
    let stamp = Stamp { count, session: SessionId(1), op: OpId(1) };
    let record = ShardRecord { stamp, length: 2 * BLOCK_BYTES as u32, home_blocks: 2, reserved_blocks: 0 };
    (record, BlockRun { first: 1, checksums: vec![block_checksum(SHARD, 1, &block(of))] })
}

impl Led {
    /// Brick 1 sends a record of its journal, and has no bytes of fresh blocks.
    fn is_sent(&mut self, sequence: u64, change: Change) {
        let (epoch, sequence, session, op_id) = (Epoch(1), Sequence(sequence), SessionId(1), OpId(1));
        let record = Record { ring: RING, partition: NUMBER, epoch, sequence, session, op_id, changes: vec![change] };
        self.handle(Self::said(1, Message::Append { entry: LogEntry::new(record), fresh: Vec::new(), copied: true }));
    }

    /// Brick 1 dies, and this replica goes on alone.
    fn goes_on_alone(&mut self) {
        let member = Member { brick: BrickId(0), incarnation: Incarnation(1) };
        self.views = vec![View { opened: false, ..View::new(Epoch(2), BrickId(0), vec![member]) }];
        self.tell(Event::View);
        self.views[0].opened = true;
        self.tell(Event::View);
        (0..5).for_each(|_| drop(self.tell(Event::Tick)));
    }

    fn second(&self) -> Result<Option<Bytes>> {
        self.brick.read_block(RING, SHARD, 1)
    }
}

/// The leader lost the block in a power cut, and the member lost the record. Otherwise reads of it fail as if its bytes
/// were damaged, and a repeated write counts as done by its slot.
#[test]
fn a_block_whose_record_came_without_its_bytes_is_reconciled_by_the_next_leader() {
    let mut led = following();
    let (record, run) = second_block(2, 8);
    led.is_sent(2, Change::FreshBlocks { shard: SHARD, record, run });
    assert!(matches!(led.second(), Err(Error::Damaged { .. })), "{:?}", led.second());
    let lost = |sent: Envelope| matches!(sent.message, Message::Position { lost, .. } if lost.len() == 1);
    assert!(led.handle(Led::said(1, Message::Ask { term: 1 })).into_iter().any(lost), "the leader is told");
    led.goes_on_alone();
    assert_eq!((led.second(), led.content()), (Ok(Some(block(0))), 9));
}

/// A block is sent without its bytes also if a later record overwrites it. Damage of the latter's bytes stays damage.
#[test]
fn what_a_later_record_wrote_is_not_lost() {
    let mut led = following();
    let (record, run) = second_block(2, 8);
    led.is_sent(2, Change::FreshBlocks { shard: SHARD, record, run });
    let (record, run) = second_block(3, 5);
    led.is_sent(3, Change::WriteBlocks { shard: SHARD, record, run, bytes: block(5) });
    assert_eq!(led.second(), Ok(Some(block(5))));
    led.brick.checkpoint().unwrap();
    let file = led.storage.open(&hekate_brick::data_file_path(SHARD), false).unwrap();
    file.write_at(&[&[7; 100]], BLOCK_BYTES as u64).unwrap();
    led.goes_on_alone();
    assert!(matches!(led.second(), Err(Error::Damaged { .. })), "{:?}", led.second());
}
