//! Tables of bricks, and the cause and the fix for each that has failed.

use crate::output::{bytes, or_dash, table};
use hekate_control::brick::{BrickFigures, BrickState, BrickStatus};

pub fn print_bricks(bricks: &[BrickStatus]) {
    let row = |brick: &BrickStatus| {
        vec![
            brick.directory.clone(),
            brick.server.to_string(),
            brick.pool.clone(),
            brick.report.state.text().into(),
            figure(brick, |open| open.bytes_free),
            figure(brick, |open| open.bytes_total),
            format!(
                "{} of {}",
                figure(brick, |open| open.journal_bytes_used),
                figure(brick, |open| open.journal_bytes_total)
            ),
        ]
    };
    let heads = ["BRICK", "SERVER", "POOL", "STATE", "FREE", "TOTAL", "JOURNAL IN USE"];
    table(&heads, &bricks.iter().map(row).collect::<Vec<_>>());
    print_failed(bricks);
}

/// A figure in bytes, if the brick is open.
pub fn figure(brick: &BrickStatus, value: fn(&BrickFigures) -> u64) -> String {
    brick.report.figures.as_ref().map_or("-".into(), |open| bytes(value(open)))
}

/// The cause and the fix for each brick that has failed, or that cannot write home.
pub fn print_failed(bricks: &[BrickStatus]) {
    let of_state = |states: &'static [BrickState]| bricks.iter().filter(|row| states.contains(&row.report.state));
    for brick in of_state(&[BrickState::Full]) {
        let (directory, server) = (&brick.directory, brick.server);
        let reason = or_dash(brick.report.reason.as_ref());
        println!("brick {directory} of server {server} is full and cannot write home: {reason}");
        println!(
            "  remove what else uses its file system, or delete files of its volumes: it continues when there is room"
        );
    }
    for brick in of_state(&[BrickState::Stopped, BrickState::Failing]) {
        let (directory, server) = (&brick.directory, brick.server);
        println!(
            "brick {directory} of server {server} {}: {}",
            if brick.report.state == BrickState::Stopped { "has stopped" } else { "is failing" },
            or_dash(brick.report.reason.as_ref())
        );
        println!(
            "  if its disk has failed: hekate brick replace {directory} NEW-DIR, on server {server}; else restart server {server}, \
             and it is healed"
        );
    }
}
