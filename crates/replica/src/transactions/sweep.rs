//! Removes what ops over several partitions leave behind: intents and marks of ops that have ended, and shards of data
//! ids that were given up.

use crate::context::Context;
use crate::leader::Leader;
use crate::log::append::Appended;
use crate::log::number_allocator::Numbers;
use crate::log::settle::Then;
use crate::membership::Membership;
use crate::message::{Address, Message};
use crate::ops::step::Commit;
use crate::transactions::driven::{Aim, Driven};
use hekate_proto::*;
use std::collections::BTreeSet;

/// Data ids whose shards are dropped at the same time: a bound of the ops in flight for garbage.
const COLLECT_AT_ONCE: usize = 8;

/// Time between two records that remove intents and marks, in ns: 200 ms, so that one record removes those of many ops.
const SWEEP_PAUSE_NS: u64 = 200_000_000;

impl Leader {
    /// Removes the intents and marks of ops that have ended, with one record.
    pub fn sweep(&mut self, cx: &mut Context) -> Result<()> {
        let intents = std::mem::take(&mut self.transactions.swept);
        let marks = std::mem::take(&mut self.transactions.forgotten);
        if intents.is_empty() && marks.is_empty() {
            return Ok(());
        }
        let mut commit = Commit::default();
        intents.iter().for_each(|intent| commit.delete(self.intent_key(cx.at, *intent)));
        marks.iter().for_each(|mark| commit.delete(mark.clone()));
        match self.append_own(cx, commit)? {
            Appended::Made(sequence) => {
                let stable = intents.iter().any(|intent| self.is_marked_elsewhere(cx, *intent));
                intents.into_iter().for_each(|intent| self.when(sequence, stable, Then::Forget(intent)));
            }
            Appended::NoRoom => (self.transactions.swept, self.transactions.forgotten) = (intents, marks),
            Appended::Refused(error) => return Err(error),
        }
        Ok(())
    }

    pub(super) fn is_marked_elsewhere(&self, cx: &Context, intent: IntentId) -> bool {
        let marked = self.transactions.driven.get(&intent).map(|driven| driven.marked.as_slice()).unwrap_or_default();
        marked.iter().any(|partition| !cx.has_same_bricks(*partition))
    }

    /// Ends an op for good, and requests that the partitions that took its legs remove their marks.
    pub fn send_forget(&mut self, cx: &mut Context, intent: IntentId) {
        let Some(driven) = self.transactions.driven.remove(&intent) else { return };
        for partition in driven.marked {
            if let Some(to) = cx.leader_of(partition) {
                cx.send(to, Message::Forget { intent });
            }
        }
    }

    /// Answers a partition that took a leg and asks whether its mark is still needed. The removal of the intent is made
    /// stable first, so that a power cut cannot undo it.
    pub fn is_gone(&mut self, cx: &Context, from: Address, intent: IntentId) -> Result<()> {
        let known = self.transactions.driven.contains_key(&intent) || !self.takes_legs();
        if !known && cx.around.brick.get(&self.intent_key(cx.at, intent))?.is_none() {
            let elsewhere = !cx.has_same_bricks(from.partition);
            self.when(self.log.last(), elsewhere, Then::SendForget(from, intent));
        }
        Ok(())
    }

    /// Asks the drivers of ops of which this partition has marks whether the ops have ended.
    pub fn ask_whether_gone(&self, cx: &mut Context) {
        for intent in &self.transactions.doubtful {
            let driver = Numbers::partition_of(intent.0 as u64, cx.at.count).and_then(|driver| cx.leader_of(driver));
            if let Some(to) = driver {
                cx.send(to, Message::IsGone { intent: *intent });
            }
        }
    }

    /// True if the pause since the last sweep is over.
    pub fn is_time_to_sweep(&mut self, now: Time) -> bool {
        let due = now.0.abs_diff(self.transactions.swept_at.0) >= SWEEP_PAUSE_NS;
        if due {
            self.transactions.swept_at = now;
        }
        due
    }

    /// Begins to drop the shards of data ids that were given up, in each partition that may have some.
    pub fn collect(&mut self, at: &Membership) {
        while self.numbers.has_room()
            && self.transactions.driven.values().filter(|driven| matches!(driven.aim, Aim::Collect(..))).count()
                < COLLECT_AT_ONCE
        {
            let Some((key, record)) = self.discarded.next_garbage() else { return };
            let (Some(place), Some(data)) = (key.prefix(), key.id()) else { continue };
            let shard = |index| ShardId { volume: place.volume, data: DataId(data), index };
            let partitions: BTreeSet<PartitionNumber> = match record.shards > u64::from(at.count) * 8 {
                true => (0..at.count).map(PartitionNumber).collect(),
                false => (0..record.shards).map(|index| shard(index).position().partition(at.count)).collect(),
            };
            let leg = |(number, partition): (usize, PartitionNumber)| IntentLeg {
                position: partition.first_position(at.count),
                number: number as u16,
                leg: Leg::DropShards { data: DataId(data), to: record.shards },
            };
            let legs = partitions.into_iter().enumerate().map(leg).collect();
            let intent = IntentId(u128::from(self.numbers.next()));
            self.transactions.driven.insert(intent, Driven::collecting(key, record, legs, at.count));
            self.when(self.log.last(), true, Then::SendLegs(intent, self.log.last()));
        }
    }
}
