//! Histories of one or two steps, with a power cut at each call, in which each unsynced change alone survives or alone is
//! lost: all of one step, and a sample of two; all of both with `HEKATE_ALL=1`.

use super::cuts::{Thoroughness, cut_everywhere, describe};
use super::steps::Step;
use super::{on_all_processors, report, sample_every};

/// One step of each kind, on shards that other steps write too.
fn alphabet() -> Vec<Vec<Step>> {
    let put = Step::Put { partition: 0, name: 1, bytes: 5 };
    let write = Step::Write { shard: 0, first: 1, count: 2, short: 100 };
    let fresh = Step::Fresh { shard: 0, gap: 0, count: 2, short: 100 };
    let one = [
        put.clone(),
        Step::Delete { partition: 0, name: 1 },
        // Fills the segment, so that the next record begins another.
        Step::Put { partition: 1, name: 2, bytes: 40_000 },
        write.clone(),
        fresh.clone(),
        Step::FreshWithoutRecord { shard: 0, gap: 0, count: 1 },
        Step::Cut { shard: 0, bytes: 5000 },
        Step::Cut { shard: 0, bytes: 0 },
        Step::Punch { shard: 0, first: 1, count: 2 },
        Step::Reserve { shard: 0, count: 3 },
        Step::Drop { shard: 0 },
        Step::SyncShards { shards: 7 },
        Step::Checkpoint,
        Step::CheckpointAround(vec![put, write, fresh]),
        Step::Reopen { clean: false },
        Step::Reopen { clean: true },
    ];
    one.into_iter().map(|step| vec![step]).collect()
}

/// What the brick held before: nothing, or a shard partly at home and partly in the journal.
fn beginnings() -> [Vec<Step>; 2] {
    let fresh = Step::Fresh { shard: 0, gap: 0, count: 3, short: 0 };
    let put = Step::Put { partition: 0, name: 1, bytes: 3 };
    let write = Step::Write { shard: 0, first: 1, count: 1, short: 0 };
    [vec![], vec![fresh, put, Step::Checkpoint, write, Step::Sync]]
}

/// One of so many histories of two steps. It has no common divisor with the number of second steps, so that the sample
/// has each first and each second step.
const SAMPLED: u64 = 6;

#[test]
fn histories_of_one_or_two_steps_lose_power_anywhere() {
    let alphabet = alphabet();
    let (letters, beginnings) = (alphabet.len() as u64, beginnings());
    let kinds = letters * (letters + 1);
    let history = |number: u64| {
        let beginning = &beginnings[(number / kinds) as usize];
        let (first, second) = ((number % kinds / (letters + 1)) as usize, (number % (letters + 1)) as usize);
        // The index behind the alphabet stands for no second step.
        let second = alphabet.get(second).cloned().unwrap_or_default();
        let steps = [alphabet[first].clone(), second, vec![Step::Sync]].concat();
        (beginning.clone(), steps)
    };
    let one = |number| {
        let (beginning, steps) = history(number);
        cut_everywhere(&beginning, &steps, Thoroughness::Each, false)
    };
    let distance = sample_every(SAMPLED);
    let is_tried = |number: &u64| number.is_multiple_of(distance) || number % (letters + 1) == letters;
    let numbers: Vec<u64> = (0..beginnings.len() as u64 * kinds).filter(is_tried).collect();
    match on_all_processors(numbers.len() as u64, |index| one(numbers[index as usize])) {
        Ok(tried) => report(&format!("{} histories", numbers.len()), tried),
        Err((index, what)) => {
            let number = numbers[index as usize];
            let (beginning, steps) = history(number);
            panic!("history {number} fails: {what}\n{}then, recorded:\n{}", describe(&beginning), describe(&steps));
        }
    }
}
