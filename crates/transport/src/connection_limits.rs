//! Limits on the connections of a server, so that no user can take all of them.
//!
//! Root, the server's own user and other servers may use all of them. Every other user of this machine and every
//! client with a certificate has a limit, and all of those together have one. Connections over TCP whose certificate is
//! not known yet, or who have none, have a limit of their own.

use crate::credentials::Peer;
use hekate_tls::Holder;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Connections of one server; one more is refused. Each costs a thread and a descriptor.
const CONNECTIONS_MAX: usize = 8192;
/// Connections of all limited owners together: three quarters, so that a quarter stays free.
const UNPRIVILEGED_MAX: usize = 6144;
/// Connections of one user of this machine: several mounts, each of up to 34.
const PER_USER_MAX: usize = 256;
/// Connections of one client: mounts on several machines may share its credential.
const PER_CLIENT_MAX: usize = 2560;
/// Connections over TCP of which it is not known yet who connected. From here on the oldest makes room for a new one;
/// twice as many may be ending.
const UNPROVED_MAX: usize = 128;

/// The connections of one server, counted by owner.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLimits(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    unproved: usize,
    unprivileged: usize,
    by_owner: HashMap<Owner, usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Owner {
    /// Root, the server's own user, or another server.
    Trusted,
    User(u32),
    Client(String),
    Unproved,
}

impl Owner {
    fn of(peer: &Peer) -> Self {
        match (peer.holder(), peer.unprivileged_uid()) {
            (Some(Holder::Client(name)), _) => Owner::Client(name.clone()),
            (Some(Holder::Server(_)), _) => Owner::Trusted,
            (None, Some(uid)) => Owner::User(uid),
            (None, None) if matches!(peer, Peer::Local { .. }) => Owner::Trusted,
            (None, None) => Owner::Unproved,
        }
    }
}

/// The right to keep one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    owner: Owner,
}

impl ConnectionLimits {
    /// A permit for a connection of this peer, or (`None`) of one that is not known yet. Returns `None` if the limit is
    /// reached.
    pub fn take(self: &Arc<Self>, peer: Option<&Peer>) -> Option<ConnectionPermit> {
        let owner = peer.map_or(Owner::Unproved, Owner::of);
        self.0.lock().take(&owner).then(|| ConnectionPermit { limits: self.clone(), owner })
    }

    /// True if a connection that is not known yet has to make room for a new one.
    pub fn is_full_of_unproved(&self) -> bool {
        self.0.lock().unproved >= UNPROVED_MAX
    }

    /// Number of open connections.
    pub fn count(&self) -> usize {
        self.0.lock().all
    }
}

impl Counts {
    fn take(&mut self, owner: &Owner) -> bool {
        let own = self.by_owner.get(owner).copied().unwrap_or_default();
        let has_room = self.all < CONNECTIONS_MAX
            && match owner {
                Owner::Trusted => true,
                Owner::Unproved => self.unproved < 2 * UNPROVED_MAX,
                Owner::User(_) => self.unprivileged < UNPRIVILEGED_MAX && own < PER_USER_MAX,
                Owner::Client(_) => self.unprivileged < UNPRIVILEGED_MAX && own < PER_CLIENT_MAX,
            };
        if has_room {
            self.all += 1;
            match owner {
                Owner::Trusted => {}
                Owner::Unproved => self.unproved += 1,
                Owner::User(_) | Owner::Client(_) => {
                    self.unprivileged += 1;
                    *self.by_owner.entry(owner.clone()).or_default() += 1;
                }
            }
        }
        has_room
    }

    fn release(&mut self, owner: &Owner) {
        self.all -= 1;
        match owner {
            Owner::Trusted => {}
            Owner::Unproved => self.unproved -= 1,
            Owner::User(_) | Owner::Client(_) => {
                self.unprivileged -= 1;
                let own = self.by_owner.entry(owner.clone()).or_default();
                *own = own.saturating_sub(1);
                if *own == 0 {
                    self.by_owner.remove(owner);
                }
            }
        }
    }
}

impl ConnectionPermit {
    /// Who has connected is known now. False: that one has as many connections as it may.
    pub fn prove(&mut self, peer: &Peer) -> bool {
        let owner = Owner::of(peer);
        if self.owner != Owner::Unproved || owner == Owner::Unproved {
            return true;
        }
        let mut counts = self.limits.0.lock();
        counts.release(&self.owner);
        let has_room = counts.take(&owner);
        if has_room {
            self.owner = owner;
        } else {
            // Released when the permit is dropped.
            (counts.all, counts.unproved) = (counts.all + 1, counts.unproved + 1);
        }
        has_room
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limits.0.lock().release(&self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn take(limits: &Arc<ConnectionLimits>, uid: u32, count: usize) -> Vec<ConnectionPermit> {
        (0..count).map_while(|_| limits.take(Some(&Peer::Local { uid }))).collect()
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
        assert_eq!((limits.count(), limits.0.lock().by_owner.len()), (0, 0));
    }

    fn client(name: &str) -> Peer {
        let holder = Some(Holder::Client(name.into()));
        Peer::Remote(crate::credentials::Remote { holder, serial: "1".into(), network: "front".into(), address: None })
    }

    #[test]
    fn unproved_connections_leave_room_for_proved_ones() {
        let limits = Arc::<ConnectionLimits>::default();
        let mut waiting: Vec<ConnectionPermit> = (0..CONNECTIONS_MAX).map_while(|_| limits.take(None)).collect();
        assert!(waiting.len() == 2 * UNPROVED_MAX && limits.is_full_of_unproved());
        assert!(waiting[0].prove(&client("a")) && limits.take(None).is_some());
        drop(waiting);
        let counts = limits.0.lock();
        assert_eq!((counts.all, counts.unproved, counts.by_owner.len()), (0, 0, 0));
    }

    #[test]
    fn one_client_cannot_take_all_connections() {
        let limits = Arc::<ConnectionLimits>::default();
        let mut kept = Vec::new();
        let mut connect = |name: &str| {
            let mut permit = limits.take(None).unwrap();
            let proved = permit.prove(&client(name));
            kept.extend(proved.then_some(permit));
            proved
        };
        assert_eq!((0..CONNECTIONS_MAX).take_while(|_| connect("a")).count(), PER_CLIENT_MAX);
        assert!(connect("b"));
        drop(kept);
        let counts = limits.0.lock();
        assert_eq!((counts.all, counts.unproved), (0, 0));
    }
}
