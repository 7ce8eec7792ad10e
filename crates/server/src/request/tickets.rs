//! Requests whose answers come later, on another thread: each has a token, and whoever waits for it a place here.

use hekate_proto::{Reply, Result};
use hekate_replica::Token;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// See the module.
#[derive(Default)]
pub struct Tickets {
    last: AtomicU64,
    open: Mutex<HashMap<Token, TicketState>>,
}

enum TicketState {
    /// The answer came before anybody asked for it.
    Early(Result<Reply>),
    Waiting(Arc<Waiter>),
    /// Nobody waits any more.
    Abandoned,
}

#[derive(Default)]
struct Waiter {
    answer: Mutex<Option<Result<Reply>>>,
    came: Condvar,
}

impl Tickets {
    /// A token of its own.
    pub fn token(&self) -> Token {
        Token(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Somebody else's request was answered.
    pub fn answer(&self, token: Token, answer: Result<Reply>) {
        let mut open = self.open.lock();
        match open.remove(&token) {
            Some(TicketState::Waiting(waiter)) => {
                *waiter.answer.lock() = Some(answer);
                waiter.came.notify_one();
            }
            Some(TicketState::Abandoned) => {}
            Some(TicketState::Early(_)) | None => drop(open.insert(token, TicketState::Early(answer))),
        }
    }

    /// Waits for the answer; `None` if it has not come in that time.
    pub fn wait(&self, token: Token, limit: Duration) -> Option<Result<Reply>> {
        let waiter = {
            let mut open = self.open.lock();
            if let Some(TicketState::Early(answer)) = open.remove(&token) {
                return Some(answer);
            }
            let waiter = Arc::new(Waiter::default());
            open.insert(token, TicketState::Waiting(waiter.clone()));
            waiter
        };
        let mut answer = waiter.answer.lock();
        if answer.is_none() {
            waiter.came.wait_for(&mut answer, limit);
        }
        answer.take()
    }

    /// Nobody waits for it any more; the answer, if it came after all.
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
            // It was answered just now, and taken from the list.
            Some(TicketState::Abandoned) | None => None,
        }
    }
}
