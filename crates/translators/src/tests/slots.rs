//! `replicate`: op ids and the slots in them.

use super::runs::{counting, found};
use super::scripted_servers::{Fate, Sent};
use super::support::*;
use super::virtual_time::in_virtual_time;
use crate::replicate::Recipient;
use hekate_graph::Context;
use hekate_proto::*;
use std::collections::BTreeSet;
use std::sync::Arc;

fn changes(count: u64) -> Vec<(Recipient, Op)> {
    (0..count).map(|number| (leader(0), chmod(inode(0, number)))).collect()
}

/// The slots of requests.
fn slots(sent: &[Sent]) -> BTreeSet<u64> {
    sent.iter().map(|sent| sent.request.op_id.0 & 0xff).collect()
}

#[test]
fn changes_of_one_batch_have_ids_of_their_own_and_reads_have_none() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        let mut batch = changes(256);
        batch.insert(100, (leader(0), get_attr(inode(0, 1))));
        replicate.send_all(&Context::default(), batch).unwrap();
        let mut sent = servers.take_sent();
        assert_eq!(sent.remove(100).request.op_id, OpId(0));
        assert_eq!((sent.len(), slots(&sent).len()), (256, 256));
    });
}

#[test]
fn slots_are_returned_after_replies_and_after_errors() {
    in_virtual_time(|| {
        let (servers, replicate) = counting();
        let all = || replicate.send_all(&Context::default(), changes(256));
        all().unwrap();
        servers.execute_with(|_, _, _| Err(Error::NotFound));
        assert_eq!(all().unwrap()[0], Err(Error::NotFound));
        servers.set_fate(ServerId(1), Fate::NotReached);
        let deadline = Some(hekate_threads::now());
        let given_up = replicate.send_all(&Context { deadline, ..Context::default() }, changes(256));
        assert!(is_unavailable(&given_up));
        servers.set_fate(ServerId(1), Fate::Answered);
        servers.take_sent();
        assert_eq!(all().unwrap().len(), 256);
        assert_eq!(slots(&servers.take_sent()).len(), 256);
    });
}

#[test]
fn a_batch_with_more_changes_than_slots_is_refused() {
    let (servers, replicate) = counting();
    let refused = replicate.send_all(&Context::default(), changes(257));
    assert!(matches!(refused, Err(Error::Invalid { .. })));
    assert!(servers.take_sent().is_empty());
    let reads = (0..300).map(|number| (leader(0), get_attr(inode(0, number)))).collect();
    assert_eq!(replicate.send_all(&Context::default(), reads).unwrap().len(), 300);
}

#[test]
fn a_change_waits_for_a_slot_and_no_two_have_the_same() {
    let (servers, replicate) = counting();
    let replicate = Arc::new(replicate);
    let mut tickets: Vec<_> = (0..255).map(|_| replicate.ticket()).collect();
    assert_eq!(tickets.iter().map(|ticket| ticket.op_id.0 & 0xff).collect::<BTreeSet<_>>().len(), 255);
    replicate.send(&Context::default(), leader(0), chmod(inode(0, 1))).unwrap();
    let sender = replicate.clone();
    let sending = start(move || sender.send_all(&Context::default(), changes(2)));
    assert!(sending.is_waiting());
    let freed = tickets.pop().unwrap().op_id.0 & 0xff;
    assert_eq!(sending.join().unwrap(), [1, 2].map(found));
    let sent = servers.take_sent();
    let last = sent[0].request.op_id.0 & 0xff;
    assert_eq!(slots(&sent[1..]), BTreeSet::from([freed, last]));
}
