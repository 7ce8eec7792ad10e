//! Histories that keep the rules, and others that break one.

use super::check;
use crate::history::Moment;
use crate::history::disks::{Cell, DiskAnswer, DiskCallNumber, DiskHistory, DiskOp, Tag};
use hekate_proto::{Error, Result};

const CELL: Cell = 3;

#[derive(Default)]
struct Run {
    history: DiskHistory,
    power_cuts: Vec<Moment>,
    now: Moment,
}

impl Run {
    fn did(&mut self, tenure: Option<DiskCallNumber>, op: DiskOp, outcome: Result<DiskAnswer>) -> DiskCallNumber {
        let client = tenure.map_or(self.history.calls().len(), |tenure| tenure) as u32;
        let number = self.history.invoke(client, tenure, op, self.now);
        self.history.answer(number, self.now + 5, outcome, false);
        self.now += 10;
        number
    }

    fn opened(&mut self, steals: bool) -> DiskCallNumber {
        let answer = DiskAnswer::Opened { confirmed: self.now + 2, read_only: false };
        self.did(None, DiskOp::Open { steals }, Ok(answer))
    }

    fn resumed(&mut self, tenure: DiskCallNumber) -> DiskCallNumber {
        let answer = DiskAnswer::Opened { confirmed: self.now + 2, read_only: false };
        self.did(Some(tenure), DiskOp::Resume, Ok(answer))
    }

    fn wrote(&mut self, tenure: DiskCallNumber, tag: Tag) {
        self.wrote_to(tenure, CELL, tag);
    }

    fn wrote_to(&mut self, tenure: DiskCallNumber, cell: Cell, tag: Tag) {
        let changes = vec![(vec![cell], tag)];
        self.did(Some(tenure), DiskOp::Change { changes, durable: false }, Ok(DiskAnswer::Done));
    }

    fn failed_to_write(&mut self, tenure: DiskCallNumber, tag: Tag) {
        let op = DiskOp::Change { changes: vec![(vec![CELL], tag)], durable: false };
        self.did(Some(tenure), op, Err(Error::Unavailable { what: "brick".into() }));
    }

    fn read(&mut self, tenure: DiskCallNumber, tag: Tag) {
        self.read_of(tenure, CELL, tag);
    }

    fn read_of(&mut self, tenure: DiskCallNumber, cell: Cell, tag: Tag) {
        self.did(Some(tenure), DiskOp::Read, Ok(DiskAnswer::Cells(vec![(cell, tag)])));
    }

    fn flushed(&mut self, tenure: DiskCallNumber) {
        self.did(Some(tenure), DiskOp::Flush, Ok(DiskAnswer::Done));
    }

    fn lost(&mut self, tenure: DiskCallNumber) {
        self.did(Some(tenure), DiskOp::Flush, Err(Error::Lost { what: "all".into() }));
    }

    fn snapshot(&mut self, tenure: DiskCallNumber) {
        self.did(Some(tenure), DiskOp::Snapshot { name: "s".into() }, Ok(DiskAnswer::Done));
    }

    fn snapshot_shows(&mut self, tag: Tag) {
        let op = DiskOp::ReadSnapshot { name: "s".into() };
        self.did(None, op, Ok(DiskAnswer::Cells(vec![(CELL, tag)])));
    }

    fn power_cut(&mut self) {
        self.power_cuts.push(self.now);
        self.now += 1;
    }

    fn is_right(&self) {
        assert_eq!(check(&self.history, &self.power_cuts), []);
    }

    fn is_wrong(&self, why: &str) {
        let wrong = check(&self.history, &self.power_cuts);
        assert!(wrong.first().is_some_and(|wrong| wrong.what.contains(why)), "{wrong:?}");
    }
}

/// An owner that has written 1, flushed it, and written 2.
fn owned() -> (Run, DiskCallNumber) {
    let mut run = Run::default();
    let owner = run.opened(false);
    run.wrote(owner, 1);
    run.flushed(owner);
    run.wrote(owner, 2);
    (run, owner)
}

#[test]
fn an_owner_reads_what_it_has_written() {
    let (mut run, owner) = owned();
    run.read(owner, 2);
    run.is_right();
    run.read(owner, 1);
    run.is_wrong("it was overwritten");
}

#[test]
fn the_next_owner_finds_everything_unless_the_power_failed() {
    let found = |tag, power_fails| {
        let (mut run, _) = owned();
        if power_fails {
            run.power_cut();
        }
        let next = run.opened(true);
        run.read(next, tag);
        run
    };
    found(2, false).is_right();
    found(1, false).is_wrong("the tenures before have left 2");
    found(2, true).is_right();
    found(1, true).is_right();
    found(0, true).is_wrong("the tenures before have left 1 or 2");
}

#[test]
fn what_a_read_has_shown_stays() {
    let (mut run, _) = owned();
    run.power_cut();
    let next = run.opened(true);
    run.read(next, 1);
    run.read(next, 2);
    run.is_wrong("the tenures before have left 1");
}

#[test]
fn an_old_owner_writes_and_flushes_in_vain() {
    let (mut run, owner) = owned();
    let next = run.opened(true);
    run.wrote(owner, 3);
    run.read(next, 2);
    run.is_right();
    let mut shown = Run { history: run.history.clone(), ..run };
    shown.read(next, 3);
    shown.is_wrong("the tenures before have left 2");
    // A flush that an old owner was answered covers what it has written.
    let (mut run, owner) = owned();
    run.wrote(owner, 3);
    run.history.invoke(9, None, DiskOp::Open { steals: true }, 0);
    let next = run.opened(true);
    run.flushed(owner);
    run.read(next, 2);
    run.is_wrong("the tenures before have left 3");
}

#[test]
fn what_is_lost_is_the_end() {
    let run_of = |tag| {
        let (mut run, owner) = owned();
        run.wrote_to(owner, 4, 7);
        run.power_cut();
        let next = run.opened(false);
        run.read_of(next, 4, 7);
        run.read(next, tag);
        run
    };
    run_of(2).is_right();
    run_of(1).is_wrong("the tenures before have left 2");
}

#[test]
fn a_change_that_failed_is_made_or_not_and_then_stays_so() {
    let (mut run, owner) = owned();
    run.failed_to_write(owner, 3);
    let next = run.opened(false);
    run.read(next, 3);
    run.is_right();
    run.read(next, 2);
    run.is_wrong("the tenures before have left 3");
}

#[test]
fn a_loss_is_reported_and_ends_the_writes() {
    let (mut run, owner) = owned();
    let mut early = Run { history: run.history.clone(), now: run.now, ..Run::default() };
    early.lost(owner);
    early.is_wrong("nothing was lost");
    run.power_cut();
    // The place of what was lost may show anything.
    run.read(owner, 9);
    run.lost(owner);
    let resumed = run.resumed(owner);
    run.read(resumed, 1);
    run.wrote(resumed, 4);
    run.read(resumed, 4);
    run.is_right();
    run.wrote(owner, 5);
    run.is_wrong("written after a loss was reported");
}

#[test]
fn what_is_lost_takes_its_block_along_until_a_resume() {
    let run_of = |cell, tag, resumes| {
        let mut run = Run::default();
        let owner = run.opened(false);
        run.wrote_to(owner, 7, 1);
        run.wrote_to(owner, 8, 5);
        run.flushed(owner);
        run.wrote_to(owner, 6, 2);
        run.power_cut();
        let mut reader = owner;
        if resumes {
            run.lost(owner);
            reader = run.resumed(owner);
        }
        run.read_of(reader, cell, tag);
        run
    };
    run_of(7, 0, false).is_right();
    run_of(8, 0, false).is_wrong("it was overwritten");
    run_of(7, 0, true).is_wrong("the tenures before have left 1");
}

#[test]
fn a_snapshot_is_a_moment_and_stays() {
    let run_of = |first, second| {
        let (mut run, owner) = owned();
        run.snapshot(owner);
        run.wrote(owner, 3);
        run.snapshot_shows(first);
        run.snapshot_shows(second);
        run
    };
    run_of(2, 2).is_right();
    run_of(1, 1).is_wrong("cell 3 shows 1, and has to be 2");
    run_of(3, 3).is_wrong("cell 3 shows 3, and has to be 2");
    run_of(2, 3).is_wrong("snapshot s");
}

#[test]
fn only_another_opening_ends_a_tenure() {
    let (mut run, owner) = owned();
    run.did(Some(owner), DiskOp::Flush, Err(Error::SessionEnded));
    run.is_wrong("nobody has taken the vDisk");
    let (mut run, owner) = owned();
    run.opened(true);
    run.did(Some(owner), DiskOp::Flush, Err(Error::SessionEnded));
    run.is_right();
}
