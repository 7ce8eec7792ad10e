//! Where the cluster's records are kept, and how this server reaches them.
//!
//! | file | what it does | a bug here shows as |
//! |---|---|---|
//! | `place` | the forms of an address of the coordinator | a server that asks at the wrong address |
//! | `current` | the coordinator of a running server, which follows a move of the records | two coordinators in use |
//! | `remote` | the coordinator of another process | a change of the cluster that is lost or made twice |
//! | `host` | the coordinator as a process of its own | |
//! | `etcd` | certificates for etcd, its members | a member that nobody accepts |
//! | `state_directory` | the role of a state directory, and its files | a server that starts in the wrong role |

pub(crate) mod current;
pub mod etcd;
pub(crate) mod host;
pub(crate) mod place;
pub(crate) mod remote;
pub mod state_directory;
