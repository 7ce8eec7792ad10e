//! The member from which a leader reads records that it lacks.

use super::lost_blocks::{Led, MUCH_ROOM};
use crate::*;
use hekate_brick::LogEntry;
use hekate_proto::*;

/// The leader has the first record; the members report these ends of their logs.
fn led(ends: [u64; 2]) -> (Led, Vec<BrickId>) {
    let mut led = Led::new();
    let mut asked = asked_for_records(led.handle(Event::Start));
    for (member, sequence) in (1..).zip(ends) {
        let (epoch, sequence, room, lost, lists) = (Epoch(1), Sequence(sequence), MUCH_ROOM, Vec::new(), Vec::new());
        let position = Message::Position { epoch, sequence, room, lost, heal: None, lists };
        asked.extend(asked_for_records(led.handle(Led::said(member, position))));
    }
    (led, asked)
}

fn asked_for_records(sent: Vec<Envelope>) -> Vec<BrickId> {
    let asked = |sent: Envelope| (sent.message == Message::Fetch { after: Sequence(1) }).then_some(sent.to.brick);
    sent.into_iter().filter_map(asked).collect()
}

#[test]
fn a_leader_asks_all_who_have_more_before_it_lets_one_of_them_lead() {
    let (mut led, asked) = led([3, 4]);
    assert_eq!(asked, [BrickId(2)], "the member with the longest log");
    let unreadable = |led: &mut Led, from| asked_for_records(led.handle(Led::said(from, Message::Unreadable)));
    assert_eq!(unreadable(&mut led, 1), [], "this member was not asked");
    assert_eq!((unreadable(&mut led, 2), led.leader.yields_to()), (vec![BrickId(1)], None));
    assert_eq!((unreadable(&mut led, 1), led.leader.yields_to()), (vec![], Some(BrickId(2))));
    assert_eq!((led.leader.failure(), led.leader.serves()), (None, false));
    // An answer that is late or comes twice changes nothing.
    assert_eq!((unreadable(&mut led, 1), led.leader.yields_to()), (vec![], Some(BrickId(2))));
}

#[test]
fn who_has_no_more_than_the_leader_is_not_asked() {
    let (mut led, asked) = led([1, 4]);
    assert_eq!(asked, [BrickId(2)]);
    assert_eq!(asked_for_records(led.handle(Led::said(2, Message::Unreadable))), []);
    assert_eq!(led.leader.yields_to(), Some(BrickId(2)));
}

/// The members whom the leader asks for a sync when its journal is to be freed, and up to which record.
fn asked_for_syncs(led: &mut Led) -> Vec<(BrickId, Sequence)> {
    let asked = |sent: Envelope| match sent.message {
        Message::Sync { sequence, .. } => Some((sent.to.brick, sequence)),
        _ => None,
    };
    led.handle(Event::Stabilize).into_iter().filter_map(asked).collect()
}

/// Otherwise a leader that lacks more than its journal has room for never has all of it, and its view never begins.
#[test]
fn what_a_leader_has_fetched_may_leave_its_journal_before_it_has_the_rest() {
    let (mut led, asked) = led([3, 5]);
    assert_eq!(asked, [BrickId(2)]);
    let send = |led: &mut Led, sequence| {
        let (ring, partition, epoch, sequence) = (RingId(1), PartitionNumber(0), Epoch(1), Sequence(sequence));
        let (session, op_id, changes) = (SYSTEM_SESSION, OpId(0), Vec::new());
        let entry = LogEntry::new(Record { ring, partition, epoch, sequence, session, op_id, changes });
        led.handle(Led::said(2, Message::Append { entry, fresh: Vec::new(), copied: true }));
    };
    (2..=3).for_each(|sequence| send(&mut led, sequence));
    assert_eq!(asked_for_syncs(&mut led), [1, 2].map(|brick| (BrickId(brick), Sequence(3))));
    send(&mut led, 4);
    assert_eq!(asked_for_syncs(&mut led), [], "a member lacks the last one");
}
