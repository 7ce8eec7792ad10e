//! Names in the order of keys: a directory's name counts as if it ended in `/`, since all keys below it do.
//!
//! Names rest in byte order. A directory `a` comes before `a-b` there and after it in the order of keys, so it is held
//! back until no later name can precede it.

use crate::ops::read::{LIST_MAX, entry, shared_by};
use crate::ops::step::Stepped;
use crate::ops::tree::Tree;
use bytes::Bytes;
use hekate_brick::Brick;
use hekate_proto::*;
use std::collections::BTreeMap;

/// Names that are held back or were read, by their order among keys.
type Held = BTreeMap<Vec<u8>, (Name, NameRecord)>;

/// The place of a name among keys.
fn order_of(name: &[u8], kind: NodeKind) -> Vec<u8> {
    let mut order = name.to_vec();
    if kind == NodeKind::Directory {
        order.push(b'/');
    }
    order
}

/// At most `limit` names of a directory in this partition, see `NameOp::ListKeys`.
pub fn list(
    brick: &Brick,
    tree: &Tree,
    (dir, spread): (InodeId, u32),
    prefix: &Bytes,
    after: &Bytes,
    limit: u32,
) -> Stepped<Reply> {
    shared_by(tree.stub(dir)?, spread)?;
    let limit = limit.clamp(1, LIST_MAX) as usize;
    let all = Key::name(tree.names_prefix(dir), dir, b"");
    let begin = Key::name(tree.names_prefix(dir), dir, prefix);
    let to = begin.prefix_end();
    let mut held = directories_before(tree, dir, prefix, after)?;
    let mut from = begin.max(Key::name(tree.names_prefix(dir), dir, after));
    let (mut entries, mut end) = (Vec::new(), from >= to);
    while entries.len() < limit && !end {
        let found = brick.scan(&from, &to, limit)?;
        end = found.len() < limit;
        for (key, value) in found {
            from = key.successor();
            let (name, record) = (Name::new(key.rest())?, NameRecord::from_bytes(value)?);
            // Every later name comes after this one among keys, too.
            emit(tree, &mut held, Some(name.as_bytes()), limit, &mut entries)?;
            let order = order_of(name.as_bytes(), record.kind);
            if order[..] > after[..] {
                held.insert(order, (name, record));
            }
        }
    }
    if end {
        emit(tree, &mut held, None, limit, &mut entries)?;
    }
    let end = end && held.is_empty();
    let escaped = Key::name(tree.names_prefix(dir), dir, ESCAPE);
    let escaped = !brick.scan(&escaped, &escaped.prefix_end().min(all.prefix_end()), 1)?.is_empty();
    let directory = if tree.is_home(dir) { Some(Box::new(tree.attr(dir)?)) } else { None };
    Ok(Reply::Keys { entries, end, escaped, directory })
}

/// Moves names that precede `before` among keys to the entries, up to the limit.
fn emit(tree: &Tree, held: &mut Held, before: Option<&[u8]>, limit: usize, entries: &mut Vec<Entry>) -> Stepped<()> {
    while entries.len() < limit
        && let Some(first) = held.first_entry()
        && before.is_none_or(|before| &first.key()[..] < before)
    {
        let (name, record) = first.remove();
        entries.push(entry(tree, name, record, true)?);
    }
    Ok(())
}

/// Directories whose names precede `after` in byte order, and follow it among keys: their names are prefixes of it.
fn directories_before(tree: &Tree, dir: InodeId, prefix: &Bytes, after: &Bytes) -> Stepped<Held> {
    let mut held = Held::new();
    for length in prefix.len().max(1)..after.len().min(256) {
        if after[length] >= b'/' || !after.starts_with(prefix) {
            continue;
        }
        let Ok(name) = Name::new(after.slice(..length)) else { continue };
        if let Some(record) = tree.name(dir, &name)?
            && record.kind == NodeKind::Directory
        {
            held.insert(order_of(name.as_bytes(), record.kind), (name, record));
        }
    }
    Ok(held)
}
