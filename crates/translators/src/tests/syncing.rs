//! `distribute`: fsync, and what it says of changes that were lost.

use super::files::FileClient;
use super::scripted_servers::ScriptedServers;
use super::support::*;
use super::virtual_time::in_virtual_time;
use bytes::Bytes;
use hekate_graph::{Context, Translator};
use hekate_proto::map::{Mode, VolumeMap};
use hekate_proto::*;

const A: InodeId = inode(0, 1);
const B: InodeId = inode(1, 2);

fn answer(request: &Request) -> Result<Reply> {
    match &request.op {
        Op::Inode { op } => node(attr(op.inode(), NodeKind::File)),
        Op::Name { op: NameOp::Create { .. } } => node(attr(inode(0, 9), NodeKind::File)),
        _ => Ok(Reply::Done),
    }
}

fn client() -> Client {
    client_of(map())
}

fn client_of(map: VolumeMap) -> Client {
    Client::new(map, |_, _, request| answer(request))
}

fn fsync(client: &Client, inode: InodeId) -> Result<Reply> {
    client.data(DataOp::Fsync { inode })
}

fn is_lost(outcome: &Result<Reply>) -> bool {
    matches!(outcome, Err(Error::Lost { .. }))
}

/// The syncs since the last call: brick, incarnation, shards.
fn syncs(servers: &ScriptedServers) -> Vec<(u128, u64, usize)> {
    let sync = |request: &Request| match (&request.op, request.target) {
        (Op::Data { op: DataOp::Sync { incarnation, shards, .. } }, Target::Brick { brick }) => {
            Some((brick.0, incarnation.0, shards.len()))
        }
        _ => None,
    };
    servers.take_sent().iter().filter_map(|sent| sync(&sent.request)).collect()
}

/// The bricks that were asked to sync since the last call.
fn bricks(servers: &ScriptedServers) -> Vec<u128> {
    syncs(servers).into_iter().map(|(brick, ..)| brick).collect()
}

/// Lets the client see a changed map: the next sync is refused once.
fn change_map_at_sync(client: &Client, change: impl Fn(&mut VolumeMap) + Send + Sync + 'static) {
    client.servers.execute_with(move |servers, _, request| match request.op {
        Op::Data { op: DataOp::Sync { .. } } => {
            servers.change_map(&change);
            servers.execute_with(|_, _, request| answer(request));
            Err(Error::StaleView { epoch: Epoch(0) })
        }
        _ => answer(request),
    });
}

#[test]
fn an_fsync_asks_each_member_once_and_the_next_one_asks_none() {
    let client = client();
    assert_eq!(fsync(&client, A), Ok(Reply::Done));
    assert!(bricks(&client.servers).is_empty(), "nothing has changed");
    client.call(chmod(A)).unwrap();
    client.call(chmod(B)).unwrap();
    assert_eq!(fsync(&client, A), Ok(Reply::Done));
    assert_eq!(syncs(&client.servers), [(1, 1, 0), (2, 1, 0)]);
    fsync(&client, A).unwrap();
    fsync(&client, inode(0, 3)).unwrap();
    assert!(bricks(&client.servers).is_empty(), "a sync of a brick covers all its metadata");
    fsync(&client, B).unwrap();
    assert_eq!(bricks(&client.servers), [3], "the other member has synced after the change");
    client.call(chmod(A)).unwrap();
    fsync(&client, A).unwrap();
    assert_eq!(bricks(&client.servers), [1, 2]);
}

#[test]
fn reads_and_durable_changes_need_no_sync() {
    let client = client();
    client.call(get_attr(A)).unwrap();
    client.top.handle(&Context::DURABLE, chmod(A)).unwrap();
    client.servers.take_sent();
    fsync(&client, A).unwrap();
    assert!(bricks(&client.servers).is_empty());
}

#[test]
fn the_shards_of_a_file_are_named_to_the_bricks_that_hold_them() {
    let client = FileClient::new();
    // The inode is at the bricks 3 and 1, the first shard at 1 and 2.
    let file = client.file_in_shards(inode(2, 1), SHARD_BYTES);
    client.write(file, 0, b"ab").unwrap();
    client.write(file, 9, b"cd").unwrap();
    client.servers.take_sent();
    fsync(&client, file).unwrap();
    assert_eq!(syncs(&client.servers), [(1, 1, 1), (2, 1, 1), (3, 1, 0)]);
    fsync(&client, file).unwrap();
    assert!(bricks(&client.servers).is_empty());
    client.data(DataOp::Write { inode: file, offset: 0, data: Bytes::from_static(b"ef"), drop_set_id: false }).unwrap();
    fsync(&client, file).unwrap();
    assert_eq!(syncs(&client.servers).len(), 3);
}

#[test]
fn an_fsync_covers_fast_writes() {
    in_virtual_time(|| {
        let client = FileClient::of(VolumeMap { mode: Mode::Hsr, ..map() });
        let file = client.file_in_shards(inode(2, 1), SHARD_BYTES);
        client.write(file, 0, b"ab").unwrap();
        fsync(&client, file).unwrap();
        client.write(file, 0, b"cd").unwrap();
        assert_eq!(client.servers.count("fast-write"), 2);
        client.servers.take_sent();
        fsync(&client, file).unwrap();
        assert_eq!(syncs(&client.servers), [(1, 1, 1), (2, 1, 1), (3, 1, 0)]);
    });
}

#[test]
fn an_fsync_covers_a_write_whose_outcome_is_unknown() {
    in_virtual_time(|| {
        let client = FileClient::new();
        let file = client.file_in_shards(inode(2, 1), SHARD_BYTES);
        client.before("wrote", |_| Some(Err(Error::Poisoned { what: "scripted".into() })));
        assert!(client.write(file, 0, b"ab").is_err());
        client.servers.take_sent();
        fsync(&client, file).unwrap();
        assert_eq!(syncs(&client.servers).len(), 3);
    });
}

#[test]
fn a_failed_fsync_leaves_the_changes_to_the_next_one() {
    let client = client();
    client.call(chmod(A)).unwrap();
    client.servers.execute_with(|_, server, request| match server {
        ServerId(2) => Err(Error::Io { what: "scripted".into() }),
        _ => answer(request),
    });
    assert!(matches!(fsync(&client, A), Err(Error::Io { .. })));
    client.servers.execute_with(|_, _, request| answer(request));
    client.servers.take_sent();
    fsync(&client, A).unwrap();
    assert_eq!(bricks(&client.servers), [1, 2]);
}

#[test]
fn an_fsync_is_planned_again_for_the_members_of_a_new_view() {
    in_virtual_time(|| {
        let client = client();
        client.call(chmod(A)).unwrap();
        change_map_at_sync(&client, |map| map.views[0] = view(6, 2));
        client.servers.take_sent();
        fsync(&client, A).unwrap();
        assert_eq!(bricks(&client.servers), [1, 2, 3], "after the refusal of brick 1");
    });
}

#[test]
fn a_mode_that_acknowledges_early_syncs_the_leader() {
    let client = client_of(VolumeMap { mode: Mode::Async, ..map() });
    client.call(chmod(B)).unwrap();
    client.servers.take_sent();
    fsync(&client, B).unwrap();
    assert_eq!(bricks(&client.servers), [2]);
}

#[test]
fn a_brick_is_asked_for_the_earliest_incarnation_that_the_views_name() {
    let mut later = map();
    // The view of the file's inode is that of before the bricks restarted.
    later.views[0].members.iter_mut().for_each(|member| member.incarnation = Incarnation(2));
    let client = FileClient::of(later);
    let file = client.file_in_shards(inode(3, 1), SHARD_BYTES);
    client.write(file, 0, b"ab").unwrap();
    client.servers.take_sent();
    fsync(&client, file).unwrap();
    assert_eq!(syncs(&client.servers), [(1, 1, 1), (2, 1, 1)]);
}

#[test]
fn a_loss_is_reported_once_and_of_its_inode_only() {
    in_virtual_time(|| {
        let client = client();
        for inode in [A, B, inode(0, 3)] {
            client.call(chmod(inode)).unwrap();
        }
        change_map_at_sync(&client, |map| {
            lead(map, 0, 1);
            map.views[0].losses = 1;
        });
        assert!(is_lost(&fsync(&client, A)));
        assert_eq!(fsync(&client, A), Ok(Reply::Done));
        assert_eq!(fsync(&client, B), Ok(Reply::Done));
        assert!(is_lost(&fsync(&client, inode(0, 3))), "its change was in the same partition");
        client.call(chmod(A)).unwrap();
        assert_eq!(fsync(&client, A), Ok(Reply::Done), "changed after the loss");
    });
}

#[test]
fn the_loss_of_a_new_file_and_of_its_directory_is_reported() {
    in_virtual_time(|| {
        let client = client();
        let (mode, uid, gid, umask, exclusive, seed) = (0o644, 0, 0, 0, true, 1);
        let (dir, name, node) = (A, name("n"), NewNode::File);
        client.names(NameOp::Create { dir, name, node, mode, uid, gid, umask, exclusive, seed }).unwrap();
        change_map_at_sync(&client, |map| map.views[0].losses = 1);
        assert!(is_lost(&fsync(&client, A)));
        let watch = client.top.loss_watch();
        assert!(watch.is_lost(inode(0, 9)) && !watch.is_lost(inode(0, 9)), "without a server, and once");
        assert!(!watch.is_lost(A) && !watch.is_lost(B));
    });
}

#[test]
fn a_loss_while_a_change_is_on_its_way_counts() {
    in_virtual_time(|| {
        let client = client();
        client.servers.execute_with(|servers, _, request| {
            servers.change_map(|map| {
                lead(map, 0, 1);
                map.views[0].losses = 1;
            });
            servers.execute_with(|_, _, request| answer(request));
            match request.op {
                Op::Inode { .. } => Err(Error::StaleView { epoch: Epoch(6) }),
                _ => answer(request),
            }
        });
        client.call(chmod(A)).unwrap();
        assert!(is_lost(&fsync(&client, A)), "the earlier leader may have executed it");
    });
}

#[test]
fn the_loss_of_bytes_in_shards_is_reported() {
    in_virtual_time(|| {
        let client = FileClient::new();
        let file = client.file_in_shards(inode(2, 1), SHARD_BYTES);
        client.write(file, 0, b"ab").unwrap();
        client.before("sync", |_| Some(Err(Error::StaleView { epoch: Epoch(0) })));
        client.servers.change_map(|map| {
            lead(map, 0, 1);
            map.views[0].losses = 1;
        });
        assert!(is_lost(&fsync(&client, file)));
        assert_eq!(fsync(&client, file), Ok(Reply::Done));
    });
}

#[test]
fn a_rename_is_synced_in_the_partitions_of_both_names() {
    let client = client();
    let (dir, name, to_dir, to_name) = (inode(2, 1), name("n"), B, name("m"));
    let (mode, open_here) = (RenameMode::Replace, None);
    client.names(NameOp::Rename { dir, name, to_dir, to_name, mode, open_here }).unwrap();
    client.servers.take_sent();
    fsync(&client, B).unwrap();
    assert_eq!(bricks(&client.servers), [2, 3]);
    fsync(&client, dir).unwrap();
    assert_eq!(bricks(&client.servers), [1], "brick 3 has synced");
}

#[test]
fn a_wide_directory_is_synced_in_all_partitions_of_its_names() {
    let client = client();
    client.servers.execute_with(|_, _, request| match &request.op {
        Op::Inode { op } => node(Attr { spread: 4, ..attr(op.inode(), NodeKind::Directory) }),
        Op::Name { .. } => Ok(Reply::Stub {
            stub: StubView { spread: 4, entries: 0, directories: 0, mtime: Time(0), ctime: Time(0), change: 1 },
        }),
        _ => Ok(Reply::Done),
    });
    let directory = inode(0, 1);
    client.call(get_attr(directory)).unwrap();
    client.call(chmod(inode(2, 5))).unwrap();
    client.servers.take_sent();
    fsync(&client, directory).unwrap();
    assert_eq!(bricks(&client.servers), [1, 3], "the bricks of the changed partition");
    // With very many of them the client forgets which are wide.
    let (dirs, changed) = ((10..10_010).map(|number| inode(0, number)), inode(2, 6));
    dirs.for_each(|dir| _ = client.call(get_attr(dir)).unwrap());
    client.call(chmod(changed)).unwrap();
    client.servers.take_sent();
    fsync(&client, directory).unwrap();
    assert_eq!(bricks(&client.servers), [1, 3], "an unknown directory may be wide");
}

#[test]
fn at_the_limit_of_unsynced_inodes_everything_is_synced() {
    let client = client();
    for number in 0..16_384 {
        client.call(chmod(inode(0, number))).unwrap();
    }
    assert_eq!(client.servers.count("sync"), 0);
    client.servers.take_sent();
    client.call(chmod(B)).unwrap();
    let sent = client.servers.take_sent();
    let is_all = |request: &Request| matches!(request.op, Op::Data { op: DataOp::Sync { all: true, .. } });
    assert_eq!(sent.iter().filter(|sent| is_all(&sent.request)).count(), 3, "each brick once");
    for inode in [A, B] {
        fsync(&client, inode).unwrap();
    }
    client.call(chmod(B)).unwrap();
    assert!(bricks(&client.servers).is_empty());
}

#[test]
fn at_the_limit_of_unsynced_shards_everything_is_synced() {
    let client = FileClient::new();
    let file = client.file_in_shards(A, 1);
    let (mode, drop_set_id) = (Allocate::Reserve { keep_size: true }, false);
    let allocate = |offset, length| {
        client.data(DataOp::Allocate { inode: file, offset, length, mode, drop_set_id }).unwrap();
    };
    allocate(0, 65_536 * SHARD_BYTES);
    assert_eq!(client.servers.count("sync"), 0);
    allocate(65_536 * SHARD_BYTES, SHARD_BYTES);
    assert_eq!(client.servers.count("sync"), 3);
    client.servers.take_sent();
    fsync(&client, file).unwrap();
    assert!(bricks(&client.servers).is_empty());
}

#[test]
fn a_sync_of_everything_leaves_out_partitions_of_earlier_incarnations() {
    let mut restarting = map();
    // The partitions 1 and 3 wait for a member, and name incarnations that are over.
    for partition in [0, 2] {
        restarting.views[partition].members.iter_mut().for_each(|member| member.incarnation = Incarnation(2));
    }
    let client = client_of(restarting);
    client.call(chmod(B)).unwrap();
    for number in 0..16_384 {
        client.call(chmod(inode(0, number))).unwrap();
    }
    assert_eq!(syncs(&client.servers), [(1, 2, 0), (2, 2, 0), (3, 2, 0)]);
    fsync(&client, A).unwrap();
    assert!(bricks(&client.servers).is_empty());
    fsync(&client, B).unwrap();
    assert_eq!(syncs(&client.servers), [(2, 1, 0), (3, 1, 0)]);
}
