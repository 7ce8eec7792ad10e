//! The checks, a file each. A check says what is wrong where, and the fix; it never changes anything.

pub mod contract;
pub mod dependencies_page;
pub mod file_names;
pub mod fillers;
pub mod formats;
pub mod headers;
pub mod history;
pub mod invariants;
pub mod layers;
pub mod leftovers;
pub mod length;
pub mod links;
pub mod long_lines;
mod manifests;
pub mod messages;
pub mod modules;
pub mod policy;
pub mod purity;
