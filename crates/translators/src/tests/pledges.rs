//! What a session remembers by its pledges.

use super::scripted_servers::ScriptedServers;
use super::support::*;
use crate::pledges::NameAt;
use crate::pledges::cache::{Cache, Change, DoorForgets};
use crate::pledges::touched::touched_by;
use crate::{ContentUse, Distribute, Pledging, Replicate, Watcher};
use hekate_graph::{Context, Translator};
use hekate_proto::*;
use hekate_threads::Mutex;
use hekate_transport::Servers;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PARTITION: PartitionNumber = PartitionNumber(0);
const TERM: u64 = 9;
const DIR: InodeId = inode(0, 5);
const FILE: InodeId = inode(0, 6);
const START: Duration = Duration::from_secs(100);
const MOMENT: Duration = Duration::from_millis(1);

fn lookup(text: &str) -> Op {
    Op::Name { op: NameOp::Lookup { dir: DIR, name: name(text) } }
}

fn unlink(text: &str) -> Op {
    Op::Name { op: NameOp::Unlink { dir: DIR, name: name(text), open_here: None } }
}

fn create(text: &str) -> Op {
    let (mode, uid, gid, umask, exclusive, seed) = (0o644, 0, 0, 0, true, 1);
    let (name, node) = (name(text), NewNode::File);
    Op::Name { op: NameOp::Create { dir: DIR, name, node, mode, uid, gid, umask, exclusive, seed } }
}

fn found() -> Found {
    Found::Node { attr: Box::new(attr(FILE, NodeKind::File)) }
}

fn given(number: u64, given_for: GivenFor) -> GivenPledges {
    GivenPledges { partition: PARTITION, term: TERM, number, given_for }
}

fn both() -> [GivenPledges; 2] {
    [given(1, GivenFor::Name), given(2, GivenFor::Attributes)]
}

/// A cache whose lease begins at the start.
fn leased() -> Cache {
    let mut cache = Cache::default();
    cache.renew(START, START, &[(PARTITION, TERM)]);
    cache
}

/// Takes the answer to a look-up whose request is sent now.
fn take(cache: &mut Cache, text: &str, now: Duration) {
    let asked = cache.ask(&lookup(text)).unwrap();
    cache.take(asked, &lookup(text), &found(), &both(), now);
}

fn is_known(cache: &mut Cache, op: &Op, now: Duration) -> bool {
    cache.answer(op, now).is_some()
}

fn begin(cache: &mut Cache, op: &Op, now: Duration) -> (Change, DoorForgets) {
    let touched = touched_by(op, |inode| cache.attributes(inode)).unwrap();
    cache.begin_change(&touched, now)
}

#[test]
fn what_is_pledged_is_answered_until_the_lease_is_over() {
    let mut cache = leased();
    take(&mut cache, "a", START);
    assert_eq!(cache.answer(&lookup("a"), START), Some(node(attr(FILE, NodeKind::File))));
    assert_eq!(cache.answer(&get_attr(FILE), START + PLEDGE_LEASE - MOMENT), Some(node(attr(FILE, NodeKind::File))));
    assert!(!is_known(&mut cache, &get_attr(FILE), START + PLEDGE_LEASE));
    let no_value = Op::Inode { op: InodeOp::GetXattr { inode: FILE, name: "user.a".into() } };
    assert_eq!(cache.answer(&no_value, START), Some(Err(Error::NoAttribute)));
    let asked = cache.ask(&lookup("b")).unwrap();
    cache.take(asked, &lookup("b"), &Found::Missing, &[given(3, GivenFor::Name)], START);
    assert_eq!(cache.answer(&lookup("b"), START), Some(Err(Error::NotFound)));
}

#[test]
fn a_lease_counts_from_the_sending_and_what_was_pledged_before_a_gap_is_forgotten() {
    let mut cache = leased();
    take(&mut cache, "a", START);
    let second = START + Duration::from_secs(1);
    cache.renew(second, START + Duration::from_secs(3), &[(PARTITION, TERM)]);
    assert!(is_known(&mut cache, &lookup("a"), second + PLEDGE_LEASE - MOMENT));
    assert!(!is_known(&mut cache, &lookup("a"), second + PLEDGE_LEASE));
    let late = second + PLEDGE_LEASE + MOMENT;
    cache.renew(late - MOMENT, late, &[(PARTITION, TERM)]);
    assert!(!is_known(&mut cache, &lookup("a"), late), "the leader may have given up waiting meanwhile");
}

#[test]
fn another_term_ends_what_was_pledged_and_is_acknowledged_once_doors_have_forgotten() {
    let mut cache = leased();
    assert_eq!(cache.forgot(), []);
    cache.doors_forgot(&[(PARTITION, TERM)]);
    assert_eq!(cache.forgot(), [(PARTITION, TERM)]);
    assert!(!cache.renew(START, START, &[(PARTITION, TERM)]), "nothing is new");
    let asked = cache.ask(&lookup("b")).unwrap();
    take(&mut cache, "a", START);
    assert!(cache.renew(START, START, &[(PARTITION, TERM + 1)]));
    assert!(!is_known(&mut cache, &lookup("a"), START));
    assert_eq!(cache.forgot(), []);
    cache.take(asked, &lookup("b"), &found(), &both(), START);
    assert!(!is_known(&mut cache, &lookup("b"), START), "of the leader before");
    cache.doors_forgot(&[(PARTITION, TERM)]);
    assert_eq!(cache.forgot(), [], "that was about the leader before");
}

#[test]
fn a_reply_that_its_recall_has_overtaken_is_not_taken() {
    let mut cache = leased();
    let asked = cache.ask(&lookup("a")).unwrap();
    let about = Pledged::Name { dir: DIR, name: name("a") };
    cache.drop_recalled(PARTITION, &[Pledge { about, number: 1 }]);
    cache.take(asked, &lookup("a"), &found(), &both(), START);
    assert!(!is_known(&mut cache, &lookup("a"), START));
    assert!(is_known(&mut cache, &get_attr(FILE), START), "that was not recalled");
}

#[test]
fn a_recall_drops_no_later_pledge() {
    let mut cache = leased();
    take(&mut cache, "a", START);
    let recall = |number| [Pledge { about: Pledged::Attributes { inode: FILE }, number }];
    cache.drop_recalled(PARTITION, &recall(1));
    assert!(is_known(&mut cache, &get_attr(FILE), START));
    cache.drop_recalled(PARTITION, &recall(2));
    assert!(!is_known(&mut cache, &get_attr(FILE), START));
}

#[test]
fn a_door_may_pass_on_what_a_name_leads_to_while_that_is_pledged() {
    let mut cache = leased();
    let at = (DIR, name("a"));
    assert_eq!(cache.name_validity(&at, Some(FILE), START), Duration::ZERO);
    take(&mut cache, "a", START);
    assert_eq!(cache.name_validity(&at, Some(FILE), START), PLEDGE_LEASE);
    assert_eq!(cache.name_validity(&at, Some(FILE), START + PLEDGE_LEASE), Duration::ZERO);
    assert_eq!(cache.name_validity(&at, None, START), Duration::ZERO, "it is not missing");
    assert_eq!(cache.name_validity(&at, Some(DIR), START), Duration::ZERO, "it leads elsewhere");
    let pledge = |number| [Pledge { about: Pledged::Name { dir: DIR, name: name("a") }, number }];
    let names = cache.drop_recalled(PARTITION, &pledge(0)).names;
    assert_eq!(names, [], "a later pledge is about it");
    let names = cache.drop_recalled(PARTITION, &pledge(1)).names;
    assert_eq!(names, std::slice::from_ref(&at));
    assert_eq!(cache.name_validity(&at, Some(FILE), START), Duration::ZERO);
    let names = cache.drop_recalled(PARTITION, &pledge(1)).names;
    assert_eq!(names, [at], "the door may have what is not remembered any more");
}

#[test]
fn nothing_is_remembered_of_what_an_own_op_is_changing() {
    let mut cache = leased();
    take(&mut cache, "a", START);
    let asked = cache.ask(&lookup("a")).unwrap();
    let (change, forgets) = begin(&mut cache, &unlink("a"), START);
    assert_eq!(forgets, DoorForgets::These(vec![DIR, FILE]));
    assert!(!is_known(&mut cache, &lookup("a"), START) && !is_known(&mut cache, &get_attr(FILE), START));
    assert_eq!(cache.ask(&lookup("a")), None, "no pledge is asked for");
    cache.take(asked, &lookup("a"), &found(), &both(), START);
    assert!(!is_known(&mut cache, &lookup("a"), START), "asked before, answered meanwhile");
    cache.end_change(change, true, &[], START);
    cache.take(asked, &lookup("a"), &found(), &both(), START);
    assert!(!is_known(&mut cache, &lookup("a"), START), "asked before, answered after");
    take(&mut cache, "a", START);
    assert!(is_known(&mut cache, &lookup("a"), START));
}

#[test]
fn the_removal_of_an_unknown_name_ends_the_attributes_of_all_files() {
    let mut cache = leased();
    take(&mut cache, "a", START);
    let directory = Found::Node { attr: Box::new(attr(DIR, NodeKind::Directory)) };
    let asked = cache.ask(&get_attr(DIR)).unwrap();
    cache.take(asked, &get_attr(DIR), &directory, &[given(3, GivenFor::Attributes)], START);
    let other = Op::Name { op: NameOp::Unlink { dir: inode(0, 99), name: name("b"), open_here: None } };
    let (change, forgets) = begin(&mut cache, &other, START);
    assert_eq!(forgets, DoorForgets::All);
    assert!(!is_known(&mut cache, &get_attr(FILE), START));
    assert!(is_known(&mut cache, &get_attr(DIR), START), "no file");
    cache.end_change(change, true, &[], START);
    take(&mut cache, "a", START);
    assert!(is_known(&mut cache, &get_attr(FILE), START));
}

/// A cache that remembers another file, whose name it does not.
fn with_another_file() -> (Cache, InodeId) {
    let (mut cache, other) = (leased(), inode(1, 8));
    cache.renew(START, START, &[(PartitionNumber(1), TERM)]);
    take(&mut cache, "a", START);
    let found = Found::Node { attr: Box::new(attr(other, NodeKind::File)) };
    let pledge = GivenPledges { partition: PartitionNumber(1), ..given(7, GivenFor::Attributes) };
    let asked = cache.ask(&get_attr(other)).unwrap();
    cache.take(asked, &get_attr(other), &found, &[pledge], START);
    (cache, other)
}

#[test]
fn a_name_that_is_recalled_while_an_own_op_changes_its_inode_may_lead_to_any_file() {
    let (mut cache, other) = with_another_file();
    let (change, _) = begin(&mut cache, &unlink("a"), START);
    assert!(is_known(&mut cache, &get_attr(other), START), "the name leads to another file");
    let about = Pledged::Name { dir: DIR, name: name("a") };
    assert_eq!(cache.drop_recalled(PARTITION, &[Pledge { about, number: 1 }]).attributes, DoorForgets::All);
    assert!(!is_known(&mut cache, &get_attr(other), START), "another client may rename it there now");
    assert_eq!(cache.validity(&attr(other, NodeKind::File), START), Duration::ZERO);
    cache.end_change(change, true, &[], START);
    assert!(!is_known(&mut cache, &get_attr(other), START), "it was removed perhaps");
}

#[test]
fn a_name_whose_lease_ends_while_an_own_op_changes_its_inode_may_lead_to_any_file() {
    let (mut cache, other) = with_another_file();
    let (change, _) = begin(&mut cache, &unlink("a"), START);
    let later = START + PLEDGE_LEASE - MOMENT;
    cache.renew(later, later, &[(PartitionNumber(1), TERM)]);
    assert!(is_known(&mut cache, &get_attr(other), later));
    assert!(!is_known(&mut cache, &get_attr(other), later + MOMENT));
    cache.end_change(change, true, &[], later + MOMENT);
    assert!(!is_known(&mut cache, &get_attr(other), later + MOMENT));
}

#[test]
fn a_name_that_two_own_ops_change_may_lead_to_any_file() {
    let (mut cache, other) = with_another_file();
    let (first, _) = begin(&mut cache, &unlink("a"), START);
    let (second, forgets) = begin(&mut cache, &unlink("a"), START);
    assert_eq!(forgets, DoorForgets::All);
    cache.end_change(second, true, &[], START);
    let asked = cache.ask(&get_attr(other)).unwrap();
    let found = Found::Node { attr: Box::new(attr(other, NodeKind::File)) };
    let pledge = GivenPledges { partition: PartitionNumber(1), ..given(8, GivenFor::Attributes) };
    cache.take(asked, &get_attr(other), &found, &[pledge], START);
    assert!(!is_known(&mut cache, &get_attr(other), START), "the first one may still remove it");
    cache.end_change(first, true, &[], START);
    assert!(!is_known(&mut cache, &get_attr(other), START));
}

#[test]
fn what_an_op_without_an_answer_may_change_is_not_remembered_for_long() {
    let mut cache = leased();
    take(&mut cache, "a", START);
    let (change, _) = begin(&mut cache, &chmod(FILE), START);
    cache.end_change(change, false, &[], START);
    take(&mut cache, "a", START);
    assert!(!is_known(&mut cache, &get_attr(FILE), START));
    let later = START + Duration::from_secs(601);
    cache.renew(later, later, &[(PARTITION, TERM)]);
    let (other, _) = begin(&mut cache, &chmod(DIR), later);
    cache.end_change(other, true, &[], later);
    take(&mut cache, "a", later);
    assert!(is_known(&mut cache, &get_attr(FILE), later));
}

#[test]
fn entries_of_a_list_are_remembered_but_those_that_are_left_out() {
    let mut cache = leased();
    let entry = |text, inode, attr| Entry { name: name(text), inode, kind: NodeKind::File, attr };
    let with = |number| Some(attr(inode(0, number), NodeKind::File));
    let entries = vec![entry("a", inode(0, 11), with(11)), entry("b", inode(0, 12), with(12)), entry("c", FILE, None)];
    let list = Op::Name { op: NameOp::List { dir: DIR, after: None, limit: 9, attributes: true, touch: false } };
    let asked = cache.ask(&list).unwrap();
    let pledges = [given(10, GivenFor::Entries { except: vec![1, 2, 5] })];
    cache.take(asked, &list, &Found::List { entries, end: true }, &pledges, START);
    assert!(
        !is_known(&mut cache, &get_attr(inode(0, 11)), START) && is_known(&mut cache, &get_attr(inode(0, 12)), START)
    );
    assert_eq!(cache.counts().0, 2, "the names of the first and the last");
    let about = Pledged::Attributes { inode: inode(0, 12) };
    cache.drop_recalled(PARTITION, &[Pledge { about: about.clone(), number: 12 }]);
    assert!(is_known(&mut cache, &get_attr(inode(0, 12)), START), "its number is 13");
    cache.drop_recalled(PARTITION, &[Pledge { about, number: 13 }]);
    assert!(!is_known(&mut cache, &get_attr(inode(0, 12)), START));
}

/// What a door was told to forget.
#[derive(Default)]
struct Door {
    inodes: Mutex<Vec<InodeId>>,
    names: Mutex<Vec<NameAt>>,
    contents: Mutex<Vec<InodeId>>,
    expected: Mutex<Vec<InodeId>>,
    mapped: Mutex<Vec<InodeId>>,
    /// The door cannot forget contents at once.
    is_busy: AtomicBool,
}

impl Watcher for Door {
    fn forget_attributes(&self, inodes: &[InodeId]) {
        self.inodes.lock().extend(inodes);
    }

    fn expire(&self, _: &[InodeId]) {}

    fn forget_all_attributes(&self) {}

    fn forget_names(&self, names: &[NameAt]) {
        self.names.lock().extend_from_slice(names);
    }

    fn forget_all_names(&self) {}

    fn forget_contents(&self, files: &[InodeId]) -> bool {
        self.contents.lock().extend(files);
        !self.is_busy.load(Ordering::Relaxed)
    }

    fn forget_all_contents(&self) -> bool {
        true
    }

    fn drop_mapped(&self, file: InodeId, is_busy: &dyn Fn()) {
        while self.is_busy.load(Ordering::Relaxed) {
            is_busy();
            hekate_threads::sleep(Duration::from_millis(10));
        }
        self.mapped.lock().push(file);
    }

    fn expect_contents(&self, files: Option<&[InodeId]>) {
        self.expected.lock().extend(files.unwrap_or_default());
    }
}

#[test]
fn a_recall_is_returned_once_the_door_has_forgotten() {
    let servers = ScriptedServers::new(map(), |_, server, request| match &request.op {
        Op::Volume { op: VolumeOp::Renew { .. } } if server == ServerId(1) => {
            Ok(Reply::Terms { terms: vec![(PARTITION, TERM)] })
        }
        Op::Volume { op: VolumeOp::Renew { .. } } => Ok(Reply::Terms { terms: Vec::new() }),
        Op::Name { .. } if request.pledge => Ok(Reply::Pledged { found: found(), pledges: both().into() }),
        Op::Volume { op: VolumeOp::Heartbeat { .. } } => {
            Ok(Reply::Orphans { inodes: Vec::new(), unrestored: Vec::new(), graph: 0 })
        }
        _ => Ok(Reply::Done),
    });
    let replicate = Replicate::with_pledges(servers.clone(), SESSION, map(), ContentUse::None);
    let top = Pledging::new(Arc::new(Distribute::new(replicate)));
    let door = Arc::new(Door::default());
    top.pledges().watch(door.clone());
    let beat = VolumeOp::Heartbeat { unused: Vec::new(), mapped: Vec::new(), graph: 0 };
    top.handle(&Context::default(), Op::Volume { op: beat }).unwrap();
    // Each server is asked; the first one again, since its leader was not known.
    servers.wait_until(|sent| sent.iter().filter(|sent| sent.label() == "renew-pledges").count() >= 4);
    hekate_threads::sleep(Duration::from_millis(100));
    servers.take_sent();
    for _ in 0..3 {
        assert_eq!(top.handle(&Context::default(), lookup("a")), node(attr(FILE, NodeKind::File)));
    }
    assert_eq!(servers.count("lookup"), 1);
    assert_eq!(top.pledges().counts(), (1, 1, 2));
    let about_name = Pledged::Name { dir: DIR, name: name("a") };
    let pledges =
        vec![Pledge { about: Pledged::Attributes { inode: FILE }, number: 2 }, Pledge { about: about_name, number: 1 }];
    let recall = Notification::Recall { partition: PARTITION, term: TERM, pledges: pledges.clone() };
    servers.notify_of(ServerId(1), &recall);
    servers.wait_until(|sent| sent.iter().any(|sent| sent.label() == "return-pledges"));
    assert_eq!(*door.inodes.lock(), [FILE]);
    assert_eq!(*door.names.lock(), [(DIR, name("a"))]);
    let returned = servers.take_sent().into_iter().find(|sent| sent.label() == "return-pledges").unwrap();
    assert_eq!(returned.server, ServerId(1));
    assert_eq!(
        returned.request.op,
        Op::Volume { op: VolumeOp::Return { partition: PARTITION, term: TERM, pledges, reports: Vec::new() } }
    );
    top.handle(&Context::default(), lookup("a")).unwrap();
    assert_eq!(servers.count("lookup"), 1, "it is asked for anew");
    servers.close();
}

#[test]
fn a_mapping_right_is_returned_once_the_door_has_dropped_the_pages() {
    let number = AtomicU64::new(6);
    let servers = ScriptedServers::new(map(), move |_, _, request| match &request.op {
        Op::Volume { op: VolumeOp::Renew { .. } } => Ok(Reply::Terms { terms: vec![(PARTITION, TERM)] }),
        Op::Volume { op: VolumeOp::Heartbeat { .. } } => {
            Ok(Reply::Orphans { inodes: Vec::new(), unrestored: Vec::new(), graph: 0 })
        }
        Op::Inode { op: InodeOp::Map { .. } } => {
            assert!(request.pledge);
            let number = number.fetch_add(1, Ordering::Relaxed) + 1;
            pledged(Found::Done, &[given(number, GivenFor::Mapping { since: 7 })])
        }
        _ => Ok(Reply::Done),
    });
    let replicate = Replicate::with_pledges(servers.clone(), SESSION, map(), ContentUse::Door);
    let top = Pledging::new(Arc::new(Distribute::new(replicate)));
    let door = Arc::new(Door::default());
    top.pledges().watch(door.clone());
    let beat = VolumeOp::Heartbeat { unused: Vec::new(), mapped: Vec::new(), graph: 0 };
    top.handle(&Context::default(), Op::Volume { op: beat }).unwrap();
    let context = Context::default();
    top.fault(&context, FILE).unwrap();
    assert_eq!(top.may_write_back(&context, FILE), Ok(false), "nobody has it open to write");
    assert!(top.pledges().opened_to_write(FILE));
    top.pledges().pages_are_dropped(FILE);
    assert!(top.pledges().are_pages_by_right(FILE));
    (0..3).for_each(|_| top.fault(&context, FILE).unwrap());
    assert_eq!(top.may_write_back(&context, FILE), Ok(true));
    let asked = servers.count("map");
    door.is_busy.store(true, Ordering::Relaxed);
    let pledges = vec![Pledge { about: Pledged::Mapping { inode: FILE }, number: 1000 }];
    servers
        .notify_of(ServerId(1), &Notification::Recall { partition: PARTITION, term: TERM, pledges: pledges.clone() });
    servers.wait_until(|sent| sent.iter().filter(|sent| sent.label() == "map").count() > asked + 2);
    assert_eq!(servers.count("return-pledges"), 0, "the leader is told that it is being done");
    assert_eq!(top.may_write_back(&context, FILE), Ok(true), "it is the session's until then");
    door.is_busy.store(false, Ordering::Relaxed);
    servers.wait_until(|sent| sent.iter().any(|sent| sent.label() == "return-pledges"));
    assert_eq!(*door.mapped.lock(), [FILE]);
    let returned = servers.take_sent().into_iter().find(|sent| sent.label() == "return-pledges").unwrap();
    assert_eq!(
        returned.request.op,
        Op::Volume { op: VolumeOp::Return { partition: PARTITION, term: TERM, pledges, reports: Vec::new() } }
    );
    top.closed_to_write(FILE);
    servers.close();
}

#[test]
fn a_read_that_moves_the_time_of_access_brings_the_pledges_with_it() {
    let piece = Piece { data: DataId(7), length: u64::MAX };
    let layout = Layout { version: 1, pieces: vec![piece] };
    let old = Attr { size: 5, mtime: Time(9), layout, ..attr(FILE, NodeKind::File) };
    let read = Attr { atime: Time(i64::MAX), ..old.clone() };
    let (first, later) = (old.clone(), read.clone());
    let servers = ScriptedServers::new(map(), move |_, _, request| match &request.op {
        Op::Volume { op: VolumeOp::Renew { .. } } => Ok(Reply::Terms { terms: vec![(PARTITION, TERM)] }),
        Op::Volume { .. } => Ok(Reply::Orphans { inodes: Vec::new(), unrestored: Vec::new(), graph: 0 }),
        Op::Name { .. } => {
            Ok(Reply::Pledged { found: Found::Node { attr: first.clone().into() }, pledges: both().into() })
        }
        Op::Data { op: DataOp::ReadShard { .. } } => {
            assert!(request.pledge);
            pledged(Found::Data { bytes: "hello".into() }, &[given(3, GivenFor::Shard)])
        }
        Op::Inode { op: InodeOp::Accessed { .. } } => node(later.clone()),
        Op::Inode { .. } if request.pledge => {
            pledged(Found::Node { attr: later.clone().into() }, &[given(4, GivenFor::Attributes)])
        }
        other => panic!("{other:?}"),
    });
    let replicate = Replicate::with_pledges(servers.clone(), SESSION, map(), ContentUse::Door);
    let top = Pledging::new(Arc::new(Distribute::new(replicate)));
    let beat = VolumeOp::Heartbeat { unused: Vec::new(), mapped: Vec::new(), graph: 0 };
    top.handle(&Context::default(), Op::Volume { op: beat }).unwrap();
    servers.wait_until(|sent| sent.iter().filter(|sent| sent.label() == "renew-pledges").count() >= 4);
    hekate_threads::sleep(Duration::from_millis(100));
    assert_eq!(top.handle(&Context::default(), lookup("a")), node(old));
    servers.take_sent();
    let number = AtomicU64::new(0);
    let context = Context { content: Some(&number), ..Context::default() };
    let touching = Op::Data { op: DataOp::Read { inode: FILE, offset: 0, length: 9, touch: true } };
    let wanted = Ok(Reply::FileData { bytes: "hello".into(), attr: read.clone() });
    assert_eq!(top.handle(&context, touching), wanted);
    assert_ne!(number.load(Ordering::Relaxed), 0);
    assert_eq!(top.handle(&context, get_attr(FILE)), node(read.clone()));
    assert_eq!(top.pledges().content_number(&read), Some(number.into_inner()));
    let mut sent = servers.take_sent();
    sent.retain(|sent| sent.label() != "renew-pledges");
    assert!(sent.len() == 3 && sent.iter().all(|one| one.batch == sent[0].batch), "{sent:?}");
    servers.close();
}

fn pledged(found: Found, pledges: &[GivenPledges]) -> Result<Reply> {
    Ok(Reply::Pledged { found, pledges: pledges.to_vec() })
}

/// Requests that the client sends in one batch with a create of `a`, after it, and the leader's replies to them.
fn reads_behind() -> Vec<(Op, Result<Reply>)> {
    let directory = Found::Node { attr: Box::new(attr(DIR, NodeKind::Directory)) };
    let of_directory = pledged(directory, &[given(3, GivenFor::Attributes)]);
    vec![(get_attr(DIR), of_directory), (lookup("a"), pledged(found(), &both()))]
}

#[test]
fn what_is_read_behind_an_own_op_is_taken_when_it_ends() {
    let mut cache = leased();
    let (change, _) = begin(&mut cache, &create("a"), START);
    cache.end_change(change, true, &reads_behind(), START);
    assert!([lookup("a"), get_attr(DIR), get_attr(FILE)].iter().all(|op| is_known(&mut cache, op, START)));
    let (change, _) = begin(&mut cache, &create("a"), START);
    cache.end_change(change, false, &reads_behind(), START);
    assert!(!is_known(&mut cache, &get_attr(DIR), START), "its outcome is not known");
}

#[test]
fn what_is_read_behind_an_own_op_is_not_taken_if_something_has_touched_it_since() {
    let mut cache = leased();
    let (change, _) = begin(&mut cache, &create("a"), START);
    let about = Pledged::Attributes { inode: DIR };
    cache.drop_recalled(PARTITION, &[Pledge { about, number: 3 }]);
    cache.end_change(change, true, &reads_behind(), START);
    assert!(!is_known(&mut cache, &get_attr(DIR), START), "it was recalled before the reply came");
    assert!(is_known(&mut cache, &lookup("a"), START));

    let mut cache = leased();
    let (first, _) = begin(&mut cache, &create("a"), START);
    let (second, _) = begin(&mut cache, &create("b"), START);
    cache.end_change(first, true, &reads_behind(), START);
    assert!(!is_known(&mut cache, &get_attr(DIR), START), "the other may have changed it after it was read");
    let (third, _) = begin(&mut cache, &create("c"), START);
    cache.end_change(second, true, &[], START);
    cache.end_change(third, true, &reads_behind()[..1], START);
    assert!(!is_known(&mut cache, &get_attr(DIR), START), "the other ended meanwhile");
}

/// The leader recalls nothing of it from the session that told it.
#[test]
fn what_the_leader_answered_before_it_was_told_of_a_write_is_not_remembered() {
    let mut cache = leased();
    let asked = cache.ask_grant(FILE).unwrap();
    cache.take_grant(asked, (FILE, 1, 0), false, &given(1, GivenFor::Times), START);
    let grant = cache.grant(FILE, 1, false, START).unwrap();
    assert!(cache.wrote(FILE, &grant, 10, START));
    let take = |cache: &mut Cache, asked: u64| {
        cache.take(asked, &get_attr(FILE), &found(), &[given(2, GivenFor::Attributes)], START);
        is_known(cache, &get_attr(FILE), START)
    };
    let asked = cache.ask(&get_attr(FILE)).unwrap();
    assert!(!take(&mut cache, asked), "the leader was not told yet");
    assert_eq!(cache.grants.all_untold(), [FILE]);
    let untold = cache.grants.untold_of(Some(FILE));
    cache.told(&untold[0]);
    assert!(!take(&mut cache, asked), "it was told meanwhile");
    let asked = cache.ask(&get_attr(FILE)).unwrap();
    assert!(take(&mut cache, asked));
}

fn read_of(offset: u64, length: u32) -> Op {
    Op::Data { op: DataOp::Read { inode: FILE, offset, length, touch: false } }
}

#[test]
fn the_content_of_a_small_file_is_answered_while_its_attributes_are_pledged() {
    let mut cache = leased();
    let file = Attr { size: 5, change: 7, ..attr(FILE, NodeKind::File) };
    let data = |bytes: &'static [u8]| Ok(Reply::FileData { bytes: bytes.into(), attr: file.clone() });
    cache.remember_content(0, &b"hello"[..].into(), &file);
    assert!(!is_known(&mut cache, &read_of(0, 100), START), "nothing is pledged");
    let node = Found::Node { attr: Box::new(file.clone()) };
    let asked = cache.ask(&lookup("a")).unwrap();
    cache.take(asked, &lookup("a"), &node, &both(), START);
    assert_eq!(cache.answer(&read_of(0, 100), START), Some(data(b"hello")));
    assert_eq!(cache.answer(&read_of(1, 3), START), Some(data(b"ell")));
    assert_eq!(cache.answer(&read_of(5, 3), START), Some(data(b"")));
    assert_eq!(cache.answer(&read_of(u64::MAX, u32::MAX), START), Some(data(b"")));
    assert!(!is_known(&mut cache, &read_of(0, 100), START + PLEDGE_LEASE));
    for changed in [
        Attr { change: 8, ..file.clone() },
        Attr { mtime: Time(9), ..file.clone() },
        Attr { ctime: Time(9), ..file.clone() },
        Attr { size: 6, ..file.clone() },
    ] {
        let asked = cache.ask(&lookup("a")).unwrap();
        cache.take(asked, &lookup("a"), &Found::Node { attr: Box::new(changed) }, &both(), START);
        assert!(!is_known(&mut cache, &read_of(0, 100), START));
    }
}

#[test]
fn only_whole_contents_beside_the_inode_are_remembered() {
    let file = Attr { size: 5, ..attr(FILE, NodeKind::File) };
    let in_shards = Attr {
        layout: Layout { pieces: vec![Piece { data: DataId(1), length: u64::MAX }], ..file.layout.clone() },
        ..file.clone()
    };
    for (offset, bytes, of) in
        [(0, &b"hell"[..], &file), (1, b"ello", &file), (1, b"hello", &file), (0, b"hello", &in_shards)]
    {
        let mut cache = leased();
        let asked = cache.ask(&lookup("a")).unwrap();
        cache.take(asked, &lookup("a"), &Found::Node { attr: Box::new(of.clone()) }, &both(), START);
        cache.remember_content(offset, &bytes.into(), of);
        assert!(!is_known(&mut cache, &read_of(0, 100), START), "{offset} {bytes:?}");
    }
}
