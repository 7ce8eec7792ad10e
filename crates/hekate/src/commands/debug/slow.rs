//! `hekate debug slow`: ops that a server is working on, and the last slow ones.

use crate::cli::Cli;
use crate::commands::control::look;
use crate::failure::Failure;
use crate::output::{self, or_dash, table};
use hekate_control::SlowOps;
use hekate_control::status::{OpAtWork, SlowOp};

pub fn slow(cli: &Cli) -> Result<(), Failure> {
    let found = look(cli, SlowOps {})?;
    if cli.json {
        output::json(&found);
        return Ok(());
    }
    let seconds = |milliseconds: u64| format!("{:.3}", milliseconds as f64 / 1000.0);
    println!("{} op(s) at work", found.at_work.len());
    if !found.at_work.is_empty() {
        let row = |op: &OpAtWork| vec![op.op.clone(), op.session.to_string(), seconds(op.milliseconds)];
        table(&["OP", "SESSION", "SECONDS SO FAR"], &found.at_work.iter().map(row).collect::<Vec<_>>());
    }
    println!();
    let limit = seconds(found.limit_milliseconds);
    println!("{} op(s) of over {limit} s since the start, the last {} of them:", found.count, found.ops.len());
    if !found.ops.is_empty() {
        let row = |op: &SlowOp| {
            vec![
                op.at.clone(),
                op.op.clone(),
                op.about.clone(),
                op.session.to_string(),
                seconds(op.milliseconds),
                seconds(op.syncing_milliseconds),
                or_dash(op.error.as_ref()),
            ]
        };
        let heads = ["ANSWERED AT", "OP", "OF", "SESSION", "SECONDS", "SYNCING", "ERROR"];
        table(&heads, &found.ops.iter().map(row).collect::<Vec<_>>());
    }
    Ok(())
}
