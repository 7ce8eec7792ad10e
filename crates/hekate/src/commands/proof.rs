//! Has it proved that all replicas of all partitions hold the same, whatever comes and goes meanwhile.

use crate::cli::Cli;
use crate::commands::control::{ask, look, rows};
use crate::failure::Failure;
use hekate_server::ControlRequest;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const POLL_PAUSE: Duration = Duration::from_millis(200);
/// Before proofs that could not begin, or ended with their view or with a connection, are asked for again.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);
/// Without progress for so long it is given up.
const STUCK_LIMIT: Duration = Duration::from_secs(20);
/// Between two lines about how far it is.
const PROGRESS_PAUSE: Duration = Duration::from_secs(2);
/// Partitions that are named where it is given up.
const NAMED_MAX: usize = 5;

/// Begins the proofs and waits for them, telling how far they are. -> what is being healed, with the proofs.
pub fn prove(cli: &Cli) -> Result<Value, Failure> {
    // What an earlier run has proved says nothing of now.
    let run = getrandom::u64().map_err(|e| Failure::new(71, format!("getrandom: {e}")))?;
    ask(cli, &ControlRequest::Prove { run })?;
    let (mut done, mut last, mut moved) = (BTreeMap::new(), 0, Instant::now());
    let (mut asked, mut shown) = (moved, moved);
    loop {
        let mut said = look(cli, &ControlRequest::HealStatus)?;
        // What has ended stays so, though another run follows it; a server that does not know yet that another one leads has a row too.
        let mut proofs = BTreeMap::new();
        for row in rows(&said["proofs"]).iter().flat_map(|row| [row, &row["before"]]).filter(|row| row["run"] == run) {
            let known = if row["ended"] == true { &mut done } else { &mut proofs };
            known.insert(ring_partition(row), row.clone());
        }
        proofs.extend(done.clone());
        let proofs: Vec<Value> = proofs.into_values().collect();
        said["proofs"] = proofs.clone().into();
        let partitions = said["partitions"].as_u64().unwrap_or(0);
        let ended = proofs.iter().filter(|proof| proof["ended"] == true).count() as u64;
        if ended >= partitions {
            return Ok(said);
        }
        let equal: u64 = proofs.iter().filter_map(|proof| proof["equal"].as_u64()).sum();
        if equal + ended != last {
            (last, moved) = (equal + ended, Instant::now());
        }
        if moved.elapsed() > STUCK_LIMIT {
            return Err(stuck(cli, &proofs));
        }
        if asked.elapsed() > AGAIN_PAUSE && (proofs.len() as u64) < partitions {
            ask(cli, &ControlRequest::Prove { run })?;
            asked = Instant::now();
        }
        if shown.elapsed() > PROGRESS_PAUSE && !cli.json && std::io::stderr().is_terminal() {
            eprintln!("{ended} of {partitions} partitions are proved, {equal} entries so far");
            shown = Instant::now();
        }
        std::thread::sleep(POLL_PAUSE);
    }
}

/// Ring and partition.
type RingPartition = (String, u64);

fn ring_partition(row: &Value) -> RingPartition {
    (row["ring"].to_string(), row["partition"].as_u64().unwrap_or_default())
}

/// Names what is not proved.
fn stuck(cli: &Cli, proofs: &[Value]) -> Failure {
    let listed = match look(cli, &ControlRequest::PartitionList) {
        Ok(listed) => listed,
        Err(failure) => return failure,
    };
    let is_proved = |row: &&Value| {
        proofs.iter().any(|proof| ring_partition(proof) == ring_partition(row) && proof["ended"] == true)
    };
    let left: Vec<&Value> = rows(&listed).iter().filter(|row| !is_proved(row)).collect();
    let mut names: Vec<String> =
        left.iter().take(NAMED_MAX).map(|row| format!("{}/{}", row["ring"], row["partition"])).collect();
    if left.len() > NAMED_MAX {
        names.push(format!("{} others", left.len() - NAMED_MAX));
    }
    let (count, names) = (left.len(), names.join(", "));
    let what = format!("{count} of {} partitions could not be proved: {names}", rows(&listed).len());
    Failure::new(
        75,
        format!("{what}; see for whom they wait with `hekate partition list --waiting`, then prove once more"),
    )
}
