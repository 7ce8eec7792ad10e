//! Mapping rights of sessions, at a whole ring: who asks waits, and so does who changes the bytes.

use super::heal::form;
use super::*;

const ANN: SessionId = SessionId(1);
const BEN: SessionId = SessionId(2);

struct Mapped {
    ring: TestRing,
    inode: InodeId,
    leader: Address,
    op_id: u64,
}

impl Mapped {
    fn new() -> Self {
        let mut ring = open(&storages());
        let inode = create_file(&mut ring).id;
        let leader = ring.leader(inode.position());
        Self { ring, inode, leader, op_id: 1 << 20 }
    }

    fn send(&mut self, session: SessionId, pledge: bool, op: Op) -> Token {
        self.op_id += 256;
        self.ring.clock += 1_000_000;
        let ask = Ask { session, op_id: OpId(self.op_id), now: Time(self.ring.clock), pledge, ..self.ring.ask() };
        let token = Token(self.op_id);
        self.ring.tell(self.leader, Event::Request { token, ask, op });
        token
    }

    fn map(&mut self, session: SessionId) -> Token {
        self.send(session, true, Op::Inode { op: InodeOp::Map { inode: self.inode } })
    }

    fn given(&mut self, token: Token) -> Option<GivenPledges> {
        match self.ring.answers.remove(&token)?.unwrap() {
            Reply::Pledged { found: Found::Done, pledges } => pledges.into_iter().next(),
            other => panic!("{other:?}"),
        }
    }

    fn give_back(&mut self, session: SessionId, given: &GivenPledges) {
        let pledges = vec![Pledge { about: Pledged::Mapping { inode: self.inode }, number: given.number }];
        let (volume, term, reports) = (VOLUME, given.term, Vec::new());
        self.ring.tell(self.leader, Event::Returned { session, volume, term, pledges, reports });
    }
}

#[test]
fn sessions_have_the_right_in_the_order_in_which_they_ask() {
    let mut mapped = Mapped::new();
    let first = mapped.map(ANN);
    let first = mapped.given(first).unwrap();
    let (second, third) = (mapped.map(BEN), mapped.map(ANN));
    assert_eq!((mapped.given(second), mapped.given(third).map(|given| given.number)), (None, Some(first.number)));
    mapped.give_back(ANN, &first);
    let given = mapped.given(second).unwrap();
    let fourth = mapped.map(ANN);
    assert_eq!(mapped.given(fourth), None);
    mapped.ring.tell(mapped.leader, Event::SessionEnded { session: BEN });
    assert!(mapped.given(fourth).unwrap().number > given.number);
    let deaf = mapped.send(BEN, false, Op::Inode { op: InodeOp::Map { inode: mapped.inode } });
    assert_eq!(mapped.ring.answers.remove(&deaf), Some(Ok(Reply::Done)), "it could not be told of a recall");
    let gone = Op::Inode { op: InodeOp::Map { inode: InodeId::from_bits(mapped.inode.bits() ^ 1) } };
    let gone = mapped.send(BEN, true, gone);
    assert_eq!(mapped.ring.answers.remove(&gone), Some(Err(Error::Stale)));
}

#[test]
fn a_truncate_and_a_write_wait_until_another_session_has_returned_the_right() {
    let mut mapped = Mapped::new();
    let inode = mapped.inode;
    let write =
        |text: &'static str| Op::Data { op: DataOp::Write { inode, offset: 0, data: text.into(), drop_set_id: false } };
    let cut = AttrChanges { size: Some(1), ..AttrChanges::default() };
    let mode = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
    let given = mapped.map(ANN);
    let mut given = mapped.given(given).unwrap();
    let own = mapped.send(ANN, false, write("own"));
    assert!(mapped.ring.answers.remove(&own).is_some(), "pages that are written back");
    let other = mapped.send(BEN, false, Op::Inode { op: InodeOp::SetAttr { inode, changes: mode } });
    assert!(mapped.ring.answers.remove(&other).is_some(), "no bytes change");
    for op in [write("other"), Op::Inode { op: InodeOp::SetAttr { inode, changes: cut } }] {
        let waiting = mapped.send(BEN, false, op);
        assert!(!mapped.ring.answers.contains_key(&waiting));
        let own = mapped.send(ANN, false, write("late"));
        assert!(mapped.ring.answers.remove(&own).is_some(), "it does not wait for who waits for it");
        mapped.give_back(ANN, &given);
        assert!(mapped.ring.answers.remove(&waiting).unwrap().is_ok());
        let again = mapped.map(ANN);
        given = mapped.given(again).unwrap();
    }
}

/// W11: the session was cut off, and does not know that another has had the right.
#[test]
fn a_leader_takes_no_word_for_a_right_that_one_before_it_has_passed_on() {
    let mut mapped = Mapped::new();
    let first = mapped.map(ANN);
    let first = mapped.given(first).unwrap();
    let waiting = mapped.map(BEN);
    let number = mapped.leader.partition.0;
    let follower = mapped.ring.partitions.keys().find(|one| one.partition.0 == number && **one != mapped.leader);
    let follower = *follower.unwrap();
    mapped.ring.held_back = Some((follower, Vec::new()));
    (0..80).for_each(|_| mapped.ring.tick());
    assert_eq!(mapped.given(waiting), None, "the member that leads next does not know that it is passed on");
    let (_, held) = mapped.ring.held_back.take().unwrap();
    mapped.ring.queue.extend(held);
    mapped.ring.deliver();
    let second = mapped.given(waiting).unwrap();
    mapped.ring.sessions = vec![ANN, BEN];
    form(&mut mapped.ring, number, follower.brick.0, &[follower.brick.0], &[]);
    mapped.leader = follower;
    let term = mapped.ring.partitions[&follower].pledge_term(ANN, Duration::ZERO).unwrap();
    for (session, given) in [(ANN, &first), (BEN, &second)] {
        let since = MappedSince { term: given.term, number: given.number };
        let kept = KeptRight { partition: follower.partition, inode: mapped.inode, since };
        mapped.ring.tell(follower, Event::Forgot { session, volume: VOLUME, term, mapped: vec![kept] });
    }
    assert!(mapped.ring.branches.contains("a session names a mapping right that it has lost"));
    let again = mapped.map(BEN);
    assert!(matches!(mapped.given(again).unwrap().given_for, GivenFor::Mapping { since: 0 }));
    let again = mapped.map(ANN);
    assert_eq!(mapped.given(again), None);
}
