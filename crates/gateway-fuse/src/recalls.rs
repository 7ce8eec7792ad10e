//! Recalls of pledges, passed on to the kernel: it forgets the attributes that it was given.
//!
//! The kernel has no names that it may use without a request. To drop one it takes the lock of the directory, which a
//! request may hold that waits for another client, which waits for the same here. For attributes it takes no lock that a
//! request holds. Replies to requests from before are not taken, since the kernel counts (`attr_version`).

use crate::filesystem::Filesystem;
use crate::session::Session;
use hekate_client::Watcher;
use hekate_proto::InodeId;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause before the kernel is told again of an inode that it is about to have.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

struct Recalls(Weak<Session<Filesystem>>);

/// Has the volume's recalls passed on to the kernel.
pub(crate) fn pass_on_recalls(session: &Arc<Session<Filesystem>>) {
    session.handler().watch(Arc::new(Recalls(Arc::downgrade(session))));
}

impl Watcher for Recalls {
    fn forget_attributes(&self, inodes: &[InodeId]) {
        let Some(session) = self.0.upgrade() else { return };
        for node in inodes.iter().map(|inode| inode.number()) {
            if let Some(passed_at) = forget(&session, node) {
                // Nothing is pledged about it now, so nothing was passed on meanwhile.
                session.handler().nodes().note_forgotten(node, passed_at);
            }
        }
    }

    fn forget_all(&self) {
        if let Some(session) = self.0.upgrade() {
            session.handler().nodes().passed().into_iter().for_each(|node| _ = forget(&session, node));
        }
    }
}

/// Has the kernel forget an inode's attributes. Returns when it was given them.
fn forget(session: &Session<Filesystem>, node: u64) -> Option<u32> {
    loop {
        let passed_at = session.handler().nodes().passed_at(node)?;
        if session.device().invalidate_attributes(node) {
            return Some(passed_at);
        }
        // A kernel that does not have the inode may be about to: a reply with it is on its way.
        std::thread::sleep(RETRY_PAUSE);
    }
}
