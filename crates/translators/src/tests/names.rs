//! `distribute`: ops on names, and the inodes that names lead to.

use super::scripted_servers::{Fate, ScriptedServers};
use super::support::*;
use super::virtual_time::in_virtual_time;
use hekate_graph::{Context, ReadsAfter, Translator};
use hekate_proto::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const DIR: InodeId = inode(0, 1);
const ELSEWHERE: InodeId = inode(2, 5);

fn lookup() -> NameOp {
    NameOp::Lookup { dir: DIR, name: name("n") }
}

fn create(dir: InodeId, text: &str) -> Op {
    let (mode, uid, gid, umask, exclusive, seed) = (0o644, 0, 0, 0, true, 1);
    Op::Name {
        op: NameOp::Create { dir, name: name(text), node: NewNode::File, mode, uid, gid, umask, exclusive, seed },
    }
}

fn elsewhere() -> Result<Reply> {
    Ok(Reply::Elsewhere { inode: ELSEWHERE, kind: NodeKind::File })
}

/// A name in `DIR` leads to another partition, where this reply is given.
fn leads_elsewhere(reply: impl Fn(&ScriptedServers) -> Result<Reply> + Send + Sync + 'static) -> Client {
    Client::new(map(), move |servers, _, request| match &request.op {
        Op::Name { .. } => elsewhere(),
        _ => reply(servers),
    })
}

#[test]
fn a_name_that_leads_elsewhere_is_followed_to_the_inodes_leader() {
    let client = leads_elsewhere(|_| node(attr(ELSEWHERE, NodeKind::File)));
    for op in [Op::Name { op: lookup() }, create(DIR, "n")] {
        assert_eq!(client.call(op), node(attr(ELSEWHERE, NodeKind::File)));
        let sent = client.servers.take_sent();
        let seen: Vec<_> = sent.iter().map(|sent| sent.server.0).collect();
        assert_eq!((seen, sent[1].request.op.clone()), (vec![1, 3], get_attr(ELSEWHERE)));
    }
}

#[test]
fn a_parent_in_another_partition_is_followed() {
    let client = Client::new(map(), |_, _, request| match &request.op {
        Op::Inode { op: InodeOp::Parent { .. } } => elsewhere(),
        _ => node(attr(ELSEWHERE, NodeKind::Directory)),
    });
    let parent = Op::Inode { op: InodeOp::Parent { inode: DIR } };
    assert_eq!(client.call(parent), node(attr(ELSEWHERE, NodeKind::Directory)));
}

#[test]
fn a_name_whose_inode_is_gone_is_looked_up_again() {
    let client = leads_elsewhere(|servers| match servers.count("lookup") {
        3 => node(attr(ELSEWHERE, NodeKind::File)),
        _ => Err(Error::Stale),
    });
    assert_eq!(client.names(lookup()), node(attr(ELSEWHERE, NodeKind::File)));
    assert_eq!(client.servers.labels(), ["lookup", "getattr"].repeat(3));
}

#[test]
fn a_name_whose_inode_is_always_gone_is_damage() {
    let client = leads_elsewhere(|_| Err(Error::Stale));
    assert_eq!(client.names(lookup()), Err(Error::Stale));
    assert_eq!(client.servers.count("lookup"), 1 + 16);
}

#[test]
fn another_error_of_the_inode_is_the_answer() {
    let client = leads_elsewhere(|_| Err(Error::Poisoned { what: "scripted".into() }));
    assert!(matches!(client.names(lookup()), Err(Error::Poisoned { .. })));
    assert_eq!(client.servers.count("lookup"), 1);
}

#[test]
fn the_directory_after_a_change_comes_with_the_same_batch() {
    let file = attr(inode(0, 9), NodeKind::File);
    let made = file.clone();
    let client = Client::new(map(), move |_, _, request| match &request.op {
        Op::Name { .. } => Ok(Reply::Node { attr: made.clone(), created: true }),
        Op::Inode { op } => node(attr(op.inode(), NodeKind::Directory)),
        _ => Err(Error::bug("scripted")),
    });
    let after = OnceLock::new();
    let context = Context { directory_after: Some(&after), ..Context::default() };
    assert_eq!(client.top.handle(&context, create(DIR, "n")), Ok(Reply::Node { attr: file, created: true }));
    assert_eq!(after.get(), Some(&attr(DIR, NodeKind::Directory)));
    let sent = client.servers.take_sent();
    assert_eq!(sent.iter().map(|sent| (sent.batch, sent.label())).collect::<Vec<_>>(), [(0, "create"), (0, "getattr")]);
    client.top.handle(&context, Op::Name { op: lookup() }).unwrap();
    assert_eq!(client.servers.labels(), ["lookup"], "a look-up changes nothing");
}

#[test]
fn a_change_that_fails_says_nothing_of_the_directory() {
    let client = Client::new(map(), |_, _, request| match &request.op {
        Op::Name { .. } => Err(Error::Exists),
        _ => node(attr(DIR, NodeKind::Directory)),
    });
    let after = OnceLock::new();
    let context = Context { directory_after: Some(&after), ..Context::default() };
    assert_eq!(client.top.handle(&context, create(DIR, "n")), Err(Error::Exists));
    assert_eq!(after.get(), None);
}

#[test]
fn a_rename_goes_to_the_leader_of_the_new_name() {
    let client = Client::new(map(), |_, _, _| Ok(Reply::Done));
    let (to_dir, to_name) = (inode(1, 2), name("m"));
    let rename =
        NameOp::Rename { dir: DIR, name: name("n"), to_dir, to_name, mode: RenameMode::Replace, open_here: None };
    assert_eq!(client.names(rename), Ok(Reply::Done));
    assert_eq!(client.servers.take_sent()[0].server, ServerId(2));
}

/// A directory in `DIR`'s partition whose names lead to these inodes.
fn lists(inodes: Vec<InodeId>, reply: impl Fn(InodeId) -> Result<Reply> + Send + Sync + 'static) -> Client {
    let entry = |inode: &InodeId| Entry {
        name: name(&format!("{}", inode.number())),
        inode: *inode,
        kind: NodeKind::File,
        attr: (inode.position() == DIR.position()).then(|| attr(*inode, NodeKind::File)),
    };
    let entries: Vec<Entry> = inodes.iter().map(entry).collect();
    Client::new(map(), move |_, _, request| match &request.op {
        Op::Name { .. } => Ok(Reply::List { entries: entries.clone(), end: true }),
        Op::Inode { op } => reply(op.inode()),
        _ => Err(Error::bug("scripted")),
    })
}

fn list(attributes: bool) -> NameOp {
    NameOp::List { dir: DIR, after: None, limit: 100, attributes, touch: false }
}

/// The inodes with attributes of a list.
fn known(reply: Result<Reply>) -> Vec<u64> {
    match reply {
        Ok(Reply::List { entries, .. }) => entries.into_iter().filter_map(|e| e.attr).map(|a| a.id.number()).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_attributes_of_a_list_come_from_the_inodes_leaders() {
    let inodes = vec![inode(0, 10), inode(1, 11), inode(2, 12), inode(1, 13)];
    let client = lists(inodes, |inode| node(attr(inode, NodeKind::File)));
    assert_eq!(known(client.names(list(false))), [10]);
    assert_eq!(client.servers.labels(), ["list"]);
    assert_eq!(known(client.names(list(true))), [10, 11, 12, 13]);
    assert_eq!(client.servers.count("getattr"), 3);
}

#[test]
fn a_name_that_is_removed_while_it_is_listed_does_not_fail_the_others() {
    let inodes = (10..15).map(|number| inode(1, number)).collect();
    let client = lists(inodes, |inode| match inode.number() {
        11 | 14 => Err(Error::Stale),
        _ => node(attr(inode, NodeKind::File)),
    });
    assert_eq!(known(client.names(list(true))), [10, 12, 13]);
}

#[test]
fn ops_between_layers_and_servers_are_refused() {
    let client = Client::new(map(), |_, _, _| Ok(Reply::Done));
    let inode = DIR;
    let refused = [
        Op::Name { op: NameOp::Stub { dir: DIR, spread: 1 } },
        Op::Name { op: NameOp::ListPart { dir: DIR, spread: 1, after: None, limit: 1, attributes: false } },
        Op::Data { op: DataOp::Spill { inode } },
        Op::Data { op: DataOp::Sync { incarnation: Incarnation(1), shards: Vec::new(), all: true } },
        Op::Lock { op: LockOp::Restore { locks: Vec::new(), done: true } },
        Op::Leg { intent: IntentId(1), number: 0, leg: Box::new(Leg::HoldMoves) },
    ];
    for op in refused {
        assert!(matches!(client.call(op.clone()), Err(Error::Invalid { .. })), "{op:?}");
    }
    assert!(client.servers.take_sent().is_empty());
}

#[test]
fn an_unnamed_file_is_made_where_its_directory_is() {
    let client = Client::new(map(), |_, _, _| node(attr(inode(1, 9), NodeKind::File)));
    let (mode, uid, gid, umask, linkable, seed) = (0o600, 0, 0, 0, false, 1);
    let op = NameOp::CreateUnnamed { dir: inode(1, 1), mode, uid, gid, umask, linkable, seed };
    client.names(op).unwrap();
    assert_eq!(client.servers.take_sent()[0].server, ServerId(2));
}

/// Each server replies with its own share.
fn shares() -> Client {
    Client::new(map(), |_, server, request| match &request.op {
        Op::Volume { op: VolumeOp::StatFs } => {
            let share = u64::from(server.0);
            let space = VolumeSpace { total: share, free: share * 10, ..VolumeSpace::default() };
            Ok(Reply::Space { space })
        }
        Op::Volume { op: VolumeOp::Heartbeat { .. } } => {
            Ok(Reply::Orphans { inodes: vec![inode(0, server.0.into())], unrestored: Vec::new(), graph: 0 })
        }
        _ => Ok(Reply::Done),
    })
}

fn space(client: &Client) -> (u64, u64) {
    match client.call(Op::Volume { op: VolumeOp::StatFs }) {
        Ok(Reply::Space { space }) => (space.total, space.free),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_space_of_a_volume_is_the_sum_of_its_servers() {
    in_virtual_time(|| {
        let client = shares();
        assert_eq!(space(&client), (6, 60));
        client.servers.set_fate(ServerId(1), Fate::Silent);
        assert_eq!(space(&client), (5, 50), "of those that reply");
        for server in [2, 3] {
            client.servers.set_fate(ServerId(server), Fate::NotReached);
        }
        client.servers.next_fates([Fate::NotReached; 4]);
        client.servers.set_fate(ServerId(1), Fate::Answered);
        assert_eq!(space(&client), (1, 10), "the session's server is waited for");
    });
}

#[test]
fn another_error_of_one_server_is_the_answer() {
    let client = shares();
    let count = AtomicUsize::new(0);
    client.servers.execute_with(move |_, _, _| match count.fetch_add(1, Ordering::Relaxed) {
        1 => Err(Error::SessionEnded),
        _ => Ok(Reply::Space { space: VolumeSpace::default() }),
    });
    assert_eq!(client.call(Op::Volume { op: VolumeOp::StatFs }), Err(Error::SessionEnded));
}

#[test]
fn a_heartbeat_gathers_the_orphans_of_all_servers() {
    let client = shares();
    let beat = VolumeOp::Heartbeat { unused: vec![inode(0, 4)], mapped: Vec::new(), graph: 0 };
    let reply = client.call(Op::Volume { op: beat.clone() });
    assert_eq!(
        reply,
        Ok(Reply::Orphans { inodes: [1, 2, 3].map(|at| inode(0, at)).into(), unrestored: Vec::new(), graph: 0 })
    );
    assert!(client.servers.take_sent().iter().all(|sent| sent.request.op == Op::Volume { op: beat.clone() }));
}

/// The server that opened a session ends it after silence.
#[test]
fn a_heartbeat_goes_to_the_server_that_opened_the_session_also_if_it_has_no_bricks_of_the_volume() {
    let mut without = map();
    without.views = vec![view(5, 2)];
    without.bricks.retain(|place| place.server != without.server);
    without.check().unwrap();
    let client = Client::new(without, |_, _, request| match &request.op {
        Op::Volume { op: VolumeOp::StatFs } => Ok(Reply::Space { space: VolumeSpace::default() }),
        _ => Ok(Reply::Orphans { inodes: Vec::new(), unrestored: Vec::new(), graph: 0 }),
    });
    let asked = |op: VolumeOp| {
        client.call(Op::Volume { op }).unwrap();
        client.servers.take_sent().iter().map(|sent| sent.server.0).collect::<Vec<_>>()
    };
    assert_eq!(asked(VolumeOp::Heartbeat { unused: Vec::new(), mapped: Vec::new(), graph: 0 }), [2, 3, 1]);
    assert_eq!(asked(VolumeOp::StatFs), [2, 3]);
}

#[test]
fn the_end_of_a_session_goes_to_the_server_that_opened_it() {
    let client = shares();
    assert_eq!(client.call(Op::Volume { op: VolumeOp::EndSession }), Ok(Reply::Done));
    assert_eq!(client.servers.take_sent().iter().map(|sent| sent.server.0).collect::<Vec<_>>(), [1]);
}

#[test]
fn what_a_client_needs_next_is_read_behind_a_change() {
    let client = Client::new(map(), |_, _, request| match &request.op {
        Op::Name { op: NameOp::Lookup { .. } } => Err(Error::Skipped),
        Op::Name { op: NameOp::Create { .. } } => node(attr(inode(0, 9), NodeKind::File)),
        Op::Name { .. } => Ok(Reply::Done),
        Op::Inode { op } => node(attr(op.inode(), NodeKind::Directory)),
        _ => Err(Error::bug("scripted")),
    });
    let sent = |op: Op| {
        let after = ReadsAfter::default();
        let context = Context { reads_after: Some(&after), ..Context::default() };
        let _ = client.top.handle(&context, op);
        let sent = client.servers.take_sent();
        assert!(sent.iter().all(|one| one.batch == sent[0].batch && one.request.pledge == one.request.op.is_read()));
        let labels: Vec<_> = sent.iter().map(|one| one.label()).collect();
        assert_eq!(after.lock().len(), labels.len() - 1);
        labels
    };
    assert_eq!(sent(create(DIR, "n")), ["create", "getattr", "lookup"]);
    let unlink = NameOp::Unlink { dir: DIR, name: name("n"), open_here: None };
    assert_eq!(sent(Op::Name { op: unlink }), ["unlink", "getattr"]);
    let (dir, to_name) = (inode(1, 2), name("m"));
    let rename =
        NameOp::Rename { dir, name: name("n"), to_dir: DIR, to_name, mode: RenameMode::Replace, open_here: None };
    assert_eq!(sent(Op::Name { op: rename }), ["rename", "getattr", "lookup"], "the old directory is elsewhere");
    let changes = AttrChanges::default();
    assert_eq!(sent(Op::Inode { op: InodeOp::SetAttr { inode: DIR, changes } }), ["setattr", "getattr"]);
}

#[test]
fn what_was_read_behind_the_first_step_of_an_op_does_not_outlive_the_next() {
    let layout = Layout { version: 1, pieces: vec![Piece { data: DataId(1), length: u64::MAX }] };
    let large = Attr { layout, ..attr(inode(0, 9), NodeKind::File) };
    let client = Client::new(map(), move |_, _, request| match &request.op {
        Op::Inode { .. } | Op::Data { op: DataOp::Write { .. } } => node(large.clone()),
        Op::Data { op: DataOp::WriteShard { .. } } => {
            Ok(Reply::Written { stamp: Stamp::of_leader(1, Epoch(1), Sequence(1)), fast: None })
        }
        _ => Ok(Reply::Done),
    });
    let after = ReadsAfter::default();
    let context = Context { reads_after: Some(&after), ..Context::default() };
    let op = DataOp::Write { inode: inode(0, 9), offset: 0, data: vec![1; 100].into(), drop_set_id: false };
    client.top.handle(&context, Op::Data { op }).unwrap();
    assert_eq!(client.servers.take_sent()[0].label(), "write");
    assert_eq!(*after.lock(), [], "the bytes went to shards behind it");
}
