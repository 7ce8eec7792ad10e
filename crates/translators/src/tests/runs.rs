//! `replicate`: batches, their order over servers, and what is sent again.

use super::scripted_servers::{Fate, ScriptedServers, Sent};
use super::support::*;
use super::virtual_time::in_virtual_time;
use crate::Replicate;
use hekate_graph::Context;
use hekate_proto::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Servers that number the requests that they execute, and a client of them.
pub fn counting() -> (Arc<ScriptedServers>, Replicate) {
    let count = AtomicU64::new(0);
    let execute = move |_: &ScriptedServers, _: ServerId, _: &Request| {
        Ok(Reply::Found { at: Some(count.fetch_add(1, Ordering::Relaxed)) })
    };
    let servers = ScriptedServers::new(map(), execute);
    (servers.clone(), Replicate::new(servers, SESSION, map()))
}

pub fn found(at: u64) -> Result<Reply> {
    Ok(Reply::Found { at: Some(at) })
}

/// Batch, server and inode number of each request.
fn places(sent: &[Sent]) -> Vec<(usize, u32, u64)> {
    let number = |sent: &Sent| match &sent.request.op {
        Op::Inode { op } => op.inode().number(),
        _ => 0,
    };
    sent.iter().map(|sent| (sent.batch, sent.server.0, number(sent))).collect()
}

#[test]
fn a_batch_is_cut_into_runs_of_one_server_in_order() {
    let (servers, replicate) = counting();
    let ops = [(0, 1), (3, 2), (1, 3), (0, 4)].map(|(at, number)| (leader(at), get_attr(inode(at, number))));
    let replies = replicate.send_all(&Context::default(), ops.into()).unwrap();
    assert_eq!(replies, [0, 1, 2, 3].map(found));
    let sent = servers.take_sent();
    assert_eq!(places(&sent), [(0, 1, 1), (0, 1, 2), (1, 2, 3), (2, 1, 4)]);
    let target =
        |partition| Target::Partition { ring: RingId(1), partition: PartitionNumber(partition), epoch: Epoch(5) };
    let targets: Vec<Target> = sent.iter().map(|sent| sent.request.target).collect();
    assert_eq!(targets, [0, 3, 1, 0].map(target));
}

#[test]
fn after_a_failure_the_rest_of_a_batch_is_skipped_at_all_servers() {
    let (servers, replicate) = counting();
    servers.execute_with(|_, _, request| match &request.op {
        Op::Inode { op } if op.inode().number() == 2 => Err(Error::NotFound),
        _ => Ok(Reply::Done),
    });
    let ops = [(0, 1), (0, 2), (0, 3), (1, 4)].map(|(at, number)| (leader(at), get_attr(inode(at, number))));
    let replies = replicate.send_all(&Context::default(), ops.into()).unwrap();
    assert_eq!(replies, [Ok(Reply::Done), Err(Error::NotFound), Err(Error::Skipped), Err(Error::Skipped)]);
    assert_eq!(servers.take_sent().last().unwrap().server, ServerId(1), "server 2 is not asked");
}

#[test]
fn a_lost_reply_is_requested_again_under_its_op_id() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.next_fates([Fate::RepliesLost, Fate::NotReached]);
        let reply = replicate.send(&Context::DURABLE, leader(0), chmod(inode(0, 1)));
        assert_eq!(reply, found(1));
        let sent = servers.take_sent();
        assert_eq!(sent.iter().map(|sent| sent.request.retry).collect::<Vec<_>>(), [false, true, true]);
        assert!(sent.iter().all(|again| again.request.op_id == sent[0].request.op_id && again.request.durable));
        assert_eq!(sent[0].request.session, SESSION);
    });
}

#[test]
fn requests_that_have_their_reply_are_not_sent_again() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.next_fates([Fate::Answered, Fate::RepliesLost]);
        let ops = [(0, 1), (1, 2), (2, 3)].map(|(at, number)| (leader(at), chmod(inode(at, number))));
        let replies = replicate.send_all(&Context::default(), ops.into()).unwrap();
        assert_eq!(replies, [0, 2, 3].map(found));
        let sent = servers.take_sent();
        assert_eq!(places(&sent), [(0, 1, 1), (1, 2, 2), (2, 2, 2), (3, 3, 3)]);
        assert_eq!(sent.iter().map(|sent| sent.request.retry).collect::<Vec<_>>(), [false, false, true, true]);
    });
}

#[test]
fn an_op_of_a_given_id_is_sent_under_that_id() {
    let (servers, replicate) = counting();
    let op_id = replicate.unused_id();
    replicate.send_as(&Context::DURABLE, op_id, leader(0), chmod(inode(0, 1))).unwrap();
    let sent = servers.take_sent();
    assert_eq!((sent[0].request.op_id, sent[0].request.retry), (op_id, false));
    assert_ne!(replicate.unused_id(), op_id);
}

#[test]
fn a_batch_has_one_reply_for_each_request_also_if_it_is_empty() {
    let (servers, replicate) = counting();
    assert_eq!(replicate.send_all(&Context::default(), Vec::new()), Ok(Vec::new()));
    assert!(servers.take_sent().is_empty());
}

#[test]
fn a_query_of_all_servers_tolerates_those_that_do_not_reply() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.set_fate(ServerId(2), Fate::Silent);
        servers.set_fate(ServerId(3), Fate::NotReached);
        let replies = replicate.query_all(&VolumeOp::StatFs);
        assert_eq!(replies, [found(0), Err(unavailable()), Err(unavailable())]);
        let sent = servers.take_sent();
        assert_eq!(sent.iter().map(|sent| sent.server.0).collect::<Vec<_>>(), [1, 2, 3], "each is asked once");
        assert!(sent.iter().all(|sent| sent.limit.is_some() && sent.request.target == Target::Server));
    });
}
