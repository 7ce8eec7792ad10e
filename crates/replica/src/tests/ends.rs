//! Ends of files that sessions move under grants: reported, asked of the shards, and never shown before they are known.

use super::heal::form;
use super::*;

const ANN: SessionId = SessionId(1);
const BEN: SessionId = SessionId(2);

/// A file of 100 bytes, of which Ann may move the end.
struct Grown {
    ring: TestRing,
    inode: InodeId,
    layout: Layout,
    leader: Address,
    term: u64,
    number: u64,
    limit: u64,
    op_id: u64,
}

impl Grown {
    fn new() -> Self {
        let mut ring = open(&storages());
        let inode = create_file(&mut ring).id;
        let spilled = ring.execute(Op::Data { op: DataOp::Spill { inode } }).unwrap();
        let Reply::Node { attr, .. } = spilled else { panic!("{spilled:?}") };
        let leader = ring.leader(inode.position());
        let (layout, op_id) = (attr.layout, 1 << 20);
        let mut grown = Self { ring, inode, layout, leader, term: 0, number: 0, limit: 0, op_id };
        let given = grown.grow(100).expect("no grant");
        let GivenFor::Size { limit } = given.given_for else { panic!("{given:?}") };
        (grown.term, grown.number, grown.limit) = (given.term, given.number, limit);
        grown
    }

    fn ask(&mut self, session: SessionId) -> Ask {
        self.op_id += 256;
        self.ring.clock += 1_000_000;
        Ask { session, op_id: OpId(self.op_id), now: Time(self.ring.clock), ..self.ring.ask() }
    }

    /// Ann writes to the shards.
    fn write(&mut self, offset: u64, length: usize) {
        for (shard, from, count) in self.layout.shard_runs(VOLUME, offset, length) {
            let (data, index, bytes) = (shard.data, shard.index, Bytes::from(vec![7; count]));
            let op = DataOp::WriteShard { data, index, offset: from as u32, bytes, follow: None, fast: false };
            self.ring.execute(Op::Data { op }).unwrap();
        }
    }

    fn send(&mut self, ask: Ask, op: Op) -> Token {
        let token = Token(self.op_id);
        self.ring.tell(self.leader, Event::Request { token, ask, op });
        token
    }

    /// Ann says that the file ends here, and asks for a grant.
    fn grow(&mut self, end: u64) -> Option<GivenPledges> {
        let (inode, layout_version, fast) = (self.inode, self.layout.version, false);
        let op = DataOp::Wrote { inode, layout_version, end, reach: end, drop_set_id: false, fast, age: 0 };
        let ask = Ask { pledge: true, ..self.ask(ANN) };
        let token = self.send(ask, Op::Data { op });
        match self.ring.answers.remove(&token)?.unwrap() {
            Reply::Pledged { pledges, .. } => pledges.into_iter().next(),
            _ => None,
        }
    }

    /// Ben asks for the attributes.
    fn look(&mut self) -> Token {
        let ask = self.ask(BEN);
        self.send(ask, Op::Inode { op: InodeOp::GetAttr { inode: self.inode } })
    }

    fn size_at(&mut self, token: Token) -> Option<u64> {
        match self.ring.answers.remove(&token)?.unwrap() {
            Reply::Node { attr, .. } => Some(attr.size),
            other => panic!("{other:?}"),
        }
    }

    fn give_back(&mut self, end: u64, layout_version: u32) {
        let pledges = vec![Pledge { about: Pledged::Times { inode: self.inode }, number: self.number }];
        let reports = vec![Report { inode: self.inode, age: 0, end, layout_version }];
        let returned = Event::Returned { session: ANN, volume: VOLUME, term: self.term, pledges, reports };
        self.ring.tell(self.leader, returned);
    }

    fn record(&self, at: Address) -> InodeRecord {
        let key = Key::inode(RING, VOLUME, self.inode, Kind::Inode);
        InodeRecord::from_bytes(self.ring.bricks[at.brick.0 as usize].get(&key).unwrap().unwrap()).unwrap()
    }

    fn another_leads(&mut self) {
        let number = self.leader.partition.0;
        let view = self.ring.views[number as usize].clone();
        let other = view.members.iter().map(|member| member.brick).find(|brick| *brick != view.leader).unwrap();
        form(&mut self.ring, number, other.0, &[other.0, view.leader.0], &[]);
        self.leader.brick = other;
    }

    fn marker(&self, at: BrickId) -> Option<Bytes> {
        self.ring.bricks[at.0 as usize].get(&Key::writing(RING, VOLUME, self.inode)).unwrap()
    }

    fn wait(&mut self, ticks: usize) {
        (0..ticks).for_each(|_| self.ring.tick());
    }
}

#[test]
fn others_see_the_end_that_the_session_reports() {
    let mut grown = Grown::new();
    assert!(grown.limit > SHARD_BYTES && grown.record(grown.leader).size_high == grown.limit);
    grown.write(100, 900);
    let looks = grown.look();
    assert_eq!(grown.size_at(looks), None, "it waits");
    grown.give_back(1000, grown.layout.version);
    assert_eq!(grown.size_at(looks), Some(1000));
    let record = grown.record(grown.leader);
    assert_eq!((record.size, record.size_high), (1000, 1000), "there is nothing behind it");
    grown.wait(20);
    grown.number = grown.grow(2000).expect("it may be given again").number;
    grown.give_back(0, grown.layout.version);
    grown.ring.rest();
}

#[test]
fn the_shards_are_asked_if_the_session_ends() {
    let mut grown = Grown::new();
    grown.write(100, 3 * SHARD_BYTES as usize);
    grown.ring.tell(grown.leader, Event::SessionEnded { session: ANN });
    let looks = grown.look();
    grown.wait(10);
    assert_eq!(grown.size_at(looks), Some(100 + 3 * SHARD_BYTES));
    assert!(grown.record(grown.leader).size_high == 100 + 3 * SHARD_BYTES);
    assert!(grown.ring.branches.contains("shards are asked for the end of a file"));
    grown.ring.rest();
}

/// Until then the size is that of the record.
#[test]
fn a_change_waits_for_the_end_too() {
    let mut grown = Grown::new();
    grown.write(100, 50);
    let changes = AttrChanges { size: Some(120), ..AttrChanges::default() };
    let ask = grown.ask(BEN);
    let cuts = grown.send(ask, Op::Inode { op: InodeOp::SetAttr { inode: grown.inode, changes } });
    assert_eq!(grown.size_at(cuts), None);
    grown.give_back(150, grown.layout.version);
    grown.wait(3);
    assert_eq!(grown.size_at(cuts), Some(120));
    assert_ne!(grown.record(grown.leader).layout.version, grown.layout.version, "bytes were cut off");
    grown.ring.rest();
}

#[test]
fn a_new_leader_asks_the_shards_once_the_session_has_forgotten() {
    let mut grown = Grown::new();
    grown.ring.sessions.push(ANN);
    grown.write(100, 900);
    grown.another_leads();
    let looks = grown.look();
    grown.write(1000, 500);
    grown.wait(5);
    assert_eq!(grown.size_at(looks), None, "the session may go on by its old grant");
    let term = grown.ring.partitions[&grown.leader].pledge_term(ANN, Duration::ZERO).unwrap();
    grown.ring.tell(grown.leader, Event::Forgot { session: ANN, volume: VOLUME, term, mapped: Vec::new() });
    grown.wait(5);
    assert_eq!(grown.size_at(looks), Some(1500));
    grown.ring.rest();
}

#[test]
fn an_end_of_an_earlier_layout_does_not_count() {
    let mut grown = Grown::new();
    grown.give_back(1000, grown.layout.version + 1);
    let looks = grown.look();
    grown.wait(3);
    assert_eq!(grown.size_at(looks), Some(100));
    grown.ring.rest();
}

/// A report of an earlier grant may come while the session has a later one.
#[test]
fn an_end_that_is_reported_with_an_earlier_grant_is_recorded() {
    let mut grown = Grown::new();
    let first = grown.number;
    grown.number = grown.grow(200).expect("the same session goes on").number;
    assert!(grown.number > first);
    let (later, version) = (grown.number, grown.layout.version);
    grown.number = first;
    grown.give_back(300, version);
    let looks = grown.look();
    grown.wait(3);
    assert_eq!(grown.size_at(looks), None, "the later grant is out");
    assert_eq!(grown.record(grown.leader).size_high, grown.limit, "and its limit stands");
    grown.number = later;
    grown.give_back(0, version);
    grown.wait(3);
    assert_eq!(grown.size_at(looks), Some(300));
    grown.ring.rest();
}

impl Grown {
    /// Ben says that the file ends here, or that he wrote within it, and asks for a grant.
    fn wrote_by_ben(&mut self, end: u64, fast: bool) -> Token {
        let (inode, layout_version) = (self.inode, self.layout.version);
        let op = DataOp::Wrote { inode, layout_version, end, reach: end, drop_set_id: false, fast, age: 0 };
        let ask = Ask { pledge: true, loose: true, ..self.ask(BEN) };
        self.send(ask, Op::Data { op })
    }
}

/// Otherwise Ben would take an end that is too low for his own, and append over what Ann wrote.
#[test]
fn a_reported_end_is_recorded_before_another_session_moves_it() {
    let mut grown = Grown::new();
    grown.give_back(1000, grown.layout.version);
    let within = grown.wrote_by_ben(50, true);
    assert!(matches!(grown.ring.answers.remove(&within), Some(Ok(Reply::Pledged { .. }))));
    let behind = grown.wrote_by_ben(200, false);
    grown.wait(5);
    assert_eq!(grown.record(grown.leader).size, 1000);
    assert!(!matches!(grown.ring.answers.remove(&behind), Some(Ok(Reply::Pledged { .. }))));
}

#[test]
fn nobody_moves_an_end_while_the_shards_are_asked_for_it() {
    let mut grown = Grown::new();
    grown.write(100, 3 * SHARD_BYTES as usize);
    let shard = ShardId { volume: VOLUME, data: grown.layout.pieces[0].data, index: 1 };
    let at = grown.ring.leader(shard.position());
    grown.ring.held_back = Some((at, Vec::new()));
    grown.ring.tell(grown.leader, Event::SessionEnded { session: ANN });
    let within = grown.wrote_by_ben(50, true);
    assert!(!matches!(grown.ring.answers.remove(&within), Some(Ok(Reply::Pledged { .. }))), "a grant");
    let behind = grown.wrote_by_ben(SHARD_BYTES + 500, false);
    assert_eq!(grown.ring.answers.remove(&behind), None, "it waits");
    let (_, held) = grown.ring.held_back.take().unwrap();
    grown.ring.queue.extend(held);
    grown.ring.deliver();
    grown.wait(20);
    assert_eq!(grown.record(grown.leader).size, 100 + 3 * SHARD_BYTES);
    assert_eq!(grown.ring.answers.remove(&behind), Some(Ok(Reply::Done)));
}

#[test]
fn no_more_is_believed_than_was_granted() {
    let mut grown = Grown::new();
    grown.give_back(u64::MAX, grown.layout.version);
    let looks = grown.look();
    grown.wait(3);
    assert_eq!(grown.size_at(looks), Some(grown.limit));
    grown.ring.rest();
}

/// The room would be taken for bytes that the session wrote.
#[test]
fn there_is_no_grant_over_reserved_room() {
    let mut grown = Grown::new();
    grown.give_back(0, grown.layout.version);
    grown.wait(20);
    let (inode, layout_version, reach) = (grown.inode, grown.layout.version, SHARD_BYTES);
    let op = DataOp::Wrote { inode, layout_version, end: 0, reach, drop_set_id: false, fast: false, age: 0 };
    let ask = grown.ask(ANN);
    grown.send(ask, Op::Data { op });
    grown.wait(20);
    assert!(grown.grow(500).is_none());
    let within = grown.wrote_by_ben(50, true);
    assert!(grown.ring.answers.remove(&within).is_some());
    grown.give_back(0, layout_version);
    let looks = grown.look();
    grown.wait(20);
    assert_eq!(grown.size_at(looks), Some(500));
    let record = grown.record(grown.leader);
    assert_eq!((record.size, record.size_high), (500, SHARD_BYTES), "what was reserved stays");
    grown.ring.rest();
}

/// Otherwise a leader that takes over would show the size of the last record.
#[test]
fn the_marker_stays_while_the_same_session_goes_on() {
    let mut grown = Grown::new();
    for end in [200, 300] {
        grown.grow(end).expect("the same session goes on");
        for member in grown.ring.views[grown.leader.partition.0 as usize].members.clone() {
            assert_eq!(grown.marker(member.brick).as_deref(), Some(&[1][..]), "after {end}");
        }
    }
}

/// A shard may end behind the file, where room is reserved.
#[test]
fn a_new_leader_asks_no_shards_of_a_file_whose_end_nobody_moved() {
    let mut grown = Grown::new();
    grown.give_back(0, grown.layout.version);
    grown.wait(20);
    assert_eq!(grown.marker(grown.leader.brick), None);
    grown.write(SHARD_BYTES, 10);
    let within = grown.wrote_by_ben(50, true);
    assert!(grown.ring.answers.remove(&within).is_some());
    assert_eq!(grown.marker(grown.leader.brick).as_deref(), Some(&[0][..]));
    grown.another_leads();
    let looks = grown.look();
    grown.wait(10);
    assert_eq!(grown.size_at(looks), Some(100));
    assert!(!grown.ring.branches.contains("shards are asked for the end of a file"));
}

#[test]
fn clients_cannot_have_the_shards_asked() {
    let mut grown = Grown::new();
    let ask = grown.ask(BEN);
    let token = grown.send(ask, Op::Data { op: DataOp::FindEnd { inode: grown.inode } });
    grown.give_back(0, grown.layout.version);
    grown.wait(3);
    assert!(matches!(grown.ring.answers.remove(&token), Some(Err(Error::Protocol { .. }))));
    grown.ring.rest();
}

/// Some member may lack the fast write that the shard ends with, and then it is undone.
#[test]
fn an_open_shard_is_closed_before_it_says_where_it_ends() {
    let mut grown = Grown::new();
    grown.write(100, 900);
    let shard = ShardId { volume: VOLUME, data: grown.layout.pieces[0].data, index: 0 };
    let at = grown.ring.leader(shard.position());
    let (data, index) = (shard.data, 0);
    let op = DataOp::WriteShard { data, index, offset: 1000, bytes: vec![7; 10].into(), follow: None, fast: true };
    let ask = grown.ask(ANN);
    let token = Token(grown.op_id);
    grown.ring.tell(at, Event::Request { token, ask, op: Op::Data { op } });
    let written = grown.ring.answers.remove(&token).unwrap().unwrap();
    let Reply::Written { stamp: follow, fast: Some(term) } = written else { panic!("{written:?}") };
    let (offset, bytes, settled) = (1010, vec![7; 500].into(), true);
    let op = DataOp::FastWrite { data, index, offset, bytes, follow, settled, term };
    let ask = grown.ask(ANN);
    let token = Token(grown.op_id);
    grown.ring.tell(at, Event::Request { token, ask, op: Op::Data { op } });
    assert!(grown.ring.answers.remove(&token).unwrap().is_ok(), "the leader takes it, and no other member has it");
    grown.ring.tell(grown.leader, Event::SessionEnded { session: ANN });
    let looks = grown.look();
    grown.wait(10);
    let size = grown.size_at(looks).expect("it is known where the file ends");
    for brick in grown.ring.views[at.partition.0 as usize].members.clone() {
        let record = grown.ring.bricks[brick.brick.0 as usize].shard(RING, shard).unwrap().unwrap();
        assert_eq!((u64::from(record.length), record.stamp.session == ANN), (size, false), "it is closed");
    }
    grown.ring.rest();
}
