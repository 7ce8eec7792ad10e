//! Translators that are installed on a machine: shared libraries, and programs in Python.
//!
//! Invariants: a library or a program that cannot be used refuses the graph that names it, and nothing else. What a
//! translator in Python does, it does in a process of its own; a library shares the process of its mount or door.

mod home;
mod native;
mod pool;
mod python;
mod request;

pub use home::{Home, InstalledPlugin, InstalledPython};
