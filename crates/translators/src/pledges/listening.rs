//! The threads of a session that listen for recalls, one a server: each renews the pledges of the server's leaders, and
//! returns what they recall.

use super::Pledges;
use crate::replicate::Replicate;
use hekate_proto::*;
use hekate_threads::{boot_time, elapsed, now};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which pledges are renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a connection to a server is opened again.
const LISTEN_PAUSE: Duration = Duration::from_millis(100);

impl Pledges {
    /// Body of a listening thread: renews the pledges of a server's leaders, and returns what they recall, until the
    /// volume is closed or the server has nothing of it any more.
    pub(super) fn listen(self: &Arc<Self>, replicate: &Arc<Replicate>, server: ServerId) {
        while !replicate.servers().is_closed() && replicate.map().holders().contains(&server) {
            let mut notifications = match replicate.servers().listen(server) {
                Ok(notifications) => notifications,
                Err(Error::SessionEnded) => return,
                Err(_) => {
                    hekate_threads::sleep(LISTEN_PAUSE);
                    continue;
                }
            };
            let mut renewed_at = None;
            while !replicate.servers().is_closed() {
                let due = renewed_at.map_or(Duration::ZERO, |at| RENEW_INTERVAL.saturating_sub(elapsed(at)));
                if due.is_zero() {
                    renewed_at = Some(now());
                    self.renew(replicate, server);
                    continue;
                }
                match notifications.next(due) {
                    Ok(None) => {}
                    Ok(Some(Notification::Recall { pledges, .. })) if pledges.is_empty() => renewed_at = None,
                    Ok(Some(Notification::Recall { partition, term, mut pledges })) => {
                        self.recall_rights(replicate, (partition, term), &mut pledges);
                        if pledges.is_empty() {
                            continue;
                        }
                        // One that is lost is recalled again.
                        if let Some(returned) = self.recalled(partition, term, pledges) {
                            self.give_back(replicate, server, returned);
                        }
                    }
                    Ok(Some(Notification::Answered { .. })) => {}
                    Err(_) => break,
                }
            }
        }
    }

    /// Renews the pledges of a server's leaders. Leaders of which nothing was known learn at once that the session has
    /// forgotten those before them.
    fn renew(self: &Arc<Self>, replicate: &Arc<Replicate>, server: ServerId) {
        // Nothing waits for these before a recall does. If it takes too long, it is tried again.
        self.forget_contents(&[]);
        self.return_idle_grants(replicate, server);
        for _ in 0..2 {
            let sent = boot_time();
            let (forgot, mapped) = {
                let cache = self.cache.lock();
                (cache.forgot(), cache.mappings.kept())
            };
            let Ok(Reply::Terms { terms }) = replicate.tell(server, VolumeOp::Renew { forgot, mapped }) else { return };
            let is_any_new = self.cache.lock().renew(sent, boot_time(), &terms);
            self.drop_lost(replicate);
            if !is_any_new {
                return;
            }
            if let Some(watcher) = self.watcher.get() {
                watcher.forget_all_attributes();
                watcher.forget_all_names();
                if !watcher.forget_all_contents() {
                    return;
                }
            }
            self.cache.lock().doors_forgot(&terms);
        }
    }
}
