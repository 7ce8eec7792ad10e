//! The layers over scripted servers: no server runs, and each test says what the servers reply.
//!
//! Most tests run on one thread in virtual time, so a pause costs nothing and a wait without an end fails the test.

mod append;
mod bytes;
mod copy;
mod fast;
mod files;
mod holes;
mod lists;
mod locks;
mod made;
mod mapping_rights;
mod names;
mod pledges;
mod runs;
mod scripted_servers;
mod shard_pledges;
mod slots;
mod space;
mod support;
mod syncing;
mod touched;
mod views;
mod virtual_time;
mod waits;
mod wide;
