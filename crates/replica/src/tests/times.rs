//! Times of files that are overwritten on the fast lane: acknowledged before all members have them, and never lost.

use super::heal::form;
use super::*;

/// A file with bytes in shards, and one write recorded on the fast lane.
struct Written {
    ring: TestRing,
    inode: InodeId,
    leader: Address,
    op_id: u64,
}

impl Written {
    fn new() -> Self {
        let mut ring = open(&storages());
        let create = NameOp::Create {
            dir: ROOT,
            name: Name::new("f".into()).unwrap(),
            node: NewNode::File,
            mode: 0o644,
            uid: 1,
            gid: 1,
            umask: 0,
            exclusive: true,
            seed: 7,
        };
        let Ok(Reply::Node { attr, .. }) = ring.name_op(create) else { panic!("no file") };
        let inode = attr.id;
        ring.execute(Op::Data { op: DataOp::Spill { inode } }).unwrap();
        let leader = ring.leader(inode.position());
        let mut written = Self { ring, inode, leader, op_id: 1 << 20 };
        assert_eq!(written.tell(false, 100_000), Some(Ok(Reply::Done)));
        assert_eq!(written.tell(true, 100_000), Some(Ok(Reply::Done)));
        written
    }

    fn event(&mut self, fast: bool, end: u64) -> (Token, Event) {
        self.op_id += 256;
        self.ring.clock += 1_000_000;
        let layout_version = self.attr().layout.version;
        let op = DataOp::Wrote { inode: self.inode, layout_version, end, reach: end, drop_set_id: false, fast, age: 0 };
        let ask = Ask { op_id: OpId(self.op_id), durable: true, now: Time(self.ring.clock), ..self.ring.ask() };
        let token = Token(self.op_id);
        (token, Event::Request { token, ask, op: Op::Data { op } })
    }

    fn tell(&mut self, fast: bool, end: u64) -> Option<Result<Reply>> {
        let (token, event) = self.event(fast, end);
        self.ring.tell(self.leader, event);
        self.ring.answers.remove(&token)
    }

    /// Sends a `Wrote` to the leader. The members get no messages.
    fn tell_alone(&mut self, fast: bool, end: u64) -> Option<Result<Reply>> {
        let (token, event) = self.event(fast, end);
        self.ring.handle(self.leader, event);
        self.ring.queue.clear();
        self.ring.answers.remove(&token)
    }

    /// The inode on the leader.
    fn attr(&self) -> InodeRecord {
        self.attr_on(self.leader)
    }

    fn attr_on(&self, at: Address) -> InodeRecord {
        let key = Key::inode(RING, VOLUME, self.inode, Kind::Inode);
        InodeRecord::from_bytes(self.ring.bricks[at.brick.0 as usize].get(&key).unwrap().unwrap()).unwrap()
    }

    fn is_marked(&self, at: Address) -> bool {
        let key = Key::writing(RING, VOLUME, self.inode);
        self.ring.bricks[at.brick.0 as usize].get(&key).unwrap().is_some()
    }

    fn follower(&self) -> Address {
        let view = &self.ring.views[self.leader.partition.0 as usize];
        let other = view.members.iter().map(|member| member.brick).find(|brick| *brick != self.leader.brick).unwrap();
        Address { brick: other, ..self.leader }
    }
}

#[test]
fn times_are_answered_before_others_have_them_and_the_next_leader_knows_no_older_ones() {
    let mut written = Written::new();
    let follower = written.follower();
    assert!(written.is_marked(written.leader) && written.is_marked(follower));
    let before = written.attr();
    assert_eq!(written.tell_alone(true, 100_000), Some(Ok(Reply::Done)), "at once");
    let wrote_at = Time(written.ring.clock);
    assert_eq!(written.attr(), before, "no record has it");
    let number = written.leader.partition.0;
    form(&mut written.ring, number, follower.brick.0, &[follower.brick.0], &[]);
    let now = written.attr_on(follower);
    assert!(now.mtime >= wrote_at && now.ctime >= wrote_at && now.change > before.change + 1, "{now:?} {wrote_at:?}");
    assert!(written.is_marked(follower), "a session may answer older times");
    written.ring.clock += 6_000_000_000;
    (0..10).for_each(|_| written.ring.tick());
    assert!(!written.is_marked(follower));
    written.ring.rest();
}

/// P8, for a leader that begins while a session may still answer the times from before the leader before it.
#[test]
fn each_leader_hides_times_that_a_session_may_not_know() {
    let mut written = Written::new();
    let (first, second, session) = (written.leader, written.follower(), written.ring.ask().session);
    written.ring.sessions.push(session);
    let number = first.partition.0;
    let get = Op::Inode { op: InodeOp::GetAttr { inode: written.inode } };
    let (name, node) = (Name::new("f".into()).unwrap(), NewNode::File);
    let (dir, mode, uid, gid, umask, exclusive, seed) = (ROOT, 0o644, 1, 1, 0, false, 7);
    let open = Op::Name { op: NameOp::Create { dir, name, node, mode, uid, gid, umask, exclusive, seed } };
    for (token, leads, members) in [(Token(1), second, vec![second, first]), (Token(2), first, vec![first])] {
        let members: Vec<u128> = members.into_iter().map(|member| member.brick.0).collect();
        form(&mut written.ring, number, leads.brick.0, &members, &[]);
        let ask = Ask { session: SessionId(session.0 + 1), now: Time(written.ring.clock), ..written.ring.ask() };
        written.ring.tell(leads, Event::Request { token, ask, op: get.clone() });
        assert_eq!(written.ring.answers.remove(&token), None, "{leads:?}");
        let (token, ask) = (Token(token.0 + 2), Ask { op_id: OpId(token.0 << 30), ..ask });
        written.ring.tell(leads, Event::Request { token, ask, op: open.clone() });
        assert_eq!(written.ring.answers.remove(&token), None, "open(2) with O_CREAT: {leads:?}");
    }
    let term = written.ring.partitions[&first].pledge_term(session, Duration::ZERO).unwrap();
    written.ring.tell(first, Event::Forgot { session, volume: VOLUME, term, mapped: Vec::new() });
    (0..10).for_each(|_| written.ring.tick());
    for token in [Token(2), Token(4)] {
        let shown = written.ring.answers.remove(&token);
        assert!(matches!(shown, Some(Ok(Reply::Node { .. }))), "{token:?}: {shown:?}");
    }
}

/// Each read of the times shows what all members have by then.
#[test]
fn kept_times_are_in_each_reply() {
    let mut written = Written::new();
    let (follower, before) = (written.follower(), written.attr());
    for _ in 0..3 {
        assert_eq!(written.tell(true, 100_000), Some(Ok(Reply::Done)));
    }
    let wrote_at = Time(written.ring.clock);
    let asks = [
        Op::Inode { op: InodeOp::GetAttr { inode: written.inode } },
        Op::Name { op: NameOp::Lookup { dir: ROOT, name: Name::new("f".into()).unwrap() } },
    ];
    for op in asks {
        let found = written.ring.read(op);
        let Ok(Reply::Node { attr, .. }) = found else { panic!("{found:?}") };
        assert!(attr.mtime >= wrote_at && attr.change == before.change + 3, "{attr:?}");
        assert_eq!(written.attr_on(follower).mtime, attr.mtime, "all members have it");
    }
    // One record: otherwise each read would cost a record.
    let end = written.ring.bricks[0].end();
    let _ = written.ring.read(Op::Inode { op: InodeOp::GetAttr { inode: written.inode } }).unwrap();
    assert_eq!(written.ring.bricks[0].end(), end);
}

/// open(2) with O_CREAT, of a file that exists.
#[test]
fn opening_a_file_by_its_name_returns_kept_times() {
    let mut written = Written::new();
    assert_eq!(written.tell(true, 100_000), Some(Ok(Reply::Done)));
    let (wrote_at, name, node) = (Time(written.ring.clock), Name::new("f".into()).unwrap(), NewNode::File);
    let (dir, mode, uid, gid, umask, exclusive, seed) = (ROOT, 0o644, 1, 1, 0, false, 7);
    written.ring.op_id = 1 << 30;
    let opened = written.ring.name_op(NameOp::Create { dir, name, node, mode, uid, gid, umask, exclusive, seed });
    let Ok(Reply::Node { attr, .. }) = opened else { panic!("{opened:?}") };
    assert!(attr.id == written.inode && attr.mtime >= wrote_at, "{attr:?}");
    assert_eq!(written.attr_on(written.follower()).mtime, attr.mtime, "all members have it");
}

#[test]
fn what_else_changes_a_file_keeps_the_times_of_its_writes() {
    let mut written = Written::new();
    let before = written.attr();
    assert_eq!(written.tell(true, 100_000), Some(Ok(Reply::Done)));
    let wrote_at = Time(written.ring.clock);
    let changes = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
    written.ring.op_id = written.op_id;
    let op = Op::Inode { op: InodeOp::SetAttr { inode: written.inode, changes } };
    written.ring.execute_at(written.leader, op).unwrap();
    let now = written.attr();
    assert!(now.mtime >= wrote_at && now.mode == 0o600 && now.change == before.change + 2, "{now:?}");
    written.ring.rest();
}

/// `cp -p` and rsync write the bytes and then set the times of the original.
#[test]
fn times_that_somebody_sets_are_not_renewed() {
    let mut written = Written::new();
    let follower = written.follower();
    assert_eq!(written.tell(true, 100_000), Some(Ok(Reply::Done)));
    let mtime = Time(1234);
    let changes = AttrChanges { mtime: Some(SetTime::At { time: mtime }), ..AttrChanges::default() };
    let op = Op::Inode { op: InodeOp::SetAttr { inode: written.inode, changes } };
    written.ring.op_id = written.op_id;
    written.ring.execute_at(written.leader, op).unwrap();
    let number = written.leader.partition.0;
    form(&mut written.ring, number, follower.brick.0, &[follower.brick.0], &[]);
    assert_eq!(written.attr_on(follower).mtime, mtime);
    written.ring.rest();
}

#[test]
fn what_is_more_than_times_waits_for_all() {
    let mut written = Written::new();
    assert_eq!(written.tell_alone(true, 100_001), None, "it makes the file longer");
    let mut written = Written::new();
    assert_eq!(written.tell_alone(false, 100_000), None, "the write is on the leader's lane");
}

/// A truncate left shards behind the size: without a record the new size would be lost.
#[test]
fn a_write_that_makes_a_file_longer_that_was_cut_waits_for_all() {
    let mut written = Written::new();
    let changes = AttrChanges { size: Some(50_000), ..AttrChanges::default() };
    // The op uses another slot.
    written.ring.op_id = written.op_id + 1;
    let op = Op::Inode { op: InodeOp::SetAttr { inode: written.inode, changes } };
    written.ring.execute_at(written.leader, op).unwrap();
    assert_eq!(written.tell(true, 50_000), Some(Ok(Reply::Done)));
    assert!(written.is_marked(written.leader) && written.is_marked(written.follower()));
    assert_eq!(written.tell_alone(true, 60_000), None);
    assert_eq!(written.attr().size, 60_000);
}

#[test]
fn a_file_that_nobody_writes_is_noted_no_more() {
    let mut written = Written::new();
    let follower = written.follower();
    (0..10).for_each(|_| written.ring.tick());
    assert!(!written.is_marked(written.leader) && !written.is_marked(follower));
    assert_eq!(written.tell_alone(true, 100_000), None, "the marker is set again, and all members must have it");
    assert!(written.is_marked(written.leader) && !written.is_marked(follower));
    assert_eq!(written.tell_alone(true, 100_000), None, "the other member lacks the marker");
}

/// A listing shows them too, without waiting for the next tick.
#[test]
fn every_lookup_returns_kept_times_at_once() {
    let mut written = Written::new();
    let list = NameOp::List { dir: ROOT, after: None, limit: 10, attributes: true, touch: false };
    let list_at = written.ring.leader(ROOT.position());
    let asks = [
        (written.leader, Op::Inode { op: InodeOp::GetAttr { inode: written.inode } }),
        (list_at, Op::Name { op: list }),
    ];
    for (number, (at, op)) in asks.into_iter().enumerate() {
        assert_eq!(written.tell(true, 100_000), Some(Ok(Reply::Done)));
        let (wrote_at, token) = (Time(written.ring.clock), Token(1 << 50 | number as u64));
        let ask = Ask { op_id: OpId(1 << 40 | number as u64), ..written.ring.ask() };
        written.ring.tell(at, Event::Request { token, ask, op });
        let attr = match written.ring.answers.remove(&token) {
            Some(Ok(Reply::Node { attr, .. })) => attr,
            Some(Ok(Reply::List { entries, .. })) => entries[0].attr.clone().unwrap(),
            other => panic!("not at once: {other:?}"),
        };
        assert!(attr.id == written.inode && attr.mtime >= wrote_at, "{attr:?} {wrote_at:?}");
    }
}

/// If the view never begins others lead without that record.
#[test]
fn no_note_is_taken_away_before_the_view_begins() {
    let mut written = Written::new();
    let (leader, number) = (written.leader, written.leader.partition.0);
    let before = written.ring.views[number as usize].clone();
    super::heal::set_view(&mut written.ring, number, View { epoch: Epoch(2), opened: false, ..before.clone() });
    let last = |ring: &TestRing| ring.bricks[leader.brick.0 as usize].position(RING, leader.partition);
    let position = last(&written.ring);
    (0..20).for_each(|_| written.ring.tick());
    assert_eq!(last(&written.ring), position);
    super::heal::set_view(&mut written.ring, number, View { epoch: Epoch(2), ..before });
    written.ring.rest();
    assert!(!written.is_marked(leader));
}

/// The request was delayed in a connection that its client had given up.
#[test]
fn a_write_that_comes_once_more_does_not_undo_times_that_were_set_since() {
    let mut written = Written::new();
    let (token, event) = written.event(true, 100_000);
    written.ring.tell(written.leader, event.clone());
    assert_eq!(written.ring.answers.remove(&token), Some(Ok(Reply::Done)));
    let changes = AttrChanges { mtime: Some(SetTime::At { time: Time(1234) }), ..AttrChanges::default() };
    let op = Op::Inode { op: InodeOp::SetAttr { inode: written.inode, changes } };
    // The op uses another slot.
    written.ring.op_id = written.op_id + 1;
    written.ring.execute_at(written.leader, op).unwrap();
    assert_eq!(written.attr().mtime, Time(1234));
    written.ring.tell(written.leader, event);
    (0..10).for_each(|_| written.ring.tick());
    assert_eq!(written.attr().mtime, Time(1234));
}

/// What a session wrote under a grant shows once it has said so, and counts as written until then.
#[test]
fn a_read_by_another_session_waits_for_the_word_of_who_writes_under_a_grant() {
    let mut written = Written::new();
    let (volume, inode, session) = (VOLUME, written.inode, written.ring.ask().session);
    let (token, mut event) = written.event(true, 100_000);
    if let Event::Request { ask, .. } = &mut event {
        ask.pledge = true;
    }
    written.ring.tell(written.leader, event);
    let Some(Ok(Reply::Pledged { pledges, .. })) = written.ring.answers.remove(&token) else { panic!("no grant") };
    let (term, number) = (pledges[0].term, pledges[0].number);
    let before = written.attr();
    written.ring.clock += 5_000_000_000;
    let wrote_at = Time(written.ring.clock);
    written.ring.clock += 1_000_000_000;
    let (other, op) = (SessionId(session.0 + 1), Op::Inode { op: InodeOp::GetAttr { inode } });
    let ask = Ask { session: other, now: Time(written.ring.clock), ..written.ring.ask() };
    let token = Token(1 << 40);
    written.ring.tell(written.leader, Event::Request { token, ask, op });
    assert_eq!(written.ring.answers.remove(&token), None, "it waits");
    let pledges = vec![Pledge { about: Pledged::Times { inode }, number }];
    let reports = vec![Report { inode, age: 1_000_000_000, end: 0, layout_version: 0 }];
    written.ring.tell(written.leader, Event::Returned { session, volume, term, pledges, reports });
    let Some(Ok(Reply::Node { attr, .. })) = written.ring.answers.remove(&token) else { panic!("no answer") };
    assert!(attr.mtime == wrote_at && attr.change > before.change, "{attr:?} {before:?}");
    written.ring.rest();
}
