//! What a new leader finds in its brick: intents to undo or finish, holds of other partitions' ops, orphans and
//! garbage.

use crate::context::Context;
use crate::leader::Leader;
use crate::log::settle::Then;
use crate::transactions::driven::Driven;
use crate::transactions::legs::undoes;
use bytes::Bytes;
use hekate_proto::planted::{Bug, is_planted};
use hekate_proto::*;

/// Entries that one scan returns at most.
const SCAN_AT_ONCE: usize = 1024;

impl Leader {
    /// Reads the partition's unfinished work from the brick, and begins to undo or finish intents.
    pub fn find_work(&mut self, cx: &mut Context) -> Result<()> {
        self.transactions.driven.retain(|_, driven| !driven.is_recovered());
        self.discarded.clear_garbage();
        self.transactions.prepared.clear();
        self.transactions.unborn.clear();
        self.times.forget();
        let (mut from, to) = Key::work_range(cx.at.ring, cx.at.own.partition, cx.at.count);
        loop {
            let found = cx.around.brick.scan(&from, &to, SCAN_AT_ONCE)?;
            let Some((last, _)) = found.last() else { return Ok(()) };
            from = last.successor();
            for (key, value) in &found {
                self.find(cx, key, value)?;
            }
        }
    }

    fn find(&mut self, cx: &mut Context, key: &Key, value: &Bytes) -> Result<()> {
        let Some(id) = key.id() else { return Ok(()) };
        match key.kind() {
            Some(Kind::Intent) if is_planted(Bug::IntentsNotRecovered) => {}
            Some(Kind::Intent) if !self.transactions.driven.contains_key(&IntentId(id)) => {
                let record = IntentRecord::from_bytes(value.clone()).map_err(Error::from)?;
                cx.out.branches.push(match record.legs.first().is_some_and(|leg| undoes(&leg.leg)) {
                    true => "recovery: an intent is undone",
                    false => "recovery: an intent is finished",
                });
                self.transactions.driven.insert(IntentId(id), Driven::recovered(record, cx.at.count));
                // A power cut must not remove the records that these legs depend on.
                self.when(self.log.last(), true, Then::SendLegs(IntentId(id), self.log.last()));
            }
            Some(Kind::Hold) => drop(self.transactions.prepared.insert(key.clone())),
            Some(Kind::Writing) => {
                let volume = key.prefix().map(|place| place.volume).unwrap_or_default();
                self.times.find((volume, InodeId::from_bits(id)), value);
            }
            Some(Kind::LegDone) => {
                self.transactions.doubtful.insert(IntentId(id));
                if let Ok(directory) = InodeId::from_bytes(value.clone()) {
                    self.transactions.unborn.insert(IntentId(id), directory);
                }
            }
            _ => self.note_work(key, value, cx.out),
        }
        Ok(())
    }
}
