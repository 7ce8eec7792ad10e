//! Clients' ops: what each reads and changes, as functions of the leader's copy. `step.rs` defines their types, and
//! `dispatch.rs` selects the function of an op. Each file is named after its ops: `rename` is in `rename.rs`.

pub(crate) mod acl;
mod allocate;
pub(crate) mod copy;
pub(crate) mod data;
pub(crate) mod discarded;
pub(crate) mod dispatch;
pub(crate) mod ends;
pub(crate) mod footprint;
pub(crate) mod inodes;
pub(crate) mod keys;
pub(crate) mod names;
pub(crate) mod objects;
pub(crate) mod read;
pub(crate) mod recent_truncates;
mod rename;
pub(crate) mod seek;
pub(crate) mod shards;
pub(crate) mod step;
pub(crate) mod stubs;
pub(crate) mod tree;
mod truncate;
