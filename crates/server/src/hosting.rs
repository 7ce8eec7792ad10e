//! What this server hosts: bricks, rings, volumes, its lease, and its links to other servers.
//!
//! | file | what it does | a bug here shows as |
//! |---|---|---|
//! | `node` | the parts of a server; how it starts and stops | a server that does not stop |
//! | `access` | what a peer may do | a user or client who is refused, or let in |
//! | `keys`, `authority` | the credential of this server; issues those of others | a certificate that nobody accepts |
//! | `service` | opens volumes for clients | |
//! | `start` | reads the records, brings the replicas into step | a server that does not start; replicas that differ |
//! | `cluster_access` | the records of the cluster, the addresses of its servers | a server of another cluster |
//! | `surroundings` | what a server needs of its machine: bricks in directories, links | |
//! | `inspection` | what the simulator's checkers look at | |
//! | `own_bricks` | opens this server's bricks and holds them | a brick that is refused; an old copy that is accepted |
//! | `bricks` | makes, adds, replaces and removes bricks | `hekate brick` that refuses, or forgets a brick |
//! | `rings` | the rings that this server has replicas of | |
//! | `hosted_ring` | the replicas of a ring that are here, and their mailboxes | a request that reaches no leader |
//! | `lease` | until when leaders here may answer | a stale answer after a pause of the machine |
//! | `views` | renews the lease, forms views, records that they have begun | two leaders; no leader after a failure |
//! | `watch` | waits for changes of the records, wakes the threads that read them | changes of other servers that are seen late |
//! | `volumes` | makes, maps and deletes volumes | a volume without a root; space that does not come back |
//! | `peer_inbox` | messages of replicas to and from other servers | replicas on two servers that stop replicating |

pub(crate) mod access;
pub mod authority;
pub(crate) mod bricks;
pub(crate) mod cluster_access;
pub(crate) mod hosted_ring;
pub(crate) mod inspection;
pub(crate) mod keys;
pub(crate) mod lease;
pub(crate) mod node;
pub(crate) mod own_bricks;
pub(crate) mod peer_inbox;
pub(crate) mod rings;
pub(crate) mod service;
pub(crate) mod start;
pub(crate) mod surroundings;
pub(crate) mod views;
pub(crate) mod volumes;
pub(crate) mod watch;
