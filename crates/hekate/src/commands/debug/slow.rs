//! `hekate debug slow`: ops at work on a server, and the last that took long.

use crate::cli::Cli;
use crate::commands::control::{look, rows};
use crate::failure::Failure;
use crate::output::{self, table, text};
use hekate_server::ControlRequest;
use serde_json::Value;

pub fn slow(cli: &Cli) -> Result<(), Failure> {
    let found = look(cli, &ControlRequest::SlowOps)?;
    if cli.json {
        output::json(&found);
        return Ok(());
    }
    let seconds = |value: &Value| format!("{:.3}", value.as_f64().unwrap_or(0.0) / 1000.0);
    let at_work = rows(&found["at_work"]);
    println!("{} op(s) at work", at_work.len());
    if !at_work.is_empty() {
        let row = |op: &Value| vec![text(&op["op"]), text(&op["session"]), seconds(&op["milliseconds"])];
        table(&["OP", "SESSION", "SECONDS SO FAR"], &at_work.iter().map(row).collect::<Vec<_>>());
    }
    println!();
    let kept = rows(&found["ops"]);
    let limit = seconds(&found["limit_milliseconds"]);
    println!("{} op(s) of over {limit} s since the start, the last {} of them:", text(&found["count"]), kept.len());
    if !kept.is_empty() {
        let row = |op: &Value| {
            vec![
                text(&op["at"]),
                text(&op["op"]),
                text(&op["about"]),
                text(&op["session"]),
                seconds(&op["milliseconds"]),
                seconds(&op["syncing_milliseconds"]),
                text(&op["error"]),
            ]
        };
        let heads = ["ANSWERED AT", "OP", "OF", "SESSION", "SECONDS", "SYNCING", "ERROR"];
        table(&heads, &kept.iter().map(row).collect::<Vec<_>>());
    }
    Ok(())
}
