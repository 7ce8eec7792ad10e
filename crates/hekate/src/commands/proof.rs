//! Proofs that all replicas of all partitions hold the same: begun, and waited for while views and connections change.

use crate::cli::Cli;
use crate::commands::control::{ask, look};
use crate::failure::Failure;
use hekate_control::healing::{HealingStatus, Proof, ProofStatus};
use hekate_control::{HealStatus, PartitionList, Prove};
use hekate_proto::{PartitionNumber, RingId};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const POLL_PAUSE: Duration = Duration::from_millis(200);
/// Pause before proofs are asked for again that could not begin, or that ended with their view or with a connection.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);
/// Time without progress after which the proof is given up.
const STUCK_LIMIT: Duration = Duration::from_secs(20);
/// Pause between two lines of progress.
const PROGRESS_PAUSE: Duration = Duration::from_secs(2);
/// Number of partitions that the failure names.
const NAMED_MAX: usize = 5;

/// Begins a proof of each partition and waits until all have ended. Returns the state of healing, with these proofs
/// only.
///
/// # Errors
///
/// 75: no progress for `STUCK_LIMIT`.
pub fn prove(cli: &Cli) -> Result<HealingStatus, Failure> {
    // Each call is a run of its own: the replicas may have changed since the proofs of an earlier run.
    let run = getrandom::u64().map_err(|e| Failure::new(71, format!("getrandom: {e}")))?;
    ask(cli, Prove { run })?;
    let (mut done, mut last, mut moved) = (BTreeMap::new(), 0, Instant::now());
    let (mut asked, mut shown) = (moved, moved);
    loop {
        let mut said = look(cli, HealStatus {})?;
        said.proofs = of_run(std::mem::take(&mut said.proofs), run, &mut done);
        let partitions = said.partitions;
        let ended = said.proofs.iter().filter(|row| row.proof.ended).count();
        if ended >= partitions {
            return Ok(said);
        }
        let equal: u64 = said.proofs.iter().map(|row| row.proof.equal).sum();
        if equal + ended as u64 != last {
            (last, moved) = (equal + ended as u64, Instant::now());
        }
        if moved.elapsed() > STUCK_LIMIT {
            return Err(stuck(cli, &said.proofs));
        }
        if asked.elapsed() > AGAIN_PAUSE && said.proofs.len() < partitions {
            ask(cli, Prove { run })?;
            asked = Instant::now();
        }
        if shown.elapsed() > PROGRESS_PAUSE && !cli.json && std::io::stderr().is_terminal() {
            eprintln!("{ended} of {partitions} partitions are proved, {equal} entries so far");
            shown = Instant::now();
        }
        std::thread::sleep(POLL_PAUSE);
    }
}

type RingPartition = (RingId, PartitionNumber);

/// The proofs of a run, one for each partition. One that has ended is kept in `done`: a later run may follow it, and a
/// server that does not know yet that another one leads reports a proof too.
fn of_run(rows: Vec<ProofStatus>, run: u64, done: &mut BTreeMap<RingPartition, Proof>) -> Vec<ProofStatus> {
    let mut running = BTreeMap::new();
    let proofs = rows.into_iter().flat_map(|row| [Some(row.proof), row.before]).flatten();
    for proof in proofs.filter(|proof| proof.run == run) {
        let known = if proof.ended { &mut *done } else { &mut running };
        known.insert((proof.ring, proof.partition), proof);
    }
    running.extend(done.clone());
    running.into_values().map(|proof| ProofStatus { proof, before: None }).collect()
}

/// Names the partitions that are not proved.
fn stuck(cli: &Cli, proofs: &[ProofStatus]) -> Failure {
    let listed = match look(cli, PartitionList {}) {
        Ok(listed) => listed,
        Err(failure) => return failure,
    };
    let is_proved =
        |at: RingPartition| proofs.iter().any(|row| row.proof.ended && (row.proof.ring, row.proof.partition) == at);
    let left: Vec<_> = listed.iter().filter(|row| !is_proved((row.ring, row.partition))).collect();
    let mut names: Vec<String> =
        left.iter().take(NAMED_MAX).map(|row| format!("{}/{}", row.ring, row.partition)).collect();
    if left.len() > NAMED_MAX {
        names.push(format!("{} others", left.len() - NAMED_MAX));
    }
    let (count, names) = (left.len(), names.join(", "));
    let what = format!("{count} of {} partitions could not be proved: {names}", listed.len());
    Failure::new(
        75,
        format!("{what}; `hekate partition list --waiting` shows what they wait for; then prove once more"),
    )
}
