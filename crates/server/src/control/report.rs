//! This server's own state.

use super::heal;
use crate::hosting::node::Node;
use crate::maintenance::damage;
use crate::reports::mapping;
use hekate_brick::{Brick, BrickStatus};
use hekate_control::brick::{BrickFigures, BrickReport, BrickState, TornTail};
use hekate_control::partition::WaitingPartition;
use hekate_control::peer::{HealingReplica, LedPartition, MemberLag, ServerReport, VolumeSpace};
use hekate_control::status::ServerVitals;
use hekate_proto::{PartitionNumber, VolumeId};

/// The state of this server.
pub fn own_report(node: &Node) -> ServerReport {
    let at_work = node.at_work.look();
    let volumes: Vec<VolumeId> = node.volumes.read().keys().copied().collect();
    ServerReport {
        vitals: ServerVitals {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_seconds: node.started.elapsed().as_secs(),
            ops_at_work: at_work.len(),
            oldest_op_milliseconds: at_work.first().map(|(_, _, age)| age.as_millis() as u64),
            slow_ops: node.slow_ops.count(),
        },
        waiting_partitions: waiting(node),
        healing: healing(node),
        led: led(node),
        lanes: node.counters.lanes(),
        proofs: heal::proofs_here(node),
        damaged: node.damages.count(),
        damage: damage::rows(node),
        mapped_by_two: node.mappings.count(),
        mapped_files: mapping::rows(node),
        bricks: bricks(node),
        spaces: volumes.into_iter().filter_map(|volume| space(node, volume)).collect(),
        orphans: node.orphans.lock().len(),
        garbage: node.work_left(),
    }
}

fn waiting(node: &Node) -> Vec<WaitingPartition> {
    let mut rows = Vec::new();
    for ring in node.rings.read().values() {
        for partition in (0..ring.count()).map(PartitionNumber) {
            let waits_for = ring.waits_for(partition);
            rows.extend(waits_for.map(|waits_for| WaitingPartition { ring: ring.ring, partition, waits_for }));
        }
    }
    rows
}

fn healing(node: &Node) -> Vec<HealingReplica> {
    let mut rows = Vec::new();
    for ring in node.rings.read().values() {
        for address in ring.leaders() {
            let Some(hosted) = ring.replica(address) else { continue };
            rows.extend(hosted.partition.read().healing().into_iter().map(|one| HealingReplica {
                ring: ring.ring,
                partition: address.partition,
                brick: one.brick,
                heard: one.heard,
                healed: f64::from(one.done) / 10_000.0,
                bytes_sent: one.sent,
                seconds_left: node.leavings.seconds_left((ring.ring, address.partition, one.brick), &one),
            }));
        }
    }
    rows
}

/// The partitions that this server leads.
fn led(node: &Node) -> Vec<LedPartition> {
    let mut rows = Vec::new();
    for ring in node.rings.read().values() {
        for address in ring.leaders() {
            let Some(hosted) = ring.replica(address) else { continue };
            let Some(found) = hosted.partition.read().progress() else { continue };
            rows.push(LedPartition {
                ring: ring.ring,
                partition: address.partition,
                records: found.last,
                lags: found.lags.into_iter().map(|(brick, records)| MemberLag { brick, records }).collect(),
                unsettled: found.last.0.saturating_sub(found.settled.0),
                unstable: found.last.0.saturating_sub(found.stable.0),
                open_shards: found.open_shards,
                unsettled_fast_writes: found.unsettled_writes,
                loose: found.loose,
            });
        }
    }
    rows
}

fn space(node: &Node, volume: VolumeId) -> Option<VolumeSpace> {
    let space = node.volume_space(volume).ok()?;
    Some(VolumeSpace { volume, bytes_total: space.total, bytes_free: space.available })
}

fn bricks(node: &Node) -> Vec<BrickReport> {
    let reason = "its server runs without it (`hekate serve --without`), or could not open it: its log names the cause";
    let absent = node.absent.iter().map(|brick| BrickReport {
        brick: *brick,
        state: BrickState::NotOpened,
        reason: Some(reason.into()),
        figures: None,
    });
    node.bricks.values().map(|brick| brick_report(node, brick)).chain(absent).collect()
}

fn brick_report(node: &Node, brick: &Brick) -> BrickReport {
    let (id, stopped) = (brick.id(), brick.stopped());
    match brick.status() {
        Ok(status) => BrickReport {
            brick: id,
            state: match (&stopped, &status.stalled) {
                (Some(_), _) => BrickState::Stopped,
                (None, Some(_)) => BrickState::Full,
                (None, None) => BrickState::Online,
            },
            reason: stopped.or_else(|| status.stalled.clone()),
            figures: Some(figures(node, brick, status)),
        },
        // statvfs(3) of its directory fails, which is a fault of this brick alone.
        Err(error) => BrickReport {
            brick: id,
            state: if stopped.is_some() { BrickState::Stopped } else { BrickState::Failing },
            reason: Some(stopped.unwrap_or_else(|| error.to_string())),
            figures: None,
        },
    }
}

fn figures(node: &Node, brick: &Brick, status: BrickStatus) -> BrickFigures {
    let recovery = node.recoveries.get(&brick.id());
    let torn = recovery.and_then(|report| report.torn.as_ref());
    let counts_inodes = status.space.files > 0;
    BrickFigures {
        incarnation: brick.incarnation(),
        stalled: status.stalled,
        bytes_total: status.space.total,
        bytes_free: status.space.available,
        inodes_total: counts_inodes.then_some(status.space.files),
        inodes_free: counts_inodes.then_some(status.space.files_available),
        journal_bytes_used: status.journal.0,
        journal_bytes_total: status.journal.1,
        overlay_bytes: status.overlay_bytes,
        recovered_records: recovery.map(|report| report.records),
        recovered_blocks_lost: recovery.map(|report| report.lost.len()),
        recovered_after_stop: recovery.and_then(|report| report.stopped.clone()),
        recovered_torn_tail: torn.map(|torn| TornTail {
            file: torn.path.clone(),
            offset: torn.offset,
            why: torn.why.into(),
            records: torn.records_behind,
        }),
        reserve_bytes: status.reserve.bytes,
        reserve_files: status.reserve.files,
        scrub: node.scrubs.show(brick.id()),
    }
}
