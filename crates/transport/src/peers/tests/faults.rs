//! Connections that end, servers that restart, handlers that do not return, and clients that are not servers.

use super::*;
use crate::client::{HANDSHAKE_LIMIT, handshake};
use crate::frame::Purpose;

#[test]
fn a_connection_cut_in_the_middle_loses_and_doubles_nothing() {
    const MESSAGES: u64 = 20_000;
    for endpoint in endpoints("cut") {
        let (one, two) = two(&endpoint, &LinkSettings::default());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let cutter = scope.spawn(|| {
                let mut cuts = 0;
                while !done.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(20));
                    [&one, &two][cuts % 2].peers.cut(ServerId([2, 1][cuts % 2]));
                    cuts += 1;
                }
                cuts
            });
            for (node, to) in [(&one, 2), (&two, 1)] {
                scope.spawn(move || {
                    for count in 0..MESSAGES {
                        assert!(node.send(to, numbered(count, 100)));
                        if count % 100 == 0 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            }
            for (node, from) in [(&one, 2), (&two, 1)] {
                let heard: Vec<_> = node.wait_messages(from, MESSAGES as usize).iter().map(number).collect();
                assert!(heard.iter().copied().eq(0..MESSAGES), "all, in order, once");
            }
            done.store(true, Ordering::SeqCst);
            assert!(cutter.join().unwrap() > 3);
        });
        assert_eq!(one.recorder.downs() + two.recorder.downs(), 0, "the generation lasts");
    }
}

#[test]
fn a_server_that_restarts_is_down_and_up_again() {
    for endpoint in endpoints("restart") {
        let (one, two) = two(&endpoint, &LinkSettings::default());
        two.send(1, "of the first process");
        assert_eq!(one.wait_messages(2, 1).len(), 1);
        drop(two);
        let two = Node::start(2, 23, &unix("restart", 2));
        two.meet(1, &endpoint);
        two.wait_up(1, 11);
        one.wait_up(2, 23);
        assert!(two.send(1, "of the second"));
        assert_eq!(one.wait_messages(2, 2)[1], "of the second");
        let peer = ServerId(2);
        assert_eq!(
            *one.recorder.heard.lock(),
            [
                Heard::Up(peer, Boot(22)),
                Heard::Message(peer, "of the first process".into()),
                Heard::Down(peer),
                Heard::Up(peer, Boot(23)),
                Heard::Message(peer, "of the second".into()),
            ]
        );
        // The other end, which accepts, restarts as well.
        drop(one);
        let one = Node::start(1, 12, &endpoint);
        two.wait_up(1, 12);
        one.wait_up(2, 23);
        assert_eq!(two.recorder.downs(), 1);
    }
}

#[test]
fn a_server_of_another_cluster_a_client_and_another_server_are_refused() {
    let endpoint = tcp();
    let one = Node::start(1, 11, &endpoint);
    let Endpoint::Tcp(address, _) = endpoint else { unreachable!() };
    let purpose = || Purpose::Peer { server: ServerId(2), boot: Boot(1), to: ServerId(1) };
    let ours = TestCluster::create("c1").unwrap();
    let contexts = [
        ("another cluster", TestCluster::create("c2").unwrap().server(2).unwrap()),
        ("a cluster of the same name", ours.server(2).unwrap()),
        ("another server", context(3)),
        ("a client", client_context()),
        ("nobody", Arc::new(Context::joining("00").unwrap())),
    ];
    for (what, shown) in contexts {
        let stranger = Endpoint::Tcp(address.clone(), shown);
        let refused = handshake(&stranger, purpose(), HANDSHAKE_LIMIT).map(|_| ());
        assert!(matches!(refused, Err(Error::Denied { .. })), "{what}: {refused:?}");
    }
    assert!(handshake(&Endpoint::Tcp(address, context(2)), purpose(), HANDSHAKE_LIMIT).is_ok());
    assert_eq!(one.recorder.heard.lock().len(), 0, "no link is up");
}

/// A server that answers at the address of another one gets no messages for it.
#[test]
fn a_server_at_the_address_of_another_is_refused() {
    let endpoint = tcp();
    let one = Node::start(1, 11, &endpoint);
    let three = Node::start(3, 33, &unix("address", 3));
    // Server 3 looks for server 2 there.
    three.meet(2, &endpoint);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(one.recorder.heard.lock().len() + three.recorder.heard.lock().len(), 0);
}

#[test]
fn another_user_is_no_server() {
    let own = rustix::process::geteuid().as_raw();
    for uid in [0, own] {
        assert!(Client::Local { uid }.may_be_server(ServerId(1)).is_ok());
    }
    let denied = Client::Local { uid: own + 1 }.may_be_server(ServerId(1));
    assert!(matches!(denied, Err(Error::Denied { .. })));
}

#[test]
fn a_connection_for_another_server_or_in_the_wrong_direction_is_refused() {
    let endpoint = unix("wrong", 1);
    let _five = Node::start(5, 7, &endpoint);
    for (server, to) in [(6, 4), (4, 5), (5, 5)] {
        let purpose = Purpose::Peer { server: ServerId(server), boot: Boot(1), to: ServerId(to) };
        let refused = handshake(&endpoint, purpose, HANDSHAKE_LIMIT).map(|_| ());
        assert!(refused.is_err(), "{server} to {to}");
    }
    let purpose = Purpose::Peer { server: ServerId(6), boot: Boot(1), to: ServerId(5) };
    assert!(handshake(&endpoint, purpose, HANDSHAKE_LIMIT).is_ok());
}

/// A sender does not wait: the generation ends, and another one begins when the peer handles messages again.
#[test]
fn a_peer_that_handles_nothing_is_down_and_then_up_again() {
    let settings = LinkSettings { unacknowledged_bytes_max: 4 << 20, ..LinkSettings::default() };
    for endpoint in endpoints("stuck") {
        let (one, two) = two(&endpoint, &settings);
        let busy = two.recorder.heard.lock();
        while one.send(2, vec![1u8; 10_000]) {}
        one.recorder.wait(|heard| heard.last() == Some(&Heard::Down(ServerId(2))));
        drop(busy);
        one.recorder.wait(|heard| matches!(heard.last(), Some(Heard::Up(..))));
        two.recorder.wait(|heard| matches!(heard.last(), Some(Heard::Up(..))));
        assert!(one.send(2, "again"));
        two.recorder.wait(|heard| heard.last() == Some(&Heard::Message(ServerId(1), "again".into())));
    }
}

#[test]
fn a_handler_that_panics_ends_the_generation_and_nothing_else() {
    let endpoint = unix("panic", 1);
    let (one, two) = two(&endpoint, &LinkSettings::default());
    for (node, to, other, from) in [(&one, 2, &two, 1), (&two, 1, &one, 2)] {
        let downs = other.recorder.downs();
        assert!(node.send(to, "panic"));
        other.recorder.wait(|heard| {
            let count = heard.iter().filter(|heard| matches!(heard, Heard::Down(_))).count();
            count > downs && matches!(heard.last(), Some(Heard::Up(..)))
        });
        node.recorder.wait(|heard| matches!(heard.last(), Some(Heard::Up(..))));
        assert!(node.send(to, "well"));
        other.recorder.wait(|heard| heard.last() == Some(&Heard::Message(ServerId(from), "well".into())));
    }
}
