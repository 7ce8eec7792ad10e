//! The servers as a simulated client reaches them: what `transport::ServerPool` is to a mount.

use crate::simulator::threads::{self, Action, Answer, MessageNumber};
use hekate_proto::map::VolumeMap;
use hekate_proto::{Error, Notification, Request, Result, ServerId};
use hekate_transport::{Notifications, PendingBatch, Replies, Servers};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which a wait checks whether its caller gave up, as in `transport`.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Limit for the handshake of a connection for notifications.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// Limit for one server's map.
const MAP_LIMIT: Duration = Duration::from_secs(2);

/// The servers of one client.
pub struct SimulatedServers {
    pub first: ServerId,
    pub count: u32,
    pub closed: AtomicBool,
}

/// A batch on its way.
struct Batch(MessageNumber);

fn unavailable(server: ServerId) -> Error {
    Error::Unavailable { what: format!("server {server} is not reached") }
}

fn send(server: ServerId, requests: &[Request]) -> Result<Batch> {
    if threads::is_dying() {
        // Not an error after which destructors would try again.
        return Err(Error::SessionEnded);
    }
    let message = threads::new_message();
    threads::ask(Action::Send { message, server, requests: requests.to_vec() });
    Ok(Batch(message))
}

/// Waits for the answer to a message. `None`: it is lost, the limit is over, or the caller gave up. As in `transport`,
/// `gave_up` is asked after each interval without an answer. It may wait itself, for a map for instance, and the
/// notification of an answer that comes meanwhile reaches no thread: so the answer is looked for after it.
pub fn answer(message: MessageNumber, limit: Option<Duration>, gave_up: &dyn Fn() -> bool) -> Option<Answer> {
    let end = limit.map(|limit| hekate_threads::now() + limit);
    loop {
        match threads::take_answer(message) {
            Some(Answer::Lost) => return None,
            Some(answer) => return Some(answer),
            None => {}
        }
        let left = end.map(|end| end.saturating_duration_since(hekate_threads::now()));
        let interval = left.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL);
        if interval.is_zero()
            || threads::is_dying()
            || !threads::wait(Some(threads::key_of(message)), Some(interval)) && gave_up()
        {
            threads::ask(Action::Forget { message });
            return None;
        }
    }
}

impl PendingBatch for Batch {
    fn finish(self: Box<Self>, gave_up: &dyn Fn() -> bool) -> Result<Replies> {
        match answer(self.0, None, gave_up) {
            Some(Answer::Replies(replies)) => Ok(replies),
            Some(Answer::Refused(error)) => Err(error),
            _ => Err(Error::Unavailable { what: "the connection is lost".into() }),
        }
    }
}

/// A connection for notifications.
struct Listening {
    message: MessageNumber,
    /// What has come and was not taken yet.
    come: VecDeque<Notification>,
}

impl Notifications for Listening {
    fn next(&mut self, limit: Duration) -> std::io::Result<Option<Notification>> {
        let end = hekate_threads::now() + limit;
        loop {
            if let Some(next) = self.come.pop_front() {
                return Ok(Some(next));
            }
            match threads::take_answer(self.message) {
                Some(Answer::Notified(all)) => {
                    self.come.extend(all);
                    continue;
                }
                Some(_) => return Err(std::io::ErrorKind::ConnectionReset.into()),
                None if threads::is_dying() => return Err(std::io::ErrorKind::ConnectionAborted.into()),
                None => {}
            }
            let left = end.saturating_duration_since(hekate_threads::now());
            if left.is_zero() {
                return Ok(None);
            }
            threads::wait(Some(threads::key_of(self.message)), Some(left));
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        threads::ask(Action::Forget { message: self.message });
    }
}

impl Servers for SimulatedServers {
    fn first(&self) -> ServerId {
        self.first
    }

    fn attempt(
        &self,
        server: ServerId,
        requests: &mut [Request],
        limit: Option<Duration>,
        gave_up: &dyn Fn() -> bool,
    ) -> Result<Replies> {
        let Batch(message) = send(server, requests)?;
        match answer(message, limit, gave_up) {
            Some(Answer::Replies(replies)) => Ok(replies),
            Some(Answer::Refused(error)) => Err(error),
            _ => {
                requests.iter_mut().for_each(|request| request.retry = true);
                Err(unavailable(server))
            }
        }
    }

    fn begin(&self, server: ServerId, requests: &[Request], _: &dyn Fn() -> bool) -> Result<Box<dyn PendingBatch>> {
        Ok(Box::new(send(server, requests)?))
    }

    fn listen(&self, server: ServerId) -> Result<Box<dyn Notifications>> {
        let message = threads::new_message();
        threads::ask(Action::Listen { message, server });
        match answer(message, Some(HELLO_LIMIT), &|| self.is_closed()) {
            Some(Answer::Listening) => Ok(Box::new(Listening { message, come: VecDeque::new() })),
            Some(Answer::Refused(error)) => Err(error),
            _ => Err(unavailable(server)),
        }
    }

    fn map(&self) -> Result<VolumeMap> {
        let first = threads::below(u64::from(self.count)) as u32;
        for step in 0..self.count {
            if threads::is_dying() {
                break;
            }
            let (message, server) = (threads::new_message(), ServerId((first + step) % self.count + 1));
            threads::ask(Action::AskMap { message, server });
            if let Some(Answer::Map(map)) = answer(message, Some(MAP_LIMIT), &|| self.is_closed()) {
                return Ok(*map);
            }
        }
        Err(Error::Unavailable { what: "no server answers".into() })
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::threads::{Owner, Suspended, Threads};
    use hekate_brick::storage::Random;

    const MESSAGE: MessageNumber = 1;

    #[test]
    fn an_answer_that_comes_while_its_caller_decides_whether_to_give_up_is_taken_at_once() {
        let (mut all, mut random) = (Threads::new(), Random::new(0));
        let thread = all.add(Owner::Client(0), || {
            let gave_up = || {
                threads::wait(None, Some(POLL_INTERVAL));
                false
            };
            assert!(answer(MESSAGE, None, &gave_up).is_some());
        });
        let mut resume = |all: &mut Threads| all.resume(thread, None, false, (0, &mut random)).map(|ran| ran.suspended);
        // Until it decides: then it waits without a key.
        while !matches!(resume(&mut all), Some(Suspended::Waiting { key: None, .. })) {}
        all.put_answer(MESSAGE, Answer::Listening);
        assert!(matches!(resume(&mut all), Some(Suspended::Ended)), "it waits again though the answer is there");
    }

    #[test]
    fn nothing_comes_on_a_connection_that_is_lost() {
        let (mut all, mut random) = (Threads::new(), Random::new(0));
        all.put_answer(MESSAGE, Answer::Lost);
        all.put_answer(MESSAGE, Answer::Listening);
        let thread = all.add(Owner::Client(0), || {
            assert!(answer(MESSAGE, None, &|| false).is_none());
        });
        let ran = all.resume(thread, None, false, (0, &mut random)).map(|ran| ran.suspended);
        assert!(matches!(ran, Some(Suspended::Ended)));
    }
}
