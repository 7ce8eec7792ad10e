//! Measures one brick: its rate of durable writes beside the disk's own, what a million creates cost, and where the
//! time of a write and of a create goes. `cargo bench -p hekate-brick --bench brick -- help` says how.
//!
//! Compare only figures of one run: a disk that others use, and a machine that others compute on, change them all.

mod counted;
mod creates;
mod cycles;
mod disk;
mod measure;
mod options;
mod overwrites;
mod rate;
mod records;
mod report;
mod server;
mod stages;

use options::{Failed, Options};
use std::process::ExitCode;

const HELP: &str = "\
Measures one brick. Every command makes a brick in DIR/brick-bench and removes it in the end.

  brick rate --dir DIR [--seconds 2] [--rounds 5] [--writers 1,8,64] [--direct]
      4 KiB overwrites, each synced before it counts (Brick::append, Brick::sync), with checkpoints beside them as a
      server has them; in turn with the disk's own O_DSYNC writes of 4 KiB at a preallocated file, from as many threads,
      and of 64 KiB in sequence. Medians of the rounds. --direct: the disk's writes bypass the page cache (O_DIRECT).

  brick creates --dir DIR --count N [--shape random|big|tree] [--names random|ascending] [--directories D] [--inline]
                [--journal-segments 8] [--segment-mib 16] [--index-cache-mib 64]
      N creates as a server's records say them, 1 KiB of content in half of them, nothing synced but by checkpoints.
      random: D directories (N / 100) in turn; big: one directory; tree: directory after directory of 100 files.
      Names are random in `random` and ascending in the others, unless given. --inline: checkpoints in the same thread, so
      that bytes and CPU of each tenth do not depend on which of two threads was ahead.

  brick stages --dir DIR [--ops 2000] [--writers 1,8]
      Microseconds, CPU, calls to the file system and switches of each stage: of the synchronous 4 KiB write, of the create.

  --json prints one JSON object instead of tables.
";

fn main() -> ExitCode {
    // Cargo adds --bench to the arguments that it hands over.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let outcome = match words.first().map(String::as_str) {
        Some("rate") => Options::parse(&words[1..]).and_then(rate::run),
        Some("creates") => Options::parse(&words[1..]).and_then(creates::run),
        Some("stages") => Options::parse(&words[1..]).and_then(stages::run),
        None | Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(())
        }
        Some(other) => Err(Failed::from(format!("there is no command {other}; `brick help` lists them"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("brick: {error}");
            ExitCode::FAILURE
        }
    }
}
