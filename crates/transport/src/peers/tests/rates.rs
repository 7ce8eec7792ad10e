//! Many small messages. The rates are printed, not checked (`cargo bench -p hekate-transport` uses two processes).

use super::*;

const MESSAGES: u64 = 100_000;
/// A smaller number: on a busy machine each question wakes two threads late.
const QUESTIONS: u64 = 5_000;

#[test]
fn questions_and_answers() {
    for endpoint in endpoints("pingpong") {
        let (one, two) = two(&endpoint, &LinkSettings::default());
        let _one = one.answering();
        let begun = Instant::now();
        for count in 0..QUESTIONS {
            assert!(two.send(1, numbered(count, 0)));
            two.recorder.wait(|heard| matches!(heard.last(), Some(Heard::Message(_, bytes)) if number(bytes) == count));
            two.recorder.heard.lock().clear();
        }
        let each = begun.elapsed() / QUESTIONS as u32;
        eprintln!("{endpoint}: {each:?} for a question and its answer, with a thread that waits for it");
    }
}

#[test]
fn a_hundred_thousand_messages_one_way() {
    for endpoint in endpoints("oneway") {
        let (one, two) = two(&endpoint, &LinkSettings::default());
        let begun = Instant::now();
        (0..MESSAGES).for_each(|count| assert!(two.send(1, numbered(count, 0))));
        let heard = one.wait_messages(2, MESSAGES as usize);
        let rate = MESSAGES as f64 / begun.elapsed().as_secs_f64();
        assert!(heard.iter().map(number).eq(0..MESSAGES));
        eprintln!("{endpoint}: {rate:.0} messages a second");
    }
}
