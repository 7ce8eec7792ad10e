//! `distribute`: directories whose names several partitions share.

use super::scripted_servers::ScriptedServers;
use super::support::*;
use hekate_graph::{Context, Translator};
use hekate_proto::*;
use hekate_threads::Mutex;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, Barrier, OnceLock};

const DIR: InodeId = inode(1, 9);

/// A directory as its servers hold it, by partition.
struct Directory {
    spread: u32,
    names: [BTreeSet<Name>; 4],
    stubs: [StubView; 4],
    removed: bool,
}

struct WideClient {
    client: Client,
    directory: Arc<Mutex<Directory>>,
}

impl Deref for WideClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Directory {
    fn new(spread: u32) -> Self {
        let stub = |part: u64| StubView {
            spread,
            entries: 0,
            directories: part as u32,
            mtime: Time(part as i64),
            ctime: Time(10 - part as i64),
            change: 100 * part,
        };
        let (names, removed) = Default::default();
        Self { spread, names, stubs: [1, 2, 3, 4].map(stub), removed }
    }

    fn attr(&self) -> Attr {
        let own = self.stubs[1];
        let (mtime, ctime, change, spread) = (own.mtime, own.ctime, own.change, self.spread);
        Attr { nlink: 2 + own.directories, mtime, ctime, change, spread, ..attr(DIR, NodeKind::Directory) }
    }

    fn part_of(&self, name: &Name) -> u32 {
        map().partition_of(name_position(DIR, name, self.spread)).0
    }

    fn add(&mut self, text: &str) {
        let name = name(text);
        self.names[self.part_of(&name) as usize].insert(name);
    }

    fn list(&self, part: usize, after: Option<&Name>, limit: u32) -> Result<Reply> {
        let left: Vec<&Name> = self.names[part].iter().filter(|name| Some(*name) > after).collect();
        let entry = |name: &&Name| Entry { name: (*name).clone(), inode: DIR, kind: NodeKind::File, attr: None };
        let entries: Vec<Entry> = left.iter().take(limit as usize).map(entry).collect();
        Ok(Reply::List { end: entries.len() == left.len(), entries })
    }

    fn execute(&self, request: &Request) -> Result<Reply> {
        let Target::Partition { partition, .. } = request.target else { return Err(Error::bug("scripted")) };
        let other = Err(Error::OtherSpread { spread: self.spread });
        match &request.op {
            _ if self.removed && !matches!(request.op, Op::Name { op: NameOp::Lookup { .. } }) => Err(Error::Stale),
            Op::Inode { op: InodeOp::GetAttr { inode } } if *inode != DIR => node(attr(*inode, NodeKind::Directory)),
            Op::Inode { .. } => node(self.attr()),
            Op::Name { op: NameOp::Stub { spread, .. } | NameOp::ListPart { spread, .. } }
                if *spread != self.spread =>
            {
                other
            }
            Op::Name { op: NameOp::Stub { .. } } => Ok(Reply::Stub { stub: self.stubs[partition.0 as usize] }),
            Op::Name { op: NameOp::List { .. } } if self.spread > 1 => other,
            Op::Name { op: NameOp::List { after, limit, .. } | NameOp::ListPart { after, limit, .. } } => {
                self.list(partition.0 as usize, after.as_ref(), *limit)
            }
            Op::Name { op: NameOp::Lookup { name, .. } | NameOp::Create { name, .. } } => {
                if self.part_of(name) == partition.0 { node(attr(inode(0, 50), NodeKind::File)) } else { other }
            }
            _ => Err(Error::bug("scripted")),
        }
    }
}

impl WideClient {
    fn new(spread: u32) -> Self {
        let directory = Arc::new(Mutex::new(Directory::new(spread)));
        let held = directory.clone();
        Self { client: Client::new(map(), move |_, _, request| held.lock().execute(request)), directory }
    }

    /// As `new`, with a change of the directory before each request.
    fn with_changes(spread: u32, change: impl Fn(&mut Directory, &Request) + Send + Sync + 'static) -> Self {
        let client = Self::new(spread);
        let held = client.directory.clone();
        client.servers.execute_with(move |_: &ScriptedServers, _, request| {
            let mut directory = held.lock();
            change(&mut directory, request);
            directory.execute(request)
        });
        client
    }

    fn lookup(&self, text: &str) -> Result<Reply> {
        self.names(NameOp::Lookup { dir: DIR, name: name(text) })
    }

    fn attr(&self) -> Attr {
        match self.call(get_attr(DIR)) {
            Ok(Reply::Node { attr, .. }) => attr,
            other => panic!("{other:?}"),
        }
    }

    fn list(&self, after: Option<&str>, limit: u32) -> (Vec<String>, bool) {
        let after = after.map(name);
        match self.names(NameOp::List { dir: DIR, after, limit, attributes: false, touch: false }) {
            Ok(Reply::List { entries, end }) => {
                let text = |entry: &Entry| String::from_utf8_lossy(entry.name.as_bytes()).into_owned();
                (entries.iter().map(text).collect(), end)
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_spread_of_a_directory_is_learnt_from_a_refusal() {
    let client = WideClient::new(4);
    let part = |text: &str| client.directory.lock().part_of(&name(text));
    let elsewhere = (0..).map(|n| format!("{n}")).find(|text| part(text) != 1).unwrap();
    client.lookup(&elsewhere).unwrap();
    assert_eq!(client.servers.take_sent().len(), 2, "one refusal");
    for number in 0..50 {
        client.lookup(&format!("{number}")).unwrap();
    }
    assert_eq!(client.servers.labels().len(), 50, "each goes to the partition that has the name");
}

#[test]
fn a_spread_that_grows_is_learnt_again() {
    let client = WideClient::new(2);
    client.attr();
    client.directory.lock().spread = 4;
    for number in 0..50 {
        client.lookup(&format!("{number}")).unwrap();
    }
    assert_eq!(client.attr().spread, 4);
    client.servers.take_sent();
    client.lookup("0").unwrap();
    assert_eq!(client.servers.labels(), ["lookup"]);
}

#[test]
fn two_threads_may_learn_a_spread_at_once() {
    let client = WideClient::new(4);
    let (directory, both) = (client.directory.clone(), Barrier::new(2));
    client.servers.execute_with(move |_, _, request| {
        let is_first = matches!(&request.op, Op::Name { op: NameOp::List { .. } });
        let reply = directory.lock().execute(request);
        if is_first {
            // Both have asked before either is refused.
            both.wait();
        }
        reply
    });
    let client = Arc::new(client);
    let list = |client: Arc<WideClient>| {
        move || client.names(NameOp::List { dir: DIR, after: None, limit: 9, attributes: false, touch: false })
    };
    let other = start(list(client.clone()));
    list(client)().unwrap();
    other.join().unwrap();
}

#[test]
fn a_refusal_that_leads_nowhere_is_an_error() {
    for spread in [0, 1, 3, 8] {
        let client = Client::new(map(), move |_, _, _| Err(Error::OtherSpread { spread }));
        let outcome = client.names(NameOp::Lookup { dir: DIR, name: name("n") });
        assert!(matches!(outcome, Err(Error::Protocol { .. })), "{spread}: {outcome:?}");
        assert_eq!(client.servers.labels(), ["lookup"], "{spread}");
        let outcome = client.names(NameOp::List { dir: DIR, after: None, limit: 1, attributes: false, touch: false });
        assert!(matches!(outcome, Err(Error::Protocol { .. })), "{spread}: {outcome:?}");
    }
}

#[test]
fn names_of_all_parts_are_listed_in_byte_order() {
    let client = WideClient::new(4);
    let all: Vec<String> = (100..300).map(|number| format!("{number}")).collect();
    all.iter().for_each(|text| client.directory.lock().add(text));
    assert!(client.directory.lock().names.iter().all(|part| part.len() > 20), "each part has names");
    assert_eq!(client.list(None, 1000), (all.clone(), true));
    for limit in [1, 7, 64, 200] {
        let (mut listed, mut after) = (Vec::new(), None::<String>);
        loop {
            let (some, end) = client.list(after.as_deref(), limit);
            assert!(some.len() == limit as usize || end);
            after = some.last().cloned();
            listed.extend(some);
            if end {
                break;
            }
        }
        assert_eq!(listed, all, "{limit} at once");
    }
}

#[test]
fn a_part_with_more_names_than_its_share_is_asked_again() {
    let client = WideClient::new(4);
    client.lookup("x").unwrap();
    client.attr();
    let in_one = (0..).map(|n| format!("{n:05}")).filter(|text| client.directory.lock().part_of(&name(text)) == 2);
    let names: Vec<String> = in_one.take(50).collect();
    names.iter().for_each(|text| client.directory.lock().add(text));
    client.servers.take_sent();
    assert_eq!(client.list(None, 40).0, names[..40]);
    let sent = client.servers.take_sent();
    let limit = |request: &Request| match &request.op {
        Op::Name { op: NameOp::ListPart { limit, .. } } => *limit,
        _ => 0,
    };
    assert_eq!(sent.iter().map(|sent| limit(&sent.request)).collect::<Vec<_>>(), [40 / 4 + 40 / 4 / 4 + 8; 5]);
}

#[test]
fn a_part_that_has_neither_names_nor_an_end_is_an_error() {
    let client = WideClient::new(4);
    client.attr();
    client.servers.execute_with(|_, _, _| Ok(Reply::List { entries: Vec::new(), end: false }));
    let outcome = client.names(NameOp::List { dir: DIR, after: None, limit: 1, attributes: false, touch: false });
    assert!(matches!(outcome, Err(Error::Protocol { .. })));
}

#[test]
fn a_list_that_met_a_growing_spread_begins_again() {
    let client = WideClient::new(2);
    client.attr();
    client.directory.lock().spread = 4;
    ["a", "b", "c", "d"].iter().for_each(|text| client.directory.lock().add(text));
    assert_eq!(client.list(None, 10), (["a", "b", "c", "d"].map(String::from).into(), true));
}

#[test]
fn the_attributes_of_all_parts_are_combined() {
    let client = WideClient::new(4);
    let whole = client.attr();
    let times = (whole.mtime, whole.ctime);
    assert_eq!((whole.nlink, times, whole.change), (2 + 1 + 2 + 3 + 4, (Time(4), Time(9)), 1000));
    assert_eq!((whole.id, whole.spread), (DIR, 4));
}

#[test]
fn the_parts_are_read_until_two_rounds_agree() {
    let client = WideClient::new(4);
    client.attr();
    assert_eq!(client.servers.count("stub"), 3 * 2);
    client.servers.take_sent();
    client.attr();
    assert_eq!(client.servers.count("stub"), 3, "the first round agrees with the last one of before");
    client.servers.take_sent();
    client.directory.lock().stubs[2].change += 1;
    assert_eq!(client.attr().change, 1001);
    assert_eq!(client.servers.count("stub"), 3 * 2);
}

#[test]
fn a_name_that_moves_between_two_parts_is_counted_once() {
    // While the parts are read, a directory is moved from the part that is read last to the first one.
    let client = WideClient::with_changes(4, |directory, request| {
        let is_last = matches!(request.target, Target::Partition { partition: PartitionNumber(0), .. });
        if is_last && directory.stubs[2].change == 300 && matches!(request.op, Op::Name { .. }) {
            directory.stubs[2].directories += 1;
            directory.stubs[2].change += 1;
            directory.stubs[0].directories -= 1;
            directory.stubs[0].change += 1;
        }
    });
    assert_eq!(client.attr().nlink, 2 + 10);
}

#[test]
fn parts_that_change_all_the_time_are_accepted_after_4_rounds_if_the_counts_agree() {
    let busy = |directory: &mut Directory, _: &Request| directory.stubs[3].change += 1;
    let client = WideClient::with_changes(4, busy);
    client.attr();
    assert_eq!(client.servers.count("stub"), 3 * 4);
    let busier = move |directory: &mut Directory, request: &Request| {
        busy(directory, request);
        directory.stubs[3].directories += 1;
    };
    let client = WideClient::with_changes(4, busier);
    client.attr();
    assert_eq!(client.servers.count("stub"), 3 * 16);
}

#[test]
fn a_directory_that_is_removed_after_its_chmod_has_a_change_counter_that_does_not_go_back() {
    let client = WideClient::with_changes(4, |directory, request| {
        directory.removed |= matches!(request.op, Op::Name { op: NameOp::Stub { .. } });
    });
    let reply = client.call(chmod(DIR));
    assert!(matches!(&reply, Ok(Reply::Node { attr, .. }) if attr.change == u64::MAX), "{reply:?}");
    client.directory.lock().removed = false;
    assert_eq!(client.call(get_attr(DIR)), Err(Error::Stale), "a request that changes nothing");
}

#[test]
fn the_name_of_a_wide_directory_is_answered_with_all_its_parts() {
    let client = WideClient::new(4);
    let held = client.directory.clone();
    client.servers.execute_with(move |_, _, request| match &request.op {
        Op::Name { op: NameOp::Lookup { .. } } => node(held.lock().attr()),
        _ => held.lock().execute(request),
    });
    let lookup = || client.names(NameOp::Lookup { dir: inode(0, 1), name: name("wide") });
    assert!(matches!(lookup(), Ok(Reply::Node { attr, .. }) if attr.change == 1000));
    client.directory.lock().removed = true;
    client.servers.take_sent();
    assert_eq!(lookup(), Err(Error::Stale));
    assert_eq!(client.servers.count("lookup"), 1 + 16, "the name may lead to another directory now");
}

#[test]
fn the_attributes_of_wide_directories_in_a_list_are_combined() {
    let client = WideClient::new(4);
    let held = client.directory.clone();
    let entry = |attr: Attr| Entry { name: name("w"), inode: DIR, kind: NodeKind::Directory, attr: Some(attr) };
    client.servers.execute_with(move |_, _, request| match &request.op {
        Op::Name { op: NameOp::List { .. } } => Ok(Reply::List { entries: vec![entry(held.lock().attr())], end: true }),
        _ => held.lock().execute(request),
    });
    let list = || client.names(NameOp::List { dir: ROOT, after: None, limit: 9, attributes: true, touch: false });
    assert!(matches!(list(), Ok(Reply::List { entries, .. }) if entries[0].attr.as_ref().unwrap().change == 1000));
    client.directory.lock().removed = true;
    assert!(matches!(list(), Ok(Reply::List { entries, .. }) if entries[0].attr.is_none()));
}

#[test]
fn the_part_of_a_wide_directory_is_not_passed_off_as_the_directory() {
    let client = WideClient::new(4);
    client.attr();
    let at_home = (0..).map(|n| format!("{n}")).find(|text| client.directory.lock().part_of(&name(text)) == 1).unwrap();
    let after = OnceLock::new();
    let context = Context { directory_after: Some(&after), ..Context::default() };
    let (mode, uid, gid, umask, exclusive, seed) = (0o644, 0, 0, 0, true, 1);
    let (dir, name, node) = (DIR, name(&at_home), NewNode::File);
    let create = NameOp::Create { dir, name, node, mode, uid, gid, umask, exclusive, seed };
    client.top.handle(&context, Op::Name { op: create }).unwrap();
    assert_eq!(after.get(), None);
}

#[test]
fn the_parent_of_a_directory_may_be_wide() {
    let client = WideClient::new(4);
    let parent = || client.call(Op::Inode { op: InodeOp::Parent { inode: inode(1, 20) } });
    assert!(matches!(parent(), Ok(Reply::Node { attr, .. }) if attr.id == DIR && attr.change == 1000));
}
