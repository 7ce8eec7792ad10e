//! Mapping rights: one session has a file's, others wait.

use super::*;

const VOLUME: VolumeId = VolumeId(1);
const PARTITION: PartitionNumber = PartitionNumber(3);
const ANN: SessionId = SessionId(1);
const BEN: SessionId = SessionId(2);
const CAT: SessionId = SessionId(3);
const TERM: u64 = 77;
const FILE: InodeId = InodeId::new(2, 2, 6);
const OTHER: InodeId = InodeId::new(2, 2, 7);
const START: Duration = Duration::from_secs(100);

fn seconds(seconds: u64) -> Duration {
    START + Duration::from_secs(seconds)
}

/// A leader that waits for these sessions.
fn beginning(sessions: &[SessionId]) -> Pledges {
    let pledges = Pledges::default();
    pledges.begin(TERM, Duration::ZERO, &mut Recalls::default());
    pledges.know_sessions(sessions, START, &mut Recalls::default());
    pledges
}

fn ask(session: SessionId) -> Ask {
    Ask { pledge: true, ..Ask::new(RingId(1), 4, VOLUME, (session, OpId(0)), Time(0)) }
}

/// Asks for the right. Returns its number and that from which on the session has had it, and the sessions that are told.
fn map_at(pledges: &Pledges, session: SessionId, now: Duration) -> (Option<(u64, u64)>, Vec<SessionId>) {
    let mut recalls = Recalls::default();
    let given = pledges.map(PARTITION, &ask(session), FILE, now, &mut recalls).map(|reply| match reply {
        Reply::Pledged { found: Found::Done, pledges } => match pledges[..] {
            [GivenPledges { number, given_for: GivenFor::Mapping { since }, .. }] => (number, since),
            _ => panic!("{pledges:?}"),
        },
        other => panic!("{other:?}"),
    });
    (given, recalls.0.into_keys().collect())
}

fn map(pledges: &Pledges, session: SessionId) -> (Option<(u64, u64)>, Vec<SessionId>) {
    map_at(pledges, session, START)
}

/// The sessions that lose their rights, once that is recorded.
fn late(pledges: &Pledges, after: u64) -> Vec<SessionId> {
    let Late { rights, .. } = pledges.tick(seconds(after), &mut Recalls::default());
    pledges.passing_on(&rights);
    for PassedOn { session, file, .. } in &rights {
        assert!(!pledges.is_mapped_by_another(*session, *file) && pledges.is_mapped_by_another(CAT, *file));
    }
    assert_eq!(pledges.tick(seconds(after), &mut Recalls::default()).rights, [], "they are recorded once");
    pledges.passed_on(&rights);
    rights.iter().map(|right| right.session).collect()
}

#[test]
fn a_view_that_begins_records_a_lost_right_again_and_a_record_ends_no_right_that_was_given_later() {
    let pledges = beginning(&[]);
    let (Some((first, _)), _) = map(&pledges, ANN) else { panic!("not given") };
    map(&pledges, BEN);
    let Late { rights, .. } = pledges.tick(seconds(9), &mut Recalls::default());
    assert_eq!(rights, [PassedOn { session: ANN, file: (VOLUME, FILE), number: first }]);
    pledges.passing_on(&rights);
    pledges.begin(TERM, seconds(9), &mut Recalls::default());
    assert_eq!(pledges.tick(seconds(9), &mut Recalls::default()).rights, rights);
    give_back(&pledges, ANN, first);
    let (Some((second, _)), _) = map_at(&pledges, ANN, seconds(9)) else { panic!("it was returned") };
    pledges.passed_on(&rights);
    assert_eq!(map_at(&pledges, BEN, seconds(9)), (None, vec![ANN]), "of number {second}");
}

fn give_back(pledges: &Pledges, session: SessionId, number: u64) -> bool {
    pledges.returned((session, VOLUME), TERM, &[Pledge { about: Pledged::Mapping { inode: FILE }, number }], &[])
}

#[test]
fn one_session_has_the_right_and_others_have_it_in_turn() {
    let pledges = beginning(&[]);
    let (Some((first, since)), told) = map(&pledges, ANN) else { panic!("not given") };
    assert_eq!((since, told), (first, vec![]));
    assert_eq!(map(&pledges, BEN), (None, vec![ANN]));
    assert_eq!(map(&pledges, BEN), (None, vec![]), "it is told once");
    assert_eq!(map(&pledges, ANN), (Some((first, first)), vec![]), "what is recalled gets no new number");
    assert!(!give_back(&pledges, ANN, first - 1), "an earlier one");
    assert!(give_back(&pledges, ANN, first));
    let (Some((second, _)), told) = map(&pledges, BEN) else { panic!("it does not cool") };
    assert_eq!(told, vec![]);
    assert_eq!(map(&pledges, ANN), (None, vec![BEN]));
    assert!(give_back(&pledges, BEN, second));
    let (Some((third, since)), _) = map(&pledges, ANN) else { panic!("not given") };
    assert_eq!(since, third, "another session has had it");
}

#[test]
fn a_late_return_does_not_end_a_right_that_was_asked_for_again() {
    let pledges = beginning(&[]);
    let (Some((first, _)), _) = map(&pledges, ANN) else { panic!("not given") };
    let (Some((second, since)), _) = map(&pledges, ANN) else { panic!("not given") };
    assert!(second > first && since == first, "without a break");
    give_back(&pledges, ANN, first);
    assert_eq!(map(&pledges, BEN), (None, vec![ANN]));
}

#[test]
fn a_session_that_hangs_loses_its_right_after_six_seconds_and_one_that_writes_back_does_not() {
    let pledges = beginning(&[]);
    let (Some((first, _)), _) = map(&pledges, ANN) else { panic!("not given") };
    assert_eq!(map(&pledges, BEN), (None, vec![ANN]));
    assert_eq!(map_at(&pledges, ANN, seconds(3)), (Some((first, first)), vec![]), "it says that it writes back");
    assert!(pledges.term_for(ANN, seconds(3)).is_some() && pledges.term_for(ANN, seconds(4)).is_none());
    assert_eq!(late(&pledges, 8), []);
    assert_eq!(late(&pledges, 9), [ANN]);
    let (Some((second, since)), _) = map_at(&pledges, BEN, seconds(9)) else { panic!("not given") };
    assert!(second > first && since == second);
    for after in 0..60 {
        map_at(&pledges, ANN, seconds(10));
        map_at(&pledges, BEN, seconds(10 + after));
    }
    assert_eq!(late(&pledges, 74), [], "it said so for a minute");
    map_at(&pledges, BEN, seconds(74));
    assert_eq!(late(&pledges, 82), [BEN], "not for ever");
}

/// A session that is away may have the right.
#[test]
fn a_new_leader_gives_no_right_before_each_session_has_spoken_or_ended() {
    let pledges = beginning(&[ANN, BEN]);
    assert!(!pledges.forgot(BEN, TERM));
    assert_eq!(pledges.tick(seconds(6), &mut Recalls::default()).sessions, BTreeSet::from([ANN]), "changes go on");
    assert_eq!(map_at(&pledges, BEN, seconds(7)), (None, vec![]));
    assert!(pledges.awaits(ANN) && !pledges.awaits(BEN));
    assert_eq!(pledges.slow_sessions(seconds(7)).into_keys().collect::<Vec<_>>(), [ANN], "it is named");
    let mut again = Recalls::default();
    pledges.tick(seconds(8), &mut again);
    assert_eq!(again.0.into_keys().collect::<Vec<_>>(), [ANN]);
    pledges.keep_mapped(ANN, VOLUME, TERM, &[FILE]);
    assert!(pledges.forgot(ANN, TERM), "who waits is looked at again");
    assert_eq!(map_at(&pledges, BEN, seconds(9)), (None, vec![ANN]));
    let other = beginning(&[ANN, BEN]);
    other.forgot(BEN, TERM);
    other.tick(seconds(6), &mut Recalls::default());
    assert!(other.end_session(ANN));
    assert!(matches!(map_at(&other, BEN, seconds(7)).0, Some((_, 1..))));
}

#[test]
fn a_new_leader_gives_no_right_before_all_have_forgotten_and_they_keep_their_own() {
    let pledges = beginning(&[ANN, BEN]);
    assert_eq!(map(&pledges, CAT), (None, vec![]));
    pledges.keep_mapped(ANN, VOLUME, TERM + 1, &[FILE]);
    assert_eq!(pledges.count(), 0, "what is said to another leader");
    pledges.keep_mapped(ANN, VOLUME, TERM, &[FILE]);
    pledges.keep_mapped(BEN, VOLUME, TERM, &[FILE, OTHER]);
    assert_eq!(pledges.count(), 2, "the first stands");
    let (Some((number, 0)), _) = map(&pledges, ANN) else { panic!("it is told that it has it") };
    pledges.forgot(ANN, TERM);
    assert_eq!(map(&pledges, BEN), (None, vec![ANN]));
    pledges.forgot(BEN, TERM);
    pledges.keep_mapped(BEN, VOLUME, TERM, &[OTHER]);
    assert!(give_back(&pledges, ANN, number));
    assert!(matches!(map(&pledges, BEN), (Some((_, 1..)), _)), "another session had it");
    pledges.end_session(BEN);
    assert!(matches!(map(&pledges, CAT), (Some(_), _)));
}

#[test]
fn nobody_writes_under_a_grant_while_another_session_has_the_right() {
    let pledges = beginning(&[]);
    let grant = |session| pledges.grant(PARTITION, &ask(session), FILE, GivenFor::Times, START);
    assert!(matches!(grant(BEN), Reply::Pledged { .. }));
    assert_eq!(map(&pledges, ANN), (None, vec![BEN]), "the grant is recalled first");
    pledges.end_session(BEN);
    assert!(matches!(map(&pledges, ANN), (Some(_), _)));
    assert_eq!(grant(BEN), Reply::Done);
    assert!(!pledges.may_grant(BEN, (VOLUME, FILE), seconds(2)));
    assert!(pledges.is_mapped_by_another(BEN, (VOLUME, FILE)) && !pledges.is_mapped_by_another(ANN, (VOLUME, FILE)));
    assert!(pledges.may_grant(ANN, (VOLUME, FILE), seconds(2)), "its own writes");
}
