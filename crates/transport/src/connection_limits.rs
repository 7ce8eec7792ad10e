//! Who keeps how many connections of a server, so that nobody keeps all of them.
//!
//! Root, the server's own user and whoever has proved the secret may have all; any other user so many, all of them
//! together fewer than there are; and over TCP only so many may be about to prove the secret.

use crate::credentials::Peer;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Connections that one server keeps; one more is refused.
const CONNECTIONS_MAX: usize = 4096;
/// What all users but root and our own may have of them.
const STRANGERS_MAX: usize = 3072;
/// What one of them may have: several mounts, each of up to 34.
const STRANGER_MAX: usize = 256;
/// What those may have together who have not proved the secret yet.
const UNPROVED_MAX: usize = 128;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    unproved: usize,
    strangers: usize,
    by_user: HashMap<u32, usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Trusted,
    Stranger(u32),
    Unproved,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    places: Arc<Places>,
    whose: Whose,
}

impl Places {
    /// A place for a user of this machine, or (none) for who has yet to prove the secret; if there is one.
    pub fn take(self: &Arc<Self>, peer: Option<Peer>) -> Option<ConnectionPermit> {
        let whose = match peer {
            None => Whose::Unproved,
            Some(peer) => match peer.stranger() {
                Some(uid) => Whose::Stranger(uid),
                None => Whose::Trusted,
            },
        };
        self.0.lock().take(whose).then(|| ConnectionPermit { places: self.clone(), whose })
    }

    /// Connections that there are.
    pub fn count(&self) -> usize {
        self.0.lock().all
    }
}

impl Taken {
    fn take(&mut self, whose: Whose) -> bool {
        let has_room = self.all < CONNECTIONS_MAX
            && match whose {
                Whose::Trusted => true,
                Whose::Unproved => self.unproved < UNPROVED_MAX,
                Whose::Stranger(uid) => {
                    self.strangers < STRANGERS_MAX && self.by_user.get(&uid).is_none_or(|own| *own < STRANGER_MAX)
                }
            };
        if has_room {
            self.all += 1;
            match whose {
                Whose::Trusted => {}
                Whose::Unproved => self.unproved += 1,
                Whose::Stranger(uid) => {
                    self.strangers += 1;
                    *self.by_user.entry(uid).or_default() += 1;
                }
            }
        }
        has_room
    }

    fn give_back(&mut self, whose: Whose) {
        self.all -= 1;
        match whose {
            Whose::Trusted => {}
            Whose::Unproved => self.unproved -= 1,
            Whose::Stranger(uid) => {
                self.strangers -= 1;
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
    /// The secret was proved.
    pub fn is_proved(&mut self) {
        if self.whose == Whose::Unproved {
            self.whose = Whose::Trusted;
            self.places.0.lock().unproved -= 1;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.places.0.lock().give_back(self.whose);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn take(places: &Arc<Places>, uid: u32, count: usize) -> Vec<ConnectionPermit> {
        (0..count).map_while(|_| places.take(Some(Peer::Local { uid }))).collect()
    }

    #[test]
    fn a_stranger_keeps_nobody_else_out() {
        let places = Arc::<Places>::default();
        let kept = take(&places, 70_001, CONNECTIONS_MAX);
        assert_eq!(kept.len(), STRANGER_MAX);
        let others: Vec<Vec<ConnectionPermit>> =
            (2..100).map(|user| take(&places, 70_000 + user, STRANGER_MAX)).collect();
        assert_eq!(kept.len() + others.iter().map(Vec::len).sum::<usize>(), STRANGERS_MAX);
        assert_eq!(take(&places, own(), CONNECTIONS_MAX).len(), CONNECTIONS_MAX - STRANGERS_MAX);
        assert_eq!(places.count(), STRANGERS_MAX);
        drop((kept, others));
        assert_eq!((places.count(), places.0.lock().by_user.len()), (0, 0));
    }

    #[test]
    fn who_has_not_proved_the_secret_leaves_room_for_who_has() {
        let places = Arc::<Places>::default();
        let mut waiting: Vec<ConnectionPermit> = (0..CONNECTIONS_MAX).map_while(|_| places.take(None)).collect();
        assert_eq!(waiting.len(), UNPROVED_MAX);
        waiting[0].is_proved();
        assert!(places.take(None).is_some());
        drop(waiting);
        assert_eq!((places.count(), places.0.lock().unproved), (0, 0));
    }
}
