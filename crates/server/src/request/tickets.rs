//! Replies of replicas that another thread produces than the one that waits for them. A token names the request.

use hekate_proto::{Reply, Result};
use hekate_replica::Token;
use hekate_threads::{Condvar, HashMap, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The requests of this server's threads that a replica has not answered to the thread that asked.
#[derive(Default)]
pub struct Tickets {
    last: AtomicU64,
    open: Mutex<HashMap<Token, TicketState>>,
}

enum TicketState {
    /// The answer arrived before its thread waited for it.
    Early(Result<Reply>),
    Waiting(Arc<Waiter>),
    /// The thread waits no longer; the answer will be dropped when it arrives.
    Abandoned,
}

#[derive(Default)]
struct Waiter {
    answer: Mutex<Option<Result<Reply>>>,
    arrived: Condvar,
}

impl Tickets {
    /// A token that no other request of this server has.
    pub fn token(&self) -> Token {
        Token(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Passes an answer to the thread that waits for it, or stores it until that thread calls [`Self::wait`].
    pub fn answer(&self, token: Token, answer: Result<Reply>) {
        let mut open = self.open.lock();
        match open.remove(&token) {
            Some(TicketState::Waiting(waiter)) => {
                *waiter.answer.lock() = Some(answer);
                waiter.arrived.notify_one();
            }
            Some(TicketState::Abandoned) => {}
            Some(TicketState::Early(_)) | None => drop(open.insert(token, TicketState::Early(answer))),
        }
    }

    /// Waits for the answer to this thread's request; `None` if it does not arrive within `limit`.
    pub fn wait(&self, token: Token, limit: Duration) -> Option<Result<Reply>> {
        let waiter = {
            let mut open = self.open.lock();
            match open.remove(&token) {
                Some(TicketState::Early(answer)) => return Some(answer),
                earlier => {
                    assert!(earlier.is_none(), "only the thread that drew a token waits for its answer, and once")
                }
            }
            let waiter = Arc::new(Waiter::default());
            open.insert(token, TicketState::Waiting(waiter.clone()));
            waiter
        };
        let mut answer = waiter.answer.lock();
        if answer.is_none() {
            waiter.arrived.wait_for(&mut answer, limit);
        }
        answer.take()
    }

    /// Ends the wait after `wait` has returned `None`: an answer that arrives later is dropped. Returns the answer if
    /// it has arrived in between.
    pub fn abandon(&self, token: Token) -> Option<Result<Reply>> {
        let mut open = self.open.lock();
        match open.remove(&token) {
            Some(TicketState::Early(answer)) => Some(answer),
            Some(TicketState::Waiting(waiter)) => {
                let answer = waiter.answer.lock().take();
                if answer.is_none() {
                    open.insert(token, TicketState::Abandoned);
                }
                answer
            }
            // The answer arrived between the end of the wait and this call, and was dropped with the waiter. The client
            // sends the request again.
            Some(TicketState::Abandoned) | None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::Error;

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn an_answer_reaches_its_thread_whether_it_comes_early_or_late() {
        let tickets = Tickets::default();
        let (early, late) = (tickets.token(), tickets.token());
        tickets.answer(early, Ok(Reply::Done));
        assert_eq!(tickets.wait(early, SHORT), Some(Ok(Reply::Done)));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| tickets.wait(late, Duration::from_secs(60)));
            tickets.answer(late, Err(Error::Stale));
            assert_eq!(waiter.join().unwrap(), Some(Err(Error::Stale)));
        });
        assert!(tickets.open.lock().is_empty());
    }

    #[test]
    fn the_answer_to_an_abandoned_request_is_dropped() {
        let tickets = Tickets::default();
        let token = tickets.token();
        assert_eq!(tickets.wait(token, SHORT), None);
        assert_eq!(tickets.abandon(token), None);
        tickets.answer(token, Ok(Reply::Done));
        assert!(tickets.open.lock().is_empty());
    }

    #[test]
    #[should_panic(expected = "only the thread that drew a token waits for its answer, and once")]
    fn a_token_has_one_waiter() {
        let tickets = Tickets::default();
        let token = tickets.token();
        assert_eq!(tickets.wait(token, SHORT), None);
        tickets.wait(token, SHORT);
    }
}
