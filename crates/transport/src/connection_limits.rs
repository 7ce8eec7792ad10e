//! Limits on the connections of a server, so that no user can take all of them.
//!
//! Root, the server's own user and clients that have proved the secret may use all of them. Every other user has a
//! limit, and all those users together have one. TCP clients that have not yet proved the secret have a limit of
//! their own.

use crate::credentials::Peer;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Connections of one server; one more is refused. Each costs a thread and two descriptors.
const CONNECTIONS_MAX: usize = 4096;
/// Connections of all users but root and the server's own, together: three quarters, so that a quarter stays free.
const UNPRIVILEGED_MAX: usize = 3072;
/// Connections of one such user: several mounts, each of up to 34.
const PER_USER_MAX: usize = 256;
/// TCP connections that have not yet proved the secret.
const UNPROVED_MAX: usize = 128;

/// The connections of one server, counted by owner.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLimits(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    unproved: usize,
    unprivileged: usize,
    by_user: HashMap<u32, usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Root, the server's own user, or a client that proved the secret.
    Trusted,
    Unprivileged(u32),
    Unproved,
}

/// The right to keep one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    owner: Owner,
}

impl ConnectionLimits {
    /// A permit for a connection of this peer, or (`None`) of a TCP client that has yet to prove the secret. Returns
    /// `None` if the limit is reached.
    pub fn take(self: &Arc<Self>, peer: Option<Peer>) -> Option<ConnectionPermit> {
        let owner = match peer {
            None => Owner::Unproved,
            Some(peer) => match peer.unprivileged_uid() {
                Some(uid) => Owner::Unprivileged(uid),
                None => Owner::Trusted,
            },
        };
        self.0.lock().take(owner).then(|| ConnectionPermit { limits: self.clone(), owner })
    }

    /// Number of open connections.
    pub fn count(&self) -> usize {
        self.0.lock().all
    }
}

impl Counts {
    fn take(&mut self, owner: Owner) -> bool {
        let has_room = self.all < CONNECTIONS_MAX
            && match owner {
                Owner::Trusted => true,
                Owner::Unproved => self.unproved < UNPROVED_MAX,
                Owner::Unprivileged(uid) => {
                    self.unprivileged < UNPRIVILEGED_MAX && self.by_user.get(&uid).is_none_or(|own| *own < PER_USER_MAX)
                }
            };
        if has_room {
            self.all += 1;
            match owner {
                Owner::Trusted => {}
                Owner::Unproved => self.unproved += 1,
                Owner::Unprivileged(uid) => {
                    self.unprivileged += 1;
                    *self.by_user.entry(uid).or_default() += 1;
                }
            }
        }
        has_room
    }

    fn release(&mut self, owner: Owner) {
        self.all -= 1;
        match owner {
            Owner::Trusted => {}
            Owner::Unproved => self.unproved -= 1,
            Owner::Unprivileged(uid) => {
                self.unprivileged -= 1;
                let own = self.by_user.entry(uid).or_default();
                *own = own.saturating_sub(1);
                if *own == 0 {
                    self.by_user.remove(&uid);
                }
            }
        }
    }
}

impl ConnectionPermit {
    /// The client has proved the secret, or needed no proof.
    pub fn mark_proved(&mut self) {
        if self.owner == Owner::Unproved {
            self.owner = Owner::Trusted;
            self.limits.0.lock().unproved -= 1;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limits.0.lock().release(self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn take(limits: &Arc<ConnectionLimits>, uid: u32, count: usize) -> Vec<ConnectionPermit> {
        (0..count).map_while(|_| limits.take(Some(Peer::Local { uid }))).collect()
    }

    #[test]
    fn one_user_cannot_take_all_connections() {
        let limits = Arc::<ConnectionLimits>::default();
        let kept = take(&limits, 70_001, CONNECTIONS_MAX);
        assert_eq!(kept.len(), PER_USER_MAX);
        let others: Vec<Vec<ConnectionPermit>> =
            (2..100).map(|user| take(&limits, 70_000 + user, PER_USER_MAX)).collect();
        assert_eq!(kept.len() + others.iter().map(Vec::len).sum::<usize>(), UNPRIVILEGED_MAX);
        assert_eq!(take(&limits, own(), CONNECTIONS_MAX).len(), CONNECTIONS_MAX - UNPRIVILEGED_MAX);
        assert_eq!(limits.count(), UNPRIVILEGED_MAX);
        drop((kept, others));
        assert_eq!((limits.count(), limits.0.lock().by_user.len()), (0, 0));
    }

    #[test]
    fn unproved_clients_leave_room_for_proved_ones() {
        let limits = Arc::<ConnectionLimits>::default();
        let mut waiting: Vec<ConnectionPermit> = (0..CONNECTIONS_MAX).map_while(|_| limits.take(None)).collect();
        assert_eq!(waiting.len(), UNPROVED_MAX);
        waiting[0].mark_proved();
        assert!(limits.take(None).is_some());
        drop(waiting);
        assert_eq!((limits.count(), limits.0.lock().unproved), (0, 0));
    }
}
