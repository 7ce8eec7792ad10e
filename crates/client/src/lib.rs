//! Opens a volume and executes ops on it: the library that every gateway uses.
//!
//! A [`Volume`] has a session with its cluster, the volume's map and its graph of translators. All calls block the
//! calling thread and may be made by many threads at once. While a server is unavailable they wait and then continue,
//! and no op is executed twice; [`Context::interrupt`] ends a wait.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/scratch.rs"));
//! # fn main() -> hekate_client::proto::Result<()> {
//! # let scratch = Scratch::new("doc-paths");
//! # let endpoint = scratch.endpoint();
//! use hekate_client::{OpenOptions, Volume};
//!
//! let volume = Volume::open(endpoint, "v1", &OpenOptions::default())?;
//! volume.make_directory("letters")?;
//! volume.write_file("letters/first", b"Dear reader")?; // on every copy's disk when it returns
//! assert_eq!(&volume.read_file("letters/first")?[..], b"Dear reader");
//! volume.rename_path("letters/first", "letters/kept")?;
//! let names: Vec<_> = volume.read_directory("letters")?.into_iter().map(|entry| entry.name).collect();
//! assert_eq!(names.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! By inode, with what a gateway needs: opens, durability, conditions.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/scratch.rs"));
//! # fn main() -> hekate_client::proto::Result<()> {
//! # let scratch = Scratch::new("doc-inodes");
//! # let endpoint = scratch.endpoint();
//! use hekate_client::proto::{Name, NewNode, ROOT};
//! use hekate_client::{Context, New, OpenOptions, Volume};
//!
//! let volume = Volume::open(endpoint, "v1", &OpenOptions::default())?;
//! let context = Context::default(); // acknowledged by all copies; `Context::DURABLE` waits for their disks
//! let new = New { node: NewNode::File, mode: 0o600, uid: 1000, gid: 1000, umask: 0, exclusive: true };
//! let (file, _) = volume.create(&context, ROOT, Name::try_from("notes")?, new)?;
//! volume.opened(file.id); // from now on the file exists without a name
//! volume.write(&Context::DURABLE, file.id, 0, "kept".into(), false)?;
//! volume.unlink(&context, ROOT, Name::try_from("notes")?, Some(file.id))?;
//! assert_eq!(&volume.read(&context, file.id, 0, 100)?[..], b"kept");
//! volume.closed(file.id);
//! # Ok(())
//! # }
//! ```

mod files;
mod graph;
mod heartbeats;
mod locks;
mod objects;
mod reads;
mod volume;

pub use hekate_graph::{Caller, Context};
pub use hekate_proto as proto;
pub use hekate_proto::Fetched;
pub use hekate_translators::{ContentUse, NameAt, Pledges, Watcher, check_mode};
pub use hekate_transport::{Endpoint, Local};
pub use objects::{Joined, KeyPage, ObjectName, Owner};
pub use volume::{FilePosition, New, OpenOptions, SetXattr, Volume, seed};
