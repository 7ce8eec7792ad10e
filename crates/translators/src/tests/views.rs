//! `replicate`: requests follow the views, and end when their caller gives up.

use super::runs::{counting, found};
use super::scripted_servers::Fate;
use super::support::*;
use super::virtual_time::in_virtual_time;
use crate::replicate::Recipient;
use hekate_graph::Context;
use hekate_proto::*;
use hekate_threads::{elapsed, now};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A sync of a brick.
fn sync(brick: u128) -> (Recipient, Op) {
    let op = DataOp::Sync { incarnation: Incarnation(1), shards: Vec::new(), all: false };
    (Recipient::Brick(BrickId(brick)), Op::Data { op })
}

fn target(epoch: u64) -> Target {
    Target::Partition { ring: RingId(1), partition: PartitionNumber(0), epoch: Epoch(epoch) }
}

/// Server 1 executes a request of three, and refuses the next one because it no longer leads. The rest goes to
/// server 2.
fn follows_the_leader(refusal: Error) {
    let (servers, replicate) = counting();
    servers.execute_with(move |servers, server, request| match &request.op {
        Op::Inode { op } if server == ServerId(1) && op.inode().number() == 2 => {
            servers.change_map(|map| lead(map, 0, 2));
            Err(refusal.clone())
        }
        Op::Inode { op } => found(op.inode().number()),
        _ => Err(Error::bug("scripted")),
    });
    let ops = [1, 2, 3].map(|number| (leader(0), chmod(inode(0, number))));
    let replies = replicate.send_all(&Context::default(), ops.into()).unwrap();
    assert_eq!(replies, [1, 2, 3].map(found));
    let sent = servers.take_sent();
    let seen: Vec<_> = sent.iter().map(|sent| (sent.server.0, sent.request.retry, sent.request.target)).collect();
    let (old, new) = ((1, false, target(5)), (2, true, target(6)));
    assert_eq!(seen, [old, old, old, new, new]);
    let ids: Vec<OpId> = sent.iter().map(|sent| sent.request.op_id).collect();
    assert_eq!(ids[1..3], ids[3..], "the server that has executed an op knows it by its id");
    assert_eq!(servers.maps_fetched(), 1);
}

#[test]
fn the_rest_of_a_batch_follows_a_new_view_under_its_op_ids() {
    in_virtual_time(|| follows_the_leader(Error::StaleView { epoch: Epoch(6) }));
}

#[test]
fn the_rest_of_a_batch_follows_to_the_other_server() {
    in_virtual_time(|| follows_the_leader(Error::OtherServer { server: ServerId(2) }));
}

#[test]
fn a_refusal_without_a_newer_map_is_repeated_after_a_pause() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.execute_with(|servers, _, _| match servers.maps_fetched() {
            0..3 => Err(Error::StaleView { epoch: Epoch(6) }),
            _ => Ok(Reply::Done),
        });
        let begun = now();
        assert_eq!(replicate.send(&Context::default(), leader(0), chmod(inode(0, 1))), Ok(Reply::Done));
        assert!(elapsed(begun) >= Duration::from_millis(150), "three pauses");
    });
}

#[test]
fn an_unavailable_leader_is_tried_again_and_its_successor_is_found() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.set_fate(ServerId(1), Fate::NotReached);
        servers.change_map(|map| lead(map, 0, 3));
        assert_eq!(replicate.send(&Context::default(), leader(0), chmod(inode(0, 1))), found(0));
        let sent = servers.take_sent();
        assert_eq!(sent.last().unwrap().server, ServerId(3));
        assert_eq!(servers.maps_fetched(), 1, "the map is fetched at intervals, not with each attempt");
        assert!(sent.len() > 3);
    });
}

#[test]
fn a_silent_server_is_given_up_once_a_newer_map_has_another_leader() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.set_fate(ServerId(1), Fate::Silent);
        servers.change_map(|map| lead(map, 0, 2));
        assert_eq!(replicate.send(&Context::default(), leader(0), chmod(inode(0, 1))), found(0));
        let sent = servers.take_sent();
        let seen: Vec<_> = sent.iter().map(|sent| (sent.server.0, sent.request.retry)).collect();
        assert_eq!(seen, [(1, false), (2, true)]);
        assert_eq!(sent[0].request.op_id, sent[1].request.op_id);
    });
}

#[test]
fn a_silent_server_that_still_leads_is_waited_for_until_the_deadline() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.set_fate(ServerId(1), Fate::Silent);
        // The leader of another partition changes.
        servers.change_map(|map| lead(map, 1, 3));
        let context = Context { deadline: Some(now() + Duration::from_secs(5)), ..Context::default() };
        assert!(is_unavailable(&replicate.send(&context, leader(0), chmod(inode(0, 1)))));
        assert!(context.interrupted() && servers.take_sent().len() == 1);
        assert!((5..20).contains(&servers.maps_fetched()), "{}", servers.maps_fetched());
    });
}

#[test]
fn a_sync_of_a_silent_brick_is_given_up_once_its_view_left_it_out() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.set_fate(ServerId(2), Fate::Silent);
        servers.change_map(|map| map.views[0] = view(6, 3));
        let outcome = replicate.send_all(&Context::default(), vec![sync(1), sync(2)]);
        assert_eq!(outcome, Err(Error::StaleView { epoch: Epoch(0) }));
    });
}

#[test]
fn a_sync_whose_views_changed_has_to_be_planned_again() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.next_fates([Fate::RepliesLost]);
        assert_eq!(replicate.send_all(&Context::default(), vec![sync(1)]), Ok(vec![found(1)]), "the views are equal");
        servers.execute_with(|servers, _, _| {
            servers.change_map(|map| map.views[3].epoch.0 += 1);
            Err(Error::StaleView { epoch: Epoch(0) })
        });
        let outcome = replicate.send_all(&Context::default(), vec![sync(1)]);
        assert_eq!(outcome, Err(Error::StaleView { epoch: Epoch(0) }));
    });
}

#[test]
fn a_sync_of_a_brick_that_no_view_has_is_not_repeated() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.change_map(|map| map.views = vec![view(6, 1); 4]);
        servers.next_fates([Fate::NotReached; 6]);
        replicate.send(&Context::default(), leader(0), get_attr(inode(0, 1))).unwrap();
        servers.set_fate(ServerId(3), Fate::NotReached);
        let outcome = replicate.send_all(&Context::default(), vec![sync(3)]);
        assert_eq!(outcome, Err(Error::StaleView { epoch: Epoch(0) }));
        assert_eq!(
            replicate.send_all(&Context::default(), vec![sync(9)]),
            Err(Error::StaleView { epoch: Epoch(0) }),
            "the map does not have the brick"
        );
    });
}

#[test]
fn an_interrupt_ends_the_attempts() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        let interrupt = AtomicBool::new(true);
        let context = Context { interrupt: Some(&interrupt), ..Context::default() };
        servers.next_fates([Fate::RepliesLost]);
        assert!(is_unavailable(&replicate.send(&context, leader(0), chmod(inode(0, 1)))));
        servers.set_fate(ServerId(1), Fate::Silent);
        assert!(is_unavailable(&replicate.send(&context, leader(0), chmod(inode(0, 1)))));
        assert_eq!(servers.take_sent().len(), 2);
        interrupt.store(false, Ordering::Relaxed);
        servers.set_fate(ServerId(1), Fate::Answered);
        assert!(replicate.send(&context, leader(0), chmod(inode(0, 1))).is_ok());
    });
}

#[test]
fn a_caller_that_gave_up_gets_the_refusal_and_the_rest_is_skipped() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        let refusal = Error::StaleView { epoch: Epoch(6) };
        let refused = refusal.clone();
        servers.execute_with(move |_, _, _| Err(refused.clone()));
        let context = Context { deadline: Some(now()), ..Context::default() };
        let batch = [0, 1].map(|at| (leader(at), chmod(inode(at, 1))));
        let replies = replicate.send_all(&context, batch.into()).unwrap();
        assert_eq!(replies, [Err(refusal), Err(Error::Skipped)]);
    });
}

#[test]
fn the_end_of_the_session_ends_the_attempts() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        replicate.servers().close();
        servers.set_fate(ServerId(1), Fate::Silent);
        assert!(is_unavailable(&replicate.send(&Context::default(), leader(0), chmod(inode(0, 1)))));
        assert_eq!(servers.take_sent().len(), 1);
    });
}

#[test]
fn one_attempt_at_a_stale_view_fetches_the_map_for_the_next() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        servers.execute_with(|servers, server, _| match server {
            ServerId(1) => {
                servers.change_map(|map| lead(map, 0, 2));
                Err(Error::StaleView { epoch: Epoch(6) })
            }
            _ => Ok(Reply::Done),
        });
        let op_id = replicate.unused_id();
        let attempt = |retry| replicate.attempt(op_id, retry, leader(0), chmod(inode(0, 1)), Duration::from_secs(2));
        assert!(is_unavailable(&attempt(false)));
        assert_eq!(attempt(true), Ok(Reply::Done));
        let sent = servers.take_sent();
        let seen: Vec<_> = sent.iter().map(|sent| (sent.server.0, sent.request.op_id, sent.request.retry)).collect();
        assert_eq!(seen, [(1, op_id, false), (2, op_id, true)]);
        servers.set_fate(ServerId(2), Fate::Silent);
        assert!(is_unavailable(&attempt(false)), "the attempt has a time limit");
    });
}
