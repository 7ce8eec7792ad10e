//! Clients: each is a `hekate_client::Volume`, and each of its calls runs on a thread of its own.

use super::world::{Event, Person, World, trace};
use crate::cluster::client_servers::{SimulatedServers, answer};
use crate::cluster::messages::{briefly, bytes_of};
use crate::cluster::spread::NOT_JUDGED;
use crate::cluster::threads::{self, Action, Answer, MessageNumber, Owner};
use crate::cluster::workload::{looks_into, next_op};
use hekate_client::{Context, OpenOptions, Volume};
use hekate_proto::*;
use hekate_transport::Welcome;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Limit of an attempt to open the volume, and the pause before the next one.
const OPEN_LIMIT: Duration = Duration::from_secs(2);
const OPEN_PAUSE: Duration = Duration::from_millis(200);

impl World {
    /// Adds a client.
    pub fn join(&mut self, calls_left: u32, examines: bool) -> u32 {
        let number = self.people.len() as u32;
        let (volume, call, op, script) = (None, None, None, Default::default());
        self.people.push(Person { volume, call, op, calls_left, script, examines });
        self.begin_client(number);
        number
    }

    /// The client opens the volume, with a new session, and begins to call.
    fn begin_client(&mut self, client: u32) {
        let count = self.settings.servers;
        let body = move || {
            let Some((first, welcome)) = open_session(count) else { return };
            let servers = SimulatedServers { first, count, closed: AtomicBool::new(false) };
            let opened = Volume::over(Arc::new(servers), welcome, &OpenOptions::default());
            threads::in_world(move |world: &mut World| match opened {
                Ok(volume) => {
                    world.people[client as usize].volume = Some(Arc::new(volume));
                    world.thinks(client);
                }
                Err(error) => world.wrong.push(format!("client {client} cannot open the volume: {error}")),
            });
        };
        let thread = self.threads.add(Owner::Client(client), body);
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }

    pub fn thinks(&mut self, client: u32) {
        let delay = self.delay(self.settings.think_max);
        self.after(delay, Event::Next { client });
    }

    /// Begins the client's next call.
    pub fn next_call(&mut self, number: u32) {
        let person = &mut self.people[number as usize];
        let Some(volume) = person.volume.clone().filter(|_| person.call.is_none()) else { return };
        let (op, durable) = match person.script.pop_front() {
            Some(op) => (op, false),
            None if person.calls_left == 0 => return,
            None => {
                person.calls_left -= 1;
                next_op(&self.settings.workload, &self.known, number, &mut self.random)
            }
        };
        let durable = durable && !op.is_read();
        let at = self.moment();
        let person = &mut self.people[number as usize];
        let call = self.history.invoke(number, volume.session(), op.clone(), durable, at);
        (person.call, person.op) = (Some(call), Some(op.clone()));
        trace!(self, "client {number} asks {}", self.history.describe(call));
        let thread = self.threads.add(Owner::Client(number), move || {
            let outcome = volume.call(&Context { durable, ..Context::default() }, op);
            drop(volume);
            threads::ask(Action::Finished(outcome));
        });
        self.resume(thread, None, true);
    }

    /// A call has ended.
    pub fn finished(&mut self, number: u32, outcome: Result<Reply>) {
        let at = self.moment();
        let person = &mut self.people[number as usize];
        let (Some(call), Some(op)) = (person.call.take(), person.op.take()) else { return };
        match &outcome {
            Ok(reply) => {
                self.known.learn(reply);
                self.report.count(format!("acknowledged: {}", op.label()));
                if person.examines {
                    person.script.extend(looks_into(&op, reply));
                }
            }
            Err(error @ (Error::Bug { .. } | Error::Damaged { .. } | Error::Protocol { .. } | Error::SessionEnded)) => {
                self.wrong.push(format!("client {number} is answered {error} for {op:?}"));
            }
            Err(_) => self.report.count(format!("refused: {}", op.label())),
        }
        if !person.examines && self.spread.lists_parts(&op) {
            self.report.count(NOT_JUDGED);
        } else {
            let outcome = outcome.map(|reply| self.spread.without_parts(reply));
            self.history.answer(call, at, outcome);
        }
        trace!(self, "client {number} done {}", self.history.describe(call));
        self.thinks(number);
    }

    /// An answer arrives at a client.
    pub fn answer(&mut self, message: MessageNumber, answer: Answer) {
        let Some(of) = self.messages.remove(&message) else { return };
        trace!(self, "client {} gets {}", of.client, briefly(&answer));
        if let Answer::Replies(replies) = &answer {
            for reply in replies {
                self.spread.note(self.people[of.client as usize].op.as_ref(), reply);
                self.note(&bytes_of(reply));
            }
        }
        self.deliver_answer(message, answer);
    }

    /// A client dies; another one takes its place.
    pub fn client_dies(&mut self) {
        let number = self.random.below(self.people.len() as u64) as u32;
        trace!(self, "client {number} dies");
        self.report.count("fault: client death");
        self.end_client(number);
        self.begin_client(number);
    }

    /// Ends the client's process: the servers see its connections end.
    pub fn end_client(&mut self, number: u32) {
        let person = &mut self.people[number as usize];
        (person.call, person.op) = (None, None);
        let volume = person.volume.take();
        let session = volume.as_ref().map(|volume| volume.session());
        self.threads.end(Owner::Client(number), volume, self.now, &mut self.random);
        self.messages.retain(|_, message| message.client != number);
        session.into_iter().for_each(|session| self.disconnect(session));
    }

    fn disconnect(&mut self, session: SessionId) {
        (0..self.settings.servers).for_each(|server| self.disconnect_from(server, session));
    }

    /// The server sees that the session's connection has ended.
    fn disconnect_from(&mut self, server: u32, session: SessionId) {
        let own = &mut self.servers[server as usize];
        let Some(node) = own.node.clone().filter(|_| own.connected.remove(&session)) else { return };
        let body = move || hekate_transport::Service::disconnected(&*node, session);
        let thread = self.threads.add(Owner::Server(server), body);
        self.after(1, Event::Resume { thread, number: None, notified: true });
    }

    /// The connection of a message is lost.
    pub fn cut_connection(&mut self) {
        let count = self.messages.len() as u64;
        if count == 0 {
            return;
        }
        let chosen = self.random.below(count) as usize;
        self.report.count("fault: connection cut");
        let Some((message, of)) = self.messages.iter().nth(chosen) else { return };
        let (message, server, client) = (*message, of.server, of.client);
        self.lost(message);
        let volume = self.people.get(client as usize).and_then(|person| person.volume.as_ref());
        if let Some(session) = volume.map(|volume| volume.session()) {
            self.disconnect_from(server, session);
        }
    }

    /// True if all clients have made all their calls.
    pub fn is_quiet(&self) -> bool {
        let is_done = |one: &Person| one.volume.is_some() && one.call.is_none() && one.calls_left == 0;
        self.people.iter().all(|one| is_done(one) && one.script.is_empty())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        (0..self.people.len() as u32).for_each(|client| self.end_client(client));
        (0..self.servers.len() as u32).for_each(|server| self.kill(server));
    }
}

/// Opens a session at one of the servers. `None`: the client's process has ended.
fn open_session(count: u32) -> Option<(ServerId, Welcome)> {
    while !threads::is_dying() {
        let (message, server) = (threads::new_message(), ServerId(threads::below(u64::from(count)) as u32 + 1));
        threads::ask(Action::Open { message, server });
        if let Some(Answer::Opened(welcome)) = answer(message, Some(OPEN_LIMIT), &|| false) {
            return Some((server, *welcome));
        }
        hekate_threads::sleep(OPEN_PAUSE);
    }
    None
}
