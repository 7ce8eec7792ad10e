//! Answers a client's batch of requests.
//!
//! | file | what it does | a bug here shows as |
//! |---|---|---|
//! | `batch` | carries out the requests in order, syncs, answers | an answer before its sync; a skipped request |
//! | `partition_op` | a request for a leader: lease, epoch, reads, repair | a wrong error; a stale read |
//! | `turn` | an event for a replica and all that follows from it here | messages out of order; a stuck op |
//! | `tickets` | hands an answer to the thread that waits for it | a request that times out although it was done |
//! | `syncer` | syncs several bricks in parallel | a lost write after a power cut; slow fsyncs |
//! | `sessions` | which clients exist, when a session expires | a lock that outlives its mount |
//! | `orphans` | inodes without a name that may be open | space of a deleted file that does not come back |
//! | `locking` | POSIX locks: restores, grants, releases | a lock that is never granted, or granted twice |
//! | `pledges` | what sessions may answer by themselves: renewals, returns | a stale answer; a change that waits for seconds |
//! | `member_writes` | writes to one member, past the leader | a fast or raw write that is refused |
//! | `raw` | steps of raw writes (modes `afr` and `fast-path`) and their locks; feature `measuring` | two raw writes to one range at once |
//! | `raw_absent` | refuses those modes, in the place of `raw` | a volume that cannot be opened |
//!
//! Invariant: the connection's thread that received a batch carries it out and answers it. Where another thread
//! continues a replica's work, it hands the answer back through `tickets`.

pub(crate) mod batch;
pub(crate) mod locking;
pub(crate) mod member_writes;
pub(crate) mod orphans;
pub(crate) mod partition_op;
pub(crate) mod pledges;
#[cfg(feature = "measuring")]
pub(crate) mod raw;
#[cfg(not(feature = "measuring"))]
#[path = "request/raw_absent.rs"]
pub(crate) mod raw;
pub(crate) mod sessions;
pub(crate) mod syncer;
pub(crate) mod tickets;
pub(crate) mod turn;
