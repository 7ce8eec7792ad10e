//! A volume whose partitions are led by two servers with a brick each: batches go to both, in order.

#![allow(clippy::unwrap_used, clippy::panic)]

use hekate_brick::{Brick, BrickSettings};
use hekate_client::proto::*;
use hekate_client::{Context, Endpoint, New, OpenOptions, Volume};
use hekate_cluster::{BrickInfo, EmbeddedCoordinator, FIRST_SERVER, Registry, ServerInfo};
use hekate_control::VolumeCreate;
use hekate_graph::Translator;
use hekate_server::{Membership, Node, NodeSettings};
use hekate_translators::{Distribute, Replicate};
use hekate_transport::{Server, ServerPool};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SECOND: ServerId = ServerId(2);
const MIB: usize = 1 << 20;

/// Two servers in one process, and a volume `v` with one copy on both.
struct Pair {
    directory: PathBuf,
    running: [Option<(Arc<Node>, Server)>; 2],
}

impl Pair {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("hekate-pair-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let mut pair = Self { directory, running: [None, None] };
        std::fs::create_dir_all(pair.state(0)).unwrap();
        std::fs::create_dir_all(pair.state(1)).unwrap();
        let coordinator = EmbeddedCoordinator::create(&pair.state(0).join("coordinator.redb")).unwrap();
        let registry = Registry::new(Arc::new(coordinator));
        registry.create_cluster("pair").unwrap();
        registry.create_pool("p", &[pair.make_brick(FIRST_SERVER)]).unwrap();
        let server = registry.number_server().unwrap();
        let info = ServerInfo::new(server);
        registry.join(&info, &[pair.make_brick(server)]).unwrap();
        drop(registry);
        let coordinator = pair.endpoint(0).to_string();
        Membership { server: SECOND, cluster: "pair".into(), coordinator, servers: Vec::new() }
            .write(&pair.state(1))
            .unwrap();
        pair.start(0);
        pair.start(1);
        let wanted = VolumeCreate {
            name: "v".into(),
            pool: "p".into(),
            copies: 1,
            domain: None,
            min_replicas: None,
            allowed_uids: vec![],
            owner_uid: Some(0),
            spread: 8,
            mode: Default::default(),
            led_by: None,
        };
        pair.running[0].as_ref().unwrap().0.make_volume(wanted).unwrap();
        pair
    }

    fn make_brick(&self, server: ServerId) -> BrickInfo {
        let brick = BrickId(server.0.into());
        let path = self.directory.join(format!("brick{server}"));
        let settings = BrickSettings {
            journal_segments: 4,
            segment_bytes: 8 << 20,
            index_cache_bytes: 4 << 20,
            reserve_bytes: 1 << 20,
        };
        Brick::create(&path, brick, "pair", settings).unwrap();
        let directory = path.to_string_lossy().into_owned();
        BrickInfo {
            brick,
            directory,
            pool: "p".into(),
            weight: 1,
            server,
            incarnation: Incarnation(0),
            openings: 0,
            begun: 0,
            restored: false,
            unopened: false,
        }
    }

    fn state(&self, index: usize) -> PathBuf {
        self.directory.join(format!("state{index}"))
    }

    fn endpoint(&self, index: usize) -> Endpoint {
        Endpoint::Unix(self.state(index).join("server.sock"))
    }

    fn start(&mut self, index: usize) {
        let node = Node::start(&NodeSettings { state: self.state(index), without: Vec::new() }, &|_| ()).unwrap();
        let server = Server::new(node.clone());
        server.listen(&self.endpoint(index), "").unwrap();
        node.announce(&[self.endpoint(index).to_string()], &std::collections::BTreeMap::new()).unwrap();
        self.running[index] = Some((node, server));
    }

    fn stop(&mut self, index: usize) {
        let Some((node, server)) = self.running[index].take() else { return };
        let _ = std::fs::remove_file(self.state(index).join("server.sock"));
        server.stop();
        drop(server);
        node.stop_housekeeping();
        let patience = Instant::now();
        while Arc::strong_count(&node) > 1 && patience.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
    }

    /// Opens the volume at one of the servers, and makes a file in its root directory.
    fn open(&self, index: usize) -> (Volume, InodeId) {
        let volume = Volume::open(self.endpoint(index), "v", &OpenOptions::default()).unwrap();
        wait_until(|| volume.getattr(&Context::default(), ROOT).is_ok(), "the root directory");
        let new = New { node: NewNode::File, mode: 0o600, uid: 0, gid: 0, umask: 0, exclusive: false };
        let (attr, _) = volume.create(&Context::default(), ROOT, Name::try_from("file").unwrap(), new).unwrap();
        (volume, attr.id)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.stop(1);
        self.stop(0);
        let _ = std::fs::remove_dir_all(Path::new(&self.directory));
    }
}

fn wait_until(condition: impl Fn() -> bool, what: &str) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "still not: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes that differ by position.
fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 1000) as u8 ^ seed).collect()
}

/// Offset of a shard that `server` leads, among the first `shards` of the file.
fn shard_at(volume: &Volume, file: InodeId, server: ServerId, shards: u64) -> u64 {
    let layout = volume.getattr(&Context::default(), file).unwrap().layout;
    let map = volume.map();
    let leads = |offset: &u64| {
        let (shard, _, _) = layout.shard_runs(map.volume, *offset, 1)[0];
        map.server_of(map.view(map.partition_of(shard.position())).unwrap().leader) == Some(server)
    };
    (0..shards).map(|index| index * SHARD_BYTES).find(leads).unwrap()
}

#[test]
fn a_file_over_the_shards_of_two_servers_reads_as_it_was_written() {
    let pair = Pair::new("both");
    let (volume, file) = pair.open(0);
    assert_eq!(volume.map().holders(), [FIRST_SERVER, SECOND]);
    let (context, bytes) = (Context::default(), pattern(4 * MIB, 7));
    for shard in 0..8 {
        // Each write covers two shards, and the inode's leader is asked after them.
        let offset = (shard * 4 + 2) * MIB as u64;
        volume.write(&context, file, offset, bytes.clone().into(), false).unwrap();
    }
    for server in [FIRST_SERVER, SECOND] {
        shard_at(&volume, file, server, 8);
    }
    volume.fsync(&context, file).unwrap();
    for shard in 0..8 {
        let found = volume.read(&context, file, (shard * 4 + 2) * MIB as u64, 4 * MIB as u32).unwrap();
        assert!(found == bytes, "shard {shard}");
    }
    assert_eq!(volume.getattr(&context, file).unwrap().size, 34 * MIB as u64);
    // The same file through a session that was opened at the other server.
    let (other, same) = pair.open(1);
    assert_eq!(same, file);
    assert!(other.read(&context, file, 2 * MIB as u64, 4 * MIB as u32).unwrap() == bytes);
    // Each server reports its own brick.
    let space = volume.statfs(&context).unwrap();
    assert!(space.total > 0 && space.free <= space.total);
    drop((volume, other));
}

#[test]
fn an_unavailable_server_does_not_block_ops_at_the_other() {
    let mut pair = Pair::new("away");
    let (volume, file) = pair.open(0);
    let context = Context::default();
    let bytes = pattern(64 << 10, 3);
    for shard in 0..16 {
        volume.write(&context, file, shard * SHARD_BYTES, bytes.clone().into(), false).unwrap();
    }
    let home = volume.map().server_of(volume.map().view(volume.map().partition_of(file.position())).unwrap().leader);
    let (stays, goes) = if home == Some(FIRST_SERVER) { (FIRST_SERVER, SECOND) } else { (SECOND, FIRST_SERVER) };
    let (here, there) = (shard_at(&volume, file, stays, 16), shard_at(&volume, file, goes, 16));
    let index = goes.0 as usize - 1;
    pair.stop(index);
    assert!(volume.read(&context, file, here, 4096).unwrap() == bytes[..4096]);
    volume.write(&context, file, here, bytes.clone().into(), false).unwrap();
    // An op that needs the other server waits until the caller gives up or the server is back.
    let interrupt = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let interruptible = Context { interrupt: Some(&interrupt), ..context };
        let gives_up = scope.spawn({
            let volume = &volume;
            move || volume.read(&interruptible, file, there, 4096)
        });
        let waits = scope.spawn(|| volume.write(&context, file, there, bytes.clone().into(), false));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!gives_up.is_finished() && !waits.is_finished());
        interrupt.store(true, Ordering::Relaxed);
        let given_up = gives_up.join().unwrap().unwrap_err();
        assert!(matches!(given_up, Error::Unavailable { .. }), "{given_up}");
        assert!(!waits.is_finished());
        pair.start(index);
        waits.join().unwrap().unwrap();
    });
    assert!(volume.read(&context, file, there, 4096).unwrap() == bytes[..4096]);
}

/// Number of syncs that clients requested at a server.
fn syncs(pair: &Pair, index: usize) -> u64 {
    let status = hekate_transport::control(&pair.endpoint(index), r#"{"request":"status"}"#).unwrap();
    let Some(at) = status.find(r#""sync":{"#) else { return 0 };
    let of_syncs = &status[at..];
    let done = &of_syncs[of_syncs.find(r#""done":"#).unwrap() + 7..];
    done[..done.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap()
}

#[test]
fn a_directory_over_two_servers_is_one() {
    let pair = Pair::new("wide");
    let (volume, file) = pair.open(0);
    let (other, _) = pair.open(1);
    let (context, name) = (Context::default(), |text: &str| Name::try_from(text).unwrap());
    let new = |node| New { node, mode: 0o755, uid: 0, gid: 0, umask: 0, exclusive: true };
    let (wide, _) = volume.create(&context, ROOT, name("wide"), new(NewNode::Directory)).unwrap();
    assert_eq!(wide.spread, 8);
    let map = volume.map();
    let server = |text: &str| {
        let partition = map.partition_of(name_position(wide.id, &name(text), wide.spread));
        map.server_of(map.view(partition).unwrap().leader).unwrap()
    };
    let names: Vec<String> = (10..34).map(|number| number.to_string()).collect();
    // Earlier changes of this client may be in the same partitions.
    assert_eq!(other.find("wide").unwrap().spread, 8);
    other.fsync(&context, wide.id).unwrap();
    for text in &names {
        other.create(&context, wide.id, name(text), new(NewNode::File)).unwrap();
        let before = [0, 1].map(|index| syncs(&pair, index));
        other.fsync(&context, wide.id).unwrap();
        let asked = server(text).0 as usize - 1;
        let after = [0, 1].map(|index| syncs(&pair, index));
        assert_eq!((after[asked], after[1 - asked]), (before[asked] + 1, before[1 - asked]), "fsync after {text}");
    }
    assert!(names.iter().any(|text| server(text) == FIRST_SERVER) && names.iter().any(|text| server(text) == SECOND));
    let (entries, end) = volume.list(&context, wide.id, None, 1000, true).unwrap();
    assert!(end && entries.iter().map(|entry| entry.name.clone()).eq(names.iter().map(|text| name(text))));
    let changes = AttrChanges { mode: Some(0o2700), gid: Some(9), ..Default::default() };
    volume.setattr(&context, wide.id, changes).unwrap();
    for number in 0..4 {
        let text = format!("d{number}");
        let (made, _) = other.create(&context, wide.id, name(&text), new(NewNode::Directory)).unwrap();
        assert_eq!((made.gid, made.spread), (9, 1), "as its parent, and one partition below the root");
        assert_eq!(volume.getattr(&context, wide.id).unwrap().nlink, 3 + number);
        let (from, to) = ((wide.id, name(&text)), (wide.id, name(&format!("e{number}"))));
        volume.rename(&context, from, to, RenameMode::Replace, None).unwrap();
        assert_eq!(other.getattr(&context, wide.id).unwrap().nlink, 3 + number);
    }
    other.link(&context, wide.id, name("link"), file).unwrap();
    assert_eq!(volume.rmdir(&context, ROOT, name("wide")), Err(Error::NotEmpty));
    for text in names.iter().map(String::as_str).chain(["link"]) {
        volume.unlink(&context, wide.id, name(text), None).unwrap();
    }
    for number in 0..4 {
        assert_eq!(volume.rmdir(&context, ROOT, name("wide")), Err(Error::NotEmpty));
        other.rmdir(&context, wide.id, name(&format!("e{number}"))).unwrap();
    }
    volume.rmdir(&context, ROOT, name("wide")).unwrap();
    assert_eq!(other.getattr(&context, wide.id), Err(Error::Stale));
    assert_eq!(other.lookup(&context, wide.id, name("10")), Err(Error::NotFound));
    drop((volume, other));
}

#[test]
fn a_server_names_the_one_that_leads_a_partition() {
    let pair = Pair::new("elsewhere");
    let (remote, welcome) = hekate_transport::Remote::open(pair.endpoint(1), "v").unwrap();
    let map = welcome.map;
    let partition = (0..map.partitions()).map(PartitionNumber);
    let led_by_first =
        |number: &PartitionNumber| map.server_of(map.view(*number).unwrap().leader) == Some(FIRST_SERVER);
    let partition = partition.into_iter().find(led_by_first).unwrap();
    let request = Request {
        volume: map.volume,
        target: Target::Partition { ring: map.ring, partition, epoch: Epoch(1) },
        session: welcome.session,
        op_id: OpId(0),
        durable: false,
        retry: false,
        pledge: false,
        op: Op::Inode { op: InodeOp::GetAttr { inode: ROOT } },
    };
    let replies = remote.call(&mut [request], &|| true).unwrap();
    assert_eq!(replies[0], Err(Error::OtherServer { server: FIRST_SERVER }));
}

/// Runs ops on a volume at the first server, with a client whose map `change` has altered.
fn with_a_map(pair: &Pair, change: fn(&mut map::VolumeMap)) {
    let (volume, _) = pair.open(0);
    drop(volume);
    let (servers, mut welcome) = ServerPool::open(pair.endpoint(0), "v", None, None).unwrap();
    change(&mut welcome.map);
    welcome.map.check().unwrap();
    let replicate = Replicate::new(Arc::new(servers), welcome.session, welcome.map.clone());
    let graph = Distribute::new(replicate);
    let call = |op| graph.handle(&Context::default(), op);
    let name = |text: String| Name::try_from(text.as_str()).unwrap();
    // Directories are distributed over both servers. A second directory of the same name would be refused.
    for number in 0..20 {
        let (node, name) = (NewNode::Directory, name(format!("d{number}")));
        let make = NameOp::Create {
            dir: ROOT,
            name,
            node,
            mode: 0o700,
            uid: 0,
            gid: 0,
            umask: 0,
            exclusive: true,
            seed: number,
        };
        let made = call(Op::Name { op: make }).unwrap();
        assert!(matches!(made, Reply::Node { created: true, .. }), "{made:?}");
    }
    let lookup = Op::Name { op: NameOp::Lookup { dir: ROOT, name: name("file".into()) } };
    let Reply::Node { attr, .. } = call(lookup).unwrap() else { panic!("no file") };
    // Batches over several shards, on both servers.
    let bytes = pattern(4 * MIB, 9);
    for shard in 0..4 {
        let offset = (shard * 8 + 2) * MIB as u64;
        let data = bytes.clone().into();
        call(Op::Data { op: DataOp::Write { inode: attr.id, offset, data, drop_set_id: false } }).unwrap();
        let read = DataOp::Read { inode: attr.id, offset, length: 4 * MIB as u32, touch: false };
        let Reply::FileData { bytes: found, .. } = call(Op::Data { op: read }).unwrap() else { panic!("no bytes") };
        assert!(found == bytes, "shard {shard}");
    }
    call(Op::Data { op: DataOp::Fsync { inode: attr.id } }).unwrap();
}

#[test]
fn a_client_whose_map_has_bricks_in_the_wrong_place_takes_another() {
    let pair = Pair::new("misplaced");
    with_a_map(&pair, |map| {
        let (one, other) = (map.bricks[0].server, map.bricks[1].server);
        (map.bricks[0].server, map.bricks[1].server) = (other, one);
    });
}

#[test]
fn a_client_whose_views_are_old_takes_the_new_ones() {
    let pair = Pair::new("old-views");
    with_a_map(&pair, |map| map.views.iter_mut().for_each(|view| view.epoch.0 -= 1));
}

#[test]
fn a_session_that_one_server_ended_is_over_on_all() {
    let pair = Pair::new("ended");
    let (volume, file) = pair.open(0);
    let ended = volume.session();
    volume.end();
    let resumed = hekate_transport::Remote::new(pair.endpoint(1), "v", ended);
    let begun = Instant::now();
    loop {
        match resumed.map(Duration::from_secs(2)) {
            Err(Error::SessionEnded) => break,
            other => assert!(begun.elapsed() < Duration::from_secs(20), "{file:?}: {other:?}"),
        }
    }
}

#[test]
fn locks_at_one_server_do_not_wait_for_another_and_outlive_it() {
    let mut pair = Pair::new("locks");
    let ((holder, _), (waiter, _)) = (pair.open(0), pair.open(1));
    let (holder, waiter) = (Arc::new(holder), Arc::new(waiter));
    let files: Vec<InodeId> = (0..40)
        .map(|number| {
            let new = New { node: NewNode::Directory, mode: 0o700, uid: 0, gid: 0, umask: 0, exclusive: true };
            let name = Name::try_from(format!("d{number}").as_str()).unwrap();
            holder.create(&Context::default(), ROOT, name, new).unwrap().0.id
        })
        .collect();
    let map = holder.map().clone();
    let at = |server| {
        let leads = |file: &&InodeId| {
            let view = map.view(map.partition_of(file.position())).unwrap();
            map.server_of(view.leader) == Some(server)
        };
        *files.iter().find(leads).unwrap()
    };
    let (first, second) = (at(FIRST_SERVER), at(SECOND));
    let lock = |kind| {
        let (style, start, end, owner, pid) = (LockStyle::Posix, 0, LOCK_END, LockOwner(1), 1);
        Lock { kind, style, start, end, owner, pid }
    };
    let set = |volume: &Volume, file, kind| volume.lock(&Context::default(), file, lock(kind), false);
    let wait = |file| {
        let (volume, lock) = (waiter.clone(), lock(LockKind::Write));
        std::thread::spawn(move || volume.lock(&Context::default(), file, lock, true))
    };
    set(&holder, first, LockKind::Write).unwrap();
    set(&holder, second, LockKind::Write).unwrap();
    let (one, two) = (wait(first), wait(second));
    std::thread::sleep(Duration::from_millis(300));
    pair.stop(1);
    set(&holder, first, LockKind::Unlock).unwrap();
    assert_eq!(one.join().unwrap(), Ok(()));
    assert!(!two.is_finished());
    pair.start(1);
    let (third, _) = pair.open(0);
    assert_eq!(set(&third, second, LockKind::Read), Err(Error::WouldBlock));
    assert!(!two.is_finished());
    set(&holder, second, LockKind::Unlock).unwrap();
    assert_eq!(two.join().unwrap(), Ok(()));
    assert_eq!(set(&holder, first, LockKind::Read), Err(Error::WouldBlock));
    // The other server learns of the end of a session a moment later.
    drop(waiter);
    wait_until(|| set(&holder, first, LockKind::Write).is_ok(), "the lock of a session that ended");
    wait_until(|| set(&holder, second, LockKind::Write).is_ok(), "the other lock of a session that ended");
}
