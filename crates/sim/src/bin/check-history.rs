//! `check-history FILE`: checks whether a history recorded from mounts is linearizable (`hekate_sim::recorded`).
//!
//! Exit status 0: it is; 1: it is not, with complaints on standard output; 2: the file is not a recording.

use hekate_sim::recorded;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: check-history FILE");
        return ExitCode::from(2);
    };
    let read = std::fs::read_to_string(&path).map_err(|error| error.to_string()).and_then(|text| recorded::read(&text));
    let rounds = match read {
        Ok(rounds) => rounds,
        Err(why) => {
            eprintln!("check-history: {path}: {why}");
            return ExitCode::from(2);
        }
    };
    let mut found = 0;
    for (number, round) in rounds.iter().enumerate() {
        for complaint in recorded::check(round) {
            println!("round {}: {complaint}", number + 1);
            found += 1;
        }
    }
    let calls: usize = rounds.iter().map(|round| round.history.calls().count()).sum();
    println!("{} rounds, {calls} calls: {found} complaints", rounds.len());
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
