//! Random ops beside a model without ranges: an array of what each owner holds of each byte, the waits in order of
//! arrival, and a matrix of which owner waits for which.

use super::*;
use proptest::prelude::*;

const FILES: usize = 2;
const OWNERS: usize = 6;
/// Bytes 0 to 15, and one for flock.
const BYTES: usize = 17;
const FLOCK: usize = BYTES - 1;

#[derive(Debug, Clone)]
enum Step {
    Set { file: usize, owner: usize, write: bool, bytes: (usize, usize), wait: bool },
    Unlock { file: usize, owner: usize, bytes: (usize, usize) },
    Cancel(usize),
    Release { file: usize, owner: usize },
    End { session: usize },
}

fn bytes() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![
        6 => (0..FLOCK, 0..FLOCK).prop_map(|(a, b)| (a.min(b), a.max(b))),
        1 => Just((FLOCK, FLOCK)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let (file, owner) = (0..FILES, 0..OWNERS);
    prop_oneof![
        10 => (file.clone(), owner.clone(), any::<bool>(), bytes(), prop::bool::weighted(0.7))
            .prop_map(|(file, owner, write, bytes, wait)| Step::Set { file, owner, write, bytes, wait }),
        4 => (file.clone(), owner.clone(), bytes())
            .prop_map(|(file, owner, bytes)| Step::Unlock { file, owner, bytes }),
        2 => any::<prop::sample::Index>().prop_map(|index| Step::Cancel(index.index(64))),
        1 => (file, owner).prop_map(|(file, owner)| Step::Release { file, owner }),
        1 => (0..OWNERS / 2).prop_map(|session| Step::End { session }),
    ]
}

/// A wait of the model.
#[derive(Debug, Clone)]
struct Queued {
    ticket: Ticket,
    file: usize,
    owner: usize,
    write: bool,
    bytes: (usize, usize),
}

impl Queued {
    fn conflicts(&self, other: &Self) -> bool {
        let apart = self.bytes.1 < other.bytes.0 || other.bytes.1 < self.bytes.0;
        self.file == other.file && self.owner != other.owner && !apart && (self.write || other.write)
    }
}

/// The locks that owners hold of each byte: `Some(true)` to write.
type Held = [[[Option<bool>; BYTES]; OWNERS]; FILES];

#[derive(Default)]
struct Model {
    held: Held,
    queue: Vec<Queued>,
}

impl Model {
    fn blockers(&self, wait: &Queued) -> Vec<usize> {
        let stops = |held: &Option<bool>| held.is_some_and(|write| write || wait.write);
        let holds = |owner: &usize| self.held[wait.file][*owner][wait.bytes.0..=wait.bytes.1].iter().any(stops);
        (0..OWNERS).filter(|owner| *owner != wait.owner && holds(owner)).collect()
    }

    fn before(&self, wait: &Queued) -> Vec<usize> {
        let earlier = self.queue.iter().take_while(|other| other.ticket != wait.ticket);
        earlier.filter(|other| other.conflicts(wait)).map(|other| other.owner).collect()
    }

    /// Warshall's algorithm: which owner waits for which through held locks (fcntl waits), or also through the queue
    /// (all waits).
    fn depends(&self, with_queue: bool) -> [[bool; OWNERS]; OWNERS] {
        let mut on: [[bool; OWNERS]; OWNERS] = std::array::from_fn(|a| std::array::from_fn(|b| a == b));
        for wait in self.queue.iter().filter(|wait| with_queue || wait.bytes.0 != FLOCK) {
            let before = if with_queue { self.before(wait) } else { Vec::new() };
            self.blockers(wait).into_iter().chain(before).for_each(|other| on[wait.owner][other] = true);
        }
        for (via, a, b) in (0..OWNERS).flat_map(|v| (0..OWNERS).flat_map(move |a| (0..OWNERS).map(move |b| (v, a, b))))
        {
            on[a][b] |= on[a][via] && on[via][b];
        }
        on
    }

    fn is_free(&self, wait: &Queued) -> bool {
        let on = self.depends(true);
        self.blockers(wait).is_empty() && self.before(wait).iter().all(|other| on[*other][wait.owner])
    }

    fn is_deadlock(&self, wait: &Queued) -> bool {
        let on = self.depends(false);
        wait.bytes.0 != FLOCK && self.blockers(wait).iter().any(|other| on[*other][wait.owner])
    }

    fn hold(&mut self, file: usize, owner: usize, (first, last): (usize, usize), kind: Option<bool>) {
        self.held[file][owner][first..=last].fill(kind);
    }
}

struct Pair {
    table: LockTable,
    model: Model,
    op: u64,
}

fn file(number: usize) -> LockedFile {
    LockedFile { volume: VolumeId(1 + number as u32), inode: ROOT }
}

fn session(owner: usize) -> SessionId {
    SessionId(owner as u64 / 2)
}

fn wire(owner: usize, kind: LockKind, (first, last): (usize, usize)) -> Lock {
    let owner = LockOwner(owner as u64);
    let (start, end) = match (first, last) {
        (FLOCK, _) => (0, LOCK_END),
        (first, 15) => (first as u64, LOCK_END),
        (first, last) => (first as u64, last as u64),
    };
    let style = if first == FLOCK { LockStyle::Flock } else { LockStyle::Posix };
    Lock { kind, style, start, end, owner, pid: 0 }
}

impl Pair {
    fn ticket(&mut self, owner: usize) -> Ticket {
        self.op += 1;
        Ticket { session: session(owner), op_id: OpId(self.op) }
    }

    fn run(&mut self, step: &Step) {
        match step.clone() {
            Step::Set { file, owner, write, bytes, wait } => self.set(file, owner, write, bytes, wait),
            Step::Unlock { file, owner, bytes } => self.unlock(file, owner, bytes),
            Step::Cancel(index) => self.cancel(index),
            Step::Release { file: number, owner } => {
                self.model.hold(number, owner, (0, FLOCK), None);
                self.table.release(session(owner), LockOwner(owner as u64), file(number));
            }
            Step::End { session: ended } => {
                self.model.queue.retain(|wait| wait.owner / 2 != ended);
                for (number, owner) in (0..FILES).flat_map(|number| (0..2).map(move |own| (number, 2 * ended + own))) {
                    self.model.hold(number, owner, (0, FLOCK), None);
                }
                self.table.end_session(SessionId(ended as u64));
            }
        }
        self.compare();
    }

    fn set(&mut self, number: usize, owner: usize, write: bool, bytes: (usize, usize), wait: bool) {
        // A conversion releases the old lock first. As two steps, the model can grant other waits in between.
        if bytes.0 == FLOCK && self.model.held[number][owner][FLOCK] == Some(!write) {
            self.unlock(number, owner, bytes);
            self.compare();
        }
        let kind = if write { LockKind::Write } else { LockKind::Read };
        let ticket = self.ticket(owner);
        let outcome = self.table.set(ticket, file(number), &wire(owner, kind, bytes), wait).unwrap();
        let asked = Queued { ticket, file: number, owner, write, bytes };
        let blockers = self.model.blockers(&asked);
        match outcome {
            Outcome::Granted => {
                assert!(if wait { self.model.is_free(&asked) } else { blockers.is_empty() }, "{asked:?}");
                self.model.hold(number, owner, bytes, Some(write));
            }
            Outcome::Conflict(with) => assert!(!wait && blockers.contains(&(with.lock.owner.0 as usize))),
            Outcome::Deadlock => assert!(wait && self.model.is_deadlock(&asked), "{asked:?}"),
            Outcome::Waiting(same) => {
                assert!(wait && same == ticket && !self.model.is_deadlock(&asked), "{asked:?}");
                self.model.queue.push(asked);
            }
        }
    }

    fn unlock(&mut self, number: usize, owner: usize, bytes: (usize, usize)) {
        self.model.hold(number, owner, bytes, None);
        let ticket = self.ticket(owner);
        let outcome = self.table.set(ticket, file(number), &wire(owner, LockKind::Unlock, bytes), true);
        assert_eq!(outcome, Ok(Outcome::Granted));
    }

    fn cancel(&mut self, index: usize) {
        if !self.model.queue.is_empty() {
            let wait = self.model.queue.remove(index % self.model.queue.len());
            assert!(self.table.cancel(wait.ticket));
        }
    }

    /// Each grant follows the rules. Then the table and the model hold the same, and no wait is left that could be
    /// answered.
    fn compare(&mut self) {
        for EndedWait { ticket, answer } in self.table.take_ended_waits() {
            self.table.unseen.remove(&ticket);
            let Some(place) = self.model.queue.iter().position(|wait| wait.ticket == ticket) else {
                assert!(matches!(answer, Err(Error::Interrupted | Error::SessionEnded)), "{answer:?}");
                continue;
            };
            let wait = self.model.queue[place].clone();
            match answer {
                Ok(_) => assert!(self.model.is_free(&wait), "{wait:?} was granted"),
                Err(Error::Deadlock) => assert!(self.model.is_deadlock(&wait), "{wait:?}"),
                Err(error) => panic!("{error}"),
            }
            self.model.queue.remove(place);
            if answer.is_ok() {
                self.model.hold(wait.file, wait.owner, wait.bytes, Some(wait.write));
            }
        }
        assert_eq!(held_by(&self.table), self.model.held);
        for wait in &self.model.queue {
            assert!(!self.model.is_free(wait), "{wait:?} could be granted");
            assert!(!self.model.is_deadlock(wait), "{wait:?} waits for itself");
        }
        self.no_conflicts();
    }

    fn no_conflicts(&self) {
        for (file, byte) in (0..FILES).flat_map(|file| (0..BYTES).map(move |byte| (file, byte))) {
            let of_byte: Vec<bool> = self.model.held[file].iter().filter_map(|bytes| bytes[byte]).collect();
            assert!(of_byte.len() <= 1 || !of_byte.contains(&true), "byte {byte}: {of_byte:?}");
        }
        let counted: usize = self.table.held_by_session.values().sum();
        assert_eq!(counted, self.table.files.values().map(|locks| locks.held.len()).sum::<usize>());
    }

    /// Owners that do not wait release their locks until no wait is left. Only cycles with flock in them need a cancel.
    fn drain(&mut self) {
        while !self.model.queue.is_empty() {
            let waits = self.model.queue.len();
            let idle: Vec<usize> =
                (0..OWNERS).filter(|owner| self.model.queue.iter().all(|wait| wait.owner != *owner)).collect();
            for (number, owner) in idle.into_iter().flat_map(|owner| (0..FILES).map(move |number| (number, owner))) {
                self.run(&Step::Release { file: number, owner });
            }
            if self.model.queue.len() == waits {
                let ring = self.model.queue.iter().position(|wait| wait.bytes.0 == FLOCK);
                self.run(&Step::Cancel(ring.expect("a wait that nothing ends")));
            }
        }
    }
}

/// The table's locks as bytes.
fn held_by(table: &LockTable) -> Held {
    let mut held = Held::default();
    for (at, locks) in table.list() {
        for one in &locks.held {
            let bytes = match one.lock.style {
                LockStyle::Flock => FLOCK..=FLOCK,
                LockStyle::Append => panic!("the model has no append locks: {locks:?}"),
                LockStyle::Posix => one.lock.start as usize..=one.lock.end.min(15) as usize,
            };
            let cells = &mut held[at.volume.0 as usize - 1][one.lock.owner.0 as usize][bytes];
            assert!(cells.iter().all(Option::is_none), "an owner holds a byte twice: {locks:?}");
            cells.fill(Some(one.lock.kind == LockKind::Write));
        }
    }
    held
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_table_does_what_a_byte_array_does(steps in prop::collection::vec(step(), 1..60)) {
        let mut pair = Pair { table: LockTable::new(LockSettings::default()), model: Model::default(), op: 0 };
        steps.iter().for_each(|step| pair.run(step));
        pair.drain();
    }
}
