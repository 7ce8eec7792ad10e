//! The table of pledges: who is told, who waits, until when.

use super::*;

const VOLUME: VolumeId = VolumeId(1);
const PARTITION: PartitionNumber = PartitionNumber(3);
const ANN: SessionId = SessionId(1);
const BEN: SessionId = SessionId(2);
const TERM: u64 = 77;
const DIR: InodeId = InodeId::new(1, 1, 5);
const FILE: InodeId = InodeId::new(2, 2, 6);
const START: Duration = Duration::from_secs(100);

fn name(text: &str) -> Name {
    Name::new(bytes::Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn key(of: InodeId) -> KeyPrefix {
    KeyPrefix { ring: RingId(1), position: of.position(), volume: VOLUME }
}

fn name_changes(text: &str) -> Vec<Change> {
    vec![Change::Delete { key: Key::name(key(DIR), DIR, text.as_bytes()) }]
}

fn attribute_changes() -> Vec<Change> {
    vec![Change::Delete { key: Key::inode(RingId(1), VOLUME, FILE, Kind::Inode) }]
}

fn attr(id: InodeId) -> Attr {
    let (kind, layout, times) = (NodeKind::File, Layout::inline(0), Time(0));
    let (mode, uid, gid, nlink, size, device, change, spread) = (0o644, 0, 0, 1, 0, 0, 0, 1);
    let (atime, mtime, ctime, btime) = (times, times, times, times);
    let (has_xattrs, etag, implied) = (false, bytes::Bytes::new(), false);
    Attr {
        id,
        kind,
        mode,
        uid,
        gid,
        nlink,
        size,
        device,
        atime,
        mtime,
        ctime,
        btime,
        change,
        layout,
        spread,
        has_xattrs,
        etag,
        implied,
    }
}

/// A leader that no session had pledges of before.
fn begun() -> Pledges {
    let pledges = Pledges::default();
    pledges.begin(TERM, Duration::ZERO, &mut Recalls::default());
    pledges.know_sessions(&[], START, &mut Recalls::default());
    pledges
}

/// Asks for a name. Returns the numbers of the pledges.
fn look_up(pledges: &Pledges, session: SessionId, text: &str, found: Result<Reply>, now: Duration) -> Vec<u64> {
    look_up_as(pledges, &ask(session), text, found, now)
}

fn ask(session: SessionId) -> Ask {
    Ask::new(RingId(1), 4, VOLUME, (session, OpId(0)), Time(0))
}

fn look_up_as(pledges: &Pledges, ask: &Ask, text: &str, found: Result<Reply>, now: Duration) -> Vec<u64> {
    let op = Op::Name { op: NameOp::Lookup { dir: DIR, name: name(text) } };
    match pledges.give(PARTITION, ask, (&op, None), found, now) {
        Ok(Reply::Pledged { pledges, .. }) => pledges.iter().map(|given| given.number).collect(),
        _ => Vec::new(),
    }
}

fn has_node() -> Result<Reply> {
    Ok(Reply::Node { attr: attr(FILE), created: false })
}

/// Whether a record waits, and the sessions that are told. If it need not wait, it is made.
fn change(pledges: &Pledges, by: SessionId, changes: &[Change], now: Duration) -> (bool, Vec<SessionId>) {
    let (waits, told) = try_change(pledges, by, changes, now);
    if !waits {
        pledges.changed(by, changes);
    }
    (waits, told)
}

/// As `change`, but there is no room for the record.
fn try_change(pledges: &Pledges, by: SessionId, changes: &[Change], now: Duration) -> (bool, Vec<SessionId>) {
    let mut recalls = Recalls::default();
    let waits = pledges.block(by, (changes, RecalledGrants::All), now, &mut recalls);
    (waits, recalls.0.into_keys().collect())
}

fn about_name(text: &str) -> Pledged {
    Pledged::Name { dir: DIR, name: name(text) }
}

#[test]
fn a_change_waits_until_other_sessions_have_returned_what_it_is_about() {
    let pledges = begun();
    let numbers = look_up(&pledges, ANN, "a", has_node(), START);
    assert_eq!(numbers.len(), 2, "the name and the attributes");
    assert_eq!(change(&pledges, BEN, &name_changes("b"), START), (false, vec![]), "another name");
    assert_eq!(change(&pledges, BEN, &name_changes("a"), START), (true, vec![ANN]));
    assert_eq!(change(&pledges, BEN, &name_changes("a"), START), (true, vec![]), "it is told once");
    let returned = |number| Pledge { about: about_name("a"), number };
    assert!(!pledges.returned((ANN, VOLUME), TERM, &[returned(numbers[0] - 1)], &[]), "an earlier pledge");
    assert!(!pledges.returned((ANN, VOLUME), TERM + 1, &[returned(numbers[0])], &[]), "of another leader");
    assert!(!pledges.returned((BEN, VOLUME), TERM, &[returned(numbers[0])], &[]), "of another session");
    assert!(pledges.returned((ANN, VOLUME), TERM, &[returned(numbers[0])], &[]));
    assert_eq!(change(&pledges, BEN, &name_changes("a"), START), (false, vec![]));
    assert_eq!(change(&pledges, BEN, &attribute_changes(), START), (true, vec![ANN]));
}

#[test]
fn a_missing_name_is_pledged_too_and_a_sessions_own_change_ends_its_pledges() {
    let pledges = begun();
    assert_eq!(look_up(&pledges, ANN, "a", Err(Error::NotFound), START).len(), 1);
    assert_eq!(change(&pledges, ANN, &name_changes("a"), START), (false, vec![]));
    assert_eq!(pledges.count(), 0);
    assert_eq!(change(&pledges, BEN, &name_changes("a"), START), (false, vec![]));
}

/// The session has to hear of what its op will find when there is room.
#[test]
fn a_change_that_is_not_made_yet_leaves_its_sessions_pledges() {
    let pledges = begun();
    look_up(&pledges, ANN, "a", Err(Error::NotFound), START);
    assert_eq!(try_change(&pledges, ANN, &name_changes("a"), START), (false, vec![]));
    assert_eq!(change(&pledges, BEN, &name_changes("a"), START), (true, vec![ANN]));
}

/// It may be undone, and begin again.
#[test]
fn a_rename_that_holds_a_name_leaves_its_sessions_pledges() {
    let pledges = begun();
    look_up(&pledges, ANN, "a", has_node(), START);
    let held = Key::hold(key(DIR), DIR, b"a");
    let hold = [Change::Put { key: held, value: Default::default() }];
    assert_eq!(change(&pledges, ANN, &hold, START), (false, vec![]));
    assert_eq!(change(&pledges, BEN, &name_changes("a"), START), (true, vec![ANN]));
}

#[test]
fn what_is_recalled_is_not_pledged_anew_until_it_has_cooled() {
    let pledges = begun();
    look_up(&pledges, ANN, "a", Err(Error::NotFound), START);
    change(&pledges, BEN, &name_changes("a"), START);
    assert!(look_up(&pledges, BEN, "a", Err(Error::NotFound), START).is_empty());
    let moved = Ask { moved: true, ..ask(BEN) };
    assert!(look_up_as(&pledges, &moved, "a", Err(Error::NotFound), START).is_empty(), "a change waits for it");
    assert!(pledges.end_session(ANN));
    assert!(look_up(&pledges, BEN, "a", Err(Error::NotFound), START + COOLING / 2).is_empty());
    assert_eq!(
        look_up_as(&pledges, &moved, "a", Err(Error::NotFound), START + COOLING / 2).len(),
        1,
        "who renamed needs it"
    );
    assert_eq!(look_up(&pledges, BEN, "a", Err(Error::NotFound), START + COOLING).len(), 1);
}

#[test]
fn a_session_that_returns_nothing_is_not_renewed_and_delays_others_by_its_lease() {
    let pledges = begun();
    look_up(&pledges, ANN, "a", Err(Error::NotFound), START);
    change(&pledges, BEN, &name_changes("a"), START);
    assert_eq!(pledges.term_for(ANN, START + PATIENCE - Duration::from_millis(1)), Some(TERM));
    assert_eq!(pledges.term_for(ANN, START + PATIENCE), None);
    assert_eq!(pledges.term_for(BEN, START + PATIENCE), Some(TERM));
    assert_eq!(pledges.slow_sessions(START + PATIENCE).into_keys().collect::<Vec<_>>(), [ANN]);
    assert!(look_up(&pledges, ANN, "b", Err(Error::NotFound), START + PATIENCE).is_empty());
    let mut recalls = Recalls::default();
    assert!(pledges.tick(START + RESEND_INTERVAL, &mut recalls).sessions.is_empty());
    assert_eq!(recalls.0.into_keys().collect::<Vec<_>>(), [ANN], "a recall is sent again");
    let mut recalls = Recalls::default();
    assert!(pledges.tick(START + EXPIRES_AFTER, &mut recalls).sessions.is_empty());
    // The last heartbeat that renewed the pledge may have been sent just before the patience was over.
    assert!(EXPIRES_AFTER > PLEDGE_LEASE);
    assert_eq!(pledges.tick(START + PATIENCE + EXPIRES_AFTER, &mut recalls).sessions, BTreeSet::from([ANN]));
    assert_eq!(change(&pledges, BEN, &name_changes("a"), START), (false, vec![]));
}

#[test]
fn a_new_leader_waits_until_every_session_has_forgotten_the_pledges_of_the_one_before() {
    let pledges = Pledges::default();
    pledges.begin(TERM, Duration::ZERO, &mut Recalls::default());
    assert!(change(&pledges, ANN, &name_changes("a"), START).0, "the sessions are not known yet");
    let mut recalls = Recalls::default();
    pledges.know_sessions(&[ANN, BEN], START, &mut recalls);
    assert_eq!(recalls.0.into_values().collect::<Vec<_>>(), [vec![], vec![]], "each is asked to forget");
    assert!(look_up(&pledges, ANN, "a", Err(Error::NotFound), START).is_empty());
    assert!(!pledges.forgot(ANN, TERM));
    assert!(!pledges.forgot(BEN, TERM - 1), "this is about the leader before");
    assert!(pledges.awaits(BEN) && !pledges.awaits(ANN));
    assert!(change(&pledges, ANN, &name_changes("a"), START).0);
    assert!(pledges.forgot(BEN, TERM));
    assert_eq!(change(&pledges, ANN, &name_changes("a"), START), (false, vec![]));
    pledges.begin(TERM + 1, Duration::ZERO, &mut Recalls::default());
    assert_eq!(pledges.term(), TERM, "nobody else has led meanwhile");
}

#[test]
fn pledges_of_an_earlier_leader_have_expired_in_the_end() {
    let pledges = Pledges::default();
    pledges.begin(TERM, Duration::ZERO, &mut Recalls::default());
    let mut recalls = Recalls::default();
    pledges.know_sessions(&[ANN], START, &mut recalls);
    assert!(pledges.tick(START + PLEDGE_LEASE, &mut recalls).sessions.is_empty());
    assert_eq!(pledges.tick(START + EXPIRES_AFTER, &mut recalls).sessions, BTreeSet::from([ANN]));
    assert!(!change(&pledges, BEN, &name_changes("a"), START).0);
}

#[test]
fn a_list_pledges_each_entry_under_a_number_of_its_own() {
    let pledges = begun();
    let entry = |text, inode, attr| Entry { name: name(text), inode, kind: NodeKind::File, attr };
    look_up(&pledges, BEN, "b", Err(Error::NotFound), START);
    change(&pledges, ANN, &name_changes("b"), START);
    let entries = vec![entry("a", FILE, Some(attr(FILE))), entry("b", DIR, None), entry("c", FILE, Some(attr(FILE)))];
    let op = NameOp::List { dir: DIR, after: None, limit: 9, attributes: true, touch: false };
    let found = Ok(Reply::List { entries, end: true });
    let given = pledges.give(PARTITION, &ask(ANN), (&Op::Name { op }, Some(4)), found, START);
    let Ok(Reply::Pledged { pledges: given, .. }) = given else { panic!("{given:?}") };
    let [GivenPledges { number: first, given_for: GivenFor::Entries { except }, .. }, listed] = &given[..] else {
        panic!("{given:?}")
    };
    assert_eq!((listed.number, &listed.given_for), (0, &GivenFor::Listed { change: 4 }));
    assert_eq!(except, &[2, 3], "a name that cools, and attributes that are not there");
    let third = Pledge { about: about_name("c"), number: first + 4 };
    change(&pledges, BEN, &name_changes("c"), START);
    assert!(pledges.returned((ANN, VOLUME), TERM, &[third], &[]));
    let later = look_up(&pledges, ANN, "d", Err(Error::NotFound), START);
    assert_eq!(later, [first + 6]);
}

#[test]
fn a_list_without_attributes_comes_with_the_change_count_alone() {
    let pledges = begun();
    let op = NameOp::List { dir: DIR, after: None, limit: 9, attributes: false, touch: false };
    let entries = vec![Entry { name: name("a"), inode: FILE, kind: NodeKind::File, attr: None }];
    let found = Ok(Reply::List { entries, end: true });
    let given = pledges.give(PARTITION, &ask(ANN), (&Op::Name { op }, Some(4)), found, START);
    let Ok(Reply::Pledged { pledges: given, .. }) = given else { panic!("{given:?}") };
    assert!(matches!(given[..], [GivenPledges { given_for: GivenFor::Listed { change: 4 }, term: TERM, .. }]));
    assert_eq!(pledges.count(), 0);
}

#[test]
fn a_session_has_a_bounded_number_and_the_oldest_are_recalled() {
    let pledges = begun();
    for number in 0..PER_SESSION_MAX {
        assert_eq!(look_up(&pledges, ANN, &number.to_string(), Err(Error::NotFound), START).len(), 1);
    }
    assert!(look_up(&pledges, ANN, "more", Err(Error::NotFound), START).is_empty());
    assert_eq!(look_up(&pledges, BEN, "more", Err(Error::NotFound), START).len(), 1, "others are not concerned");
    let mut recalls = Recalls::default();
    pledges.tick(START, &mut recalls);
    let recalled = recalls.0.remove(&ANN).unwrap();
    assert_eq!(recalled.len(), OLDEST_AT_ONCE);
    assert_eq!(recalled[0].about, about_name("0"));
    pledges.returned((ANN, VOLUME), TERM, &recalled, &[]);
    assert_eq!(pledges.count(), PER_SESSION_MAX - OLDEST_AT_ONCE + 1);
    assert_eq!(look_up(&pledges, ANN, "more", Err(Error::NotFound), START).len(), 1);
    assert_eq!(pledges.term_for(ANN, START + PATIENCE * 2), Some(TERM), "no change waits for these");
}

#[test]
fn pledges_recalled_for_want_of_room_stay_until_they_are_returned() {
    let pledges = begun();
    for number in 0..PER_SESSION_MAX {
        look_up(&pledges, ANN, &number.to_string(), Err(Error::NotFound), START);
    }
    look_up(&pledges, BEN, "0", Err(Error::NotFound), START);
    assert!(look_up(&pledges, ANN, "more", Err(Error::NotFound), START).is_empty());
    let (mut lost, mut again, later) = (Recalls::default(), Recalls::default(), START + PATIENCE + EXPIRES_AFTER);
    pledges.tick(START, &mut lost);
    assert!(pledges.tick(later, &mut again).sessions.is_empty(), "both sessions are renewed, and answer by them");
    assert!(look_up(&pledges, ANN, "more", Err(Error::NotFound), later).is_empty());
    pledges.tick(later, &mut again);
    assert_eq!(again.0, lost.0, "a recall that was lost is sent again");
    assert_eq!(change(&pledges, SessionId(3), &name_changes("0"), later), (true, vec![ANN, BEN]));
}

#[test]
fn a_change_goes_on_once_the_others_have_returned_what_its_own_session_has_too() {
    let pledges = begun();
    let numbers = look_up(&pledges, ANN, "a", Err(Error::NotFound), START);
    look_up(&pledges, BEN, "a", Err(Error::NotFound), START);
    assert!(change(&pledges, BEN, &name_changes("a"), START).0);
    assert!(pledges.returned((ANN, VOLUME), TERM, &[Pledge { about: about_name("a"), number: numbers[0] }], &[]));
    assert!(!change(&pledges, BEN, &name_changes("a"), START).0);
}

#[test]
fn a_name_is_recalled_before_a_rename_holds_it() {
    let pledges = begun();
    look_up(&pledges, ANN, "a", has_node(), START);
    let hold = Key::hold(key(DIR), DIR, b"a");
    let release = [Change::Delete { key: hold.clone() }];
    assert_eq!(change(&pledges, BEN, &release, START), (false, vec![]));
    let moves = [Change::Put { key: Key::hold(key(DIR), DIR, b""), value: Default::default() }];
    assert_eq!(change(&pledges, BEN, &moves, START), (false, vec![]), "the hold on moves of directories has no name");
    let holds = [Change::Put { key: hold, value: Default::default() }];
    assert_eq!(change(&pledges, BEN, &holds, START), (true, vec![ANN]));
}

#[test]
fn attributes_of_a_directory_are_recalled_before_a_rename_holds_a_name_in_it() {
    let pledges = begun();
    let get = Op::Inode { op: InodeOp::GetAttr { inode: DIR } };
    let found = Ok(Reply::Node { attr: Attr { kind: NodeKind::Directory, ..attr(DIR) }, created: false });
    let reply = pledges.give(PartitionNumber(0), &ask(ANN), (&get, None), found, START);
    assert!(matches!(reply, Ok(Reply::Pledged { .. })));
    let hold = |text: &[u8]| Key::hold(key(DIR), DIR, text);
    let moves = [Change::Put { key: hold(b""), value: Default::default() }];
    assert_eq!(change(&pledges, BEN, &moves, START), (false, vec![]), "the hold on moves of directories has no name");
    let holds = [Change::Put { key: hold(b"a"), value: Default::default() }];
    assert_eq!(change(&pledges, BEN, &holds, START), (true, vec![ANN]));
}

#[test]
fn a_session_that_ends_has_no_pledges() {
    let pledges = begun();
    look_up(&pledges, ANN, "a", has_node(), START);
    look_up(&pledges, BEN, "a", has_node(), START);
    change(&pledges, SessionId(3), &name_changes("a"), START);
    pledges.end_session(ANN);
    assert!(change(&pledges, SessionId(3), &name_changes("a"), START).0);
    assert!(pledges.end_session(BEN));
    assert_eq!(change(&pledges, SessionId(3), &name_changes("a"), START), (false, vec![]));
    assert_eq!(pledges.count(), 0);
}

/// Asks for the bytes of a shard. Returns the number of the pledge.
fn read_shard(pledges: &Pledges, session: SessionId, index: u64, now: Duration) -> Option<u64> {
    let op = Op::Data { op: DataOp::ReadShard { data: DataId(9), index, offset: 0, length: 10 } };
    match pledges.give(PARTITION, &ask(session), (&op, None), Ok(Reply::Data { bytes: bytes::Bytes::new() }), now) {
        Ok(Reply::Pledged { found: Found::Data { .. }, pledges }) => pledges.first().map(|given| given.number),
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_of_a_shard_change_once_others_have_returned_them() {
    let pledges = begun();
    let shard = ShardId { volume: VOLUME, data: DataId(9), index: 3 };
    let record = ShardRecord::empty(Stamp::of_leader(1, Epoch(1), Sequence(1)));
    let number = read_shard(&pledges, ANN, 3, START).unwrap();
    read_shard(&pledges, ANN, 4, START).unwrap();
    assert_eq!(change(&pledges, BEN, &[Change::Restamp { shard, record }], START), (false, vec![]), "no byte changes");
    let write = [Change::PunchBlocks { shard, record, first: 0, count: 1 }];
    assert_eq!(change(&pledges, BEN, &write, START), (true, vec![ANN]));
    assert_eq!(read_shard(&pledges, BEN, 3, START), None, "it is recalled");
    let about = Pledged::Shard { data: DataId(9), index: 3 };
    assert!(pledges.returned((ANN, VOLUME), TERM, &[Pledge { about, number }], &[]));
    assert_eq!(change(&pledges, BEN, &write, START), (false, vec![]));
    assert_eq!(pledges.count(), 1, "the other shard");
}

fn grant(pledges: &Pledges, session: SessionId, now: Duration) -> Option<u64> {
    match pledges.grant(PARTITION, &Ask { pledge: true, ..ask(session) }, FILE, GivenFor::Times, now) {
        Reply::Pledged { pledges, .. } => pledges.first().map(|given| given.number),
        _ => None,
    }
}

fn written(age: u64) -> Vec<Written> {
    vec![Written { file: (VOLUME, FILE), age, end: Ending::Kept }]
}

fn lost() -> Vec<Written> {
    vec![Written { file: (VOLUME, FILE), age: 0, end: Ending::Lost }]
}

fn report(end: u64) -> Report {
    Report { inode: FILE, age: 5, end, layout_version: 1 }
}

#[test]
fn times_are_shown_once_those_who_write_under_grants_have_said_when_they_last_did() {
    let (pledges, file) = (begun(), (VOLUME, FILE));
    let number = grant(&pledges, ANN, START).unwrap();
    assert!(pledges.hides_times(BEN, file));
    assert!(!pledges.hides_times(ANN, file), "it has said so before it asks");
    let mut recalls = Recalls::default();
    pledges.recall_grants(&[file], START, &mut recalls);
    assert_eq!(recalls.0.into_keys().collect::<Vec<_>>(), [ANN]);
    assert!(pledges.hides_times(ANN, file), "what it said may be older than what it wrote since");
    assert_eq!(grant(&pledges, ANN, START), None, "none during a recall");
    let (pledge, report) = (Pledge { about: Pledged::Times { inode: FILE }, number }, report(0));
    assert!(pledges.returned((ANN, VOLUME), TERM, std::slice::from_ref(&pledge), std::slice::from_ref(&report)));
    assert_eq!(pledges.take_written(), written(5));
    assert!(!pledges.hides_times(BEN, file) && !pledges.has_grant(file));
    pledges.returned((ANN, VOLUME), TERM, &[pledge], &[report]);
    assert_eq!(pledges.take_written(), [], "a return that comes twice counts once");
    assert_eq!(grant(&pledges, ANN, START), None, "it has to cool");
    pledges.tick(START + COOLING, &mut Recalls::default());
    assert!(grant(&pledges, ANN, START + COOLING).is_some());
}

#[test]
fn a_report_with_an_earlier_grant_than_the_last_counts() {
    let pledges = begun();
    let first = grant(&pledges, ANN, START).unwrap();
    grant(&pledges, ANN, START).unwrap();
    let (pledge, report) = (Pledge { about: Pledged::Times { inode: FILE }, number: first }, report(0));
    assert!(!pledges.returned((ANN, VOLUME), TERM, std::slice::from_ref(&pledge), &[report]));
    assert_eq!(pledges.take_written(), written(5));
    let (layout_version, end) = (1, 900);
    pledges.returned((ANN, VOLUME), TERM, &[pledge], &[self::report(end)]);
    let ending = Ending::Reported { layout_version, end };
    assert_eq!(pledges.take_written(), [Written { file: (VOLUME, FILE), age: 5, end: ending }]);
    assert!(pledges.has_grant((VOLUME, FILE)), "the reply with the second one may be on its way");
}

#[test]
fn an_inode_is_changed_once_all_grants_on_it_are_returned_those_of_the_session_itself_too() {
    let pledges = begun();
    let numbers = [grant(&pledges, ANN, START).unwrap(), grant(&pledges, BEN, START).unwrap()];
    let mut recalls = Recalls::default();
    assert!(!pledges.block(ANN, (&attribute_changes(), RecalledGrants::None), START, &mut recalls), "both may write");
    assert_eq!(change(&pledges, ANN, &attribute_changes(), START), (true, vec![ANN, BEN]));
    for (session, number) in [ANN, BEN].into_iter().zip(numbers) {
        assert!(change(&pledges, ANN, &attribute_changes(), START).0);
        pledges.returned((session, VOLUME), TERM, &[Pledge { about: Pledged::Times { inode: FILE }, number }], &[]);
    }
    assert_eq!(change(&pledges, ANN, &attribute_changes(), START), (false, vec![]));
    assert_eq!(pledges.take_written(), [], "neither wrote");
}

#[test]
fn a_session_that_ends_or_does_not_return_its_grant_may_have_written_until_then() {
    let pledges = begun();
    grant(&pledges, ANN, START).unwrap();
    assert!(pledges.end_session(ANN));
    assert_eq!(pledges.take_written(), lost());
    grant(&pledges, BEN, START).unwrap();
    assert!(change(&pledges, ANN, &attribute_changes(), START).0);
    let late = START + PATIENCE + EXPIRES_AFTER;
    assert_eq!(pledges.tick(late, &mut Recalls::default()).sessions, BTreeSet::from([BEN]));
    assert_eq!(pledges.take_written(), lost());
    assert!(!change(&pledges, ANN, &attribute_changes(), late).0);
}

#[test]
fn a_leader_that_goes_on_in_another_view_recalls_all_grants() {
    let pledges = begun();
    let number = grant(&pledges, ANN, START).unwrap();
    let mut recalls = Recalls::default();
    pledges.begin(TERM + 1, START, &mut recalls);
    assert_eq!(recalls.0.into_keys().collect::<Vec<_>>(), [ANN]);
    assert!(pledges.hides_times(ANN, (VOLUME, FILE)), "its marker may be gone");
    assert!(pledges.returned((ANN, VOLUME), TERM, &[Pledge { about: Pledged::Times { inode: FILE }, number }], &[]));
    assert!(pledges.has_no_grants());
}

#[test]
fn a_shard_that_is_removed_is_not_recalled() {
    let pledges = begun();
    read_shard(&pledges, ANN, 3, START).unwrap();
    let shard = ShardId { volume: VOLUME, data: DataId(9), index: 3 };
    assert_eq!(change(&pledges, BEN, &[Change::DropShard { shard }], START), (false, vec![]));
    assert_eq!(pledges.count(), 0);
}

#[test]
fn what_is_left_after_a_loss_is_hidden_until_sessions_have_forgotten() {
    let pledges = Pledges::default();
    pledges.begin(TERM, Duration::ZERO, &mut Recalls::default());
    assert!(!pledges.hides_loss(), "nothing was lost");
    pledges.note_loss();
    assert!(pledges.hides_loss(), "the sessions are not known yet");
    pledges.know_sessions(&[SessionId(1)], Duration::ZERO, &mut Recalls::default());
    assert!(pledges.hides_loss());
    assert!(pledges.forgot(SessionId(1), TERM));
    assert!(!pledges.hides_loss());
}
