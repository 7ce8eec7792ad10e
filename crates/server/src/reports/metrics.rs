//! The page that Prometheus reads: this server's ops, bricks, partitions and volumes, and its process.

use crate::control::own_report;
use crate::hosting::node::Node;
use hekate_metrics::{Page, add_process};
use hekate_proto::Result;
use serde_json::Value;

/// The page as OpenMetrics text. `docs/operating.md` lists the names.
///
/// # Errors
///
/// Those of the report that `hekate status` is made of.
pub fn page(node: &Node) -> Result<String> {
    let report = own_report(node)?;
    let mut page = Page::default();
    add_server(&mut page, &report);
    node.counters.add_to(&mut page);
    for brick in report["bricks"].as_array().into_iter().flatten() {
        add_brick(&mut page, brick, directory_of(node, brick));
    }
    for volume in node.volumes.all() {
        let space = report["spaces"].as_array().into_iter().flatten().find(|row| row["volume"] == volume.volume.0);
        if let Some(space) = space.filter(|_| !volume.deleting) {
            let labels = || vec![("volume", volume.name.clone())];
            let help = "Bytes of the volume's files, one copy, that fit on this server's bricks";
            page.gauge("hekate_volume_bytes", help, labels(), number(&space["bytes_total"]));
            page.gauge("hekate_volume_free_bytes", "Those that are free", labels(), number(&space["bytes_free"]));
        }
    }
    add_process(&mut page);
    Ok(page.text())
}

fn add_server(page: &mut Page, report: &Value) {
    let labels = vec![
        ("cluster", report["cluster"].as_str().unwrap_or_default().to_string()),
        ("server", report["server"].to_string()),
        ("version", env!("CARGO_PKG_VERSION").to_string()),
    ];
    page.gauge("hekate_build_info", "Always 1; what this is, is in the labels", labels, 1.0);
    let waiting = report["waiting_partitions"].as_array().map_or(0, Vec::len) as f64;
    let rows = [
        ("hekate_uptime_seconds", "Since the server started", number(&report["uptime_seconds"])),
        ("hekate_partitions_waiting", "Partitions led here that take no changes now", waiting),
        ("hekate_ops_at_work", "Ops that are being answered", number(&report["ops_at_work"])),
        (
            "hekate_oldest_op_seconds",
            "How long the oldest of them takes",
            number(&report["oldest_op_milliseconds"]) / 1e3,
        ),
        ("hekate_orphans", "Files without names that somebody may have open", number(&report["orphans"])),
        ("hekate_garbage", "Removed contents that wait to be collected", number(&report["garbage"])),
        ("hekate_damaged", "Blocks and entries that no replica has undamaged", number(&report["damaged"])),
    ];
    for (name, help, value) in rows {
        page.gauge(name, help, Vec::new(), value);
    }
    let mapped = "Files of which two mounts wrote back mapped pages, so that stores may be lost";
    page.counter("hekate_files_mapped_by_two_mounts", mapped, Vec::new(), number(&report["mapped_by_two"]));
    page.counter("hekate_slow_ops", "Ops that took longer than --slow-op", Vec::new(), number(&report["slow_ops"]));
}

fn add_brick(page: &mut Page, brick: &Value, directory: String) {
    let id = brick["brick"].as_str().unwrap_or_default();
    let is_online = if brick["state"] == "online" { 1.0 } else { 0.0 };
    let is_stalled = if brick["stalled"].is_null() { 0.0 } else { 1.0 };
    let rows = [
        ("hekate_brick_online", "Whether the brick takes writes", is_online),
        ("hekate_brick_bytes", "Size of the brick's file system", number(&brick["bytes_total"])),
        ("hekate_brick_free_bytes", "What of it is free for files", number(&brick["bytes_free"])),
        ("hekate_brick_full", "Whether the brick cannot write home for want of room", is_stalled),
        ("hekate_brick_inodes", "Inodes of its file system; 0: it does not count them", number(&brick["inodes_total"])),
        ("hekate_brick_free_inodes", "What of them is free for files", number(&brick["inodes_free"])),
        ("hekate_brick_reserve_bytes", "What is held back for deleting", number(&brick["reserve_bytes"])),
        ("hekate_brick_journal_bytes", "Size of the journal", number(&brick["journal_bytes_total"])),
        ("hekate_brick_journal_used_bytes", "What of it is in use", number(&brick["journal_bytes_used"])),
        (
            "hekate_brick_overlay_bytes",
            "Bytes in memory that the next checkpoint writes home",
            number(&brick["overlay_bytes"]),
        ),
    ];
    for (name, help, value) in rows {
        page.gauge(name, help, vec![("brick", id.to_string()), ("directory", directory.clone())], value);
    }
}

fn directory_of(node: &Node, brick: &Value) -> String {
    let own = node.registry.own_bricks().unwrap_or_default();
    own.into_iter().find(|info| brick["brick"] == info.brick.text()).map(|info| info.directory).unwrap_or_default()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}
