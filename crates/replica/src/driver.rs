//! Ops over several partitions: an intent, legs before the commit point, the commit, legs after it.

use crate::execute::{Ask, Commit, Partitions, Stop, take_leg};
use crate::leader::Leader;
use hekate_proto::*;

/// One op over several partitions on its way. The driver is the partition whose record is the commit point.
pub struct Multi<'a> {
    parts: &'a mut dyn Partitions,
    ask: &'a Ask,
    driver: PartitionNumber,
    what: &'static str,
    intent: IntentId,
    intent_key: Key,
    numbers: Vec<Change>,
    /// Legs taken before the commit point.
    taken: usize,
}

/// A leg and the one that undoes it.
pub type Step = (Position, Leg, Leg);

impl<'a> Multi<'a> {
    /// Begins; nothing is written yet.
    pub fn begin(
        parts: &'a mut dyn Partitions,
        ask: &'a Ask,
        driver: PartitionNumber,
        what: &'static str,
    ) -> std::result::Result<Self, Stop> {
        let mut numbers = Vec::new();
        let intent = IntentId(u128::from(parts.leader(driver)?.next_number(&mut numbers)));
        let intent_key = Key::intent(ask.ring, driver.first_position(ask.count), intent);
        Ok(Self { parts, ask, driver, what, intent, intent_key, numbers, taken: 0 })
    }

    fn record(&self, legs: Vec<IntentLeg>) -> IntentRecord {
        IntentRecord { what: self.what.into(), volume: self.ask.volume, legs }
    }

    fn leg(&mut self, position: Position, number: u16, leg: &Leg) -> std::result::Result<(), Stop> {
        let at = self.ask.partition(position);
        self.parts.order(self.driver, at)?;
        take_leg(self.parts, self.ask, at, self.intent, number, leg)
    }

    /// Legs that must be taken before the commit. If one refuses, those before it are undone and the op fails.
    pub fn before(&mut self, steps: &[Step]) -> std::result::Result<(), Stop> {
        let undo =
            |number: usize, step: &Step| IntentLeg { position: step.0, number: number as u16, leg: step.2.clone() };
        let undoing: Vec<_> = steps.iter().enumerate().map(|(number, step)| undo(number, step)).collect();
        let mut commit = Commit { changes: std::mem::take(&mut self.numbers), ..Commit::default() };
        commit.put(self.intent_key.clone(), &self.record(undoing.clone()));
        self.parts.commit(self.driver, commit)?;
        for (number, (position, leg, _)) in steps.iter().enumerate() {
            if let Err(stop) = self.leg(*position, number as u16, leg) {
                self.parts.must_finish();
                for leg in undoing.iter().take(number) {
                    self.leg(leg.position, leg.number, &leg.leg)?;
                }
                let mut commit = Commit::default();
                commit.delete(self.intent_key.clone());
                self.parts.commit(self.driver, commit)?;
                return Err(stop);
            }
        }
        self.taken = steps.len();
        // The commit follows what the legs did.
        for (position, _, _) in steps {
            self.parts.order(self.ask.partition(*position), self.driver)?;
        }
        Ok(())
    }

    /// The commit point, and the legs that come after it: with this record the intent changes from undoing to finishing.
    pub fn commit(mut self, mut commit: Commit, legs: Vec<(Position, Leg)>) -> std::result::Result<(), Stop> {
        commit.changes.append(&mut self.numbers);
        if legs.is_empty() {
            if self.taken > 0 {
                commit.delete(self.intent_key);
            }
            return Ok(self.parts.commit(self.driver, commit)?);
        }
        let number = |(number, (position, leg))| IntentLeg { position, number: (self.taken + number) as u16, leg };
        let legs: Vec<_> = legs.into_iter().enumerate().map(number).collect();
        commit.put(self.intent_key.clone(), &self.record(legs.clone()));
        self.parts.commit(self.driver, commit)?;
        self.parts.must_finish();
        for IntentLeg { position, number, leg } in &legs {
            self.leg(*position, *number, leg)?;
        }
        self.parts.sweep(self.driver, self.intent_key);
        Ok(())
    }
}

/// After a crash, before anything else is served: undoes or finishes an op.
pub fn recover_intent(
    parts: &mut dyn Partitions,
    ask: &Ask,
    driver: PartitionNumber,
    intent: IntentId,
    record: &IntentRecord,
) -> std::result::Result<(), Stop> {
    for IntentLeg { position, .. } in &record.legs {
        parts.brick(ask.partition(*position))?;
    }
    for IntentLeg { position, number, leg } in &record.legs {
        let at = ask.partition(*position);
        parts.order(driver, at)?;
        take_leg(parts, ask, at, intent, *number, leg)?;
        parts.order(at, driver)?;
    }
    let mut commit = Commit::default();
    commit.delete(Key::intent(ask.ring, driver.first_position(ask.count), intent));
    Ok(parts.commit(driver, commit)?)
}

/// A new data id, of the partition of an inode.
pub fn new_data_id(leader: &mut Leader, inode: InodeId, changes: &mut Vec<Change>) -> DataId {
    let number = leader.next_number(changes);
    DataId((inode.bits() >> 64 << 64) | u128::from(number))
}
