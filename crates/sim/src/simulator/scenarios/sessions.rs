//! Sessions that a leader does not know, since other servers opened them while it was split off; sessions of clients
//! that live, and what their servers hear of them.

use super::ops::*;
use super::stage::Stage;
use hekate_proto::*;

/// Server 0 does not reach the coordinator, and two clients open the volume at server 1, which leads. The heartbeats of
/// the first one are held back.
fn split() -> (Stage, u32, u32) {
    let mut stage = Stage::new(&[&[0, 1]]);
    stage.cut_off(0);
    stage.until_led_by(0, 1);
    let (ann, bob) = (stage.client(), stage.client());
    stage.catch_request(ann, |op| matches!(op, Op::Volume { op: VolumeOp::Heartbeat { .. } }));
    (stage, ann, bob)
}

/// Server 0 leads again, and cannot read the sessions.
fn rejoin(stage: &mut Stage) {
    stage.hide_sessions(0);
    stage.join_again();
    stage.until_led_by(0, 0);
}

/// R19. The lock that a client holds is granted to no other one before it has restored it.
#[test]
fn a_leader_that_was_split_off_grants_nothing_before_it_has_read_the_sessions() {
    let (mut stage, ann, bob) = split();
    let inode = inode_in(stage.does(ann, file(ROOT, "f")));
    stage.does(ann, write_lock(inode));
    rejoin(&mut stage);
    let wanted = stage.ask(bob, write_lock(inode));
    stage.pass(1_500_000);
    assert!(!stage.is_answered(wanted));
    stage.release();
    stage.show_sessions();
    assert_eq!(stage.answer(wanted), Err(Error::WouldBlock));
    stage.whole_and_judged();
}

/// The planted bug `sessions-not-read` breaks R19, and the scenario above fails.
#[cfg(feature = "planted")]
#[test]
fn a_leader_that_does_not_read_the_sessions_is_found() {
    use hekate_proto::planted::{Bug, plant};
    plant(Some(Bug::SessionsNotRead));
    let found =
        std::panic::catch_unwind(a_leader_that_was_split_off_grants_nothing_before_it_has_read_the_sessions).is_err();
    plant(None);
    assert!(found);
}

/// A client that the leader does not know may have a file without a name open. The other one has said that it has not.
#[test]
fn a_leader_that_was_split_off_collects_no_orphan_before_it_has_read_the_sessions() {
    let (mut stage, ann, _) = split();
    let inode = inode_in(stage.does(ann, unnamed(ROOT)));
    stage.does(ann, write(inode, 0, 4096, 1));
    rejoin(&mut stage);
    stage.pass(3_000_000);
    stage.show_sessions();
    stage.pass(3_000_000);
    assert_eq!(bytes_in(stage.does(ann, read(inode, 0, 4096))), vec![1; 4096]);
    stage.whole_and_judged();
}

/// Clients that have opened the volume at random servers: at each of three, some.
fn clients(stage: &mut Stage) -> Vec<u32> {
    (0..8).map(|_| stage.client()).collect()
}

/// The clients' sessions have not ended: each makes a file.
fn all_live(mut stage: Stage, clients: &[u32]) {
    for client in clients {
        stage.does(*client, file(ROOT, &format!("of {client}")));
    }
    stage.whole_and_judged();
}

/// A server that has no bricks of the volume hears the clients whose sessions it has opened.
#[test]
fn a_session_that_a_server_without_bricks_has_opened_lives_with_its_client() {
    let mut stage = Stage::new(&[&[1, 2]]);
    let clients = clients(&mut stage);
    stage.pass(65_000_000);
    all_live(stage, &clients);
}

/// Server 0 has the lowest number and no bricks of the volume: it hears nothing of sessions that server 2 has opened.
#[test]
fn the_sessions_of_a_dead_server_are_not_ended_by_one_that_does_not_hear_them() {
    let mut stage = Stage::new(&[&[1, 2]]);
    let clients = clients(&mut stage);
    stage.kill(&[2]);
    stage.pass(65_000_000);
    all_live(stage, &clients);
}
