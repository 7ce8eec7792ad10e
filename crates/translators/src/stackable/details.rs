//! What an op is about, for people and their tools.

use hekate_proto::{DataOp, Name, NameOp, Op};
use serde_json::{Map, Value, json};

/// The names, inodes, offsets and lengths of an op. Inodes are their number, as `ls -i` shows it.
pub fn details(op: &Op) -> Map<String, Value> {
    let mut found = Map::new();
    let mut put = |name: &str, value: Value| _ = found.insert(name.into(), value);
    match op {
        Op::Name { op } => {
            put("directory", json!(op.dir().number()));
            if let Some(name) = name_of(op) {
                put("name", json!(String::from_utf8_lossy(name.as_bytes())));
            }
            if let NameOp::Rename { dir, name, .. } = op {
                put("old_directory", json!(dir.number()));
                put("old_name", json!(String::from_utf8_lossy(name.as_bytes())));
            }
        }
        Op::Inode { op } => put("inode", json!(op.inode().number())),
        Op::Data { op } => {
            if let Some(inode) = inode_of(op) {
                put("inode", json!(inode));
            }
            if let Some((offset, length)) = range_of(op) {
                put("offset", json!(offset));
                put("length", json!(length));
            }
        }
        Op::Lock { .. } | Op::Volume { .. } | Op::Leg { .. } => {}
    }
    found
}

fn name_of(op: &NameOp) -> Option<&Name> {
    match op {
        NameOp::Lookup { name, .. }
        | NameOp::Create { name, .. }
        | NameOp::Link { name, .. }
        | NameOp::Unlink { name, .. }
        | NameOp::Rmdir { name, .. }
        | NameOp::Put { name, .. }
        | NameOp::Remove { name, .. }
        | NameOp::MakePrefix { name, .. }
        | NameOp::RemovePrefix { name, .. }
        | NameOp::Fetch { name, .. }
        | NameOp::Join { to: name, .. }
        | NameOp::Rename { to_name: name, .. } => Some(name),
        _ => None,
    }
}

/// The number of the file that an op on bytes is about.
pub fn inode_of(op: &DataOp) -> Option<u64> {
    match op {
        DataOp::Read { inode, .. }
        | DataOp::Write { inode, .. }
        | DataOp::Fsync { inode }
        | DataOp::Allocate { inode, .. }
        | DataOp::Append { inode, .. }
        | DataOp::Seek { inode, .. }
        | DataOp::Copy { to: inode, .. } => Some(inode.number()),
        _ => None,
    }
}

/// Offset and length of the bytes of an op. The offset of an append is not known before.
pub fn range_of(op: &DataOp) -> Option<(Option<u64>, u64)> {
    match op {
        DataOp::Read { offset, length, .. } => Some((Some(*offset), u64::from(*length))),
        DataOp::Write { offset, data, .. } => Some((Some(*offset), data.len() as u64)),
        DataOp::Append { data, .. } => Some((None, data.len() as u64)),
        DataOp::Allocate { offset, length, .. } | DataOp::Copy { to_offset: offset, length, .. } => {
            Some((Some(*offset), *length))
        }
        _ => None,
    }
}
