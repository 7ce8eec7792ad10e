//! Recalls of pledges, passed on to the kernel: it forgets the attributes and names that it was given.
//!
//! For attributes the kernel takes no lock that a request holds, and replies to requests from before are not taken, since
//! it counts (`attr_version`).
//!
//! For a name it takes the lock of the directory, which a request may hold that waits for another client, which waits for
//! the same here. So another thread tells the kernel, and nobody waits for that longer than the kernel may use the name.
//! A thread that only renews a known name holds no lock when it takes the reply: a name of which the kernel was told a
//! moment ago expires once more when that moment is over.

use crate::filesystem::Filesystem;
use crate::passed_names::{TAKEN_WITHIN, used_until};
use crate::session::Session;
use hekate_client::{NameAt, Watcher};
use hekate_proto::InodeId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Pause before the kernel is told again of an inode that it is about to have.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// How long a recall of attributes waits until the kernel asks before it uses the inode's name again.
const NAME_WAIT: Duration = Duration::from_millis(20);
/// How long a recall of bytes waits until the kernel has dropped pages. It is not returned then, and comes again.
const PAGES_WAIT: Duration = Duration::from_millis(500);
/// Interval at which who waits for mapped pages that are written back is told that they are.
const BUSY_INTERVAL: Duration = Duration::from_millis(500);
/// Threads that tell the kernel of names or pages at the same time. With more, recalls wait until the kernel may not use the
/// names any more.
const TELLING_MAX: usize = 8;

struct Recalls {
    session: Weak<Session<Filesystem>>,
    /// Threads that tell the kernel of names.
    telling: Arc<AtomicUsize>,
}

/// Has the volume's recalls passed on to the kernel.
pub(crate) fn pass_on_recalls(session: &Arc<Session<Filesystem>>) {
    let recalls = Recalls { session: Arc::downgrade(session), telling: Arc::default() };
    let weak = Arc::downgrade(session);
    let forget_node = move |node| {
        if let Some(session) = weak.upgrade() {
            wait_until_taken(&session, node);
            session.device().invalidate_attributes(node);
        }
    };
    let weak = Arc::downgrade(session);
    let drop_pages = move |node| {
        if let Some(session) = weak.upgrade() {
            wait_until_taken(&session, node);
            session.device().drop_pages(node);
        }
    };
    session.handler().watch(Arc::new(recalls), Box::new(forget_node), Box::new(drop_pages));
}

impl Watcher for Recalls {
    fn forget_attributes(&self, inodes: &[InodeId]) {
        let Some(session) = self.session.upgrade() else { return };
        for node in inodes.iter().map(|inode| inode.number()) {
            if let Some(passed_at) = forget(&session, node) {
                // Nothing is pledged about it now, so nothing was passed on meanwhile.
                session.handler().nodes().note_forgotten(node, passed_at);
            }
        }
    }

    fn expire(&self, inodes: &[InodeId]) {
        // The kernel checks an owner by what it last knew of the inode, and asks anew only when it looks up a name.
        let Some(session) = self.session.upgrade() else { return };
        let names = session.handler().names();
        let names: Vec<(NameAt, Instant)> = inodes.iter().filter_map(|inode| names.name_of(*inode)).collect();
        let (told, is_told) = channel();
        if !names.is_empty() && self.tell(session.clone(), names, None, told) {
            let _ = is_told.recv_timeout(NAME_WAIT);
        }
    }

    fn forget_all_attributes(&self) {
        if let Some(session) = self.session.upgrade() {
            session.handler().nodes().passed().into_iter().for_each(|node| _ = forget(&session, node));
        }
    }

    fn forget_names(&self, names: &[NameAt]) {
        let Some(session) = self.session.upgrade() else { return };
        let passed = |name: &NameAt| session.handler().names().passed_at(name).map(|at| (name.clone(), at));
        let passed: Vec<(NameAt, Instant)> = names.iter().filter_map(passed).collect();
        names.iter().for_each(|(dir, _)| session.handler().names().note_shared(*dir));
        let Some(last) = passed.iter().map(|(_, at)| *at).max() else { return };
        let until = used_until(last);
        let (told, is_told) = channel();
        if self.tell(session.clone(), passed, Some(last), told) {
            let told = is_told.recv_timeout(until.saturating_duration_since(Instant::now()));
            if told == Err(RecvTimeoutError::Timeout) {
                session.handler().names().note_fight();
            }
        } else {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
    }

    fn forget_contents(&self, files: &[InodeId]) -> bool {
        let Some(session) = self.session.upgrade() else { return true };
        let pages = session.handler().pages();
        let is_shown = |file: &&InodeId| pages.mark(file.number()) && !session.handler().are_pages_by_right(**file);
        let shown: Vec<u64> = files.iter().filter(is_shown).map(|file| file.number()).collect();
        // Marked before: attributes that the kernel is given from now on let it use no old page.
        self.forget_attributes(files);
        self.drop_shown(session, shown)
    }

    fn forget_all_contents(&self) -> bool {
        let Some(session) = self.session.upgrade() else { return true };
        let mut shown = session.handler().pages().mark_all();
        shown.retain(|node| {
            session.handler().inode(*node).is_ok_and(|inode| !session.handler().are_pages_by_right(inode))
        });
        self.forget_all_attributes();
        self.drop_shown(session, shown)
    }

    fn drop_mapped(&self, file: InodeId, is_busy: &dyn Fn()) {
        let Some(session) = self.session.upgrade() else { return };
        let (told, is_told) = channel();
        loop {
            let (session, told) = (session.clone(), told.clone());
            let drop_them = move || {
                wait_until_taken(&session, file.number());
                session.device().drop_pages(file.number());
                let _ = told.send(());
            };
            match std::thread::Builder::new().name("hekate-mapped".into()).spawn(drop_them) {
                Ok(_) => break,
                Err(error) => log::warn!("cannot start a thread that has the kernel drop pages: {error}"),
            }
            std::thread::sleep(BUSY_INTERVAL);
            is_busy();
        }
        while is_told.recv_timeout(BUSY_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            is_busy();
        }
    }

    fn expect_contents(&self, files: Option<&[InodeId]>) {
        let Some(session) = self.session.upgrade() else { return };
        match files {
            None => _ = session.handler().pages().mark_all(),
            Some(files) => files.iter().for_each(|file| session.handler().pages().expect(file.number())),
        }
    }

    fn forget_all_names(&self) {
        let until = self.session.upgrade().and_then(|session| session.handler().names().all_used_until());
        if let Some(until) = until {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
    }
}

impl Recalls {
    /// Has another thread drop the pages of files that mappings may show. False if that takes too long: the kernel waits
    /// for pages that are being read.
    fn drop_shown(&self, session: Arc<Session<Filesystem>>, shown: Vec<u64>) -> bool {
        if shown.is_empty() {
            return true;
        }
        let telling = self.telling.clone();
        if telling.fetch_add(1, Ordering::SeqCst) >= TELLING_MAX {
            telling.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        let (told, is_told) = channel();
        let tell = move || {
            for node in shown {
                wait_until_taken(&session, node);
                session.device().drop_pages(node);
            }
            telling.fetch_sub(1, Ordering::SeqCst);
            let _ = told.send(());
        };
        if let Err(error) = std::thread::Builder::new().name("hekate-pages".into()).spawn(tell) {
            log::warn!("cannot start a thread that has the kernel drop pages: {error}");
            self.telling.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        is_told.recv_timeout(PAGES_WAIT).is_ok()
    }

    /// Has another thread tell the kernel of names. `last`: when the kernel was told of the last of them, for names that
    /// it must not use any more. False if there is no thread.
    fn tell(
        &self,
        session: Arc<Session<Filesystem>>,
        names: Vec<(NameAt, Instant)>,
        last: Option<Instant>,
        told: Sender<()>,
    ) -> bool {
        let telling = self.telling.clone();
        if telling.fetch_add(1, Ordering::SeqCst) >= TELLING_MAX {
            telling.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        let tell = move || {
            let begun = Instant::now();
            expire(&session, names.iter().map(|(name, _)| name));
            if let Some(last) = last.filter(|last| *last + TAKEN_WITHIN > begun) {
                std::thread::sleep((last + TAKEN_WITHIN).saturating_duration_since(Instant::now()));
                let recent = |(_, at): &&(NameAt, Instant)| *at + TAKEN_WITHIN > begun;
                expire(&session, names.iter().filter(recent).map(|(name, _)| name));
            }
            telling.fetch_sub(1, Ordering::SeqCst);
            let _ = told.send(());
        };
        let started = std::thread::Builder::new().name("hekate-names".into()).spawn(tell);
        if let Err(error) = &started {
            log::warn!("cannot start a thread that tells the kernel of names: {error}");
            self.telling.fetch_sub(1, Ordering::SeqCst);
        }
        started.is_ok()
    }
}

fn expire<'a>(session: &Session<Filesystem>, names: impl Iterator<Item = &'a NameAt>) {
    names.for_each(|(dir, name)| session.device().expire_name(dir.number(), name.as_bytes()));
}

/// Waits until the kernel has taken the attributes that it was last given, if it asks for them before it reads from pages.
/// It takes none, not even the size, from a reply that it waited for when it was told to forget.
fn wait_until_taken(session: &Session<Filesystem>, node: u64) {
    if let Some(ago) = session.handler().pages().asked_ago(node) {
        std::thread::sleep(TAKEN_WITHIN.saturating_sub(ago));
    }
}

/// Has the kernel forget an inode's attributes and ACLs. Returns when it was given the attributes, if it may have used
/// them.
fn forget(session: &Session<Filesystem>, node: u64) -> Option<u32> {
    let nodes = session.handler().nodes();
    let mut had_acl = nodes.take_acl(node);
    loop {
        let passed_at = nodes.passed_at(node);
        if passed_at.is_none() && !had_acl {
            return None;
        }
        wait_until_taken(session, node);
        if session.device().invalidate_attributes(node) {
            return passed_at;
        }
        // A kernel that does not have the inode may be about to: a reply with it is on its way.
        std::thread::sleep(RETRY_PAUSE);
        had_acl = false;
    }
}
