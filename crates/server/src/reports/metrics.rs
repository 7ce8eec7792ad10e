//! The page that Prometheus reads: this server's ops, bricks, partitions and volumes, and its process.

use crate::control::own_report;
use crate::hosting::authority::seconds;
use crate::hosting::node::Node;
use hekate_control::brick::{BrickFigures, BrickReport, BrickState};
use hekate_control::peer::ServerReport;
use hekate_metrics::{Page, add_process};
use hekate_proto::VolumeId;
use hekate_threads::time_of_day;

/// This server's counters as OpenMetrics text. `docs/operating.md` lists the names.
pub fn page(node: &Node) -> String {
    let report = own_report(node);
    let mut page = Page::default();
    add_server(&mut page, node, &report);
    node.statistics.ops().add_to(&mut page);
    let own = node.cluster.registry().own_bricks().unwrap_or_default();
    for brick in &report.bricks {
        let info = own.iter().find(|info| info.brick == brick.brick);
        add_brick(&mut page, brick, info.map(|info| info.directory.clone()).unwrap_or_default());
    }
    for volume in node.volumes.all() {
        let space = report.spaces.iter().find(|row| row.volume == volume.volume);
        if let Some(space) = space.filter(|_| !volume.deleting) {
            let labels = || vec![("volume", volume.name.clone())];
            let help = "Bytes of the volume's files, one copy, that fit on this server's bricks";
            page.gauge("hekate_volume_bytes", help, labels(), space.bytes_total as f64);
            page.gauge(
                "hekate_volume_free_bytes",
                "Bytes of hekate_volume_bytes that are free",
                labels(),
                space.bytes_free as f64,
            );
        }
    }
    add_s3(&mut page, node);
    add_nbd(&mut page, node);
    add_process(&mut page);
    page.text()
}

fn add_s3(page: &mut Page, node: &Node) {
    let name = |volume| node.volumes.name(VolumeId(volume)).unwrap_or_default();
    for (volume, counters) in node.s3_counters.lock().iter() {
        let name = || ("volume", name(*volume));
        page.gauge(
            "hekate_s3_connections",
            "Open connections of the S3 door",
            vec![name()],
            counters.connections as f64,
        );
        let help = "Connections that the S3 door closed at once, because too many were open";
        page.counter("hekate_s3_refused_connections", help, vec![name()], counters.connections_refused as f64);
        for of in &counters.operations {
            let labels = || vec![name(), ("operation", of.operation.to_string())];
            let help = "Requests that the S3 door has answered";
            page.counter("hekate_s3_requests", help, labels(), of.requests as f64);
            for (status, count) in [("4xx", of.client_errors), ("5xx", of.server_errors)] {
                let labels = [labels(), vec![("status", status.to_string())]].concat();
                page.counter("hekate_s3_errors", "Those answered with an error", labels, count as f64);
            }
            let help = "Bytes of bodies of the S3 door's requests";
            page.counter("hekate_s3_received_bytes", help, labels(), of.bytes_received as f64);
            let help = "Bytes of bodies of the S3 door's answers";
            page.counter("hekate_s3_sent_bytes", help, labels(), of.bytes_sent as f64);
        }
    }
}

fn add_nbd(page: &mut Page, node: &Node) {
    let name = |volume| node.volumes.name(VolumeId(volume)).unwrap_or_default();
    for (volume, counters) in node.nbd_counters.lock().iter() {
        let name = || ("volume", name(*volume));
        let help = "Open connections of the block door";
        page.gauge("hekate_nbd_connections", help, vec![name()], counters.connections as f64);
        let help = "Connections that the block door closed at once, because too many were open";
        page.counter("hekate_nbd_refused_connections", help, vec![name()], counters.connections_refused as f64);
        for of in &counters.vdisks {
            let labels = || vec![name(), ("vdisk", of.name.clone())];
            let counted = [
                (
                    "hekate_vdisk_written_bytes",
                    "Bytes that clients wrote to the vDisk, in blocks",
                    of.blocks_written << 12,
                ),
                ("hekate_vdisk_read_bytes", "Bytes that clients read of the vDisk, in blocks", of.blocks_read << 12),
                ("hekate_vdisk_appends", "Appends to the log of the vDisk", of.appends),
                ("hekate_vdisk_flushes", "Flushes of the vDisk", of.flushes),
                ("hekate_vdisk_checkpoints", "Checkpoints of the vDisk's map", of.checkpoints),
            ];
            for (metric, help, count) in counted {
                page.counter(metric, help, labels(), count as f64);
            }
            let stands = [
                ("hekate_vdisk_users", "Connections that have the vDisk open", of.users),
                ("hekate_vdisk_map_bytes", "Memory of the vDisk's map", of.map_pages << 12),
                ("hekate_vdisk_backlog_bytes", "Bytes acknowledged that not all copies have yet", of.backlog_bytes),
                ("hekate_vdisk_live_bytes", "Bytes of the vDisk's own segments that are in use", of.blocks_live << 12),
                ("hekate_vdisk_held_bytes", "Bytes that the vDisk's own segments hold", of.blocks_held << 12),
                ("hekate_vdisk_lost_changes", "1: changes were lost, and the vDisk is read-only", of.has_lost.into()),
            ];
            for (metric, help, value) in stands {
                page.gauge(metric, help, labels(), value as f64);
            }
        }
    }
}

fn add_server(page: &mut Page, node: &Node, report: &ServerReport) {
    let vitals = &report.vitals;
    let labels = vec![
        ("cluster", node.cluster.id().into()),
        ("server", node.cluster.server().to_string()),
        ("version", vitals.version.clone()),
    ];
    page.gauge("hekate_build_info", "Always 1; the labels have the cluster, the server and its version", labels, 1.0);
    let rows = [
        ("hekate_uptime_seconds", "Seconds since the server started", vitals.uptime_seconds as f64),
        (
            "hekate_partitions_waiting",
            "Partitions led here that take no changes now",
            report.waiting_partitions.len() as f64,
        ),
        ("hekate_ops_at_work", "Ops in progress", vitals.ops_at_work as f64),
        (
            "hekate_oldest_op_seconds",
            "Age of the oldest op in progress",
            vitals.oldest_op_milliseconds.unwrap_or(0) as f64 / 1e3,
        ),
        ("hekate_pledges", "Names and attributes that clients may answer by themselves", report.pledges as f64),
        ("hekate_slow_clients", "Clients that changes wait for", report.slow_clients.len() as f64),
        ("hekate_orphans", "Files without names that a session may have open", report.orphans as f64),
        ("hekate_garbage", "Data ids of removed contents whose shards are not deleted yet", report.garbage as f64),
        ("hekate_damaged", "Blocks and entries that no replica has undamaged", report.damaged as f64),
    ];
    for (name, help, value) in rows {
        page.gauge(name, help, Vec::new(), value);
    }
    for certificate in node.cluster.expiries() {
        let left = certificate.expires.saturating_sub(seconds(time_of_day())) as f64;
        let (help, labels) = ("Time until the certificate expires", vec![("holder", certificate.holder)]);
        page.gauge("hekate_certificate_expires_seconds", help, labels, left);
    }
    for row in &report.networks {
        let labels = || vec![("network", row.network.clone())];
        let (received, sent) = ("Bytes that arrived at the network's addresses", "Bytes that were sent from there");
        page.gauge("hekate_network_connections", "Open connections", labels(), row.connections as f64);
        page.counter("hekate_network_received_bytes", received, labels(), row.received_bytes as f64);
        page.counter("hekate_network_sent_bytes", sent, labels(), row.sent_bytes as f64);
        page.counter(
            "hekate_network_round_trips",
            "Batches, control requests and packets",
            labels(),
            row.round_trips as f64,
        );
    }
    let mapped = "Files of which two mounts wrote back mapped pages, so that stores may be lost";
    page.counter("hekate_files_mapped_by_two_mounts", mapped, Vec::new(), report.mapped_by_two as f64);
    page.counter("hekate_slow_ops", "Ops that took longer than --slow-op", Vec::new(), vitals.slow_ops as f64);
}

fn add_brick(page: &mut Page, brick: &BrickReport, directory: String) {
    let of = |value: fn(&BrickFigures) -> f64| brick.figures.as_ref().map_or(0.0, value);
    let is_online = if brick.state == BrickState::Online { 1.0 } else { 0.0 };
    let rows = [
        ("hekate_brick_online", "1 if the brick accepts writes, else 0", is_online),
        ("hekate_brick_bytes", "Size of the brick's file system", of(|it| it.bytes_total as f64)),
        ("hekate_brick_free_bytes", "Bytes that the brick may still use", of(|it| it.bytes_free as f64)),
        (
            "hekate_brick_full",
            "1 if the brick cannot complete a checkpoint because its disk is full, else 0",
            of(|it| if it.stalled.is_some() { 1.0 } else { 0.0 }),
        ),
        (
            "hekate_brick_inodes",
            "Inodes of the brick's file system; 0 if it does not count them",
            of(|it| it.inodes_total.unwrap_or(0) as f64),
        ),
        (
            "hekate_brick_free_inodes",
            "Inodes that the brick may still use",
            of(|it| it.inodes_free.unwrap_or(0) as f64),
        ),
        (
            "hekate_brick_reserve_bytes",
            "Bytes reserved so that files can be deleted on a full disk",
            of(|it| it.reserve_bytes as f64),
        ),
        ("hekate_brick_journal_bytes", "Size of the brick's journal", of(|it| it.journal_bytes_total as f64)),
        (
            "hekate_brick_journal_used_bytes",
            "Bytes of the journal that are in use",
            of(|it| it.journal_bytes_used as f64),
        ),
        (
            "hekate_brick_overlay_bytes",
            "Bytes in memory that the next checkpoint writes home",
            of(|it| it.overlay_bytes as f64),
        ),
    ];
    for (name, help, value) in rows {
        page.gauge(name, help, vec![("brick", brick.brick.text()), ("directory", directory.clone())], value);
    }
}
