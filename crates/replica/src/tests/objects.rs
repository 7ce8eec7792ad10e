//! Ops on objects beside a model: puts, removals under conditions, directories that keys need, joins, lists of keys;
//! and a crash after each message of one.

use super::drive::{elsewhere, seed_of};
use super::*;
use proptest::prelude::*;

const NAMES: [&str; 6] = ["a", "a-b", "a.b", "a0", "b", "%~+c"];

/// What a name leads to.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Directory(InodeId, bool),
    File { inode: InodeId, content: Bytes, etag: Bytes },
}

/// The names of one directory.
type Model = BTreeMap<Vec<u8>, Node>;

#[derive(Debug, Clone)]
enum Step {
    Put {
        name: usize,
        content: u8,
        condition: u8,
    },
    /// Puts a file of another partition.
    PutInode {
        name: usize,
        content: u8,
        condition: u8,
    },
    Remove {
        name: usize,
        condition: u8,
    },
    MakePrefix {
        name: usize,
    },
    Rmdir {
        name: usize,
    },
    /// Makes the directory an object or an implied one again.
    SetImplied {
        name: usize,
        implied: bool,
    },
    RemovePrefix {
        name: usize,
    },
    Write {
        name: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..NAMES.len();
    let condition = || 0u8..6;
    prop_oneof![
        4 => (name(), any::<u8>(), condition()).prop_map(|(name, content, condition)| Step::Put { name, content, condition }),
        2 => (name(), any::<u8>(), condition())
            .prop_map(|(name, content, condition)| Step::PutInode { name, content, condition }),
        2 => (name(), condition()).prop_map(|(name, condition)| Step::Remove { name, condition }),
        3 => name().prop_map(|name| Step::MakePrefix { name }),
        1 => name().prop_map(|name| Step::Rmdir { name }),
        1 => (name(), any::<bool>()).prop_map(|(name, implied)| Step::SetImplied { name, implied }),
        1 => name().prop_map(|name| Step::RemovePrefix { name }),
        1 => name().prop_map(|name| Step::Write { name }),
    ]
}

fn whole(text: &[u8]) -> Name {
    Name::new(Bytes::copy_from_slice(text)).unwrap()
}

fn alternate(name: &str) -> Vec<u8> {
    [ESCAPED_NAME, name.as_bytes()].concat()
}

/// The name at which an object is, or would be made.
fn place(model: &Model, name: &str) -> Vec<u8> {
    match model.get(name.as_bytes()) {
        Some(Node::File { .. }) => name.as_bytes().to_vec(),
        Some(Node::Directory(..)) => alternate(name),
        None if model.contains_key(&alternate(name)) => alternate(name),
        None => name.as_bytes().to_vec(),
    }
}

fn condition_of(number: u8, found: Option<&Node>) -> (Condition, bool) {
    match (number, found) {
        (0..=2, _) => (Condition::Always, true),
        (3, found) => (Condition::Absent, found.is_none()),
        (4, found) => (Condition::Exists, found.is_some()),
        (_, Some(Node::File { etag, .. })) => (Condition::Matches { etag: etag.clone() }, true),
        _ => (Condition::Matches { etag: Bytes::from_static(b"none") }, false),
    }
}

/// One directory with objects, and one of another partition for files that are put.
struct Bench {
    ring: TestRing,
    dir: InodeId,
    far: InodeId,
    model: Model,
    made: u32,
}

impl Bench {
    fn new(storage: &[MemoryStorage], spread: u32) -> Self {
        let mut ring = open(storage);
        ring.spread = spread;
        let Ok(Reply::Node { attr: Attr { id: dir, .. }, .. }) = ring.execute(make_directory(ROOT, b"d", 1)) else {
            panic!("no directory")
        };
        ring.spread = 1;
        let far = seed_of(elsewhere(&ring, ring.leader(dir.position())).partition);
        let Ok(Reply::Node { attr: Attr { id: far, .. }, .. }) = ring.execute(make_directory(ROOT, b"e", far)) else {
            panic!("no directory")
        };
        Self { ring, dir, far, model: Model::new(), made: 0 }
    }

    fn names(&self, name: usize) -> (InodeId, Name, Option<Name>) {
        (self.dir, whole(NAMES[name].as_bytes()), Some(whole(&alternate(NAMES[name]))))
    }

    fn put(&mut self, name: usize, source: PutSource, condition: Condition) -> Result<(Attr, bool)> {
        self.made += 1;
        let (dir, name, alternate) = self.names(name);
        let (etag, keep, seed) = (Bytes::from(format!("etag-{}", self.made)), false, self.made);
        let put = NameOp::Put { dir, name, alternate, source, etag, condition, keep, seed };
        match self.ring.name_op(put)? {
            Reply::Node { attr, created } => Ok((attr, created)),
            other => panic!("{other:?}"),
        }
    }

    fn file_elsewhere(&mut self, content: &Bytes) -> InodeId {
        let (dir, linkable) = (self.far, true);
        let unnamed = NameOp::CreateUnnamed { dir, mode: 0o600, uid: 1, gid: 1, umask: 0, linkable, seed: 1 };
        let Ok(Reply::Node { attr: Attr { id, .. }, .. }) = self.ring.name_op(unnamed) else { panic!("no file") };
        self.write(id, content);
        id
    }

    fn write(&mut self, inode: InodeId, data: &Bytes) {
        let write = DataOp::Write { inode, offset: 0, data: data.clone(), drop_set_id: false };
        self.ring.execute(Op::Data { op: write }).unwrap();
    }

    fn has_put(&mut self, name: usize, condition: u8, content: Bytes, source: PutSource) {
        let place = place(&self.model, NAMES[name]);
        let found = self.model.get(&place).cloned();
        let (condition, holds) = condition_of(condition, found.as_ref());
        let put = self.put(name, source, condition);
        assert_eq!(put.is_ok(), holds, "{put:?}");
        match put {
            Ok((attr, created)) => {
                assert_eq!(created, found.is_none());
                assert_eq!(attr.size, content.len() as u64);
                self.model.insert(place, Node::File { inode: attr.id, content, etag: attr.etag });
            }
            Err(error) => assert_eq!(error, Error::ConditionFailed),
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Put { name, content, condition } => {
                let content = Bytes::from(vec![*content; usize::from(*content)]);
                let attributes = vec![(Bytes::from_static(b"hekate.s3"), content.clone())];
                let (mode, uid, gid, bytes) = (0o640, 1, 1, content.clone());
                let source = PutSource::Bytes { content: bytes, mode, uid, gid, attributes };
                self.has_put(*name, *condition, content, source);
            }
            Step::PutInode { name, content, condition } => {
                let content = Bytes::from(vec![*content; usize::from(*content) + 1]);
                let inode = self.file_elsewhere(&content);
                self.has_put(*name, *condition, content, PutSource::Inode { inode });
                // The session that made it has closed it. If it was not put, that removes it.
                let at = self.ring.leader(inode.position());
                self.ring.tell(at, Event::Collect { volume: VOLUME, inode });
            }
            Step::Remove { name, condition } => {
                let place = place(&self.model, NAMES[*name]);
                let found = self.model.get(&place).cloned();
                let (condition, holds) = condition_of(*condition, found.as_ref());
                let (dir, name, alternate) = self.names(*name);
                let removed = self.ring.name_op(NameOp::Remove { dir, name, alternate, condition, keep: false });
                match found {
                    None => assert_eq!(removed, Err(Error::NotFound)),
                    Some(_) if !holds => assert_eq!(removed, Err(Error::ConditionFailed)),
                    Some(_) => assert_eq!(removed.map(|_| self.model.remove(&place)).map(|_| ()), Ok(())),
                }
            }
            Step::MakePrefix { name } => self.make_prefix(*name),
            Step::Rmdir { name } => {
                let is_directory = matches!(self.model.get(NAMES[*name].as_bytes()), Some(Node::Directory(..)));
                let (dir, plain, _) = self.names(*name);
                let removed = self.ring.name_op(NameOp::Rmdir { dir, name: plain });
                assert_eq!(removed.is_ok(), is_directory);
                if is_directory {
                    self.model.remove(NAMES[*name].as_bytes());
                }
            }
            Step::SetImplied { name, implied } => {
                let plain = NAMES[*name].as_bytes();
                let Some(Node::Directory(inode, _)) = self.model.get(plain).cloned() else { return };
                let changes = AttrChanges { implied: Some(*implied), ..AttrChanges::default() };
                let set = self.ring.execute(Op::Inode { op: InodeOp::SetAttr { inode, changes } });
                let Ok(Reply::Node { attr, .. }) = set else { panic!("{set:?}") };
                assert_eq!(attr.implied, *implied);
                self.model.insert(plain.to_vec(), Node::Directory(inode, *implied));
            }
            Step::RemovePrefix { name } => {
                let plain = NAMES[*name].as_bytes();
                let (dir, name, _) = self.names(*name);
                let removed = self.ring.name_op(NameOp::RemovePrefix { dir, name });
                match self.model.get(plain) {
                    Some(Node::Directory(_, true)) => {
                        assert_eq!(removed, Ok(Reply::Done));
                        self.model.remove(plain);
                    }
                    Some(Node::Directory(_, false)) => assert_eq!(removed, Err(Error::NotEmpty)),
                    Some(Node::File { .. }) => assert_eq!(removed, Err(Error::NotDirectory)),
                    None => assert_eq!(removed, Err(Error::NotFound)),
                }
            }
            Step::Write { name } => {
                let place = place(&self.model, NAMES[*name]);
                let Some(Node::File { inode, content, etag }) = self.model.get(&place).cloned() else { return };
                let data = Bytes::from_static(b"posix");
                self.write(inode, &data);
                let content = [&data[..], content.get(5..).unwrap_or_default()].concat().into();
                let Ok(Reply::Node { attr, .. }) = self.ring.read(Op::Inode { op: InodeOp::GetAttr { inode } }) else {
                    panic!("no attributes")
                };
                assert!(attr.etag.is_empty() && etag_of(&attr) != etag, "a written file has another ETag");
                self.model.insert(place, Node::File { inode, content, etag: etag_of(&attr) });
            }
        }
    }

    fn make_prefix(&mut self, name: usize) {
        let (dir, plain, second) = self.names(name);
        self.ring.spread = 1 << (self.made % 3);
        let seed = u64::from(self.made) << 60;
        let op = NameOp::MakePrefix { dir, name: plain, alternate: second.unwrap(), mode: 0o755, uid: 1, gid: 1, seed };
        let made = self.ring.name_op(op);
        self.ring.spread = 1;
        let plain = NAMES[name].as_bytes().to_vec();
        match (made, self.model.get(&plain).cloned()) {
            (Err(Error::Exists), Some(Node::Directory(..))) => {}
            (Ok(Reply::Node { attr, created: true }), found) if !matches!(found, Some(Node::Directory(..))) => {
                assert!(attr.implied && attr.kind == NodeKind::Directory);
                if let Some(file) = found {
                    self.model.insert(alternate(NAMES[name]), file);
                }
                self.model.insert(plain, Node::Directory(attr.id, true));
            }
            (made, found) => panic!("{made:?} where there is {found:?}"),
        }
    }

    /// What a reader of an object gets.
    fn fetch(&mut self, name: usize) -> Result<Reply> {
        let (attribute, content) = (Bytes::from_static(b"hekate.s3"), true);
        let (dir, name, alternate) = self.names(name);
        let fetch = NameOp::Fetch { dir, name, alternate, attribute: attribute.clone(), content };
        match self.ring.name_op(fetch)? {
            Reply::Elsewhere { inode, .. } => {
                self.ring.read(Op::Inode { op: InodeOp::Fetch { inode, attribute, content } })
            }
            reply => Ok(reply),
        }
    }

    fn check(&mut self) {
        for (number, name) in NAMES.iter().enumerate() {
            let expected = self.model.get(&place(&self.model, name)).cloned();
            match (self.fetch(number), expected) {
                (Ok(Reply::Fetched { object }), Some(Node::File { inode, content: wanted, etag })) => {
                    let Fetched { attr, content, .. } = *object;
                    assert_eq!((attr.id, content, etag_of(&attr)), (inode, Some(wanted), etag));
                }
                (Err(Error::NotFound), None) => {}
                (fetched, expected) => panic!("{name}: {fetched:?}, {expected:?}"),
            }
        }
        for (prefix, limit) in [("", 1), ("", 3), ("a", 2), ("%~", 1), ("a-", 100)] {
            let mut wanted: Vec<Vec<u8>> = Vec::new();
            for (name, node) in self.model.iter().filter(|(name, _)| name.starts_with(prefix.as_bytes())) {
                let slash = matches!(node, Node::Directory(..)).then_some(b'/');
                wanted.push(name.iter().copied().chain(slash).collect());
            }
            wanted.sort();
            assert_eq!(self.keys(prefix, limit), wanted, "prefix {prefix:?}, pages of {limit}");
        }
    }

    /// All keys with a prefix, read in pages, of the first of the directory's partitions if it has one only.
    fn keys(&mut self, prefix: &str, limit: u32) -> Vec<Vec<u8>> {
        let (dir, spread) = (self.dir, self.ring.spreads.get(&self.dir).copied().unwrap_or(1));
        let mut all = Vec::new();
        for position in name_positions(dir, spread) {
            let mut after = Bytes::new();
            loop {
                let prefix = Bytes::copy_from_slice(prefix.as_bytes());
                let list = NameOp::ListKeys { dir, spread, prefix, after: after.clone(), limit };
                let listed = self.ring.read_at(self.ring.leader(position), Op::Name { op: list });
                let Ok(Reply::Keys { entries, end, .. }) = listed else { panic!("{listed:?}") };
                assert!(entries.len() <= limit as usize && (end || !entries.is_empty()));
                for Entry { name, kind, .. } in entries {
                    let slash = (kind == NodeKind::Directory).then_some(b'/');
                    let key: Vec<u8> = name.as_bytes().iter().copied().chain(slash).collect();
                    assert!(key[..] > after[..], "keys come in order");
                    after = key.clone().into();
                    all.push(key);
                }
                if end {
                    break;
                }
            }
        }
        all.sort();
        all
    }
}

/// The spread that the bench's directory has, told to the ring as a client learns it.
fn bench(storage: &[MemoryStorage], spread: u32) -> Bench {
    let mut bench = Bench::new(storage, spread);
    bench.ring.spreads.insert(bench.dir, spread);
    bench
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn ops_on_objects_do_what_the_model_does(steps in prop::collection::vec(step(), 1..60), bits in 0u32..4) {
        let mut bench = bench(&storages(), 1 << bits);
        for step in &steps {
            bench.run(step);
            bench.check();
        }
        bench.ring.rest();
        bench.ring.check();
    }

    #[test]
    fn a_crash_after_any_message_of_an_object_op_leaves_a_whole_tree(
        steps in prop::collection::vec(step(), 1..15), last in step(), bits in 0u32..4)
    {
        for messages in 0.. {
            let storage = storages();
            let mut bench = bench(&storage, 1 << bits);
            steps.iter().for_each(|step| bench.run(step));
            bench.ring.messages_left = messages;
            let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.run(&last)));
            let left = bench.ring.messages_left;
            drop(bench);
            let mut ring = open(&storage);
            // A file without a name is removed once no session has it open.
            for (key, _) in ring.entries().into_iter().filter(|(key, _)| key.kind() == Some(Kind::Orphan)) {
                let inode = InodeId::from_bits(key.id().unwrap());
                ring.tell(ring.leader(inode.position()), Event::Collect { volume: VOLUME, inode });
            }
            ring.rest();
            ring.check();
            if died.is_ok() || left > 0 {
                break;
            }
            prop_assert!(messages < 200);
        }
    }
}

/// A part of an upload with these bytes. Returns its name.
fn part(bench: &mut Bench, number: usize, bytes: &[u8]) -> Name {
    let name = whole(format!("part-{number:05}").as_bytes());
    let (dir, node) = (bench.dir, NewNode::File);
    let made = NameOp::Create {
        dir,
        name: name.clone(),
        node,
        mode: 0o600,
        uid: 1,
        gid: 1,
        umask: 0,
        exclusive: true,
        seed: number as u64,
    };
    let Ok(Reply::Node { attr: Attr { id: inode, .. }, .. }) = bench.ring.name_op(made) else { panic!("no part") };
    bench.ring.execute(Op::Data { op: DataOp::Spill { inode } }).unwrap();
    let Ok(Reply::Node { attr, .. }) = bench.ring.read(Op::Inode { op: InodeOp::GetAttr { inode } }) else {
        panic!("no attributes")
    };
    for (shard, offset, length) in attr.layout.shard_runs(VOLUME, 0, bytes.len()) {
        let bytes = Bytes::copy_from_slice(&bytes[..length]);
        assert_eq!(offset, 0);
        let write =
            DataOp::WriteShard { data: shard.data, index: shard.index, offset: 0, bytes, follow: None, fast: false };
        bench.ring.execute(Op::Data { op: write }).unwrap();
    }
    let (end, layout_version) = (bytes.len() as u64, attr.layout.version);
    let wrote = DataOp::Wrote { inode, layout_version, end, reach: end, drop_set_id: false, fast: false, age: 0 };
    bench.ring.execute(Op::Data { op: wrote }).unwrap();
    name
}

fn join_op(bench: &Bench, parts: Vec<Name>) -> NameOp {
    let parts = parts.into_iter().map(|part| (part, Bytes::new())).collect();
    let (dir, to, etag) = (bench.dir, whole(b"joined"), Bytes::from_static(b"etag-3"));
    NameOp::Join { dir, parts, to, mode: 0o644, uid: 1, gid: 1, etag, attributes: Vec::new(), seed: 9 }
}

/// The joined file has the parts' pieces, so no byte moves, and the parts are gone.
#[test]
fn a_join_moves_pieces_and_removes_the_parts() {
    let mut bench = bench(&storages(), 1);
    let contents: Vec<Vec<u8>> = (1..4u8).map(|n| vec![n; 5_000 * usize::from(n)]).collect();
    let parts: Vec<Name> = contents.iter().enumerate().map(|(n, bytes)| part(&mut bench, n, bytes)).collect();
    let Ok(Reply::Node { attr, created: true }) = bench.ring.name_op(join_op(&bench, parts.clone())) else {
        panic!("no join")
    };
    assert_eq!((attr.size, &attr.etag[..], attr.nlink), (30_000, &b"etag-3"[..], 1));
    let lengths: Vec<u64> = attr.layout.pieces.iter().map(|piece| piece.length).collect();
    assert_eq!(lengths, [5_000, 10_000, u64::MAX], "the file may grow behind its last piece");
    let mut read = Vec::new();
    for (shard, offset, length) in attr.layout.shard_runs(VOLUME, 0, 30_000) {
        let (data, index, offset, length) = (shard.data, shard.index, offset as u32, length as u32);
        let Ok(Reply::Data { bytes }) =
            bench.ring.read(Op::Data { op: DataOp::ReadShard { data, index, offset, length } })
        else {
            panic!("no bytes")
        };
        read.extend_from_slice(&bytes);
    }
    assert_eq!(read, contents.concat());
    assert_eq!(bench.ring.list(bench.dir), [whole(b"joined")]);
    assert_eq!(bench.ring.name_op(join_op(&bench, parts)), Err(Error::Exists));
    bench.ring.name_op(NameOp::Unlink { dir: bench.dir, name: whole(b"joined"), open_here: None }).unwrap();
    bench.ring.rest();
    bench.ring.check();
    let shards = bench.ring.bricks.iter().flat_map(|brick| {
        brick
            .scan(
                &Key::object_range(RING, PartitionNumber(0), 1).0,
                &Key::object_range(RING, PartitionNumber(0), 1).1,
                1 << 20,
            )
            .unwrap()
    });
    assert!(!shards.into_iter().any(|(key, _)| key.kind() == Some(Kind::Shard)), "a shard is left");
}

/// Parts that cannot be joined are named, and nothing changes.
#[test]
fn a_join_refuses_what_it_cannot_join() {
    let mut bench = bench(&storages(), 1);
    let (one, two) = (part(&mut bench, 1, b"one"), part(&mut bench, 2, b"two"));
    let refused = |bench: &mut Bench, parts: Vec<Name>| bench.ring.name_op(join_op(bench, parts)).unwrap_err();
    assert!(matches!(refused(&mut bench, vec![]), Error::Invalid { .. }));
    assert!(matches!(refused(&mut bench, vec![two.clone(), one.clone()]), Error::Invalid { .. }), "in order of names");
    assert!(matches!(refused(&mut bench, vec![one.clone(), one.clone()]), Error::Invalid { .. }), "no part twice");
    assert_eq!(refused(&mut bench, vec![one.clone(), whole(b"part-00009")]), Error::NotFound);
    let NameOp::Join { dir, to, mode, uid, gid, etag, attributes, seed, .. } = join_op(&bench, vec![]) else {
        panic!("no join")
    };
    let parts = vec![(one.clone(), Bytes::from_static(b"another"))];
    let join = NameOp::Join { dir, parts, to, mode, uid, gid, etag, attributes, seed };
    assert_eq!(bench.ring.name_op(join), Err(Error::ConditionFailed));
    let Ok(Reply::Node { attr: Attr { id: inode, .. }, .. }) =
        bench.ring.name_op(NameOp::Lookup { dir: bench.dir, name: one.clone() })
    else {
        panic!("no part")
    };
    bench.ring.name_op(NameOp::Link { dir: bench.dir, name: whole(b"also"), inode }).unwrap();
    assert!(matches!(refused(&mut bench, vec![one.clone(), two.clone()]), Error::Invalid { .. }), "two names");
    assert_eq!(bench.ring.list(bench.dir), [whole(b"also"), one, two]);
    bench.ring.rest();
    bench.ring.check();
}

/// A part beside its inode has no piece yet: the client spills it and joins again.
#[test]
fn a_join_names_a_part_beside_its_inode() {
    let mut bench = bench(&storages(), 1);
    bench.run(&Step::Put { name: 4, content: 7, condition: 0 });
    let parts = vec![whole(b"b")];
    let Ok(Reply::Elsewhere { inode, .. }) = bench.ring.name_op(join_op(&bench, parts.clone())) else {
        panic!("not named")
    };
    bench.ring.execute(Op::Data { op: DataOp::Spill { inode } }).unwrap();
    let Ok(Reply::Node { attr, .. }) = bench.ring.name_op(join_op(&bench, parts)) else { panic!("no join") };
    assert_eq!(attr.size, 7);
    bench.ring.rest();
    bench.ring.check();
}

/// A put of a file that has the name already is an op that was executed before its client crashed.
#[test]
fn a_put_of_the_file_that_has_the_name_is_done() {
    let mut bench = bench(&storages(), 1);
    let inode = bench.file_elsewhere(&Bytes::from_static(b"x"));
    let put = |bench: &mut Bench| bench.put(0, PutSource::Inode { inode }, Condition::Absent);
    assert!(put(&mut bench).unwrap().1);
    let (attr, created) = put(&mut bench).unwrap();
    assert_eq!((attr.id, attr.nlink, created), (inode, 1, false));
    bench.ring.rest();
    bench.ring.check();
}

/// The rules of files apply: no directory is replaced, content and attributes have limits.
#[test]
fn a_put_refuses_what_is_no_object() {
    let mut bench = bench(&storages(), 1);
    bench.run(&Step::MakePrefix { name: 0 });
    let source = |bytes: usize, attributes: Vec<(Bytes, Bytes)>| {
        let (mode, uid, gid) = (0o644, 1, 1);
        PutSource::Bytes { content: vec![1; bytes].into(), mode, uid, gid, attributes }
    };
    let (dir, name) = (bench.dir, whole(b"a"));
    let (etag, condition, keep, seed) = (Bytes::new(), Condition::Always, false, 1);
    let put = NameOp::Put { dir, name, alternate: None, source: source(1, vec![]), etag, condition, keep, seed };
    assert_eq!(bench.ring.name_op(put), Err(Error::IsDirectory));
    let put = |bench: &mut Bench, source| bench.put(1, source, Condition::Always).map(|(attr, _)| attr.size);
    let inline = INLINE_MAX as usize;
    assert_eq!(put(&mut bench, source(inline, vec![])), Ok(INLINE_MAX));
    assert!(matches!(put(&mut bench, source(inline + 1, vec![])), Err(Error::Invalid { .. })));
    let acl = (Bytes::from_static(b"system.posix_acl_access"), Bytes::new());
    assert!(matches!(put(&mut bench, source(1, vec![acl])), Err(Error::Invalid { .. })));
    let long = (Bytes::from_static(b"hekate.s3"), vec![0; (64 << 10) + 1].into());
    assert_eq!(put(&mut bench, source(1, vec![long])), Err(Error::AttributeTooLarge));
    bench.ring.rest();
    bench.ring.check();
}

/// Makes an inode of another kind under a name that is no key's, as programs on a mount can. Returns its id.
fn made_by_a_program(bench: &mut Bench, text: &[u8], node: NewNode) -> InodeId {
    let (dir, name) = (bench.dir, whole(text));
    let create =
        NameOp::Create { dir, name, node, mode: 0o755, uid: 1, gid: 1, umask: 0, exclusive: true, seed: 7 << 60 };
    let Ok(Reply::Node { attr, .. }) = bench.ring.name_op(create) else { panic!("nothing was made") };
    attr.id
}

fn bytes_source(content: &'static [u8]) -> PutSource {
    let (content, attributes) = (Bytes::from_static(content), Vec::new());
    PutSource::Bytes { content, mode: 0o644, uid: 1, gid: 1, attributes }
}

fn make_prefix_op(bench: &Bench, name: usize) -> NameOp {
    let (dir, name, alternate) = bench.names(name);
    NameOp::MakePrefix { dir, name, alternate: alternate.unwrap(), mode: 0o755, uid: 1, gid: 1, seed: 3 << 60 }
}

/// A directory that a program has made at an object's alternate name is neither replaced nor taken for the object.
#[test]
fn a_directory_at_an_alternate_name_is_refused() {
    let mut bench = bench(&storages(), 1);
    made_by_a_program(&mut bench, &alternate("a"), NewNode::Directory);
    assert_eq!(bench.put(0, bytes_source(b"x"), Condition::Always).unwrap_err(), Error::IsDirectory);
    made_by_a_program(&mut bench, b"a", NewNode::File);
    assert!(!bench.put(0, bytes_source(b"x"), Condition::Always).unwrap().1, "the file has the name");
    let prefix = make_prefix_op(&bench, 0);
    assert_eq!(bench.ring.name_op(prefix), Err(Error::IsDirectory), "the file cannot move to the alternate name");
    bench.ring.rest();
    bench.ring.check();
}

/// Of two files with an object's names the one under the first name is the object. When a directory takes that name,
/// the other file goes.
#[test]
fn a_directory_for_keys_replaces_what_was_hidden_by_a_file() {
    let mut bench = bench(&storages(), 1);
    let (attr, _) = bench.put(0, bytes_source(b"seen"), Condition::Always).unwrap();
    let hidden = made_by_a_program(&mut bench, &alternate("a"), NewNode::File);
    let prefix = make_prefix_op(&bench, 0);
    bench.ring.name_op(prefix).unwrap();
    let Ok(Reply::Fetched { object }) = bench.fetch(0) else { panic!("no object") };
    assert_eq!((object.attr.id, object.alternate), (attr.id, true));
    assert_eq!(bench.ring.list(bench.dir), [whole(&alternate("a")), whole(b"a")]);
    // A session may have the other file open until it has closed it.
    assert!(bench.ring.read(Op::Inode { op: InodeOp::GetAttr { inode: hidden } }).is_ok());
    let at = bench.ring.leader(hidden.position());
    bench.ring.tell(at, Event::Collect { volume: VOLUME, inode: hidden });
    assert_eq!(bench.ring.read(Op::Inode { op: InodeOp::GetAttr { inode: hidden } }), Err(Error::Stale));
    bench.ring.rest();
    bench.ring.check();
}

/// Only a file is an object: under a condition a symbolic link counts as nothing.
#[test]
fn conditions_count_files_only() {
    let mut bench = bench(&storages(), 1);
    let link = NewNode::Symlink { target: Bytes::from_static(b"b") };
    made_by_a_program(&mut bench, b"a", link);
    let put = |bench: &mut Bench, condition| bench.put(0, bytes_source(b"x"), condition);
    assert_eq!(put(&mut bench, Condition::Exists).unwrap_err(), Error::ConditionFailed);
    assert!(put(&mut bench, Condition::Absent).is_ok());
    assert_eq!(put(&mut bench, Condition::Absent).unwrap_err(), Error::ConditionFailed);
    bench.ring.rest();
    bench.ring.check();
}

/// A put gives a name to files only, also to those of another partition.
#[test]
fn a_put_of_what_is_no_file_is_refused() {
    let mut bench = bench(&storages(), 1);
    let put = |bench: &mut Bench, inode| bench.put(0, PutSource::Inode { inode }, Condition::Always).unwrap_err();
    let prefix = make_prefix_op(&bench, 4);
    let Ok(Reply::Node { attr: Attr { id: made, .. }, .. }) = bench.ring.name_op(prefix) else {
        panic!("no directory")
    };
    for inode in [made, bench.far, bench.dir] {
        assert_eq!(put(&mut bench, inode), Error::IsDirectory);
    }
    let here = made_by_a_program(&mut bench, b"c", NewNode::Fifo);
    let objects = std::mem::replace(&mut bench.dir, bench.far);
    let there = made_by_a_program(&mut bench, b"c", NewNode::Fifo);
    bench.dir = objects;
    for inode in [here, there] {
        assert!(matches!(put(&mut bench, inode), Error::Invalid { .. }));
    }
    bench.ring.rest();
    bench.ring.check();
}

/// A session that keeps the old file reads it after the put, until it has closed it.
#[test]
fn a_put_keeps_the_old_file_for_a_session_that_has_it_open() {
    for keep in [false, true] {
        let mut bench = bench(&storages(), 1);
        let (Attr { id: old, .. }, _) = bench.put(0, bytes_source(b"old"), Condition::Always).unwrap();
        let (dir, name, alternate) = bench.names(0);
        let (source, etag, condition, seed) = (bytes_source(b"new"), Bytes::new(), Condition::Always, 5);
        bench.ring.name_op(NameOp::Put { dir, name, alternate, source, etag, condition, keep, seed }).unwrap();
        let found = bench.ring.read(Op::Inode { op: InodeOp::GetAttr { inode: old } });
        assert_eq!(found.is_ok(), keep, "{found:?}");
        let at = bench.ring.leader(old.position());
        bench.ring.tell(at, Event::Collect { volume: VOLUME, inode: old });
        assert_eq!(bench.ring.read(Op::Inode { op: InodeOp::GetAttr { inode: old } }), Err(Error::Stale));
        bench.ring.rest();
        bench.ring.check();
    }
}

/// A join has 10,000 parts at most, in a directory whose names are in one partition.
#[test]
fn a_join_has_limits() {
    let parts = |count: usize| (0..count).map(|number| whole(format!("part-{number:05}").as_bytes())).collect();
    let mut bench_of_one = bench(&storages(), 1);
    let join = join_op(&bench_of_one, parts(10_000));
    assert_eq!(bench_of_one.ring.name_op(join), Err(Error::NotFound), "none of the parts exists");
    let join = join_op(&bench_of_one, parts(10_001));
    assert!(matches!(bench_of_one.ring.name_op(join), Err(Error::Invalid { .. })));
    let mut bench_of_two = bench(&storages(), 2);
    let join = join_op(&bench_of_two, parts(1));
    assert!(matches!(bench_of_two.ring.name_op(join), Err(Error::Invalid { .. })));
}

/// An op without an alternate name means whatever has the name, a directory too.
#[test]
fn a_directory_is_fetched_without_an_alternate_name() {
    let mut bench = bench(&storages(), 1);
    let made = made_by_a_program(&mut bench, b"a", NewNode::Directory);
    let attribute = Bytes::from_static(b"hekate.s3");
    let fetch = NameOp::Fetch { dir: bench.dir, name: whole(b"a"), alternate: None, attribute, content: true };
    assert_eq!(bench.ring.name_op(fetch), Ok(Reply::Elsewhere { inode: made, kind: NodeKind::Directory }));
}

/// A list of keys of the bench's directory.
fn list_op(bench: &Bench, spread: u32, prefix: &str, after: &[u8], limit: u32) -> Op {
    let (dir, prefix) = (bench.dir, Bytes::copy_from_slice(prefix.as_bytes()));
    Op::Name { op: NameOp::ListKeys { dir, spread, prefix, after: Bytes::copy_from_slice(after), limit } }
}

/// The names of a page of keys behind any text, whether or not a key begins so.
fn page(bench: &mut Bench, prefix: &str, after: &[u8], limit: u32) -> Vec<Name> {
    let list = list_op(bench, 1, prefix, after, limit);
    let listed = bench.ring.read_at(bench.ring.leader(bench.dir.position()), list);
    let Ok(Reply::Keys { entries, .. }) = listed else { panic!("{listed:?}") };
    entries.into_iter().map(|entry| entry.name).collect()
}

#[test]
fn a_list_of_keys_begins_behind_any_text() {
    let mut bench = bench(&storages(), 1);
    let long = [b'd'; 255];
    for name in [&b"a"[..], b"a-", &long] {
        made_by_a_program(&mut bench, name, NewNode::Directory);
    }
    // All keys below the directory follow this text, which is longer than a name can be.
    assert_eq!(page(&mut bench, "", &[&long[..], b"!"].concat(), 10), [whole(&long)]);
    assert_eq!(page(&mut bench, "", &[&long[..], b"0"].concat(), 10), []);
    assert_eq!(page(&mut bench, "", b"a-b", 10), [whole(b"a"), whole(&long)]);
    assert_eq!(page(&mut bench, "", b"a/", 10), [whole(&long)]);
    // The directory `a-` comes behind the text, and does not have the prefix.
    assert_eq!(page(&mut bench, "a.", b"a-!", 10), []);
    assert_eq!(page(&mut bench, "", b"", 0), [whole(b"a-")], "a page has a name at least");
}

/// A list says whether names that are escaped keys exist, and is refused if the directory is spread in another way.
#[test]
fn a_list_of_keys_says_what_the_directory_is() {
    let mut bench = bench(&storages(), 1);
    for (name, expected) in [("b", false), ("%~+c", true)] {
        made_by_a_program(&mut bench, name.as_bytes(), NewNode::File);
        let at = bench.ring.leader(bench.dir.position());
        let list = list_op(&bench, 1, "b", b"", 10);
        let listed = bench.ring.read_at(at, list);
        let Ok(Reply::Keys { escaped, .. }) = listed else { panic!("{listed:?}") };
        assert_eq!(escaped, expected);
    }
    let (at, list) = (bench.ring.leader(bench.dir.position()), list_op(&bench, 2, "", b"", 10));
    assert!(bench.ring.read_at(at, list).is_err());
}
