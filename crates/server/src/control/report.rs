//! This server's own state.

use super::heal;
use crate::hosting::authority::seconds;
use crate::hosting::node::Node;
use crate::maintenance::damage;
use crate::reports::mapping;
use hekate_brick::{Brick, BrickStatus};
use hekate_control::brick::{BrickFigures, BrickReport, BrickState, TornTail};
use hekate_control::peer::{HealingReplica, LedPartition, MemberLag, ServerReport, VolumeSpace};
use hekate_control::status::SlowClient;
use hekate_proto::{RingId, SessionId, VolumeId};
use hekate_replica::{Healing, Partition};
use std::collections::BTreeMap;
use std::time::Duration;

/// The state of this server.
pub fn own_report(node: &Node) -> ServerReport {
    ServerReport {
        vitals: node.statistics.ops().vitals(),
        waiting_partitions: node.rings.waiting(),
        healing: healing(node),
        led: node.rings.of_leaders(led).into_iter().flatten().collect(),
        lanes: node.statistics.ops().lanes(),
        proofs: heal::proofs_here(node),
        damaged: node.maintenance.damages().count(),
        damage: damage::rows(node),
        mapped_by_two: node.statistics.mapped_by_two(),
        mapped_files: mapping::rows(node),
        slow_clients: slow_clients(node),
        pledges: node.rings.of_leaders(|_, leader| leader.pledge_count() as u64).into_iter().sum(),
        bricks: bricks(node),
        networks: node.statistics.networks(),
        certificate_expires: certificate_expires(node),
        spaces: node.volumes.all().iter().filter_map(|volume| space(node, volume.volume)).collect(),
        roots: node.volumes.made(),
        orphans: node.orphans.count(),
        garbage: node.work_left(),
    }
}

/// Clients that changes wait for, each with the longest of these waits.
fn slow_clients(node: &Node) -> Vec<SlowClient> {
    let mut waits: BTreeMap<SessionId, Duration> = BTreeMap::new();
    for slow in node.rings.of_leaders(|_, leader| leader.slow_sessions(Node::elapsed())) {
        for (session, since) in slow {
            let longest = waits.entry(session).or_default();
            *longest = since.max(*longest);
        }
    }
    let row = |(id, since): (SessionId, Duration)| {
        let session = node.sessions.get(id).ok()?;
        let volume = node.volumes.get(session.volume).ok().map(|volume| volume.name.clone());
        Some(SlowClient { session: id, client: session.owner.to_string(), volume, seconds: since.as_secs_f64() })
    };
    waits.into_iter().filter_map(row).collect()
}

fn certificate_expires(node: &Node) -> Option<u64> {
    let credential = node.cluster.keys()?.context().credential()?;
    Some(seconds(credential.info().ok()?.not_after))
}

fn healing(node: &Node) -> Vec<HealingReplica> {
    let progress = node.maintenance.heal_progress();
    let of_leader = |ring, leader: &Partition| {
        let partition = leader.address().partition;
        let row = |one: Healing| HealingReplica {
            ring,
            partition,
            brick: one.brick,
            heard: one.heard,
            healed: f64::from(one.done) / 10_000.0,
            bytes_sent: one.sent,
            seconds_left: progress.seconds_left((ring, partition, one.brick), &one),
        };
        leader.healing().into_iter().map(row).collect::<Vec<_>>()
    };
    node.rings.of_leaders(of_leader).into_iter().flatten().collect()
}

/// The progress of a partition that this server leads; `None` if the replica has not taken over yet.
fn led(ring: RingId, leader: &Partition) -> Option<LedPartition> {
    let found = leader.progress()?;
    Some(LedPartition {
        ring,
        partition: leader.address().partition,
        records: found.last,
        lags: found.lags.into_iter().map(|(brick, records)| MemberLag { brick, records }).collect(),
        unsettled: found.last.0.saturating_sub(found.settled.0),
        unstable: found.last.0.saturating_sub(found.stable.0),
        open_shards: found.open_shards,
        unsettled_fast_writes: found.unsettled_writes,
        loose: found.loose,
    })
}

fn space(node: &Node, volume: VolumeId) -> Option<VolumeSpace> {
    let space = node.volume_space(volume).ok()?;
    Some(VolumeSpace { volume, bytes_total: space.total, bytes_free: space.available })
}

fn bricks(node: &Node) -> Vec<BrickReport> {
    let reason = "its server runs without it (`hekate serve --without`), or could not open it: its log names the cause";
    let absent = node.bricks.absent().map(|brick| BrickReport {
        brick,
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
    let recovery = node.bricks.recovery(brick.id());
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
        scrub: node.maintenance.scrubs().show(brick.id()),
    }
}
