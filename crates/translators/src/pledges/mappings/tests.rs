//! What a mount may do with the pages of a mapped file.

use super::*;

const FILE: InodeId = InodeId::from_bits(7);
const START: Duration = Duration::from_secs(100);

fn right(number: u64) -> Right {
    Right { partition: PartitionNumber(1), term: 3, number }
}

fn kept_since(term: u64, number: u64) -> KeptRight {
    KeptRight { partition: PartitionNumber(1), inode: FILE, since: MappedSince { term, number } }
}

fn ms(milliseconds: u64) -> Duration {
    START + Duration::from_millis(milliseconds)
}

fn fault(mappings: &mut Mappings, waited_ms: u64) -> Next {
    mappings.fault(FILE, Duration::from_millis(waited_ms), START, |_| true)
}

fn write_back(mappings: &mut Mappings) -> Next {
    mappings.write_back(FILE, |_| true)
}

fn give(mappings: &mut Mappings, right: Right, since: u64) -> bool {
    mappings.take(FILE, right, since, START);
    mappings.asked(FILE)
}

/// A file that is open to be written, and whose right the session has.
fn mapped() -> Mappings {
    let mut mappings = Mappings::default();
    assert!(mappings.opened(FILE) && !mappings.opened(FILE));
    assert_eq!(mappings.closed(FILE, START), None);
    assert!(!mappings.is_settled(FILE));
    mappings.settled(FILE);
    assert_eq!((fault(&mut mappings, 0), fault(&mut mappings, 0)), (Next::Ask, Next::Wait(LOOK_AGAIN)));
    assert!(!give(&mut mappings, right(5), 5));
    assert_eq!((fault(&mut mappings, 0), write_back(&mut mappings)), (Next::Go, Next::Go));
    mappings
}

/// Lets the kernel drop all pages. Returns what comes next.
fn drop_all(mappings: &mut Mappings) -> Dropping {
    assert_eq!(mappings.next_drop(FILE, false, ms(10)), Dropping::Pass);
    mappings.next_drop(FILE, true, ms(10))
}

#[test]
fn a_right_is_returned_some_time_after_the_last_fault_once_pages_are_dropped() {
    let mut mappings = mapped();
    assert_eq!(mappings.recalled(FILE, right(5), START), AfterRecall::Drop);
    assert_eq!(mappings.recalled(FILE, right(5), START), AfterRecall::Nothing, "it comes again");
    assert_eq!(mappings.next_drop(FILE, false, ms(4)), Dropping::Wait(Duration::from_millis(6)));
    assert_eq!(fault(&mut mappings, 0), Next::Go, "the program goes on until then");
    assert_eq!(mappings.next_drop(FILE, false, ms(10)), Dropping::Pass, "which delays others no further");
    assert_eq!(fault(&mut mappings, 1), Next::Wait(Duration::from_millis(4)));
    assert_eq!(write_back(&mut mappings), Next::Go, "the pages that are dropped");
    assert_eq!(fault(&mut mappings, 5), Next::Go, "the kernel may wait for this page");
    assert_eq!(mappings.next_drop(FILE, true, ms(15)), Dropping::Pass, "so it is dropped, too");
    assert_eq!(fault(&mut mappings, 5), Next::Wait(Duration::from_millis(5)), "the next one waits longer");
    assert_eq!(mappings.next_drop(FILE, true, ms(16)), Dropping::Return(right(5)));
    assert_eq!(write_back(&mut mappings), Next::Refuse, "nothing is left to be written");
    assert_eq!(fault(&mut mappings, 5), Next::Wait(LOOK_AGAIN), "the leader has yet to be told");
    mappings.told_of_return(FILE, true);
    assert_eq!(mappings.next_drop(FILE, false, ms(17)), Dropping::End);
    assert_eq!(fault(&mut mappings, 5), Next::Ask);
}

#[test]
fn a_recall_that_overtakes_the_right_is_answered_after_the_fault() {
    let mut mappings = mapped();
    mappings.recalled(FILE, right(5), START);
    drop_all(&mut mappings);
    mappings.told_of_return(FILE, true);
    assert_eq!(mappings.next_drop(FILE, false, ms(10)), Dropping::End);
    assert_eq!(fault(&mut mappings, 0), Next::Ask);
    assert_eq!(mappings.recalled(FILE, right(9), START), AfterRecall::Nothing);
    assert!(give(&mut mappings, right(9), 9), "a thread is to drop the pages");
    assert_eq!(mappings.next_drop(FILE, false, ms(1)), Dropping::Wait(Duration::from_millis(9)));
    assert_eq!(fault(&mut mappings, 0), Next::Go, "there is time for one");
    assert_eq!(drop_all(&mut mappings), Dropping::Return(right(9)));
}

#[test]
fn what_was_returned_is_not_taken_from_a_reply() {
    let mut mappings = mapped();
    mappings.recalled(FILE, right(5), START);
    drop_all(&mut mappings);
    mappings.told_of_return(FILE, false);
    mappings.next_drop(FILE, false, ms(10));
    assert_eq!(fault(&mut mappings, 0), Next::Ask);
    give(&mut mappings, right(5), 5);
    assert_eq!(fault(&mut mappings, 0), Next::Ask, "the return may be on its way");
    give(&mut mappings, right(6), 6);
    assert_eq!(fault(&mut mappings, 0), Next::Go);
    assert_eq!(mappings.recalled(FILE, right(5), START), AfterRecall::Return, "of an earlier one");
    mappings.told_of_return(FILE, true);
    assert_eq!(fault(&mut mappings, 0), Next::Go);
}

#[test]
fn after_the_lease_pages_are_written_if_no_other_session_has_had_the_right() {
    let mut mappings = mapped();
    assert_eq!(mappings.lose(START, |_| true), []);
    assert_eq!(mappings.lose(START, |_| false), [FILE]);
    assert_eq!(mappings.lose(START, |_| false), [], "a thread drops them");
    assert_eq!(mappings.next_drop(FILE, false, START), Dropping::Pass);
    assert_eq!(mappings.kept(), [kept_since(3, 5)]);
    assert_eq!((write_back(&mut mappings), write_back(&mut mappings)), (Next::Ask, Next::Wait(LOOK_AGAIN)));
    assert!(!give(&mut mappings, right(5), 4));
    assert_eq!((write_back(&mut mappings), fault(&mut mappings, 5)), (Next::Go, Next::Go));
    assert_eq!(mappings.next_drop(FILE, true, ms(1)), Dropping::Pass, "of the fault");
    assert_eq!(mappings.next_drop(FILE, true, ms(1)), Dropping::End);
    assert!(mappings.has(FILE, |_| true) && !mappings.has(FILE, |_| false));
    assert_eq!(fault(&mut mappings, 0), Next::Go);
}

#[test]
fn after_another_session_has_had_the_right_no_page_is_written_until_all_are_dropped() {
    let mut mappings = mapped();
    assert_eq!(mappings.write_back(FILE, |_| false), Next::Ask);
    assert!(give(&mut mappings, right(9), 8), "a thread is to drop them");
    assert_eq!(write_back(&mut mappings), Next::Refuse);
    assert_eq!(fault(&mut mappings, 9), Next::Wait(LOOK_AGAIN), "until the thread has begun");
    assert_eq!(mappings.kept(), [], "a new leader is not told that it has the right");
    assert_eq!(mappings.next_drop(FILE, false, START), Dropping::Pass);
    assert_eq!(write_back(&mut mappings), Next::Refuse);
    assert_eq!(mappings.next_drop(FILE, true, START), Dropping::End);
    assert_eq!((write_back(&mut mappings), fault(&mut mappings, 0)), (Next::Go, Next::Go));
}

#[test]
fn a_new_leader_that_was_told_of_the_right_gives_it_without_a_break() {
    for (since, is_kept) in [(0, true), (5, false)] {
        let mut mappings = mapped();
        assert_eq!(mappings.kept(), [kept_since(3, 5)]);
        mappings.lose(START, |_| false);
        assert_eq!(write_back(&mut mappings), Next::Ask);
        mappings.take(FILE, Right { term: 4, ..right(6) }, since, START);
        mappings.asked(FILE);
        assert_eq!(write_back(&mut mappings), if is_kept { Next::Go } else { Next::Refuse });
        // The next leader compares it with what it knows to be lost.
        assert_eq!(mappings.kept(), if is_kept { vec![kept_since(3, 5)] } else { Vec::new() });
        let mut passed = (false, Dropping::Pass);
        while passed.1 == Dropping::Pass {
            passed = (true, mappings.next_drop(FILE, passed.0, START));
        }
        assert_eq!(mappings.kept(), [if is_kept { kept_since(3, 5) } else { kept_since(4, 5) }]);
    }
}

#[test]
fn a_file_that_is_closed_returns_its_right_and_is_forgotten() {
    let mut mappings = mapped();
    assert_eq!(mappings.closed(FILE, START), Some(right(5)));
    assert!(!mappings.has_writers(FILE) && mappings.opened(FILE));
    assert_eq!(fault(&mut mappings, 0), Next::Wait(LOOK_AGAIN));
    mappings.told_of_return(FILE, true);
    assert_eq!(mappings.closed(FILE, START), None);
    assert!(mappings.files.is_empty());
    assert_eq!(fault(&mut mappings, 0), Next::Go, "nobody can write through a mapping");
    assert_eq!(mappings.recalled(FILE, right(5), START), AfterRecall::Return);
    mappings.told_of_return(FILE, false);
    assert!(!mappings.files.is_empty(), "what may be on its way is remembered");
    mappings.lose(START + RETURNED_FOR, |_| true);
    assert!(mappings.files.is_empty());
}

#[test]
fn a_file_that_is_closed_while_its_pages_are_dropped_returns_its_right() {
    let mut mappings = mapped();
    mappings.lose(START, |_| false);
    assert_eq!(mappings.next_drop(FILE, false, START), Dropping::Pass);
    assert_eq!(fault(&mut mappings, 5), Next::Ask);
    assert_eq!(mappings.closed(FILE, START), None);
    assert!(!give(&mut mappings, right(6), 6), "the thread is there");
    assert_eq!(mappings.next_drop(FILE, true, START), Dropping::Return(right(6)));
    mappings.told_of_return(FILE, true);
    assert_eq!(mappings.next_drop(FILE, false, START), Dropping::End);
    assert!(mappings.files.is_empty());
}
